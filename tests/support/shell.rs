//! Shell sessions as documents and tables show them.

use std::path::Path;
use std::process::Command;

use crate::tierfs;

/// Runs a command in `directory` with bash, for at most 60 s. Returns its exit status and its output, standard error
/// included.
pub fn shell_output(directory: &Path, command: &str) -> (i32, String) {
    let tierfs = tierfs();
    let folder = Path::new(tierfs.get_program()).parent().unwrap().to_owned();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("timeout");
    let shell = shell.args(["60", "bash", "-c", &format!("exec 2>&1; {command}")]);
    let output = shell.current_dir(directory).env("PATH", path).env("LC_ALL", "C").output().unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a printed line is the shown one, in which `...` stands for any text.
pub fn line_matches(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split("...");
    let Some(mut rest) = printed.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}
