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

use std::collections::HashMap;
use std::sync::Arc;

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
    /// Number of the others.
    count: usize,
    /// The number of others at which those whose files are gone are dropped.
    sweep_at: usize,
}

/// At fewer entries none are looked for whose files are gone.
const SWEPT_MIN: usize = 4096;

impl Scope {
    fn add(&mut self, len: u64, sample: Sample, name: SharedName) {
        let known = self.sampled.entry((len, sample)).or_default();
        if !known.contains(&name) {
            known.push(name);
            self.count += 1;
        }
    }

    /// Drops the entries of files that are gone, when their number may have doubled since the last time.
    fn sweep(&mut self, disk: &dyn Disk) {
        if self.count < self.sweep_at.max(SWEPT_MIN) {
            return;
        }
        let is_there = |name: &SharedName| disk.open(&name.path(), Open::Read).is_ok();
        self.sampled.retain(|_, known| {
            known.retain(is_there);
            !known.is_empty()
        });
        self.count = self.sampled.values().map(Vec::len).sum();
        self.sweep_at = self.count * 2;
    }
}

/// A data file that may be shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedName {
    /// Its collection, as `tenant/name`.
    collection: Arc<str>,
    /// Its number.
    number: u64,
}

impl SharedName {
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

    /// Gives a data file another name. Returns whether that was possible.
    pub fn link(&self, from: &SharedName, to: &str) -> bool {
        let Some(disk) = &self.disk else { return false };
        let linked = {
            let _alone = self.changing.write();
            disk.link(&from.path(), to)
        };
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
        let mut scopes = self.scopes.lock();
        let scope = scopes
            .entry(name.to_owned())
            .or_insert_with(|| Scope { unsampled: lengths_in(&**disk, name), ..Scope::default() });
        scope.sweep(&**disk);
        scope.unsampled.remove(&len).unwrap_or_default()
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
        let name = SharedName { collection: collection.to_string().into(), number };
        let known = scope.unsampled.entry(len).or_default();
        if !known.contains(&name) {
            known.push(name);
        }
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

/// The data files of a tenant, or of all with the empty name. Directories that cannot be listed have none.
fn lengths_in(disk: &dyn Disk, scope: &str) -> HashMap<u64, Vec<SharedName>> {
    let directories = |path: &str| -> Vec<String> {
        let listed = disk.list(path).unwrap_or_default().into_iter();
        let labels = listed.filter(|entry| entry.is_directory && check_label(&entry.name).is_ok());
        labels.map(|entry| entry.name).collect()
    };
    let tenants = if scope.is_empty() { directories("") } else { vec![scope.to_owned()] };
    let mut lengths: HashMap<u64, Vec<SharedName>> = HashMap::new();
    for tenant in tenants {
        for name in directories(&tenant) {
            let collection: Arc<str> = format!("{tenant}/{name}").into();
            for file in disk.list(&format!("{collection}/data")).unwrap_or_default() {
                let Some(number) = data_number(&file.name) else { continue };
                let name = SharedName { collection: collection.clone(), number };
                let opened = disk.open(&name.path(), Open::Read);
                let Ok(len) = opened.and_then(|file| file.len()) else { continue };
                lengths.entry(len).or_default().push(name);
            }
        }
    }
    lengths
}
