//! A disk with clones: collections whose files are fetched from a remote when they are read. Everything above this disk
//! sees usual files: tiers, writes, pins, quotas, scrubs and compaction know nothing of clones.
//!
//! A collection is a clone if its directory has a `clone.toml` (`clone_description.rs`). Beside a data, tier, delta or factor
//! file may stand a map with the state of its pieces; a file without one is all its own.
//!
//! 1. `Clones` is a `Disk` around that of the store. A clone gets a `CloneFile` (`file.rs`) for each file of payloads;
//!    all that have the file open share a piece file (`shared_file.rs`, `store/pieces/mod.rs`).
//! 2. A read fetches pieces that are remote, writes them into the file and calls them here. A write first makes the
//!    pieces that it touches own: other bytes of them may be described, so a piece that is remote is fetched before. A
//!    store that is only read keeps nothing.
//! 3. `deferred_fetch.rs` keeps the network out of `Collection::gate`: a read that lacks a piece ends with an error, the
//!    piece is fetched, and the read begins again. Reads that others begin inside their own gate wait there.
//! 4. The trait `PieceSource` is the seam to the network, which stands in `remote/`.
//! 5. `Store::clone_snapshot` (`store/clone_snapshot.rs`) puts the directory together under a name that the next opening
//!    removes, and renames it. `Store::replace_clone` does the same for a pull, takes over what is here, and exchanges
//!    the two directories in one step.
//! 6. `OpenObject::evict_to_remote` (`store/io/clones.rs`) gives the space of pieces back that are here and not own:
//!    the map says so first. A data file that somebody holds keeps its bytes.
//! 7. A push asks `Canonical::piece_in_clone` (`store/snapshot/clone_reuse.rs`) before it reads: canonical bytes that
//!    are exactly a piece of the clone are named again. After the push `Canonical::adopt` gives each file the pieces of
//!    the new snapshot at their places here; all of it can be evicted then.

pub mod clone_description;
mod deferred_fetch;
mod fetch;
mod file;
mod shared_file;

use std::collections::HashMap;
use std::io;
#[cfg(feature = "mount")]
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

pub use clone_description::{CLONE_NAME, CloneSource};
pub use deferred_fetch::fetched_outside;
pub(in crate::store) use deferred_fetch::{brought, noted_far};
pub use fetch::PieceSource;
pub use file::CloneFile;
pub use shared_file::SharedFile;

use crate::format::log::catalog::SourcePlace;
use crate::format::snapshot::piece_map::PieceMap;
use crate::model::{Error, Result};
use crate::store::clones::clone_description::{DRAFT_NAME, FILE_BYTES_MAX};
use crate::store::clones::fetch::{Fetcher, no_remotes};
#[cfg(feature = "mount")]
use crate::store::disk::files::FileDisk;
use crate::store::disk::forward::ForwardDisk;
use crate::store::disk::{Disk, FarFile, File, Open, remove_if_present, replace_file};
use crate::store::pieces::{self, map_of};

/// A collection that is a clone.
struct CloneDirectory {
    fetcher: Arc<Fetcher>,
    /// By path. They stay open, so that all users of a file share one.
    files: Mutex<HashMap<String, Arc<SharedFile>>>,
}

/// A disk whose collections may be clones.
pub struct Clones {
    disk: Arc<dyn Disk>,
    /// Whether fetched pieces are kept: not in a store that is only read.
    keeps: bool,
    pieces: Arc<OnceLock<Arc<dyn PieceSource>>>,
    /// Whether a collection has, or had, files at a URL.
    has_far: AtomicBool,
    /// By path of the collection; `None` for one that is not a clone.
    known: Mutex<HashMap<String, Option<Arc<CloneDirectory>>>>,
}

impl Clones {
    /// A disk with the files of `disk`. With `keeps`, what is fetched is written into them.
    pub fn new(disk: Arc<dyn Disk>, keeps: bool) -> Clones {
        Clones {
            disk,
            keeps,
            pieces: Arc::default(),
            has_far: AtomicBool::new(false),
            known: Mutex::default(),
        }
    }

    /// Sets the source of pieces. Only the first call has an effect.
    pub fn set_source(&self, source: Arc<dyn PieceSource>) {
        self.pieces.get_or_init(|| source);
    }

    /// An object that an import left where it lies.
    pub fn far_file(&self, place: &SourcePlace, bytes: u64) -> io::Result<Arc<dyn FarFile>> {
        self.note_far();
        match self.pieces.get() {
            Some(pieces) => pieces.far_file(place, bytes),
            None => Err(no_remotes(&place.source)),
        }
    }

    /// Notes that a collection has files at a URL.
    pub fn note_far(&self) {
        self.has_far.store(true, Ordering::Relaxed);
    }

    /// Whether one has, or had, since the store was opened.
    pub fn has_far(&self) -> bool {
        self.has_far.load(Ordering::Relaxed)
    }

    /// Records which pieces have arrived, and what the cache of such objects keeps.
    pub fn save_cache(&self) {
        if let Some(pieces) = self.pieces.get() {
            pieces.save();
        }
        let directories: Vec<_> = self.known.lock().values().flatten().cloned().collect();
        for directory in directories {
            let files: Vec<_> = directory.files.lock().values().cloned().collect();
            files.iter().for_each(|file| file.save_or_tell());
        }
    }

    /// Whether what is fetched is kept.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// The snapshot that the collection at this path is a clone of, if it is one.
    pub fn source_of(&self, path: &str) -> io::Result<Option<CloneSource>> {
        Ok(self.directory(path)?.map(|found| CloneSource::clone(&found.fetcher.source())))
    }

    /// Changes that, durably.
    pub fn set_source_of(&self, path: &str, source: &CloneSource) -> io::Result<()> {
        write_source(&*self.disk, path, source)?;
        if let Some(found) = self.directory(path)? {
            found.fetcher.set_source(source);
        }
        Ok(())
    }

    /// The file of payloads at this path with its pieces; `None` if it is not that of a clone.
    pub fn file(&self, path: &str) -> io::Result<Option<Arc<SharedFile>>> {
        let directory = self.clone_with(path)?;
        directory.map(|directory| self.shared(&directory, path)).transpose()
    }

    /// The disk below, with files as they are.
    pub fn below(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Makes durable what has arrived in a clone, and forgets its files, which nobody has open.
    pub fn forget(&self, path: &str) {
        let inside = |known: &str| {
            known.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let mut gone = Vec::new();
        self.known.lock().retain(|known, found| {
            let is_gone = inside(known);
            if is_gone {
                gone.extend(found.take());
            }
            !is_gone
        });
    }

    fn directory(&self, path: &str) -> io::Result<Option<Arc<CloneDirectory>>> {
        let mut known = self.known.lock();
        if let Some(found) = known.get(path) {
            return Ok(found.clone());
        }
        let found = match read_source(&*self.disk, path) {
            Ok(Some(source)) => {
                let fetcher = Arc::new(Fetcher::new(path, source, &self.pieces));
                Some(Arc::new(CloneDirectory { fetcher, files: Mutex::default() }))
            }
            Ok(None) => None,
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
        };
        known.insert(path.to_owned(), found.clone());
        Ok(found)
    }

    /// The clone that a file of payloads belongs to, if it belongs to one.
    fn clone_with(&self, path: &str) -> io::Result<Option<Arc<CloneDirectory>>> {
        match collection_of(path) {
            Some(collection) => self.directory(collection),
            None => Ok(None),
        }
    }

    fn shared(&self, directory: &Arc<CloneDirectory>, path: &str) -> io::Result<Arc<SharedFile>> {
        let mut files = directory.files.lock();
        if let Some(found) = files.get(path) {
            return Ok(found.clone());
        }
        let how = if self.keeps { Open::Write } else { Open::Read };
        let map = match self.disk.open(&map_of(path), how) {
            Ok(file) => Some((read_map(&*file, path)?, file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let data =
            if self.keeps { Some((self.disk.open(path, Open::Write)?, self.disk.clone())) } else { None };
        let shared = Arc::new(SharedFile::new(path, &directory.fetcher, data, map));
        files.insert(path.to_owned(), shared.clone());
        Ok(shared)
    }
}

/// The collection of a file of payloads; `None` for other paths.
fn collection_of(path: &str) -> Option<&str> {
    let below = path.match_indices('/').nth(1)?.0;
    let (collection, file) = (path.get(..below)?, path.get(below + 1..)?);
    let is_payload = match file.strip_prefix("data/") {
        Some(number) => number.len() == 16 && !number.contains('.'),
        None => file.ends_with(".dat") && !file.contains('/'),
    };
    is_payload.then_some(collection)
}

/// Reads the snapshot that a collection was cloned from, also while another process has the store open. Returns `None` if the
/// collection does not exist, or if it is not a clone.
#[cfg(feature = "mount")]
pub fn clone_source_at(store: &Path, path: &str) -> Result<Option<CloneSource>> {
    read_source(&FileDisk::new(store), path)
}

fn read_source(disk: &dyn Disk, path: &str) -> Result<Option<CloneSource>> {
    let path = format!("{path}/{CLONE_NAME}");
    let failed = |error| Error::io(format!("reading {path}"), error);
    let file = match disk.open(&path, Open::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let len = file.len().map_err(failed)?;
    if len > FILE_BYTES_MAX {
        return Err(Error::corrupt(format!("{path} has {len} bytes")));
    }
    let mut text = vec![0; len as usize];
    file.read_exact_at(&mut text, 0).map_err(failed)?;
    CloneSource::parse(&String::from_utf8_lossy(&text)).map(Some).map_err(|error| error.at(path))
}

/// Makes the collection at this path a clone of a snapshot, durably.
pub fn write_source(disk: &dyn Disk, path: &str, source: &CloneSource) -> io::Result<()> {
    let (draft, name) = (format!("{path}/{DRAFT_NAME}"), format!("{path}/{CLONE_NAME}"));
    replace_file(disk, &draft, &name, source.to_text().as_bytes())
}

fn read_map(file: &dyn File, path: &str) -> io::Result<PieceMap> {
    pieces::read_map(file).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => {
            io::Error::new(error.kind(), format!("{}: {error}; clone it again", map_of(path)))
        }
        _ => error,
    })
}

impl ForwardDisk for Clones {
    fn inner(&self) -> &dyn Disk {
        &*self.disk
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        let Some(directory) = self.clone_with(path)? else { return self.disk.open(path, how) };
        if how == Open::Create {
            // The map of a file that had this name must not become that of the new one.
            directory.files.lock().remove(path);
            remove_if_present(&*self.disk, &map_of(path))?;
        }
        let inner = self.disk.open(path, how)?;
        let shared = self.shared(&directory, path)?;
        Ok(Arc::new(CloneFile::new(inner, shared)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        // Collections and tenants are closed before they are renamed.
        if from.matches('/').count() < 2 {
            self.forget(from);
            self.forget(to);
        }
        self.disk.rename(from, to)
    }

    fn exchange(&self, one: &str, other: &str) -> io::Result<()> {
        self.forget(one);
        self.forget(other);
        self.disk.exchange(one, other)
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        // Neither name would have the pieces of the other.
        if self.clone_with(from)?.is_some() || self.clone_with(to)?.is_some() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.disk.link(from, to)
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        if let Some(directory) = self.clone_with(path)? {
            directory.files.lock().remove(path);
            remove_if_present(&*self.disk, &map_of(path))?;
        }
        self.disk.remove_file(path)
    }

    fn remove_directory(&self, path: &str) -> io::Result<()> {
        self.forget(path);
        self.disk.remove_directory(path)
    }
}
