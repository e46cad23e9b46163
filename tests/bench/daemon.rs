//! Mounts for the time of a measurement: tierfs, the empty daemon, other file systems.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;
use crate::place::Place;

/// The option for the memory that decoded files take.
pub const DECODED_CACHE: &str = "--decoded-cache";

/// Time limit for a mount to appear and to disappear.
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(2);

/// A mount, until it is dropped.
pub struct Mounted {
    mountpoint: PathBuf,
    /// The daemon, if there is one.
    child: Option<Child>,
}

impl Mounted {
    /// A store, by the program that is shipped. It has no decoded cache unless the options name one, so that
    /// the daemon serves the reads of encoded files.
    pub fn tierfs(place: &Place, store: &Path, options: &[&str]) -> Result<Mounted> {
        let mountpoint = place.new_directory("mnt")?;
        let mut command = Command::new(&place.tierfs);
        command.args(["mount", "-f"]).args(options);
        if !options.contains(&DECODED_CACHE) {
            command.args([DECODED_CACHE, "off"]);
        }
        command.arg(store).arg(&mountpoint);
        Mounted::begin(command, mountpoint)
    }

    /// The daemon that answers from memory: the file `big` of this many bytes, and this many files of 4 KiB.
    pub fn empty(place: &Place, bytes: u64, files: u32) -> Result<Mounted> {
        let mountpoint = place.new_directory("mnt")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("empty").arg(&mountpoint).args([bytes.to_string(), files.to_string(), "4096".to_owned()]);
        let mounted = Mounted::begin(command, mountpoint)?;
        raise_read_ahead(&mounted.mountpoint);
        Ok(mounted)
    }

    /// Starts a daemon that stays in the foreground, and waits until something is mounted.
    pub fn begin(mut command: Command, mountpoint: PathBuf) -> Result<Mounted> {
        let before = device(&mountpoint)?;
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut child = child.map_err(|error| format!("starting {name}: {error}"))?;
        let until = Instant::now() + PATIENCE;
        loop {
            if device(&mountpoint).is_ok_and(|now| now != before) {
                return Ok(Mounted { mountpoint, child: Some(child) });
            }
            if let Some(status) = child.try_wait()? {
                return Err(format!("{name} mounted nothing and ended: {status}").into());
            }
            if Instant::now() > until {
                child.kill()?;
                child.wait()?;
                return Err(format!("{name} mounted nothing").into());
            }
            std::thread::sleep(STEP);
        }
    }

    /// A mount by a command that ends once the mount is there.
    pub fn by_command(mut command: Command, mountpoint: PathBuf) -> Result<Mounted> {
        let output = command.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        Ok(Mounted { mountpoint, child: None })
    }

    /// A path in it.
    pub fn path(&self, below: &str) -> PathBuf {
        self.mountpoint.join(below)
    }

    /// The number of the daemon's process.
    pub fn process(&self) -> Result<u32> {
        Ok(self.child.as_ref().ok_or("no daemon")?.id())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The mount is removed, and the daemon then ends by itself.
        let path = &self.mountpoint;
        let is_gone = |program: &str, arguments: &[&str]| {
            let status = Command::new(program).args(arguments).arg(path).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        };
        if !is_gone("umount", &[]) && !is_gone("fusermount3", &["-u", "-z"]) && !is_gone("umount", &["-l"]) {
            eprintln!("{} could not be unmounted", path.display());
        }
        let until = Instant::now() + PATIENCE;
        while let Some(child) = &mut self.child {
            match child.try_wait() {
                Ok(None) if Instant::now() < until => std::thread::sleep(STEP),
                Ok(None) => {
                    eprintln!("the daemon of {} does not end: it is killed", path.display());
                    child.kill().and_then(|()| child.wait()).map(drop).unwrap_or_default();
                    break;
                }
                _ => break,
            }
        }
        fs::remove_dir(path).unwrap_or_default();
    }
}

fn device(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path)?.dev())
}

/// As tierfs does with its own mounts. Not every user may do this.
fn raise_read_ahead(mountpoint: &Path) {
    let Ok(device) = device(mountpoint) else { return };
    let (major, minor) = (libc::major(device), libc::minor(device));
    fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), "4096").unwrap_or_default();
}
