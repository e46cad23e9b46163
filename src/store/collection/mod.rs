//! One collection: its log, its state in memory, its files.

pub(in crate::store) mod commit;
pub(in crate::store) mod contiguous;
pub(in crate::store) mod digest_cache;
pub(in crate::store) mod limits;
pub(in crate::store) mod lineage;
pub(in crate::store) mod pinned_copies;
pub(in crate::store) mod recover;
pub(in crate::store) mod usage_file;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::format::files::cgeb::Runs;
use crate::format::log::catalog::{Entry, NodeEntry, NodeType};
use crate::model::{EntryId, Error, ErrorKind, MODE_BITS, ObjectId, Result, StoreId};
use crate::store::clock::{Ticks, now_nanoseconds, now_seconds};
use crate::store::collection::digest_cache::DigestCache;
use crate::store::collection::lineage::Lineage;
use crate::store::disk::{Disk, File, Open};
use crate::store::events::{EventKind, Events, Note};
use crate::store::io::rebuild::Rebuilder;
use crate::store::log::append::Log;
use crate::store::log::checkpoint::{Compaction, due};
use crate::store::log::replay::{Damage, Replayed, replay};
use crate::store::object::Object;
use crate::store::quota::{Limits, Meter};
use crate::store::repair::set_aside::set_aside;
use crate::store::space::reservations::{Reservations, ReservedSlots};
use crate::store::space::slots::Slots;
use crate::store::state::freed::Freed;
use crate::store::state::node::Node;
use crate::store::state::{ROOT, State};

/// Number of payload files: the tier files, `delta.dat` and `factor.dat`.
const PAYLOAD_FILES: usize = 6;
/// The first generation of a log.
const FIRST_GENERATION: u64 = 1;
pub(in crate::store) const LOG_NAME: &str = "meta.log";

/// Access to a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read only. Nothing on the disk changes.
    Read,
    /// Read and write.
    Write,
}

/// A collection of a store.
pub struct Collection {
    pub(in crate::store) store: StoreId,
    tenant: String,
    name: String,
    pub(in crate::store) disk: Arc<dyn Disk>,
    /// Held for lookups and changes in memory, never across I/O.
    pub(in crate::store) state: RwLock<State>,
    /// The writer. Locked before `state`; held while a batch is written.
    pub(in crate::store) writer: Mutex<Option<Writer>>,
    pub(in crate::store) tiers: [OnceLock<Arc<dyn File>>; PAYLOAD_FILES],
    pub(in crate::store) data: Mutex<HashMap<u64, Weak<dyn File>>>,
    /// Data files that somebody reads directly.
    pub(in crate::store) shown: Mutex<HashMap<u64, Weak<()>>>,
    pub(in crate::store) access: Access,
    /// The clock.
    pub(in crate::store) ticks: Ticks,
    /// Whether blocks were used since the usage was last saved.
    pub(in crate::store) is_used: AtomicBool,
    /// When the usage was last saved. Held during a save, across I/O; only `state` is locked with it.
    pub(in crate::store) accesses_kept: Mutex<Option<Instant>>,
    damage: Option<Damage>,
    /// The reason, set once when a sync has failed.
    pub(in crate::store) poisoned: OnceLock<String>,
    /// Locked for reading by every read of payloads, and for writing before space is reused, because a
    /// read that began before a change may still use the old location.
    pub(in crate::store) reading: RwLock<()>,
    /// Reserved slots that no batch names yet.
    pub(in crate::store) reservations: Arc<Reservations>,
    /// Provides other sources of blocks.
    pub(in crate::store) rebuilder: Rebuilder,
    /// Objects that an interrupted import has left, to be removed once the log has room. Held briefly;
    /// no other lock is taken with it.
    pub(in crate::store) orphans: Mutex<Vec<ObjectId>>,
    /// Counts the collection's use. Its lock is the last in the order.
    pub(in crate::store) meter: Arc<Meter>,
    /// Dependencies on its objects.
    pub(in crate::store) lineage: Arc<Lineage>,
    /// Is notified of name changes.
    pub(in crate::store) names: NameWatcher,
    events: Vec<Note>,
    pub(in crate::store) event_log: Arc<Events>,
    /// Held briefly; no other lock is taken with it.
    pub(in crate::store) last_compaction: Mutex<Option<Compaction>>,
    log_bytes: u64,
    /// Cached values of its files.
    pub(in crate::store) digest_cache: DigestCache,
}

/// Called when names change, once it is set. The writer's locks are held during the call.
pub(in crate::store) type NameWatcher = Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>;

pub(in crate::store) struct Writer {
    pub log: Log,
    /// Files written since the last sync.
    pub unsynced: Touched,
    /// Space freed by a batch, with the batch's number: reusable once the batch is durable and nothing
    /// reads the space.
    pub freed: Vec<(u64, Freed)>,
    /// The free space of the payload files, once they were written to.
    pub slots: [Option<Slots>; PAYLOAD_FILES],
    /// Number of the next data file, once one was created; 0 before.
    pub next_data: u64,
    /// Length in bytes at which the log is due for a checkpoint.
    pub compact_at: u64,
}

/// The objects of a file, and the layout of the records if it is an embedding batch.
pub type Parts = (Vec<Arc<Object>>, Option<Arc<Runs>>);

/// Files that were written and must be durable before a batch that names them.
#[derive(Default)]
pub struct Touched {
    pub(in crate::store) files: Vec<Arc<dyn File>>,
    /// Addresses of these in memory, so that each is listed once.
    seen: HashSet<usize>,
    pub(in crate::store) tiers: HashSet<u8>,
    /// Slots reserved for what was written. Dropping this returns those that no batch names.
    pub(in crate::store) slots: ReservedSlots,
}

impl Collection {
    /// Creates an empty collection in an existing tenant directory. `owner` is the user and the group
    /// of its directory, `mode` its permission bits.
    pub fn create(
        disk: &Arc<dyn Disk>,
        store: StoreId,
        (tenant, name): (&str, &str),
        number: u32,
        owner: (u32, u32),
        mode: u32,
    ) -> Result<Collection> {
        let path = format!("{tenant}/{name}");
        let failed = |error| Error::io(format!("making the collection {path}"), error);
        disk.create_directory(&path).map_err(failed)?;
        disk.create_directory(&format!("{path}/data")).map_err(failed)?;
        let log_path = format!("{path}/{LOG_NAME}");
        refuse_remains(disk, &path)?;
        // The log of an interrupted attempt has no header and no content.
        match disk.remove_file(&log_path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let file = disk.open(&log_path, Open::Create).map_err(failed)?;
        let mut log = Log::create(file.clone(), store, FIRST_GENERATION)?;
        let mut batch = log.begin();
        batch.entry(Entry::Collection { number, created_at: now_seconds(), last_entry: 0 });
        let now = now_nanoseconds();
        batch.entry(Entry::Node(Box::new(NodeEntry {
            id: ROOT,
            mode: mode & MODE_BITS,
            uid: owner.0,
            gid: owner.1,
            atime: now,
            mtime: now,
            ctime: now,
            created_at: now_seconds(),
            node_type: NodeType::Directory,
        })));
        log.append(&batch)?;
        log.sync()?;
        for directory in [&path, tenant, ""] {
            disk.sync_directory(directory).map_err(failed)?;
        }
        Collection::open(disk, store, tenant, name, Access::Write)
    }

    /// Opens a collection. `NotFound` if it does not exist or its creation never finished.
    pub fn open(
        disk: &Arc<dyn Disk>,
        store: StoreId,
        tenant: &str,
        name: &str,
        access: Access,
    ) -> Result<Collection> {
        let path = format!("{tenant}/{name}");
        let log_path = format!("{path}/{LOG_NAME}");
        let how = if access == Access::Write { Open::Write } else { Open::Read };
        let file =
            disk.open(&log_path, how).map_err(|error| Error::io(format!("opening {log_path}"), error))?;
        let replayed = replay(&file, store).map_err(|error| error.at(&path))?;
        if access == Access::Write && replayed.needs_setting_aside() {
            return Collection::open_dropped(disk, store, (tenant, name), replayed);
        }
        let Replayed { mut state, end, durable, events, damage, freed, .. } = replayed;
        if state.node(ROOT).is_none() && damage.is_none() {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("{path}: the collection was never finished"),
            ));
        }
        let writer = if access == Access::Write && damage.is_none() {
            // Bytes after the end belong to a dropped batch and must not count as a later one.
            // Truncating frees the reserve behind the end too: a full disk may have no other space.
            let len = file.len().map_err(|error| Error::io(format!("measuring {log_path}"), error))?;
            if len != end.bytes {
                let cut = file.set_len(end.bytes);
                cut.map_err(|error| Error::io(format!("cutting {log_path}"), error))?;
            }
            Some(Writer {
                log: Log::resume(file, end),
                unsynced: Touched::default(),
                freed: freed.into(),
                slots: Default::default(),
                next_data: 0,
                compact_at: due(&state),
            })
        } else {
            freed.into_iter().for_each(|(_, freed)| freed.forget());
            None
        };
        // Space freed by an earlier mount is free, because slots are allocated around the space in use.
        state.forget_freed();
        let collection = Collection {
            writer: Mutex::new(writer),
            access,
            damage,
            events,
            log_bytes: end.bytes,
            ..Collection::of_state(disk, store, (tenant, name), state)
        };
        let synced = collection.sync_unsure(durable).map_err(|error| collection.poison(error));
        match synced.and_then(|()| collection.recover()) {
            // Opened again it would sync again, which would report success. So it stays as it is.
            Err(error) if collection.poisoned().is_none() => Err(error),
            _ => Ok(collection),
        }
    }

    /// Opens a collection whose log has a dropped end. First sets aside what that end named. If that
    /// fails, nothing is changed and the collection accepts no writes.
    fn open_dropped(
        disk: &Arc<dyn Disk>,
        store: StoreId,
        (tenant, name): (&str, &str),
        replayed: Replayed,
    ) -> Result<Collection> {
        let mut events = replayed.events.clone();
        match set_aside(disk, store, (tenant, name), replayed) {
            Ok(done) => {
                let mut collection = Collection::open(disk, store, tenant, name, Access::Write)?;
                events.extend(done);
                events.append(&mut collection.events);
                collection.events = events;
                Ok(collection)
            }
            Err(error) => {
                let collection = Collection::open(disk, store, tenant, name, Access::Read)?;
                collection.poison(error.at("setting aside what the dropped end of meta.log named"));
                Ok(collection)
            }
        }
    }

    /// A read-only collection with this state.
    pub(in crate::store) fn of_state(
        disk: &Arc<dyn Disk>,
        store: StoreId,
        (tenant, name): (&str, &str),
        state: State,
    ) -> Collection {
        Collection {
            store,
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            disk: disk.clone(),
            state: RwLock::new(state),
            writer: Mutex::new(None),
            tiers: Default::default(),
            data: Mutex::default(),
            shown: Mutex::default(),
            access: Access::Read,
            ticks: Ticks::default(),
            is_used: AtomicBool::new(false),
            accesses_kept: Mutex::default(),
            damage: None,
            poisoned: OnceLock::new(),
            reading: RwLock::new(()),
            reservations: Arc::default(),
            rebuilder: Rebuilder::default(),
            orphans: Mutex::default(),
            meter: Meter::new("", None, Limits::default()),
            lineage: Arc::default(),
            names: NameWatcher::default(),
            events: Vec::new(),
            event_log: Arc::default(),
            last_compaction: Mutex::default(),
            digest_cache: DigestCache::default(),
            log_bytes: 0,
        }
    }

    /// `tenant/name`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.tenant, self.name)
    }

    /// Whether it was opened for writing.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Its tenant.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Its own name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its state. The guard must not be held across I/O.
    pub fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// Damage to its log, if any. The collection accepts no writes then.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Problems found and corrected while it was opened.
    pub fn events(&self) -> &[Note] {
        &self.events
    }

    /// Length of its log in bytes when it was opened.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// `ReadOnly`, with the reason, if the collection accepts no writes.
    pub fn check_writable(&self) -> Result<()> {
        match (self.poisoned(), &self.damage, self.access) {
            (None, None, Access::Write) => Ok(()),
            // Reads ask too, and must not wait for the writer.
            (Some(reason), ..) => Err(self.read_only(reason)),
            _ => self.writable(&mut self.writer.lock()).map(|_| ()),
        }
    }

    pub(in crate::store) fn read_only(&self, reason: &str) -> Error {
        Error::new(ErrorKind::ReadOnly, format!("{} takes no writes: {reason}", self.path()))
    }

    /// The writer, or the reason why there is none.
    pub(in crate::store) fn writable<'a>(&self, writer: &'a mut Option<Writer>) -> Result<&'a mut Writer> {
        if let Some(reason) = self.poisoned() {
            return Err(self.read_only(reason));
        }
        writer.as_mut().ok_or_else(|| match &self.damage {
            Some(damage) => Error::new(
                ErrorKind::ReadOnly,
                format!("{} takes no writes: {}; run tierfs fsck", self.path(), damage.reason),
            ),
            None => Error::new(ErrorKind::ReadOnly, format!("{} was opened to be read only", self.path())),
        })
    }

    /// The objects of a file, in order; `Corrupt` if one does not exist.
    pub fn objects_of(&self, node: EntryId) -> Result<Vec<Arc<Object>>> {
        self.parts_of(node).map(|(objects, _)| objects)
    }

    /// The objects of a file, in order, and the layout of the records if it is an embedding batch
    /// assembled from them; `Corrupt` if an object does not exist.
    pub fn parts_of(&self, node: EntryId) -> Result<Parts> {
        self.parts_in(&self.state.read(), node)
    }

    /// [`parts_of`](Self::parts_of) with a state that is locked already.
    pub fn parts_in(&self, state: &State, node: EntryId) -> Result<Parts> {
        let Some(file) = state.node(node).and_then(|node| node.file()) else {
            return Err(Error::new(
                ErrorKind::Gone,
                format!("{}: no file has number {}", self.path(), node.0),
            ));
        };
        let objects = file.objects.iter();
        let objects = objects
            .map(|id| {
                state.object(*id).cloned().ok_or_else(|| {
                    let path = String::from_utf8_lossy(&state.path(node)).into_owned();
                    Error::corrupt(format!(
                        "{}/{path}: object {id} is not there; run tierfs fsck",
                        self.path()
                    ))
                })
            })
            .collect::<Result<_>>()?;
        Ok((objects, file.records.clone()))
    }
}

impl Collection {
    /// Sends its events to `events` from now on, starting with those of its opening.
    pub fn reporting_to(mut self, events: &Arc<Events>) -> Collection {
        for note in self.events() {
            events.tell(note.kind, &self.path(), "open", &note.text);
        }
        if let Some(damage) = self.damage() {
            events.tell(EventKind::Corruption, &self.path(), "open", &damage.reason);
        }
        self.event_log = events.clone();
        self
    }

    /// The log that receives its events.
    pub fn event_log(&self) -> &Arc<Events> {
        &self.event_log
    }
}

impl Collection {
    /// The path of the file that contains an object, as far as names lead to it.
    pub fn path_of(&self, object: &Object) -> String {
        let state = self.state();
        let id = object.entry.id;
        let has = |node: &&Arc<Node>| node.file().is_some_and(|file| file.objects.contains(&id));
        let node = state.part_of(id).or_else(|| state.nodes().find(has).map(|node| node.entry.id));
        let below = node.map(|node| state.path(node)).filter(|below| !below.is_empty());
        below.map_or_else(
            || self.path(),
            |below| format!("{}/{}", self.path(), String::from_utf8_lossy(&below)),
        )
    }
}

impl Collection {
    /// Notifies that names lead elsewhere or nowhere.
    pub fn names_are_old(&self) {
        if let Some(tell) = self.names.get() {
            tell();
        }
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

impl Touched {
    /// Adds a file that was written.
    pub fn file(&mut self, file: &Arc<dyn File>) {
        if self.seen.insert(Arc::as_ptr(file).cast::<()>().addr()) {
            self.files.push(file.clone());
        }
    }

    /// Takes over the content of `other`.
    pub fn merge(&mut self, other: Touched) {
        other.files.iter().for_each(|file| self.file(file));
        self.tiers.extend(other.tiers);
        self.slots.merge(other.slots);
    }
}
