//! `tierfs umount`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::cli::Outcome;
use crate::cli::common::connection::{Connection, Daemon, daemons, elsewhere, noted_mountpoint, where_else};
use crate::cli::common::lost_writes;
use crate::cli::common::mounts::{mount_dead_or_alive, resolved};
use crate::cli::common::output::complain;
use crate::cli::common::process::{Asked, Process};
use crate::format::mountinfo::mounted;
use crate::fs::unmount_by_helper;
use crate::model::{Error, ErrorKind, Result};
use crate::store::disk::files::FileDisk;
use crate::store::disk::{Disk, Lock};

/// Unmount a store and wait until its daemon has released it.
///
/// If the daemon has ended, this removes the mount that it left, even while programs use it.
///
/// Example: tierfs umount /mnt/tensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// The mount point
    mountpoint: PathBuf,
    /// Detach the mount point now; the daemon ends when the last file is closed
    #[arg(long)]
    lazy: bool,
    /// End the mount though programs use it, here or in another mount namespace, or its daemon does not answer: their
    /// requests fail. Answered writes stay
    #[arg(long, conflicts_with = "lazy")]
    force: bool,
}

/// How long to wait for the daemon to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// After so long the user is told what is waited for. A mount that is to end by force is aborted.
const SILENCE: Duration = Duration::from_secs(1);
/// After so long by force a daemon is killed. Writes that it has answered are in the log.
const GRACE: Duration = Duration::from_secs(20);

/// How long to retry while the mount is busy: programs such as `df` use each mount for a moment.
const PASSING_USE: Duration = Duration::from_millis(500);

const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// A mount whose daemon is about to end.
struct Ending {
    connection: Connection,
    store: PathBuf,
    daemon: Option<Process>,
    /// An earlier mount has left a note of lost writes.
    has_note: bool,
}

impl Ending {
    /// Whether the number of the connection is that of a later mount.
    fn is_of_another_mount(&self) -> bool {
        let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        mounted(&text).any(|there| there.device == self.connection.0 && there.source != self.store)
    }
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let mounted = mount_dead_or_alive(&self.mountpoint)?;
        let real = resolved(&self.mountpoint)?;
        let mounted = mounted.filter(|mounted| mounted.mountpoint == real);
        let Some(mounted) = mounted else { return self.end_elsewhere() };
        let (connection, store) = (mounted.connection, mounted.store.clone());
        let mut daemon = connection.daemon();
        if daemon.is_none() && !self.force && !self.lazy {
            // Asked while it can answer. The store's lock is not enough: other processes may hold it shared.
            daemon = match Process::asked(&mounted.mountpoint) {
                // No data can be written any more, so there is no reason to wait for its users.
                Asked::Gone => {
                    unmount(&mounted.mountpoint, Detach::Now)?;
                    return Ok(Outcome::Succeeded);
                }
                Asked::Answers(process) => Some(process),
                Asked::Silent => None,
            };
        }
        let has_note = lost_writes::of_note(&FileDisk::new(&store)).is_some();
        let detach = if self.lazy || self.force { Detach::Now } else { Detach::Unused };
        unmount(&mounted.mountpoint, detach)?;
        if self.lazy {
            return Ok(Outcome::Succeeded);
        }
        self.wait(&Ending { connection, store, daemon, has_note })
    }

    /// Ends a mount that is not mounted here, but whose daemon has not ended.
    fn end_elsewhere(&self) -> Result<Outcome> {
        let shown = self.mountpoint.display();
        let none = || Error::new(ErrorKind::NotFound, format!("no tierfs is mounted on {shown}"));
        let mountpoint = resolved(&self.mountpoint)?;
        let ending = noted(&mountpoint).or_else(|| {
            let user = elsewhere().into_iter().find(|user| user.mounted.mountpoint == mountpoint)?;
            let connection = Connection(user.mounted.device);
            let (store, daemon) = (user.mounted.source, connection.daemon());
            Some(Ending { connection, store, daemon, has_note: false })
        });
        let ending = ending.ok_or_else(none)?;
        if self.force {
            return self.wait(&ending);
        }
        let text = format!("no tierfs is mounted on {shown} here; {}", self.where_else(ending.connection));
        Err(Error::new(ErrorKind::Busy, text))
    }

    fn where_else(&self, connection: Connection) -> String {
        where_else(connection, self.mountpoint.as_os_str())
    }

    /// Waits until the daemon has ended and the store is free. By force the connection is aborted after a while.
    fn wait(&self, ending: &Ending) -> Result<Outcome> {
        let (shown, began) = (self.mountpoint.display(), Instant::now());
        let (mut is_told, mut is_killed) = (false, false);
        loop {
            let who = match &ending.daemon {
                Some(daemon) if !daemon.has_ended() => Some(format!("its daemon, {daemon}, has not ended")),
                _ => holder(&ending.store)?.map(|holder| format!("{holder} still uses its store")),
            };
            let Some(who) = who else {
                return match lost_writes::of_note(&FileDisk::new(&ending.store)).filter(|_| !ending.has_note)
                {
                    Some(lost) => {
                        let text = format!("{shown} is unmounted, but without the last {lost}");
                        Err(Error::new(ErrorKind::Full, text))
                    }
                    None => Ok(Outcome::Succeeded),
                };
            };
            if began.elapsed() >= PATIENCE {
                let text = format!("{shown} is unmounted, but {who}");
                let text = match ending.connection.user_elsewhere() {
                    Some(_) => format!("{text}: {}", self.where_else(ending.connection)),
                    None => text,
                };
                return Err(Error::new(ErrorKind::Busy, text));
            }
            if began.elapsed() >= SILENCE && !is_told {
                is_told = true;
                if self.force && !ending.is_of_another_mount() {
                    let aborted = ending.connection.abort();
                    aborted
                        .map_err(|error| Error::io(format!("aborting the connection of {shown}"), error))?;
                } else if let Some(user) = ending.connection.user_elsewhere() {
                    complain(&format!(
                        "tierfs: {shown} is still used in another mount namespace: {user}; waiting for its end, \
                         at most {} s",
                        PATIENCE.as_secs()
                    ));
                }
            }
            if let Some(daemon) = ending.daemon.as_ref().filter(|_| self.force && !is_killed)
                && began.elapsed() >= GRACE
            {
                is_killed = true;
                daemon.kill().map_err(|error| Error::io(format!("killing {daemon}"), error))?;
            }
            std::thread::sleep(BETWEEN_TRIES);
        }
    }
}

/// The daemon that has noted this mount point in the lock of its store.
fn noted(mountpoint: &Path) -> Option<Ending> {
    daemons().find_map(|Daemon { process, connection }| {
        let store = process.open_files().find_map(|path| {
            let store = path.parent().filter(|_| path.file_name().is_some_and(|name| name == "lock"))?;
            let note = std::fs::read_to_string(&path).ok()?;
            let is_it = note.starts_with(&format!("{process},")) && noted_mountpoint(&note)? == mountpoint;
            is_it.then(|| store.to_owned())
        })?;
        Some(Ending { connection, store, daemon: Some(process), has_note: false })
    })
}

/// The holder of a store's lock.
fn holder(store: &Path) -> Result<Option<String>> {
    match FileDisk::new(store).lock(Lock::Shared, "") {
        Ok(_) => Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            Ok(Some(error.to_string().trim_end().to_owned()))
        }
        Err(error) => Err(Error::io(format!("waiting for {}", store.display()), error)),
    }
}

/// When a mount point is detached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detach {
    /// Once no program uses the mount.
    Unused,
    Now,
}

fn unmount(mountpoint: &Path, detach: Detach) -> Result<()> {
    let is_lazy = detach == Detach::Now;
    let flags =
        if is_lazy { rustix::mount::UnmountFlags::DETACH } else { rustix::mount::UnmountFlags::empty() };
    let shown = mountpoint.display();
    let until = Instant::now() + PASSING_USE;
    loop {
        let is_last = is_lazy || Instant::now() >= until;
        match rustix::mount::unmount(mountpoint, flags) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::BUSY) if is_last => {
                let text = format!(
                    "{shown} is in use; end the programs that have files open there (fuser -vm {shown}), or use \
                     --lazy, or --force, which makes their requests fail"
                );
                return Err(Error::new(ErrorKind::Busy, text));
            }
            Err(rustix::io::Errno::BUSY) => {}
            // Unprivileged users unmount with the helper of libfuse.
            Err(rustix::io::Errno::PERM) => {
                if helped(mountpoint, is_lazy, is_last)? {
                    return Ok(());
                }
                if is_last {
                    let text = format!("fusermount3 could not unmount {shown}");
                    return Err(Error::new(ErrorKind::Busy, text));
                }
            }
            Err(error) => return Err(Error::io(format!("unmounting {shown}"), error.into())),
        }
        std::thread::sleep(BETWEEN_TRIES);
    }
}

/// Unmounts with `fusermount3` and returns whether that succeeded. Shows the helper's messages only
/// on the last try.
fn helped(mountpoint: &Path, is_lazy: bool, is_last: bool) -> Result<bool> {
    let messages = if is_last { Stdio::inherit() } else { Stdio::null() };
    unmount_by_helper(mountpoint, is_lazy, messages).map_err(|error| Error::io("running fusermount3", error))
}
