//! The records of open files, in memory that outlives the daemon: a file without a name, of which another process may
//! have a descriptor. The layout is that of `format/handover.rs`.
//!
//! A record is written before the kernel gets the handle, and cleared after the kernel has released it. One call writes a
//! record, so a daemon that is killed leaves whole ones.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::MemfdFlags;

use crate::format::handover::{HEAD_BYTES, Head, OpenRecord, RECORD_BYTES, RECORDS_BEGIN, free, last_handle};
use crate::model::{Error, Result};

/// Open files with a record at most. Others are open too, and ESTALE after a takeover.
const RECORDS_MAX: usize = 1 << 20;

/// The records of the open files of a mount; without a file, none.
#[derive(Default)]
pub(in crate::fs) struct Records(Option<File>);

impl Records {
    /// A file without records.
    pub fn new(head: Head) -> io::Result<Records> {
        let file = File::from(rustix::fs::memfd_create("tierfs-open-files", MemfdFlags::CLOEXEC)?);
        file.write_all_at(&head.encode(), 0)?;
        Ok(Records(Some(file)))
    }

    /// The records of an earlier daemon, and their head.
    pub fn taken_over(file: OwnedFd) -> Result<(Records, Head)> {
        let file = File::from(file);
        let mut head = [0; HEAD_BYTES];
        file.read_exact_at(&mut head, 0).map_err(failed)?;
        let head = Head::decode(&head)?;
        Ok((Records(Some(file)), head))
    }

    /// Another descriptor of the file, for another process.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        let none = || io::Error::other("the open files have no records");
        Ok(self.0.as_ref().ok_or_else(none)?.try_clone()?.into())
    }

    /// The handle that each place had last, and the record of the file if that is open.
    pub fn all(&self) -> Result<Vec<(u64, Option<OpenRecord>)>> {
        let Some(file) = &self.0 else { return Ok(Vec::new()) };
        let bytes_max = RECORDS_BEGIN + (RECORDS_MAX * RECORD_BYTES) as u64;
        let end = file.metadata().map_err(failed)?.len().min(bytes_max);
        let mut bytes = vec![0; end.saturating_sub(RECORDS_BEGIN) as usize];
        file.read_exact_at(&mut bytes, RECORDS_BEGIN).map_err(failed)?;
        let (records, _) = bytes.as_chunks();
        Ok(records.iter().map(|record| (last_handle(record), OpenRecord::decode(record))).collect())
    }

    /// Writes the record of a place.
    pub fn put(&self, place: usize, record: &OpenRecord) {
        self.write(place, &record.encode());
    }

    /// Clears the record of a place, all but the handle.
    pub fn clear(&self, place: usize, handle: u64) {
        self.write(place, &free(handle));
    }

    fn write(&self, place: usize, bytes: &[u8; RECORD_BYTES]) {
        let Some(file) = self.0.as_ref().filter(|_| place < RECORDS_MAX) else { return };
        if let Err(error) = file.write_all_at(bytes, RECORDS_BEGIN + (place * RECORD_BYTES) as u64) {
            log::warn!("an open file would not outlive this daemon: {error}");
        }
    }
}

fn failed(error: io::Error) -> Error {
    Error::io("reading the records of open files", error)
}
