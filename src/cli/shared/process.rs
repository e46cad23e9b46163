//! Identifies the process of a daemon and tells whether it has ended.

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use crate::cli::shared::mounts::Mounted;

/// How long to wait for a daemon to report its process number.
const PATIENCE: Duration = Duration::from_secs(2);

/// A process, identified by number and start time because the kernel reuses numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cli) struct Process {
    number: u32,
    /// Start time in clock ticks since boot.
    began: String,
}

impl Process {
    /// The daemon of a mount; `None` if it does not answer or runs in another PID namespace.
    pub fn of_mount(mounted: &Mounted) -> Option<Process> {
        let (path, (sender, answer)) = (mounted.mountpoint.join(".ctl/config"), mpsc::channel());
        // The read may block forever, so nobody joins this thread.
        std::thread::spawn(move || sender.send(fs::read_to_string(path)));
        let text = answer.recv_timeout(PATIENCE).ok()?.ok()?;
        let table: toml::Table = text.parse().ok()?;
        let number = table.get("mount")?.get("process")?.as_integer()?;
        let number = u32::try_from(number).ok()?;
        let line = fs::read(Path::new("/proc").join(number.to_string()).join("cmdline")).ok()?;
        let is_tierfs = String::from_utf8_lossy(&line).contains("mount");
        is_tierfs.then_some(number).and_then(began).map(|began| Process { number, began })
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

/// The start time of a process; `None` if it does not exist or is a zombie.
fn began(number: u32) -> Option<String> {
    let stat = fs::read(format!("/proc/{number}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    // The second field, the name, may contain spaces and parentheses: see proc_pid_stat(5).
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then(|| fields.nth(18).map(str::to_owned)).flatten()
}

#[cfg(test)]
mod tests {
    use super::{Process, began};

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
