//! The directory of a cache, held open. Everything below it is reached through the descriptor, so that nobody can put
//! another directory in its place, and nobody but its owner can put links into it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fstat, mkdirat, openat};
use rustix::process::geteuid;

use crate::model::{Error, ErrorKind, Result};
use crate::store::disk::files::FileDisk;

/// The directory of the files of snapshots.
pub(super) const BLOBS: &str = "blob";
/// The extension of files that are not complete.
pub(super) const DRAFT: &str = "new";
/// Files that others on the machine must not read or replace.
const MODE: u32 = 0o600;
/// Directories that others must not list or change.
const DIRECTORY_MODE: u32 = 0o700;
/// Bits that let others change a directory.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The directory of a cache.
pub struct Root {
    /// Keeps the number in `path` valid.
    directory: OwnedFd,
    /// Its path by the descriptor.
    path: PathBuf,
}

impl Root {
    /// Opens a directory, or makes it. Fails with `Forbidden` for a directory, or a link to one, that another user owns,
    /// and for one that others may write to.
    pub fn open(path: &Path) -> Result<Root> {
        let failed = |error| Error::io(format!("opening the cache {}", path.display()), error);
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).map_err(failed)?;
        }
        match fs::DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        let named = fs::symlink_metadata(path).map_err(failed)?;
        if named.uid() != geteuid().as_raw() {
            return Err(refused(path, "it belongs to another user"));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let directory = opened.map_err(|error| failed(error.into()))?;
        check(path, &directory)?;
        let by_descriptor = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        Ok(Root { directory, path: by_descriptor })
    }

    /// Makes a directory in it, if it is missing. Fails with `Forbidden` for anything else of that name, and where
    /// [`open`](Self::open) does. `shown` is its path for messages.
    pub fn make(&self, name: &str, shown: &Path) -> Result<()> {
        let failed = |error: rustix::io::Errno| Error::io(shown.display(), error.into());
        match mkdirat(&self.directory, name, Mode::from_raw_mode(DIRECTORY_MODE)) {
            Err(error) if error != rustix::io::Errno::EXIST => return Err(failed(error)),
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(directory) => check(shown, &directory),
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
                Err(refused(shown, "it is not a directory"))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The directory of the files of snapshots.
    pub fn blobs(&self) -> FileDisk {
        FileDisk::new(&self.path(BLOBS))
    }

    /// The path of a file below it.
    pub fn path(&self, below: &str) -> PathBuf {
        self.path.join(below)
    }
}

/// Options that open a file of a cache, and fail for a link. They do not wait for the other end of a fifo.
pub(super) fn unlinked() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).mode(MODE);
    options
}

/// Refuses a directory that others own or may write to.
fn check(path: &Path, directory: &impl AsFd) -> Result<()> {
    let found = fstat(directory).map_err(|error| Error::io(path.display(), error.into()))?;
    if found.st_uid != geteuid().as_raw() {
        return Err(refused(path, "it belongs to another user"));
    }
    if found.st_mode & WRITABLE_BY_OTHERS != 0 {
        return Err(refused(path, "others may write to it (chmod go-w)"));
    }
    Ok(())
}

fn refused(path: &Path, why: &str) -> Error {
    let text = format!("{} cannot be a cache: {why}; choose another with --cache", path.display());
    Error::new(ErrorKind::Forbidden, text)
}

/// Whether a name has this many hexadecimal digits and nothing else.
pub(super) fn is_hexadecimal(name: &str, digits: usize) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.len() == digits && name.bytes().all(is_digit)
}

/// Whether a name is that of a draft of a file of this many hexadecimal digits.
pub(super) fn is_draft(name: &str, digits: usize) -> bool {
    let Some((of, rest)) = name.split_once('.') else { return false };
    let number = rest.strip_suffix(DRAFT).and_then(|rest| rest.strip_suffix('.'));
    let is_number = |number: &str| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_hexadecimal(of, digits) && number.is_some_and(is_number)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::remote::read::cache::{Cache, Size};

    fn refusal(path: &Path) -> Option<ErrorKind> {
        Cache::open(path, Size::default()).err().map(|error| error.kind())
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let place = tempfile::tempdir().unwrap();
        for mode in [0o777, 0o1777, 0o770, 0o702] {
            let path = place.path().join(format!("{mode:o}"));
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(refusal(&path), Some(ErrorKind::Forbidden), "{mode:o}");
            assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        }
        let made = place.path().join("made/below");
        drop(Cache::open(&made, Size::default()).unwrap());
        assert_eq!(fs::metadata(&made).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(made.join("blob")).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        if !geteuid().is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let (other, blob) = (place.path().join("other"), place.path().join("own"));
        fs::create_dir(&other).unwrap();
        fs::create_dir_all(blob.join("blob")).unwrap();
        std::os::unix::fs::chown(&other, Some(12_345), None).unwrap();
        std::os::unix::fs::chown(blob.join("blob"), Some(12_345), None).unwrap();
        assert_eq!(refusal(&other), Some(ErrorKind::Forbidden));
        assert_eq!(refusal(&blob), Some(ErrorKind::Forbidden));
    }

    #[test]
    fn links_that_were_prepared_lead_nowhere() {
        for name in ["lock", "cache.toml", "blob", "manifest", "log", "base", "known"] {
            let place = tempfile::tempdir().unwrap();
            let (cache, outside) = (place.path().join("cache"), place.path().join("outside"));
            fs::create_dir_all(&cache).unwrap();
            fs::create_dir_all(&outside).unwrap();
            let hexadecimal = "0123456789abcdef0123456789abcdef";
            for file in [hexadecimal, "note", "0123456789abcdef0123456789abcdef.1.new"] {
                fs::write(outside.join(file), "kept").unwrap();
            }
            let is_file = ["lock", "cache.toml"].contains(&name);
            let target = if is_file { outside.join("made") } else { outside.clone() };
            symlink(target, cache.join(name)).unwrap();
            assert!(Cache::open(&cache, Size::default()).is_err(), "{name}");
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 3, "{name}");
        }
    }

    #[test]
    fn opening_a_cache_removes_only_its_own_files() {
        let place = tempfile::tempdir().unwrap();
        drop(Cache::open(place.path(), Size::default()).unwrap());
        let blobs = place.path().join("blob");
        let own = ["0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef.7.new"];
        let others = ["note", "photo.jpg", "0123456789ABCDEF0123456789ABCDEF", "draft.new", "x.7.new"];
        for name in own.iter().chain(&others) {
            fs::write(blobs.join(name), "bytes").unwrap();
        }
        fs::create_dir(blobs.join("fedcba9876543210fedcba9876543210")).unwrap();
        fs::write(place.path().join("manifest/note.new"), "bytes").unwrap();
        drop(Cache::open(place.path(), Size::default()).unwrap());
        assert!(own.iter().all(|name| !blobs.join(name).exists()));
        assert!(others.iter().all(|name| blobs.join(name).exists()));
        assert!(blobs.join("fedcba9876543210fedcba9876543210").is_dir());
        assert!(place.path().join("manifest/note.new").exists());
    }
}
