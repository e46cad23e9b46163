//! Identifies the process of a daemon and tells whether it has ended.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getegid, geteuid, kill_process};

use crate::model::Owner;

/// How long to wait for a daemon to report its process number.
const PATIENCE: Duration = Duration::from_secs(2);

/// The answer of a daemon.
pub(in crate::cli) enum Asked {
    /// It is this process.
    Answers(Process),
    Gone,
    /// It does not answer, or does not say a process of this PID namespace.
    Silent,
}

/// Messages of a program that uses a mount whose daemon has ended.
const GONE: [&str; 2] = ["Transport endpoint is not connected", "Software caused connection abort"];

/// A process, identified by number and start time because the kernel reuses numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cli) struct Process {
    number: u32,
    /// Start time in clock ticks since boot.
    began: String,
}

/// The user and the group of this process.
pub(in crate::cli) fn own_owner() -> Owner {
    Owner { uid: geteuid().as_raw(), gid: getegid().as_raw() }
}

impl Process {
    /// The process with this number. `None` if no process has it.
    pub fn of(number: u32) -> Option<Process> {
        Some(Process { number, began: began(number)? })
    }

    /// Asks the daemon of a mount which process it is. Another process reads its answer: a read that is never answered
    /// could not be ended, and would keep this one.
    pub fn asked(mountpoint: &Path) -> Asked {
        let mut reader = Command::new("cat");
        reader.arg("--").arg(mountpoint.join(".ctl/config")).env("LC_ALL", "C");
        reader.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (sender, answer) = mpsc::channel();
        // Nobody waits for a reader without an answer, nor joins this thread.
        std::thread::spawn(move || sender.send(reader.output()));
        let Ok(Ok(read)) = answer.recv_timeout(PATIENCE) else { return Asked::Silent };
        let said = String::from_utf8_lossy(&read.stderr);
        if GONE.iter().any(|text| said.contains(text)) {
            return Asked::Gone;
        }
        let process = Process::in_config(&String::from_utf8_lossy(&read.stdout));
        process.map_or(Asked::Silent, Asked::Answers)
    }

    /// The daemon that the text of `.ctl/config` names.
    fn in_config(text: &str) -> Option<Process> {
        let table: toml::Table = text.parse().ok()?;
        let number = table.get("mount")?.get("process")?.as_integer()?;
        let number = u32::try_from(number).ok()?;
        let line = fs::read(Path::new("/proc").join(number.to_string()).join("cmdline")).ok()?;
        let is_tierfs = String::from_utf8_lossy(&line).contains("mount");
        is_tierfs.then_some(number).and_then(Process::of)
    }

    /// The name of its mount namespace; `None` if this process may not know.
    pub fn mount_namespace(&self) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/ns/mnt", self.number)).ok()
    }

    /// The files that it has open, as far as this process may know them.
    pub fn open_files(&self) -> impl Iterator<Item = PathBuf> {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.number)).into_iter().flatten();
        descriptors.filter_map(Result::ok).filter_map(|descriptor| fs::read_link(descriptor.path()).ok())
    }

    /// Kills the process, if it has not ended.
    pub fn kill(&self) -> io::Result<()> {
        let number = i32::try_from(self.number).ok().and_then(Pid::from_raw).filter(|_| !self.has_ended());
        match number.map(|number| kill_process(number, Signal::KILL)) {
            None | Some(Ok(()) | Err(Errno::SRCH)) => Ok(()),
            Some(Err(error)) => Err(error.into()),
        }
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        began(self.number).as_ref() != Some(&self.began)
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "process {}", self.number)
    }
}

/// The start time of a process; `None` if it does not exist or has ended.
fn began(number: u32) -> Option<String> {
    let stat = fs::read(format!("/proc/{number}/stat")).ok()?;
    start_time(&String::from_utf8_lossy(&stat)).map(str::to_owned)
}

/// The start time in the text of `/proc/PID/stat`, see proc_pid_stat(5). `None` for a zombie, except for one with threads
/// that have not ended: they hold its files, and its locks.
fn start_time(stat: &str) -> Option<&str> {
    // The second field, the name, may contain spaces and parentheses.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?;
    let threads: u32 = fields.nth(16)?.parse().ok()?;
    (!matches!(state, "Z" | "X") || threads > 1).then(|| fields.nth(1)).flatten()
}

#[cfg(test)]
mod tests {
    use super::{Process, began, start_time};

    #[test]
    fn a_zombie_whose_threads_run_has_not_ended() {
        let stat = |state: char, threads: u32| {
            format!(
                "7 (a) b) {state} 1 7 7 0 -1 4 9 9 9 9 1 2 3 4 20 0 {threads} 0 4711 900 12 18446744073709551615"
            )
        };
        assert_eq!(start_time(&stat('S', 1)), Some("4711"));
        assert_eq!(start_time(&stat('Z', 1)), None);
        assert_eq!(start_time(&stat('Z', 0)), None);
        assert_eq!(start_time(&stat('Z', 3)), Some("4711"));
        assert_eq!(start_time("7 (a"), None);
    }

    #[test]
    fn a_process_has_ended_when_its_number_is_unused_or_reused() {
        let number = std::process::id();
        let own = Process { number, began: began(number).unwrap() };
        assert!(!own.has_ended());
        assert!(Process { began: "1".to_owned(), ..own }.has_ended());
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let other = Process { number: child.id(), began: began(child.id()).unwrap() };
        assert!(!other.has_ended());
        child.kill().unwrap();
        // Not waited for yet.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !other.has_ended() {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(other.has_ended());
    }
}
