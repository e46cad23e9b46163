//! Shared by `tierfs compact` and `tierfs scrub`: the request to a daemon, and the engine of a store that is not
//! mounted.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::cli::shared::jobs::wait_for_new;
use crate::cli::shared::mounts::{Mounted, with_mounts};
use crate::engine::Engine;
use crate::model::{Error, Result};
use crate::store::disk::files::FileDisk;
use crate::store::{Access, Store};

/// Has the daemon do the work of the control file `name` on all collections, and waits. Returns one line
/// per collection.
pub(in crate::cli) fn run_by_daemon(mounted: &Mounted, name: &str) -> Result<String> {
    let path = mounted.mountpoint.join(".ctl").join(name);
    let failed = |error| Error::io(path.display(), error);
    wait_for_new(mounted, name, || fs::write(&path, "start").map_err(failed))?;
    fs::read_to_string(&path).map_err(failed)
}

/// Opens a store that is not mounted. `doing` tells processes that wait for its lock what this process
/// does.
pub(in crate::cli) fn open_engine(path: &Path, doing: &str) -> Result<Engine> {
    let note = format!("process {}, which {doing}", std::process::id());
    let store = Store::open(Arc::new(FileDisk::new(path)), Access::Write, &note);
    Ok(Engine::new(Arc::new(store.map_err(|error| with_mounts(error, path))?)))
}
