//! Files of stores: they change as their stores do, so none of them stays in place as a source.

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

/// Which file it is, by whatever path it is reached.
pub(super) fn identity(metadata: &fs::Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

/// The files of stores, as they are at one time.
pub(super) struct StoreFiles {
    /// The store that is imported into, without links.
    store: PathBuf,
    own: HashSet<Identity>,
    /// Those of other stores that are mounted, each with its store.
    mounted: HashMap<Identity, PathBuf>,
}

impl StoreFiles {
    /// Those of the store that is imported into, and of those that are mounted.
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
                // Who cannot list it cannot open its files either.
                log::debug!("{}: {error}", other.display());
            }
        }
        Ok(StoreFiles { store, own, mounted })
    }

    /// `Invalid` for a file of a store: `real` is its path without links.
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

/// Tells of each file below a directory; links are not followed.
fn files_below(directory: &Path, tell: &mut dyn FnMut(Identity)) -> io::Result<()> {
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => waiting.push(entry.path()),
                Ok(metadata) => tell(identity(&metadata)),
                // It was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
