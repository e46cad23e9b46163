//! Daemons of mounts that are replaced, and killed.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{Answer, Mounted, answer, checked, tierfs, wait_until};

/// The processes of the program that serve a mount, without the one that keeps it.
pub fn daemons(mountpoint: &Path) -> Vec<i32> {
    let shown = mountpoint.to_str().unwrap();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&str> =
            line.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok()).collect();
        let has = |word: &str| words.contains(&word);
        if has("mount") && has("--announce") && has(shown) && !has("--keep-device") {
            found.push(process);
        }
    }
    found
}

/// Asks for a mount, by the program that tests use.
pub fn take_over(mounted: &Mounted) -> Answer {
    take_over_by(&mut tierfs(), mounted)
}

/// Asks for a mount with a command that runs the program, for example one with credentials.
pub fn take_over_by(command: &mut Command, mounted: &Mounted) -> Answer {
    answer(command.args(["mount", "--takeover"]).arg(&mounted.mountpoint))
}

/// Replaces the daemon, which must succeed.
pub fn replace(mounted: &Mounted) {
    replace_by(&mut tierfs(), mounted);
}

/// Replaces the daemon by one that a command starts, which must succeed.
pub fn replace_by(command: &mut Command, mounted: &Mounted) {
    let before = daemons(&mounted.mountpoint);
    take_over_by(command, mounted).ok();
    wait_until("the end of the former daemon", || {
        let now = daemons(&mounted.mountpoint);
        now.len() == 1 && !before.contains(&now[0])
    });
}

/// Kills the daemon, and waits until there is another one that answers.
pub fn kill_daemon(mounted: &Mounted) {
    let mut before = daemons(&mounted.mountpoint);
    // One that was killed in the last round may not be gone.
    wait_until("one daemon", || {
        before = daemons(&mounted.mountpoint);
        before.len() == 1
    });
    // SAFETY: kill takes two numbers and touches no memory of this process.
    checked(unsafe { libc::kill(before[0], libc::SIGKILL) }.into()).unwrap();
    wait_until("another daemon", || {
        let now = daemons(&mounted.mountpoint);
        !now.contains(&before[0]) && now.len() == 1
    });
}
