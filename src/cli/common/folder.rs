//! Writes into a directory without following symbolic links, even if other users can write there.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use crate::model::{Error, Result};

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

    /// Creates an empty draft file with mode 0600.
    pub fn draft_file(&self) -> Result<(Draft<'_>, File)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.draft(|draft| rustix::fs::openat(&self.directory, draft, flags, Mode::RUSR | Mode::WUSR))
            .map(|(draft, file)| (draft, File::from(file)))
    }

    /// Creates a draft symbolic link.
    pub fn draft_link(&self, target: &OsStr) -> Result<Draft<'_>> {
        self.draft(|draft| rustix::fs::symlinkat(target, &self.directory, draft)).map(|(draft, ())| draft)
    }

    /// Calls `make` with random names until one is free.
    fn draft<T>(&self, make: impl Fn(&OsStr) -> rustix::io::Result<T>) -> Result<(Draft<'_>, T)> {
        let mut tries = 0;
        loop {
            let draft = OsString::from(format!(".tierfs-partial-{:016x}", RandomState::new().hash_one(0)));
            match make(&draft).map_err(io::Error::from) {
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
