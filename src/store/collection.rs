//! One collection: its log, its state in memory, its files.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::format::catalog::{Entry, NodeEntry, What};
use crate::model::{EntryId, Error, ErrorKind, Result, StoreId, Tier};
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
    tiers: [OnceLock<Arc<dyn File>>; TIER_FILES],
    data: Mutex<HashMap<u64, Weak<dyn File>>>,
    access: Access,
    damage: Option<Damage>,
    /// Set once, when a sync has failed.
    poisoned: OnceLock<String>,
    events: Vec<String>,
    log_bytes: u64,
}

pub(super) struct Writer {
    log: Log,
    slots: [Option<Slots>; TIER_FILES],
    next_data: u64,
}

/// Files that were written and must be durable before a batch that names them.
#[derive(Default)]
pub struct Touched {
    files: Vec<Arc<dyn File>>,
    tiers: HashSet<u8>,
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
            Some(Writer { log: Log::resume(file, end), slots: Default::default(), next_data: 0 })
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

    /// The tier file of a tier's payloads.
    pub fn tier_file(&self, tier: Tier) -> Result<Arc<dyn File>> {
        let number = tier.byte();
        let Some(cell) = self.tiers.get(usize::from(number)) else {
            return Err(Error::invalid(format!("tier {number}")));
        };
        if let Some(file) = cell.get() {
            return Ok(file.clone());
        }
        let path = self.tier_path(number);
        let how = if self.access == Access::Write { Open::Write } else { Open::Read };
        let file = self.disk.open(&path, how).map_err(|error| Error::io(format!("opening {path}"), error))?;
        Ok(cell.get_or_init(|| file).clone())
    }

    /// The path of a tier file in the store.
    pub fn tier_path(&self, number: u8) -> String {
        format!("{}/tier{number}.dat", self.path())
    }

    /// The path of a data file in the store.
    pub fn data_path(&self, id: u64) -> String {
        format!("{}/data/{id:016x}", self.path())
    }

    /// A data file, opened once for all who use it at the same time.
    pub fn data_file(&self, id: u64) -> Result<Arc<dyn File>> {
        let mut open = self.data.lock();
        if let Some(file) = open.get(&id).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let path = self.data_path(id);
        let file =
            self.disk.open(&path, Open::Read).map_err(|error| Error::io(format!("opening {path}"), error))?;
        if open.len() > 1000 {
            open.retain(|_, file| file.strong_count() > 0);
        }
        open.insert(id, Arc::downgrade(&file));
        Ok(file)
    }

    /// Makes a data file; the number names it. It is reclaimed unless a batch that
    /// gives it to an object is committed before the store is opened again.
    pub fn create_data_file(&self) -> Result<(u64, Arc<dyn File>)> {
        let mut writer = self.writer.lock();
        let writer = self.writable(&mut writer)?;
        if writer.next_data == 0 {
            let state = self.state.read();
            let last = state.objects().filter_map(|object| object.home()).map(|home| home.file).max();
            writer.next_data = last.unwrap_or(0) + 1;
        }
        let id = writer.next_data;
        let path = self.data_path(id);
        let file = self.disk.open(&path, Open::Create);
        let file = file.map_err(|error| Error::io(format!("making {path}"), error))?;
        writer.next_data += 1;
        Ok((id, file))
    }

    /// Writes payloads of a tier, one after the other, each in a slot of its own.
    /// `payloads` are their bytes together, `lens` the bytes of each. The offset of each.
    pub fn write_payloads(
        &self,
        tier: Tier,
        payloads: &[u8],
        lens: &[usize],
        touched: &mut Touched,
    ) -> Result<Vec<u64>> {
        let number = tier.byte();
        let slot_of = |len: usize| (len as u64).next_multiple_of(crate::store::slots::SLOT_ALIGN);
        let total: u64 = lens.iter().map(|&len| slot_of(len)).sum();
        let (file, start) = {
            let mut writer = self.writer.lock();
            let writer = self.writable(&mut writer)?;
            let cell = writer.slots.get_mut(usize::from(number));
            let slots =
                cell.ok_or_else(|| Error::invalid("tier"))?.get_or_insert_with(|| self.space_of(number));
            (self.tier_file_made(number, slots.end() == 0)?, slots.take(total))
        };
        let mut bytes = Vec::with_capacity(total as usize);
        let mut offsets = Vec::with_capacity(lens.len());
        let mut rest = payloads;
        for &len in lens {
            let (payload, after) = rest
                .split_at_checked(len)
                .ok_or_else(|| Error::invalid("payloads shorter than their lengths"))?;
            offsets.push(start + bytes.len() as u64);
            bytes.extend_from_slice(payload);
            bytes.resize(bytes.len().next_multiple_of(crate::store::slots::SLOT_ALIGN as usize), 0);
            rest = after;
        }
        file.write_at(&bytes, start)
            .map_err(|error| Error::io(format!("writing {}", self.tier_path(number)), error))?;
        if touched.tiers.insert(number) {
            touched.files.push(file);
        }
        Ok(offsets)
    }

    /// Makes what was written durable, then commits what `fill` puts into a batch, then
    /// takes it in. `fill` runs alone: it may look at the state, and at nothing slow.
    pub fn commit(
        &self,
        touched: Touched,
        fill: impl FnOnce(&mut Batch, &State) -> Result<()>,
    ) -> Result<()> {
        self.sync(&touched).map_err(|error| self.poison(error))?;
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

    fn sync(&self, touched: &Touched) -> Result<()> {
        for file in &touched.files {
            file.sync_data().map_err(|error| Error::io(format!("syncing {}", self.path()), error))?;
        }
        if !touched.files.is_empty() {
            for directory in [format!("{}/data", self.path()), self.path()] {
                let synced = self.disk.sync_directory(&directory);
                synced.map_err(|error| Error::io(format!("syncing {directory}"), error))?;
            }
        }
        Ok(())
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

    fn writable<'a>(&self, writer: &'a mut Option<Writer>) -> Result<&'a mut Writer> {
        if let Some(reason) = self.poisoned() {
            let text = format!("{} takes no writes: {reason}", self.path());
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        writer.as_mut().ok_or_else(|| match &self.damage {
            Some(damage) => Error::new(
                ErrorKind::ReadOnly,
                format!("{} takes no writes: {}; run tierfs fsck", self.path(), damage.reason),
            ),
            None => Error::new(ErrorKind::ReadOnly, format!("{} was opened to be read only", self.path())),
        })
    }

    /// The tier file to write to, made where it `may_be_missing`: a lost one is not
    /// replaced by an empty one, which could not be told from it.
    fn tier_file_made(&self, number: u8, may_be_missing: bool) -> Result<Arc<dyn File>> {
        let Some(cell) = self.tiers.get(usize::from(number)) else {
            return Err(Error::invalid(format!("tier {number}")));
        };
        if let Some(file) = cell.get() {
            return Ok(file.clone());
        }
        let path = self.tier_path(number);
        let file = match self.disk.open(&path, Open::Write) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && may_be_missing => {
                self.disk.open(&path, Open::Create)
            }
            opened => opened,
        };
        let file = file.map_err(|error| Error::io(format!("opening {path}"), error))?;
        Ok(cell.get_or_init(|| file).clone())
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
