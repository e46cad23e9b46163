//! Finds the physical file that contains a file's bytes contiguously, so that they can be read
//! directly.
//!
//! Blocks that the log describes are never written in place (`object` 1), and a data file is not reused
//! for other bytes. So a reader of the physical file sees the bytes as they were, and at most some that
//! were written behind its end since.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::model::{Error, Result};
use crate::store::collection::Collection;
use crate::store::collection::open_object::{OpenObject, Verify};
use crate::store::disk::{File, Open};
use crate::store::object::Object;
use crate::store::object::blocks::Blocks;
use crate::store::object::parts::Part;
use crate::store::space::external_file::is_untouched;
use crate::store::state::pinned_copy::PinnedCopy;

/// Bytes that a thread verifies at a time, so that they fit the second-level cache. A longer block is
/// left to its readers.
const STRETCH_BYTES: u32 = 256 << 10;

/// A physical file with the bytes of a file at the same offsets. Its space is not reclaimed while this
/// lives.
#[derive(Clone, Debug)]
pub struct Backing {
    path: String,
    /// The number of the data file, if it is an outside file.
    outside: Option<u64>,
    _objects: Vec<Arc<Object>>,
    /// Keeps its stretches from being reclaimed.
    _shown: Option<Arc<()>>,
    /// The copy, if it is the copy of a pinned file.
    _copy: Option<Arc<PinnedCopy>>,
}

impl Backing {
    /// Its path: in the store, where it is never reused for other bytes, or of an outside file.
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// Whether an object with these blocks may be read directly.
type IsWanted = fn(&Object, &Blocks) -> bool;

/// A file that could be read directly if all of its blocks were verified.
pub struct Unchecked {
    /// The objects with blocks that are not verified.
    objects: Vec<OpenObject>,
}

impl Unchecked {
    /// Verifies the remaining blocks on this many threads, as far as they are in the page cache. Stops
    /// when `is_over` says so or a block does not match the log; blocks verified by then stay so.
    /// Returns whether all are verified.
    pub fn check(&self, threads: usize, is_over: &(dyn Fn() -> bool + Sync)) -> bool {
        let has_failed = AtomicBool::new(false);
        if !self.objects.iter().all(OpenObject::check_holes) {
            return false;
        }
        let stretches = self.objects.iter().flat_map(|open| {
            let layout = open.object().logged_layout();
            let step = (STRETCH_BYTES / layout.block_bytes).max(1);
            let stored: Vec<Range<u32>> =
                open.object().blocks.read().with_payloads(0..layout.blocks()).collect();
            stored.into_iter().flat_map(move |Range { start, end }| {
                let starts = (start..end).step_by(step as usize);
                starts.map(move |first| (open, first..first.saturating_add(step).min(end)))
            })
        });
        let stretches = Mutex::new(stretches);
        let check = || {
            let mut buffer = vec![0; STRETCH_BYTES as usize];
            while let Some((open, blocks)) = next_of(&stretches) {
                if has_failed.load(Ordering::Relaxed)
                    || is_over()
                    || !open.check_in_memory(blocks, &mut buffer)
                {
                    has_failed.store(true, Ordering::Relaxed);
                    return;
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // This thread does the work alone if no other can be started.
                let started = std::thread::Builder::new().spawn_scoped(scope, check);
                started.map(drop).unwrap_or_else(|error| log::debug!("checking ahead: {error}"));
            }
            check();
        });
        !has_failed.into_inner()
    }

    /// Whether the first unverified block is in the page cache.
    fn begins_in_memory(&self) -> bool {
        let Some(open) = self.objects.first() else { return false };
        let first = {
            let (blocks, checked) = (open.object().blocks.read(), &open.object().checked);
            let mut stored = blocks.with_payloads(0..open.object().logged_layout().blocks()).flatten();
            stored.find(|index| !checked.get(*index))
        };
        first.is_none_or(|index| open.begins_in_memory(index))
    }
}

impl OpenObject {
    /// Verifies the holes that the object has in the data file. Returns whether all are good.
    fn check_holes(&self) -> bool {
        let object = self.object();
        let blocks = 0..object.logged_layout().blocks();
        object.pieces(blocks, object.logged_layout()).all(|(piece, block)| {
            let is_zeros = piece.len() > 1 || block.is_some_and(|block| block.stored.is_zeros());
            !is_zeros || (self.check_hole(&piece).is_ok() && object.checked.get(piece.start))
        })
    }
}

/// The lock is held while the item is taken, not while it is used.
fn next_of<T>(items: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    items.lock().next()
}

impl Collection {
    /// The physical file that may be read directly for a file of these objects: the data file, if it
    /// contains them contiguously in their present state and nothing else, and each block was verified
    /// since the store was opened.
    pub fn backing_of(&self, objects: Vec<Arc<Object>>) -> Option<Backing> {
        let first = self.first_of(&objects, is_checked)?;
        let number = first.extent()?.file;
        // Taken before the check: a block that leaves the file later leaves its bytes there.
        let shown = self.files.shown.read_directly(number)?;
        self.is_filled(number, &objects, is_checked).then_some(())?;
        let origin = first.origin.as_ref();
        let path = origin.map_or_else(|| self.files.data_path(number), |origin| origin.path());
        let outside = origin.map(|_| number);
        Some(Backing { path, outside, _objects: objects, _shown: Some(shown), _copy: None })
    }

    /// A file of these objects, if only unverified blocks prevent reading the data file directly, and
    /// the first of them is in the page cache.
    pub fn unchecked_of(self: &Arc<Self>, objects: &[Arc<Object>]) -> Option<Unchecked> {
        let number = self.first_of(objects, |_, _| true)?.extent()?.file;
        self.is_filled(number, objects, |_, _| true).then_some(())?;
        let unchecked = objects.iter().filter(|object| !is_checked(object, &object.blocks.read()));
        let open = |object| OpenObject::open(self, object, Verify::First);
        let unchecked = Unchecked { objects: unchecked.map(open).collect::<Result<_>>().ok()? };
        unchecked.begins_in_memory().then_some(unchecked)
    }

    /// The first object with bytes, if it lies at the start of a data file and satisfies `is_wanted`.
    fn first_of<'a>(&self, objects: &'a [Arc<Object>], is_wanted: IsWanted) -> Option<&'a Arc<Object>> {
        let first = objects.iter().find(|object| object.bytes() > 0)?;
        let lies = self.damage().is_none() && lies_in(first, first.extent()?.file, 0, is_wanted);
        lies.then_some(first)
    }

    /// Whether a data file contains exactly these objects, and all satisfy `is_wanted`.
    fn is_filled(&self, number: u64, objects: &[Arc<Object>], is_wanted: IsWanted) -> bool {
        let bytes = bytes_in(number, objects, is_wanted);
        let outside = self.state().outside(number).cloned();
        if outside.as_ref().is_some_and(|outside| outside.object().is_some()) {
            // No file of this machine has its bytes for sure.
            return false;
        }
        let Ok(file) = self.files.data_file(number, outside.as_ref()) else { return false };
        // An outside file with a changed modification time may have other bytes.
        let is_untouched = outside.is_none_or(|recorded| is_untouched(&*file, &recorded).unwrap_or(false));
        bytes.is_some() && file.len().ok() == bytes && is_untouched
    }

    /// The copy of a pinned file of these objects, if it may be read directly: it is sound, and no
    /// write waits for a batch.
    pub fn backing_of_copy(&self, copy: &Arc<PinnedCopy>, objects: Vec<Arc<Object>>) -> Option<Backing> {
        let is_dirty = objects.iter().any(|object| object.is_dirty());
        if self.damage().is_some() || is_dirty || copy.is_sound() != Some(true) {
            return None;
        }
        let path = self.pinned_path(copy.number);
        Some(Backing { path, outside: None, _objects: objects, _shown: None, _copy: Some(copy.clone()) })
    }

    /// Opens a physical file for reading, separately from other users.
    pub fn open_backing(&self, backing: &Backing) -> Result<Arc<dyn File>> {
        if let Some(number) = backing.outside {
            // The file that was found first, even if another file has its name now.
            return self.data_file(number);
        }
        let path = backing.path();
        self.files.disk().open(path, Open::Read).map_err(|error| Error::io(format!("opening {path}"), error))
    }
}

/// Total bytes of objects that are contiguous in a data file from its start, exact, unchanged, and
/// satisfy `is_wanted`; `None` if they are not.
fn bytes_in(number: u64, objects: &[Arc<Object>], is_wanted: IsWanted) -> Option<u64> {
    let mut end = 0;
    for object in objects {
        if !lies_in(object, number, end, is_wanted) {
            return None;
        }
        end += object.bytes();
    }
    Some(end)
}

/// Whether the whole object lies in a data file at `offset`, exact and unchanged, and satisfies
/// `is_wanted` under the same lock.
fn lies_in(object: &Object, number: u64, offset: u64, is_wanted: IsWanted) -> bool {
    let layout = object.layout();
    if object.is_dirty() {
        return false;
    }
    if layout.bytes == 0 {
        return true;
    }
    if object.extent().is_none_or(|extent| extent.file != number || extent.offset != offset) {
        return false;
    }
    let blocks = object.blocks.read();
    is_wanted(object, &blocks) && blocks.lie_at(offset, layout)
}

/// Whether all its blocks were verified. In a part of equal zeros, the bit of the first block
/// stands for all.
fn is_checked(object: &Object, blocks: &Blocks) -> bool {
    blocks.parts().all(|(first, part)| match part {
        Part::Uniform(_) => object.checked.get(first),
        _ => object.checked.all(&(first..first + part.count())),
    })
}
