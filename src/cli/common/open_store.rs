//! Opens a store that is not mounted.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::cli::common::connection::{elsewhere, noted_mountpoint};
use crate::cli::common::mounts::{mountpoints_of, with_mounts};
use crate::cli::common::remote;
use crate::engine::Engine;
use crate::model::{Error, ErrorKind, Result};
use crate::store::disk::files::FileDisk;
use crate::store::{Access, Store};

/// Longest wait for a daemon that has been unmounted: it records the last writes before it closes its store.
const CLOSING_MAX: Duration = Duration::from_secs(5);
/// Longest wait for a daemon that was killed.
const DYING_MAX: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);

/// Opens the store at `path`. `note` tells processes that find it locked what this one does. umount(8) does not wait
/// for the daemon, so a store that a daemon is about to close is waited for. `Busy` if it stays locked, with its mount
/// points.
pub(in crate::cli) fn open_store(path: &Path, access: Access, note: &str) -> Result<Store> {
    let begun = Instant::now();
    let waits = |busy: &Error| begun.elapsed() < CLOSING_MAX && is_closing(busy, path);
    open_when_free(FileDisk::new(path), access, note, waits).map_err(|error| with_mounts(error, path))
}

/// Opens the store of a mount whose daemon has died. The dying process may have the lock for a while: `meanwhile` is called
/// then, again and again.
pub(in crate::cli) fn open_left_store(
    path: &Path,
    access: Access,
    note: &str,
    mut meanwhile: impl FnMut(Duration),
) -> Result<Store> {
    let begun = Instant::now();
    let waits = |_: &Error| {
        meanwhile(begun.elapsed());
        begun.elapsed() < DYING_MAX
    };
    open_when_free(FileDisk::new(path), access, note, waits)
}

/// Opens a store. Tries again while it is locked and `waits` says so.
pub(in crate::cli) fn open_when_free(
    disk: FileDisk,
    access: Access,
    note: &str,
    mut waits: impl FnMut(&Error) -> bool,
) -> Result<Store> {
    loop {
        match Store::open(Arc::new(disk.clone()), access, note) {
            Err(busy) if busy.kind() == ErrorKind::Busy && waits(&busy) => thread::sleep(PAUSE),
            opened => {
                let store = opened?;
                if access == Access::Write {
                    store.keep_trail();
                }
                return Ok(store);
            }
        }
    }
}

/// Opens a store and an engine that changes it. `doing` tells other processes what this one does.
pub(in crate::cli) fn open_engine(path: &Path, doing: &str) -> Result<Engine> {
    let store = open_store(path, Access::Write, &format!("process {}, which {doing}", std::process::id()))?;
    remote::fetch_clones(&store);
    Ok(Engine::new(Arc::new(store)))
}

/// Whether the daemon that has the store open has lost its mount.
fn is_closing(busy: &Error, path: &Path) -> bool {
    let is_daemons = || noted_mountpoint(&busy.to_string()).is_some();
    let is_elsewhere = || {
        let store = std::fs::canonicalize(path).unwrap_or_default();
        elsewhere().iter().any(|found| found.mounted.source == store)
    };
    busy.kind() == ErrorKind::Busy && is_daemons() && mountpoints_of(path).is_empty() && !is_elsewhere()
}
