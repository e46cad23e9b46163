//! The sources of a disk of snapshots. The layer with the network implements these traits.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use crate::format::log::catalog::SourcePlace;
use crate::format::snapshot::manifest::{Manifest, OwnerAndMode, SnapshotName};
use crate::model::{CollectionName, Result, StoreId};
use crate::store::disk::File;
use crate::store::disk::remote::Traffic;
use crate::store::snapshot::canonical::Canonical;
use crate::store::upstream::Directories;

/// The snapshots of a remote.
pub trait Snapshots: Send + Sync {
    /// Its location, for messages.
    fn place(&self) -> String;
    /// The uuid of the remote.
    fn id(&self) -> StoreId;
    /// The names of the tenants, in any order.
    fn tenants(&self) -> io::Result<Vec<String>>;
    /// The names of a tenant's collections, in any order.
    fn collections(&self, tenant: &str) -> io::Result<Vec<String>>;
    /// The present snapshot of a collection; `None` if the remote has none.
    fn open(&self, tenant: &str, collection: &str) -> io::Result<Option<Snapshot>>;
    /// The collections of a tenant whose directories can be shown without opening them; `None` if the source does not list
    /// directories.
    fn entries(&self, _tenant: &str) -> io::Result<Option<Arc<Directories>>> {
        Ok(None)
    }
    /// Those that were listed last, without a request.
    fn known_entries(&self, _tenant: &str) -> Option<Arc<Directories>> {
        None
    }
    /// The owner of a tenant, where no manifest says it. A list is no word for who may enter.
    fn tenant_owner(&self, _tenant: &str) -> io::Result<Option<OwnerAndMode>> {
        Ok(None)
    }
    /// The numbers of the newest snapshots of a tenant's collections by a single look, of those that it shows.
    fn numbers(&self, _tenant: &str) -> io::Result<HashMap<String, u64>> {
        Ok(HashMap::new())
    }
    /// Asks for names and entries again at their next use.
    fn list_again(&self) {}
    /// The snapshot of a collection with this number; `None` if there is none.
    fn numbered(&self, _tenant: &str, _collection: &str, _number: u64) -> io::Result<Option<Snapshot>> {
        Ok(None)
    }
    /// The snapshot of a collection with this name, which was shown before; `None` if it is not there any more.
    fn again(&self, tenant: &str, collection: &str, name: &SnapshotName) -> io::Result<Option<Snapshot>> {
        Ok(self.open(tenant, collection)?.filter(|found| found.name == *name))
    }
    /// A text about the source, with which another process can show it before the source answers.
    fn said(&self) -> String {
        String::new()
    }
    /// A text that differs after something was pushed; `None` if the source has none, or does not give it.
    fn last_push(&self) -> Option<Vec<u8>> {
        None
    }
    /// Counts of the traffic with the remote.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    /// Drops bytes that are kept in memory for readers.
    fn drop_buffers(&self) {}
    /// Records what a cache keeps, for the next mount.
    fn save_cache(&self) {}
    /// Opens collections of a tenant that is looked at: at least one, whose manifest says who owns the tenant, and
    /// others that can be had in the same time.
    fn open_tenant(&self, tenant: &str) -> io::Result<Vec<(String, Snapshot)>> {
        let first = self.collections(tenant)?.into_iter().min().ok_or(io::ErrorKind::NotFound)?;
        let opened = self.open(tenant, &first)?;
        Ok(opened.into_iter().map(|opened| (first.clone(), opened)).collect())
    }
}

/// A snapshot of a collection.
#[derive(Clone)]
pub struct Snapshot {
    /// Its manifest.
    pub manifest: Arc<Manifest>,
    /// The name of the variant to show instead of the collection itself.
    pub variant: Option<String>,
    /// Its files.
    pub files: Arc<dyn SnapshotFiles>,
    /// Its name.
    pub name: SnapshotName,
}

/// The files of a snapshot. Each is named by its index in [`Manifest::files`]. Bytes in no extent are
/// zeros.
pub trait SnapshotFiles: Send + Sync {
    /// Reads at `offset` until `buffer` is full. The range is inside the file.
    fn read_at(&self, file: usize, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// As [`ReadAt::read_in_memory`](crate::store::disk::ReadAt::read_in_memory).
    fn read_in_memory(&self, _file: usize, _buffer: &mut [u8], _offset: u64) -> io::Result<usize> {
        Ok(0)
    }
    /// A descriptor of a local file with all bytes of this one at the same offsets; `None` without one.
    #[cfg(feature = "mount")]
    fn descriptor(&self, _file: usize) -> io::Result<Option<std::os::fd::OwnedFd>> {
        Ok(None)
    }
    /// Drops copies of a stretch that may be damaged, so that the next read fetches it again. Returns whether that may
    /// help.
    fn refetch(&self, _file: usize, _offset: u64, _len: u64) -> io::Result<bool> {
        Ok(false)
    }
}

/// A file that lies elsewhere.
#[derive(Clone)]
pub struct Elsewhere {
    /// Its path in the collection: names without slashes.
    pub path: Vec<Vec<u8>>,
    /// Its bytes.
    pub file: Arc<dyn File>,
    /// Time of its last change, in nanoseconds since 1970.
    pub mtime: i64,
    /// Where it lies.
    pub place: SourcePlace,
    /// The SHA-256 of its bytes, if somebody says it.
    pub sha256: Option<[u8; 32]>,
}

/// A collection of files that lie elsewhere.
pub struct DescribedFiles {
    /// The collection. Data files have the bytes of the files.
    pub canonical: Canonical,
    /// The data file of each file; `None` of an empty one.
    pub data_files: Vec<Option<DescribedFile>>,
}

/// The data file of a file that lies elsewhere.
#[derive(Clone, Default)]
pub struct DescribedFile {
    /// Its number.
    pub number: u64,
    /// The BLAKE3 of each of its pieces, if it was read.
    pub digests: Vec<[u8; 32]>,
}

/// How much of files that lie elsewhere is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    /// The headers of those that may be containers.
    Headers,
    /// All, for checksums of blocks and digests of pieces.
    All,
}

/// Makes the log of a collection of such files.
pub type Describe =
    dyn Fn(CollectionName<'_>, StoreId, &[Elsewhere], Reads) -> Result<DescribedFiles> + Send + Sync;
