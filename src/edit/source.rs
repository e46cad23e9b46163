//! What an open file reads as, as something to import.

use std::io;
use std::sync::Arc;

use crate::model::ErrorKind;
use crate::store::disk::File;
use crate::stream::Stream;

/// A stream as something to import.
pub(super) struct StreamFile(pub Arc<Stream>);

impl File for StreamFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read(offset, buffer).map_err(|error| {
            let kind = if error.kind() == ErrorKind::Absent {
                io::ErrorKind::NotFound
            } else {
                io::ErrorKind::Other
            };
            io::Error::new(kind, error.to_string())
        })
    }

    fn write_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.bytes())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}
