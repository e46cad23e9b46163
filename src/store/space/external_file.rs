//! Files outside the store that have the exact bytes of objects.

use std::io;
use std::sync::Arc;

use crate::format::log::catalog::OutsideFile;
use crate::store::clones::{brought, noted_far};
use crate::store::disk::{FarFile, File, FileAttributes, ReadAt};

/// The empty file that says that a collection has, or had, files at a URL: a mount then has more threads, since reads wait
/// for a network.
pub(in crate::store) const FAR_NAME: &str = "far";

/// An outside file that must keep the length that it had at import.
pub(in crate::store) struct Outside {
    inner: Arc<dyn File>,
    recorded: Arc<OutsideFile>,
}

impl Outside {
    /// The file `inner`, which the log describes as `recorded`. An error if its length differs.
    pub fn new(inner: Arc<dyn File>, recorded: Arc<OutsideFile>) -> io::Result<Outside> {
        let file = Outside { inner, recorded };
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> io::Result<()> {
        let (found, recorded) = (self.inner.len()?, self.recorded.bytes);
        if found == recorded {
            return Ok(());
        }
        let text = format!(
            "it has {found} bytes, and had {recorded} when it was imported: restore it, or import it again"
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, text))
    }
}

/// An object at a URL, whose source holds reads to the version that it had at the import.
pub(in crate::store) struct FarOutside {
    inner: Arc<dyn FarFile>,
    recorded: Arc<OutsideFile>,
}

impl FarOutside {
    pub fn new(inner: Arc<dyn FarFile>, recorded: Arc<OutsideFile>) -> FarOutside {
        FarOutside { inner, recorded }
    }
}

impl ReadAt for FarOutside {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = (buffer.len() as u64).min(self.recorded.bytes.saturating_sub(offset)) as usize;
        let Some(part) = buffer.get_mut(..len).filter(|part| !part.is_empty()) else { return Ok(0) };
        if brought(&self.inner, part, offset) || self.inner.read_in_memory(part, offset)? == len {
            return Ok(len);
        }
        match noted_far(&self.inner, offset, len) {
            Some(error) => Err(error),
            None => self.inner.read_at(part, offset),
        }
    }

    fn read_in_memory(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_in_memory(buffer, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.recorded.bytes)
    }
}

impl File for FarOutside {
    fn far(&self) -> Option<&dyn FarFile> {
        Some(&*self.inner)
    }

    fn attributes(&self) -> io::Result<FileAttributes> {
        Ok(FileAttributes { modified: Some(self.recorded.mtime), ..FileAttributes::default() })
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a file has the length and the modification time that the log records of it.
pub fn is_untouched(file: &dyn File, recorded: &OutsideFile) -> io::Result<bool> {
    Ok((file.len()?, file.attributes()?.modified) == (recorded.bytes, Some(recorded.mtime)))
}

impl ReadAt for Outside {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let got = self.inner.read_at(buffer, offset)?;
        // Checked after the read, to notice a change during it.
        self.check()?;
        Ok(got)
    }

    fn read_in_memory(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let got = self.inner.read_in_memory(buffer, offset)?;
        self.check()?;
        Ok(got)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
}

impl File for Outside {
    #[cfg(feature = "mount")]
    fn descriptor(&self) -> io::Result<Option<std::os::fd::OwnedFd>> {
        self.inner.descriptor()
    }

    fn attributes(&self) -> io::Result<FileAttributes> {
        self.inner.attributes()
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}
