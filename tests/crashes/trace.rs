//! Runs the program under `strace`, which lists its system calls or disturbs one of them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::{Place, decoded_options, ended, tierfs, wait_until};

/// The calls that change the disk.
pub const CHANGING: [&str; 12] = [
    "openat",
    "pwrite64",
    "fdatasync",
    "fsync",
    "rename",
    "linkat",
    "unlink",
    "rmdir",
    "mkdir",
    "fallocate",
    "ftruncate",
    "fchmod",
];

/// A call of one thread, counted by its name from 1.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Point {
    pub call: &'static str,
    pub number: usize,
}

impl fmt::Display for Point {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} number {}", self.call, self.number)
    }
}

/// The fault in a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The process is killed before it.
    Kill,
    /// It fails with this error, and does nothing.
    Error(&'static str),
}

/// Runs the program with these arguments under `strace`, which records the calls in `notes`.
pub fn traced(arguments: &[&Path], notes: &Path, fault: Option<(&Point, Fault)>) -> Command {
    let program = tierfs();
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", "signal=none", "-o"]).arg(notes);
    command.arg("-e").arg(format!("trace={}", CHANGING.join(",")));
    if let Some((point, fault)) = fault {
        let what = match fault {
            Fault::Kill => "signal=KILL".to_owned(),
            Fault::Error(name) => format!("error={name}"),
        };
        command.arg("-e").arg(format!("inject={}:{what}:when={}", point.call, point.number));
    }
    command.arg(program.get_program()).args(arguments);
    // With fewer threads the counts of calls are more stable.
    command.env("RAYON_NUM_THREADS", "1").env("TIERFS_LOG", "info");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The recorded calls of a run: the counts of the thread that made most of them.
pub fn points(notes: &Path) -> Vec<Point> {
    let mut counts: BTreeMap<(String, &'static str), usize> = BTreeMap::new();
    let mut found: Vec<Point> = Vec::new();
    for line in fs::read_to_string(notes).unwrap().lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let Some((name, arguments)) = rest.trim_start().split_once('(') else { continue };
        let Some(call) = CHANGING.into_iter().find(|call| *call == name) else { continue };
        let count = counts.entry((thread.to_owned(), call)).or_default();
        *count += 1;
        // Opening a file without O_CREAT changes nothing.
        let changes = call != "openat" || arguments.contains("O_CREAT");
        let point = Point { call, number: *count };
        if changes && !found.contains(&point) {
            found.push(point);
        }
    }
    found
}

/// Some of the points, spread over all of them; all points in a long run.
pub fn spread(points: Vec<Point>, count: usize) -> Vec<Point> {
    if std::env::var_os("TIERFS_FAULTS").is_some() || points.len() <= count {
        return points;
    }
    (0..count).map(|place| points[place * (points.len() - 1) / (count - 1)].clone()).collect()
}

/// A daemon under `strace`; dropping it unmounts.
pub struct Daemon {
    child: Child,
    pub mountpoint: PathBuf,
    pub log: PathBuf,
}

impl Daemon {
    /// Mounts a store. `None` where the daemon ends before it is ready.
    pub fn mount(
        place: &Place,
        store: &Path,
        notes: &Path,
        fault: Option<(&Point, Fault)>,
    ) -> Option<Daemon> {
        let (mountpoint, log) = (place.path("traced"), place.path("traced.log"));
        fs::create_dir_all(&mountpoint).unwrap();
        let arguments = [Path::new("mount"), store, &mountpoint, Path::new("-f"), Path::new("--threads=2")];
        let mut command = traced(&arguments, notes, fault);
        command.args(decoded_options());
        let child = command.stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
        let mut daemon = Daemon { child, mountpoint, log };
        let mut has_ended = false;
        wait_until("the traced mount", || {
            has_ended = daemon.child.try_wait().unwrap().is_some();
            has_ended || daemon.mountpoint.join(".ctl/status").exists()
        });
        (!has_ended).then_some(daemon)
    }

    /// A path in the collection `demo/c`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mountpoint.join("demo/c").join(name)
    }

    /// Its log messages. A bug would show here.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Ends the mount, and waits for the daemon, however it ends.
    pub fn end(mut self) {
        self.take_away();
        ended(&mut self.child, "a traced daemon");
        let log = self.log();
        assert!(!log.contains("panicked") && !log.contains("a bug in tierfs"), "{log}");
    }

    fn take_away(&self) {
        let lazily = rustix::mount::UnmountFlags::DETACH;
        match rustix::mount::unmount(&self.mountpoint, lazily) {
            // It never existed, or is gone already.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => eprintln!("unmounting {}: {error}", self.mountpoint.display()),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.take_away();
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            ended(&mut self.child, "a traced daemon");
        }
    }
}
