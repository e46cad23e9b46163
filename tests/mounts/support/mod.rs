//! What the tests on real mounts share: a folder of their own with a store, the `tierfs` program, mounts that end with
//! the test, and Python.

mod made;
mod read;

pub use made::*;
pub use read::*;

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// After this a program, or a condition, is said to hang.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How many times as long as in `make test` random and time-boxed tests go on.
pub fn scale() -> u32 {
    std::env::var("TIERFS_TEST_SCALE").map_or(1, |text| text.parse().unwrap())
}

/// What a program answered.
#[derive(Debug)]
pub struct Answer {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Answer {
    /// Its standard output, given that it succeeded.
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// Its standard error, given that it failed with `code` and said each of `words`.
    pub fn failed(self, code: i32, words: &[&str]) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "nothing of {word:?} in {:?}", self.err);
        }
        self.err
    }

    pub fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

/// The program under test.
pub fn tierfs() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tierfs"));
    command.stdin(Stdio::null());
    command
}

/// The program under test, which may have so many files open.
pub fn tierfs_limited(descriptors: u64) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = tierfs();
    let set = move || {
        let limit = rustix::process::Rlimit { current: Some(descriptors), maximum: Some(descriptors) };
        Ok(rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?)
    };
    // SAFETY: between fork and exec it makes one system call and takes no memory.
    unsafe { command.pre_exec(set) };
    command
}

/// Runs a command to its end, which must come in time.
pub fn answer(command: &mut Command) -> Answer {
    let shown = format!("{command:?}");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let readers = [
        collect(child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>)),
        collect(child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>)),
    ];
    let status = ended(&mut child, &shown);
    let [out, err] = readers.map(|reader| reader.join().unwrap());
    Answer { code: status, out, err }
}

fn collect(pipe: Option<Box<dyn Read + Send>>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).unwrap();
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The exit code of a child that ends in time; `None` if a signal ended it.
pub fn ended(child: &mut Child, what: &str) -> Option<i32> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() >= until {
            child.kill().unwrap();
            panic!("{what} did not end within {PATIENCE:?}");
        }
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Runs `tierfs` with these arguments.
pub fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Answer {
    answer(tierfs().args(arguments))
}

/// Waits until `condition` holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Whether a test that lasts for a while goes on: its time is not over, or less than `enough` was
/// done, as on a busy machine. One that does nothing is ended by the runner.
pub fn goes_on(until: Instant, done: u64, enough: u64) -> bool {
    Instant::now() < until || done < enough
}

/// A program of the system that must succeed.
pub fn shell(directory: &Path, script: &str) -> Output {
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    output
}

/// A folder that goes with the test.
pub struct Place {
    directory: TempDir,
}

impl Place {
    pub fn new() -> Place {
        assert!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse, and these tests are of mounts");
        Place { directory: TempDir::with_prefix("tierfs-").unwrap() }
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// Writes a file below the folder.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Imports into the store; the answer is whatever it is.
    pub fn try_import(&self, collection: &str, paths: &[&Path], options: &[&str]) -> Answer {
        let mut command = tierfs();
        command.arg("import").arg(self.store()).arg(collection).args(paths).args(options);
        answer(&mut command)
    }

    /// Imports into the store.
    pub fn import(&self, collection: &str, paths: &[&Path], options: &[&str]) {
        self.try_import(collection, paths, options).ok();
    }

    /// Mounts the store on a mount point of its own.
    pub fn mount(&self, options: &[&str]) -> Mounted {
        self.mount_on("mnt", options)
    }

    pub fn mount_on(&self, name: &str, options: &[&str]) -> Mounted {
        self.mount_by(&mut tierfs(), name, options)
    }

    /// Mounts the store with a command that is the program and what it inherits.
    pub fn mount_by(&self, command: &mut Command, name: &str, options: &[&str]) -> Mounted {
        let mountpoint = self.path(name);
        fs::create_dir_all(&mountpoint).unwrap();
        let log = self.path(format!("{name}.log"));
        let mounted = Mounted { mountpoint, store: self.store(), log };
        command.arg("mount").arg(&mounted.store).arg(&mounted.mountpoint).arg("--log").arg(&mounted.log);
        answer(command.args(options)).ok();
        mounted
    }
}

/// A mount; dropping it takes it away, whatever state it is in.
pub struct Mounted {
    pub mountpoint: PathBuf,
    pub store: PathBuf,
    log: PathBuf,
}

impl Mounted {
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.mountpoint.join(name)
    }

    /// The daemon's process: its arguments name this mount point.
    pub fn daemon(&self) -> Option<i32> {
        use std::os::unix::ffi::OsStrExt;
        let wanted = self.mountpoint.as_os_str().as_bytes();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // It may have ended since.
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

    /// Kills the daemon as a crash would, and waits until it is gone.
    pub fn kill(&self) {
        let process = self.daemon();
        self.signal(libc::SIGKILL);
        // Its arguments go before its locks do, which go with its last thread.
        let runs = |process: i32| {
            let threads = fs::read_dir(format!("/proc/{process}/task"));
            threads.into_iter().flatten().flatten().any(|thread| {
                let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
            })
        };
        wait_until("the end of the killed daemon", || !process.is_some_and(runs));
    }

    /// Unmounts as a user does.
    pub fn unmount(self) {
        run(["umount".as_ref(), self.mountpoint.as_os_str()]).ok();
        assert!(!self.is_mounted());
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

    /// Writes to a control file, and waits for the end of the job that this queues; its line.
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

    pub fn stats(&self) -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(self.path(".ctl/stats.json")).unwrap()).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of {}:\n{}", self.mountpoint.display(), self.log());
        }
        let lazily = rustix::mount::UnmountFlags::DETACH;
        if self.is_mounted()
            && let Err(error) = rustix::mount::unmount(&self.mountpoint, lazily)
        {
            eprintln!("unmounting {}: {error}", self.mountpoint.display());
        }
        self.signal(libc::SIGKILL);
    }
}

/// The folder of the real model.
pub fn minilm() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/models/minilm");
    assert!(path.join("model.safetensors").exists(), "{} is missing: run make setup", path.display());
    path
}

/// Runs a script of tests/python; what it printed.
pub fn python<S: AsRef<OsStr>>(script: &str, arguments: impl IntoIterator<Item = S>) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(script);
    answer(interpreter().arg(script).args(arguments)).ok()
}

/// Runs a line of Python; what it printed.
pub fn python_line<S: AsRef<OsStr>>(line: &str, arguments: impl IntoIterator<Item = S>) -> String {
    answer(interpreter().args(["-c", line]).args(arguments)).ok()
}

fn interpreter() -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/venv/bin/python");
    assert!(path.exists(), "{} is missing: run make setup", path.display());
    let mut command = Command::new(path);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}
