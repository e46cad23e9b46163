//! `tierfs umount`.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::cli::Outcome;
use crate::cli::shared::mounts::mount_dead_or_alive;
use crate::cli::shared::process::Process;
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
}

/// How long to wait for the daemon to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long to retry while the mount is busy: programs such as `df` use each mount for a moment.
const PASSING_USE: Duration = Duration::from_millis(500);

const BETWEEN_TRIES: Duration = Duration::from_millis(10);

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let shown = self.mountpoint.display();
        let mounted = mount_dead_or_alive(&self.mountpoint)?;
        let mounted = mounted
            .filter(|mounted| {
                std::path::absolute(&self.mountpoint).is_ok_and(|path| same(&path, &mounted.mountpoint))
            })
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("no tierfs is mounted on {shown}")))?;
        if mounted.is_dead() {
            // No data can be written any more, so there is no reason to wait for its users.
            unmount(&mounted.mountpoint, true)?;
            return Ok(Outcome::Succeeded);
        }
        // Ask the daemon while it can answer. The store's lock is not enough: other processes may hold it
        // shared.
        let daemon = Process::of_mount(&mounted).filter(|_| !self.lazy);
        unmount(&mounted.mountpoint, self.lazy)?;
        if self.lazy {
            return Ok(Outcome::Succeeded);
        }
        let disk = FileDisk::new(&mounted.store);
        let until = Instant::now() + PATIENCE;
        while let Some(daemon) = daemon.as_ref().filter(|daemon| !daemon.has_ended()) {
            if Instant::now() >= until {
                let text = format!("{shown} is unmounted, but its daemon, {daemon}, has not ended");
                return Err(Error::new(ErrorKind::Busy, text));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        while let Err(error) = disk.lock(Lock::Shared, "") {
            if error.kind() != std::io::ErrorKind::WouldBlock {
                return Err(Error::io(format!("waiting for {}", mounted.store.display()), error));
            }
            if Instant::now() >= until {
                let holder = error.to_string();
                let text = format!("{} is unmounted, but {} still uses its store", shown, holder.trim_end());
                return Err(Error::new(ErrorKind::Busy, text));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Outcome::Succeeded)
    }
}

fn same(one: &std::path::Path, other: &std::path::Path) -> bool {
    let above = |path: &std::path::Path| path.parent().and_then(|parent| parent.canonicalize().ok());
    one == other || (one.file_name() == other.file_name() && above(one) == above(other))
}

fn unmount(mountpoint: &std::path::Path, lazy: bool) -> Result<()> {
    let flags = if lazy { rustix::mount::UnmountFlags::DETACH } else { rustix::mount::UnmountFlags::empty() };
    let shown = mountpoint.display();
    let until = Instant::now() + PASSING_USE;
    loop {
        let is_last = lazy || Instant::now() >= until;
        match rustix::mount::unmount(mountpoint, flags) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::BUSY) if is_last => {
                let text = format!(
                    "{shown} is in use; end the programs that have files open there (fuser -vm {shown}) or use --lazy"
                );
                return Err(Error::new(ErrorKind::Busy, text));
            }
            Err(rustix::io::Errno::BUSY) => {}
            // Unprivileged users unmount with the helper of libfuse.
            Err(rustix::io::Errno::PERM) => {
                if helped(mountpoint, lazy, is_last)? {
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
fn helped(mountpoint: &std::path::Path, lazy: bool, is_last: bool) -> Result<bool> {
    let messages = if is_last { Stdio::inherit() } else { Stdio::null() };
    unmount_by_helper(mountpoint, lazy, messages).map_err(|error| Error::io("running fusermount3", error))
}
