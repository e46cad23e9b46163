//! The kernel's connection of a mount with its daemon: who has its ends, and how to end it. Nothing here asks the daemon,
//! which may not answer.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::cli::common::process::Process;
use crate::format::mountinfo::{MountedThere, mounted};

/// Where the kernel shows the connections, if that is mounted.
const SHOWN_AT: &str = "/sys/fs/fuse/connections";

/// A connection, by the number that the kernel gives it: the minor number of the mount's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cli) struct Connection(pub u32);

impl Connection {
    /// The process that answers its requests; `None` if it has ended, if it is another user's, or if the kernel does not
    /// tell.
    pub fn daemon(self) -> Option<Process> {
        daemons().find(|daemon| daemon.connection == self).map(|daemon| daemon.process)
    }

    /// A program in another mount namespace that has the mount.
    pub fn user_elsewhere(self) -> Option<Elsewhere> {
        elsewhere().into_iter().find(|user| user.mounted.device == self.0)
    }

    /// Ends the connection: all its requests fail, and its daemon gets no more.
    pub fn abort(self) -> io::Result<()> {
        let shown = Path::new(SHOWN_AT).join(self.0.to_string()).join("abort");
        match fs::OpenOptions::new().write(true).open(shown) {
            Ok(mut file) => file.write_all(b"1"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.abort_in(&shown_privately()?),
            Err(error) => Err(error),
        }
    }

    fn abort_in(self, connections: &OwnedFd) -> io::Result<()> {
        let path = format!("{}/abort", self.0);
        match rustix::fs::openat(connections, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => rustix::io::write(&file, b"1").map(|_| ()).map_err(io::Error::from),
            // It has ended.
            Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The directory of the connections, mounted nowhere.
fn shown_privately() -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// The directories of the processes that this one may see, and their numbers.
fn processes() -> impl Iterator<Item = (u32, PathBuf)> {
    let numbered =
        |entry: fs::DirEntry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path()));
    fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok).filter_map(numbered)
}

/// A process that answers requests of a connection.
pub(in crate::cli) struct Daemon {
    pub process: Process,
    pub connection: Connection,
}

/// The daemons of all connections, as far as the kernel tells. Other programs are not looked at: the kernel keeps who asks
/// for the files of one that waits for a page of a mount.
pub(in crate::cli) fn daemons() -> impl Iterator<Item = Daemon> {
    let is_ours = |path: &Path| {
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        name.starts_with("tierfs") || name.starts_with("mount.tierfs")
    };
    processes().filter(move |(_, path)| is_ours(path)).filter_map(|(number, path)| {
        let is_device = |descriptor: &fs::DirEntry| {
            fs::read_link(descriptor.path()).is_ok_and(|target| target == Path::new("/dev/fuse"))
        };
        let descriptors = fs::read_dir(path.join("fd")).ok()?.filter_map(Result::ok);
        let connection = descriptors.filter(is_device).find_map(|descriptor| {
            let text = fs::read_to_string(path.join("fdinfo").join(descriptor.file_name())).ok()?;
            text.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
        })?;
        Some(Daemon { process: Process::of(number)?, connection: Connection(connection) })
    })
}

/// A mount in another mount namespace, and a process there.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Elsewhere {
    number: u32,
    name: String,
    pub mounted: MountedThere,
}

impl std::fmt::Display for Elsewhere {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "process {}, {}", self.number, self.name)
    }
}

/// The mounts in other mount namespaces.
pub(in crate::cli) fn elsewhere() -> Vec<Elsewhere> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let mut known: Vec<PathBuf> = namespace(Path::new("/proc/self")).into_iter().collect();
    let mut found = Vec::new();
    for (number, process) in processes() {
        let Some(namespace) = namespace(&process).filter(|one| !known.contains(one)) else { continue };
        let Ok(text) = fs::read(process.join("mountinfo")) else { continue };
        known.push(namespace);
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default().trim_end().to_owned();
        let of_one = |mounted| Elsewhere { number, name: name.clone(), mounted };
        found.extend(mounted(&text).filter(MountedThere::is_ours).map(of_one));
    }
    found
}

/// The mounts that daemons of this mount namespace serve, and that only other namespaces still have.
pub(in crate::cli) fn left_elsewhere() -> Vec<Elsewhere> {
    let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let here: Vec<u32> = mounted(&text).map(|mounted| mounted.device).collect();
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    let is_left =
        |daemon: &Daemon| !here.contains(&daemon.connection.0) && daemon.process.mount_namespace() == own;
    let mut left: Vec<u32> = daemons().filter(is_left).map(|daemon| daemon.connection.0).collect();
    if left.is_empty() {
        return Vec::new();
    }
    // Several namespaces may have one, which is told once.
    let mut is_next = |user: &Elsewhere| {
        let place = left.iter().position(|device| *device == user.mounted.device);
        place.map(|place| left.swap_remove(place)).is_some()
    };
    elsewhere().into_iter().filter(|user| is_next(user)).collect()
}

/// The mount point in the note that the holder of a store's lock has left.
pub(in crate::cli) fn noted_mountpoint(note: &str) -> Option<PathBuf> {
    note.split_once("which has it mounted on ").map(|(_, mountpoint)| PathBuf::from(mountpoint))
}

/// The state of a mount that is not on its mount point here.
pub(in crate::cli) fn where_else(connection: Connection, mountpoint: &OsStr) -> String {
    let shown = mountpoint.display();
    match connection.user_elsewhere() {
        Some(user) => format!(
            "{shown} is still used in another mount namespace: {user}; end that program, or run \
             tierfs umount --force {shown}"
        ),
        None => {
            format!("{shown} is not mounted here any more; tierfs umount --force {shown} ends its daemon")
        }
    }
}
