//! Which file systems are mounted where, as the kernel says.

use std::fs;
use std::path::{Path, PathBuf};

use crate::model::{Error, ErrorKind, Result};

/// A mounted tierfs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mounted {
    /// Where.
    pub mountpoint: PathBuf,
    /// The store.
    pub store: PathBuf,
}

/// Names, in the error of a store that is in use, where it is mounted: those who only
/// read it leave no note of that.
pub(super) fn with_mounts(busy: Error, store: &Path) -> Error {
    let found = || -> Option<String> {
        let store = fs::canonicalize(store).ok()?;
        let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let ours = text
            .lines()
            .filter_map(parse)
            .filter(|(_, kind, source)| *kind == "fuse.tierfs" && Path::new(source) == store);
        let places: Vec<String> = ours.map(|(mountpoint, _, _)| mountpoint.display().to_string()).collect();
        (!places.is_empty()).then(|| places.join(" and "))
    };
    let text = busy.to_string();
    match (busy.kind(), found()) {
        (ErrorKind::Busy, Some(places)) if !text.contains("mounted on") => Error::new(
            ErrorKind::Busy,
            format!("{text}; it is mounted on {places}: unmount it first (tierfs umount)"),
        ),
        _ => busy,
    }
}

/// The tierfs that a path lies on, if it lies on one.
pub(super) fn mount_of(path: &Path) -> Result<Option<Mounted>> {
    let absolute = std::path::absolute(path).map_err(|error| Error::io(path.display(), error))?;
    // The mount itself is not asked: its daemon may be gone.
    let real = match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => {
            fs::canonicalize(parent).map_or(absolute.clone(), |real| real.join(name))
        }
        _ => absolute,
    };
    let text = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| Error::io("reading /proc/self/mountinfo", error))?;
    // The last one that holds the path is the topmost.
    let mut found: Option<(PathBuf, Option<Mounted>)> = None;
    for (mountpoint, kind, source) in text.lines().filter_map(parse) {
        let deeper = found.as_ref().is_none_or(|(best, _)| mountpoint.starts_with(best));
        if real.starts_with(&mountpoint) && deeper {
            let ours = kind == "fuse.tierfs";
            let mounted =
                ours.then(|| Mounted { mountpoint: mountpoint.clone(), store: PathBuf::from(source) });
            found = Some((mountpoint, mounted));
        }
    }
    Ok(found.and_then(|(_, mounted)| mounted))
}

/// Refuses a path that lies on a tierfs: a daemon that reads itself would wait for
/// itself.
pub(super) fn refuse_own_mount(what: &str, path: &Path) -> Result<()> {
    match mount_of(path)? {
        Some(mounted) => Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "the {what} {} lies on the tierfs mounted on {}",
                path.display(),
                mounted.mountpoint.display()
            ),
        )),
        None => Ok(()),
    }
}

/// Mount point, type and source of a line of mountinfo.
fn parse(line: &str) -> Option<(PathBuf, &str, String)> {
    let (before, after) = line.split_once(" - ")?;
    let mountpoint = unescape(before.split(' ').nth(4)?);
    let mut after = after.split(' ');
    let kind = after.next()?;
    Some((PathBuf::from(mountpoint), kind, unescape(after.next()?)))
}

/// Spaces, tabs, newlines and backslashes stand there in octal.
fn unescape(field: &str) -> String {
    let octal = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    octal.iter().fold(field.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_line_of_mountinfo_is_taken_apart() {
        let line = "36 35 0:52 / /mnt/my\\040models rw,nosuid shared:7 - fuse.tierfs /srv/store rw,user_id=0";
        let (mountpoint, kind, source) = parse(line).unwrap();
        assert_eq!(mountpoint.to_str(), Some("/mnt/my models"));
        assert_eq!((kind, source.as_str()), ("fuse.tierfs", "/srv/store"));
    }
}
