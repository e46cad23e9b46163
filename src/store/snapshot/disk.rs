//! A disk that shows snapshots as a store that is only read.
//!
//! The disk makes the files that no snapshot has, `tierfs.toml` and `.tenant.toml`, from the manifests. It
//! adds a batch to the log of each snapshot, which gives the collection a number of its own: collections
//! pushed from different stores may have the same number.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::handover::{NumberOf, Numbered};
use crate::format::log::catalog::Entry;
use crate::format::log::record::Record;
use crate::format::log::slot::{RawSlot, SLOT_BYTES};
use crate::format::snapshot::manifest::{FileKind, Manifest, ManifestFile, OwnerAndMode};
use crate::format::snapshot::tenant_list::ListedCollection;
use crate::model::{CollectionName, MODE_BITS, OwnedCollectionName, Owner, Result, StoreId, check_label};
use crate::store::batch::Batch;
use crate::store::disk::remote::Traffic;
use crate::store::disk::{Disk, File, FileAttributes, Listed, Lock, Open, ReadAt, Space, read_only};
use crate::store::log::LOG_NAME;
use crate::store::log::append::batch_bytes;
use crate::store::many_at_once::at_once;
use crate::store::object::factors::FACTOR_FILE;
use crate::store::object::links::DELTA_FILE;
use crate::store::settings::Settings;
use crate::store::snapshot::numbers::{LeftNumber, Numbers};
use crate::store::snapshot::source::{Snapshot, Snapshots};
use crate::store::space::files::{PAYLOAD_FILES, payload_name};
use crate::store::store::{SETTINGS_NAME, Store};
use crate::store::tenant::{FILE_NAME, TenantEntry};
use crate::store::upstream::{
    Directories, Look, NoteNumber, NumberBefore, ShownSnapshot, ShownSnapshots, UnopenedCollection, Upstream,
};

/// Collections of one look at a few.
const FEW: usize = 64;
/// Bytes of a log that are read at a time.
const LOG_STEP_BYTES: usize = 1 << 20;

/// The directory of data files in a collection.
const DATA: &str = "data";

/// The snapshots of a remote as a store that is only read. It shows one snapshot of a collection from its
/// first use until [`renew`](Self::renew).
pub struct SnapshotDisk {
    source: Arc<dyn Snapshots>,
    shown: Mutex<Shown>,
    /// Held while newer snapshots are looked for, so that no slow look shows an older one again. The collection that the
    /// last look at a few has ended with.
    renewing: Mutex<Option<OwnedCollectionName>>,
}

#[derive(Default)]
struct Shown {
    /// By tenant and name.
    collections: HashMap<OwnedCollectionName, Arc<NumberedSnapshot>>,
    numbers: Numbers,
}

/// A snapshot with the number that its collection has here.
struct NumberedSnapshot {
    snapshot: Snapshot,
    number: u32,
    /// Indexes into [`Manifest::files`], by kind and number: the files of the collection, or of its variant.
    indexes: HashMap<(FileKind, u64), usize>,
}

/// The target of a path.
enum Place<'a> {
    Root,
    Settings,
    Tenant(&'a str),
    TenantFile(&'a str),
    Collection(&'a str, &'a str),
    Data(&'a str, &'a str),
    /// A file of a collection.
    File(&'a str, &'a str, FileKind, u64),
}

/// Reads the log of a snapshot, so that its source has it.
fn read_log(snapshot: &Snapshot) -> io::Result<()> {
    let files = snapshot.manifest.files_of(snapshot.variant.as_deref()).unwrap_or_default();
    let log = files.into_iter().find(|(_, file)| file.kind == FileKind::Log);
    let Some((index, log)) = log else { return Ok(()) };
    let mut buffer = vec![0; LOG_STEP_BYTES];
    for at in (0..log.bytes).step_by(LOG_STEP_BYTES) {
        let len = (log.bytes - at).min(LOG_STEP_BYTES as u64) as usize;
        snapshot.files.read_at(index, buffer.get_mut(..len).unwrap_or_default(), at)?;
    }
    Ok(())
}

impl SnapshotDisk {
    /// A disk with the snapshots of this source.
    pub fn new(source: Arc<dyn Snapshots>) -> SnapshotDisk {
        SnapshotDisk { source, shown: Mutex::default(), renewing: Mutex::default() }
    }

    /// Asks the source for the present snapshot of a collection and shows it. Returns whether it differs from
    /// the one before; then the collection has a new number. Open files stay those of the snapshot before.
    pub fn renew(&self, tenant: &str, collection: &str) -> io::Result<bool> {
        let key = OwnedCollectionName::new(tenant, collection);
        let left = self.shown.lock().numbers.left(&key);
        // The one that an earlier process has shown is the one before.
        if left.is_some() && self.left(&key)?.is_none() {
            return Ok(true);
        }
        let found = self.source.open(tenant, collection)?;
        let is_open = self.shown.lock().collections.get(&key).map(|before| before.snapshot.manifest.number);
        if let Some(found) =
            found.as_ref().filter(|found| is_open.is_some_and(|open| open != found.manifest.number))
        {
            // The first lookup after the change needs no remote.
            read_log(found)?;
        }
        let mut shown = self.shown.lock();
        let before = shown.collections.get(&key).map(|before| before.snapshot.clone());
        let is_same = match (&before, &found) {
            (Some(before), Some(found)) => before.name == found.name && before.variant == found.variant,
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            shown.collections.remove(&key);
            match found {
                Some(snapshot) => drop(shown.show(key, snapshot)?),
                None => shown.numbers.gone(&key),
            }
        }
        Ok(!is_same)
    }

    /// The snapshots that are shown, by tenant and name of their collections.
    pub fn shown(&self) -> Vec<(String, String, Snapshot)> {
        let shown = self.shown.lock();
        let all = shown.collections.iter();
        all.map(|(key, shown)| (key.tenant.clone(), key.name.clone(), shown.snapshot.clone())).collect()
    }

    /// The collections that newer snapshots are looked for of. `last` is the one that the last look at a few ended with.
    fn to_renew(&self, look: Look, last: Option<&OwnedCollectionName>) -> Vec<OwnedCollectionName> {
        let shown: BTreeMap<OwnedCollectionName, u64> = {
            let shown = self.shown.lock();
            let all = shown.collections.iter().map(|(place, shown)| (place, shown.manifest().number));
            all.chain(shown.numbers.all_left()).map(|(place, number)| (place.clone(), number)).collect()
        };
        match look {
            Look::All => shown.into_keys().collect(),
            Look::Few => {
                let (before, behind): (Vec<_>, Vec<_>) =
                    shown.into_keys().partition(|place| Some(place) <= last);
                behind.into_iter().chain(before).take(FEW).collect()
            }
            Look::Listed => {
                let tenants: BTreeSet<&str> = shown.keys().map(|place| place.tenant.as_str()).collect();
                let numbers = tenants.into_iter().map(|tenant| {
                    // Without its list, all of a tenant are asked for.
                    let read = self.source.numbers(tenant);
                    let read = read.inspect_err(|error| log::debug!("the list of {tenant}: {error}"));
                    (tenant, read.unwrap_or_default())
                });
                let numbers: HashMap<&str, HashMap<String, u64>> = numbers.collect();
                let listed = |place: &OwnedCollectionName| {
                    numbers.get(place.tenant.as_str()).and_then(|numbers| numbers.get(&place.name))
                };
                let is_old = |(place, number): &(&OwnedCollectionName, &u64)| {
                    listed(place).is_none_or(|listed| listed > *number)
                };
                shown.iter().filter(is_old).map(|(place, _)| place.clone()).collect()
            }
        }
    }

    /// The snapshot of a collection. `NotFound` if the source has none.
    fn collection(&self, tenant: &str, name: &str) -> io::Result<Arc<NumberedSnapshot>> {
        let key = OwnedCollectionName::new(tenant, name);
        if let Some(found) = self.shown.lock().collections.get(&key) {
            return Ok(found.clone());
        }
        if let Some(found) = self.left(&key)? {
            return Ok(found);
        }
        // Other collections can be opened meanwhile.
        let snapshot = self.source.open(tenant, name)?.ok_or(io::ErrorKind::NotFound)?;
        self.shown.lock().show_first(key, snapshot)
    }

    /// Shows the snapshot that an earlier process has shown of a collection. `None` if there was none, or it is not there any
    /// more.
    fn left(&self, key: &OwnedCollectionName) -> io::Result<Option<Arc<NumberedSnapshot>>> {
        let Some(LeftNumber { name, .. }) = self.shown.lock().numbers.left(key) else { return Ok(None) };
        let found = self.source.again(&key.tenant, &key.name, &name)?;
        let mut shown = self.shown.lock();
        match found {
            Some(snapshot) => shown.show_first(key.clone(), snapshot).map(Some),
            None => {
                log::warn!("{key}: snapshot {}, which was shown, is gone", name.number);
                shown.numbers.lost(key);
                Ok(None)
            }
        }
    }

    /// A disk that shows only this snapshot of a collection.
    fn with_one(
        &self,
        CollectionName { tenant, name }: CollectionName<'_>,
        shown: Arc<NumberedSnapshot>,
    ) -> SnapshotDisk {
        let (source, numbers) = (self.source.clone(), Numbers::after(shown.number));
        let collections = HashMap::from([(OwnedCollectionName::new(tenant, name), shown)]);
        let shown = Mutex::new(Shown { collections, numbers });
        SnapshotDisk { source, shown, renewing: Mutex::default() }
    }

    /// Opens the store that the snapshots make.
    pub fn open_store(self: Arc<Self>) -> Result<Store> {
        Store::open_shown(self.shown_snapshot())
    }

    fn shown_snapshot(self: Arc<Self>) -> ShownSnapshot {
        ShownSnapshot { disk: self.clone(), upstream: self }
    }

    /// The file of a tenant, with the owner that the source or the manifest of a collection has.
    fn tenant_file(&self, tenant: &str) -> io::Result<Arc<dyn File>> {
        let opened = |key: &OwnedCollectionName| key.tenant == tenant;
        let shown = {
            let shown = self.shown.lock();
            let mut of_tenant: Vec<_> = shown.collections.iter().filter(|(key, _)| opened(key)).collect();
            of_tenant.sort_by_key(|(key, _)| *key);
            of_tenant.first().map(|(_, shown)| (*shown).clone())
        };
        let listed = || self.source.tenant_owner(tenant).ok().flatten();
        let owner = match shown.map(|shown| shown.manifest().collection.tenant_owner).or_else(listed) {
            Some(owner) => owner,
            None => {
                let opened = self.source.open_tenant(tenant)?;
                let mut shown = self.shown.lock();
                let mut first = None;
                for (name, snapshot) in opened {
                    let key = OwnedCollectionName::new(tenant, name);
                    let owner = snapshot.manifest.collection.tenant_owner;
                    let left = shown.numbers.left(&key);
                    let owner = match left.is_some_and(|left| left.name != snapshot.name) {
                        // An earlier process has shown another one.
                        true => owner,
                        false => shown.show_first(key, snapshot)?.manifest().collection.tenant_owner,
                    };
                    first.get_or_insert(owner);
                }
                first.ok_or(io::ErrorKind::NotFound)?
            }
        };
        let entry = TenantEntry {
            owner: Some(Owner { uid: owner.uid, gid: owner.gid }),
            mode: owner.mode & MODE_BITS,
            ..TenantEntry::default()
        };
        Ok(Arc::new(TextFile(entry.to_text().into_bytes())))
    }
}

impl Shown {
    fn show(&mut self, key: OwnedCollectionName, snapshot: Snapshot) -> io::Result<Arc<NumberedSnapshot>> {
        let name = snapshot.name;
        let mut shown = NumberedSnapshot::of(snapshot, 0)?;
        shown.number = self.numbers.shown(&key, name);
        let shown = Arc::new(shown);
        self.collections.insert(key, shown.clone());
        Ok(shown)
    }

    /// Shows a snapshot unless another thread was faster. The one that is shown.
    fn show_first(
        &mut self,
        key: OwnedCollectionName,
        snapshot: Snapshot,
    ) -> io::Result<Arc<NumberedSnapshot>> {
        match self.collections.get(&key) {
            Some(found) => Ok(found.clone()),
            None => self.show(key, snapshot),
        }
    }
}

impl NumberedSnapshot {
    fn of(snapshot: Snapshot, number: u32) -> io::Result<NumberedSnapshot> {
        let variant = snapshot.variant.as_deref();
        let files = snapshot.manifest.files_of(variant).ok_or_else(|| {
            let (number, name) = (snapshot.manifest.number, variant.unwrap_or_default());
            io::Error::new(io::ErrorKind::NotFound, format!("snapshot {number} has no variant {name}"))
        })?;
        let indexes = files.into_iter().map(|(index, file)| ((file.kind, file.number), index)).collect();
        Ok(NumberedSnapshot { snapshot, number, indexes })
    }

    fn manifest(&self) -> &Manifest {
        &self.snapshot.manifest
    }

    /// The files of the collection, or of its variant.
    fn files(&self) -> impl Iterator<Item = &ManifestFile> {
        self.indexes.values().filter_map(|index| self.manifest().files.get(*index))
    }

    /// The file of a kind and number.
    fn open(self: &Arc<Self>, kind: FileKind, number: u64) -> io::Result<Arc<dyn File>> {
        let index = *self.indexes.get(&(kind, number)).ok_or(io::ErrorKind::NotFound)?;
        let end = self.entry(index)?.bytes;
        let mut file = SnapshotFile { shown: self.clone(), index, end, tail: Vec::new() };
        if kind == FileKind::Log {
            file.tail = self.tail(&file)?;
        }
        Ok(Arc::new(file))
    }

    fn entry(&self, index: usize) -> io::Result<&ManifestFile> {
        self.manifest().files.get(index).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The batch behind the log that gives the collection its number.
    fn tail(&self, log: &SnapshotFile) -> io::Result<Vec<u8>> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the log of the snapshot has no end");
        let mut slot = RawSlot([0; SLOT_BYTES]);
        let at = log.end.checked_sub(SLOT_BYTES as u64).ok_or_else(damaged)?;
        log.read_exact_at(&mut slot.0, at)?;
        let Some(Record::Commit { batch, .. }) = Record::parse(&slot).ok().filter(|_| slot.is_intact())
        else {
            return Err(damaged());
        };
        let next = (batch.checked_add(1), slot.sequence().checked_add(1));
        let (Some(number), Some(sequence)) = next else { return Err(damaged()) };
        let mut added = Batch::new(sequence);
        let created_at = self.manifest().collection.created_at;
        added.entry(Entry::Collection { number: self.number, created_at, last_entry: 0 });
        Ok(batch_bytes(&added, u64::from(slot.generation()), number, 0))
    }
}

/// The target of a path; `None` if the path has not the form of one in a store.
fn place_of(path: &str) -> Option<Place<'_>> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        [""] => Some(Place::Root),
        [SETTINGS_NAME] => Some(Place::Settings),
        [tenant, FILE_NAME] => Some(Place::TenantFile(tenant)),
        [tenant] => Some(Place::Tenant(tenant)),
        [tenant, name] => Some(Place::Collection(tenant, name)),
        [tenant, name, DATA] => Some(Place::Data(tenant, name)),
        [tenant, name, LOG_NAME] => Some(Place::File(tenant, name, FileKind::Log, 0)),
        [tenant, name, file] => {
            let number = (0..PAYLOAD_FILES as u8).find(|number| payload_name(*number) == *file)?;
            let (kind, number) = match number {
                DELTA_FILE => (FileKind::Delta, 0),
                FACTOR_FILE => (FileKind::Factor, 0),
                tier => (FileKind::Tier, u64::from(tier)),
            };
            Some(Place::File(tenant, name, kind, number))
        }
        [tenant, name, DATA, digits] if digits.len() == 16 => {
            let number = u64::from_str_radix(digits, 16).ok()?;
            Some(Place::File(tenant, name, FileKind::Data, number))
        }
        _ => None,
    }
}

/// The name of a file of a collection in its directory; `None` for data files, which have one of their own.
fn name_of(file: &ManifestFile) -> Option<String> {
    match file.kind {
        FileKind::Log => Some(LOG_NAME.to_owned()),
        FileKind::Data => None,
        FileKind::Tier => Some(payload_name(u8::try_from(file.number).ok()?)),
        FileKind::Delta => Some(payload_name(DELTA_FILE)),
        FileKind::Factor => Some(payload_name(FACTOR_FILE)),
    }
}

impl Upstream for SnapshotDisk {
    fn snapshots(&self) -> Option<&dyn ShownSnapshots> {
        Some(self)
    }

    fn refetch(&self, path: &str, offset: u64, len: u64) -> io::Result<bool> {
        let Some(Place::File(tenant, name, kind, number)) = place_of(path) else { return Ok(false) };
        let shown = self.collection(tenant, name)?;
        let index = *shown.indexes.get(&(kind, number)).ok_or(io::ErrorKind::NotFound)?;
        shown.snapshot.files.refetch(index, offset, len)
    }
}

impl ShownSnapshots for SnapshotDisk {
    fn still(&self, place: CollectionName<'_>) -> io::Result<ShownSnapshot> {
        let CollectionName { tenant, name } = place;
        let shown = self.collection(tenant, name)?;
        Ok(Arc::new(self.with_one(place, shown)).shown_snapshot())
    }

    fn variant(&self, place: CollectionName<'_>, variant: &str) -> io::Result<Option<ShownSnapshot>> {
        let CollectionName { tenant, name } = place;
        let shown = self.collection(tenant, name)?;
        if !shown.manifest().variants.iter().any(|known| known.name == variant) {
            return Ok(None);
        }
        let snapshot = Snapshot { variant: Some(variant.to_owned()), ..shown.snapshot.clone() };
        // The collection and its variant have the same nodes, and the same number.
        let of_variant = Arc::new(NumberedSnapshot::of(snapshot, shown.number)?);
        Ok(Some(Arc::new(self.with_one(place, of_variant)).shown_snapshot()))
    }

    fn numbered(&self, place: CollectionName<'_>, number: u64) -> io::Result<Option<ShownSnapshot>> {
        let Some(snapshot) = self.source.numbered(place.tenant, place.name, number)? else { return Ok(None) };
        let own = self.shown.lock().numbers.version(&place.owned(), snapshot.name);
        let shown = Arc::new(NumberedSnapshot::of(snapshot, own)?);
        Ok(Some(Arc::new(self.with_one(place, shown)).shown_snapshot()))
    }

    fn published(&self, CollectionName { tenant, name }: CollectionName<'_>) -> io::Result<Vec<String>> {
        let shown = self.collection(tenant, name)?;
        let is_shown = shown.snapshot.variant.clone().unwrap_or_default();
        let variants = shown.manifest().variants.iter().map(|variant| variant.name.clone());
        let others = std::iter::once(String::new()).chain(variants).filter(|name| *name != is_shown);
        Ok(std::iter::once(is_shown.clone()).chain(others).collect())
    }

    fn number(&self, CollectionName { tenant, name }: CollectionName<'_>) -> io::Result<u64> {
        Ok(self.collection(tenant, name)?.manifest().number)
    }

    fn last_push(&self) -> Option<Vec<u8>> {
        self.source.last_push()
    }

    fn is_shown(&self, place: CollectionName<'_>, number: u32) -> bool {
        self.shown.lock().collections.get(&place.owned()).is_some_and(|shown| shown.number == number)
    }

    fn list_directories(&self, tenant: &str) -> io::Result<Option<Arc<Directories>>> {
        self.source.entries(tenant)
    }

    fn unopened(&self, place: CollectionName<'_>) -> Option<UnopenedCollection> {
        let key = place.owned();
        let known = self.source.known_entries(place.tenant)?;
        let entry = known.entries.get(place.name)?;
        let mut shown = self.shown.lock();
        if let Some(found) = shown.collections.get(&key) {
            let of_manifest = ListedCollection::of(found.manifest(), [0; 32], 0);
            let entry = if entry.number == of_manifest.number { entry } else { &of_manifest };
            let (owner, directory) = (of_manifest.owner, entry.directory);
            return Some(UnopenedCollection { number: found.number, owner, directory });
        }
        if shown.numbers.left(&key).is_some() {
            // An earlier process has opened it, so this one does too.
            return None;
        }
        let number = shown.numbers.directory(&key, entry.owner);
        Some(UnopenedCollection { number, owner: entry.owner, directory: entry.directory })
    }

    fn renew_all(&self, look: Look, renewed: &(dyn Fn(&OwnedCollectionName) + Sync)) -> io::Result<()> {
        let mut last = self.renewing.lock();
        let places = self.to_renew(look, last.as_ref());
        if look == Look::Few {
            *last = places.last().cloned();
        }
        self.source.list_again();
        let look = |place: &OwnedCollectionName| {
            if self.renew(&place.tenant, &place.name)? {
                renewed(place);
            }
            Ok(())
        };
        // A bug in one look must not end the thread that follows.
        let guarded = |place: &OwnedCollectionName| {
            let bug = |_| Err(io::Error::other("a bug in tierfs: a look for snapshots has ended"));
            std::panic::catch_unwind(AssertUnwindSafe(|| look(place))).unwrap_or_else(bug)
        };
        at_once(&places, guarded).into_iter().collect()
    }

    fn traffic(&self) -> Traffic {
        self.source.traffic()
    }

    fn drop_buffers(&self) {
        self.source.drop_buffers();
    }

    fn save_cache(&self) {
        self.source.save_cache();
    }

    fn said(&self) -> String {
        self.source.said()
    }

    fn go_on_with_numbers(&self, before: Vec<Numbered>, note: Box<NoteNumber>) {
        self.shown.lock().numbers.go_on(before, note);
    }

    fn before(&self, number: u32) -> Option<NumberBefore> {
        let shown = self.shown.lock();
        shown.numbers.meant(number, |place| shown.collections.get(place).map(|shown| shown.number))
    }

    fn former(&self, number: u32) -> io::Result<Option<ShownSnapshot>> {
        let before = self.shown.lock().numbers.before(number).cloned();
        let Some(Numbered { place, of: NumberOf::Shown(name), .. }) = before else { return Ok(None) };
        let Some(snapshot) = self.source.again(&place.tenant, &place.name, &name)? else { return Ok(None) };
        let shown = Arc::new(NumberedSnapshot::of(snapshot, number)?);
        Ok(Some(Arc::new(self.with_one(place.borrowed(), shown)).shown_snapshot()))
    }

    fn shown_before(&self) -> Vec<(u32, OwnedCollectionName, OwnerAndMode)> {
        self.shown.lock().numbers.shown_before()
    }

    fn tenants_before(&self) -> Vec<String> {
        self.shown.lock().numbers.tenants()
    }
}

impl Disk for SnapshotDisk {
    fn place(&self) -> String {
        self.source.place()
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        if how != Open::Read {
            return Err(read_only());
        }
        match place_of(path) {
            Some(Place::Settings) => {
                let id: StoreId = self.source.id();
                Ok(Arc::new(TextFile(Settings::new(id).to_text().into_bytes())))
            }
            Some(Place::TenantFile(tenant)) => self.tenant_file(tenant),
            Some(Place::File(tenant, name, kind, number)) => {
                self.collection(tenant, name)?.open(kind, number)
            }
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create_directory(&self, _path: &str) -> io::Result<()> {
        Err(read_only())
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Err(read_only())
    }

    fn remove_file(&self, _path: &str) -> io::Result<()> {
        Err(read_only())
    }

    fn remove_directory(&self, _path: &str) -> io::Result<()> {
        Err(read_only())
    }

    fn list(&self, path: &str) -> io::Result<Vec<Listed>> {
        let named = |names: Vec<String>, is_directory| {
            let names = names.into_iter();
            names.map(|name| Listed { name, is_directory }).collect::<Vec<_>>()
        };
        let labels = |mut names: Vec<String>| {
            names.retain(|name| check_label(name).is_ok());
            named(names, true)
        };
        match place_of(path) {
            Some(Place::Root) => {
                let mut listed = labels(self.source.tenants()?);
                listed.retain(|entry| entry.name != SETTINGS_NAME);
                listed.extend(named(vec![SETTINGS_NAME.to_owned()], false));
                Ok(listed)
            }
            Some(Place::Tenant(tenant)) => Ok(labels(self.source.collections(tenant)?)),
            Some(Place::Collection(tenant, name)) => {
                let shown = self.collection(tenant, name)?;
                let names = shown.files().filter_map(name_of).collect();
                let mut listed = named(names, false);
                listed.extend(named(vec![DATA.to_owned()], true));
                Ok(listed)
            }
            Some(Place::Data(tenant, name)) => {
                let shown = self.collection(tenant, name)?;
                let data = shown.files().filter(|file| file.kind == FileKind::Data);
                Ok(named(data.map(|file| format!("{:016x}", file.number)).collect(), false))
            }
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn sync_directory(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    /// The bytes of the snapshots that are shown, or listed; none are free.
    fn space(&self) -> io::Result<Space> {
        let shown = self.shown.lock();
        let pieces = shown.collections.values().flat_map(|shown| &shown.manifest().pieces);
        let total: u64 = pieces.map(|piece| u64::from(piece.raw)).sum();
        let files: u64 = shown.collections.values().map(|shown| shown.manifest().files.len() as u64).sum();
        let unopened = shown.numbers.unopened().filter_map(|place| {
            let known = self.source.known_entries(&place.tenant)?;
            known.entries.get(&place.name).map(|entry| (entry.bytes, entry.files))
        });
        let (total, files) = unopened.fold((total, files), |(total, files), (of_bytes, of_files)| {
            (total.saturating_add(of_bytes), files.saturating_add(of_files))
        });
        Ok(Space { total, files, ..Space::default() })
    }

    fn lock(&self, how: Lock, _note: &str) -> io::Result<Box<dyn Any + Send + Sync>> {
        if how == Lock::Exclusive { Err(read_only()) } else { Ok(Box::new(())) }
    }
}

/// A file of a snapshot.
struct SnapshotFile {
    shown: Arc<NumberedSnapshot>,
    /// Its index in the manifest.
    index: usize,
    /// Bytes that the snapshot has of it.
    end: u64,
    /// Bytes that the disk adds to them.
    tail: Vec<u8>,
}

impl SnapshotFile {
    /// The part of a buffer that lies in the snapshot, and the part that the tail fills.
    fn parts<'a>(&self, buffer: &'a mut [u8], offset: u64) -> (&'a mut [u8], &'a mut [u8]) {
        let inside = self.end.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let (inside, behind) = buffer.split_at_mut(inside);
        let skipped = offset.saturating_add(inside.len() as u64).saturating_sub(self.end);
        let left = (self.tail.len() as u64).saturating_sub(skipped).min(behind.len() as u64) as usize;
        let behind = behind.get_mut(..left).unwrap_or_default();
        let from = usize::try_from(skipped).unwrap_or(usize::MAX);
        for (to, from) in behind.iter_mut().zip(self.tail.iter().skip(from)) {
            *to = *from;
        }
        (inside, behind)
    }
}

impl ReadAt for SnapshotFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let (inside, behind) = self.parts(buffer, offset);
        if !inside.is_empty() {
            self.shown.snapshot.files.read_at(self.index, inside, offset)?;
        }
        Ok(inside.len() + behind.len())
    }

    fn read_in_memory(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let (inside, behind) = self.parts(buffer, offset);
        if inside.is_empty() {
            return Ok(behind.len());
        }
        let read = self.shown.snapshot.files.read_in_memory(self.index, inside, offset)?;
        Ok(if read == inside.len() { read + behind.len() } else { read })
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.end.saturating_add(self.tail.len() as u64))
    }
}

impl File for SnapshotFile {
    #[cfg(feature = "mount")]
    fn descriptor(&self) -> io::Result<Option<std::os::fd::OwnedFd>> {
        if self.tail.is_empty() { self.shown.snapshot.files.descriptor(self.index) } else { Ok(None) }
    }

    fn attributes(&self) -> io::Result<FileAttributes> {
        let identity = Some((u64::from(self.shown.number), self.index as u64));
        Ok(FileAttributes { identity, ..FileAttributes::default() })
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let extents = &self.shown.entry(self.index)?.extents;
        let next = extents.get(extents.partition_point(|extent| extent.end() <= offset));
        let in_tail = (offset < self.len()? && !self.tail.is_empty()).then(|| offset.max(self.end));
        Ok(next.map(|extent| extent.offset.max(offset)).or(in_tail))
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that the disk makes.
struct TextFile(Vec<u8>);

impl ReadAt for TextFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.0.len());
        let rest = self.0.get(from..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        for (to, from) in buffer.iter_mut().zip(rest) {
            *to = *from;
        }
        Ok(count)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }
}

impl File for TextFile {
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}
