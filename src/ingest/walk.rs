//! Finds the files below paths, and their targets.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::format::mountinfo::{MountedThere, mounted, topmost};
use crate::ingest::Target;
use crate::ingest::inside::identity;
use crate::model::{Error, ErrorKind, Result};
use crate::store::disk::Identity;

/// A file to import.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Its path as given.
    pub source: PathBuf,
    /// Its path with symbolic links resolved.
    pub real: PathBuf,
    /// Its target in the collection.
    pub target: Target,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its identity, by whatever path it is reached.
    pub identity: Identity,
}

/// The mount table, at one time.
pub(super) struct Mounts(String);

impl Mounts {
    pub fn read() -> Result<Mounts> {
        let text = fs::read_to_string("/proc/self/mountinfo");
        text.map(Mounts).map_err(|error| Error::io("reading /proc/self/mountinfo", error))
    }

    /// The mounted stores.
    pub fn stores(&self) -> impl Iterator<Item = PathBuf> {
        mounted(&self.0).filter(MountedThere::is_ours).map(|ours| ours.source)
    }

    /// Rejects a path on a tierfs mount before any request to it: a daemon that reads its own mount
    /// would deadlock. Returns the path with symbolic links resolved.
    pub fn refuse_ours(&self, what: &str, path: &Path) -> Result<PathBuf> {
        let failed = |error| Error::io(path.display(), error);
        let absolute = std::path::absolute(path).map_err(failed)?;
        if let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name())
            && let Ok(parent) = fs::canonicalize(parent)
        {
            self.refuse(what, path, &parent.join(name))?;
        }
        let real = fs::canonicalize(path).map_err(failed)?;
        self.refuse(what, path, &real)?;
        Ok(real)
    }

    fn refuse(&self, what: &str, path: &Path, real: &Path) -> Result<()> {
        match topmost(&self.0, real).filter(MountedThere::is_ours) {
            Some(ours) => {
                let (path, root) = (path.display(), ours.mountpoint.display());
                Err(Error::invalid(format!("the {what} {path} lies on the tierfs mounted on {root}")))
            }
            None => Ok(()),
        }
    }
}

/// The files of `paths`: a file by its own name, the content of a directory by its path in it.
/// Symbolic links are followed, as the caches of model hubs need. Sorted by target; two files with
/// the same target are an error.
pub(super) fn files(paths: &[PathBuf], mounts: &Mounts) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for path in paths {
        let (real, metadata) = stat(path, mounts)?;
        if metadata.is_dir() {
            let mut above = HashSet::new();
            directory(path, &mut Vec::new(), &mut above, mounts, &mut found)?;
        } else {
            let name = path.file_name().map(|name| name.as_bytes().to_vec());
            let name = name.ok_or_else(|| Error::invalid(format!("{} has no name", path.display())))?;
            let target = Target { directories: Vec::new(), name };
            file(path, (real, &metadata), target, &mut found)?;
        }
    }
    found.sort_by_key(|found| (found.target.directories.clone(), found.target.name.clone()));
    for pair in found.windows(2) {
        if let [one, other] = pair
            && one.target.directories == other.target.directories
            && one.target.name == other.target.name
        {
            let (one, other) = (one.source.display(), other.source.display());
            return Err(Error::new(
                ErrorKind::Exists,
                format!("{one} and {other} would have the same place"),
            ));
        }
    }
    Ok(found)
}

/// The given files in the given order, whatever their names.
pub(super) fn shards(paths: &[PathBuf], mounts: &Mounts) -> Result<Vec<Found>> {
    let shard = |path: &PathBuf| {
        let (real, metadata) = stat(path, mounts)?;
        match metadata.is_file() {
            true => {
                let (source, bytes, identity) = (path.clone(), metadata.len(), identity(&metadata));
                Ok(Found { source, real, target: Target::default(), bytes, identity })
            }
            false => Err(Error::invalid(format!("{} is no file", path.display()))),
        }
    };
    paths.iter().map(shard).collect()
}

fn stat(path: &Path, mounts: &Mounts) -> Result<(PathBuf, fs::Metadata)> {
    let real = mounts.refuse_ours("source", path)?;
    let metadata = fs::metadata(&real).map_err(|error| Error::io(path.display(), error))?;
    Ok((real, metadata))
}

fn file(
    path: &Path,
    (real, metadata): (PathBuf, &fs::Metadata),
    target: Target,
    found: &mut Vec<Found>,
) -> Result<()> {
    if !metadata.is_file() {
        return Err(Error::invalid(format!("{} is neither a file nor a directory", path.display())));
    }
    let (source, bytes) = (path.to_owned(), metadata.len());
    found.push(Found { source, real, target, bytes, identity: identity(metadata) });
    Ok(())
}

fn directory(
    path: &Path,
    below: &mut Vec<Vec<u8>>,
    above: &mut HashSet<(u64, u64)>,
    mounts: &Mounts,
    found: &mut Vec<Found>,
) -> Result<()> {
    let (_, metadata) = stat(path, mounts)?;
    let identity = identity(&metadata);
    if !above.insert(identity) {
        return Err(Error::invalid(format!("{} leads back to a directory above it", path.display())));
    }
    let failed = |error| Error::io(path.display(), error);
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (child, name) = (entry.path(), entry.file_name().as_bytes().to_vec());
        let (real, metadata) = stat(&child, mounts)?;
        if metadata.is_dir() {
            below.push(name);
            directory(&child, below, above, mounts, found)?;
            below.pop();
        } else {
            file(&child, (real, &metadata), Target { directories: below.clone(), name }, found)?;
        }
    }
    above.remove(&identity);
    Ok(())
}
