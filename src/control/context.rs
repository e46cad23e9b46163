//! The context of attributes and control files: the mount, and the request to a control file.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::control::counters::Counters;
use crate::control::jobs::Jobs;
use crate::control::refusals::Refusals;
use crate::model::{Error, ErrorKind, Result};
use crate::store::{Collection, Store};
use crate::vfs::{ControlView, FileView, Scope, Vfs};

/// [`Mounted::transport`] of a mount whose requests arrive by io_uring.
pub const RINGS: &str = "uring";
/// The user ID of root.
pub(super) const ROOT_USER: u32 = 0;

pub struct Mounted {
    pub vfs: Arc<Vfs>,
    pub mountpoint: String,
    pub options: toml::Table,
    /// How requests arrive; set when the session begins.
    pub transport: OnceLock<&'static str>,
    /// The time of the mount.
    pub since: Instant,
    pub counters: Counters,
    /// Requests that take long.
    pub jobs: Jobs,
    /// The reasons of the last refused requests.
    pub refusals: Refusals,
}

impl Mounted {
    /// A store that is mounted now.
    pub fn new(vfs: Arc<Vfs>, mountpoint: String, options: toml::Table) -> Mounted {
        Mounted {
            vfs,
            mountpoint,
            options,
            transport: OnceLock::new(),
            since: Instant::now(),
            counters: Counters::default(),
            jobs: Jobs::default(),
            refusals: Refusals::default(),
        }
    }

    pub fn store(&self) -> &Arc<Store> {
        self.vfs.store()
    }

    /// Whether requests arrive by rings.
    #[cfg(feature = "mount")]
    pub(super) fn has_rings(&self) -> bool {
        self.transport.get() == Some(&RINGS)
    }

    /// Whether a user is root or the owner of the mount.
    pub(super) fn is_run_by(&self, user: u32) -> bool {
        user == ROOT_USER || user == self.vfs.owner().uid
    }
}

/// The context of a request to a control file.
pub struct Context<'a> {
    pub mounted: &'a Mounted,
    pub view: &'a ControlView,
    /// The user ID of the caller.
    pub user: u32,
}

impl Context<'_> {
    /// The collection that the file belongs to.
    pub fn collection(&self) -> Result<&Arc<Collection>> {
        match &self.view.scope {
            Scope::Collection(collection) => Ok(collection),
            _ => Err(no_file()),
        }
    }

    /// For a control file in a tree: the file of the collection that it represents.
    pub fn file(&self) -> Result<FileView> {
        self.view.file().ok_or_else(no_file)
    }
}

/// The error where no control file has the name.
pub(super) fn no_file() -> Error {
    Error::new(ErrorKind::NotFound, "there is no such control file")
}
