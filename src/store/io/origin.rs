//! Objects whose exact bytes lie in a file outside the store.
//!
//! Invariants:
//! 1. An outside file is only read: never written, truncated, punched or removed.
//! 2. A block that was written loses its origin with the batch that records the write, and never gets
//!    one again.
//! 3. Data read from an outside file is trusted only while the file has the length that it had at
//!    import, and the checksum of the whole block agrees. While the modification time is the same too,
//!    a checksum is verified only once.
//! 4. A copy of a block is given up for an outside file only after the block was read from it under its
//!    present name: `open_by_name`.

use std::io;
use std::sync::Arc;

use crate::format::checksum;
use crate::format::log::catalog::OutsideFile;
use crate::model::{Error, Result};
use crate::store::Collection;
use crate::store::disk::{File, Identity};
use crate::store::io::read::OpenObject;

impl OpenObject {
    /// Reads the imported content of a block into `out`, which has the block's length. `false` if the
    /// block has no origin or was written since; `Corrupt` if the outside file has changed.
    pub fn read_origin(&self, index: u32, out: &mut [u8]) -> Result<bool> {
        let (Some(place), Some(origin)) = (self.object.origin_place(index), &self.object.origin) else {
            return Ok(false);
        };
        let failed = |error: &dyn std::fmt::Display| {
            let (path, id) = (origin.path(), self.object.entry.id);
            let text = format!("{path} at byte {}, block {index} of object {id}: {error}", place.offset);
            self.report_corruption(index, &place, Error::corrupt(text))
        };
        if out.len() != place.len as usize {
            return Ok(false);
        }
        let file = match &self.extent {
            Some(Ok(file)) => file,
            Some(Err(gone)) => {
                return Err(self.report_corruption(index, &place, Error::corrupt(gone.clone())));
            }
            None => return Ok(false),
        };
        file.read_exact_at(out, place.offset).map_err(|error| failed(&error))?;
        let found = checksum::of(out);
        if found != place.checksum {
            return Err(failed(&format!("crc {found:#010x} but the log says {:#010x}", place.checksum)));
        }
        Ok(true)
    }

    /// Whether the imported content of a block is still available, determined by reading it. The errors
    /// are those of [`read_origin`](Self::read_origin).
    pub fn has_origin(&self, index: u32) -> Result<bool> {
        let Some(place) = self.object.origin_place(index) else { return Ok(false) };
        self.read_origin(index, &mut vec![0; place.len as usize])
    }

    /// Whether earlier verifications of the data file's content are still valid.
    pub fn is_extent_untouched(&self) -> bool {
        match (&self.object.origin, &self.extent) {
            (Some(_), Some(Ok(file))) => file.is_untouched().unwrap_or(false),
            _ => true,
        }
    }
}

impl Collection {
    /// Opens an outside file by its name. Reads succeed while it has its recorded length.
    pub fn open_outside(&self, outside: &Arc<OutsideFile>) -> Result<Arc<dyn File>> {
        let path = String::from_utf8_lossy(&outside.path).into_owned();
        let failed = |error| Error::io(format!("opening {path}, which an import left in place"), error);
        let inner = self.disk.open_outside(&outside.path).map_err(failed)?;
        let file = Outside { inner, said: outside.clone() };
        file.check().map_err(failed)?;
        Ok(Arc::new(file))
    }

    /// Allocates a data file number for an outside file.
    pub fn outside_number(&self) -> Result<u64> {
        let mut writer = self.writer.lock();
        let writer = self.writable(&mut writer)?;
        let number = self.next_data(writer)?;
        writer.next_data = number + 1;
        Ok(number)
    }
}

/// An outside file that must keep the length that it had at import.
struct Outside {
    inner: Arc<dyn File>,
    said: Arc<OutsideFile>,
}

impl Outside {
    fn check(&self) -> io::Result<()> {
        let (found, said) = (self.inner.len()?, self.said.bytes);
        if found == said {
            return Ok(());
        }
        let text = format!(
            "it has {found} bytes, and had {said} when it was imported: restore it, or import it again"
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, text))
    }
}

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "an outside file is never written")
}

impl File for Outside {
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

    fn write_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        Err(refused())
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn is_untouched(&self) -> io::Result<bool> {
        Ok((self.inner.len()?, self.inner.modified()?) == (self.said.bytes, self.said.mtime))
    }

    fn modified(&self) -> io::Result<i64> {
        self.inner.modified()
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(refused())
    }

    fn punch(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(refused())
    }

    #[cfg(feature = "mount")]
    fn descriptor(&self) -> io::Result<Option<std::os::fd::OwnedFd>> {
        self.inner.descriptor()
    }

    fn identity(&self) -> io::Result<Option<Identity>> {
        self.inner.identity()
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}
