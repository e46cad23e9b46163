//! Files of stores. They change with their store, so they cannot be sources that stay in place.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::ingest::find::walk::Mounts;
use crate::model::{Error, Result};
use crate::store::Store;
use crate::store::disk::Identity;
use crate::store::disk::files::{FileDisk, visit_files};

/// The identity of a file, independent of the path to it.
pub(in crate::ingest) fn identity(metadata: &fs::Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

/// Fails with `Invalid` for a file below the directory of the store. `real` and `store` are paths with symbolic links resolved.
pub(in crate::ingest) fn refuse_own(path: &Path, real: &Path, store: &Path) -> Result<()> {
    if !real.starts_with(store) {
        return Ok(());
    }
    Err(Error::invalid(format!("{} lies in the store itself; import it from elsewhere", path.display())))
}

/// The files of stores, at one time.
pub(in crate::ingest) struct StoreFiles {
    /// The destination store, with symbolic links resolved.
    store: PathBuf,
    own: HashSet<Identity>,
    /// Files of other, mounted stores, each with its store.
    mounted: HashMap<Identity, PathBuf>,
}

impl StoreFiles {
    /// Lists the files of the destination store and of the mounted stores.
    pub fn of(store: &Path, mounts: &Mounts) -> Result<StoreFiles> {
        let failed = |error| Error::io(store.display(), error);
        let store = fs::canonicalize(store).map_err(failed)?;
        let mut own = HashSet::new();
        visit_files(&store, &mut |_, metadata| {
            own.insert(identity(metadata));
        })?;
        let mut mounted = HashMap::new();
        for other in mounts.stores().filter(|other| *other != store) {
            let listed = visit_files(&other, &mut |_, metadata| {
                mounted.insert(identity(metadata), other.clone());
            });
            if let Err(error) = listed {
                // A user who cannot list it cannot open its files either.
                log::debug!("{error}");
            }
        }
        Ok(StoreFiles { store, own, mounted })
    }

    /// Fails with `Invalid` for a file of a store. `real` is its path with symbolic links resolved.
    pub fn refuse(&self, path: &Path, real: &Path, file: Identity) -> Result<()> {
        let own = if self.own.contains(&file) { &self.store } else { real };
        refuse_own(path, own, &self.store)?;
        let path = path.display();
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
