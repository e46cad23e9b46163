//! A disk in memory with at most 16 MiB a file: a log may place a block anywhere.

use std::io;
use std::sync::Arc;

use tierfs::store::disk::forward::{ForwardDisk, ForwardFile};
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, File, Open};

const FILE_BYTES_MAX: u64 = 16 << 20;

pub struct Bounded(pub MemoryDisk);

struct BoundedFile(Arc<dyn File>);

fn fits(end: Option<u64>) -> io::Result<()> {
    let fits = end.is_some_and(|end| end <= FILE_BYTES_MAX);
    if fits { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
}

impl ForwardFile for BoundedFile {
    fn inner(&self) -> &dyn File {
        &*self.0
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        fits(offset.checked_add(bytes.len() as u64))?;
        self.0.write_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        fits(Some(len))?;
        self.0.set_len(len)
    }
}

impl ForwardDisk for Bounded {
    fn inner(&self) -> &dyn Disk {
        &self.0
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(BoundedFile(self.0.open(path, how)?)))
    }
}
