//! `tierfs init`.

use std::path::{Path, PathBuf};

use crate::cli::Done;
use crate::cli::shared::mounts::refuse_own_mount;
use crate::cli::shared::output::print;
use crate::model::{Error, Result, StoreId};
use crate::store::Store;
use crate::store::disk::files::FileDisk;

/// Make an empty store.
///
/// Example: tierfs init /srv/tensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// A directory that is empty, or not there yet
    store: PathBuf,
}

impl Args {
    pub fn run(self) -> Result<Done> {
        create(&self.store)?;
        print(&format!("made the store {}\n", self.store.display()))?;
        Ok(Done::Well)
    }
}

/// Makes a store in a directory, and the directory.
pub(super) fn create(path: &Path) -> Result<()> {
    refuse_own_mount("store", path)?;
    let disk =
        FileDisk::create(path).map_err(|error| Error::io(format!("making {}", path.display()), error))?;
    Store::create(&disk, random_id()?)
}

fn random_id() -> Result<StoreId> {
    let mut bytes = [0; 16];
    let mut source =
        std::fs::File::open("/dev/urandom").map_err(|error| Error::io("opening /dev/urandom", error))?;
    std::io::Read::read_exact(&mut source, &mut bytes)
        .map_err(|error| Error::io("reading /dev/urandom", error))?;
    Ok(StoreId(u128::from_le_bytes(bytes)))
}
