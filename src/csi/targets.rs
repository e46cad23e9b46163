//! Places where volumes are mounted. Their paths come from outside: no link on them is followed.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, unlinkat};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree};

use crate::csi::access::Access;
use crate::csi::attributes::checked_path;
use crate::csi::failure::{Code, Failure, Outcome, internal};
use crate::format::mountinfo::{MountedThere, mounted};
use crate::model::Error;

/// The mode of a directory that a publish makes.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o750);
const MOUNTINFO: &str = "/proc/self/mountinfo";
/// More mounts on one path than this are not taken away.
const STACKED_MAX: usize = 100;

/// The path of a directory that a volume is mounted on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::csi) struct Target(PathBuf);

impl Target {
    /// Takes a path of a call; `name` is that of the field.
    pub fn of(name: &str, text: &str) -> Outcome<Target> {
        if text.is_empty() {
            return Err(Failure::invalid(format!("{name} is missing")));
        }
        let path = checked_path(name, text)?;
        if path.file_name().is_none() {
            return Err(Failure::invalid(format!("{name} is the root directory")));
        }
        Ok(Target(path))
    }

    pub fn text(&self) -> String {
        self.0.display().to_string()
    }

    fn failed(&self, doing: &str, error: Errno) -> Failure {
        let code = match error {
            Errno::LOOP | Errno::NOTDIR => Code::InvalidArgument,
            Errno::NOENT => Code::FailedPrecondition,
            _ => Code::Internal,
        };
        let why = match error {
            Errno::LOOP => "a link is on the path, or is its end".to_owned(),
            Errno::NOTDIR => "it is no directory".to_owned(),
            Errno::NOENT => "its parent directory does not exist".to_owned(),
            error => crate::model::plain(&error.into()),
        };
        Failure::new(code, format!("{doing} {}: {why}", self.0.display()))
    }

    /// The directory above, and the name in it.
    fn parent(&self) -> Result<(OwnedFd, &OsStr), Errno> {
        let (above, name) = self.0.parent().zip(self.0.file_name()).ok_or(Errno::INVAL)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok((openat2(rustix::fs::CWD, above, flags, Mode::empty(), resolve)?, name))
    }

    /// The directory itself, or the root of what is mounted on it.
    fn directory(&self) -> Result<OwnedFd, Errno> {
        let (parent, name) = self.parent()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&parent, name, flags, Mode::empty())
    }

    /// Makes the directory, unless it is there.
    pub fn make(&self) -> Outcome<()> {
        let is_free = self.mounted()?.is_none();
        let made = || {
            let (parent, name) = self.parent()?;
            match mkdirat(&parent, name, DIRECTORY_MODE) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            if is_free { self.directory().map(drop) } else { Ok(()) }
        };
        made().map_err(|error| self.failed("making", error))
    }

    /// Removes the directory, if it is there and empty.
    pub fn remove(&self) -> Outcome<()> {
        let removed = || {
            let (parent, name) = self.parent()?;
            unlinkat(&parent, name, AtFlags::REMOVEDIR)
        };
        match removed() {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(error) => Err(self.failed("removing", error)),
        }
    }

    /// The mount on it, the topmost.
    pub fn mounted(&self) -> Outcome<Option<MountedThere>> {
        Ok(mounts()?.into_iter().rfind(|there| there.mountpoint == self.0))
    }

    /// Whether a tierfs is mounted on it.
    pub fn is_ours(&self) -> Outcome<bool> {
        Ok(self.mounted()?.is_some_and(|there| there.is_ours()))
    }

    /// Takes the topmost mount away, also while programs use it.
    fn unmount(&self) -> Outcome<()> {
        let unmounted = || {
            let (parent, name) = self.parent()?;
            let path = below(&parent, name);
            rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
        };
        unmounted().map_err(|error| self.failed("unmounting", error))
    }

    /// Takes away all mounts of tierfs on it, but none of the connection `kept`. Fails if something else is mounted there.
    pub fn clear(&self, kept: Option<u32>) -> Outcome<()> {
        for _ in 0..STACKED_MAX {
            match self.mounted()? {
                None => return Ok(()),
                Some(there) if there.is_ours() && kept == Some(there.device) => return Ok(()),
                Some(there) if there.is_ours() => self.unmount()?,
                Some(_) => {
                    let text = format!("something else is mounted on {}", self.0.display());
                    return Err(Failure::exists(text));
                }
            }
        }
        Err(Failure::new(Code::Internal, format!("too many mounts on {}", self.0.display())))
    }

    /// Mounts a directory on this one.
    pub fn bind(&self, directory: &OwnedFd, access: &Access) -> Outcome<()> {
        let bound = || {
            let tree = open_tree(
                directory,
                "",
                OpenTreeFlags::OPEN_TREE_CLONE
                    | OpenTreeFlags::OPEN_TREE_CLOEXEC
                    | OpenTreeFlags::AT_EMPTY_PATH,
            )?;
            // Before it is seen: a plugin that is killed leaves no mount with more rights.
            restrict(&tree, access)?;
            let onto = self.directory()?;
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            move_mount(&tree, "", &onto, "", flags)
        };
        bound().map_err(|error| self.failed("mounting on", error))
    }

    /// Gives the mount on this directory the options of its volume. Fails if a program writes to one that becomes read-only.
    pub fn restrict(&self, access: &Access) -> Outcome<()> {
        self.directory()
            .and_then(|root| restrict(&root, access))
            .map_err(|error| self.failed("setting the options of", error))
    }

    /// Whether it is a path as the kubelet makes them for drivers of CSI alone.
    pub fn is_of_the_kubelet(&self) -> bool {
        let parts: Vec<&OsStr> = self.0.iter().collect();
        parts.iter().any(|part| *part == "kubernetes.io~csi")
            || parts.windows(2).any(|pair| pair == ["kubernetes.io", "csi"])
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// All mounts of this namespace. A failure to read them is an error: nobody may take it for a node without mounts.
pub(in crate::csi) fn mounts() -> Outcome<Vec<MountedThere>> {
    let bytes = fs::read(MOUNTINFO).map_err(|error| internal(Error::io(MOUNTINFO, error)))?;
    Ok(mounted(&bytes).collect())
}

/// Gives a mount, by its root, the options of its volume.
fn restrict(root: &OwnedFd, access: &Access) -> Result<(), Errno> {
    let chosen = [(access.read_only, libc::MOUNT_ATTR_RDONLY), (access.no_exec, libc::MOUNT_ATTR_NOEXEC)];
    let all =
        |wanted| chosen.iter().filter(|(is_set, _)| *is_set == wanted).fold(0, |sum, (_, flag)| sum | flag);
    let attributes = libc::mount_attr {
        attr_set: all(true) | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        attr_clr: all(false),
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path is an empty text, and the structure, whose size is given, outlives the call, which only reads it.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            root.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

/// A path of an open file, for calls that take no descriptor.
fn own_path(file: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

fn below(directory: &impl AsFd, name: &OsStr) -> OsString {
    own_path(directory).join(name).into_os_string()
}

/// Opens a directory of a mount by a path below its root; no link is followed, and no other mount entered.
pub(in crate::csi) fn open_below(root: &Path, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(rustix::fs::CWD, root, flags | OFlags::NOFOLLOW, Mode::empty())?;
    if path.is_empty() {
        return Ok(root);
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(&root, path, flags, Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::Target;
    use crate::csi::failure::Code;

    #[test]
    fn a_target_is_an_absolute_path_without_parents_and_links() {
        for wrong in ["", "relative", "/", "/a/../b", "a/.."] {
            assert_eq!(Target::of("target_path", wrong).unwrap_err().code, Code::InvalidArgument, "{wrong}");
        }
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| Target::of("target_path", place.path().join(name).to_str().unwrap()).unwrap();
        fs::create_dir(place.path().join("real")).unwrap();
        fs::write(place.path().join("file"), b"x").unwrap();
        symlink("real", place.path().join("link")).unwrap();
        for wrong in ["link", "link/new", "file", "file/new"] {
            assert_eq!(at(wrong).make().unwrap_err().code, Code::InvalidArgument, "{wrong}");
        }
        assert_eq!(at("none/new").make().unwrap_err().code, Code::FailedPrecondition);
        assert!(fs::read_dir(place.path().join("real")).unwrap().next().is_none());
        at("real/new").make().unwrap();
        at("real/new").make().unwrap();
        at("real/new").remove().unwrap();
        at("real/new").remove().unwrap();
        at("real").make().unwrap();
        assert!(!place.path().join("real/new").exists());
    }
}
