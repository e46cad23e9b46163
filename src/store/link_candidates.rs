//! Data files that may hold the same bytes as a new file, which then becomes another name of one of them.
//!
//! Only lengths and a sample of the bytes are known: the user of an entry compares the bytes. An outdated entry therefore
//! does no harm. Nothing is stored on the disk: the directories of data files are listed when the entries are first needed,
//! and a file is sampled when another of its length looks for it. So a file that is compared with a hundred thousand of
//! its length opens those with its sample only.
//!
//! Invariant:
//! 1. A data file with more than one name is never changed in place. Code that changes one holds [`Sharing::changing`]
//!    from before it looks at the number of names until the change is complete; names are added while it is not held.
//!
//! A file comes to share a data file in these steps:
//!
//! 1. `Collection::alike` picks the data files of the same length and sample whose bytes agree at 16 places.
//! 2. `Collection::link_data_file` gives one of them a name with a new number of the collection. The name comes before
//!    the comparison: a file with several names is not changed in place, so its bytes stay as they are compared.
//! 3. An import reads its source once: `ingest/bytes/store_parts.rs` compares each chunk with the data file instead of
//!    writing it. At the first difference the name goes, and the import begins anew with a data file of its own. The
//!    bytes of a new file that was written through a mount are in a data file already: seconds after its close, while
//!    nobody has it open, `ingest/job/share.rs` compares the two data files, and one batch gives the file objects in the
//!    shared one. A close thus costs the same whatever the tenant has.
//! 4. The name in the directory of data files is durable before the batch. After a kill in between, opening to write
//!    removes a name that no object is in.
//! 5. Code that changes a data file in place (growth, zeros behind the end, dirty blocks written again, blocks that
//!    return, holes) looks at the number of names first. Writes that cannot be done in place go to `tier0.dat`; holes
//!    are left until `OpenObject::punch_left` punches them in a compaction.
//!
//! No log says that a data file is shared. So removing the file removes a name, copies of a store may keep the links or
//! not, and names that other programs make count too. Names of one blob of a hub cache are something else: names of one
//! node.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::model::{CollectionName, check_label};
use crate::store::disk::{Disk, File, Open};
use crate::store::settings::Share;

/// The data files of a store by length.
#[derive(Default)]
pub(in crate::store) struct Sharing {
    /// `None` if nothing is shared.
    disk: Option<Arc<dyn Disk>>,
    share: Share,
    /// Held while data files are changed in place; alone while one gets a name. Held across I/O. A thread
    /// may hold it shared twice.
    changing: RwLock<()>,
    /// The data files that may share bytes, by tenant; by the empty name if tenants share. Held while
    /// directories are listed; no other lock is taken with it.
    scopes: Mutex<HashMap<String, Scope>>,
}

/// A hash of some bytes in the middle of a data file.
pub(in crate::store) type Sample = u64;

/// Data files among which bytes are shared.
#[derive(Default)]
struct Scope {
    /// Those that were not sampled yet, by length in bytes.
    unsampled: HashMap<u64, Vec<SharedName>>,
    /// The others, by length and sample.
    sampled: HashMap<(u64, Sample), Vec<SharedName>>,
    /// Number of all.
    count: usize,
    /// The number at which those whose files are gone are dropped: twice what the last time left.
    sweep_at: usize,
    /// The collections of these, so that each is in memory once.
    collections: HashSet<Arc<str>>,
}

/// The longest wait for the ends of writes in progress, before bytes are copied instead of shared.
const LINK_WAIT: Duration = Duration::from_millis(50);
/// With fewer entries none are looked for whose files are gone.
const SWEPT_MIN: usize = 4096;

impl Scope {
    /// The data files of a tenant, or of all with the empty name. Directories that cannot be listed have none.
    fn of(disk: &dyn Disk, tenant: &str) -> Scope {
        let directories = |path: &str| -> Vec<String> {
            let listed = disk.list(path).unwrap_or_default().into_iter();
            let labels = listed.filter(|entry| entry.is_directory && check_label(&entry.name).is_ok());
            labels.map(|entry| entry.name).collect()
        };
        let tenants = if tenant.is_empty() { directories("") } else { vec![tenant.to_owned()] };
        let mut scope = Scope::default();
        for tenant in tenants {
            for name in directories(&tenant) {
                let collection = format!("{tenant}/{name}");
                for file in disk.list(&format!("{collection}/data")).unwrap_or_default() {
                    let Some(number) = data_number(&file.name) else { continue };
                    let name = scope.name(&collection, number);
                    let opened = disk.open(&name.path(), Open::Read);
                    let Ok(len) = opened.and_then(|file| file.len()) else { continue };
                    scope.add_unsampled(len, name);
                }
            }
        }
        scope
    }

    fn name(&mut self, collection: &str, number: u64) -> SharedName {
        if let Some(known) = self.collections.get(collection) {
            return SharedName { collection: known.clone(), number };
        }
        let collection: Arc<str> = collection.into();
        self.collections.insert(collection.clone());
        SharedName { collection, number }
    }

    fn add_unsampled(&mut self, len: u64, name: SharedName) {
        let known = self.unsampled.entry(len).or_default();
        if !known.contains(&name) {
            known.push(name);
            self.count += 1;
        }
    }

    fn add(&mut self, len: u64, sample: Sample, name: SharedName) {
        let known = self.sampled.entry((len, sample)).or_default();
        if !known.contains(&name) {
            known.push(name);
            self.count += 1;
        }
    }

    /// Keeps the entries of files that are there.
    fn retain(&mut self, is_there: impl Fn(&SharedName) -> bool) {
        let keep = |known: &mut Vec<SharedName>| {
            known.retain(&is_there);
            !known.is_empty()
        };
        self.unsampled.retain(|_, known| keep(known));
        self.sampled.retain(|_, known| keep(known));
        self.collections.retain(|collection| Arc::strong_count(collection) > 1);
        self.count = self.unsampled.values().chain(self.sampled.values()).map(Vec::len).sum();
        self.sweep_at = self.count * 2;
    }
}

/// A data file that may be shared.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SharedName {
    /// Its collection, as `tenant/name`.
    collection: Arc<str>,
    /// Its number.
    number: u64,
}

impl SharedName {
    pub(in crate::store) fn new(collection: &str, number: u64) -> SharedName {
        SharedName { collection: collection.into(), number }
    }

    /// Its path in the store.
    pub(in crate::store) fn path(&self) -> String {
        format!("{}/data/{:016x}", self.collection, self.number)
    }

    pub(in crate::store) fn is_of(&self, collection: &str, number: u64) -> bool {
        (&*self.collection, self.number) == (collection, number)
    }
}

impl Sharing {
    /// Shares data files of this disk.
    pub fn new(disk: &Arc<dyn Disk>, share: Share) -> Sharing {
        let disk = (share != Share::None).then(|| disk.clone());
        Sharing { disk, share, ..Sharing::default() }
    }

    /// Keeps data files from getting names while the value lives.
    pub fn changing(&self) -> RwLockReadGuard<'_, ()> {
        self.changing.read_recursive()
    }

    /// Does `work`, which gives a data file another name, while none is changed in place.
    pub fn while_unchanged<T>(&self, work: impl FnOnce() -> T) -> T {
        let _alone = self.changing.write();
        work()
    }

    /// Gives a data file another name. Returns whether that was possible, without a long wait: writers pass one that waits.
    pub fn link(&self, from: &SharedName, to: &str) -> bool {
        let Some(disk) = &self.disk else { return false };
        let Some(_alone) = self.changing.try_write_for(LINK_WAIT) else { return false };
        let linked = disk.link(&from.path(), to);
        linked.inspect_err(|error| log::debug!("linking {to}: {error}")).is_ok()
    }

    /// Whether any bytes are shared.
    pub fn is_on(&self) -> bool {
        self.disk.is_some()
    }

    /// Takes the data files of `len` bytes that a file of `tenant` may share and that were not sampled yet.
    pub fn take_unsampled(&self, tenant: &str, len: u64) -> Vec<SharedName> {
        let Some(disk) = &self.disk else { return Vec::new() };
        let name = self.scope(tenant);
        self.sweep(&**disk, name);
        let mut scopes = self.scopes.lock();
        let scope = scopes.entry(name.to_owned()).or_insert_with(|| Scope::of(&**disk, name));
        let taken = scope.unsampled.remove(&len).unwrap_or_default();
        scope.count -= taken.len();
        taken
    }

    /// Puts back what was taken and not sampled.
    pub fn put_back(&self, tenant: &str, len: u64, names: impl Iterator<Item = SharedName>) {
        if let Some(scope) = self.scopes.lock().get_mut(self.scope(tenant)) {
            names.for_each(|name| scope.add_unsampled(len, name));
        }
    }

    /// Drops the entries of files that are gone, when the number of entries may have doubled since the last time. The
    /// files are looked for without a lock.
    fn sweep(&self, disk: &dyn Disk, name: &str) {
        let known: Vec<SharedName> = {
            let mut scopes = self.scopes.lock();
            let Some(scope) = scopes.get_mut(name) else { return };
            if scope.count < scope.sweep_at.max(SWEPT_MIN) {
                return;
            }
            // No other thread does the same meanwhile.
            scope.sweep_at = usize::MAX;
            scope.unsampled.values().chain(scope.sampled.values()).flatten().cloned().collect()
        };
        let is_gone = |name: &SharedName| {
            let opened = disk.open(&name.path(), Open::Read);
            opened.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let gone: HashSet<SharedName> = known.into_iter().filter(is_gone).collect();
        if let Some(scope) = self.scopes.lock().get_mut(name) {
            scope.retain(|name| !gone.contains(name));
        }
    }

    /// Notes the sample of a data file.
    pub fn sampled(&self, tenant: &str, name: SharedName, len: u64, sample: Sample) {
        if let Some(scope) = self.scopes.lock().get_mut(self.scope(tenant)) {
            scope.add(len, sample, name);
        }
    }

    /// The data files of `len` bytes with this sample that a file of `tenant` may share.
    pub fn like(&self, tenant: &str, len: u64, sample: Sample) -> Vec<SharedName> {
        let scopes = self.scopes.lock();
        let known = scopes.get(self.scope(tenant)).and_then(|scope| scope.sampled.get(&(len, sample)));
        known.cloned().unwrap_or_default()
    }

    /// Notes a new data file.
    pub fn note(&self, collection: CollectionName<'_>, number: u64, len: u64) {
        let mut scopes = self.scopes.lock();
        let Some(scope) = scopes.get_mut(self.scope(collection.tenant)) else { return };
        let name = scope.name(&collection.to_string(), number);
        scope.add_unsampled(len, name);
    }

    /// Forgets a data file that is gone or has other bytes.
    pub fn forget(&self, tenant: &str, name: &SharedName, len: u64, sample: Sample) {
        let mut scopes = self.scopes.lock();
        let Some(scope) = scopes.get_mut(self.scope(tenant)) else { return };
        if let Some(known) = scope.sampled.get_mut(&(len, sample)) {
            let before = known.len();
            known.retain(|known| known != name);
            scope.count -= before - known.len();
            if known.is_empty() {
                scope.sampled.remove(&(len, sample));
            }
        }
    }

    /// Whether files of two tenants may share data files.
    pub fn may_share(&self, one: &str, other: &str) -> bool {
        self.is_on() && self.scope(one) == self.scope(other)
    }

    fn scope<'a>(&self, tenant: &'a str) -> &'a str {
        if self.share == Share::Store { "" } else { tenant }
    }
}

/// The number of the data file with a name.
pub(in crate::store) fn data_number(name: &str) -> Option<u64> {
    u64::from_str_radix(name, 16).ok().filter(|_| name.len() == 16)
}

/// Whether a data file has further names. If that cannot be determined, it counts as shared.
pub(in crate::store) fn is_shared(file: &dyn File) -> bool {
    file.attributes().map_or(true, |found| found.links > 1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{SWEPT_MIN, Sharing};
    use crate::model::CollectionName;
    use crate::store::disk::memory::MemoryDisk;
    use crate::store::disk::{Disk, Open};
    use crate::store::settings::Share;

    #[test]
    fn entries_of_files_that_are_gone_are_dropped_before_they_outnumber_the_others() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        for directory in ["t", "t/c", "t/c/data"] {
            disk.create_directory(directory).unwrap();
        }
        let made = |number: u64| disk.open(&format!("t/c/data/{number:016x}"), Open::Create).unwrap();
        made(1).write_at(&[1; 10], 0).unwrap();
        let sharing = Sharing::new(&disk, Share::Tenant);
        // This lists the directory.
        assert!(sharing.take_unsampled("t", 7).is_empty());
        let collection = CollectionName { tenant: "t", name: "c" };
        let mut most = 0;
        for number in 2..3 * SWEPT_MIN as u64 {
            // Each file has its own length, and goes. Some are sampled first.
            sharing.note(collection, number, 1000 + number);
            if number % 3 == 0 {
                let taken = sharing.take_unsampled("t", 1000 + number);
                taken.into_iter().for_each(|name| sharing.sampled("t", name, 1000 + number, number));
            }
            most = most.max(sharing.scopes.lock()["t"].count);
        }
        assert!(most <= SWEPT_MIN + 3, "{most} entries");
        let scopes = sharing.scopes.lock();
        let names = scopes["t"].unsampled.values().chain(scopes["t"].sampled.values()).flatten();
        assert_eq!(names.clone().count(), scopes["t"].count);
        let first = names.clone().next().unwrap();
        assert!(names.clone().all(|name| Arc::ptr_eq(&name.collection, &first.collection)));
        drop(scopes);
        let there = sharing.take_unsampled("t", 10);
        assert_eq!((there.len(), there[0].number), (1, 1));
        sharing.put_back("t", 10, there.into_iter());
        assert_eq!(sharing.take_unsampled("t", 10).len(), 1);
    }
}
