//! Control files.

use std::fs::OpenOptions;
use std::io::{Result, Write};
use std::path::Path;

use crate::Mounted;

/// Writes a text with one call, as `echo` does after `>`.
pub fn put(path: &Path, text: &str) -> Result<()> {
    OpenOptions::new().write(true).truncate(true).open(path)?.write_all(text.as_bytes())
}

/// The events of a mount, of one kind or (with an empty `kind`) of all.
pub fn events(mounted: &Mounted, kind: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(mounted.path(".ctl/events")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.filter(|event| kind.is_empty() || event["kind"] == kind).collect()
}

/// The numbers of files, logical bytes and stored bytes in the control file `quota` of a directory.
pub fn usage(mounted: &Mounted, path: &str) -> [u64; 3] {
    let text = std::fs::read_to_string(mounted.path(path).join(".ctl/quota")).unwrap();
    let number = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    [number("files "), number("logical bytes "), number("stored bytes ")]
}

/// The limits in the control file `quota` of a directory.
pub fn limits(mounted: &Mounted, path: &str) -> String {
    let text = std::fs::read_to_string(mounted.path(path).join(".ctl/quota")).unwrap();
    text.lines().find_map(|line| line.strip_prefix("limits         ")).unwrap().to_owned()
}
