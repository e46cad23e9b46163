//! `tierfs init`.

use std::path::{Path, PathBuf};

use crate::cli::Outcome;
use crate::cli::common::mounts::refuse_own_mount;
use crate::cli::common::output::{complain, print};
use crate::cli::common::remote;
use crate::model::{Error, ErrorKind, Result};
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
    remote::refuse_as_store(path)?;
    refuse_own_mount(path)?;
    let disk =
        FileDisk::create(path).map_err(|error| Error::io(format!("creating {}", path.display()), error))?;
    let id = random_id().map_err(|error| Error::io("reading /dev/urandom", error))?;
    Store::create(&disk, id)
}

/// Creates a store at a path where nothing exists, or if that `is_asked` for, and says so. A directory may be a mount
/// point whose mount is missing: the store would fill the disk below it, and the next mount would hide it.
pub(super) fn create_at(path: &Path, is_asked: bool) -> Result<()> {
    remote::refuse_as_store(path)?;
    refuse_own_mount(path)?;
    let name = path.display();
    if path.exists() && !is_asked {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "{name} is not a tierfs store; if a store should be mounted there, mount it and name the store; to \
                 make a store there: add --create"
            ),
        ));
    }
    create(path)?;
    complain(&format!("tierfs: created store at {}", shown(path).display()));
    Ok(())
}

/// `path`, with `./` before a lone name.
fn shown(path: &Path) -> PathBuf {
    let is_name = path.parent().is_some_and(|parent| parent.as_os_str().is_empty());
    if is_name { Path::new(".").join(path) } else { path.to_owned() }
}
