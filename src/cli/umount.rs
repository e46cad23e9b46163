//! `tierfs umount`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::cli::Done;
use crate::cli::shared::mounts::mount_of;
use crate::cli::shared::process::Process;
use crate::model::{Error, ErrorKind, Result};
use crate::store::disk::files::FileDisk;
use crate::store::disk::{Disk, Lock};

/// Unmount a store and wait until its daemon has let go of it.
///
/// Example: tierfs umount /mnt/tensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// Take the name away now; the daemon ends when the last file is closed
    #[arg(long)]
    lazy: bool,
}

/// After this the daemon is said not to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Programs that look at all mounts, as `df` does, use each for a moment.
const PASSING_USE: Duration = Duration::from_millis(500);

const BETWEEN_TRIES: Duration = Duration::from_millis(10);

impl Args {
    pub fn run(self) -> Result<Done> {
        let shown = self.mountpoint.display();
        let mounted = mount_of(&self.mountpoint)?;
        let mounted = mounted
            .filter(|mounted| {
                std::path::absolute(&self.mountpoint).is_ok_and(|path| same(&path, &mounted.mountpoint))
            })
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("no tierfs is mounted on {shown}")))?;
        // Asked while it can answer. Others may read the store too, so that its lock does not tell.
        let daemon = Process::of_mount(&mounted).filter(|_| !self.lazy);
        unmount(&mounted.mountpoint, self.lazy)?;
        if self.lazy {
            return Ok(Done::Well);
        }
        let disk = FileDisk::new(&mounted.store);
        let until = Instant::now() + PATIENCE;
        while let Some(daemon) = daemon.as_ref().filter(|daemon| !daemon.has_ended()) {
            if Instant::now() >= until {
                let text = format!("{shown} is unmounted, but its daemon has not ended: {daemon}");
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
                let text = format!("{} is unmounted, but {} still has its store", shown, holder.trim_end());
                return Err(Error::new(ErrorKind::Busy, text));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Done::Well)
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
                    "{shown} is in use: close what has files open there (fuser -vm {shown}), or use --lazy"
                );
                return Err(Error::new(ErrorKind::Busy, text));
            }
            Err(rustix::io::Errno::BUSY) => {}
            // Users without privilege have a helper for it.
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

/// Has the helper unmount it; only the last time it says what is wrong. Whether it did.
fn helped(mountpoint: &std::path::Path, lazy: bool, is_last: bool) -> Result<bool> {
    let mut helper = std::process::Command::new("fusermount3");
    helper.arg(if lazy { "-uz" } else { "-u" }).arg(mountpoint);
    if !is_last {
        helper.stderr(std::process::Stdio::null());
    }
    let status = helper.status().map_err(|error| Error::io("running fusermount3", error))?;
    Ok(status.success())
}
