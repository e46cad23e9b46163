//! One collection: its log, its state in memory, its files.

pub(in crate::store) mod commit;
pub(in crate::store) mod contiguous;
pub(in crate::store) mod digest_cache;
pub(in crate::store) mod lineage;
pub(in crate::store) mod pinned_copies;
pub(in crate::store) mod recover;
pub(in crate::store) mod usage_file;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::format::files::cgeb::Runs;
use crate::format::log::catalog::{Entry, NodeEntry, What};
use crate::model::{EntryId, Error, ErrorKind, ObjectId, Result, StoreId};
use crate::store::clock::Ticks;
use crate::store::collection::digest_cache::DigestCache;
use crate::store::collection::lineage::Lineage;
use crate::store::disk::{Disk, File, Open};
use crate::store::events::{Events, Note};
use crate::store::io::rebuild::Rebuilder;
use crate::store::log::append::Log;
use crate::store::log::checkpoint::{Compaction, due};
use crate::store::log::replay::{Damage, Replayed, replay};
use crate::store::object::{Freed, Object};
use crate::store::quota::{Limits, Meter};
use crate::store::repair::set_aside::set_aside;
use crate::store::space::reservations::{Reservations, ReservedSlots};
use crate::store::space::slots::Slots;
use crate::store::state::names::NameWatcher;
use crate::store::state::{ROOT, State};

/// The number of files that payloads are put in: the tiers', `delta.dat` and `factor.dat`.
const PAYLOAD_FILES: usize = 6;
/// The first generation of a log.
const FIRST_GENERATION: u64 = 1;
pub(in crate::store) const LOG_NAME: &str = "meta.log";

/// What may be done with a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reading only; nothing on the disk is changed.
    Read,
    /// Reading and writing.
    Write,
}

/// A collection of a store.
pub struct Collection {
    pub(in crate::store) store: StoreId,
    tenant: String,
    name: String,
    pub(in crate::store) disk: Arc<dyn Disk>,
    /// Held for look-ups and changes in memory, never across input or output.
    pub(in crate::store) state: RwLock<State>,
    /// What writes. Taken before `state`; held while a batch is written.
    pub(in crate::store) writer: Mutex<Option<Writer>>,
    pub(in crate::store) tiers: [OnceLock<Arc<dyn File>>; PAYLOAD_FILES],
    pub(in crate::store) data: Mutex<HashMap<u64, Weak<dyn File>>>,
    /// Data files that somebody reads without asking for blocks.
    pub(in crate::store) shown: Mutex<HashMap<u64, Weak<()>>>,
    pub(in crate::store) access: Access,
    /// What time it is.
    pub(in crate::store) ticks: Ticks,
    /// Whether blocks were used since that was written down.
    pub(in crate::store) is_used: AtomicBool,
    /// When it was last written down. Held while it is, across input and output; only
    /// `state` is taken with it.
    pub(in crate::store) accesses_kept: Mutex<Option<Instant>>,
    damage: Option<Damage>,
    /// Set once, when a sync has failed.
    pub(in crate::store) poisoned: OnceLock<String>,
    /// Held by every read of payloads, and taken whole before space is used again: a
    /// read that began before a change may still look at the old place.
    pub(in crate::store) reading: RwLock<()>,
    /// Slots that no batch names yet.
    pub(in crate::store) reservations: Arc<Reservations>,
    /// Who knows other ways to blocks.
    pub(in crate::store) rebuilder: Rebuilder,
    /// Objects that an interrupted import has left, and that are removed once the log has room.
    /// Held for a look or a change; no other lock is taken with it.
    pub(in crate::store) orphans: Mutex<Vec<ObjectId>>,
    /// Counts what it uses; its lock is the last that is taken.
    pub(in crate::store) meter: Arc<Meter>,
    /// Who depends on objects of it.
    pub(in crate::store) lineage: Arc<Lineage>,
    /// Who is told of names that go.
    pub(in crate::store) names: NameWatcher,
    events: Vec<Note>,
    pub(in crate::store) event_log: Arc<Events>,
    /// Held for a look or a change; no other lock is taken with it.
    pub(in crate::store) last_compaction: Mutex<Option<Compaction>>,
    log_bytes: u64,
    /// What was computed of its files.
    pub(in crate::store) digest_cache: DigestCache,
}

pub(in crate::store) struct Writer {
    pub log: Log,
    /// What was written since the last sync.
    pub unsynced: Touched,
    /// Space that was given up by a batch, by its number: free once that is durable and
    /// nothing reads it any more.
    pub freed: Vec<(u64, Freed)>,
    /// The free space of the tier files, once something was written to them.
    pub slots: [Option<Slots>; PAYLOAD_FILES],
    /// The number of the next data file, once one was made; 0 before.
    pub next_data: u64,
    /// The log is written anew when it has so many bytes.
    pub compact_at: u64,
}

/// The objects of a file, and where the records lie of an embedding batch.
pub type Parts = (Vec<Arc<Object>>, Option<Arc<Runs>>);

/// Files that were written and must be durable before a batch that names them.
#[derive(Default)]
pub struct Touched {
    pub(in crate::store) files: Vec<Arc<dyn File>>,
    /// Where these are in memory, so that each stands there once.
    seen: HashSet<usize>,
    pub(in crate::store) tiers: HashSet<u8>,
    /// The slots that were taken for what was written: given back when this is dropped, unless
    /// a batch names them.
    pub(in crate::store) slots: ReservedSlots,
}

/// The seconds since 1970.
pub fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The nanoseconds since 1970.
pub fn now_nanoseconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

impl Collection {
    /// Makes an empty collection in a tenant's directory that is there. `owner` is the
    /// user and the group that its directory belongs to, `mode` its permission bits.
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
        // What an interrupted attempt has left has no header and nothing in it.
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
            mode: mode & 0o7777,
            uid: owner.0,
            gid: owner.1,
            atime: now,
            mtime: now,
            ctime: now,
            created_at: now_seconds(),
            what: What::Directory,
        })));
        log.append(&batch)?;
        log.sync()?;
        for directory in [&path, tenant, ""] {
            disk.sync_directory(directory).map_err(failed)?;
        }
        Collection::open(disk, store, tenant, name, Access::Write)
    }

    /// Opens a collection. `NotFound` where it is not there, or was never finished.
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
            // What lies after the end is of a batch that was dropped, and must not be
            // taken for a later one.
            // Space that is reserved behind the end goes with a cut: a full disk may have no other.
            let len = file.len().map_err(|error| Error::io(format!("measuring {log_path}"), error))?;
            if len != end.bytes {
                let layout = file.set_len(end.bytes);
                layout.map_err(|error| Error::io(format!("cutting {log_path}"), error))?;
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
        // What an earlier mount freed is free: the slots are found around what is used.
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
            // Opened again it would be synced again, and that is said to work: it stays as it is.
            Err(error) if collection.poisoned().is_none() => Err(error),
            _ => Ok(collection),
        }
    }

    /// Opens a collection whose log has an end that was dropped: what that named is set aside
    /// first. Where this fails, nothing is changed, and the collection takes no writes.
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

    /// A collection with this state, to be read only.
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

    /// What it was opened for.
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

    /// What its log says. No input or output may be waited for while this is held.
    pub fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// What is wrong with its log, if anything: the collection takes no writes then.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// What was found and mended while it was opened.
    pub fn events(&self) -> &[Note] {
        &self.events
    }

    /// Bytes of its log when it was opened.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// Whether writes are taken: `ReadOnly` says why not.
    pub fn check_writable(&self) -> Result<()> {
        match (self.poisoned(), &self.damage, self.access) {
            (None, None, Access::Write) => Ok(()),
            // Asked by reads too, which must not wait for who writes.
            (Some(reason), ..) => Err(self.read_only(reason)),
            _ => self.writable(&mut self.writer.lock()).map(|_| ()),
        }
    }

    pub(in crate::store) fn read_only(&self, reason: &str) -> Error {
        Error::new(ErrorKind::ReadOnly, format!("{} takes no writes: {reason}", self.path()))
    }

    /// What writes, or why nothing does.
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

    /// The objects of a file, in order; `Corrupt` where one is not there.
    pub fn objects_of(&self, node: EntryId) -> Result<Vec<Arc<Object>>> {
        self.parts_of(node).map(|(objects, _)| objects)
    }

    /// The objects of a file, in order, and where the records lie of an embedding batch, which
    /// is stitched of them; `Corrupt` where one is not there.
    pub fn parts_of(&self, node: EntryId) -> Result<Parts> {
        self.parts_in(&self.state.read(), node)
    }

    /// The same, of a state that is looked at already.
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

/// A log that is not there is that of a new collection only where nothing else is.
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
    /// Notes a file that was written.
    pub fn file(&mut self, file: &Arc<dyn File>) {
        if self.seen.insert(Arc::as_ptr(file).cast::<()>().addr()) {
            self.files.push(file.clone());
        }
    }

    /// Takes over what another has noted.
    pub fn merge(&mut self, other: Touched) {
        other.files.iter().for_each(|file| self.file(file));
        self.tiers.extend(other.tiers);
        self.slots.merge(other.slots);
    }
}
