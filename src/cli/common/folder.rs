//! Writes into a directory without following symbolic links, even if other users can write there.
//!
//! A process holds a lock of each draft that it writes, so a draft without one was left by a process that has ended.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::model::{Error, Result};

/// The beginning of the name of a draft.
const DRAFT: &str = ".tierfs-partial-";
/// Number of further names to try for a draft when a name is taken.
const TRIES: u32 = 100;

/// An open directory. Later operations are relative to its descriptor, so no path above it is
/// resolved again.
pub(in crate::cli) struct Folder {
    directory: OwnedFd,
    path: PathBuf,
}

/// A file or link under a temporary name in a folder. Dropping it before [`name`](Self::name) removes it.
pub(in crate::cli) struct Draft<'a> {
    folder: &'a Folder,
    /// The temporary name; empty once the file has its final name.
    draft: OsString,
}

impl Folder {
    /// Opens a directory that the user names. Follows symbolic links in `path`.
    pub fn open(path: &Path) -> Result<Folder> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let directory = opened.map_err(|error| Error::io(path.display(), error.into()))?;
        Ok(Folder { directory, path: path.to_owned() })
    }

    /// Opens the subdirectory `name` and creates it if the name is free. Does not follow a link.
    pub fn enter(&self, name: &OsStr) -> Result<Folder> {
        let path = self.path.join(name);
        let failed = |error: io::Error| Error::io(path.display(), error);
        let made = rustix::fs::mkdirat(&self.directory, name, Mode::from_raw_mode(0o777));
        match made.map_err(io::Error::from) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.directory, name, flags, Mode::empty()) {
            Ok(directory) => Ok(Folder { directory, path }),
            Err(error) => {
                let found = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
                if found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink) {
                    let path = path.display();
                    return Err(Error::invalid(format!(
                        "{path} is a symbolic link, but the export needs a directory there; remove the link or choose another destination"
                    )));
                }
                Err(failed(error.into()))
            }
        }
    }

    /// Creates an empty draft file with mode 0600. It is a draft while the file is open.
    pub fn draft_file(&self) -> Result<(Draft<'_>, File)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = self.draft(|draft| {
            let file = rustix::fs::openat(&self.directory, draft, flags, Mode::RUSR | Mode::WUSR)?;
            let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            // Another export may have taken it for one that was left, and has removed it then.
            let is_removed = rustix::fs::fstat(&file)?.st_nlink == 0;
            // A file system without locks keeps what is left.
            match is_removed || locked == Err(Errno::WOULDBLOCK) {
                true => Err(ErrorKind::AlreadyExists.into()),
                false => Ok(file),
            }
        });
        made.map(|(draft, file)| (draft, File::from(file)))
    }

    /// Removes the draft files that processes of this user have left.
    pub fn remove_left_drafts(&self) {
        // A directory that cannot be listed keeps them.
        let entries = rustix::fs::Dir::read_from(&self.directory).into_iter().flatten();
        for entry in entries.map_while(|entry| entry.ok()) {
            let name = entry.file_name();
            let digits = name.to_bytes().strip_prefix(DRAFT.as_bytes());
            if digits.is_some_and(|digits| digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit))
                && let Err(error) = self.remove_if_left(name)
            {
                log::debug!("{}/{}: {error}", self.path.display(), name.to_string_lossy());
            }
        }
    }

    fn remove_if_left(&self, name: &CStr) -> rustix::io::Result<()> {
        // A pipe would keep the open waiting.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, name, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&file)?;
        let is_own = found.st_uid == rustix::process::geteuid().as_raw();
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile || !is_own {
            return Ok(());
        }
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        // The name may be that of another file by now.
        let now = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino) {
            return Ok(());
        }
        rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())
    }

    /// Creates a draft symbolic link.
    pub fn draft_link(&self, target: &OsStr) -> Result<Draft<'_>> {
        let made = self.draft(|draft| Ok(rustix::fs::symlinkat(target, &self.directory, draft)?));
        made.map(|(draft, ())| draft)
    }

    /// Calls `make` with random names until one is free.
    fn draft<T>(&self, make: impl Fn(&OsStr) -> io::Result<T>) -> Result<(Draft<'_>, T)> {
        let mut tries = 0;
        loop {
            let draft = OsString::from(format!("{DRAFT}{:016x}", RandomState::new().hash_one(0)));
            match make(&draft) {
                Ok(made) => return Ok((Draft { folder: self, draft }, made)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists && tries < TRIES => tries += 1,
                Err(error) => {
                    let doing = format!("creating a file in {}", self.path.display());
                    return Err(Error::io(doing, error));
                }
            }
        }
    }
}

impl Draft<'_> {
    /// The path of the draft, for messages.
    pub fn path(&self) -> PathBuf {
        self.folder.path.join(&self.draft)
    }

    /// Renames the draft to its final name. Replaces an existing file, but not a directory.
    pub fn name(mut self, name: &OsStr) -> Result<()> {
        let directory = &self.folder.directory;
        let named = rustix::fs::renameat(directory, &self.draft, directory, name);
        named.map_err(|error| Error::io(self.folder.path.join(name).display(), error.into()))?;
        self.draft.clear();
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if self.draft.is_empty() {
            return;
        }
        if let Err(error) = rustix::fs::unlinkat(&self.folder.directory, &self.draft, AtFlags::empty()) {
            log::warn!("removing {}: {error}", self.path().display());
        }
    }
}
