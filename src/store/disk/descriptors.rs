//! A disk whose files share a bounded number of descriptors.
//!
//! A store has a log and some payload files for each collection that was used, and a data file
//! for each open file. Each of them stays a usable [`File`] as long as somebody holds it. When too
//! many descriptors are open, the least recently used ones are closed; the next use of such a file
//! opens it again. The rules:
//!
//! 1. A descriptor is closed only while no call uses it and no write on it waits for a sync.
//!    Otherwise the error of a failed write-back could be lost: the file is synced first, and an
//!    error of that sync is returned to the next caller of `sync_data`.
//! 2. A file that loses its name keeps its descriptor.
//! 3. A file is opened again by its path. If another file stands there, the call fails.

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::model::Instant;
use crate::store::disk::change::Change;
use crate::store::disk::{Advice, Disk, File, FileAttributes, Identity, Listed, Lock, Open, ReadAt, Space};

/// The store uses at least this many, however low the limit is.
const DESCRIPTORS_MIN: u32 = 16;

/// EMFILE and ENFILE: the process or the system has no descriptor left.
const DESCRIPTORS_GONE: [i32; 2] = [24, 23];

fn lacks_descriptor(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|number| DESCRIPTORS_GONE.contains(&number))
}

/// A disk that uses at most half of the descriptors that the process may have, and as many as a setting says.
pub struct Descriptors {
    pool: Arc<Pool>,
}

struct Pool {
    disk: Arc<dyn Disk>,
    since: Instant,
    /// The files that somebody holds, by their paths. No other lock is taken while this one is
    /// held.
    files: Mutex<HashMap<String, Vec<Weak<Pooled>>>>,
    /// How many of them have a descriptor.
    open: AtomicUsize,
    /// The most that the store may have.
    most: AtomicUsize,
    /// Whether the log has named the limit of the process.
    is_told: AtomicBool,
}

/// A file with or without a descriptor.
struct Pooled {
    pool: Arc<Pool>,
    how: Open,
    identity: Option<Identity>,
    /// Its path. Held shared while the file is opened again, alone while it is renamed. Taken
    /// after `file`.
    path: RwLock<String>,
    /// Its descriptor. Held shared by every call, alone while the file is opened again or closed.
    file: RwLock<Option<Arc<dyn File>>>,
    /// The time of its last use, in nanoseconds since the pool was made.
    used: AtomicU64,
    is_unsynced: AtomicBool,
    /// Its name is gone: it cannot be opened again.
    is_nameless: AtomicBool,
    /// The error of a sync before closing.
    failed: OnceLock<(io::ErrorKind, String)>,
}

/// Which files may be closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// Only files without unsynced writes.
    Synced,
    /// The others too, after a sync.
    All,
}

impl Descriptors {
    /// A disk with the files of `disk`.
    pub fn new(disk: Arc<dyn Disk>) -> Descriptors {
        let pool = Pool {
            disk,
            since: Instant::now(),
            files: Mutex::default(),
            open: AtomicUsize::new(0),
            most: AtomicUsize::new(usize::MAX),
            is_told: AtomicBool::new(false),
        };
        Descriptors { pool: Arc::new(pool) }
    }

    /// Lets the store have at most this many descriptors from now on.
    pub fn keep_to(&self, most: u32) {
        self.pool.most.store(most.max(DESCRIPTORS_MIN) as usize, Ordering::Relaxed);
    }

    /// The number of descriptors that a store may use where the process may have `limit`. The other
    /// half is for imports, directories and the kernel's device.
    pub fn share_of(limit: u64) -> u64 {
        (limit / 2).max(DESCRIPTORS_MIN.into())
    }
}

impl Pool {
    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The files with this path that somebody holds.
    fn at(&self, path: &str) -> Vec<Arc<Pooled>> {
        let files = self.files.lock();
        files.get(path).into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    fn note(&self, path: &str, file: &Arc<Pooled>) {
        self.files.lock().entry(path.to_owned()).or_default().push(Arc::downgrade(file));
    }

    /// Does work that takes a descriptor. If the process or the system has none left, closes half
    /// of the files and tries again.
    fn with_room<T>(&self, work: impl Fn(&dyn Disk) -> io::Result<T>) -> io::Result<T> {
        self.keep_to_limit();
        loop {
            match work(&*self.disk) {
                Err(error) if lacks_descriptor(&error) => {
                    self.tell(&error.to_string());
                    let half = self.open.load(Ordering::Relaxed).div_ceil(2);
                    if self.close(half, Closing::All) == 0 {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }

    /// Closes files if the store uses its share. Files with unsynced writes are closed only if it
    /// uses half as many more.
    fn keep_to_limit(&self) {
        let Some(limit) = self.disk.descriptors_max() else { return };
        let share = usize::try_from(Descriptors::share_of(limit)).unwrap_or(usize::MAX);
        let (most, open) = (share.min(self.most.load(Ordering::Relaxed)), self.open.load(Ordering::Relaxed));
        if open < most {
            return;
        }
        if most == share {
            self.tell(&format!("{open} files of the store are open"));
        }
        // A quarter at a time: the search looks at every file.
        let wanted = open - most + most / 4;
        let closed = self.close(wanted, Closing::Synced);
        if open - closed.min(open) >= most + most / 2 {
            self.close(wanted, Closing::All);
        }
    }

    /// Closes up to `wanted` files, the least recently used first. Returns their number.
    fn close(&self, wanted: usize, which: Closing) -> usize {
        // A file that others drop meanwhile is dropped here, which takes the lock again.
        let mut files: Vec<Arc<Pooled>> = {
            let known = self.files.lock();
            known.values().flatten().filter_map(Weak::upgrade).collect()
        };
        files.sort_by_cached_key(|file| {
            (file.is_unsynced.load(Ordering::Acquire), file.used.load(Ordering::Relaxed))
        });
        files.iter().filter(|file| file.close(which)).take(wanted).count()
    }

    fn tell(&self, what: &str) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            let limit = self.disk.descriptors_max();
            let limit = limit.map_or_else(|| "unknown".to_owned(), |limit| limit.to_string());
            log::warn!(
                "{}: {what}; the limit of open files (RLIMIT_NOFILE) is {limit}. Files are now closed and opened \
                 again as needed. For more speed raise the limit (ulimit -Hn, LimitNOFILE= of a service)",
                self.disk.place()
            );
        }
    }
}

impl Pooled {
    /// Calls `work` with the file, and opens it before if it has no descriptor.
    fn with<T>(&self, work: impl FnOnce(&dyn File) -> io::Result<T>) -> io::Result<T> {
        self.used.store(self.pool.now(), Ordering::Relaxed);
        let mut file = self.file.read();
        if file.is_none() {
            drop(file);
            file = self.opened()?;
        }
        match &*file {
            Some(file) => work(&**file),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn opened(&self) -> io::Result<RwLockReadGuard<'_, Option<Arc<dyn File>>>> {
        let mut file = self.file.write();
        if file.is_none() {
            let path = self.path.read();
            let found = self.pool.with_room(|disk| disk.open(&path, self.how))?;
            if found.attributes()?.identity != self.identity {
                return Err(io::Error::other(format!("another file has taken the place of {path}")));
            }
            self.pool.open.fetch_add(1, Ordering::Relaxed);
            *file = Some(found);
        }
        Ok(RwLockWriteGuard::downgrade(file))
    }

    /// As [`with`](Self::with), for work that changes the file.
    fn change<T>(&self, work: impl FnOnce(&dyn File) -> io::Result<T>) -> io::Result<T> {
        self.with(|file| {
            let done = work(file);
            // Set after the change, and before the file can be closed: a sync that is under way
            // may not include it.
            self.is_unsynced.store(true, Ordering::Release);
            done
        })
    }

    fn sync(&self, file: &dyn File) -> io::Result<()> {
        self.is_unsynced.store(false, Ordering::Release);
        file.sync_data().inspect_err(|_| self.is_unsynced.store(true, Ordering::Release))
    }

    /// Closes the descriptor, if there is one that the rules let go. Returns whether it did.
    fn close(&self, which: Closing) -> bool {
        let Some(mut open) = self.file.try_write() else { return false };
        let Some(file) = &*open else { return false };
        if self.is_nameless.load(Ordering::Acquire) {
            return false;
        }
        if self.is_unsynced.load(Ordering::Acquire) {
            if which == Closing::Synced || self.failed.get().is_some() {
                return false;
            }
            if let Err(error) = self.sync(&**file) {
                // The system reports the error once, and this was that time.
                self.failed.get_or_init(|| (error.kind(), error.to_string()));
                return false;
            }
        }
        *open = None;
        self.pool.open.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Makes the file keep its descriptor from now on, because its name is about to go. If it
    /// cannot be opened now, its later uses fail.
    fn keep(&self) {
        self.is_nameless.store(true, Ordering::Release);
        if let Err(error) = self.opened() {
            log::debug!("{}: {error}", self.path.read());
        }
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if self.file.get_mut().is_some() {
            self.pool.open.fetch_sub(1, Ordering::Relaxed);
        }
        let mut files = self.pool.files.lock();
        if let Some(known) = files.get_mut(self.path.get_mut().as_str()) {
            known.retain(|file| file.strong_count() > 0);
            if known.is_empty() {
                files.remove(self.path.get_mut().as_str());
            }
        }
    }
}

impl ReadAt for Pooled {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.with(|file| file.read_at(buffer, offset))
    }

    fn read_in_memory(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.with(|file| file.read_in_memory(buffer, offset))
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|file| file.len())
    }
}

impl File for Pooled {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.change(|file| file.write_at(bytes, offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|file| file.set_len(len))
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.with(|file| file.reserve(offset, len))
    }

    fn punch(&self, change: Change, offset: u64, len: u64) -> io::Result<()> {
        self.change(|file| file.punch(change, offset, len))
    }

    fn write_over(&self, change: Change, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.change(|file| file.write_over(change, bytes, offset))
    }

    fn is_held(&self) -> io::Result<bool> {
        // The system takes other descriptors of the store for somebody else's.
        let path = self.path.read().clone();
        let others = self.pool.at(&path);
        for other in others.iter().filter(|other| !std::ptr::eq(Arc::as_ptr(other), self)) {
            other.close(Closing::All);
        }
        self.with(|file| file.is_held())
    }

    #[cfg(feature = "mount")]
    fn descriptor(&self) -> io::Result<Option<std::os::fd::OwnedFd>> {
        self.with(|file| file.descriptor())
    }

    fn attributes(&self) -> io::Result<FileAttributes> {
        self.with(|file| file.attributes())
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.with(|file| file.next_data(offset))
    }

    fn advise(&self, advice: Advice, offset: u64, len: u64) -> io::Result<()> {
        self.with(|file| file.advise(advice, offset, len))
    }

    fn sync_data(&self) -> io::Result<()> {
        if let Some((kind, text)) = self.failed.get() {
            return Err(io::Error::new(*kind, text.clone()));
        }
        self.with(|file| self.sync(file))
    }
}

impl Disk for Descriptors {
    fn place(&self) -> String {
        self.pool.disk.place()
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        let found = self.pool.with_room(|disk| disk.open(path, how))?;
        let identity = found.attributes()?.identity;
        self.pool.open.fetch_add(1, Ordering::Relaxed);
        let file = Arc::new(Pooled {
            pool: self.pool.clone(),
            // The next time it exists.
            how: if how == Open::Create { Open::Write } else { how },
            identity,
            path: RwLock::new(path.to_owned()),
            file: RwLock::new(Some(found)),
            used: AtomicU64::new(self.pool.now()),
            is_unsynced: AtomicBool::new(how == Open::Create),
            is_nameless: AtomicBool::new(false),
            failed: OnceLock::new(),
        });
        self.pool.note(path, &file);
        Ok(file)
    }

    fn open_outside(&self, path: &[u8]) -> io::Result<Arc<dyn File>> {
        // Never closed by the pool: users replace their own files, and old readers keep the old one.
        self.pool.with_room(|disk| disk.open_outside(path))
    }

    fn create_directory(&self, path: &str) -> io::Result<()> {
        self.pool.disk.create_directory(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.pool.at(to).iter().for_each(|file| file.keep());
        let moved = self.pool.at(from);
        // Nobody opens them by the old path meanwhile.
        let mut paths: Vec<_> = moved.iter().map(|file| file.path.write()).collect();
        self.pool.disk.rename(from, to)?;
        for (path, file) in paths.iter_mut().zip(&moved) {
            to.clone_into(path);
            self.pool.note(to, file);
        }
        if let Some(known) = self.pool.files.lock().get_mut(from) {
            known.retain(|file| !moved.iter().any(|moved| std::ptr::eq(file.as_ptr(), Arc::as_ptr(moved))));
        }
        Ok(())
    }

    fn exchange(&self, one: &str, other: &str) -> io::Result<()> {
        self.pool.disk.exchange(one, other)
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        self.pool.disk.link(from, to)
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.pool.at(path).iter().for_each(|file| file.keep());
        self.pool.disk.remove_file(path)
    }

    fn remove_directory(&self, path: &str) -> io::Result<()> {
        self.pool.disk.remove_directory(path)
    }

    fn list(&self, path: &str) -> io::Result<Vec<Listed>> {
        self.pool.with_room(|disk| disk.list(path))
    }

    fn sync_directory(&self, path: &str) -> io::Result<()> {
        self.pool.with_room(|disk| disk.sync_directory(path))
    }

    fn space(&self) -> io::Result<Space> {
        self.pool.disk.space()
    }

    fn lock(&self, how: Lock, note: &str) -> io::Result<Box<dyn Any + Send + Sync>> {
        self.pool.with_room(|disk| disk.lock(how, note))
    }

    fn descriptors_max(&self) -> Option<u64> {
        self.pool.disk.descriptors_max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::disk::forward::{ForwardDisk, ForwardFile};
    use crate::store::disk::memory::MemoryDisk;

    const LIMIT: usize = 40;

    /// A disk in memory that can open a limited number of files, and the calls to it.
    #[derive(Default)]
    struct Few {
        disk: MemoryDisk,
        /// Whether it states its limit.
        says: bool,
        open: Arc<AtomicUsize>,
        done: Arc<Mutex<Vec<String>>>,
        fails_to_sync: Arc<AtomicBool>,
    }

    struct Counted {
        path: String,
        file: Arc<dyn File>,
        open: Arc<AtomicUsize>,
        done: Arc<Mutex<Vec<String>>>,
        fails_to_sync: Arc<AtomicBool>,
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.open.fetch_sub(1, Ordering::Relaxed);
            self.done.lock().push(format!("close {}", self.path));
        }
    }

    impl ForwardFile for Counted {
        fn inner(&self) -> &dyn File {
            &*self.file
        }

        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            self.file.write_at(bytes, offset)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.file.set_len(len)
        }

        fn attributes(&self) -> io::Result<FileAttributes> {
            let identity = Some((0, Arc::as_ptr(&self.file).cast::<()>().addr() as u64));
            Ok(FileAttributes { identity, ..FileAttributes::default() })
        }

        fn sync_data(&self) -> io::Result<()> {
            self.done.lock().push(format!("sync {}", self.path));
            if self.fails_to_sync.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.file.sync_data()
        }
    }

    impl ForwardDisk for Few {
        fn inner(&self) -> &dyn Disk {
            &self.disk
        }

        fn place(&self) -> String {
            "few".to_owned()
        }

        fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
            if self.open.load(Ordering::Relaxed) >= LIMIT {
                return Err(io::Error::from_raw_os_error(DESCRIPTORS_GONE[0]));
            }
            let file = self.disk.open(path, how)?;
            self.open.fetch_add(1, Ordering::Relaxed);
            let (open, done) = (self.open.clone(), self.done.clone());
            Ok(Arc::new(Counted {
                path: path.to_owned(),
                file,
                open,
                done,
                fails_to_sync: self.fails_to_sync.clone(),
            }))
        }

        fn descriptors_max(&self) -> Option<u64> {
            self.says.then_some(LIMIT as u64)
        }
    }

    type Watched = (Arc<AtomicUsize>, Arc<Mutex<Vec<String>>>, Arc<AtomicBool>);

    fn few(says: bool) -> (Descriptors, Watched) {
        let few = Few { says, ..Few::default() };
        let watched = (few.open.clone(), few.done.clone(), few.fails_to_sync.clone());
        (Descriptors::new(Arc::new(few)), watched)
    }

    /// Files that contain their own numbers, some of them synced.
    fn files(disk: &Descriptors, count: u32, is_synced: bool) -> Vec<Arc<dyn File>> {
        let made = (0..count).map(|number| {
            let file = disk.open(&number.to_string(), Open::Create).unwrap();
            file.write_at(&number.to_le_bytes(), 0).unwrap();
            if is_synced {
                file.sync_data().unwrap();
            }
            file
        });
        made.collect()
    }

    fn number_in(file: &Arc<dyn File>) -> u32 {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 0).unwrap();
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn files_beyond_the_limit_work_as_if_all_were_open() {
        for says in [true, false] {
            for is_synced in [true, false] {
                let (disk, (open, ..)) = few(says);
                let files = files(&disk, 200, is_synced);
                for _ in 0..3 {
                    for (number, file) in (0..).zip(&files) {
                        assert_eq!(number_in(file), number);
                        let open = open.load(Ordering::Relaxed);
                        let most =
                            if !says { LIMIT } else { LIMIT / 2 + if is_synced { 0 } else { LIMIT / 4 } };
                        assert!(open <= most, "{open} open, says {says}, synced {is_synced}");
                    }
                }
                assert_eq!(disk.pool.open.load(Ordering::Relaxed), open.load(Ordering::Relaxed));
                drop(files);
                assert_eq!(open.load(Ordering::Relaxed), 0);
                assert_eq!(disk.pool.open.load(Ordering::Relaxed), 0);
                assert!(disk.pool.files.lock().is_empty());
            }
        }
    }

    #[test]
    fn the_least_recently_used_file_is_closed_first_and_an_unsynced_one_later() {
        let (disk, (_, done, _)) = few(false);
        let files = files(&disk, LIMIT as u32, true);
        number_in(&files[0]);
        files[1].write_at(b"more", 4).unwrap();
        done.lock().clear();
        let _one_more = disk.open("more", Open::Create).unwrap();
        let wanted: Vec<String> = (2..22).map(|number| format!("close {number}")).collect();
        assert_eq!(*done.lock(), wanted);
    }

    #[test]
    fn a_file_is_synced_before_it_is_closed_and_a_failure_reaches_the_next_sync() {
        let (disk, (_, done, fails)) = few(false);
        let files = files(&disk, LIMIT as u32, false);
        done.lock().clear();
        let more = disk.open("more", Open::Create).unwrap();
        assert_eq!(done.lock()[..2], ["sync 0", "close 0"]);
        fails.store(true, Ordering::Relaxed);
        // Some of the others are closed without a sync.
        assert!((0..LIMIT).all(|number| number_in(&files[number]) == number as u32));
        let rest: Vec<_> = (0..LIMIT).map_while(|n| disk.open(&format!("x{n}"), Open::Create).ok()).collect();
        assert!(rest.len() < LIMIT, "files that cannot be synced were closed");
        fails.store(false, Ordering::Relaxed);
        let told = files.iter().chain([&more]).chain(&rest).filter(|file| file.sync_data().is_err()).count();
        assert!(told >= LIMIT / 2, "{told} were told");
        let again = files.iter().chain([&more]).chain(&rest).filter(|file| file.sync_data().is_err()).count();
        assert_eq!(again, told, "what is lost once does not become durable");
    }

    #[test]
    fn renamed_files_are_found_and_removed_files_stay_open() {
        let (disk, _) = few(true);
        let files = files(&disk, 100, true);
        disk.rename("0", "other").unwrap();
        disk.rename("1", "2").unwrap();
        disk.remove_file("3").unwrap();
        let new = disk.open("3", Open::Create).unwrap();
        new.write_at(&[9; 4], 0).unwrap();
        for _ in 0..3 {
            for (number, file) in (0..).zip(&files) {
                assert_eq!(number_in(file), number);
            }
        }
        assert_eq!(number_in(&disk.open("other", Open::Read).unwrap()), 0);
        assert_eq!(number_in(&disk.open("2", Open::Read).unwrap()), 1);
        assert_eq!(number_in(&new), u32::from_le_bytes([9; 4]));
    }

    #[test]
    fn a_replaced_file_is_not_mistaken_for_the_old_one() {
        let (disk, _) = few(true);
        let files = files(&disk, 100, true);
        // Without the pool's knowledge. The old file is kept, so that the new one has another identity.
        let _before = disk.pool.disk.open("0", Open::Read).unwrap();
        disk.pool.disk.remove_file("0").unwrap();
        drop(disk.pool.disk.open("0", Open::Create).unwrap());
        let error = files[0].read_at(&mut [0; 4], 0).unwrap_err();
        assert!(error.to_string().contains("another file"), "{error}");
    }
}
