//! Finds mounted tierfs file systems in /proc/self/mountinfo.

use std::fs;
use std::path::{Path, PathBuf};

use crate::format::mountinfo::{MountedThere, mounted, topmost};
use crate::model::{Error, ErrorKind, Result};

/// A mounted tierfs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cli) struct Mounted {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// The directory of the store.
    pub store: PathBuf,
}

/// Adds the mount points of a store to the error that it is in use. Read-only mounts leave no note in
/// the lock file, so the error alone may not name them.
pub(in crate::cli) fn with_mounts(busy: Error, store: &Path) -> Error {
    let found = || -> Option<String> {
        let store = fs::canonicalize(store).ok()?;
        let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let ours = mounted(&text).filter(|mounted| mounted.is_ours() && mounted.source == store);
        let places: Vec<String> = ours.map(|mounted| mounted.mountpoint.display().to_string()).collect();
        (!places.is_empty()).then(|| places.join(" and "))
    };
    let text = busy.to_string();
    match (busy.kind(), found()) {
        (ErrorKind::Busy, Some(places)) if !text.contains("mounted on") => Error::new(
            ErrorKind::Busy,
            format!("{text}; it is mounted on {places}; unmount it first (tierfs umount)"),
        ),
        _ => busy,
    }
}

/// The tierfs mount that a path lies on, if any.
pub(in crate::cli) fn mount_of(path: &Path) -> Result<Option<Mounted>> {
    let absolute = std::path::absolute(path).map_err(|error| Error::io(path.display(), error))?;
    // Only the parent is resolved: the path may be a mount point whose daemon has ended.
    let real = match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => {
            fs::canonicalize(parent).map_or(absolute.clone(), |real| real.join(name))
        }
        _ => absolute,
    };
    let text = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| Error::io("reading /proc/self/mountinfo", error))?;
    let found = topmost(&text, &real).filter(MountedThere::is_ours);
    Ok(found.map(|found| Mounted { mountpoint: found.mountpoint, store: found.source }))
}

/// The mount whose root is `path` or, if `path` is a store, a mount of that store.
///
/// Fails for a path below a mount point.
pub(in crate::cli) fn mount_for(path: &Path) -> Result<Option<Mounted>> {
    if let Some(mounted) = mount_of(path)? {
        if std::path::absolute(path).is_ok_and(|path| path == mounted.mountpoint) {
            return Ok(Some(mounted));
        }
        let (path, root) = (path.display(), mounted.mountpoint.display());
        return Err(Error::invalid(format!(
            "{path} is neither a store nor a mount point; it lies on the mount {root}"
        )));
    }
    let Ok(store) = fs::canonicalize(path) else { return Ok(None) };
    let text = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| Error::io("reading /proc/self/mountinfo", error))?;
    let found = mounted(&text).find(|mounted| mounted.is_ours() && mounted.source == store);
    Ok(found.map(|found| Mounted { mountpoint: found.mountpoint, store }))
}

/// Refuses a path that lies on a tierfs mount. A daemon that reads its own mount would wait for
/// itself.
pub(in crate::cli) fn refuse_own_mount(what: &str, path: &Path) -> Result<()> {
    match mount_of(path)? {
        Some(mounted) => Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "the {what} {} lies on the tierfs mounted on {}",
                path.display(),
                mounted.mountpoint.display()
            ),
        )),
        None => Ok(()),
    }
}
