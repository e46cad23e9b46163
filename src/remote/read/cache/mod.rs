//! The cache: whole files of snapshots on the disk of this machine.
//!
//! ```text
//! CACHE/  cache.toml
//!         lock                 what processes hold against each other (`turns.rs`)
//!         boot                 the boot of the machine that it was put in order in
//!         seen                 the newest snapshots that were shown with `--trust`
//!         known/<32 hex>       the last that was known of a remote, by its URL
//!         blob/<32 hex>        a file of a snapshot: a piece file
//!         blob/<32 hex>.map    its map, with digests
//!         manifest/<64 hex>    a manifest, by its digest
//!         log/<64 hex>         a piece of a log as it is stored, by its BLAKE3
//!         base/<64 hex>        the same of a piece that differences are from
//! ```
//!
//! A cached file is a piece file (`store/pieces/mod.rs` has the table beside clones). It lies at its own offsets in a
//! file of its own, so that the kernel can read it once it is whole, without the daemon. The file that was used longest ago
//! goes first, whether open or not: its name goes, and a program that has it open reads on. Files of other names are left
//! alone.
//!
//! Any number of processes share a cache, of any remotes:
//!
//! - A piece, and a piece of a log, is fetched by the holder of its lock (`turns.rs`). The others wait, and find it in the
//!   map or under its name. So none is fetched twice, and a killed process leaves neither a lock nor a torn piece: the map
//!   names a piece once it was compared and written.
//! - Each process has the list of files in memory. It reads the directories again before it removes a file, and before its
//!   own new bytes are a part of the room that was left (`Cache::look`): so the limit holds but for what others write in 0.2
//!   s. Uses by others are known after 30 s. Each process keeps its own limit, so the smallest holds.
//! - The first process to come puts the cache in order while it has it alone: drafts of killed ones go, and after the machine
//!   has booted pieces that nobody has made durable.
//!
//! - Bytes from the network go straight into the cached file while they are hashed, in parts of 1 MiB at multiples of 1
//!   MiB: nobody reads a piece before its state says so, and the page cache gets large folios. A piece that was there
//!   and had wrong bytes is compared in memory first, since the kernel may have the file open.
//! - A new cached file is never made by shortening one to nothing: ext4 then writes back the whole file when a
//!   descriptor of it is closed.
//! - Without room in the cache, the last 128 MiB of pieces stay in memory: the kernel reads a piece of 8 MiB in up to
//!   64 parts, and each would fetch it.
//! - A piece is durable in the map only after its bytes are; a map is saved every 30 s and at the end, since each save takes
//!   an fdatasync. A cached file whose fdatasync failed is given up: the kernel reports lost pages once.
//! - Logs are cached as the remote stores them, compressed, by name. Unpacked bytes have no name that a manifest
//!   vouches for, and a log says what all other checksums are. A manifest is found by its last 32 bytes, which a mount
//!   asks the remote for.
//! - A map has the BLAKE3 of the bytes of each piece as they stand in the file, so `tierfs cache --verify` needs
//!   neither the remote nor a manifest.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::statvfs;

use crate::model::{Error, ErrorKind, OwnedCollectionName, Result};
use crate::remote::read::cache::blob::{Blob, allocated};
use crate::remote::read::cache::copies::Index;
use crate::remote::read::cache::object_cache::Kind;
use crate::remote::read::cache::pace::{Pace, Written};
use crate::remote::read::cache::remote_notes::{KNOWN, Known, KnownFile, ShownManifest, path_of, read};
use crate::remote::read::cache::root::{BLOBS, Root, is_draft, is_hexadecimal, unlinked};
use crate::remote::read::cache::turns::{Mode, Turn};
use crate::remote::read::cache::verify::{Verified, forget_arrived, verify};
use crate::store::now_nanoseconds;
use crate::store::pieces::file::remove;
use crate::store::pieces::layout::Layout;
use crate::store::pieces::map_of;

pub mod blob;
mod copies;
mod newest;
pub mod object_cache;
pub mod pace;
pub mod remote_notes;
mod root;
pub(in crate::remote) mod turns;
pub mod verify;

const FORMAT: &str = "format = 3\n";
/// The files of snapshots had other maps, or one process had the cache.
const FORMER_FORMATS: [&str; 2] = ["format = 1\n", "format = 2\n"];
const BOOT: &str = "boot";
/// The number of the present boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Hexadecimal digits of the name of a blob.
const NAME_DIGITS: usize = 32;
const SETTINGS: &str = "cache.toml";
/// Maps are written this often.
const SAVED_EVERY: Duration = Duration::from_secs(30);
/// One part in this many of the disk stays free, but at most `FREE_MAX` bytes.
const FREE_PART: u64 = 20;
/// A disk of many terabytes that is nearly full still has room for a model.
const FREE_MAX: u64 = 1 << 30;
/// From this number on, files that nobody uses are closed.
const OPEN_MAX: usize = 512;
/// Files closed at a time.
const CLOSED_AT_ONCE: usize = 64;
/// After an error of its disk, a cache takes no more bytes for this long.
const DISTRUSTED: Duration = Duration::from_secs(60);

/// The directories are read again at most this often.
const LOOKED_EVERY: Duration = Duration::from_millis(200);
/// A look is made again after this long, also for little: others may have come, and gone.
const LOOKED_AT_LEAST_EVERY: Duration = Duration::from_secs(2);
/// The same once the new bytes of this process are one part in so many of the room.
const ROOM_PARTS: u64 = 16;

/// The daemon of a mount that was just removed saves its maps and then leaves the cache.
const LEFT_WITHIN: Duration = Duration::from_secs(3);
/// One who puts the cache in order after a boot has done so by then.
const IN_ORDER_WITHIN: Duration = Duration::from_secs(30);
const LOCK_STEP: Duration = Duration::from_millis(20);

/// How much of the disk a cache may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// This many bytes.
    Bytes(u64),
    /// Hundredths of the file system.
    Percent(u8),
}

impl Default for Size {
    fn default() -> Size {
        Size::Percent(80)
    }
}

/// A cache.
pub struct Cache {
    /// As the user named it.
    directory: PathBuf,
    root: Arc<Root>,
    size: Size,
    files: Arc<Mutex<Files>>,
    /// Of idle files, once a base was looked for in them.
    index: Mutex<Option<Index>>,
    /// Whether the last bytes found room.
    has_room: AtomicBool,
    pace: Pace,
    /// When the disk failed last.
    failed: Mutex<Option<Instant>>,
    /// Held while the file of seen snapshots is read and written.
    seen: Mutex<()>,
    /// The last that is known of the remote.
    known: Arc<KnownFile>,
    /// Ends the thread that saves maps when it is dropped.
    saver: Option<(Sender<()>, JoinHandle<()>)>,
    /// Held shared, against those who want the cache alone.
    using: Turn,
}

#[derive(Default)]
struct Files {
    open: HashMap<String, Arc<Blob>>,
    /// Files that nobody has opened since the cache was.
    idle: HashMap<String, Idle>,
    /// Small objects, by their paths below the cache.
    kept: HashMap<String, Idle>,
    /// Bytes of small objects that are being written.
    coming: u64,
    seen: Seen,
}

/// The last look at the files of other processes.
#[derive(Default)]
struct Seen {
    when: Option<Instant>,
    /// Whether there were others.
    others: bool,
    /// Bytes that this process may add before the next look.
    before_next: u64,
}

struct Idle {
    stored: u64,
    used: u64,
}

/// A cached file, for a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cached {
    /// Its name.
    pub name: String,
    /// Bytes that it takes.
    pub stored: u64,
    /// Time of the last use, in nanoseconds since 1970.
    pub used: u64,
}

impl Cache {
    /// Opens a cache, or makes an empty one. `Busy` if a process has it alone, `Forbidden` if other users may change it.
    pub fn open(directory: &Path, size: Size) -> Result<Cache> {
        let failed = |error| Error::io(format!("opening the cache {}", directory.display()), error);
        let root = Root::open(directory)?;
        for name in Kind::ALL.map(Kind::directory).into_iter().chain([BLOBS, KNOWN]) {
            root.make(name, &directory.join(name))?;
        }
        let using = root.turn_of_use().map_err(failed)?;
        let begun = Instant::now();
        let is_alone = loop {
            if using.take(Mode::Alone).map_err(failed)? {
                break true;
            }
            if using.take(Mode::Shared).map_err(failed)? {
                break false;
            }
            if begun.elapsed() >= IN_ORDER_WITHIN {
                let text = format!("the cache {} is being checked or put in order", directory.display());
                return Err(Error::new(ErrorKind::Busy, text));
            }
            std::thread::sleep(LOCK_STEP);
        };
        let settings = root.path(SETTINGS);
        match unlinked().read(true).open(&settings).and_then(io::read_to_string) {
            Ok(text) if text == FORMAT => {}
            // A process that was killed has made an empty one.
            Ok(text) if is_alone && (text.is_empty() || FORMER_FORMATS.contains(&text.as_str())) => {
                drop_former(&root).map_err(failed)?;
            }
            Ok(_) => {
                let text = format!(
                    "{} is not a cache that this program can read; name another directory with --cache",
                    directory.display()
                );
                return Err(Error::unsupported(text));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = unlinked().write(true).create_new(true).open(&settings);
                made.and_then(|mut file| file.write_all(FORMAT.as_bytes())).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
        if is_alone {
            put_in_order(&root).map_err(failed)?;
            if !using.take(Mode::Shared).map_err(failed)? {
                return Err(failed(io::ErrorKind::WouldBlock.into()));
            }
        }
        let mut files = Files::default();
        files.read(&root).map_err(failed)?;
        let (files, root) = (Arc::new(Mutex::new(files)), Arc::new(root));
        let known = Arc::new(KnownFile::new(&root));
        let saver = saver(Arc::downgrade(&files), known.clone()).map_err(failed)?;
        Ok(Cache {
            directory: directory.to_owned(),
            root,
            size,
            files,
            index: Mutex::new(None),
            has_room: AtomicBool::new(true),
            pace: Pace::default(),
            failed: Mutex::new(None),
            seen: Mutex::default(),
            known,
            saver: Some(saver),
            using,
        })
    }

    /// Whether other processes use it too.
    pub(in crate::remote) fn is_shared(&self) -> bool {
        self.using.is_taken().unwrap_or(true)
    }

    /// Whether a directory is a cache.
    pub fn exists(directory: &Path) -> bool {
        directory.join(SETTINGS).is_file()
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The cached file of a layout. It must not be kept for longer than a request takes.
    pub fn file(&self, layout: &Arc<Layout>) -> io::Result<Arc<Blob>> {
        // Others go on while these are written.
        let unused = self.files.lock().unused();
        for blob in unused {
            match blob.save() {
                Ok(()) => {
                    self.note_idle(&blob);
                    self.files.lock().close(blob);
                }
                Err(error) => log::warn!("the cache could not be saved: {error}"),
            }
        }
        let name = layout.name();
        let mut files = self.files.lock();
        let blob = match files.open.get(name) {
            Some(found) if !found.is_gone() => found.clone(),
            _ => {
                let blob = Arc::new(Blob::open(&self.root, layout)?);
                files.idle.remove(name);
                files.open.insert(name.to_owned(), blob.clone());
                blob
            }
        };
        blob.touch(now());
        Ok(blob)
    }

    /// Whether the cache in a directory knows the remote at a URL.
    pub fn knows(directory: &Path, url: &str) -> bool {
        fs::symlink_metadata(directory.join(path_of(url))).is_ok_and(|found| found.is_file())
    }

    /// The last that was known of the remote at a URL, if the cache has it.
    pub fn known(&self, url: &str) -> Option<Known> {
        let path = path_of(url);
        let found = read(&self.root.path(&path));
        found.inspect_err(|error| log::warn!("{}/{path}: {error}", self.directory.display())).ok().flatten()
    }

    /// Notes from now on what is known of the remote at a URL, which has said so of itself.
    pub fn know(&self, url: &str, said: &str) {
        self.known.begin(url, said, self.known(url));
    }

    /// Notes a manifest that is shown, and which the cache keeps.
    pub fn note_shown(&self, place: OwnedCollectionName, manifest: ShownManifest) {
        self.known.show(place, manifest);
    }

    /// The manifest of a snapshot of a collection that was shown: of this number, or the newest of them.
    pub fn shown(&self, place: &OwnedCollectionName, number: Option<u64>) -> Option<ShownManifest> {
        self.known.shown(place, number)
    }

    /// Bytes of the pieces that are there, of all processes.
    pub fn stored(&self) -> u64 {
        self.looked().stored()
    }

    /// The files, as of a moment ago.
    fn looked(&self) -> MutexGuard<'_, Files> {
        let mut files = self.files.lock();
        if files.seen.when.is_none_or(|when| when.elapsed() >= LOOKED_EVERY) {
            self.look(&mut files);
        }
        files
    }

    /// Looks at what other processes have brought and removed, if there are any.
    fn look(&self, files: &mut Files) {
        let others = self.is_shared();
        // Those who have left may have done something before.
        let is_old = files.seen.when.is_none_or(|when| when.elapsed() >= LOOKED_AT_LEAST_EVERY);
        if (others || files.seen.others || is_old)
            && let Err(error) = files.read(&self.root)
        {
            log::warn!("the cache {} is not read: {error}", self.directory.display());
        }
        (files.seen.when, files.seen.others) = (Some(Instant::now()), others);
    }

    /// Saves the maps of the open files. Otherwise that happens every few seconds and when the cache is dropped.
    pub fn save(&self) {
        save(&self.files, &self.known);
    }

    /// The cached files, those used last first.
    pub fn list(&self) -> Vec<Cached> {
        let files = self.looked();
        let open =
            files.open.iter().filter(|(_, blob)| !blob.pieces().is_removed()).map(|(name, blob)| Cached {
                name: name.clone(),
                stored: blob.stored.load(Ordering::Relaxed),
                used: blob.used.load(Ordering::Relaxed),
            });
        let idle = files.idle.iter().chain(&files.kept);
        let idle =
            idle.map(|(name, idle)| Cached { name: name.clone(), stored: idle.stored, used: idle.used });
        let mut all: Vec<Cached> = open.chain(idle).collect();
        all.sort_by(|one, other| (other.used, &one.name).cmp(&(one.used, &other.name)));
        all
    }

    /// Makes room for `bytes` of `keeping` by removing other files, and counts them. Returns whether there is
    /// room.
    pub(in crate::remote) fn make_room(&self, keeping: &Blob, bytes: u64) -> bool {
        self.make_room_for(keeping.layout().name(), bytes, |_| {
            keeping.stored.fetch_add(bytes, Ordering::Relaxed);
        })
    }

    /// The same for the file of a name. `count` counts the bytes.
    fn make_room_for(&self, name: &str, bytes: u64, count: impl FnOnce(&mut Files)) -> bool {
        let has_room = !self.is_bypassed() && self.made_room_for(name, bytes, count);
        self.has_room.store(has_room, Ordering::Relaxed);
        has_room
    }

    fn made_room_for(&self, name: &str, bytes: u64, count: impl FnOnce(&mut Files)) -> bool {
        let mut files = self.files.lock();
        let mut removed = 0;
        loop {
            // Nothing is removed for a disk that does not answer.
            let Ok((limit, free)) = self.limit() else { return false };
            let mut stored = files.stored();
            let mut has_room = stored + bytes <= limit && bytes <= free;
            let age = files.seen.when.map_or(Duration::MAX, |when| when.elapsed());
            let is_wanted = !has_room || bytes > files.seen.before_next || age >= LOOKED_AT_LEAST_EVERY;
            if age >= LOOKED_EVERY && is_wanted {
                self.look(&mut files);
                stored = files.stored();
                has_room = stored + bytes <= limit && bytes <= free;
                files.seen.before_next = limit.saturating_sub(stored).min(free) / ROOM_PARTS;
            }
            if has_room {
                files.seen.before_next = files.seen.before_next.saturating_sub(bytes);
                count(&mut files);
                return true;
            }
            // A file that is larger than the cache gets no room by the others.
            let own = files.open.get(name).map_or(0, |blob| blob.stored.load(Ordering::Relaxed));
            if own.saturating_add(bytes) > limit {
                return false;
            }
            // Programs may have the removed files open, and some file systems free space later.
            let is_in_vain = stored + bytes <= limit && removed >= bytes;
            if is_in_vain || !files.evict_one(&self.root, name) {
                return false;
            }
            removed += stored.saturating_sub(files.stored());
        }
    }

    /// Whether the last bytes found room.
    pub(in crate::remote) fn has_room(&self) -> bool {
        !self.is_bypassed() && self.has_room.load(Ordering::Relaxed)
    }

    /// Whether the disk gets no bytes now, because it has failed or lags.
    pub(in crate::remote) fn is_bypassed(&self) -> bool {
        self.is_distrusted() || self.pace.lags()
    }

    /// Notes that a part of a piece was written. Returns a text for users once the disk is bypassed, because it is slower than
    /// the remote.
    pub(in crate::remote) fn wrote(&self, written: Written) -> Option<String> {
        let text = |directory: &Path| {
            let directory = directory.display();
            format!(
                "the disk of the cache {directory} is slower than the remote; for a while, bytes are read and not kept"
            )
        };
        self.pace.note(written, Instant::now()).then(|| text(&self.directory))
    }

    /// The disk did not take bytes: for a while it gets no more.
    pub(in crate::remote) fn distrust(&self) {
        *self.failed.lock() = Some(Instant::now());
    }

    /// Whether the disk has failed lately.
    pub(in crate::remote) fn is_distrusted(&self) -> bool {
        self.failed.lock().is_some_and(|failed| failed.elapsed() < DISTRUSTED)
    }

    /// Compares all files that nobody has opened with their digests, and small objects with their names. Drops what
    /// differs. `Busy` if another process has the cache.
    pub fn verify(&self) -> Result<Vec<Verified>> {
        let failed = |error| Error::io(format!("checking the cache {}", self.directory.display()), error);
        let begun = Instant::now();
        while !self.using.take(Mode::Alone).map_err(failed)? {
            if begun.elapsed() >= LEFT_WITHIN {
                let text = format!("the cache {} is in use by a mount", self.directory.display());
                return Err(Error::new(ErrorKind::Busy, text));
            }
            std::thread::sleep(LOCK_STEP);
        }
        let verified = self.verify_alone();
        self.using.take(Mode::Shared).map_err(failed)?;
        verified
    }

    fn verify_alone(&self) -> Result<Vec<Verified>> {
        let mut files = self.files.lock();
        files.read(&self.root).map_err(|error| Error::io(self.directory.display(), error))?;
        let (disk, blobs) = (self.root.blobs(), self.root.path(BLOBS));
        let mut names: Vec<String> = files.idle.keys().cloned().collect();
        names.sort_unstable();
        let mut found = Vec::new();
        for name in names {
            let verified = verify(&disk, &name)
                .map_err(|error| Error::io(self.directory.join(BLOBS).join(&name).display(), error))?;
            match &verified.removed {
                Some(_) => drop(files.idle.remove(&name)),
                None => {
                    let stored = fs::symlink_metadata(blobs.join(&name)).map(|found| allocated(&found));
                    if let (Ok(stored), Some(idle)) = (stored, files.idle.get_mut(&name)) {
                        idle.stored = stored;
                    }
                }
            }
            found.push(verified);
        }
        let mut places: Vec<(String, u64)> =
            files.kept.iter().map(|(place, kept)| (place.clone(), kept.stored)).collect();
        places.sort_unstable();
        for (place, len) in places {
            let verified = object_cache::verify(&self.root, &place, len)
                .map_err(|error| Error::io(self.directory.join(&place).display(), error))?;
            if verified.removed.is_some() {
                files.kept.remove(&place);
            }
            found.push(verified);
        }
        Ok(found)
    }

    /// Removes files until at most `bytes` are stored.
    pub fn trim(&self, bytes: u64) {
        let mut files = self.looked();
        while files.stored() > bytes && files.evict_one(&self.root, "") {}
    }

    /// The most bytes that may be stored, and how many more the disk takes.
    fn limit(&self) -> io::Result<(u64, u64)> {
        let found = statvfs(self.root.path(""))?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        let disk = Disk {
            total: bytes(found.f_blocks),
            free: bytes(found.f_bfree),
            available: bytes(found.f_bavail),
        };
        Ok((disk.limit(self.size), disk.room()))
    }
}

/// Bytes of the file system that holds a cache.
struct Disk {
    total: u64,
    free: u64,
    /// Bytes of `free` that are not reserved for root.
    available: u64,
}

impl Disk {
    /// As `df` counts it: without the bytes that only root may use.
    fn usable(&self) -> u64 {
        self.total.saturating_sub(self.free.saturating_sub(self.available))
    }

    fn limit(&self, size: Size) -> u64 {
        match size {
            Size::Bytes(bytes) => bytes,
            Size::Percent(percent) => self.usable() / 100 * u64::from(percent),
        }
    }

    /// How many more bytes a cache may take.
    fn room(&self) -> u64 {
        self.available.saturating_sub((self.usable() / FREE_PART).min(FREE_MAX))
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.saver.take() {
            drop(end);
            if thread.join().is_err() {
                log::error!("a bug in tierfs: the thread of the cache has ended");
            }
        }
    }
}

impl Files {
    /// Reads the directories: files that other processes have brought, grown or removed.
    fn read(&mut self, root: &Root) -> io::Result<()> {
        let mut idle = idle(root)?;
        self.open.retain(|_, blob| !blob.is_gone());
        for (name, blob) in &self.open {
            blob.look();
            idle.remove(name);
        }
        self.idle = idle;
        self.kept = object_cache::found(root)?.into_iter().collect();
        Ok(())
    }

    fn stored(&self) -> u64 {
        let open = self.open.values().filter(|blob| !blob.pieces().is_removed());
        let open: u64 = open.map(|blob| blob.stored.load(Ordering::Relaxed)).sum();
        self.coming + open + self.idle.values().chain(self.kept.values()).map(|idle| idle.stored).sum::<u64>()
    }

    /// Removes the file that was used longest ago, except `keeping`. Returns whether there was one.
    fn evict_one(&mut self, root: &Root, keeping: &str) -> bool {
        let idle = self.idle.iter().chain(&self.kept).map(|(name, idle)| (idle.used, name));
        let open = self.open.iter().map(|(name, blob)| (blob.used.load(Ordering::Relaxed), name));
        let oldest =
            idle.chain(open).filter(|(_, name)| *name != keeping).min().map(|(_, name)| name.clone());
        let Some(name) = oldest else { return false };
        let removed = match self.open.remove(&name) {
            Some(blob) => blob.evict(),
            None if self.kept.remove(&name).is_some() => remove_file(&root.path(&name)),
            None => root.names().and_then(|_names| remove(&root.blobs(), &name)),
        };
        self.idle.remove(&name);
        if let Err(error) = removed {
            log::warn!("the cached {name} was not removed: {error}");
        }
        true
    }

    /// Files to be closed: if many are open, some that nobody uses, those used longest ago.
    fn unused(&self) -> Vec<Arc<Blob>> {
        if self.open.len() < OPEN_MAX {
            return Vec::new();
        }
        // Nobody else can take one while the list is locked.
        let mut unused: Vec<&Arc<Blob>> =
            self.open.values().filter(|blob| Arc::strong_count(blob) == 1).collect();
        unused.sort_by_key(|blob| blob.used.load(Ordering::Relaxed));
        unused.into_iter().take(CLOSED_AT_ONCE).cloned().collect()
    }

    /// Closes a saved file, unless it was used meanwhile.
    fn close(&mut self, blob: Arc<Blob>) {
        let name = blob.layout().name();
        // The list and the caller have it.
        if Arc::strong_count(&blob) > 2 || blob.is_unsaved() || blob.is_gone() {
            return;
        }
        let (stored, used) = (blob.stored.load(Ordering::Relaxed), blob.used.load(Ordering::Relaxed));
        if self.open.remove(name).is_some() {
            self.idle.insert(name.to_owned(), Idle { stored, used });
        }
    }
}

/// The present time, as uses are counted.
pub(super) fn now() -> u64 {
    u64::try_from(now_nanoseconds()).unwrap_or(0)
}

/// Saves the maps of the open files, and what is known of the remote.
fn save(files: &Mutex<Files>, known: &KnownFile) {
    if let Err(error) = known.save() {
        log::warn!("what is known of the remote was not saved: {error}");
    }
    let open: Vec<Arc<Blob>> = files.lock().open.values().cloned().collect();
    for blob in open {
        if let Err(error) = blob.save() {
            log::warn!("the cache could not be saved: {error}");
        }
        if let Err(error) = blob.note_use() {
            log::debug!("the last use of the cached {} was not noted: {error}", blob.layout().name());
        }
    }
}

/// Removes a file that another process may have removed.
fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The files of snapshots that have a map.
fn idle(root: &Root) -> io::Result<HashMap<String, Idle>> {
    let blobs = root.path(BLOBS);
    let mut found = HashMap::new();
    for entry in fs::read_dir(&blobs)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|name| is_hexadecimal(name, NAME_DIGITS)) else { continue };
        let maps = fs::symlink_metadata(blobs.join(map_of(name)));
        let both = maps.and_then(|map| Ok((map, fs::symlink_metadata(blobs.join(name))?)));
        let (map, data) = match both {
            Ok(both) => both,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if data.is_file() {
            let used = map.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
            let used = u64::try_from(used.as_nanos()).unwrap_or(u64::MAX);
            found.insert(name.to_owned(), Idle { stored: allocated(&data), used });
        }
    }
    Ok(found)
}

/// Removes from a cache that no other process uses what killed ones have left: drafts, and files without a map. After
/// the machine has booted, forgets pieces that were not made durable.
fn put_in_order(root: &Root) -> io::Result<()> {
    let (disk, blobs) = (root.blobs(), root.path(BLOBS));
    for entry in fs::read_dir(&blobs)? {
        let entry = entry?;
        let (is_file, name) = (entry.metadata()?.is_file(), entry.file_name());
        let Some(name) = name.to_str().filter(|_| is_file) else { continue };
        if is_draft(name, NAME_DIGITS) {
            fs::remove_file(entry.path())?;
        }
        if is_hexadecimal(name, NAME_DIGITS) && !blobs.join(map_of(name)).exists() {
            remove(&disk, name)?;
        }
    }
    object_cache::remove_drafts(root)?;
    let now = fs::read(BOOT_ID)?;
    let before = unlinked().read(true).open(root.path(BOOT)).and_then(|file| {
        let mut bytes = Vec::new();
        file.take(now.len() as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    if before.is_ok_and(|before| before == now) {
        return Ok(());
    }
    for name in idle(root)?.into_keys() {
        if let Err(error) = forget_arrived(&disk, &name) {
            log::warn!("the cached {name} is fetched again: {error}");
            remove(&disk, &name)?;
        }
    }
    let mut options = unlinked();
    let noted = options.write(true).create(true).truncate(true).open(root.path(BOOT));
    if let Err(error) = noted.and_then(|mut file| file.write_all(&now)) {
        log::warn!("the next process that opens the cache puts it in order again: {error}");
    }
    Ok(())
}

/// Removes the files of snapshots from a cache of a former format. Manifests and logs stay.
fn drop_former(root: &Root) -> io::Result<()> {
    for name in idle(root)?.into_keys() {
        remove(&root.blobs(), &name)?;
    }
    // All formats have as many bytes, so the file has one of them at any time.
    unlinked().write(true).open(root.path(SETTINGS))?.write_all(FORMAT.as_bytes())
}

/// Starts the thread that saves maps.
fn saver(files: Weak<Mutex<Files>>, known: Arc<KnownFile>) -> io::Result<(Sender<()>, JoinHandle<()>)> {
    let (end, ended) = mpsc::channel();
    let work = move || {
        loop {
            let is_end = !matches!(ended.recv_timeout(SAVED_EVERY), Err(RecvTimeoutError::Timeout));
            let Some(files) = files.upgrade() else { return };
            save(&files, &known);
            if is_end {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("cache".to_owned()).spawn(work)?;
    Ok((end, thread))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_nearly_full_disk_keeps_a_gibibyte_free_and_a_small_one_a_twentieth() {
        let large = Disk { total: 252 * GIB, free: 170 * GIB, available: 10 * GIB };
        assert_eq!((large.usable(), large.room()), (92 * GIB, 9 * GIB));
        assert_eq!(large.limit(Size::Percent(50)), large.usable() / 100 * 50);
        let small = Disk { total: 10 * GIB, free: GIB, available: GIB };
        assert_eq!(small.room(), GIB / 2);
        let full = Disk { total: 10 * GIB, free: GIB, available: GIB / 4 };
        assert_eq!((full.room(), full.limit(Size::Bytes(7))), (0, 7));
    }
}
