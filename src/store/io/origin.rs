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
use std::ops::Range;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::format::checksum;
use crate::format::log::catalog::{ObjectEntry, OutsideFile};
use crate::format::log::record::Stored;
use crate::model::{Error, Result};
use crate::store::Collection;
use crate::store::disk::{File, Identity};
use crate::store::io::read::OpenObject;
use crate::store::object::blocks::{Block, Checksums};
use crate::store::object::checked::Checked;
use crate::store::object::{Object, exact_at};
use crate::store::state::State;

/// The imported content of an object's blocks, in a file outside the store.
#[derive(Debug)]
pub struct Origin {
    /// The file.
    pub file: Arc<OutsideFile>,
    /// The record that describes the blocks.
    run: RwLock<OriginRun>,
    /// Blocks written since the import.
    severed: Checked,
}

/// The record of the blocks of an outside file, from the first block on.
#[derive(Clone, Debug, Default)]
pub(in crate::store) struct OriginRun {
    /// The record's sequence number.
    pub epoch: u64,
    /// Time of the import, in seconds since 1970.
    pub since: u32,
    /// CRC32C of each block.
    pub checksums: Checksums,
}

impl Origin {
    /// An origin whose record is not applied yet.
    pub(in crate::store) fn new(file: Arc<OutsideFile>) -> Origin {
        Origin { file, run: RwLock::default(), severed: Checked::none() }
    }

    /// The checksum of a block in the outside file; `None` if the block was written since.
    pub fn checksum(&self, index: u32) -> Option<u32> {
        if self.severed.get(index) {
            return None;
        }
        self.run.read().checksums.get(index as usize).copied()
    }

    /// Its path, for messages.
    pub fn path(&self) -> String {
        String::from_utf8_lossy(&self.file.path).into_owned()
    }

    pub(in crate::store) fn run(&self) -> OriginRun {
        self.run.read().clone()
    }

    pub(in crate::store) fn set_run(&self, run: OriginRun) {
        *self.run.write() = run;
    }

    pub(in crate::store) fn sever(&self, index: u32) {
        self.severed.set(index);
    }

    /// Detaches the blocks of `range` that have an origin.
    pub(in crate::store) fn sever_all(&self, range: Range<u32>) {
        let end = (self.run.read().checksums.len() as u32).min(range.end);
        (range.start..end).for_each(|index| self.sever(index));
    }

    /// Whether a block was written since the import.
    pub(in crate::store) fn is_severed(&self, index: u32) -> bool {
        self.severed.get(index)
    }

    pub(in crate::store) fn truncate(&self, count: u32) {
        self.run.write().checksums.truncate(count as usize);
    }
}

impl Object {
    /// Location of a block in the outside file; `None` if the block was written, or there is no outside
    /// file.
    pub fn origin_place(&self, index: u32) -> Option<Stored> {
        let checksum = self.origin.as_ref()?.checksum(index)?;
        let (extent, layout) = (self.extent()?, self.logged_layout());
        let place = exact_at(extent.offset + layout.start(index), true);
        Some(Stored { checksum, len: layout.len(index) as u32, ..place })
    }

    /// Checks that a block that the log moves into an outside file is there.
    pub(in crate::store) fn check_extent(&self, index: u32, block: &Block) -> Result<()> {
        if self.origin.is_some() && block.stored.in_data && self.origin_place(index) != Some(block.stored) {
            let id = self.entry.id;
            return Err(Error::corrupt(format!(
                "block {index} of object {id} in an outside file that has not it"
            )));
        }
        Ok(())
    }
}

impl State {
    /// A new object for a catalog entry. Its data file may be an outside file.
    pub(in crate::store) fn object_of(&self, entry: ObjectEntry) -> Result<Object> {
        let outside = entry.extent.and_then(|extent| Some((extent, self.outside(extent.file)?)));
        // The object may have grown since, so its end may exceed the file: such blocks lie elsewhere.
        let Some((extent, outside)) = outside else { return Ok(Object::new(entry)) };
        if extent.offset > outside.bytes {
            return Err(Error::corrupt(format!("object {} past the end of an outside file", entry.id)));
        }
        Ok(Object::of_outside(entry, Origin::new(outside.clone())))
    }
}

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
