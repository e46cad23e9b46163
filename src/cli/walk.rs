//! Files below paths, with the places where they go.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::ingest::Target;
use crate::model::{Error, ErrorKind, Result};

/// A file to take in.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Where it is.
    pub source: PathBuf,
    /// Where it goes.
    pub target: Target,
    /// Its bytes.
    pub bytes: u64,
}

/// The files of `paths`: a file by its own name, a directory's content as it lies in
/// it. Symbolic links are followed, as the caches of model hubs need. Sorted by target;
/// two for one place are an error.
pub(super) fn files(paths: &[PathBuf]) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for path in paths {
        let metadata = stat(path)?;
        if metadata.is_dir() {
            let mut above = HashSet::new();
            directory(path, &mut Vec::new(), &mut above, &mut found)?;
        } else {
            let name = path.file_name().map(|name| name.as_bytes().to_vec());
            let name = name.ok_or_else(|| Error::invalid(format!("{} has no name", path.display())))?;
            file(path, &metadata, Target { directories: Vec::new(), name }, &mut found)?;
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

fn stat(path: &Path) -> Result<fs::Metadata> {
    fs::metadata(path).map_err(|error| Error::io(path.display(), error))
}

fn file(path: &Path, metadata: &fs::Metadata, target: Target, found: &mut Vec<Found>) -> Result<()> {
    if !metadata.is_file() {
        return Err(Error::invalid(format!("{} is neither a file nor a directory", path.display())));
    }
    found.push(Found { source: path.to_owned(), target, bytes: metadata.len() });
    Ok(())
}

fn directory(
    path: &Path,
    below: &mut Vec<Vec<u8>>,
    above: &mut HashSet<(u64, u64)>,
    found: &mut Vec<Found>,
) -> Result<()> {
    let metadata = stat(path)?;
    let identity = (metadata.dev(), metadata.ino());
    if !above.insert(identity) {
        return Err(Error::invalid(format!("{} leads back to a directory above it", path.display())));
    }
    let failed = |error| Error::io(path.display(), error);
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (child, name) = (entry.path(), entry.file_name().as_bytes().to_vec());
        let metadata = stat(&child)?;
        if metadata.is_dir() {
            below.push(name);
            directory(&child, below, above, found)?;
            below.pop();
        } else {
            file(&child, &metadata, Target { directories: below.clone(), name }, found)?;
        }
    }
    above.remove(&identity);
    Ok(())
}
