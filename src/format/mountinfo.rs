//! Mounted file systems, parsed from mountinfo.

use std::path::{Path, PathBuf};

/// A mounted file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountedThere {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Its type.
    pub kind: String,
    /// The mounted device; the store, for a tierfs.
    pub source: PathBuf,
    /// The minor number of the file system's device, by which the kernel knows the connection of a FUSE.
    pub device: u32,
}

impl MountedThere {
    /// Whether it is a tierfs.
    pub fn is_ours(&self) -> bool {
        self.kind == "fuse.tierfs"
    }
}

/// The mounted file systems of a text like `/proc/self/mountinfo`.
pub fn mounted(mountinfo: &str) -> impl Iterator<Item = MountedThere> + '_ {
    mountinfo.lines().filter_map(parse)
}

/// The file system that contains an absolute path without links. Only the text is consulted: asking a
/// daemon could block if it is gone, or is the caller itself.
pub fn topmost(mountinfo: &str, path: &Path) -> Option<MountedThere> {
    // The last entry that contains the path is the topmost mount.
    let mut found: Option<MountedThere> = None;
    for mounted in mounted(mountinfo).filter(|mounted| path.starts_with(&mounted.mountpoint)) {
        if found.as_ref().is_none_or(|best| mounted.mountpoint.starts_with(&best.mountpoint)) {
            found = Some(mounted);
        }
    }
    found
}

fn parse(line: &str) -> Option<MountedThere> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ');
    let device = before.nth(2)?.split_once(':')?.1.parse().ok()?;
    let mountpoint = PathBuf::from(unescape(before.nth(1)?));
    let mut after = after.split(' ');
    let kind = after.next()?.to_owned();
    Some(MountedThere { mountpoint, kind, source: PathBuf::from(unescape(after.next()?)), device })
}

/// Decodes the octal escapes of spaces, tabs, newlines and backslashes.
fn unescape(field: &str) -> String {
    let octal = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    octal.iter().fold(field.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{parse, topmost};

    #[test]
    fn a_line_of_mountinfo_is_parsed() {
        let line = "36 35 0:52 / /mnt/my\\040models rw,nosuid shared:7 - fuse.tierfs /srv/store rw,user_id=0";
        let found = parse(line).unwrap();
        assert_eq!(found.mountpoint.to_str(), Some("/mnt/my models"));
        assert_eq!((found.is_ours(), found.source.to_str(), found.device), (true, Some("/srv/store"), 52));
    }

    #[test]
    fn a_path_lies_on_its_deepest_and_latest_mount() {
        let text = "1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /mnt rw - fuse.tierfs /store rw\n\
                    3 2 0:3 / /mnt/in rw - tmpfs none rw\n4 1 0:4 / /over rw - fuse.tierfs /store rw\n\
                    5 1 0:5 / /over rw - ext4 /dev/b rw\n";
        for (path, ours) in
            [("/mnt", true), ("/mnt/x/y", true), ("/mnt/in/x", false), ("/mntx", false), ("/over/x", false)]
        {
            assert_eq!(topmost(text, Path::new(path)).unwrap().is_ours(), ours, "{path}");
        }
    }
}
