//! A disk in memory with at most 16 MiB a file: a log may place a block anywhere.

use std::any::Any;
use std::io;
use std::sync::Arc;

use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, File, Listed, Lock, Open, Space};

const FILE_BYTES_MAX: u64 = 16 << 20;

pub struct Bounded(pub MemoryDisk);

struct BoundedFile(Arc<dyn File>);

fn fits(end: Option<u64>) -> io::Result<()> {
    let fits = end.is_some_and(|end| end <= FILE_BYTES_MAX);
    if fits { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
}

impl File for BoundedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        fits(offset.checked_add(bytes.len() as u64))?;
        self.0.write_at(bytes, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        fits(Some(len))?;
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

impl Disk for Bounded {
    fn place(&self) -> String {
        self.0.place()
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(BoundedFile(self.0.open(path, how)?)))
    }

    fn create_directory(&self, path: &str) -> io::Result<()> {
        self.0.create_directory(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.0.remove_file(path)
    }

    fn remove_directory(&self, path: &str) -> io::Result<()> {
        self.0.remove_directory(path)
    }

    fn list(&self, path: &str) -> io::Result<Vec<Listed>> {
        self.0.list(path)
    }

    fn sync_directory(&self, path: &str) -> io::Result<()> {
        self.0.sync_directory(path)
    }

    fn space(&self) -> io::Result<Space> {
        self.0.space()
    }

    fn lock(&self, how: Lock, note: &str) -> io::Result<Box<dyn Any + Send + Sync>> {
        self.0.lock(how, note)
    }
}
