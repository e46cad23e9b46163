//! An open file of a clone.

use std::io;
use std::sync::Arc;

use crate::store::clones::deferred_fetch::noted;
use crate::store::clones::shared_file::{Pieces, SharedFile};
use crate::store::disk::File;
use crate::store::disk::change::Change;
use crate::store::disk::forward::ForwardFile;
use crate::store::pieces::file::Got;

/// A file of a clone. Its bytes are fetched when they are read.
pub struct CloneFile {
    inner: Arc<dyn File>,
    shared: Arc<SharedFile>,
}

impl CloneFile {
    pub(super) fn new(inner: Arc<dyn File>, shared: Arc<SharedFile>) -> CloneFile {
        CloneFile { inner, shared }
    }
}

impl ForwardFile for CloneFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = buffer.len() as u64;
        let mut known: Option<Arc<Pieces>> = None;
        let mut unkept: Vec<(u32, Arc<Vec<u8>>)> = Vec::new();
        loop {
            let reading = self.shared.reading();
            let pieces = self.shared.pieces();
            if known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &pieces)) {
                unkept.clear();
            }
            let mut missing = pieces.missing(offset, len);
            missing.retain(|piece| unkept.iter().all(|(known, _)| known != piece));
            if missing.is_empty() {
                let count = self.inner.read_at(buffer, offset)?;
                for (piece, bytes) in &unkept {
                    pieces.layout().copy(*piece, bytes, buffer, offset);
                }
                return Ok(count);
            }
            drop(reading);
            if self.shared.keeps()
                && unkept.is_empty()
                && let Some(error) = noted(&self.shared, offset, len)
            {
                return Err(error);
            }
            for piece in missing {
                if let Got::Unkept(bytes) = self.shared.fetch_for_reader(&pieces, piece)? {
                    unkept.push((piece, bytes));
                }
            }
            known = Some(pieces);
        }
    }

    fn read_in_memory(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let _reading = self.shared.reading();
        if !self.shared.is_here(offset, buffer.len() as u64) {
            return Ok(0);
        }
        self.inner.read_in_memory(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.shared.own(offset, bytes.len() as u64)?;
        let _reading = self.shared.reading();
        self.inner.write_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let _reading = self.shared.reading();
        self.inner.set_len(len)
    }

    fn punch(&self, change: Change, offset: u64, len: u64) -> io::Result<()> {
        // Nobody needs these bytes, so it does not matter that the remote has them.
        self.inner.punch(change, offset, len)
    }

    fn write_over(&self, change: Change, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.shared.own(offset, bytes.len() as u64)?;
        let _reading = self.shared.reading();
        self.inner.write_over(change, bytes, offset)
    }

    #[cfg(feature = "mount")]
    fn descriptor(&self) -> io::Result<Option<std::os::fd::OwnedFd>> {
        let _reading = self.shared.reading();
        if self.shared.pieces().is_whole() { self.inner.descriptor() } else { Ok(None) }
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let here = self.inner.next_data(offset)?;
        let pieces = self.shared.pieces();
        let remote = pieces.next_missing(offset).map(|extent| extent.offset.max(offset));
        Ok(here.into_iter().chain(remote).min())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.shared.save_or_tell();
        self.inner.sync_data()
    }
}
