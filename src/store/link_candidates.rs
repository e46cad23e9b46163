//! Data files that may hold the same bytes as a new file, which then becomes another name of one of them.
//!
//! Only lengths are known: the user of an entry compares the bytes. An outdated entry therefore does no harm. Nothing
//! is stored on the disk: the directories of data files are listed when the entries are first needed.
//!
//! Invariant:
//! 1. A data file with more than one name is never changed in place. Code that changes one holds [`Sharing::changing`]
//!    from before it looks at the number of names until the change is complete; names are added while it is not held.
//!
//! A file comes to share a data file in these steps:
//!
//! 1. `Collection::alike` picks the data files of the same length whose bytes agree at 16 places.
//! 2. `Collection::link_data_file` gives one of them a name with a new number of the collection. The name comes before
//!    the comparison: a file with several names is not changed in place, so its bytes stay as they are compared.
//! 3. An import reads its source once: `ingest/bytes/store_parts.rs` compares each chunk with the data file instead of
//!    writing it. At the first difference the name goes, and the import begins anew with a data file of its own. The
//!    bytes of a new file that was written through a mount are in a data file already: when it is closed,
//!    `ingest/job/share.rs` compares the two data files, and one batch gives the file objects in the shared one.
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
    scopes: Mutex<HashMap<String, Lengths>>,
}

/// Data files by their length in bytes.
type Lengths = HashMap<u64, Vec<SharedName>>;

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

    /// The data files of `len` bytes that a file of `tenant` may share.
    pub fn of_length(&self, tenant: &str, len: u64) -> Vec<SharedName> {
        let Some(disk) = &self.disk else { return Vec::new() };
        let scope = self.scope(tenant);
        let mut scopes = self.scopes.lock();
        let lengths = scopes.entry(scope.to_owned()).or_insert_with(|| lengths_in(&**disk, scope));
        lengths.get(&len).cloned().unwrap_or_default()
    }

    /// Notes a new data file.
    pub fn note(&self, collection: CollectionName<'_>, number: u64, len: u64) {
        let mut scopes = self.scopes.lock();
        let Some(lengths) = scopes.get_mut(self.scope(collection.tenant)) else { return };
        let name = SharedName { collection: collection.to_string().into(), number };
        let known = lengths.entry(len).or_default();
        if !known.contains(&name) {
            known.push(name);
        }
    }

    /// Forgets a data file that is gone or has another length.
    pub fn forget(&self, tenant: &str, name: &SharedName, len: u64) {
        if let Some(lengths) = self.scopes.lock().get_mut(self.scope(tenant))
            && let Some(known) = lengths.get_mut(&len)
        {
            known.retain(|known| known != name);
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
fn lengths_in(disk: &dyn Disk, scope: &str) -> Lengths {
    let directories = |path: &str| -> Vec<String> {
        let listed = disk.list(path).unwrap_or_default().into_iter();
        let labels = listed.filter(|entry| entry.is_directory && check_label(&entry.name).is_ok());
        labels.map(|entry| entry.name).collect()
    };
    let tenants = if scope.is_empty() { directories("") } else { vec![scope.to_owned()] };
    let mut lengths = Lengths::new();
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
