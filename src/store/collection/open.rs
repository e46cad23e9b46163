//! Creates and opens collections.

use std::sync::Arc;

use crate::format::log::catalog::{Entry, NodeEntry, NodeType};
use crate::model::{CollectionName, Error, ErrorKind, Owner, Result, StoreId};
use crate::store::clock::{now_nanoseconds, now_seconds};
use crate::store::collection::Collection;
use crate::store::collection::Services;
use crate::store::collection::identity::{Access, Identity};
use crate::store::collection::journal::{Due, Journal, Writer};
use crate::store::disk::{Disk, File, Open, remove_if_present};
use crate::store::events::{EventKind, Note};
use crate::store::log::LOG_NAME;
use crate::store::log::append::Log;
use crate::store::log::replay::{Replayed, replay};
use crate::store::quota::Meter;
use crate::store::space::files::Touched;
use crate::store::state::{ROOT, State};
use crate::store::upstream::Upstream;

/// The first generation of a log.
const FIRST_GENERATION: u64 = 1;

/// The log of a collection that is being opened.
pub(in crate::store) struct OpenedLog {
    identity: Identity,
    file: Arc<dyn File>,
    pub replayed: Replayed,
    /// Whether all of it is known to be durable.
    is_durable: bool,
}

impl OpenedLog {
    /// Reads a log. `NotFound` if it does not exist or has no complete header.
    pub fn read(
        disk: &Arc<dyn Disk>,
        store: StoreId,
        place: CollectionName<'_>,
        access: Access,
    ) -> Result<OpenedLog> {
        let log_path = format!("{place}/{LOG_NAME}");
        let how = if access == Access::Write { Open::Write } else { Open::Read };
        let file = disk.open(&log_path, how).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Error::new(ErrorKind::NotFound, format!("there is no collection {place}"))
            }
            _ => Error::io(format!("opening {log_path}"), error),
        })?;
        let replayed = replay(&file, store).map_err(|error| error.at(place.to_string()))?;
        let identity = Identity::new(store, place, access);
        Ok(OpenedLog { identity, file, replayed, is_durable: false })
    }

    /// The access that it was read for.
    pub fn access(&self) -> Access {
        self.identity.access()
    }

    /// Whether it ends where its last batch ends, and says that all batches are durable.
    fn is_whole(&self) -> bool {
        let Replayed { end, damage, events, .. } = &self.replayed;
        let ends_there = self.file.len().is_ok_and(|len| len == end.bytes);
        ends_there && damage.is_none() && events.is_empty() && end.recorded_durable >= end.last
    }

    /// The same log, which was durable when this store closed the collection.
    pub fn known_durable(self) -> OpenedLog {
        OpenedLog { is_durable: self.is_whole(), ..self }
    }

    /// Whether batches that may have been durable were dropped, and it is to be written.
    pub fn needs_setting_aside(&self) -> bool {
        self.identity.access() == Access::Write && self.replayed.needs_setting_aside()
    }
}

impl Collection {
    /// Creates an empty collection in an existing tenant directory. `owner` is the user and the group
    /// of its directory, `mode` its permission bits.
    pub fn create(
        disk: &Arc<dyn Disk>,
        store: StoreId,
        place: CollectionName<'_>,
        number: u32,
        owner: Owner,
        mode: u32,
    ) -> Result<Collection> {
        let CollectionName { tenant, .. } = place;
        let path = place.to_string();
        let failed = |error| Error::io(format!("making the collection {path}"), error);
        disk.create_directory(&path).map_err(failed)?;
        disk.create_directory(&format!("{path}/data")).map_err(failed)?;
        let log_path = format!("{path}/{LOG_NAME}");
        refuse_remains(disk, &path)?;
        // The log of an interrupted attempt has no header and no content.
        remove_if_present(&**disk, &log_path).map_err(failed)?;
        let file = disk.open(&log_path, Open::Create).map_err(failed)?;
        let mut log = Log::create(file.clone(), store, FIRST_GENERATION)?;
        let mut batch = log.begin();
        batch.entry(Entry::Collection { number, created_at: now_seconds(), last_entry: 0 });
        batch.node(NodeEntry::new(ROOT, mode, owner, now_nanoseconds(), NodeType::Directory));
        log.append(&batch)?;
        log.sync()?;
        for directory in [&path, tenant, ""] {
            disk.sync_directory(directory).map_err(failed)?;
        }
        let opened = OpenedLog::read(disk, store, place, Access::Write)?;
        Collection::of_log(disk, opened, Vec::new())
    }

    /// Opens a collection of which the log was read. `NotFound` if its creation never finished. The
    /// caller has set aside the objects that a dropped end of the log named; `notes` list them.
    pub(in crate::store) fn of_log(
        disk: &Arc<dyn Disk>,
        opened: OpenedLog,
        mut notes: Vec<Note>,
    ) -> Result<Collection> {
        let OpenedLog { identity, file, replayed, is_durable } = opened;
        let path = format!("{}/{}", identity.tenant(), identity.name());
        let Replayed { mut state, end, durable, events, damage, freed, .. } = replayed;
        if state.node(ROOT).is_none() && damage.is_none() {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("{path}: the collection was never finished"),
            ));
        }
        let writer = if identity.access() == Access::Write && damage.is_none() {
            // Bytes after the end belong to a dropped batch and must not count as a later one.
            // Truncating frees the reserve behind the end too: a full disk may have no other space.
            let len = file.len().map_err(|error| Error::io(format!("measuring {path}/{LOG_NAME}"), error))?;
            if len != end.bytes {
                let cut = file.set_len(end.bytes);
                cut.map_err(|error| Error::io(format!("cutting {path}/{LOG_NAME}"), error))?;
            }
            Some(Writer {
                log: if is_durable { Log::resume_durable(file, end) } else { Log::resume(file, end) },
                unsynced: Touched::default(),
                freed: freed.into(),
                kept: None,
                leaves_more: false,
                slots: Default::default(),
                next_data: 0,
                due: Due::new(&state, 0),
            })
        } else {
            freed.into_iter().for_each(|(_, freed)| freed.forget());
            None
        };
        // Space freed by an earlier mount is free, because slots are allocated around the space in use.
        state.forget_freed();
        notes.extend(events);
        let journal = Journal::new(writer, damage, notes, end.bytes);
        let collection = Collection::of_parts(disk, identity, state, journal);
        let synced = if is_durable { Ok(()) } else { collection.sync_unsure(durable) };
        let synced = synced.map_err(|error| collection.poison(error));
        match synced.and_then(|()| collection.recover()) {
            // Opened again it would sync again, which would report success. So it stays as it is.
            Err(error) if collection.poisoned().is_none() => Err(error),
            _ => Ok(collection),
        }
    }

    /// A read-only collection with this state.
    pub(in crate::store) fn of_state(
        disk: &Arc<dyn Disk>,
        store: StoreId,
        place: CollectionName<'_>,
        state: State,
    ) -> Collection {
        let identity = Identity::new(store, place, Access::Read);
        Collection::of_parts(disk, identity, state, Journal::default())
    }

    /// The same collection, with this remote behind its disk.
    pub(in crate::store) fn with_upstream(mut self, upstream: Option<Arc<dyn Upstream>>) -> Collection {
        self.files.set_upstream(upstream);
        self
    }

    /// The same collection, which knows parents and children as another does.
    pub(in crate::store) fn with_lineage_of(mut self, other: &Collection) -> Collection {
        self.services = self.services.with_lineage_of(&other.services);
        self
    }

    /// Counts the use of the collection for its tenant, restores the usage of blocks, and gives it the
    /// services of its store. The event log gets the events of its opening.
    pub(in crate::store) fn joined(
        mut self,
        services: &Services,
        tenant: &Arc<Meter>,
        before: Option<Arc<Meter>>,
    ) -> Collection {
        self.services = services.clone();
        self.restore_usage();
        let collection = self.metered(tenant.clone(), before);
        let (path, events) = (collection.path(), collection.event_log());
        for note in collection.events() {
            events.tell(note.kind, &path, "open", &note.text);
        }
        if let Some(damage) = collection.damage() {
            events.tell(EventKind::Corruption, &path, "open", &damage.reason);
        }
        collection
    }
}

/// Refuses a directory with payload files: a missing log is that of a new collection only if there is
/// nothing else.
pub(in crate::store) fn refuse_remains(disk: &Arc<dyn Disk>, path: &str) -> Result<()> {
    for (directory, is_payload) in [(path.to_owned(), ".dat"), (format!("{path}/data"), "")] {
        let listed = match disk.list(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            listed => listed,
        };
        let listed = listed.map_err(|error| Error::io(format!("listing {directory}"), error))?;
        if listed.iter().any(|entry| !entry.is_directory && entry.name.ends_with(is_payload)) {
            return Err(Error::corrupt(format!(
                "{path} has files of data and its {LOG_NAME} is gone; restore it or move the directory away"
            )));
        }
    }
    Ok(())
}
