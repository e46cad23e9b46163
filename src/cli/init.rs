//! `tierfs init`.

use std::path::{Path, PathBuf};

use crate::cli::Outcome;
use crate::cli::common::mounts::refuse_own_mount;
use crate::cli::common::output::print;
use crate::model::{Error, Result};
use crate::store::Store;
use crate::store::disk::files::{FileDisk, random_id};

/// Create an empty store.
///
/// Example: tierfs init /srv/tensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// An empty directory, or a path at which to create one
    store: PathBuf,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        create(&self.store)?;
        print(&format!("created store at {}\n", shown(&self.store).display()))?;
        Ok(Outcome::Succeeded)
    }
}

/// Creates a store, and its directory if that does not exist.
pub(super) fn create(path: &Path) -> Result<()> {
    refuse_own_mount("store", path)?;
    let disk =
        FileDisk::create(path).map_err(|error| Error::io(format!("creating {}", path.display()), error))?;
    let id = random_id().map_err(|error| Error::io("reading /dev/urandom", error))?;
    Store::create(&disk, id)
}

/// `path`, with `./` before a lone name.
fn shown(path: &Path) -> PathBuf {
    let is_name = path.parent().is_some_and(|parent| parent.as_os_str().is_empty());
    if is_name { Path::new(".").join(path) } else { path.to_owned() }
}
