//! The extended attributes `user.tierfs.*` of a file: by its path, or by an open descriptor.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::error::{Error, ErrorKind, Result};

/// The prefix of every name.
const PREFIX: &str = "user.tierfs.";
/// Most bytes of a value, the bound of the kernel.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Bytes that nearly every value fits.
const VALUE_BYTES: usize = 1024;

/// A file whose attributes are read.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub path: &'a Path,
    /// The open file. Its name may lead to another one meanwhile.
    pub file: Option<&'a File>,
}

impl<'a> Place<'a> {
    pub fn of(path: &'a Path) -> Place<'a> {
        Place { path, file: None }
    }

    fn get(self, name: &str, value: &mut [u8]) -> rustix::io::Result<usize> {
        let name = format!("{PREFIX}{name}");
        match self.file {
            Some(file) => rustix::fs::fgetxattr(file, name, value),
            None => rustix::fs::getxattr(self.path, name, value),
        }
    }

    /// The value of an attribute. `None` if the file has no such attribute, or its file system has none.
    pub fn value(self, name: &str) -> rustix::io::Result<Option<Vec<u8>>> {
        let mut value = vec![0; VALUE_BYTES];
        let mut found = self.get(name, &mut value);
        if found == Err(Errno::RANGE) {
            value.resize(VALUE_BYTES_MAX, 0);
            found = self.get(name, &mut value);
        }
        match found {
            Ok(len) => {
                value.truncate(len);
                Ok(Some(value))
            }
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The text of an attribute, if the file has it.
    pub fn text(self, name: &str) -> Result<Option<String>> {
        let value = self.value(name).map_err(|errno| self.failed(errno.into()))?;
        let text = value.map(String::from_utf8).transpose();
        text.map_err(|_| {
            Error::new(ErrorKind::Invalid, self.path, format!("the value of {name} is not UTF-8"))
        })
    }

    /// Bytes of the file.
    pub fn bytes(self) -> Result<u64> {
        let found = match self.file {
            Some(file) => file.metadata(),
            None => fs::metadata(self.path),
        };
        found.map(|found| found.len()).map_err(|error| self.failed(error))
    }

    /// The error of a call about the file. One of the numbers with which the daemon fails calls has the reason that the
    /// mount gives.
    pub fn failed(self, error: io::Error) -> Error {
        let is_of_daemon =
            matches!(Errno::from_io_error(&error), Some(Errno::IO | Errno::NODATA | Errno::OPNOTSUPP));
        Error::of_system(self.path, &error, if is_of_daemon { self.why() } else { None })
    }

    /// Why the last request about the file was refused, and why its bytes cannot be read, if the mount knows.
    fn why(self) -> Option<String> {
        let value = self.value("why").ok().flatten()?;
        let text = without_controls(&String::from_utf8_lossy(&value));
        (!text.is_empty()).then_some(text)
    }
}

/// A text without characters that a terminal obeys.
fn without_controls(text: &str) -> String {
    text.trim_end().replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

/// Sets an attribute of a file on a mount.
pub(crate) fn set(path: &Path, name: &str, value: &str) -> Result<()> {
    let place = Place::of(path);
    check_mounted(place)?;
    let set = rustix::fs::setxattr(path, format!("{PREFIX}{name}"), value.as_bytes(), XattrFlags::empty());
    set.map_err(|errno| Error::refused(path, &io::Error::from(errno), place.why()))
}

/// Opens a file to read it. `None` for all but regular files. A pipe does not wait for a writer.
pub(crate) fn open(path: &Path) -> Result<Option<File>> {
    let failed = |error| Place::of(path).failed(error);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty())) {
        Ok(descriptor) => File::from(descriptor),
        // A socket.
        Err(Errno::NXIO) => return Ok(None),
        Err(errno) => return Err(failed(errno.into())),
    };
    let is_file = file.metadata().map_err(failed)?.is_file();
    Ok(is_file.then_some(file))
}

/// Other file systems would keep a request as an attribute that nobody obeys. Each file and directory on a mount has
/// `pin`, and no copy of it has: listings do not name it.
pub(crate) fn check_mounted(place: Place<'_>) -> Result<()> {
    match place.value("pin") {
        Ok(None) => {
            let text = "it is not on a mount of tierfs, or is not a file or directory of a collection";
            Err(Error::new(ErrorKind::NotMounted, place.path, text))
        }
        Err(Errno::NOENT | Errno::NOTDIR) => {
            Err(Error::of_system(place.path, &io::Error::from(Errno::NOENT), None))
        }
        // The request itself says why it is refused.
        Ok(Some(_)) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use rustix::fs::XattrFlags;
    use rustix::io::Errno;

    use super::{Place, without_controls};

    #[test]
    fn only_errors_of_the_daemon_have_the_reason_of_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let place = Place { path: file.path(), file: Some(file.as_file()) };
        rustix::fs::setxattr(place.path, "user.tierfs.why", b"it is pinned\n", XattrFlags::empty()).unwrap();
        let text = |errno: Errno| place.failed(io::Error::from(errno)).to_string();
        for errno in [Errno::IO, Errno::NODATA, Errno::OPNOTSUPP] {
            let wanted = format!("{}: {}: it is pinned", place.path.display(), io::Error::from(errno));
            assert_eq!(text(errno), wanted);
        }
        for errno in [Errno::ACCESS, Errno::NOENT, Errno::NOMEM, Errno::MFILE] {
            assert!(!text(errno).contains("pinned"), "{}", text(errno));
        }
    }

    #[test]
    fn a_text_has_no_characters_that_a_terminal_obeys() {
        assert_eq!(without_controls("one\n\u{1b}[2J\u{7}two\r\n"), "one\n\u{fffd}[2J\u{fffd}two");
        assert_eq!(without_controls("\n"), "");
    }
}
