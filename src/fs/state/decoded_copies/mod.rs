//! The decoded cache: files that are not stored as their readers see them, decoded into memory as a whole, so that the
//! kernel reads them by passthrough.
//!
//! Invariants:
//! 1. A copy has the bytes of one version of a file (`vfs/tree/content.rs`). Its last byte is written and every byte is
//!    verified before the table has it. Then it is never written again.
//! 2. A copy is shown only while the file is of its version. The version is compared at each lookup and each open, so
//!    no event can be missed; a sweep frees the memory of outdated copies.
//! 3. A copy that a program has open or mapped is not freed, and counts until it is not. So passthrough's invariants
//!    hold: the open of another copy is served by the daemon as long as the first is open.
//! 4. Copies, and files that are being decoded, take no more memory than the budget.
//!
//! Files of at least 1 MiB that are encoded, packed, cast or wrapped can have a copy. Their version is what their bytes
//! follow from: the objects with their change counts, the element type, the form. So a write, a move or an eviction
//! needs to tell nobody; packing and compaction change no version. A copy holds no object, so freed space is reclaimed.
//!
//! `fs/answer/open_decoded.rs` decides which opens wait. A waiting open is answered by a thread of its own, at the latest when the
//! daemon would have served the file at 2 GB/s, but after 250 ms to 2 s; the rest of the decode goes on, and opens of
//! the same file wait for the same decode. `decode.rs` reserves the memory; all cores read the stream of the file, 512
//! KiB at a time, verify every block and write the bytes to the file in memory (`file.rs`). After the last byte the
//! version is compared again. A block that fails its checksum ends the decode, and nothing is kept.
//!
//! The least recently opened copy goes first. A write lease on the file says whether a program has it open or mapped
//! (`store/space/mod.rs`). Pages are freed with their file, never used for another one. `evict=cache` and each
//! invalidation drop copies too. While there are copies, a thread looks four times a second at the time that tasks have
//! waited for memory, and at the memory left to the machine and to the control group (`memory.rs`). When memory is
//! scarce, all copies that nobody uses are freed, decodes stop, and none begins for 10 s.

mod budget;
pub(in crate::fs) mod decode;
mod file;
mod memory;

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use budget::Budget;
pub(in crate::fs) use file::DecodedFile;

use crate::control::Mounted;
use crate::fs::state::decoded_copies::decode::Decoding;
use crate::fs::state::decoded_copies::file::{MemoryFiles, page_bytes};
use crate::fs::state::decoded_copies::memory::{Memory, Pressure};
use crate::vfs::{Content, ContentVersion, Ino};

/// A shorter file takes only a few requests, fewer than a switch to passthrough.
const BYTES_MIN: u64 = 1 << 20;
/// How long no file is decoded after memory was scarce.
const PAUSE_AFTER_PRESSURE: Duration = Duration::from_secs(10);
/// The time after which a file is decoded again that could not be decoded.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// How often the memory that is left is looked at, while there are copies and otherwise.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const LOOK_SELDOM: Duration = Duration::from_millis(500);
/// How often outdated copies are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// The most files whose reads are remembered, and the most that wait to be decoded.
const REMEMBERED_MAX: usize = 4096;
const WAITING_MAX: usize = 64;

/// The decoded copies, and the files that are being decoded.
pub(in crate::fs) struct DecodedCache {
    /// The most memory that they take; 0 turns the cache off.
    budget_bytes: u64,
    /// Whether every file is decoded when it is opened, however short. For tests.
    pub is_eager: bool,
    files: MemoryFiles,
    mounted: Arc<Mounted>,
    /// No other lock is taken while it is held.
    table: Mutex<Table>,
    /// Held while a file is decoded, on all cores.
    turn: Mutex<()>,
}

#[derive(Default)]
struct Table {
    copies: HashMap<Ino, Copy>,
    decoding: HashMap<Ino, Arc<Decoding>>,
    /// Copies of other versions that programs still have open.
    retired: Vec<Arc<DecodedFile>>,
    /// Bytes of all of them.
    held_bytes: u64,
    /// Number of the last open.
    opens: u64,
    /// Files that a program has read whole, or that could not be decoded.
    seen: HashMap<Ino, Seen>,
    paused_until: Option<Instant>,
}

struct Copy {
    file: Arc<DecodedFile>,
    version: ContentVersion,
    last_open: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    ReadWhole,
    Failed(Instant),
}

impl DecodedCache {
    /// A cache of this budget. `is_eager` is for tests.
    pub fn new(mounted: Arc<Mounted>, budget: Budget, is_eager: bool) -> DecodedCache {
        let total = Memory::now().map_or(0, |memory| memory.total);
        let budget_bytes = budget.bytes_of(total) / page_bytes() * page_bytes();
        // For tmpfs a size of 0 means no limit.
        let files = if budget_bytes > 0 { MemoryFiles::new(budget_bytes) } else { MemoryFiles::Memfd };
        mounted.counters.decoded_budget_bytes.store(budget_bytes, Ordering::Relaxed);
        let (table, turn) = (Mutex::default(), Mutex::default());
        DecodedCache { budget_bytes, is_eager, files, mounted, table, turn }
    }

    pub fn is_on(&self) -> bool {
        self.budget_bytes > 0
    }

    pub fn bytes_min(&self) -> u64 {
        if self.is_eager { 1 } else { BYTES_MIN }
    }

    /// The copy of a file, if it has the present content.
    pub fn find(&self, ino: Ino) -> Option<Arc<DecodedFile>> {
        if !self.is_on() {
            return None;
        }
        let found = self.table.lock().copies.get(&ino).map(|copy| copy.file.clone())?;
        let content = self.mounted.vfs.content(ino, 0);
        let mut table = self.table.lock();
        let copy = table.copies.get(&ino).filter(|copy| Arc::ptr_eq(&copy.file, &found))?;
        let is_shown = |content: &Content| self.is_eager || content.cache_mode().may_be_decoded();
        if content.is_some_and(|content| copy.version.is_of(&content) && is_shown(&content)) {
            return Some(found);
        }
        drop(found);
        table.retire(ino);
        self.count(&table);
        None
    }

    /// Notes that a program opens a copy.
    pub fn opened(&self, ino: Ino) {
        let mut table = self.table.lock();
        table.opens += 1;
        let opens = table.opens;
        if let Some(copy) = table.copies.get_mut(&ino) {
            copy.last_open = opens;
        }
        self.mounted.counters.decoded_hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops the copies of files, and those of forms that show them. Programs that have them open keep them.
    pub fn forget(&self, files: &[Ino]) {
        if !self.is_on() {
            return;
        }
        // The kernel may have forgotten the inode of a form, whose copy stays.
        let held: Vec<Ino> = self.table.lock().copies.keys().copied().collect();
        let forms = held.into_iter().filter(|ino| self.mounted.vfs.shows_any(*ino, files));
        let forms: Vec<Ino> = forms.collect();
        let mut table = self.table.lock();
        files.iter().chain(&forms).for_each(|ino| table.retire(ino.own()));
        self.count(&table);
    }

    /// Frees all memory that no program has open, and decodes nothing for a while.
    pub fn give_back(&self) {
        let mut table = self.table.lock();
        table.paused_until = Some(Instant::now() + PAUSE_AFTER_PRESSURE);
        table.decoding.values().for_each(|decoding| decoding.cancel());
        let before = table.held_bytes;
        while table.free_oldest() {}
        table.free_retired();
        self.count(&table);
        let freed = before - table.held_bytes;
        drop(table);
        if freed > 0 {
            log::info!("memory is scarce: {freed} bytes of decoded files were given back");
        }
    }

    /// Frees copies of other versions than the present ones, and those of closed collections.
    fn sweep(&self) {
        let held: Vec<Ino> = self.table.lock().copies.keys().copied().collect();
        let (open, closed): (Vec<Ino>, Vec<Ino>) =
            held.into_iter().partition(|ino| self.mounted.vfs.is_open(*ino));
        open.into_iter().for_each(|ino| drop(self.find(ino)));
        let mut table = self.table.lock();
        closed.into_iter().for_each(|ino| table.retire(ino));
        table.free_retired();
        self.count(&table);
    }

    fn holds_nothing(&self) -> bool {
        self.table.lock().held_bytes == 0
    }

    fn count(&self, table: &Table) {
        self.mounted.counters.decoded_bytes.store(table.held_bytes, Ordering::Relaxed);
    }

    /// Notes whether a program that has closed a file has read it whole.
    pub fn note_reads(&self, ino: Ino, is_whole: bool) {
        let mut table = self.table.lock();
        if !is_whole {
            if table.seen.get(&ino) == Some(&Seen::ReadWhole) {
                table.seen.remove(&ino);
            }
            return;
        }
        if !table.seen.contains_key(&ino) {
            table.remember(ino, Seen::ReadWhole);
        }
    }

    pub fn was_read_whole(&self, ino: Ino) -> bool {
        self.table.lock().seen.get(&ino) == Some(&Seen::ReadWhole)
    }
}

impl Table {
    fn remember(&mut self, ino: Ino, seen: Seen) {
        if self.seen.len() >= REMEMBERED_MAX {
            self.seen.clear();
        }
        self.seen.insert(ino, seen);
    }

    /// Removes a copy from the table. It is freed once no program uses it.
    fn retire(&mut self, ino: Ino) {
        if let Some(copy) = self.copies.remove(&ino) {
            self.retired.push(copy.file);
        }
        self.free_retired();
    }

    fn free_retired(&mut self) {
        for file in std::mem::take(&mut self.retired) {
            if is_unused(&file) {
                self.held_bytes -= file.held_bytes;
            } else {
                self.retired.push(file);
            }
        }
    }

    /// Frees the least recently opened copy among the unused ones. Returns whether it freed one.
    fn free_oldest(&mut self) -> bool {
        let unused = self.copies.iter().filter(|(_, copy)| is_unused(&copy.file));
        let Some(ino) = unused.min_by_key(|(_, copy)| copy.last_open).map(|(ino, _)| *ino) else {
            return false;
        };
        if let Some(copy) = self.copies.remove(&ino) {
            self.held_bytes -= copy.file.held_bytes;
        }
        true
    }

    /// Makes room for `bytes` more bytes.
    fn make_room(&mut self, bytes: u64, budget_bytes: u64) -> bool {
        self.free_retired();
        while self.held_bytes.saturating_add(bytes) > budget_bytes {
            if bytes > budget_bytes || !self.free_oldest() {
                return false;
            }
        }
        true
    }
}

/// Whether no request and no program uses a copy. The caller holds the lock of the table, so that no thread
/// takes another reference.
fn is_unused(file: &Arc<DecodedFile>) -> bool {
    Arc::strong_count(file) == 1 && file.is_unused()
}

/// Watches the memory until the mount ends, and frees all unused copies when memory becomes scarce.
pub(in crate::fs) fn watch(cache: &Arc<DecodedCache>) -> std::io::Result<()> {
    if !cache.is_on() {
        return Ok(());
    }
    let cache = Arc::downgrade(cache);
    let thread = std::thread::Builder::new().name("decoded".to_owned());
    thread.spawn(move || watch_memory(&cache)).map(|_| ())
}

fn watch_memory(cache: &Weak<DecodedCache>) {
    let mut pressure = Pressure::new();
    let is_empty = |cache: &Weak<DecodedCache>| Some(cache.upgrade()?.holds_nothing());
    let mut swept = Instant::now();
    while let Some(is_empty) = is_empty(cache) {
        std::thread::sleep(if is_empty { LOOK_SELDOM } else { LOOK_EVERY });
        let Some(cache) = cache.upgrade().filter(|cache| !cache.holds_nothing()) else { continue };
        if pressure.is_high() || Memory::now().is_some_and(|memory| memory.is_scarce()) {
            cache.give_back();
        }
        if swept.elapsed() >= SWEEP_EVERY {
            cache.sweep();
            swept = Instant::now();
        }
    }
}
