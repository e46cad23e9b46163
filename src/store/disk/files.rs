//! A disk that is a directory of the operating system.

use std::any::Any;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, IoSliceMut, Read, Write};
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Advice, CWD, FallocateFlags, FlockOperation, RenameFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::process::{Resource, getrlimit};

use crate::format::mountinfo::topmost;
use crate::model::{Error, Result, StoreId};
use crate::store::disk::{Disk, File, Identity, Listed, Lock, Open, Space};

/// The files of a store are accessible to their owner only, until a mount says otherwise.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;
/// Holder named in the error when several processes share the store.
const READERS: &str = "read-only processes";

/// Opening a pipe must not block.
const NOT_WAITING: i32 = libc::O_NONBLOCK | libc::O_NOCTTY;
/// Bytes of a lock's note that are shown, because the file could contain anything.
const NOTE_LIMIT: u64 = 4096;

/// A directory of the operating system.
#[derive(Clone, Debug)]
pub struct FileDisk {
    root: PathBuf,
}

struct SystemFile(fs::File);

impl FileDisk {
    /// The directory `root`, which need not exist yet.
    pub fn new(root: &Path) -> FileDisk {
        FileDisk { root: root.to_owned() }
    }

    /// Creates the directory, and missing ones above it.
    pub fn create(root: &Path) -> io::Result<FileDisk> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(root)?;
        Ok(FileDisk::new(root))
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }
}

impl File for SystemFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn read_in_memory(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let slice = &mut [IoSliceMut::new(buffer)];
        match rustix::io::preadv2(&self.0, slice, offset, ReadWriteFlags::NOWAIT) {
            Ok(count) => Ok(count),
            // It is not in the page cache, or the file system cannot tell.
            Err(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn modified(&self) -> io::Result<i64> {
        let found = self.0.metadata()?;
        Ok(found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec()))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        possible(rustix::fs::fallocate(&self.0, FallocateFlags::KEEP_SIZE, offset, len))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
        possible(rustix::fs::fallocate(&self.0, flags, offset, len))
    }

    fn drop_cached(&self, offset: u64, len: u64) -> io::Result<()> {
        let Some(len) = NonZeroU64::new(len) else { return Ok(()) };
        possible(rustix::fs::fadvise(&self.0, offset, Some(len), Advice::DontNeed))
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(&self.0, rustix::fs::SeekFrom::Data(offset)) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            // The file system does not support the query.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(offset)),
            Err(error) => Err(error.into()),
        }
    }

    fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        Ok(Some(self.0.try_clone()?.into()))
    }

    fn links(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.nlink())
    }

    fn identity(&self) -> io::Result<Option<Identity>> {
        let found = self.0.metadata()?;
        Ok(Some((found.dev(), found.ino())))
    }

    fn begin_sync(&self, offset: u64, len: u64) -> io::Result<()> {
        let (Ok(offset), Ok(len)) = (offset.try_into(), len.try_into()) else { return Ok(()) };
        // SAFETY: the descriptor is open while `self` lives, and the call takes no memory of ours.
        let begun =
            unsafe { libc::sync_file_range(self.0.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
        possible(match begun {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Ignores that a file system does not support an operation.
fn possible(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        done => Ok(done?),
    }
}

impl Disk for FileDisk {
    fn place(&self) -> String {
        self.root.display().to_string()
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true).mode(FILE_MODE);
        match how {
            Open::Read => {}
            Open::Write => {
                options.write(true);
            }
            Open::Create => {
                options.write(true).create_new(true);
            }
        }
        Ok(Arc::new(SystemFile(only_a_file(&mut options, &self.path(path))?)))
    }

    fn open_outside(&self, path: &[u8]) -> io::Result<Arc<dyn File>> {
        let path = Path::new(OsStr::from_bytes(path));
        // A daemon that reads a file from its own mount would deadlock.
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        if topmost(&mounts, path).is_some_and(|mounted| mounted.is_ours()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it lies on a tierfs"));
        }
        Ok(Arc::new(SystemFile(regular(fs::OpenOptions::new().read(true), NOT_WAITING, path)?)))
    }

    fn create_directory(&self, path: &str) -> io::Result<()> {
        match fs::DirBuilder::new().mode(DIRECTORY_MODE).create(self.path(path)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done,
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn exchange(&self, one: &str, other: &str) -> io::Result<()> {
        let (one, other) = (self.path(one), self.path(other));
        Ok(rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        // A symbolic link is not followed.
        fs::hard_link(self.path(from), self.path(to))
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.path(path))
    }

    fn remove_directory(&self, path: &str) -> io::Result<()> {
        fs::remove_dir(self.path(path))
    }

    fn list(&self, path: &str) -> io::Result<Vec<Listed>> {
        let mut listed = Vec::new();
        for entry in fs::read_dir(self.path(path))? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                listed.push(Listed { name, is_directory: entry.file_type()?.is_dir() });
            }
        }
        Ok(listed)
    }

    fn sync_directory(&self, path: &str) -> io::Result<()> {
        fs::File::open(self.path(path))?.sync_all()
    }

    fn space(&self) -> io::Result<Space> {
        let found = rustix::fs::statvfs(&self.root)?;
        Ok(Space {
            total: found.f_blocks.saturating_mul(found.f_frsize),
            free: found.f_bfree.saturating_mul(found.f_frsize),
            available: found.f_bavail.saturating_mul(found.f_frsize),
            files: found.f_files,
            files_free: found.f_ffree,
        })
    }

    fn lock(&self, how: Lock, note: &str) -> io::Result<Box<dyn Any + Send + Sync>> {
        let mut options = fs::OpenOptions::new();
        options.read(true);
        if how == Lock::Exclusive {
            options.write(true).create(true).mode(0o644);
        }
        let mut file = match only_a_file(&mut options, &self.path("lock")) {
            // The store was never written, and a reader may not be able to create the file.
            Err(error) if how == Lock::Shared && error.kind() == io::ErrorKind::NotFound => {
                return Ok(Box::new(()));
            }
            opened => opened?,
        };
        let operation = match how {
            Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
            Lock::Shared => FlockOperation::NonBlockingLockShared,
        };
        if let Err(error) = rustix::fs::flock(&file, operation) {
            if error != Errno::WOULDBLOCK {
                return Err(error.into());
            }
            // Readers leave no note: an existing one is from an earlier writer.
            let shared = FlockOperation::NonBlockingLockShared;
            let mut holder = READERS.to_owned();
            if how == Lock::Shared || rustix::fs::flock(&file, shared).is_err() {
                holder.clear();
                (&file).take(NOTE_LIMIT).read_to_string(&mut holder)?;
            }
            return Err(io::Error::new(io::ErrorKind::WouldBlock, holder));
        }
        if how == Lock::Exclusive {
            // The lock holds without the note, and a full disk must not keep a store closed. The note
            // overwrites the one before and uses its space.
            let written = file.write_all(note.as_bytes()).and_then(|()| file.set_len(note.len() as u64));
            if let Err(error) = written {
                log::warn!("the lock does not name its holder: {error}");
            }
        }
        Ok(Box::new(file))
    }

    fn descriptors_max(&self) -> Option<u64> {
        getrlimit(Resource::Nofile).current
    }

    fn lacks_descriptor(&self, error: &io::Error) -> bool {
        matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
    }
}

/// Opens a file of the store. Refuses links, which could lead out of it.
fn only_a_file(options: &mut fs::OpenOptions, path: &Path) -> io::Result<fs::File> {
    regular(options, NOT_WAITING | libc::O_NOFOLLOW, path)
}

/// Opens a regular file. Anything else under that name is an error.
fn regular(options: &mut fs::OpenOptions, flags: i32, path: &Path) -> io::Result<fs::File> {
    let file = options.custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    Ok(file)
}

/// Opens a file outside any store, for import.
pub fn open_source(path: &Path) -> io::Result<Arc<dyn File>> {
    Ok(Arc::new(SystemFile(fs::File::open(path)?)))
}

/// Visits the entries below a directory of the host that are not directories, or the path itself, without
/// following symbolic links. Entries that are removed meanwhile are left out. A directory that cannot be listed
/// is an error, which is returned after the visits of all others.
pub fn visit_files(path: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata)) -> Result<()> {
    let failed = |path: &Path, error| Error::io(path.display(), error);
    let metadata = fs::symlink_metadata(path).map_err(|error| failed(path, error))?;
    if !metadata.is_dir() {
        visit(path, &metadata);
        return Ok(());
    }
    let mut first = Ok(());
    let mut waiting = vec![path.to_owned()];
    while let Some(directory) = waiting.pop() {
        first = first.and(visit_entries(&directory, &mut waiting, visit));
    }
    first
}

/// Visits the entries of a directory, and adds its directories to `waiting`.
fn visit_entries(
    directory: &Path,
    waiting: &mut Vec<PathBuf>,
    visit: &mut dyn FnMut(&Path, &fs::Metadata),
) -> Result<()> {
    let failed = |path: &Path, error| Error::io(path.display(), error);
    for entry in fs::read_dir(directory).map_err(|error| failed(directory, error))? {
        let entry = entry.map_err(|error| failed(directory, error))?;
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => waiting.push(entry.path()),
            Ok(metadata) => visit(&entry.path(), &metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&entry.path(), error)),
        }
    }
    Ok(())
}

/// A random identity, from the operating system.
pub fn random_id() -> io::Result<StoreId> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(StoreId(u128::from_le_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{Mode, OFlags};

    use super::visit_files;

    #[test]
    fn files_beside_directories_that_cannot_be_listed_are_visited() {
        let root = tempfile::tempdir().unwrap();
        let name = "d".repeat(250);
        for number in 0..4 {
            let directory = root.path().join(number.to_string());
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("file"), "x").unwrap();
            // The path of the last ones is longer than the system takes.
            let mut at = rustix::fs::open(&directory, OFlags::DIRECTORY, Mode::empty()).unwrap();
            for _ in 0..20 {
                rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
                at = rustix::fs::openat(&at, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
            }
        }
        let mut bytes = 0;
        let visited = visit_files(root.path(), &mut |_, metadata| bytes += metadata.len());
        assert!(visited.is_err() && bytes == 4, "{bytes} bytes, {visited:?}");
    }
}
