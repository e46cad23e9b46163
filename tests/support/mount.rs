//! Temporary stores and mounts of them.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{Answer, PATIENCE, answer, run, tierfs, wait_until};

/// With this in the environment, mounts have a decoded cache of that size and decode every file at its open. A test that
/// chooses the size itself passes it as `-o decoded_cache`, which counts.
const DECODED_CACHE: &str = "TIERFS_TEST_DECODED_CACHE";

/// How requests of mounts arrive: `uring`, or else `classic`, so that both are tested on every machine that has both. A test
/// that chooses itself passes `-o transport`, which counts.
const TRANSPORT: &str = "TIERFS_TEST_TRANSPORT";

/// The options of a mount that [`DECODED_CACHE`] asks for.
pub fn decoded_options() -> Vec<OsString> {
    let options = |budget| vec!["--decode-all".into(), "--decoded-cache".into(), budget];
    std::env::var_os(DECODED_CACHE).map_or_else(Vec::new, options)
}

/// A temporary directory with a store in it.
pub struct Place {
    directory: TempDir,
}

impl Default for Place {
    fn default() -> Place {
        Place::new()
    }
}

impl Place {
    pub fn new() -> Place {
        assert!(Path::new("/dev/fuse").exists(), "/dev/fuse is missing, and the test mounts a store");
        Place { directory: TempDir::with_prefix("tierfs-").unwrap() }
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// Writes a file below the directory, and makes its parents.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Runs `tierfs import`, which may fail.
    pub fn try_import(&self, collection: &str, paths: &[&Path], options: &[&str]) -> Answer {
        let mut command = tierfs();
        command.arg("import").arg(self.store()).arg(collection).args(paths).args(options);
        answer(&mut command)
    }

    /// Runs `tierfs import`, which must succeed.
    pub fn import(&self, collection: &str, paths: &[&Path], options: &[&str]) {
        self.try_import(collection, paths, options).ok();
    }

    /// Mounts the store on the directory `mnt`.
    pub fn mount(&self, options: &[&str]) -> Mounted {
        self.mount_on("mnt", options)
    }

    /// Mounts the store on another directory.
    pub fn mount_on(&self, name: &str, options: &[&str]) -> Mounted {
        self.mount_by(&mut tierfs(), name, options)
    }

    /// Mounts the store with a command that runs the program, for example one with limits.
    pub fn mount_by(&self, command: &mut Command, name: &str, options: &[&str]) -> Mounted {
        self.mount_store_by(command, self.store(), name, options)
    }

    /// Mounts another store, or a remote.
    pub fn mount_store_by(
        &self,
        command: &mut Command,
        store: PathBuf,
        name: &str,
        options: &[&str],
    ) -> Mounted {
        let mountpoint = self.path(name);
        fs::create_dir_all(&mountpoint).unwrap();
        let log = self.path(format!("{name}.log"));
        let mounted = Mounted { mountpoint, store, log };
        command.arg("mount").arg(&mounted.store).arg(&mounted.mountpoint).arg("--log").arg(&mounted.log);
        command.arg("--transport").arg(std::env::var_os(TRANSPORT).unwrap_or_else(|| "classic".into()));
        answer(command.args(decoded_options()).args(options)).ok();
        mounted
    }
}

/// A mount. Dropping it kills its daemon and unmounts it lazily.
pub struct Mounted {
    pub mountpoint: PathBuf,
    pub store: PathBuf,
    log: PathBuf,
}

impl Mounted {
    /// A path in the mount. For the plain name of a tensor, and for a name that only a tensor has, it leads through
    /// `.tensors`, where tensors are written too.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.mountpoint.join(&name);
        self.in_tensors(&path, name.as_ref()).unwrap_or(path)
    }

    fn in_tensors(&self, path: &Path, name: &Path) -> Option<PathBuf> {
        let names: Vec<&str> = name.to_str()?.split('/').collect();
        if names.len() < 3 || names.iter().any(|name| name.is_empty() || name.starts_with('.')) {
            return None;
        }
        let (below, number) = (2..names.len()).rev().find_map(|at| {
            let (directory, tensor) = names.split_at(at);
            let below = self.mountpoint.join(directory.join("/")).join(".tensors").join(tensor.join("/"));
            let found = fs::symlink_metadata(&below).ok().filter(|found| found.is_file())?;
            Some((below, found.ino()))
        })?;
        match fs::symlink_metadata(path) {
            Ok(found) => (found.ino() == number).then_some(below),
            Err(error) => (error.kind() == ErrorKind::NotFound).then_some(below),
        }
    }

    /// The process of the daemon, found by the mount point in its arguments.
    pub fn daemon(&self) -> Option<i32> {
        use std::os::unix::ffi::OsStrExt;
        let wanted = self.mountpoint.as_os_str().as_bytes();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // The process may have ended meanwhile.
            let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
            let arguments: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            let serves = arguments.contains(&b"--announce".as_slice()) && arguments.contains(&wanted);
            if serves {
                return Some(process);
            }
        }
        None
    }

    pub fn signal(&self, signal: i32) {
        if let Some(process) = self.daemon() {
            // SAFETY: kill takes two numbers and touches no memory of this process.
            unsafe { libc::kill(process, signal) };
        }
    }

    /// Kills the daemon as a crash would, and waits until it has ended.
    pub fn kill(&self) {
        let process = self.daemon();
        self.signal(libc::SIGKILL);
        // The kernel releases the locks with the last thread, later than it clears the arguments.
        let runs = |process: i32| {
            let threads = fs::read_dir(format!("/proc/{process}/task"));
            threads.into_iter().flatten().flatten().any(|thread| {
                let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
            })
        };
        wait_until("the end of the killed daemon", || !process.is_some_and(runs));
        let Ok(lock) = fs::File::open(self.store.join("lock")) else { return };
        let shared = rustix::fs::FlockOperation::NonBlockingLockShared;
        wait_until("the release of its lock", || rustix::fs::flock(&lock, shared).is_ok());
    }

    /// Runs `tierfs umount`, which must succeed.
    pub fn unmount(self) {
        let lost = self.unmount_without_room();
        assert!(lost.is_empty(), "{lost:?} lost their last writes");
    }

    /// Runs `tierfs umount`, and returns the files whose last writes had no room. On a busy machine a program that visits
    /// every mount, such as `df` or `find`, may use this one for longer than `tierfs umount` retries; the test itself
    /// must not.
    pub fn unmount_without_room(self) -> Vec<String> {
        let until = Instant::now() + PATIENCE;
        let answer = loop {
            let answer = run(["umount".as_ref(), self.mountpoint.as_os_str()]);
            if answer.code == Some(0) || answer.err.contains("without the last writes") {
                break answer;
            }
            let is_busy = answer.err.contains("is in use") && Instant::now() < until;
            let own = self.used_by_the_test();
            assert!(is_busy && own.is_empty(), "{answer:?}; the test uses {own:?}");
        };
        assert!(!self.is_mounted());
        answer.err.lines().filter_map(|line| line.strip_prefix("  ")).map(str::to_owned).collect()
    }

    /// Open files, mappings and working directories on the mount, of this process and of its children.
    fn used_by_the_test(&self) -> Vec<PathBuf> {
        let mut used = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
            let own = std::process::id();
            if parent != Some(own) && entry.file_name() != *own.to_string() {
                continue;
            }
            let linked =
                |folder: &str| fs::read_dir(entry.path().join(folder)).into_iter().flatten().flatten();
            let links = linked("fd").chain(linked("map_files")).map(|link| link.path());
            let targets = links.chain([entry.path().join("cwd")]).filter_map(|link| fs::read_link(link).ok());
            used.extend(targets.filter(|target| target.starts_with(&self.mountpoint)));
        }
        used
    }

    pub fn is_mounted(&self) -> bool {
        let octal = |text: String, (from, to): (char, &str)| text.replace(from, to);
        let escapes = [('\\', "\\134"), (' ', "\\040"), ('\t', "\\011"), ('\n', "\\012")];
        let wanted = escapes.into_iter().fold(self.mountpoint.to_str().unwrap().to_owned(), octal);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.lines().any(|line| line.split(' ').nth(4) == Some(&wanted))
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Writes to a control file, and waits until the job that this queues has ended; its line in `.ctl/jobs`.
    #[track_caller]
    pub fn job(&self, control: &str, text: &str) -> String {
        let number = |line: &str| line.split(' ').next().and_then(|number| number.parse::<u64>().ok());
        let jobs = || fs::read_to_string(self.path(".ctl/jobs")).unwrap();
        let before = jobs().lines().filter_map(number).max().unwrap_or(0);
        fs::write(self.path(control), text).unwrap();
        let mut ended = String::new();
        wait_until("the end of the job", || {
            let jobs = jobs();
            let job = jobs.lines().find(|line| number(line).is_some_and(|number| number > before));
            ended = job.unwrap_or_default().to_owned();
            [" done in ", " failed: ", " cancelled"].iter().any(|end| ended.contains(end))
        });
        ended
    }

    /// One counter of `.ctl/stats.json`, fetched with a single read, which the daemon counts too.
    #[track_caller]
    pub fn counter(&self, name: &str) -> u64 {
        let mut text = vec![0; 1 << 18];
        let file = fs::File::open(self.path(".ctl/stats.json")).unwrap();
        let len = crate::read_at(&file, &mut text, 0);
        let stats: serde_json::Value = serde_json::from_slice(&text[..len]).unwrap();
        stats[name].as_u64().unwrap_or_else(|| panic!("{name} is not a counter"))
    }

    /// `.ctl/stats.json`.
    pub fn stats(&self) -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(self.path(".ctl/stats.json")).unwrap()).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of {}:\n{}", self.mountpoint.display(), self.log());
        }
        // The daemon ends first: one that is about to mount would do so after the unmount.
        self.signal(libc::SIGKILL);
        let since = Instant::now();
        while self.daemon().is_some() && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let lazily = rustix::mount::UnmountFlags::DETACH;
        while self.is_mounted() {
            if let Err(error) = rustix::mount::unmount(&self.mountpoint, lazily) {
                eprintln!("unmounting {}: {error}", self.mountpoint.display());
                break;
            }
        }
    }
}
