//! Files of stores. They change with their store, so they cannot be sources that stay in place.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::ingest::walk::Mounts;
use crate::model::{Error, Result};
use crate::store::Store;
use crate::store::disk::Identity;
use crate::store::disk::files::FileDisk;

/// The identity of a file, by whatever path it is reached.
pub(super) fn identity(metadata: &fs::Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

/// The files of stores, at one time.
pub(super) struct StoreFiles {
    /// The store that is imported into, with symbolic links resolved.
    store: PathBuf,
    own: HashSet<Identity>,
    /// Files of other, mounted stores, each with its store.
    mounted: HashMap<Identity, PathBuf>,
}

impl StoreFiles {
    /// Lists the files of the store that is imported into, and of the mounted stores.
    pub fn of(store: &Path, mounts: &Mounts) -> Result<StoreFiles> {
        let failed = |error| Error::io(store.display(), error);
        let store = fs::canonicalize(store).map_err(failed)?;
        let mut own = HashSet::new();
        files_below(&store, &mut |file| {
            own.insert(file);
        })
        .map_err(failed)?;
        let mut mounted = HashMap::new();
        for other in mounts.stores().filter(|other| *other != store) {
            let listed = files_below(&other, &mut |file| {
                mounted.insert(file, other.clone());
            });
            if let Err(error) = listed {
                // A user who cannot list it cannot open its files either.
                log::debug!("{}: {error}", other.display());
            }
        }
        Ok(StoreFiles { store, own, mounted })
    }

    /// Fails with `Invalid` for a file of a store. `real` is its path with symbolic links resolved.
    pub fn refuse(&self, path: &Path, real: &Path, file: Identity) -> Result<()> {
        let path = path.display();
        if real.starts_with(&self.store) || self.own.contains(&file) {
            return Err(Error::invalid(format!("{path} lies in the store itself; import it from elsewhere")));
        }
        let is_store = |directory: &&Path| Store::exists(&FileDisk::new(directory));
        let above = real.ancestors().skip(1).find(is_store);
        match self.mounted.get(&file).map(PathBuf::as_path).or(above) {
            Some(store) => Err(Error::invalid(format!(
                "{path} lies in the tierfs store {}; import a copy of it, or export it first",
                store.display()
            ))),
            None => Ok(()),
        }
    }
}

/// Calls `tell` for each file below a directory, without following symbolic links.
fn files_below(directory: &Path, tell: &mut dyn FnMut(Identity)) -> io::Result<()> {
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => waiting.push(entry.path()),
                Ok(metadata) => tell(identity(&metadata)),
                // The file was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
