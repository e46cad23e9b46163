//! An open file as the source of an import.

use std::io;
use std::sync::Arc;

use crate::model::ErrorKind;
use crate::store::disk::{File, ReadAt};
use crate::stream::Stream;

/// The first bytes of a stream, as the source of an import.
pub(super) struct StreamFile {
    pub stream: Arc<Stream>,
    /// How many bytes of the stream; at most its size.
    pub bytes: u64,
}

impl ReadAt for StreamFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(self.bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = buffer.len().min(rest);
        self.stream.read(offset, buffer.get_mut(..len).unwrap_or_default()).map_err(|error| {
            let kind = if error.kind() == ErrorKind::Absent {
                io::ErrorKind::NotFound
            } else {
                io::ErrorKind::Other
            };
            io::Error::new(kind, error.to_string())
        })
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }
}

impl File for StreamFile {
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}
