//! A disk that records every change, so that the disk after any of them can be made again.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tierfs::store::disk::change::Change;
use tierfs::store::disk::forward::{ForwardDisk, ForwardFile};
use tierfs::store::disk::{Disk, File, Open};

use super::power_cut_disk::CutDisk;

/// A change, or the opening of a file to which later changes refer by number.
#[derive(Clone)]
enum Op {
    Open(String, Open, usize),
    Write(usize, u64, Arc<[u8]>),
    Len(usize, u64),
    Punch(usize, Change, u64, u64),
    Sync(usize),
    Directory(String),
    Rename(String, String),
    Link(String, String),
    Remove(String),
    RemoveDirectory(String),
    SyncDirectory(String),
}

#[derive(Clone)]
pub struct Recorder {
    inner: CutDisk,
    ops: Arc<Mutex<Vec<Op>>>,
    /// Whether writes fail after half of their bytes.
    pub is_full: Arc<AtomicBool>,
    /// Bytes that were read.
    pub read: Arc<AtomicU64>,
}

struct Recorded {
    inner: Arc<dyn File>,
    number: usize,
    ops: Arc<Mutex<Vec<Op>>>,
    is_full: Arc<AtomicBool>,
    read: Arc<AtomicU64>,
}

impl Recorder {
    pub fn new(inner: CutDisk) -> Recorder {
        Recorder { inner, ops: Arc::default(), is_full: Arc::default(), read: Arc::default() }
    }

    fn ops(&self) -> MutexGuard<'_, Vec<Op>> {
        self.ops.lock().unwrap()
    }

    /// How many changes there were.
    pub fn count(&self) -> usize {
        self.ops().len()
    }

    /// How many files with this in their paths were opened since the change with this number.
    pub fn opened(&self, part: &str, since: usize) -> usize {
        let is_of = |op: &&Op| matches!(op, Op::Open(path, ..) if path.contains(part));
        self.ops()[since..].iter().filter(is_of).count()
    }

    /// Applies the first `count` changes to a copy of the disk as it was at the beginning.
    pub fn again(&self, disk: CutDisk, count: usize) -> CutDisk {
        let mut files: HashMap<usize, Arc<dyn File>> = HashMap::new();
        for op in &self.ops()[..count] {
            match op {
                Op::Open(path, how, number) => {
                    files.insert(*number, disk.open(path, *how).unwrap());
                }
                Op::Write(file, at, bytes) => files[file].write_at(bytes, *at).unwrap(),
                Op::Len(file, len) => files[file].set_len(*len).unwrap(),
                Op::Punch(file, change, at, len) => files[file].punch(*change, *at, *len).unwrap(),
                Op::Sync(file) => files[file].sync_data().unwrap(),
                Op::Directory(path) => disk.create_directory(path).unwrap(),
                Op::Rename(from, to) => disk.rename(from, to).unwrap(),
                Op::Link(from, to) => disk.link(from, to).unwrap(),
                Op::Remove(path) => disk.remove_file(path).unwrap(),
                Op::RemoveDirectory(path) => disk.remove_directory(path).unwrap(),
                Op::SyncDirectory(path) => disk.sync_directory(path).unwrap(),
            }
        }
        disk
    }
}

impl ForwardFile for Recorded {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let got = self.inner.read_at(buffer, offset)?;
        self.read.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.is_full.load(Ordering::Relaxed) {
            self.inner.write_at(&bytes[..bytes.len() / 2], offset)?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.ops.lock().unwrap().push(Op::Write(self.number, offset, bytes.into()));
        self.inner.write_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.ops.lock().unwrap().push(Op::Len(self.number, len));
        self.inner.set_len(len)
    }

    fn punch(&self, change: Change, offset: u64, len: u64) -> io::Result<()> {
        self.ops.lock().unwrap().push(Op::Punch(self.number, change, offset, len));
        self.inner.punch(change, offset, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.ops.lock().unwrap().push(Op::Sync(self.number));
        self.inner.sync_data()
    }
}

impl ForwardDisk for Recorder {
    fn inner(&self) -> &dyn Disk {
        &self.inner
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        let inner = self.inner.open(path, how)?;
        let mut ops = self.ops();
        let number = ops.len();
        ops.push(Op::Open(path.to_owned(), how, number));
        let (ops, is_full, read) = (self.ops.clone(), self.is_full.clone(), self.read.clone());
        Ok(Arc::new(Recorded { inner, number, ops, is_full, read }))
    }

    fn create_directory(&self, path: &str) -> io::Result<()> {
        self.ops().push(Op::Directory(path.to_owned()));
        self.inner.create_directory(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)?;
        self.ops().push(Op::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.link(from, to)?;
        self.ops().push(Op::Link(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.inner.remove_file(path)?;
        self.ops().push(Op::Remove(path.to_owned()));
        Ok(())
    }

    fn remove_directory(&self, path: &str) -> io::Result<()> {
        self.inner.remove_directory(path)?;
        self.ops().push(Op::RemoveDirectory(path.to_owned()));
        Ok(())
    }

    fn sync_directory(&self, path: &str) -> io::Result<()> {
        self.ops().push(Op::SyncDirectory(path.to_owned()));
        self.inner.sync_directory(path)
    }
}
