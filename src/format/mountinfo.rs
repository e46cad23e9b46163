//! Mounted file systems, parsed from mountinfo.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
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

/// The mounted file systems of the bytes of a file like `/proc/self/mountinfo`. Names of directories may have any bytes.
pub fn mounted(mountinfo: &[u8]) -> impl Iterator<Item = MountedThere> + '_ {
    mountinfo.split(|byte| *byte == b'\n').filter_map(parse)
}

/// The file system that contains an absolute path without links. Only these bytes are consulted: asking a
/// daemon could block if it is gone, or is the caller itself.
pub fn topmost(mountinfo: &[u8], path: &Path) -> Option<MountedThere> {
    // The last entry that contains the path is the topmost mount.
    let mut found: Option<MountedThere> = None;
    for mounted in mounted(mountinfo).filter(|mounted| path.starts_with(&mounted.mountpoint)) {
        if found.as_ref().is_none_or(|best| mounted.mountpoint.starts_with(&best.mountpoint)) {
            found = Some(mounted);
        }
    }
    found
}

fn parse(line: &[u8]) -> Option<MountedThere> {
    let mut before = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(before.nth(2)?).ok()?.split_once(':')?.1.parse().ok()?;
    let mountpoint = path(before.nth(1)?);
    // The number of optional fields varies.
    let mut after = before.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(after.next()?).into_owned();
    Some(MountedThere { mountpoint, kind, source: path(after.next()?), device })
}

/// A path, from a field with octal escapes of spaces, tabs, newlines and backslashes.
fn path(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let escaped = match rest.get(..4) {
            Some(b"\\040") => Some(b' '),
            Some(b"\\011") => Some(b'\t'),
            Some(b"\\012") => Some(b'\n'),
            Some(b"\\134") => Some(b'\\'),
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { rest.get(4..).unwrap_or_default() } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::{mounted, parse, topmost};

    #[test]
    fn a_line_of_mountinfo_is_parsed() {
        let line =
            b"36 35 0:52 / /mnt/my\\040models rw,nosuid shared:7 - fuse.tierfs /srv/store rw,user_id=0";
        let found = parse(line).unwrap();
        assert_eq!(found.mountpoint.to_str(), Some("/mnt/my models"));
        assert_eq!((found.is_ours(), found.source.to_str(), found.device), (true, Some("/srv/store"), 52));
    }

    #[test]
    fn a_name_that_is_not_utf8_hides_no_line() {
        let text = b"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /\xff\\134040 rw - tmpfs \xfe rw\n\
                     3 1 0:3 / /mnt rw - fuse.tierfs /store rw\n";
        let found: Vec<_> = mounted(text).collect();
        assert_eq!(found.len(), 3);
        assert_eq!(found[1].mountpoint.as_os_str(), OsStr::from_bytes(b"/\xff\\040"));
        assert!(found[2].is_ours());
    }

    #[test]
    fn a_path_lies_on_its_deepest_and_latest_mount() {
        let text = b"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /mnt rw - fuse.tierfs /store rw\n\
                    3 2 0:3 / /mnt/in rw - tmpfs none rw\n4 1 0:4 / /over rw - fuse.tierfs /store rw\n\
                    5 1 0:5 / /over rw - ext4 /dev/b rw\n";
        for (path, ours) in
            [("/mnt", true), ("/mnt/x/y", true), ("/mnt/in/x", false), ("/mntx", false), ("/over/x", false)]
        {
            assert_eq!(topmost(text, Path::new(path)).unwrap().is_ours(), ours, "{path}");
        }
    }
}
