//! Finds mounted tierfs file systems in /proc/self/mountinfo.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::cli::common::connection::{Connection, daemons, noted_mountpoint, where_else};
use crate::cli::common::remote;
use crate::format::mountinfo::{MountedThere, mounted, topmost};
use crate::model::{Error, ErrorKind, Result};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cli) struct Mounted {
    pub mountpoint: PathBuf,
    /// The directory of the store.
    pub store: PathBuf,
    /// The kernel's connection with the daemon.
    pub connection: Connection,
}

impl From<MountedThere> for Mounted {
    fn from(found: MountedThere) -> Mounted {
        let connection = Connection(found.device);
        Mounted { mountpoint: found.mountpoint, store: found.source, connection }
    }
}

/// The mount points of a store here.
pub(in crate::cli) fn mountpoints_of(store: &Path) -> Vec<PathBuf> {
    let Ok(store) = fs::canonicalize(store) else { return Vec::new() };
    let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let ours = mounted(&text).filter(|mounted| mounted.is_ours() && mounted.source == store);
    ours.map(|mounted| mounted.mountpoint).collect()
}

/// Adds the mount points of a store to the error that it is in use. Read-only mounts leave no note in
/// the lock file, so the error alone may not name them.
pub(in crate::cli) fn with_mounts(busy: Error, store: &Path) -> Error {
    let found = || {
        let places: Vec<String> =
            mountpoints_of(store).iter().map(|place| place.display().to_string()).collect();
        (!places.is_empty()).then(|| places.join(" and "))
    };
    let text = busy.to_string();
    if busy.kind() != ErrorKind::Busy {
        return busy;
    }
    match (found(), noted_mountpoint(&text)) {
        (None, Some(mountpoint)) => {
            let begin = text.split(", which has it").next().unwrap_or_default();
            let by_note = |process: &str| begin.ends_with(process);
            let daemon = daemons().find(|daemon| by_note(&daemon.process.to_string()));
            let truth = daemon.map(|daemon| where_else(daemon.connection, mountpoint.as_os_str()));
            let truth = truth.unwrap_or_else(|| format!("its mount is not on {} here", mountpoint.display()));
            Error::new(ErrorKind::Busy, format!("{begin}; {truth}"))
        }
        (Some(places), None) => Error::new(
            ErrorKind::Busy,
            format!("{text}; it is mounted on {places}; unmount it first (tierfs umount)"),
        ),
        _ => busy,
    }
}

/// The mount point that the holder of the store's lock has noted, if the store is mounted there.
pub(in crate::cli) fn mounted_at(busy: &Error) -> Option<PathBuf> {
    let noted = noted_mountpoint(&busy.to_string())?;
    let found = mount_dead_or_alive(&noted).ok().flatten()?;
    (found.mountpoint == noted).then_some(noted)
}

/// Whether an error shows that the daemon of a mount has ended.
fn is_gone(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    [rustix::io::Errno::NOTCONN, rustix::io::Errno::CONNABORTED]
        .iter()
        .any(|known| number == Some(known.raw_os_error()))
}

impl Mounted {
    /// Whether the daemon has ended, after which every access to the mount fails.
    pub fn is_dead(&self) -> bool {
        // The kernel caches attributes, but always asks the daemon for statfs(2).
        rustix::fs::statfs(&self.mountpoint).is_err_and(|errno| is_gone(&errno.into()))
    }

    /// Whether the kernel closes the mount to this user. It then asks nobody, and answers statfs(2) alone.
    pub fn is_closed(&self) -> bool {
        let is_denied = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        fs::symlink_metadata(&self.mountpoint).is_err_and(is_denied)
            && rustix::fs::statfs(&self.mountpoint).is_ok()
    }

    /// The error for a use of a mount that is closed to this user.
    fn how_to_open(&self) -> Error {
        let shown = self.mountpoint.display();
        let text =
            format!("{shown} is closed to you; its user can open it to others: tierfs mount --allow-other");
        Error::new(ErrorKind::Forbidden, text)
    }

    /// The error for a use of a mount whose daemon has ended.
    pub fn how_to_recover(&self) -> Error {
        let text = format!("the daemon of {} has ended; {}", self.mountpoint.display(), self.remedy());
        Error::new(ErrorKind::Busy, text)
    }

    /// The commands to run after the daemon has ended.
    pub fn remedy(&self) -> String {
        let (shown, store) = (self.mountpoint.display(), self.store.display());
        format!(
            "remove the dead mount with `tierfs umount {shown}`, then mount again with `tierfs mount {store} \
             {shown}`"
        )
    }
}

/// Replaces the error of an access to a mount whose daemon has ended by one that says how to recover.
pub(in crate::cli) fn explained(error: Error) -> Error {
    let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
    if !source.is_some_and(is_gone) {
        return error;
    }
    let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let ours = mounted(&text).filter(MountedThere::is_ours);
    let mut ours = ours.map(Mounted::from);
    match ours.find(|mounted| error.to_string().contains(&mounted.mountpoint.display().to_string())) {
        Some(mounted) if mounted.is_dead() => mounted.how_to_recover(),
        _ => error,
    }
}

/// The tierfs mount that a path lies on, if any. Fails, saying how to recover, if its daemon has ended, and if the mount
/// is closed to this user.
pub(in crate::cli) fn mount_of(path: &Path) -> Result<Option<Mounted>> {
    match mount_dead_or_alive(path)? {
        Some(mounted) if mounted.is_dead() => Err(mounted.how_to_recover()),
        Some(mounted) if mounted.is_closed() => Err(mounted.how_to_open()),
        found => Ok(found),
    }
}

/// The most links that a path is followed through, as in Linux.
const LINKS_MAX: usize = 40;

/// The absolute path without links, but a link that lies on a tierfs mount stays: commands act on the entry.
pub(in crate::cli) fn resolved(path: &Path) -> Result<PathBuf> {
    place_of(path).map(|(real, _)| real)
}

/// The tierfs mount that a path lies on, if any, even if its daemon has ended.
pub(in crate::cli) fn mount_dead_or_alive(path: &Path) -> Result<Option<Mounted>> {
    Ok(place_of(path)?.1.map(Mounted::from))
}

/// The resolved path, and the tierfs mount that it lies on. Nothing asks the daemon of a mount point, which may have ended.
fn place_of(path: &Path) -> Result<(PathBuf, Option<MountedThere>)> {
    let absolute = std::path::absolute(path).map_err(|error| Error::io(path.display(), error))?;
    let text =
        fs::read("/proc/self/mountinfo").map_err(|error| Error::io("reading /proc/self/mountinfo", error))?;
    let mut real = without_links_above(absolute);
    for _ in 0..LINKS_MAX {
        let mounted = topmost(&text, &real).filter(MountedThere::is_ours);
        if mounted.is_some() {
            return Ok((real, mounted));
        }
        let Ok(target) = fs::read_link(&real) else { break };
        real = without_links_above(real.parent().unwrap_or(&real).join(target));
    }
    Ok((real, None))
}

/// The path with its parent resolved.
fn without_links_above(absolute: PathBuf) -> PathBuf {
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => {
            fs::canonicalize(parent).map_or(absolute.clone(), |real| real.join(name))
        }
        // It ends with `..`.
        (Some(_), None) => fs::canonicalize(&absolute).unwrap_or(absolute),
        _ => absolute,
    }
}

/// The mount whose root is `path` or, if `path` is a store, a mount of that store.
///
/// Fails for a path below a mount point.
pub(in crate::cli) fn mount_for(path: &Path) -> Result<Option<Mounted>> {
    if let Some(mounted) = mount_of(path)? {
        if resolved(path)? == mounted.mountpoint {
            return Ok(Some(mounted));
        }
        let (path, root) = (path.display(), mounted.mountpoint.display());
        return Err(Error::invalid(format!(
            "{path} is neither a store nor a mount point; it lies on the mount {root}"
        )));
    }
    let Ok(store) = fs::canonicalize(path) else { return Ok(None) };
    let text =
        fs::read("/proc/self/mountinfo").map_err(|error| Error::io("reading /proc/self/mountinfo", error))?;
    let ours = mounted(&text).filter(|mounted| mounted.is_ours() && mounted.source == store);
    let mut ours = ours.map(Mounted::from);
    // A mount whose daemon has ended does not hold the store.
    Ok(ours.find(|mounted| !mounted.is_dead()))
}

/// Refuses a store that lies on a tierfs mount. A daemon that reads its own mount would wait for
/// itself.
pub(in crate::cli) fn refuse_own_mount(path: &Path) -> Result<()> {
    let Some(mounted) = mount_of(path)? else { return Ok(()) };
    let (path, store) = (path.display(), mounted.store.display());
    let point = mounted.mountpoint.display();
    if remote::url(&mounted.store).is_some() {
        return Err(Error::invalid(format!(
            "{point} shows the remote {store}, which is only read; to change a copy of a collection: \
             tierfs clone {store} TENANT/COLLECTION STORE"
        )));
    }
    Err(Error::invalid(format!(
        "the store {path} lies on the tierfs mounted on {point}; to name the store that is mounted there: {store}"
    )))
}

/// Every tierfs mount of this machine.
pub(in crate::cli) fn all_mounts() -> Result<Vec<Mounted>> {
    let text =
        fs::read("/proc/self/mountinfo").map_err(|error| Error::io("reading /proc/self/mountinfo", error))?;
    let found = mounted(&text).filter(MountedThere::is_ours);
    Ok(found.map(Mounted::from).collect())
}

/// The mount that contains a path; without a path, all mounts except those whose daemon has ended. Fails without
/// such a mount.
pub(in crate::cli) fn mounts_of(path: Option<&Path>) -> Result<Vec<Mounted>> {
    let Some(path) = path else {
        let (dead, all): (Vec<_>, Vec<_>) = all_mounts()?.into_iter().partition(Mounted::is_dead);
        return match dead.first() {
            _ if !all.is_empty() => Ok(all),
            Some(dead) => Err(dead.how_to_recover()),
            None => Err(Error::new(
                ErrorKind::NotFound,
                "no store is mounted; to mount one: tierfs mount STORE MOUNTPOINT",
            )),
        };
    };
    let none = || {
        let text = format!("{} is not on a tierfs mount; tierfs status lists the mounts", path.display());
        Error::new(ErrorKind::NotFound, text)
    };
    Ok(vec![mount_of(path)?.ok_or_else(none)?])
}
