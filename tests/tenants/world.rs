//! What the tests of tenants share.

use std::io::{Result, Write};
use std::path::Path;
use std::process::Command;

use crate::support::{Answer, Mounted, answer};

/// Writes a text with one call, as `echo` does after `>`.
pub fn put(path: &Path, text: &str) -> Result<()> {
    std::fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(text.as_bytes())
}

/// The error number of a refusal.
#[track_caller]
pub fn refused<T>(done: Result<T>, number: i32) {
    match done {
        Ok(_) => panic!("not refused"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(number), "{error}"),
    }
}

/// Runs a shell line as a user and a group, in a directory: they may not come through the
/// folders above.
pub fn as_user(user: u32, group: u32, directory: &Path, line: &str) -> Answer {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".to_owned()]);
    command.args(["timeout", "20", "sh", "-c", line]);
    answer(command.current_dir(directory))
}

/// Files, logical and stored bytes that a `quota` shows.
pub fn used(mounted: &Mounted, path: &str) -> [u64; 3] {
    let text = std::fs::read_to_string(mounted.path(path).join(".ctl/quota")).unwrap();
    let number = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    [number("files "), number("logical bytes "), number("stored bytes ")]
}

/// The limits that a `quota` shows.
pub fn limits(mounted: &Mounted, path: &str) -> String {
    let text = std::fs::read_to_string(mounted.path(path).join(".ctl/quota")).unwrap();
    text.lines().find_map(|line| line.strip_prefix("limits         ")).unwrap().to_owned()
}
