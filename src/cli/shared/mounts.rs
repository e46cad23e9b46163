//! Which file systems are mounted where, as the kernel says.

use std::fs;
use std::path::{Path, PathBuf};

use crate::model::{Error, ErrorKind, Result};
use crate::store::disk::mounted::{MountedThere, mounted, topmost};

/// A mounted tierfs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cli) struct Mounted {
    /// Where.
    pub mountpoint: PathBuf,
    /// The store.
    pub store: PathBuf,
}

/// Names, in the error of a store that is in use, where it is mounted: those who only
/// read it leave no note of that.
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
            format!("{text}; it is mounted on {places}: unmount it first (tierfs umount)"),
        ),
        _ => busy,
    }
}

/// The tierfs that a path lies on, if it lies on one.
pub(in crate::cli) fn mount_of(path: &Path) -> Result<Option<Mounted>> {
    let absolute = std::path::absolute(path).map_err(|error| Error::io(path.display(), error))?;
    // The mount itself is not asked: its daemon may be gone.
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

/// The mount that a path is the root of, or where the store that it is is mounted to be
/// written.
pub(in crate::cli) fn mount_for(path: &Path) -> Result<Option<Mounted>> {
    if let Some(mounted) = mount_of(path)? {
        if std::path::absolute(path).is_ok_and(|path| path == mounted.mountpoint) {
            return Ok(Some(mounted));
        }
        let (path, root) = (path.display(), mounted.mountpoint.display());
        return Err(Error::invalid(format!(
            "{path} is neither a store nor the root of a mount; that is {root}"
        )));
    }
    let Ok(store) = fs::canonicalize(path) else { return Ok(None) };
    let text = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| Error::io("reading /proc/self/mountinfo", error))?;
    let found = mounted(&text).find(|mounted| mounted.is_ours() && mounted.source == store);
    Ok(found.map(|found| Mounted { mountpoint: found.mountpoint, store }))
}

/// Refuses a path that lies on a tierfs: a daemon that reads itself would wait for
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
