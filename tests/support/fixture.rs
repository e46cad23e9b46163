//! A mounted store with the collection `demo/m`, and a deadline.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::{Mounted, Place, answer, scale, tierfs, tierfs_limited};

/// Time for one test.
const DEADLINE: Duration = Duration::from_secs(120);

/// A store that is mounted for writing. At the deadline its daemon is killed, so a call that hangs fails.
pub struct Fixture {
    mounted: Option<Mounted>,
    pub place: Place,
    /// Limit of open files of the daemon; `None` leaves the limit of this process.
    descriptors: Option<u64>,
    /// For the daemon.
    pub environment: Vec<(String, String)>,
    _watchdog: Watchdog,
}

impl Default for Fixture {
    fn default() -> Fixture {
        Fixture::new()
    }
}

impl Fixture {
    /// A new store with an empty collection, mounted.
    pub fn new() -> Fixture {
        Fixture::lasting(DEADLINE)
    }

    /// Like `new`, with another deadline.
    pub fn lasting(deadline: Duration) -> Fixture {
        Fixture::unmounted_lasting(Place::new(), deadline).with_collection()
    }

    /// Like `new`, with a limit of open files for the daemon.
    pub fn limited(descriptors: u64) -> Fixture {
        let mut fixture = Fixture::unmounted(Place::new());
        fixture.descriptors = Some(descriptors);
        fixture.with_collection()
    }

    /// A place whose store, if any, is not mounted yet.
    pub fn unmounted(place: Place) -> Fixture {
        Fixture::unmounted_lasting(place, DEADLINE)
    }

    fn unmounted_lasting(place: Place, deadline: Duration) -> Fixture {
        let watchdog = Watchdog::over(&place.path(""), deadline);
        Fixture { mounted: None, place, descriptors: None, environment: Vec::new(), _watchdog: watchdog }
    }

    /// Makes the store and its collection, and mounts it.
    pub fn with_collection(mut self) -> Fixture {
        self.mount_with(&["--allow-other", "--create"]);
        fs::create_dir_all(self.path("")).unwrap();
        self
    }

    pub fn mount(&mut self) {
        self.mount_with(&["--allow-other"]);
    }

    /// Mounts it with these options.
    pub fn mount_with(&mut self, options: &[&str]) {
        let mut command = self.descriptors.map_or_else(tierfs, tierfs_limited);
        command.envs(self.environment.clone());
        self.mounted = Some(self.place.mount_by(&mut command, "mnt", options));
    }

    pub fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().unwrap()
    }

    /// A path in the collection, see [`Mounted::path`].
    pub fn path(&self, name: &str) -> PathBuf {
        self.mounted().path(Path::new("demo/m").join(name))
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// An attribute of a file, by the part of its name after `user.tierfs.`.
    #[track_caller]
    pub fn attribute(&self, name: &str, key: &str) -> String {
        crate::get(&self.path(name), key)
    }

    /// Kills the daemon as a crash would, and mounts again.
    pub fn crash(&mut self) {
        let mounted = self.mounted.take().unwrap();
        mounted.kill();
        drop(mounted);
        self.mount();
    }

    /// Unmounts, checks the store, and mounts again.
    pub fn remount(&mut self) {
        self.unmount();
        self.mount();
    }

    /// Unmounts, does something with the store, and mounts again.
    pub fn while_unmounted(&mut self, work: impl FnOnce(&Path)) {
        self.mounted.take().unwrap().unmount();
        work(&self.place.store());
        self.mount();
    }

    /// Unmounts, and checks the store with `tierfs fsck`, which must find it clean.
    pub fn unmount(&mut self) {
        self.mounted.take().unwrap().unmount();
        let mut fsck = self.descriptors.map_or_else(tierfs, tierfs_limited);
        answer(fsck.arg("fsck").arg(self.place.store())).ok();
    }

    /// The same at the end of a test.
    pub fn check(mut self) {
        self.unmount();
    }

    /// Bytes that the file system has allocated to a file of the stored collection; 0 if there is none.
    pub fn allocated(&self, name: &str) -> u64 {
        fs::metadata(self.place.store().join("demo/m").join(name)).map_or(0, |found| found.blocks() * 512)
    }

    /// The number of data files of the collection.
    pub fn data_files(&self) -> usize {
        fs::read_dir(self.place.store().join("demo/m/data")).unwrap().count()
    }
}

/// Kills the daemons of a directory at a deadline, unless it is dropped before.
struct Watchdog {
    _end: Sender<()>,
}

impl Watchdog {
    /// The deadline is longer in long runs, by [`scale`].
    fn over(directory: &Path, deadline: Duration) -> Watchdog {
        let deadline = deadline * scale();
        let (end, ended) = channel();
        let directory = directory.to_str().unwrap().to_owned();
        std::thread::spawn(move || {
            if ended.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the test in {directory} hangs: its daemons are killed after {deadline:?}");
                kill_daemons(&directory);
            }
        });
        Watchdog { _end: end }
    }
}

fn kill_daemons(directory: &str) {
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if process != std::process::id() as i32 && String::from_utf8_lossy(&line).contains(directory) {
            // SAFETY: kill takes two numbers and touches no memory of this process.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
    }
}
