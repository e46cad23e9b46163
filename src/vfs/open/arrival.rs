//! Closed files in a directory with settings for what arrives.
//!
//! A file arrives when its writer closes it and all of its bytes are new, and when a rename takes it to such a place, or
//! from a temporary name to its own. A new file that was not recorded before is stored as the settings say in the batch
//! that recognizes it (`flush.rs`); one that an fsync recorded is stored anew, from exact bytes. In a file that has
//! arrived, later closes store what was appended or overwritten since: exact blocks only, so no block is rounded twice
//! but the last one of a file that grows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crate::engine::{self, StoreArrived, Target};
use crate::format::log::catalog::{Content, FileEntry};
use crate::ingest::{
    Arrival, Arriving, Recognized, Replaced, Shaped, arrive_shaped, is_recorded, recognize, recognize_at,
};
use crate::model::{EntryId, NameIn, Result, Tier};
use crate::store::disk::File;
use crate::store::{ARRIVED, Collection, Object};
use crate::vfs::open::Changes;
use crate::vfs::open::file::OpenFile;
use crate::vfs::open::layout::Layout;
use crate::vfs::open::source::StreamFile;

/// Whether a rename takes a file to where settings for what arrives apply, from where they did not.
pub fn arrives_by_rename(collection: &Collection, node: EntryId, from: NameIn<'_>, to: NameIn<'_>) -> bool {
    let applies = |name| !Arrival::at(collection, node, name).is_plain();
    collection.state().has_settings_of_arrivals() && applies(to) && !applies(from)
}

impl OpenFile {
    /// The file as one whose bytes are replaced.
    pub(super) fn replaced(&self, is_arrival: bool) -> Replaced<'static> {
        Replaced { node: self.node, new: None, rename: None, is_arrival }
    }

    /// Whether a close now makes it arrive.
    pub(super) fn arrives_closed(&self) -> bool {
        let may_arrive = {
            let state = self.collection.state();
            let is_new = self.flags.is_new.load(Ordering::Acquire);
            state.has_settings_of_arrivals() && (is_new || state.setting(self.node, ARRIVED).is_some())
        };
        may_arrive && !Arrival::of(&self.collection, self.node).is_plain()
    }

    /// Stores a file that was renamed into place as the settings say, unless a program still writes it. Adds its changes
    /// to `changes`.
    pub fn arrive_renamed(&self, changes: &mut Changes) -> Result<()> {
        // Nothing of it was stored as the settings of its new place say.
        self.written.from.store(0, Ordering::Release);
        if self.is_unclosed() { Ok(()) } else { self.arrive_closed(changes) }
    }

    /// Moves the rows that lie behind the tail now, if the settings have one. Bytes from `from` on were written since the
    /// last time. Adds its changes to `changes`.
    fn cool_closed(&self, arrival: Arrival, from: u64, changes: &mut Changes) -> Result<()> {
        let Some(tail) = arrival.into_tail() else { return Ok(()) };
        engine::cool_behind_tail(&self.collection, self.node, &tail, from, &mut changes.nodes)
    }

    /// Does what is left to do for a file that has arrived with the flush of its close, or with its rename, unless a program
    /// still writes it. Adds its changes to `changes`.
    pub fn cool_arrived(&self, changes: &mut Changes) -> Result<()> {
        if self.is_changed() || self.has_writers() {
            return Ok(());
        }
        let arrival = Arrival::of(&self.collection, self.node);
        let cooled = self.cool_closed(arrival, 0, changes);
        self.note_kept(cooled)
    }

    /// Stores what a closed file has as the settings for what arrives say. Where that fails, the file stays exact, and
    /// its `why` says so. Adds its changes to `changes`.
    pub(super) fn arrive_closed(&self, changes: &mut Changes) -> Result<()> {
        let arrival = Arrival::of(&self.collection, self.node);
        if arrival.is_plain() {
            return Ok(());
        }
        let from = self.written.from.swap(u64::MAX, Ordering::AcqRel);
        let stored = self.store_as_set(&arrival, from, changes);
        let is_done = matches!(stored, Ok(true));
        let stored = stored.and_then(|is_done| match is_done {
            true => self.cool_closed(arrival, from, changes),
            false => Ok(()),
        });
        if !is_done || stored.is_err() {
            self.written.from.fetch_min(from, Ordering::AcqRel);
        }
        self.note_kept(stored)
    }

    /// Notes a failure to store the file as set.
    fn note_kept(&self, stored: Result<()>) -> Result<()> {
        if let Err(error) = stored {
            log::warn!("{}: a file stays as it was written: {error}", self.collection.path());
            let why = format!("kept as it was written, not as set for what arrives: {error}");
            engine::note_why(&self.collection, self.node, &why)?;
        }
        Ok(())
    }

    /// Whether it was stored as the settings say, rather than left to a later close. Bytes from `from` on were written since
    /// the last time.
    fn store_as_set(&self, arrival: &Arrival, from: u64, changes: &mut Changes) -> Result<bool> {
        {
            let mut layout = self.layout.write();
            layout.check()?;
            if self.is_changed() || layout.drafts > 0 {
                // The close after this write comes here again.
                return Ok(false);
            }
            let mut objects = layout.objects.iter().map(|open| &**open.object());
            if objects.all(|object| !has_blocks(object, |tier| tier != Tier::Exact)) {
                return self.store_anew(&mut layout, arrival, changes).map(|()| true);
            }
        }
        let tier_of = |target: &Target| {
            let block_bytes = target.objects.first()?.entry.block_bytes;
            let arriving = Arriving {
                dtype: target.dtype,
                shape: &target.shape,
                name: &target.name,
                has_codes: target.has_codes,
                is_bound: target.is_checksummed,
                block_bytes,
            };
            arrival.tier_of(&self.collection, &arriving)
        };
        let how = StoreArrived { tier_of: &tier_of, encoder: arrival.encoder(), from };
        changes.nodes.extend(engine::store_arrived(&self.collection, self.node, &how)?);
        Ok(true)
    }

    /// Stores a verbatim file anew, if the settings make another one of it.
    fn store_anew(&self, layout: &mut Layout, arrival: &Arrival, changes: &mut Changes) -> Result<()> {
        let Some((node, name)) = self.named() else { return Ok(()) };
        let Some(file) = node.file() else { return Ok(()) };
        let source: Arc<dyn File> =
            Arc::new(StreamFile { stream: layout.stream.clone(), bytes: layout.bytes() });
        let path = self.path();
        let found = match file.content {
            Content::Part => return Ok(()),
            Content::Tensor => recognize(&source, b""),
            _ => recognize_at(&self.collection, &path, &source, &self.fitting_name(name, &source)),
        };
        // The file says already why its content does not fit its name.
        let Ok(recognized) = found else { return Ok(()) };
        let why = recognized.note.clone();
        let own_name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let shaped = arrival.apply(&self.collection, Shaped { recognized, why }, own_name, Some(file));
        let is_cut_otherwise = arrival.cuts_otherwise(&self.collection.state(), file, &shaped.recognized);
        if self.is_recorded_as(file, &shaped.recognized)
            && !is_cut_otherwise
            && !arrival.moves_any(&self.collection, &shaped.recognized)
        {
            if *shaped.why != *file.why {
                engine::note_why(&self.collection, self.node, &shaped.why)?;
            }
            return Ok(());
        }
        let before = self.related(&node);
        let bytes = self.bytes_of(layout, &layout.objects, &source)?;
        let (digests, mtime) = (file.digests.clone(), node.entry.mtime);
        let replaced = self.replaced(true);
        let parts = arrive_shaped(&self.collection, replaced, arrival, shaped, bytes, digests, mtime)?;
        changes.nodes.extend(before);
        changes.nodes.extend(self.rounded_now(&parts.0));
        layout.replace(&self.collection, Ok(parts), self.verify)
    }

    fn is_recorded_as(&self, file: &FileEntry, recognized: &Recognized) -> bool {
        if recognized.content != Content::Tensor {
            return is_recorded(&self.collection.state(), file, recognized);
        }
        let found = recognized.parts.first().and_then(|part| part.tensor.as_ref());
        let same = file.tensor.as_ref().zip(found);
        file.content == Content::Tensor
            && same.is_some_and(|(known, found)| (known.dtype, &known.shape) == (found.dtype, &found.shape))
    }

    /// The file, if the kernel may have more precise bytes than these objects.
    pub(super) fn rounded_now(&self, objects: &[Arc<Object>]) -> Option<EntryId> {
        let is_rounded = objects.iter().any(|object| has_blocks(object, |tier| !tier.is_exact()));
        is_rounded.then_some(self.node)
    }
}

/// Whether any block of an object has such a tier.
fn has_blocks(object: &Object, is_such: impl Fn(Tier) -> bool) -> bool {
    let layout = object.layout();
    object.stored_blocks(0..layout.blocks(), layout).any(|(_, block)| is_such(block.stored.tier))
}

/// References to an open file that only one handle has: its own, and that of its writer.
const ALONE: usize = 2;

/// A handle that may write to a file. The file arrives when the last of these is closed. The kernel tells of each close
/// of a descriptor, and not whether the handle has others, so the first one counts until the handle writes again.
pub struct Writer {
    file: Arc<OpenFile>,
    is_counted: AtomicBool,
    is_uncached: AtomicBool,
}

impl Writer {
    pub fn of(file: Arc<OpenFile>) -> Writer {
        file.flags.writers.fetch_add(1, Ordering::AcqRel);
        file.flags.write_handles.fetch_add(1, Ordering::AcqRel);
        Writer { file, is_counted: AtomicBool::new(true), is_uncached: AtomicBool::new(false) }
    }

    /// [`write_uncached`](Self::write_uncached) if nobody else has the file open, so that the kernel can have no page
    /// of it. Whether its writes go past the page cache now.
    pub fn write_uncached_alone(&self) -> bool {
        // A program that opens the file from here on finds the note.
        self.write_uncached();
        fence(Ordering::SeqCst);
        let is_alone = Arc::strong_count(&self.file) <= ALONE;
        if !is_alone {
            self.write_cached();
        }
        is_alone
    }

    /// Whether its writes go past the kernel's page cache.
    pub fn is_uncached(&self) -> bool {
        self.is_uncached.load(Ordering::Acquire)
    }

    /// Notes that its writes go past the kernel's page cache.
    pub fn write_uncached(&self) {
        if !self.is_uncached.swap(true, Ordering::AcqRel) {
            self.file.written.uncached.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn write_cached(&self) {
        if self.is_uncached.swap(false, Ordering::AcqRel) {
            self.file.written.uncached.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Notes that a program has closed it, perhaps one of several descriptors.
    pub fn closed(&self) {
        if self.is_counted.swap(false, Ordering::AcqRel) {
            self.file.flags.writers.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Notes that a program writes to it, perhaps after another descriptor of it was closed.
    pub fn writes(&self) {
        if !self.is_counted.swap(true, Ordering::AcqRel) {
            self.file.flags.writers.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.closed();
        self.write_cached();
        self.file.flags.write_handles.fetch_sub(1, Ordering::AcqRel);
    }
}

impl OpenFile {
    /// Whether a program writes to it past the kernel's page cache. Others then read it past the cache too: a page that is
    /// read while a write is on its way would stay as it was before. A file that is opened meanwhile may be
    /// mapped, so its pages are dropped when it is flushed.
    pub fn is_written_uncached(&self) -> bool {
        // The caller has it open: the first writer finds it so, or is found here.
        fence(Ordering::SeqCst);
        let is_written = self.written.uncached.load(Ordering::Acquire) > 0;
        if is_written {
            self.note_forgotten();
        }
        is_written
    }

    /// Whether a handle that may write to it is open.
    pub fn has_writers(&self) -> bool {
        self.flags.writers.load(Ordering::Acquire) > 0
    }

    /// Whether a program may still write to it, also through a mapping or a second descriptor.
    pub fn may_be_written(&self) -> bool {
        self.flags.write_handles.load(Ordering::Acquire) > 0
    }
}
