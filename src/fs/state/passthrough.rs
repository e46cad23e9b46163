//! Passthrough: files that the kernel reads itself, without the daemon.
//!
//! The kernel knows such a file by two numbers (`vfs/tree/ino.rs`). Its inode of a number is either cached or backed by
//! one physical file, as long as any descriptor or mapping of it lives; an open of the other kind fails with EIO.
//! Writes to a backed inode would reach the physical file. Therefore:
//!
//! 1. A file's own number is only opened cached. Its passthrough number is only opened to read, and backed.
//! 2. All opens of a passthrough number that live at the same time have one backing id. A file whose extents have moved
//!    by then goes through the daemon until they are closed.
//! 3. An open that does not fit is answered ESTALE: the kernel looks the name up again and opens the result. It does so
//!    only once. A redirected thread therefore gets the file that it was redirected to, also if the name changes
//!    meanwhile. If it opens another file, the daemon serves it: lookups of that thread lead to the own number of any
//!    other file.
//!
//! The physical file is one of the store (`store/io/contiguous.rs`), or a decoded copy in memory (`fs/state/decoded_copies/mod.rs`).
//! Neither changes while the kernel has it. A file of the store qualifies if its bytes are one data file from its start
//! to its end, exact, not dirty, each block verified, or if it is pinned: then its copy qualifies.
//!
//! - A lookup (`Dispatcher::named`) answers with the passthrough number if the file qualifies, no descriptor is open
//!   for writing to it or to a file that shares its bytes, and `passthrough_files_max` leaves room. The kernel may not
//!   cache these attributes, since only `getattr` gives the own number as `st_ino`.
//! - An open of the own number for reading, of a file that qualifies by then, is answered ESTALE, and the thread is
//!   promised the backing. A thread that comes back to the own number (it reopens a descriptor, not a name) is served
//!   by the daemon.
//! - If only unverified blocks stand in the way, and the file has at least 1 MiB, another thread (`verify_on_open.rs`)
//!   answers the open. It verifies the blocks that are in memory, for at most 250 ms, one file at a time on all cores,
//!   then asks again. It takes `Collection::gate` anew every 256 KiB, for the sake of writers. A comparison counts only
//!   if the log, under the lock of the blocks, still names the bytes that were read.
//! - An open of the passthrough number that writes, uses O_DIRECT, or finds a file that does not qualify any more is
//!   answered ESTALE too. Lookups lead to the own number until the thread has come there, for at most 60 s.
//! - Each such open holds its objects, the stretches of the data file (`Shown::read_directly`) and the `OpenFile`: the
//!   bytes outlive names and moves. A mapping outlives the open (`store/space/mod.rs`).
//! - Setting the size or attributes under the passthrough number invalidates the own one.
//!
//! `second_look.rs` keeps what a thread finds when it looks again after any ESTALE. A lookup that finds a pinned copy
//! unverified or missing notes it (`engine/pins.rs`), and a job mends the copy.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::format::handover::PhysicalFile;
use crate::fs::kernel::backing::BackingId;
use crate::fs::kernel::errno;
use crate::fs::state::decoded_copies::DecodedFile;
use crate::store::Backing;
use crate::vfs::Ino;
use crate::vfs::open::OpenFile;

/// By then a redirected thread has come back or ended.
const AWAITED_FOR: Duration = Duration::from_secs(60);

/// The files that the kernel reads itself, and the writers that prevent it.
pub(in crate::fs) struct Passthrough {
    on: AtomicBool,
    /// The mount's device, set where the kernel supports passthrough.
    device: OnceLock<Weak<OwnedFd>>,
    files_max: usize,
    /// Number of physical files registered with the kernel.
    files: Arc<AtomicUsize>,
    /// Taken with no other lock held. Held while a physical file is opened and registered with the
    /// kernel, so that there is one for each node, and while one is released.
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    nodes: HashMap<Ino, Node>,
    /// Resources of open files, by handle.
    held: HashMap<u64, OpenResource>,
    /// Writable descriptors of all nodes.
    writers: usize,
    /// Threads that were redirected and have opened nothing since.
    sent: HashMap<u32, Instant>,
    /// Threads that have opened something since this daemon has taken the mount up. The daemon before may have redirected
    /// others.
    met: Option<(Instant, HashSet<u32>)>,
    /// Time of the last sweep of expired entries.
    swept: Option<Instant>,
}

/// State of a file, by its own number.
#[derive(Default)]
struct Node {
    backed: Weak<Backed>,
    left: Option<Left>,
    writers: usize,
    redirects: Vec<Redirect>,
}

/// A thread that was redirected to look the name up again.
pub(in crate::fs) struct Redirect {
    thread: u32,
    since: Instant,
    /// The file for an open of the passthrough number; `None` where the daemon serves the thread.
    pub backed: Option<Arc<Backed>>,
}

/// The file that the kernel reads instead of asking the daemon.
#[derive(Clone)]
pub(in crate::fs) enum Physical {
    /// A file of the store, or an outside file.
    Stored(Backing),
    /// A decoded copy in memory.
    Decoded(Arc<DecodedFile>),
}

impl Physical {
    fn is_same(&self, other: &Physical) -> bool {
        match (self, other) {
            (Physical::Stored(one), Physical::Stored(other)) => one.path() == other.path(),
            (Physical::Decoded(one), Physical::Decoded(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// The physical file that an earlier daemon registered for a file, and that programs have open. The kernel takes no other
/// one for the file before they close it.
struct Left {
    id: Arc<BackingId>,
    file: PhysicalFile,
    handles: usize,
}

/// A physical file registered with the kernel.
pub(in crate::fs) struct Backed {
    pub id: Arc<BackingId>,
    /// The same for the next daemon.
    pub file: PhysicalFile,
    pub physical: Physical,
    pub open_file: Arc<OpenFile>,
    files: Arc<AtomicUsize>,
}

impl Drop for Backed {
    fn drop(&mut self) {
        self.files.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Redirect {
    fn is_current(&self) -> bool {
        self.since.elapsed() < AWAITED_FOR
    }
}

enum OpenResource {
    /// The physical file, and the extents in it at the time of this open.
    Backed {
        _file: Arc<Backed>,
        _physical: Physical,
    },
    /// The kernel reads a physical file that an earlier daemon registered.
    Left(Ino),
    Writer(Ino),
}

impl Node {
    fn is_unused(&self) -> bool {
        self.writers == 0
            && self.redirects.is_empty()
            && self.backed.strong_count() == 0
            && self.left.is_none()
    }
}

impl Table {
    /// The state of a file, after removing expired redirects.
    fn node(&mut self, ino: Ino) -> Option<&mut Node> {
        let node = self.nodes.get_mut(&ino)?;
        node.redirects.retain(Redirect::is_current);
        if node.is_unused() {
            self.nodes.remove(&ino);
        }
        self.nodes.get_mut(&ino)
    }

    /// Removes expired entries of all files.
    fn sweep(&mut self) {
        if self.swept.is_none_or(|swept| swept.elapsed() > AWAITED_FOR) {
            self.swept = Some(Instant::now());
            self.met.take_if(|(since, _)| since.elapsed() >= AWAITED_FOR);
            self.sent.retain(|_, since| since.elapsed() < AWAITED_FOR);
            self.nodes.retain(|_, node| {
                node.redirects.retain(Redirect::is_current);
                !node.is_unused()
            });
        }
    }

    /// Whether the file has writers, or threads redirected to the daemon.
    fn is_for_writers(&mut self, ino: Ino) -> bool {
        self.node(ino).is_some_and(|node| {
            node.writers > 0 || node.redirects.iter().any(|redirect| redirect.backed.is_none())
        })
    }
}

impl Passthrough {
    /// Passthrough is off until the kernel supports it. At most `files_max` physical files.
    pub fn new(files_max: usize) -> Passthrough {
        let (on, files) = (AtomicBool::new(false), Arc::default());
        Passthrough { on, device: OnceLock::new(), files_max, files, table: Mutex::default() }
    }

    /// Turns passthrough on: the kernel supports it.
    pub fn begin(&self, device: &Arc<OwnedFd>) {
        self.device.get_or_init(|| Arc::downgrade(device));
        self.on.store(true, Ordering::Relaxed);
    }

    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Notes a writable descriptor.
    pub fn opened_to_write(&self, handle: u64, ino: Ino) {
        let mut table = self.table.lock();
        table.writers += 1;
        table.nodes.entry(ino).or_default().writers += 1;
        table.held.insert(handle, OpenResource::Writer(ino));
    }

    /// Notes an open of the passthrough number.
    pub fn opened_backed(&self, handle: u64, backed: Arc<Backed>, physical: Physical) {
        let held = OpenResource::Backed { _file: backed, _physical: physical };
        self.table.lock().held.insert(handle, held);
    }

    /// Notes a closed descriptor. Returns the file that has lost its last writer by this, if any.
    pub fn released(&self, handle: u64) -> Option<Ino> {
        let mut table = self.table.lock();
        table.sweep();
        let held = table.held.remove(&handle);
        let mut last = None;
        if let Some(OpenResource::Writer(ino)) = &held {
            table.writers -= 1;
            if let Some(node) = table.node(*ino) {
                node.writers -= 1;
                last = Some(*ino).filter(|_| node.writers == 0);
            }
        }
        if let Some(OpenResource::Left(ino)) = &held
            && let Some(node) = table.nodes.get_mut(ino)
            && let Some(left) = &mut node.left
        {
            left.handles -= 1;
            node.left.take_if(|left| left.handles == 0);
            table.node(*ino);
        }
        drop(table);
        drop(held);
        last
    }

    /// Goes on with a mount of another daemon, which may have redirected threads. The kernel looks a name up again only once,
    /// so this daemon redirects a thread only after an open.
    pub fn take_up(&self) {
        self.table.lock().met = Some((Instant::now(), HashSet::new()));
    }

    /// Goes on with a file that the kernel reads itself since an earlier daemon opened it.
    pub fn take_over(&self, handle: u64, ino: Ino, file: PhysicalFile) {
        let Some(device) = self.device.get() else { return };
        let mut table = self.table.lock();
        let left = &mut table.nodes.entry(ino).or_default().left;
        let id = || Arc::new(BackingId::taken_over(device, file.number));
        left.get_or_insert_with(|| Left { id: id(), file, handles: 0 }).handles += 1;
        table.held.insert(handle, OpenResource::Left(ino));
    }

    /// Notes that a thread was redirected: to `backed`, or to the daemon.
    pub fn redirect(&self, ino: Ino, thread: u32, backed: Option<Arc<Backed>>) {
        let mut table = self.table.lock();
        table.sweep();
        let since = Instant::now();
        table.sent.insert(thread, since);
        let redirect = Redirect { thread, since, backed };
        table.nodes.entry(ino).or_default().redirects.push(redirect);
    }

    /// Forgets the threads that were redirected, with the files that the kernel got for them.
    pub fn forget_redirects(&self) {
        let mut table = self.table.lock();
        table.sent.clear();
        let redirects: Vec<_> =
            table.nodes.values_mut().flat_map(|node| std::mem::take(&mut node.redirects)).collect();
        drop(table);
        drop(redirects);
    }

    /// Handles an open by a thread. Returns whether the thread was redirected, perhaps from another
    /// file of that name, and the redirect to this file.
    pub fn arrived(
        &self,
        ino: Ino,
        thread: u32,
        is_sought: impl Fn(&Redirect) -> bool,
    ) -> (bool, Option<Redirect>) {
        let mut table = self.table.lock();
        let is_new = table.met.as_mut().is_some_and(|(_, met)| met.insert(thread));
        let was_sent = table.sent.remove(&thread).is_some() || is_new;
        let is_it = |redirect: &Redirect| redirect.thread == thread && is_sought(redirect);
        let found = table.node(ino).and_then(|node| {
            let place = node.redirects.iter().position(is_it)?;
            Some(node.redirects.swap_remove(place))
        });
        (was_sent || found.is_some(), found)
    }

    /// Whether a thread was redirected.
    pub fn is_sent(&self, thread: u32) -> bool {
        self.table.lock().sent.get(&thread).is_some_and(|since| since.elapsed() < AWAITED_FOR)
    }

    /// Whether a thread was redirected to the passthrough number of a file.
    pub fn is_promised(&self, ino: Ino, thread: u32) -> bool {
        let is_it = |redirect: &Redirect| redirect.thread == thread && redirect.backed.is_some();
        self.table.lock().node(ino).is_some_and(|node| node.redirects.iter().any(is_it))
    }

    /// Whether one of these files is written to, or about to be.
    pub fn are_for_writers(&self, ino: Ino, others: impl FnOnce() -> Vec<Ino>) -> bool {
        let mut table = self.table.lock();
        if table.is_for_writers(ino) {
            return true;
        }
        if table.writers == 0 {
            return false;
        }
        drop(table);
        let others = others();
        let mut table = self.table.lock();
        others.into_iter().any(|other| table.is_for_writers(other))
    }

    /// Whether the kernel has this physical file, or may get it.
    pub fn has_room(&self, ino: Ino, physical: &Physical) -> bool {
        match self.backed(ino) {
            Some(backed) => backed.physical.is_same(physical),
            None => self.files.load(Ordering::Relaxed) < self.files_max,
        }
    }

    /// Whether no physical file of this one is registered, and another may be.
    pub fn may_register(&self, ino: Ino) -> bool {
        self.files.load(Ordering::Relaxed) < self.files_max && self.backed(ino).is_none()
    }

    pub fn backed(&self, ino: Ino) -> Option<Arc<Backed>> {
        self.table.lock().nodes.get(&ino)?.backed.upgrade()
    }

    /// Registers a physical file with the kernel, unless it is registered.
    pub fn register(&self, ino: Ino, physical: &Physical, open_file: Arc<OpenFile>) -> Option<Arc<Backed>> {
        let device = self.device.get()?;
        let mut table = self.table.lock();
        if let Some(backed) = table.nodes.get(&ino).and_then(|node| node.backed.upgrade()) {
            return backed.physical.is_same(physical).then_some(backed);
        }
        if self.files.load(Ordering::Relaxed) >= self.files_max {
            return None;
        }
        let left = table.nodes.get(&ino).and_then(|node| node.left.as_ref());
        // The kernel takes a reference of its own.
        let registered = match physical {
            Physical::Stored(backing) => {
                let file = open_file.collection().open_backing(backing);
                let file = file.inspect_err(|error| log::debug!("passthrough: {error}")).ok()?;
                let descriptor = file.descriptor();
                let descriptor = descriptor.inspect_err(|error| log::debug!("passthrough: {error}")).ok()?;
                registered(device, descriptor?.as_fd(), left)
            }
            Physical::Decoded(file) => registered(device, file.descriptor().as_fd(), left),
        };
        let (id, file) = registered.inspect_err(|error| self.failed(error)).ok()??;
        self.files.fetch_add(1, Ordering::Relaxed);
        let backed = Backed { id, file, physical: physical.clone(), open_file, files: self.files.clone() };
        let backed = Arc::new(backed);
        table.nodes.entry(ino).or_default().backed = Arc::downgrade(&backed);
        Some(backed)
    }

    fn failed(&self, error: &std::io::Error) {
        if errno::is_never_possible(error) {
            self.on.store(false, Ordering::Relaxed);
            log::info!("the kernel does not read files of this store itself ({error}): the daemon does");
        } else {
            log::debug!("passthrough: {error}");
        }
    }
}

/// Registers a physical file with the kernel. `None` if programs have the file open with another one, which an earlier daemon
/// registered.
fn registered(
    device: &Weak<OwnedFd>,
    physical: BorrowedFd,
    left: Option<&Left>,
) -> std::io::Result<Option<(Arc<BackingId>, PhysicalFile)>> {
    let found = rustix::fs::fstat(physical)?;
    let is_it = |file: &PhysicalFile| (file.device, file.inode) == (found.st_dev, found.st_ino);
    if let Some(left) = left {
        return Ok(is_it(&left.file).then(|| (left.id.clone(), left.file)));
    }
    let id = BackingId::open(device, physical)?;
    let file = PhysicalFile { number: id.number(), device: found.st_dev, inode: found.st_ino };
    Ok(Some((Arc::new(id), file)))
}
