//! Open files: one [`OpenFile`] for each node, however often it is opened.

use std::collections::HashSet;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockUpgradableReadGuard, RwLockWriteGuard};

use crate::engine;
use crate::format::log::catalog::{Content, Extent, NodeEntry, NodeType};
use crate::ingest::Blocking;
use crate::model::{Dtype, EntryId, Error, ErrorKind, ObjectId, Result};
use crate::store::Collection;
use crate::store::FileUse;
use crate::store::GATHERED_BYTES_MAX;
use crate::store::Object;
use crate::store::now_nanoseconds;
use crate::store::{Assembly, Backing};
use crate::store::{MEMORY_FILE, OpenObject, Verify};
use crate::store::{Reserved, Use};
use crate::stream::{HASH, batch_beside, put_hash, shown_hash};
use crate::vfs::open::Changes;
use crate::vfs::open::layout::Layout;
use crate::vfs::open::page_cache::PageCache;

/// How often versions are counted for one request at most.
const COUNTS_MAX: usize = 3;

/// Events since a file was opened.
#[derive(Debug)]
pub(super) struct Flags {
    /// Whether the file was empty at some time. All of its bytes are new then.
    pub is_new: AtomicBool,
    /// Whether it has writes that are not in the log yet.
    pub changed: AtomicBool,
    /// Whether it was written to since a program last closed it.
    pub unclosed: AtomicBool,
    /// Number of handles that may write to it, and that no program has closed a descriptor of.
    pub writers: AtomicUsize,
    /// Number of all handles that may write to it. One lasts as long as its mappings.
    pub write_handles: AtomicUsize,
    /// Whether the next flush is that of a close by which it arrives.
    pub closing: AtomicBool,
    /// Whether that flush has stored it as the settings for what arrives say.
    pub arrived: AtomicBool,
    /// Whether a container may stay whole for want of room.
    pub whole: AtomicBool,
    /// Whether the next flush is the last, which keeps a container whole and may use the log's reserve.
    pub ending: AtomicBool,
    /// Whether its pages in the kernel were invalidated.
    pub forgotten: AtomicBool,
    /// Whether the other names of its unflushed writes were invalidated since the last of these.
    pub told: AtomicBool,
    /// Whether it was closed complete, and not compared with other files since.
    pub may_share: AtomicBool,
    /// Whether the kernel may have pages of it: since it was empty, if it was.
    pub may_have_pages: AtomicBool,
}

/// A node that programs have open, one however often they open it.
///
/// It begins as the objects of the file and a stream of them (`Layout`). Reads take bytes from the stream. Writes go
/// to the objects, whose blocks become dirty; growth adds to the last object or adds a draft, an object that the log
/// does not know. A flush records what changed in one batch, after it has recognized the content where that is due, and
/// the layout is then that of the log again. The head of this folder follows a write through these steps.
///
/// An `OpenFile` keeps the content that was opened when its name goes to another file or is removed. It stays in the
/// table of open files (`OpenFiles`) until the last descriptor is released, and in
/// `Vfs::unflushed` as long as the log could not take its writes.
pub struct OpenFile {
    pub(super) collection: Arc<Collection>,
    pub(super) node: EntryId,
    pub(super) verify: Verify,
    /// The catalog entry at the time of opening.
    entry: NodeEntry,
    /// The setting `ema_share` at that time.
    ema_share: f32,
    /// Its bytes. Reads, and writes inside the file, lock it shared; a change of the size or the
    /// parts locks it exclusively. Locked before every lock of the collection.
    pub(super) layout: RwLock<Layout>,
    pub(super) flags: Flags,
    /// The growth since the size that the log records. Locked after the layout.
    pub(super) grown: Mutex<Grown>,
    /// Objects that were not in the log when they were created.
    made: Mutex<Vec<Arc<Object>>>,
    invalidation_order: Mutex<()>,
    pub(super) written: Written,
    /// Which bytes the kernel has read and may cache.
    pub(super) page_cache: PageCache,
}

/// The bytes that writes have reached.
pub(super) struct Written {
    /// Begin of the writes that the settings for what arrives were not applied to yet.
    pub from: AtomicU64,
    /// End of the furthest write that has finished.
    pub end: AtomicU64,
    /// Number of handles whose writes go past the kernel's page cache.
    pub uncached: AtomicUsize,
    /// The first bytes, once a write had all of them and as long as no other write touches them.
    head: Mutex<Option<Head>>,
}

/// The first bytes of a file, by which some formats are told from ordinary files.
pub(super) type Head = [u8; 8];

impl Written {
    /// The first bytes as programs have written them, if that is known.
    pub fn head(&self) -> Option<Head> {
        *self.head.lock()
    }

    /// Notes the first bytes of a file that was opened again, if they are known.
    pub fn begins_with(&self, head: Option<Head>) {
        *self.head.lock() = head;
    }

    /// Notes a write to a file, or another change of bytes from `offset` on.
    pub fn note_head(&self, offset: u64, bytes: &[u8]) {
        if offset < size_of::<Head>() as u64 {
            *self.head.lock() = bytes.first_chunk().copied().filter(|_| offset == 0);
        }
    }
}

/// Where the bytes of a draft are.
#[derive(Clone, Copy)]
enum Place {
    /// In memory, for the short time until a flush copies them.
    Memory,
    /// In a data file of its own.
    DataFile,
}

/// The quota that a file holds for growth that is not in the log yet.
pub(super) struct Grown {
    /// Size in bytes that the log records.
    pub logged: u64,
    /// The reservation for the bytes beyond `logged`.
    pub reserved: Reserved,
}

impl Grown {
    /// Reserves quota for a file of `bytes` bytes. Fails with `Quota` where that is too much.
    pub fn count(&mut self, bytes: u64) -> Result<()> {
        self.reserved.set(Use::exact(bytes.saturating_sub(self.logged)))
    }

    /// Notes that the log now records the size `bytes`.
    pub fn flushed(&mut self, bytes: u64) -> Result<()> {
        self.logged = bytes;
        self.count(bytes)
    }
}

impl OpenFile {
    pub(super) fn open(collection: &Arc<Collection>, node: EntryId, verify: Verify) -> Result<OpenFile> {
        let entry = collection.state().node(node).map(|node| node.entry.clone());
        let entry = entry.ok_or_else(|| Error::new(ErrorKind::Gone, "the file is gone"))?;
        let layout = Layout::open(collection, node, verify)?;
        OpenFile::of(collection, entry, layout, verify)
    }

    /// An empty file that the log does not have.
    pub(super) fn nameless(
        collection: &Arc<Collection>,
        entry: NodeEntry,
        verify: Verify,
    ) -> Result<OpenFile> {
        OpenFile::of(collection, entry, Layout::empty()?, verify)
    }

    fn of(
        collection: &Arc<Collection>,
        entry: NodeEntry,
        layout: Layout,
        verify: Verify,
    ) -> Result<OpenFile> {
        let node = entry.id;
        let ema_share = collection.thresholds_of(&collection.state(), node).ema_share as f32;
        let reserved = collection.meter().reserve(Use::default())?;
        let flags = Flags {
            is_new: AtomicBool::new(layout.bytes() == 0),
            changed: AtomicBool::new(false),
            unclosed: AtomicBool::new(false),
            writers: AtomicUsize::new(0),
            write_handles: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            arrived: AtomicBool::new(false),
            whole: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            forgotten: AtomicBool::new(false),
            told: AtomicBool::new(false),
            may_share: AtomicBool::new(false),
            may_have_pages: AtomicBool::new(layout.bytes() > 0),
        };
        let grown = Mutex::new(Grown { logged: layout.bytes(), reserved });
        Ok(OpenFile {
            collection: collection.clone(),
            node,
            verify,
            entry,
            ema_share,
            layout: RwLock::new(layout),
            grown,
            flags,
            made: Mutex::default(),
            invalidation_order: Mutex::default(),
            written: Written {
                from: AtomicU64::new(u64::MAX),
                end: AtomicU64::new(0),
                uncached: AtomicUsize::new(0),
                head: Mutex::default(),
            },
            page_cache: PageCache::default(),
        })
    }

    /// Begin of the writes that the settings for what arrives were not applied to yet, whether all of its bytes were
    /// written since it was opened, and whether no close has ended the writes.
    pub fn arrival(&self) -> (u64, bool, bool) {
        let flags = &self.flags;
        let is_unclosed = flags.unclosed.load(Ordering::Acquire);
        (self.written.from.load(Ordering::Acquire), flags.is_new.load(Ordering::Acquire), is_unclosed)
    }

    /// Goes on with writes that another daemon has recorded in part, from its [`arrival`](Self::arrival).
    pub fn continue_arrival(&self, from: u64, is_new: bool, is_unclosed: bool) {
        self.written.from.fetch_min(from, Ordering::AcqRel);
        self.flags.is_new.fetch_or(is_new, Ordering::AcqRel);
        self.flags.unclosed.fetch_or(is_unclosed, Ordering::AcqRel);
    }

    /// The lock that orders invalidations: a thread holds it from before the flush until it has notified the
    /// kernel. A thread that finds the file flushed by another thus tells the kernel after that one.
    pub fn invalidation_order(&self) -> MutexGuard<'_, ()> {
        self.invalidation_order.lock()
    }

    /// The collection of the file.
    pub fn collection(&self) -> &Arc<Collection> {
        &self.collection
    }

    /// Adds the objects that it has open. `false` while the file changes.
    pub fn add_objects(&self, objects: &mut HashSet<ObjectId>) -> bool {
        let layout = self.layout.try_read();
        let Some(layout) = layout else { return false };
        objects.extend(layout.objects.iter().map(|open| open.object().entry.id));
        true
    }

    /// The node of the file.
    pub fn node(&self) -> EntryId {
        self.node
    }

    /// The catalog entry at the time of opening.
    pub fn entry(&self) -> &NodeEntry {
        &self.entry
    }

    /// Current size in bytes.
    pub fn bytes(&self) -> u64 {
        self.layout.read().bytes()
    }

    /// Whether the file has absent bytes that cannot be reconstructed.
    pub fn has_lost(&self) -> bool {
        self.layout.read().objects.iter().any(OpenObject::has_lost)
    }

    /// Time of the last write that is not in the log yet, in nanoseconds since 1970.
    pub fn mtime(&self) -> Option<i64> {
        self.layout.read().mtime
    }

    /// Whether the file has writes that are not in the log yet, or that were not reported to others.
    pub fn is_changed(&self) -> bool {
        self.flags.changed.load(Ordering::Acquire)
    }

    /// Whether the file has unflushed writes, or was written to since a program last closed it.
    pub fn is_unclosed(&self) -> bool {
        self.is_changed() || self.flags.unclosed.load(Ordering::Acquire)
    }

    /// Forgets the time of the last write, because a program has set another time.
    pub fn forget_mtime(&self) {
        self.layout.write().mtime = None;
    }

    /// Reads from `offset` until `out` is full or the file ends. Returns the number of bytes read.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let layout = self.layout.read();
        layout.check()?;
        let got = layout.stream.read(offset, out)?;
        self.show_hash(&layout, offset, out.split_at_mut(got).0)?;
        self.count(&layout, offset..offset.saturating_add(got as u64));
        Ok(got)
    }

    /// Counts an access of the whole file. The kernel serves cached pages and passthrough reads
    /// without a request, so these are not counted one by one. Where the policy moves blocks, reads alone count.
    pub fn opened_to_read(&self) {
        if self.counts_by_block() {
            return self.collection.note_use();
        }
        let layout = self.layout.read();
        self.count(&layout, 0..layout.bytes());
    }

    fn counts_by_block(&self) -> bool {
        engine::is_moved_by_block(&self.collection.state(), self.node)
    }

    fn count(&self, layout: &Layout, range: Range<u64>) {
        let ticks = self.collection.ticks();
        let (now, created) = (ticks.now(), ticks.of(self.entry.created_at));
        let file_use = FileUse { created, now, share: self.ema_share };
        for piece in layout.pieces(range) {
            let Some(object) = layout.objects.get(piece.segment).map(OpenObject::object) else { continue };
            let cut = object.layout();
            let blocks = cut.index(piece.range.start)..cut.index(piece.range.end - 1).saturating_add(1);
            object.count_use(blocks, file_use);
        }
        self.collection.note_use();
    }

    /// The physical file that holds the file's bytes from end to end, if there is one, and the daemon need not see each read.
    pub fn backing(&self) -> Option<Backing> {
        if self.counts_by_block() {
            return None;
        }
        let layout = self.layout.read();
        if self.is_changed() || layout.check().is_err() || layout.drafts > 0 || layout.assembly.is_some() {
            return None;
        }
        let objects = layout.objects.iter().map(|open| open.object().clone());
        self.collection.backing_of(objects.collect())
    }

    /// Writes at `offset`. A gap between the end and `offset` becomes zeros.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or_else(|| Error::new(ErrorKind::TooLarge, "a file past 2^63 - 1 bytes"))?;
        if bytes.is_empty() {
            return Ok(());
        }
        let mut layout = self.locked_to_grow(end, RwLock::upgradable_read)?;
        layout.check()?;
        self.refuse_assembled(&layout)?;
        let before = layout.bytes();
        self.check_not_needed(&layout, offset..end)?;
        self.written.from.fetch_min(offset.min(before), Ordering::AcqRel);
        let write = |layout: &Layout| {
            self.flags.changed.store(true, Ordering::Release);
            self.written.note_head(offset, &[]);
            let written = write_pieces(layout, offset..end, bytes);
            if written.is_ok() {
                self.written.note_head(offset, bytes);
                self.written.end.fetch_max(end, Ordering::AcqRel);
            }
            written
        };
        let written = if end > before {
            // A reader sees the new length only with the bytes.
            let mut whole = RwLockUpgradableReadGuard::upgrade(layout);
            self.grow(&mut whole, end)?;
            whole.mtime = Some(now_nanoseconds());
            write(&whole)
        } else {
            if layout.mtime.is_none() {
                let mut whole = RwLockUpgradableReadGuard::upgrade(layout);
                whole.mtime = Some(now_nanoseconds());
                layout = RwLockWriteGuard::downgrade_to_upgradable(whole);
            }
            write(&RwLockUpgradableReadGuard::downgrade(layout))
        };
        if written.is_err() {
            // A failed write does not extend the file.
            self.shrink_back(before, end);
        }
        // Only now: the kernel may have read the old bytes by another name until the last moment.
        self.flags.told.store(false, Ordering::Release);
        written
    }

    /// Undoes the growth to `end` if the file still ends there. It keeps the bytes that other writes
    /// have reached.
    pub fn shrink_back(&self, before: u64, end: u64) {
        let mut layout = self.layout.write();
        let kept = before.max(self.written.end.load(Ordering::Acquire));
        if layout.bytes() == end && kept < end {
            if let Err(error) = self.cut(&mut layout, kept) {
                log::warn!(
                    "{}: the file keeps zeros at its end after a failed write: {error}",
                    self.collection.path()
                );
            }
            self.flags.changed.store(true, Ordering::Release);
        }
    }

    /// Whether the log has the present size.
    pub fn has_logged_size(&self) -> bool {
        let bytes = self.bytes();
        self.collection.state().node(self.node).is_some_and(|node| node.bytes == bytes)
    }

    /// Truncates or extends the file with zeros, and commits this with all unflushed writes. On an
    /// error the file is unchanged. A file without a name is truncated in memory only.
    pub fn truncate(&self, bytes: u64) -> Result<Changes> {
        let mut changes = Changes::default();
        self.truncate_into(bytes, &mut changes)?;
        Ok(changes)
    }

    /// [`truncate`](Self::truncate), which adds its changes to `changes`, also those before a failure.
    pub fn truncate_into(&self, bytes: u64, changes: &mut Changes) -> Result<()> {
        let mut layout = self.locked_to_grow(bytes, RwLock::write)?;
        layout.check()?;
        let before = layout.bytes();
        self.written.from.fetch_min(bytes.min(before), Ordering::AcqRel);
        self.written.note_head(bytes.min(before), &[]);
        if bytes != before && bytes > 0 {
            self.refuse_assembled(&layout)?;
        }
        if bytes != before {
            self.check_not_needed(&layout, 0..bytes.max(before))?;
        }
        if bytes < before {
            self.refuse_part()?;
            return self.cut_logged(&mut layout, bytes, changes);
        }
        if bytes == before {
            let mtime = layout.mtime.replace(now_nanoseconds());
            let was_changed = self.flags.changed.swap(true, Ordering::AcqRel);
            let flushed = self.flush_locked(&mut layout);
            if flushed.is_err() && !was_changed {
                // The layout is held: nobody else has written meanwhile.
                layout.mtime = mtime;
                self.flags.changed.store(false, Ordering::Release);
            }
            changes.merge(flushed?);
            return Ok(());
        }
        self.grow(&mut layout, bytes)?;
        layout.mtime = Some(now_nanoseconds());
        self.flags.changed.store(true, Ordering::Release);
        drop(layout);
        changes.merge(self.flush().inspect_err(|_| self.shrink_back(before, bytes))?);
        Ok(())
    }

    /// Truncates the file in memory. Objects that are in the log keep their bytes.
    fn cut(&self, layout: &mut Layout, bytes: u64) -> Result<()> {
        let (kept, end) = layout.kept(bytes);
        if let Some(last) = layout.objects.get(..kept).and_then(<[_]>::last).filter(|_| end > bytes) {
            last.resize(last.bytes() - (end - bytes))?;
        }
        let known = layout.objects.len() - layout.drafts;
        layout.objects.truncate(kept);
        layout.shared = layout.shared.min(kept);
        layout.assembly = None;
        layout.drafts = kept.saturating_sub(known);
        layout.is_other = true;
        layout.refresh()?;
        self.grown.lock().count(layout.bytes())
    }

    /// Truncates the file and commits it in one batch, or in memory where the file has no name.
    fn cut_logged(&self, layout: &mut Layout, bytes: u64, changes: &mut Changes) -> Result<()> {
        let mut is_named = true;
        if layout.drafts > 0 && bytes > 0 {
            // Drafts need an extent in the log first.
            changes.merge(self.flush_locked(layout)?);
            is_named = layout.drafts == 0;
        }
        let cut = if is_named { self.record_truncation(layout, bytes)? } else { None };
        match cut {
            Some(more) => {
                changes.merge(more);
                self.grown.lock().flushed(layout.bytes())?;
                self.discard_drafts(&layout.objects);
                self.flags.changed.store(false, Ordering::Release);
            }
            None => {
                self.cut(layout, bytes)?;
                layout.mtime = Some(now_nanoseconds());
                self.flags.changed.store(true, Ordering::Release);
            }
        }
        self.flags.unclosed.store(true, Ordering::Release);
        self.written.end.fetch_min(bytes, Ordering::AcqRel);
        self.flags.is_new.fetch_or(bytes == 0, Ordering::AcqRel);
        self.flags.may_have_pages.fetch_and(bytes > 0, Ordering::AcqRel);
        Ok(())
    }

    pub(super) fn grow_counted(&self, layout: &mut Layout, bytes: u64) -> Result<()> {
        let more = bytes - layout.bytes();
        let can_grow = |object: &OpenObject| {
            let id = object.object().entry.id;
            self.collection.state().part_of(id).is_none()
        };
        if let [only] = layout.objects.as_slice()
            && only.bytes() + more > GATHERED_BYTES_MAX
            && (only.is_in_memory() || layout.drafts == 0 && only.is_gathered())
        {
            // A packed file outgrows its packed form and moves to a data file, where unwritten ranges
            // are holes.
            only.check_writable()?;
            self.move_to_data_file(layout)?;
        }
        if layout.objects.is_empty() && bytes <= GATHERED_BYTES_MAX && self.is_plain() {
            // Most small files never get a data file: their bytes are copied to a tier file.
            layout.objects.push(self.draft(Place::Memory)?);
            layout.drafts += 1;
        }
        // Behind shared blocks a data file has the bytes of others.
        let ends_shared = layout.shared > 0 && layout.shared == layout.objects.len();
        if ends_shared || !layout.objects.last().is_some_and(|last| layout.drafts > 0 || can_grow(last)) {
            layout.objects.push(self.draft(Place::DataFile)?);
            layout.drafts += 1;
        }
        let grown = layout.objects.last().map_or(Ok(()), |last| last.resize(last.bytes() + more));
        // The parts have changed even where there was no room to grow.
        layout.is_other = true;
        layout.refresh().and(grown)
    }

    /// Gives the only object of the file a draft with a data file.
    pub(super) fn move_to_data_file(&self, layout: &mut Layout) -> Result<()> {
        let [only] = layout.objects.as_slice() else { return Ok(()) };
        let mut bytes = vec![0; only.bytes() as usize];
        only.read(0, &mut bytes)?;
        let draft = self.draft(Place::DataFile)?;
        draft.resize(only.bytes())?;
        draft.write(0, &bytes)?;
        layout.objects = vec![draft];
        layout.drafts = 1;
        layout.shared = 0;
        layout.refresh()
    }

    fn is_plain(&self) -> bool {
        let state = self.collection.state();
        let file = state.node(self.node).and_then(|node| node.file());
        file.is_some_and(|file| file.content == Content::Plain)
    }

    /// Creates a draft: an object that is not in the log yet, with a data file of its own.
    fn draft(&self, place: Place) -> Result<OpenObject> {
        let number = match place {
            Place::Memory => MEMORY_FILE,
            Place::DataFile => self.collection.create_draft_file()?,
        };
        // Checksums of short blocks give those of longer ones.
        let block_bytes = Blocking::default().block_bytes(Dtype::U8, 0);
        let object = Arc::new(Object::draft(block_bytes, Extent { file: number, offset: 0 }));
        self.note_draft(&object);
        match place {
            Place::Memory => Ok(OpenObject::in_memory(&self.collection, &object, self.verify)),
            Place::DataFile => OpenObject::open(&self.collection, &object, self.verify),
        }
    }

    pub(super) fn note_draft(&self, draft: &Arc<Object>) {
        self.made.lock().push(draft.clone());
    }

    /// Releases the space of drafts that are not in `kept` and that the log does not name.
    pub(super) fn discard_drafts(&self, kept: &[OpenObject]) {
        let is_kept = |draft: &mut Arc<Object>| kept.iter().any(|open| Arc::ptr_eq(open.object(), draft));
        let mut gone = Vec::new();
        self.made.lock().retain_mut(|draft| {
            let kept = is_kept(draft);
            if !kept {
                gone.push(draft.clone());
            }
            kept
        });
        for draft in gone {
            self.collection.discard(&draft);
        }
    }

    /// Fails with `Busy` if other objects depend on the bytes to be written, or other files have them too. A write that changes the
    /// size, or that lies between tensors, may split the file anew, so no object of it may be needed.
    pub(super) fn check_not_needed(&self, layout: &Layout, range: Range<u64>) -> Result<()> {
        if !self.collection.has_relatives() {
            return Ok(());
        }
        let is_part = |open: &&OpenObject| self.collection.state().part_of(open.object().entry.id).is_some();
        let pieces = layout.pieces(range.start..range.end.min(layout.bytes()));
        let written: Vec<&OpenObject> =
            pieces.filter_map(|piece| layout.objects.get(piece.segment)).collect();
        let is_inside = range.end <= layout.bytes() && written.iter().all(is_part);
        // All pieces are checked before the first is written: a page may lie in two tensors.
        let mut all = if is_inside { written } else { layout.objects.iter().collect() }.into_iter();
        all.try_for_each(|open| self.collection.check_not_needed(open.object().entry.id, Some(self.node)))
    }

    /// Fails with `Busy`, and names a child, if others depend on any bytes of the file.
    pub fn check_unneeded(&self) -> Result<()> {
        if !self.collection.has_relatives() {
            return Ok(());
        }
        let objects: Vec<ObjectId> = {
            let layout = self.layout.read();
            layout.objects.iter().map(|open| open.object().entry.id).collect()
        };
        objects.into_iter().try_for_each(|object| self.collection.check_childless(object, self.node))
    }

    /// Rejects a change of the size of a container's tensor: the container determines it.
    pub(super) fn refuse_part(&self) -> Result<()> {
        // `entry` is from the time of opening: a tensor whose container was split anew still shares
        // its bytes.
        match &self.entry.node_type {
            NodeType::File(file) if file.content == Content::Part => {
                let text = "the container sets the size of its tensors; change the container";
                Err(Error::new(ErrorKind::Denied, text))
            }
            _ => Ok(()),
        }
    }

    /// Rejects writes to a file that is assembled from parts of others, and notes the reason.
    pub(super) fn refuse_assembled(&self, layout: &Layout) -> Result<()> {
        let text = match &layout.assembly {
            None => return Ok(()),
            Some(Assembly::Batch(_)) => {
                "an embedding batch is assembled from its tensors; write to these or replace the whole file"
            }
            Some(Assembly::View(_)) => {
                "its elements belong to other tensors too, or lie apart; write to its container"
            }
        };
        engine::note_why(&self.collection, self.node, text)?;
        Err(Error::new(ErrorKind::Denied, text))
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        self.collection.check_writable()
    }

    /// Checks that the file may be written to, and locks the layout, with all counted that a quota depends on if the file gets
    /// longer. Nothing is counted with the layout held, for which readers wait; where versions change all the time, the
    /// growth goes by the last count.
    pub(super) fn locked_to_grow<'a, L: Deref<Target = Layout>>(
        &'a self,
        bytes: u64,
        lock: impl Fn(&'a RwLock<Layout>) -> L,
    ) -> Result<L> {
        self.check_writable()?;
        let meter = self.collection.meter();
        for _ in 0..COUNTS_MAX {
            let layout = lock(&self.layout);
            if bytes <= layout.bytes() || meter.is_counted_for_limits() {
                return Ok(layout);
            }
            drop(layout);
            meter.count_for_limits();
        }
        Ok(lock(&self.layout))
    }
}

fn write_pieces(layout: &Layout, range: Range<u64>, bytes: &[u8]) -> Result<()> {
    let mut rest = bytes;
    for piece in layout.pieces(range) {
        let (here, after) = rest.split_at((piece.range.end - piece.range.start) as usize);
        let object = layout.objects.get(piece.segment);
        object.ok_or_else(|| Error::invalid("a piece of no object"))?.write(piece.range.start, here)?;
        rest = after;
    }
    Ok(())
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.discard_drafts(&[]);
    }
}

impl OpenFile {
    pub(super) fn grow(&self, layout: &mut Layout, bytes: u64) -> Result<()> {
        self.refuse_part()?;
        self.grown.lock().count(bytes)?;
        self.grow_counted(layout, bytes).or_else(|error| {
            self.grown.lock().count(layout.bytes())?;
            Err(error)
        })
    }

    /// Whether the file is named as the index of a batch in the same directory.
    pub fn is_index(&self) -> bool {
        batch_beside(&self.collection.state(), self.node).is_some()
    }

    /// Puts the current hash of the batch into `out`, which was read from its index at `offset`. The stored
    /// index is unchanged; readers see the hash of the bytes served instead of the stored one.
    pub(super) fn show_hash(&self, layout: &Layout, offset: u64, out: &mut [u8]) -> Result<()> {
        let is_outside = offset >= HASH.end || offset + out.len() as u64 <= HASH.start;
        if is_outside || layout.assembly.is_some() {
            return Ok(());
        }
        if let Some(hash) = shown_hash(&self.collection, self.node, &layout.stream, self.verify)? {
            put_hash(hash, offset, out);
        }
        Ok(())
    }
}
