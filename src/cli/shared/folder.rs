//! A directory that is written to without following links, whoever else may write there.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use crate::model::{Error, Result};

/// How often another name is tried for a draft.
const TRIES: u32 = 100;

/// A directory, held open: no name above it is looked up again.
pub(in crate::cli) struct Folder {
    directory: OwnedFd,
    /// For messages.
    path: PathBuf,
}

/// Something in a folder that has not got its name yet; it is removed when this is dropped before.
pub(in crate::cli) struct Draft<'a> {
    folder: &'a Folder,
    /// Empty once it has its name.
    draft: OsString,
}

impl Folder {
    /// A directory that the user names, links on the way to it included.
    pub fn open(path: &Path) -> Result<Folder> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let directory = opened.map_err(|error| Error::io(path.display(), error.into()))?;
        Ok(Folder { directory, path: path.to_owned() })
    }

    /// The directory of this name in it, made if nothing has the name.
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
                        "{path} is a symbolic link where a directory must stand; remove it, or choose another destination"
                    )));
                }
                Err(failed(error.into()))
            }
        }
    }

    /// An empty file that nobody else may open.
    pub fn draft_file(&self) -> Result<(Draft<'_>, File)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.draft(|draft| rustix::fs::openat(&self.directory, draft, flags, Mode::RUSR | Mode::WUSR))
            .map(|(draft, file)| (draft, File::from(file)))
    }

    /// A symbolic link.
    pub fn draft_link(&self, target: &OsStr) -> Result<Draft<'_>> {
        self.draft(|draft| rustix::fs::symlinkat(target, &self.directory, draft)).map(|(draft, ())| draft)
    }

    /// Makes something under a name that nothing has.
    fn draft<T>(&self, make: impl Fn(&OsStr) -> rustix::io::Result<T>) -> Result<(Draft<'_>, T)> {
        let mut tries = 0;
        loop {
            let draft = OsString::from(format!(".tierfs-partial-{:016x}", RandomState::new().hash_one(0)));
            match make(&draft).map_err(io::Error::from) {
                Ok(made) => return Ok((Draft { folder: self, draft }, made)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists && tries < TRIES => tries += 1,
                Err(error) => {
                    let doing = format!("making a file in {}", self.path.display());
                    return Err(Error::io(doing, error));
                }
            }
        }
    }
}

impl Draft<'_> {
    /// Where it is, for messages.
    pub fn path(&self) -> PathBuf {
        self.folder.path.join(&self.draft)
    }

    /// Gives it its name; what has the name is replaced, unless it is a directory.
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
