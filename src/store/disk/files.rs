//! A disk that is a directory of the operating system.

use std::any::Any;
use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{Advice as FileAdvice, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::process::{Resource, getrlimit};

use crate::format::mountinfo::topmost;
use crate::model::{Error, Result, StoreId};
use crate::store::disk::change::Change;
use crate::store::disk::{Advice, Disk, File, FileAttributes, Identity, Listed, Lock, Open, ReadAt, Space};

/// The files of a store are accessible to their owner only, until a mount says otherwise.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;
/// Holder named in the error when several processes share the store.
const READERS: &str = "read-only processes";

/// Opening a pipe must not block.
const NOT_WAITING: i32 = libc::O_NONBLOCK | libc::O_NOCTTY;
/// An open that must not block fails while somebody has a lease on the file; it is tried again so often.
const LEASE_TRIES: u32 = 500;
const LEASE_PAUSE: Duration = Duration::from_micros(100);
/// Bytes of a lock's note that are shown, because the file could contain anything.
const NOTE_LIMIT: u64 = 4096;

/// Calls past the page cache concern whole pages, and at least so many bytes.
const DIRECT_ALIGN: usize = 4096;
const DIRECT_BYTES_MIN: usize = 64 << 10;

thread_local! {
    static PAST_CACHE: Cell<bool> = const { Cell::new(false) };
}

/// Does work in which this thread writes and reads whole pages of files past the page cache, where the file system can:
/// a program that opened a file with O_DIRECT caches its bytes itself. Bytes that are in the page cache are read there.
pub fn past_cache<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            PAST_CACHE.set(self.0);
        }
    }
    let _before = Before(PAST_CACHE.replace(true));
    work()
}

/// A directory of the operating system.
#[derive(Clone, Debug)]
pub struct FileDisk {
    root: PathBuf,
    leases: Arc<Leases>,
    /// The locked file that another process has handed over.
    locked: Option<Arc<fs::File>>,
}

struct SystemFile {
    file: fs::File,
    leases: Arc<Leases>,
}

/// Whether the file system says who else has a file, and the answer where it does not.
#[derive(Debug, Default)]
struct Leases {
    root: PathBuf,
    /// Whether it grants leases on files that nobody else has.
    are_granted: OnceLock<bool>,
    /// The files that a descriptor was given of.
    given: Mutex<HashSet<Identity>>,
}

/// The answer of the system to the question who else has a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// Nobody has it open or mapped.
    ByNobody,
    /// Somebody has it open or mapped, or the file system grants no leases.
    Perhaps,
    /// The file system has no leases.
    Unknown,
}

/// The command of fcntl(2) that sets the signal for opens of a file with a lease.
const F_SETSIG: i32 = 10;

/// Whether anybody else has a file open or mapped: the kernel grants a lease for writing only if this descriptor is
/// the only one, and a mapping counts as the descriptor that it was made of, which it outlives.
pub fn held(file: &fs::File) -> Held {
    let fcntl = |command: i32, value: i32| {
        // SAFETY: these commands take a number, and touch no memory of this process.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, value) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // The kernel sends SIGIO by default to who has a lease when somebody opens the file, which would end the process.
    let asked = fcntl(F_SETSIG, libc::SIGURG).and_then(|()| fcntl(libc::F_SETLEASE, libc::F_WRLCK));
    match asked {
        Ok(()) => {
            let ended = fcntl(libc::F_SETLEASE, libc::F_UNLCK);
            ended.unwrap_or_else(|error| log::warn!("the lease of a file stays: {error}"));
            Held::ByNobody
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Held::Perhaps,
        Err(_) => Held::Unknown,
    }
}

impl Leases {
    fn of(root: &Path) -> Arc<Leases> {
        Arc::new(Leases { root: root.to_owned(), ..Leases::default() })
    }

    /// Whether a file without a name, which nobody else has, gets a lease. Network file systems refuse as if
    /// somebody had it.
    fn are_granted(&self) -> bool {
        *self.are_granted.get_or_init(|| {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let made = rustix::fs::open(&self.root, flags, Mode::RUSR | Mode::WUSR);
            made.is_ok_and(|made| held(&fs::File::from(made)) == Held::ByNobody)
        })
    }

    fn is_held(&self, file: &SystemFile) -> io::Result<bool> {
        let found = match held(&file.file) {
            Held::Perhaps if !self.are_granted() => Held::Unknown,
            found => found,
        };
        match found {
            Held::ByNobody => Ok(false),
            Held::Perhaps => Ok(true),
            Held::Unknown => {
                let identity = file.attributes()?.identity;
                Ok(identity.is_none_or(|identity| self.given.lock().contains(&identity)))
            }
        }
    }
}

impl FileDisk {
    /// The directory `root`, which need not exist yet.
    pub fn new(root: &Path) -> FileDisk {
        FileDisk { root: root.to_owned(), leases: Leases::of(root), locked: None }
    }

    /// The same, with the lock that another process had. It is the lock of both, until each has closed it.
    pub fn with_lock(self, locked: Option<fs::File>) -> FileDisk {
        FileDisk { locked: locked.map(Arc::new), ..self }
    }

    /// Creates the directory, and missing ones above it.
    pub fn create(root: &Path) -> io::Result<FileDisk> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(root)?;
        Ok(FileDisk::new(root))
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn file(&self, file: fs::File) -> Arc<dyn File> {
        Arc::new(SystemFile { file, leases: self.leases.clone() })
    }
}

impl SystemFile {
    /// Starts writing a stretch to the disk without waiting, so that a later sync has less to do.
    fn begin_sync(&self, offset: u64, len: u64) -> io::Result<()> {
        let (Ok(offset), Ok(len)) = (offset.try_into(), len.try_into()) else { return Ok(()) };
        // SAFETY: the descriptor is open while `self` lives, and the call takes no memory of ours.
        let begun =
            unsafe { libc::sync_file_range(self.file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
        possible(match begun {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        })
    }
}

impl SystemFile {
    /// Another descriptor of the file that goes past the page cache, for one call: a file that has two is one that
    /// somebody else has (`Held`). `None` where the file system has no such descriptors.
    fn direct(&self, flags: OFlags) -> Option<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        rustix::fs::open(path, flags | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// Writes whole pages past the page cache. Returns how many bytes were written; the caller writes the rest.
    fn write_direct(&self, bytes: &[u8], offset: u64) -> usize {
        let Some(direct) = self.direct(OFlags::WRONLY) else { return 0 };
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pwrite(&direct, rest, offset + done as u64) {
                Ok(count) if count > 0 && count % DIRECT_ALIGN == 0 => done += count,
                Err(Errno::INTR) => {}
                // The other way reports what is wrong.
                _ => break,
            }
        }
        done
    }

    /// Reads whole pages past the page cache, unless they are in it. Returns how many bytes were read.
    fn read_direct(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = self.read_in_memory(buffer, offset)? / DIRECT_ALIGN * DIRECT_ALIGN;
        if done == buffer.len() {
            return Ok(done);
        }
        let Some(direct) = self.direct(OFlags::RDONLY) else { return Ok(done) };
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&direct, rest, offset + done as u64) {
                Ok(count) if count > 0 && count % DIRECT_ALIGN == 0 => done += count,
                Err(Errno::INTR) => {}
                _ => break,
            }
        }
        Ok(done)
    }
}

/// Whether a call of this thread goes past the page cache.
fn is_direct(bytes: &[u8], offset: u64) -> bool {
    let is_aligned = |number: usize| number.is_multiple_of(DIRECT_ALIGN);
    PAST_CACHE.get()
        && bytes.len() >= DIRECT_BYTES_MIN
        && is_aligned(bytes.len())
        && is_aligned(bytes.as_ptr().addr())
        && offset.is_multiple_of(DIRECT_ALIGN as u64)
}

impl ReadAt for SystemFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = if is_direct(buffer, offset) { self.read_direct(buffer, offset)? } else { 0 };
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset + done as u64) {
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
        match rustix::io::preadv2(&self.file, slice, offset, ReadWriteFlags::NOWAIT) {
            Ok(count) => Ok(count),
            // It is not in the page cache, or the file system cannot tell.
            Err(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

impl File for SystemFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let done = if is_direct(bytes, offset) { self.write_direct(bytes, offset) } else { 0 };
        self.file.write_all_at(bytes.get(done..).unwrap_or_default(), offset + done as u64)
    }

    fn write_parts_at(&self, parts: &[&[u8]], mut offset: u64) -> io::Result<()> {
        let mut slices: Vec<IoSlice> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = slices.as_mut_slice();
        // Empty parts go first.
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match rustix::io::pwritev(&self.file, rest, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    IoSlice::advance_slices(&mut rest, written);
                    offset += written as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        possible(rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, len))
    }

    fn is_held(&self) -> io::Result<bool> {
        self.leases.is_held(self)
    }

    fn punch(&self, _change: Change, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
        possible(rustix::fs::fallocate(&self.file, flags, offset, len))
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            // The file system does not support the query.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(offset)),
            Err(error) => Err(error.into()),
        }
    }

    fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        let given = self.file.try_clone()?;
        if let Some(identity) = self.attributes()?.identity {
            self.leases.given.lock().insert(identity);
        }
        Ok(Some(given.into()))
    }

    fn attributes(&self) -> io::Result<FileAttributes> {
        let found = self.file.metadata()?;
        let modified = found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec());
        Ok(FileAttributes {
            links: found.nlink(),
            identity: Some((found.dev(), found.ino())),
            modified: Some(modified),
            allocated: Some(found.blocks().saturating_mul(512)),
        })
    }

    fn advise(&self, advice: Advice, offset: u64, len: u64) -> io::Result<()> {
        match advice {
            Advice::WillSync => self.begin_sync(offset, len),
            Advice::WontRead => {
                let Some(len) = NonZeroU64::new(len) else { return Ok(()) };
                possible(rustix::fs::fadvise(&self.file, offset, Some(len), FileAdvice::DontNeed))
            }
            Advice::ReadAsAsked => possible(rustix::fs::fadvise(&self.file, 0, None, FileAdvice::Random)),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
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
        Ok(self.file(only_a_file(&mut options, &self.path(path))?))
    }

    fn open_outside(&self, path: &[u8]) -> io::Result<Arc<dyn File>> {
        let path = Path::new(OsStr::from_bytes(path));
        // A daemon that reads a file from its own mount would deadlock.
        let mounts = fs::read("/proc/self/mountinfo")?;
        if topmost(&mounts, path).is_some_and(|mounted| mounted.is_ours()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it lies on a tierfs"));
        }
        Ok(self.file(regular(fs::OpenOptions::new().read(true), NOT_WAITING, path)?))
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
        let locked = self.locked.as_ref().map(|locked| locked.try_clone());
        let file = match locked.unwrap_or_else(|| only_a_file(&mut options, &self.path("lock"))) {
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
            let written =
                file.write_all_at(note.as_bytes(), 0).and_then(|()| file.set_len(note.len() as u64));
            if let Err(error) = written {
                log::warn!("the name of the holder cannot be written to the lock: {error}");
            }
        }
        Ok(Box::new(file))
    }

    fn descriptors_max(&self) -> Option<u64> {
        getrlimit(Resource::Nofile).current
    }
}

impl FileDisk {
    /// The note in the file of the lock, of the process that has it or last had it to write.
    pub fn note(&self) -> io::Result<String> {
        let mut note = String::new();
        let file = only_a_file(fs::OpenOptions::new().read(true), &self.path("lock"))?;
        file.take(NOTE_LIMIT).read_to_string(&mut note)?;
        Ok(note)
    }

    /// Replaces the note, which stays when the process ends. The caller has the lock to write.
    pub fn leave_note(&self, note: &str) -> io::Result<()> {
        let mut file = only_a_file(fs::OpenOptions::new().write(true), &self.path("lock"))?;
        let note = crate::model::beginning(note, NOTE_LIMIT as usize);
        // The note before is overwritten, so a full disk has room for it.
        file.write_all(note.as_bytes())?;
        file.set_len(note.len() as u64)
    }
}

/// Opens a file of the store. Refuses links, which could lead out of it.
fn only_a_file(options: &mut fs::OpenOptions, path: &Path) -> io::Result<fs::File> {
    regular(options, NOT_WAITING | libc::O_NOFOLLOW, path)
}

/// Opens a regular file. Anything else under that name is an error.
fn regular(options: &mut fs::OpenOptions, flags: i32, path: &Path) -> io::Result<fs::File> {
    let options = options.custom_flags(flags);
    let mut opened = options.open(path);
    for _ in 0..LEASE_TRIES {
        // Another thread has a lease for the time of its question.
        if !opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            break;
        }
        std::thread::sleep(LEASE_PAUSE);
        opened = options.open(path);
    }
    let file = opened?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    Ok(file)
}

/// Opens a file outside any store, for import.
pub fn open_source(path: &Path) -> io::Result<Arc<dyn File>> {
    Ok(FileDisk::new(Path::new("")).file(fs::File::open(path)?))
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

    use super::{FileDisk, SystemFile, past_cache, visit_files};
    use crate::store::disk::{Disk, File, Open, ReadAt};

    #[test]
    fn a_file_is_held_by_who_has_it_open_or_mapped_and_never_by_the_store() {
        use std::os::fd::AsRawFd;
        let root = tempfile::tempdir().unwrap();
        let disk = crate::store::disk::descriptors::Descriptors::new(std::sync::Arc::new(FileDisk::new(
            root.path(),
        )));
        let file = disk.open("data", Open::Create).unwrap();
        file.write_at(&[7; 8192], 0).unwrap();
        let (second, reader) =
            (disk.open("data", Open::Write).unwrap(), disk.open("data", Open::Read).unwrap());
        second.write_at(&[8; 10], 0).unwrap();
        assert!(!file.is_held().unwrap() && !second.is_held().unwrap());
        reader.read_exact_at(&mut [0; 10], 0).unwrap();
        assert!(!file.is_held().unwrap());
        for flags in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
            let other = fs::File::open(root.path().join("data")).unwrap();
            assert!(file.is_held().unwrap());
            // SAFETY: a new mapping at an address of the kernel's choice; the descriptor is open.
            let at = unsafe {
                libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ, flags, other.as_raw_fd(), 0)
            };
            assert_ne!(at, libc::MAP_FAILED);
            drop(other);
            assert!(file.is_held().unwrap(), "the descriptor is closed, and the mapping lives");
            // SAFETY: mapped above, and not used after this.
            unsafe { libc::munmap(at, 8192) };
            assert!(!file.is_held().unwrap());
        }
    }

    #[test]
    fn calls_past_the_page_cache_take_all_bytes_and_agree_with_calls_through_it() {
        const BYTES: usize = 256 << 10;
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("data");
        let file = fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let file = SystemFile { file, leases: std::sync::Arc::default() };
        if file.direct(OFlags::WRONLY).is_none() {
            eprintln!("skipped: the file system has no O_DIRECT");
            return;
        }
        let mut room = vec![0; 2 * BYTES + 4096];
        let begin = room.as_ptr().align_offset(4096);
        let (from, into) = room[begin..begin + 2 * BYTES].split_at_mut(BYTES);
        for round in 1..4_u8 {
            let bytes_of = |at: usize| (at as u8).wrapping_mul(round).wrapping_add((at >> 12) as u8);
            from.iter_mut().enumerate().for_each(|(at, byte)| *byte = bytes_of(at));
            assert_eq!(file.write_direct(from, 0), BYTES);
            into.fill(0);
            // The first such read brings the pages into the cache. The next write must not leave them there as they are.
            file.read_exact_at(into, 0).unwrap();
            assert!(from == into, "round {round}: read through the cache");
            assert!(fs::read(&path).unwrap() == from);
            file.write_at(&[round; 5000], 100).unwrap();
            from[100..5100].fill(round);
            into.fill(0);
            assert_eq!(file.read_direct(into, 0).unwrap(), BYTES);
            assert!(from == into, "round {round}: read past the cache");
        }
        rustix::fs::fadvise(&file.file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        into.fill(0);
        past_cache(|| file.read_exact_at(into, 0)).unwrap();
        assert!(from == into, "what is not in the cache");
        // Behind the end.
        past_cache(|| file.write_at(&from[..96 << 10], BYTES as u64)).unwrap();
        assert!(fs::read(&path).unwrap()[BYTES..] == from[..96 << 10]);
    }

    #[test]
    fn files_are_opened_while_others_ask_whether_they_are_held() {
        let root = tempfile::tempdir().unwrap();
        let disk = FileDisk::new(root.path());
        let file = disk.open("data", Open::Create).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    file.is_held().unwrap();
                }
            });
            let opened = (0..3000).all(|_| disk.open("data", Open::Read).is_ok());
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(opened);
        });
    }

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
