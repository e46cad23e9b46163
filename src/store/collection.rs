//! One collection: its log, its state in memory, its files.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::format::catalog::{Entry, NodeEntry, What};
use crate::model::{EntryId, Error, ErrorKind, Result, StoreId};
use crate::store::disk::{Disk, File, Open};
use crate::store::log::{Batch, Log};
use crate::store::replay::{Damage, Replayed, replay};
use crate::store::slots::Slots;
use crate::store::state::{Object, ROOT, State};

/// The number of tier files, `tier0.dat` among them.
const TIER_FILES: usize = 4;
/// The first generation of a log.
const FIRST_GENERATION: u64 = 1;
const LOG_NAME: &str = "meta.log";

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
    tenant: String,
    name: String,
    pub(super) disk: Arc<dyn Disk>,
    /// Held for look-ups and changes in memory, never across input or output.
    pub(super) state: RwLock<State>,
    /// What writes. Taken before `state`; held while a batch is written.
    pub(super) writer: Mutex<Option<Writer>>,
    pub(super) tiers: [OnceLock<Arc<dyn File>>; TIER_FILES],
    pub(super) data: Mutex<HashMap<u64, Weak<dyn File>>>,
    pub(super) access: Access,
    damage: Option<Damage>,
    /// Held while payloads are made durable. Taken before `writer`.
    syncing: Mutex<()>,
    /// Set once, when a sync has failed.
    poisoned: OnceLock<String>,
    events: Vec<String>,
    log_bytes: u64,
}

pub(super) struct Writer {
    log: Log,
    /// The free space of the tier files, once something was written to them.
    pub slots: [Option<Slots>; TIER_FILES],
    /// The number of the next data file, once one was made; 0 before.
    pub next_data: u64,
    /// Deleted objects that readers may still have: what they lie in is not free.
    pub dropped: Vec<Arc<Object>>,
}

/// Files that were written and must be durable before a batch that names them.
#[derive(Default)]
pub struct Touched {
    pub(super) files: Vec<Arc<dyn File>>,
    pub(super) tiers: HashSet<u8>,
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
    /// user and the group that its directory belongs to.
    pub fn create(
        disk: &Arc<dyn Disk>,
        store: StoreId,
        tenant: &str,
        name: &str,
        number: u32,
        owner: (u32, u32),
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
        batch.entry(Entry::Collection { number, created_at: now_seconds() });
        let now = now_nanoseconds();
        batch.entry(Entry::Node(Box::new(NodeEntry {
            id: ROOT,
            mode: 0o755,
            uid: owner.0,
            gid: owner.1,
            mtime: now,
            ctime: now,
            created_at: now_seconds(),
            what: What::Directory,
        })));
        log.commit(&batch)?;
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
        let Replayed { state, end, events, damage } =
            replay(&file, store).map_err(|error| error.at(&path))?;
        if state.node(ROOT).is_none() && damage.is_none() {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("{path}: the collection was never finished"),
            ));
        }
        let writer = if access == Access::Write && damage.is_none() {
            // What lies after the end is of a batch that was dropped, and must not be
            // taken for a later one.
            let cut = file.set_len(end.bytes).and_then(|()| file.sync_data());
            cut.map_err(|error| Error::io(format!("cutting {log_path}"), error))?;
            Some(Writer {
                log: Log::resume(file, end),
                slots: Default::default(),
                next_data: 0,
                dropped: Vec::new(),
            })
        } else {
            None
        };
        let collection = Collection {
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            disk: disk.clone(),
            state: RwLock::new(state),
            writer: Mutex::new(writer),
            tiers: Default::default(),
            data: Mutex::default(),
            access,
            damage,
            syncing: Mutex::new(()),
            poisoned: OnceLock::new(),
            events,
            log_bytes: end.bytes,
        };
        collection.recover()?;
        Ok(collection)
    }

    /// `tenant/name`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.tenant, self.name)
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
    pub fn events(&self) -> &[String] {
        &self.events
    }

    /// Bytes of its log when it was opened.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// Makes what was written durable, then commits what `fill` puts into a batch, then
    /// takes it in. `fill` runs alone: it may look at the state, and at nothing slow.
    pub fn commit(
        &self,
        touched: Touched,
        fill: impl FnOnce(&mut Batch, &State) -> Result<()>,
    ) -> Result<()> {
        self.sync(&touched)?;
        let mut writer = self.writer.lock();
        let writer = self.writable(&mut writer)?;
        let mut batch = writer.log.begin();
        fill(&mut batch, &self.state.read())?;
        if batch.is_empty() {
            return Ok(());
        }
        batch.check()?;
        if let Err(error) = writer.log.commit(&batch) {
            return Err(if writer.log.is_whole() { error } else { self.poison(error) });
        }
        // What is durable and not taken in would be another state than the log's.
        self.take_in(batch).map_err(|error| self.poison(error))?;
        writer.dropped.append(&mut self.state.write().take_dropped());
        self.reclaim(writer);
        Ok(())
    }

    fn take_in(&self, batch: Batch) -> Result<()> {
        let mut state = self.state.write();
        let mut places = u64::MAX;
        for added in batch.into_records() {
            if let Some(entry) = added.entry {
                state.apply_entry(entry)?;
                continue;
            }
            let numbers = added.payload.chunks_exact(4);
            let checksums = numbers.map(|four| u32::from_le_bytes(four.try_into().unwrap_or_default()));
            state.apply_record(&added.record, added.sequence, checksums.collect(), &mut places)?;
        }
        Ok(())
    }

    /// Makes files durable, one caller after the other: of two that have the same file,
    /// only the first is told of a failure.
    fn sync(&self, touched: &Touched) -> Result<()> {
        let _one = self.syncing.lock();
        if let Some(reason) = self.poisoned() {
            return Err(self.read_only(reason));
        }
        let failed = |place: &str, error| self.poison(Error::io(format!("syncing {place}"), error));
        for file in &touched.files {
            file.sync_data().map_err(|error| failed(&self.path(), error))?;
        }
        if !touched.files.is_empty() {
            for directory in [format!("{}/data", self.path()), self.path()] {
                self.disk.sync_directory(&directory).map_err(|error| failed(&directory, error))?;
            }
        }
        Ok(())
    }

    fn read_only(&self, reason: &str) -> Error {
        Error::new(ErrorKind::ReadOnly, format!("{} takes no writes: {reason}", self.path()))
    }

    /// After a failed sync nobody knows what is on the disk, and asking again would say
    /// that all is well: the collection takes no more writes.
    fn poison(&self, error: Error) -> Error {
        let reason = format!("{error}; unmount, look after the disk, run tierfs fsck, and mount again");
        let reason = self.poisoned.get_or_init(|| reason);
        log::error!("{} takes no more writes: {reason}", self.path());
        error
    }

    /// Why it takes no more writes since a sync failed, if one did.
    pub fn poisoned(&self) -> Option<&str> {
        self.poisoned.get().map(String::as_str)
    }

    /// What writes, or why nothing does.
    pub(super) fn writable<'a>(&self, writer: &'a mut Option<Writer>) -> Result<&'a mut Writer> {
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
        let state = self.state.read();
        let Some(file) = state.node(node).and_then(|node| node.file()) else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("{}: no file has number {}", self.path(), node.0),
            ));
        };
        file.objects
            .iter()
            .map(|id| {
                state.object(*id).cloned().ok_or_else(|| {
                    let path = String::from_utf8_lossy(&state.path(node)).into_owned();
                    Error::corrupt(format!(
                        "{}/{path}: object {id} is not there; run tierfs fsck",
                        self.path()
                    ))
                })
            })
            .collect()
    }
}

/// A log that is not there is that of a new collection only where nothing else is.
fn refuse_remains(disk: &Arc<dyn Disk>, path: &str) -> Result<()> {
    for (directory, is_payload) in [(path.to_owned(), ".dat"), (format!("{path}/data"), "")] {
        let listed = disk.list(&directory);
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
        self.files.push(file.clone());
    }

    /// Takes over what another has noted.
    pub fn merge(&mut self, other: Touched) {
        self.files.extend(other.files);
        self.tiers.extend(other.tiers);
    }
}
