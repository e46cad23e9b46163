//! Disks and files that pass most calls on to another one. Such a type implements [`ForwardDisk`] or [`ForwardFile`]
//! with the calls that it changes; it forgets none of the others.

use std::any::Any;
use std::io;
use std::sync::Arc;

use crate::store::disk::change::Change;
use crate::store::disk::{Advice, Disk, File, FileAttributes, Listed, Lock, Open, ReadAt, Space};

/// A [`File`] before another.
pub trait ForwardFile: Send + Sync {
    /// The other.
    fn inner(&self) -> &dyn File;
    /// As [`ReadAt::read_at`].
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner().read_at(buffer, offset)
    }
    /// As [`ReadAt::read_in_memory`].
    fn read_in_memory(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner().read_in_memory(buffer, offset)
    }
    /// As [`ReadAt::len`].
    fn bytes(&self) -> io::Result<u64> {
        self.inner().len()
    }
    /// As [`File::write_at`].
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.inner().write_at(bytes, offset)
    }
    /// As [`File::write_over`].
    fn write_over(&self, change: Change, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.inner().write_over(change, bytes, offset)
    }
    /// As [`File::set_len`].
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner().set_len(len)
    }
    /// As [`File::reserve`].
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner().reserve(offset, len)
    }
    /// As [`File::punch`].
    fn punch(&self, change: Change, offset: u64, len: u64) -> io::Result<()> {
        self.inner().punch(change, offset, len)
    }
    /// As [`File::advise`].
    fn advise(&self, advice: Advice, offset: u64, len: u64) -> io::Result<()> {
        self.inner().advise(advice, offset, len)
    }
    /// As [`File::sync_data`].
    fn sync_data(&self) -> io::Result<()> {
        self.inner().sync_data()
    }
    /// As [`File::next_data`].
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.inner().next_data(offset)
    }
    /// As [`File::is_held`].
    fn is_held(&self) -> io::Result<bool> {
        self.inner().is_held()
    }
    /// As [`File::descriptor`].
    #[cfg(feature = "mount")]
    fn descriptor(&self) -> io::Result<Option<std::os::fd::OwnedFd>> {
        self.inner().descriptor()
    }
    /// As [`File::attributes`].
    fn attributes(&self) -> io::Result<FileAttributes> {
        self.inner().attributes()
    }
}

impl<F: ForwardFile> ReadAt for F {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        ForwardFile::read_at(self, buffer, offset)
    }

    fn read_in_memory(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        ForwardFile::read_in_memory(self, buffer, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.bytes()
    }
}

impl<F: ForwardFile> File for F {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        ForwardFile::write_at(self, bytes, offset)
    }

    fn write_over(&self, change: Change, bytes: &[u8], offset: u64) -> io::Result<()> {
        ForwardFile::write_over(self, change, bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        ForwardFile::set_len(self, len)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        ForwardFile::reserve(self, offset, len)
    }

    fn punch(&self, change: Change, offset: u64, len: u64) -> io::Result<()> {
        ForwardFile::punch(self, change, offset, len)
    }

    fn advise(&self, advice: Advice, offset: u64, len: u64) -> io::Result<()> {
        ForwardFile::advise(self, advice, offset, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        ForwardFile::sync_data(self)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        ForwardFile::next_data(self, offset)
    }

    fn is_held(&self) -> io::Result<bool> {
        ForwardFile::is_held(self)
    }

    #[cfg(feature = "mount")]
    fn descriptor(&self) -> io::Result<Option<std::os::fd::OwnedFd>> {
        ForwardFile::descriptor(self)
    }

    fn attributes(&self) -> io::Result<FileAttributes> {
        ForwardFile::attributes(self)
    }
}

/// A [`Disk`] before another.
pub trait ForwardDisk: Send + Sync {
    /// The other.
    fn inner(&self) -> &dyn Disk;
    /// As [`Disk::place`].
    fn place(&self) -> String {
        self.inner().place()
    }
    /// As [`Disk::open`].
    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        self.inner().open(path, how)
    }
    /// As [`Disk::open_outside`].
    fn open_outside(&self, path: &[u8]) -> io::Result<Arc<dyn File>> {
        self.inner().open_outside(path)
    }
    /// As [`Disk::create_directory`].
    fn create_directory(&self, path: &str) -> io::Result<()> {
        self.inner().create_directory(path)
    }
    /// As [`Disk::rename`].
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner().rename(from, to)
    }
    /// As [`Disk::exchange`].
    fn exchange(&self, one: &str, other: &str) -> io::Result<()> {
        self.inner().exchange(one, other)
    }
    /// As [`Disk::link`].
    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner().link(from, to)
    }
    /// As [`Disk::remove_file`].
    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.inner().remove_file(path)
    }
    /// As [`Disk::remove_directory`].
    fn remove_directory(&self, path: &str) -> io::Result<()> {
        self.inner().remove_directory(path)
    }
    /// As [`Disk::list`].
    fn list(&self, path: &str) -> io::Result<Vec<Listed>> {
        self.inner().list(path)
    }
    /// As [`Disk::sync_directory`].
    fn sync_directory(&self, path: &str) -> io::Result<()> {
        self.inner().sync_directory(path)
    }
    /// As [`Disk::space`].
    fn space(&self) -> io::Result<Space> {
        self.inner().space()
    }
    /// As [`Disk::lock`].
    fn lock(&self, how: Lock, note: &str) -> io::Result<Box<dyn Any + Send + Sync>> {
        self.inner().lock(how, note)
    }
    /// As [`Disk::descriptors_max`].
    fn descriptors_max(&self) -> Option<u64> {
        self.inner().descriptors_max()
    }
}

impl<D: ForwardDisk> Disk for D {
    fn place(&self) -> String {
        ForwardDisk::place(self)
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        ForwardDisk::open(self, path, how)
    }

    fn open_outside(&self, path: &[u8]) -> io::Result<Arc<dyn File>> {
        ForwardDisk::open_outside(self, path)
    }

    fn create_directory(&self, path: &str) -> io::Result<()> {
        ForwardDisk::create_directory(self, path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        ForwardDisk::rename(self, from, to)
    }

    fn exchange(&self, one: &str, other: &str) -> io::Result<()> {
        ForwardDisk::exchange(self, one, other)
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        ForwardDisk::link(self, from, to)
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        ForwardDisk::remove_file(self, path)
    }

    fn remove_directory(&self, path: &str) -> io::Result<()> {
        ForwardDisk::remove_directory(self, path)
    }

    fn list(&self, path: &str) -> io::Result<Vec<Listed>> {
        ForwardDisk::list(self, path)
    }

    fn sync_directory(&self, path: &str) -> io::Result<()> {
        ForwardDisk::sync_directory(self, path)
    }

    fn space(&self) -> io::Result<Space> {
        ForwardDisk::space(self)
    }

    fn lock(&self, how: Lock, note: &str) -> io::Result<Box<dyn Any + Send + Sync>> {
        ForwardDisk::lock(self, how, note)
    }

    fn descriptors_max(&self) -> Option<u64> {
        ForwardDisk::descriptors_max(self)
    }
}
