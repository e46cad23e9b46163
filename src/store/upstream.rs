//! The remote that a store gets bytes from, beside its disk. A disk knows nothing of remotes: a store is opened on one
//! and asks here for what only a remote has.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use crate::format::handover::Numbered;
use crate::format::snapshot::manifest::OwnerAndMode;
use crate::format::snapshot::tenant_list::{ListedCollection, ListedDirectory};
use crate::model::{CollectionName, OwnedCollectionName};
use crate::store::clones::{Clones, SharedFile};
use crate::store::disk::Disk;
use crate::store::disk::remote::Traffic;

/// The remote behind the disk of a store, or behind that of one collection.
pub trait Upstream: Send + Sync {
    /// The clones of snapshots among the collections, if there can be any.
    fn clones(&self) -> Option<&Clones> {
        None
    }

    /// The snapshots that all collections are, if they are.
    fn snapshots(&self) -> Option<&dyn ShownSnapshots> {
        None
    }

    /// Drops copies of a stretch of the file at this path that may be damaged, so that the next read fetches it again.
    /// Returns whether that may help.
    fn refetch(&self, path: &str, offset: u64, len: u64) -> io::Result<bool>;
}

/// Snapshots of a remote that are shown as collections. A place is a tenant and a name.
pub trait ShownSnapshots: Send + Sync {
    /// The snapshot of a collection that is shown now, which stays as it is when another is shown.
    fn still(&self, place: CollectionName<'_>) -> io::Result<ShownSnapshot>;

    /// A variant of that snapshot, if it was published.
    fn variant(&self, place: CollectionName<'_>, name: &str) -> io::Result<Option<ShownSnapshot>>;

    /// The snapshot of a collection with this number, if there is one.
    fn numbered(&self, place: CollectionName<'_>, number: u64) -> io::Result<Option<ShownSnapshot>>;

    /// The forms in which a collection is published: the names of its variants, an empty name for the collection itself;
    /// the one that is shown comes first.
    fn published(&self, place: CollectionName<'_>) -> io::Result<Vec<String>>;

    /// The number of the snapshot that is shown of a collection.
    fn number(&self, place: CollectionName<'_>) -> io::Result<u64>;

    /// A text that differs after something was pushed to the remote; `None` if the remote does not say so.
    fn last_push(&self) -> Option<Vec<u8>>;

    /// Whether the collection with this number is the one that is shown. Asks nobody.
    fn is_shown(&self, place: CollectionName<'_>, number: u32) -> bool;

    /// Asks the remote for the directories of a tenant's collections, for [`unopened`](Self::unopened). `None` if it does not
    /// list them; then collections must be opened.
    fn list_directories(&self, tenant: &str) -> io::Result<Option<Arc<Directories>>>;

    /// The directory of a collection that nobody has opened, if the remote has said it.
    fn unopened(&self, place: CollectionName<'_>) -> Option<UnopenedCollection>;

    /// Shows the newest snapshots from now on, of the collections that `look` says. `renewed` is called for each collection that differs, as soon as it does, also
    /// if others fail.
    fn renew_all(&self, look: Look, renewed: &(dyn Fn(&OwnedCollectionName) + Sync)) -> io::Result<()>;

    /// The traffic with the remote.
    fn traffic(&self) -> Traffic;

    /// Drops bytes that are kept in memory for readers.
    fn drop_buffers(&self);

    /// Records what a cache keeps, for the next mount.
    fn save_cache(&self);

    /// A text with which another process can show the same before the remote answers.
    fn said(&self) -> String;

    /// Goes on with the numbers that earlier processes have given to collections, oldest first, and notes further ones.
    /// Called before any collection is opened.
    fn go_on_with_numbers(&self, before: Vec<Numbered>, note: Box<NoteNumber>);

    /// The meaning that a number had in an earlier process.
    fn before(&self, number: u32) -> Option<NumberBefore>;

    /// The snapshot that had a number in an earlier process, while its collection shows another one; `None` if it is not
    /// there any more.
    fn former(&self, number: u32) -> io::Result<Option<ShownSnapshot>>;

    /// The numbers of collections that an earlier process has shown with attributes of a list, and these attributes.
    fn shown_before(&self) -> Vec<(u32, OwnedCollectionName, OwnerAndMode)>;

    /// The tenants of which an earlier process has shown something.
    fn tenants_before(&self) -> Vec<String>;
}

/// Notes a number for the next process.
pub type NoteNumber = dyn Fn(&Numbered) + Send + Sync;

/// The meaning that a number of a collection had in an earlier process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NumberBefore {
    /// The snapshot of a collection that is shown, or its directory.
    Present(OwnedCollectionName),
    /// A snapshot of this collection that is not shown any more.
    Former(OwnedCollectionName),
    /// The snapshot of a collection with this number of its own.
    Version(OwnedCollectionName, u64),
}

/// The collections that newer snapshots are looked for of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// All that are open.
    All,
    /// Those of which the remote's lists have another snapshot, or none.
    Listed,
    /// The next few of them: a killed push has left no note.
    Few,
}

/// The collections of a tenant, as a listing with attributes has found them.
#[derive(Clone, Default)]
pub struct Directories {
    /// Those whose directories can be shown without opening them, by name.
    pub entries: BTreeMap<String, ListedCollection>,
    /// Names of those that were removed, or whose manifests did not come. Any other name is newer than the listing.
    pub left_out: BTreeSet<String>,
}

/// A collection that nobody has opened.
#[derive(Clone, Copy, Debug)]
pub struct UnopenedCollection {
    /// The number that it will have.
    pub number: u32,
    /// Its owner.
    pub owner: OwnerAndMode,
    /// Its directory.
    pub directory: ListedDirectory,
}

/// One snapshot: a disk on which its collection stands alone, and the remote behind it.
pub struct ShownSnapshot {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// The remote.
    pub upstream: Arc<dyn Upstream>,
}

/// A store on a disk of this machine. Some of its collections may be clones.
impl Upstream for Clones {
    fn clones(&self) -> Option<&Clones> {
        Some(self)
    }

    fn refetch(&self, path: &str, offset: u64, len: u64) -> io::Result<bool> {
        self.file(path)?.map_or(Ok(false), |file| file.refetch(offset, len))
    }
}

/// The pieces of the file at this path, if it is that of a clone.
pub(in crate::store) fn cloned_file(
    upstream: Option<&Arc<dyn Upstream>>,
    path: &str,
) -> io::Result<Option<Arc<SharedFile>>> {
    upstream.and_then(|upstream| upstream.clones()).map_or(Ok(None), |clones| clones.file(path))
}
