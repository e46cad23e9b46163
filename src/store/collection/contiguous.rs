//! Which physical file has a file's bytes from end to end, so that they can be read there.
//!
//! Blocks that the log describes are never written in place (`object` 1), and a data file
//! is not used again for other bytes: who reads the physical file sees what it was, and at
//! most what was written behind its end since.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::model::{Error, Result};
use crate::store::Collection;
use crate::store::collection::pinned_copies::PinnedCopy;
use crate::store::disk::{File, Open};
use crate::store::io::read::{OpenObject, Verify};
use crate::store::object::Object;
use crate::store::object::blocks::Blocks;
use crate::store::object::parts::Part;
use crate::store::state::{Node, State};

/// Bytes that a thread checks at a time: they go through the second-level cache. A longer block
/// is left to those who read it.
const STRETCH_BYTES: u32 = 256 << 10;

/// A physical file that has a file's bytes, offset by offset. What lies in it is not given
/// back while this lives.
#[derive(Clone, Debug)]
pub struct Backing {
    path: String,
    /// Its number, where it is a file outside the store.
    outside: Option<u64>,
    _objects: Vec<Arc<Object>>,
    /// Its stretches are not given back to the disk while somebody has this.
    _shown: Option<Arc<()>>,
    /// Where it is the copy of a pinned file, the copy.
    _copy: Option<Arc<PinnedCopy>>,
}

impl Backing {
    /// Its path: in the store, where it is never used for other bytes, or of a file outside.
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// Whether an object, whose blocks are these, is one that may be shown.
type IsWanted = fn(&Object, &Blocks) -> bool;

/// A file that could be shown where it lies if all of its blocks were checked.
pub struct Unchecked {
    /// Those with blocks that were not.
    objects: Vec<OpenObject>,
}

impl Unchecked {
    /// Checks the blocks that were not, on so many threads, as far as the system has them in
    /// memory and until `is_over` or one of them is not what the log says. What was checked by
    /// then stays so. Whether all are.
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
                // This thread does it alone where there can be no others.
                let started = std::thread::Builder::new().spawn_scoped(scope, check);
                started.map(drop).unwrap_or_else(|error| log::debug!("checking ahead: {error}"));
            }
            check();
        });
        !has_failed.into_inner()
    }

    /// Whether the system has the first block in memory that was not checked.
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
    /// Checks the holes of the data file that it has; whether all are.
    fn check_holes(&self) -> bool {
        let object = self.object();
        let blocks = 0..object.logged_layout().blocks();
        object.pieces(blocks, object.logged_layout()).all(|(piece, block)| {
            let is_zeros = piece.len() > 1 || block.is_some_and(|block| block.stored.is_zeros());
            !is_zeros || (self.check_hole(&piece).is_ok() && object.checked.get(piece.start))
        })
    }
}

/// The lock is held to take it, and not while it is used.
fn next_of<T>(items: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    items.lock().next()
}

impl State {
    /// Whether no physical file can be shown for a file, whatever of it is checked: it is not pinned,
    /// and lies somewhere in a data file, as most do, or in none.
    pub fn is_never_backed(&self, node: &Node) -> bool {
        let objects = node.file().into_iter().flat_map(|file| &file.objects);
        let first = objects.filter_map(|id| self.object(*id)).find(|object| object.bytes() > 0);
        let begins = first.and_then(|first| first.extent()).is_some_and(|extent| extent.offset == 0);
        !begins && self.pins_of(node.entry.id).next().is_none()
    }
}

impl Collection {
    /// The physical file that may be shown for a file of these objects: the data file,
    /// where all of them lie in it as they are read now, each block was checked since the
    /// store was opened, and nothing else lies in it.
    pub fn backing_of(&self, objects: Vec<Arc<Object>>) -> Option<Backing> {
        let first = self.first_of(&objects, Object::is_checked)?;
        let number = first.extent()?.file;
        // Before it is looked at: a block that leaves it afterwards leaves its bytes.
        let shown = self.show_data_file(number);
        self.is_filled(number, &objects, Object::is_checked).then_some(())?;
        let origin = first.origin.as_ref();
        let path = origin.map_or_else(|| self.data_path(number), |origin| origin.path());
        let outside = origin.map(|_| number);
        Some(Backing { path, outside, _objects: objects, _shown: Some(shown), _copy: None })
    }

    /// A file of these objects, if nothing but blocks that were not checked keeps the data file
    /// from being shown for it, and the system has the first of them in memory.
    pub fn unchecked_of(self: &Arc<Self>, objects: &[Arc<Object>]) -> Option<Unchecked> {
        let number = self.first_of(objects, |_, _| true)?.extent()?.file;
        self.is_filled(number, objects, |_, _| true).then_some(())?;
        let unchecked = objects.iter().filter(|object| !object.is_checked(&object.blocks.read()));
        let open = |object| OpenObject::open(self, object, Verify::First);
        let unchecked = Unchecked { objects: unchecked.map(open).collect::<Result<_>>().ok()? };
        unchecked.begins_in_memory().then_some(unchecked)
    }

    /// The first object that has bytes, if it lies at the start of a data file and is as wanted.
    fn first_of<'a>(&self, objects: &'a [Arc<Object>], is_wanted: IsWanted) -> Option<&'a Arc<Object>> {
        let first = objects.iter().find(|object| object.bytes() > 0)?;
        let lies = self.damage().is_none() && first.lies_in(first.extent()?.file, 0, is_wanted);
        lies.then_some(first)
    }

    /// Whether a data file has these objects from its start to its end, all as wanted.
    fn is_filled(&self, number: u64, objects: &[Arc<Object>], is_wanted: IsWanted) -> bool {
        let bytes = bytes_in(number, objects, is_wanted);
        let Ok(file) = self.data_file(number) else { return false };
        // A file outside the store may have other bytes once it has another time.
        bytes.is_some() && file.len().ok() == bytes && file.is_untouched().unwrap_or(false)
    }

    /// The copy of a pinned file of these objects that may be shown: one that is sound, while
    /// nothing was written that no batch describes.
    pub fn backing_of_copy(&self, copy: &Arc<PinnedCopy>, objects: Vec<Arc<Object>>) -> Option<Backing> {
        let is_dirty = objects.iter().any(|object| object.is_dirty());
        if self.damage().is_some() || is_dirty || copy.is_sound() != Some(true) {
            return None;
        }
        let path = self.pinned_path(copy.number);
        Some(Backing { path, outside: None, _objects: objects, _shown: None, _copy: Some(copy.clone()) })
    }

    /// Opens a physical file to be read, on its own.
    pub fn open_backing(&self, backing: &Backing) -> Result<Arc<dyn File>> {
        if let Some(number) = backing.outside {
            // As it was found, whatever has its name now.
            return self.data_file(number);
        }
        let path = backing.path();
        self.disk.open(path, Open::Read).map_err(|error| Error::io(format!("opening {path}"), error))
    }
}

/// The bytes of objects that lie one after the other in a data file from its start, all of
/// them exact, unchanged and as wanted; `None` where they do not.
fn bytes_in(number: u64, objects: &[Arc<Object>], is_wanted: IsWanted) -> Option<u64> {
    let mut end = 0;
    for object in objects {
        if !object.lies_in(number, end, is_wanted) {
            return None;
        }
        end += object.bytes();
    }
    Some(end)
}

impl Object {
    /// Whether all of it lies in a data file from `offset` on, exact and unchanged, and it is as
    /// wanted while it does.
    fn lies_in(&self, number: u64, offset: u64, is_wanted: IsWanted) -> bool {
        let layout = self.layout();
        if self.is_dirty() {
            return false;
        }
        if layout.bytes == 0 {
            return true;
        }
        if self.extent().is_none_or(|extent| extent.file != number || extent.offset != offset) {
            return false;
        }
        let blocks = self.blocks.read();
        is_wanted(self, &blocks) && blocks.lie_at(offset, layout)
    }

    /// Whether all its blocks were checked: of zeros that are alike the first says so of all.
    fn is_checked(&self, blocks: &Blocks) -> bool {
        blocks.parts().all(|(first, part)| match part {
            Part::Alike(_) => self.checked.get(first),
            _ => self.checked.all(&(first..first + part.count())),
        })
    }
}
