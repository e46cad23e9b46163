//! Compacts a collection: returns overwritten blocks to their data files, and shortens tier files and the log as far as
//! possible.
//!
//! It takes one object after the other, 32 MiB at a time, and holds its `writing`:
//!
//! 1. `OpenObject::pack_again` packs the verbatim and patched blocks of an object that has packed ones.
//!    `OpenObject::return_to_extent` (`store/io/relocate.rs`) moves the blocks of an object that is exact throughout
//!    from `tier0.dat` back to their extent, if that stretch is reclaimed and nobody holds the file. The bytes are made
//!    durable, then Migrate records say so and keep the epochs. The blocks are read back and compared, so that the file
//!    may be shown to the kernel at once.
//! 2. `OpenObject::merge_patches` joins the patches of a block to one.
//! 3. `OpenObject::fill_gaps` moves payloads from the end of a tier file to gaps before, in the same way.
//! 4. `Collection::truncate_files` cuts tier files behind the last slot; `Collection::checkpoint_now` writes the log
//!    anew.
//!
//! Records in `delta.dat` and `factor.dat` stay where they are: nothing compacts these files yet.

use std::collections::HashSet;
use std::sync::Arc;

use crate::engine::results::Compacted;
use crate::engine::work::Engine;
use crate::model::{Error, ErrorKind, ObjectId, Progress, Result, Tier};
use crate::store::Collection;
use crate::store::EventKind;
use crate::store::Object;
use crate::store::now_seconds;
use crate::store::{OpenObject, Verify};

/// Logical bytes whose blocks are moved with one batch.
const STEP_BYTES: u64 = 32 << 20;

/// The container ends with a job, and does not count.
struct Uncounted<'a>(&'a dyn Progress);

impl Progress for Uncounted<'_> {
    fn advance(&self, _bytes: u64) {}

    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// Compacts a collection: its data files, its tier files, its log. Readers and writers go on
/// meanwhile, and extents that they use are left for another time. Durable when it returns. An object
/// whose files are missing or damaged is counted and reported as an event, and stays unchanged. Fails
/// with `Interrupted` on cancellation; finished work stays. `progress` receives
/// [`Engine::compact_bytes`] in total.
pub fn compact(collection: &Arc<Collection>, progress: &dyn Progress) -> Result<Compacted> {
    collection.check_writable()?;
    let mut objects: Vec<Arc<Object>> = collection.state().objects().cloned().collect();
    objects.sort_by_key(|object| object.entry.creation);
    let mut done = Compacted::default();
    let mut left = HashSet::new();
    for object in &objects {
        if is_packed(object) && collection.check_not_needed(object.entry.id, None).is_ok() {
            let packed = each_step(collection, object, &Uncounted(progress), &mut |open, range| {
                done.packed += open.pack_again(range)?;
                Ok(())
            });
            leave_damaged(collection, object, packed, &mut left)?;
        }
        if collection.check_not_needed(object.entry.id, None).is_ok() {
            let merged = each_step(collection, object, &Uncounted(progress), &mut |open, range| {
                match open.merge_patches(range) {
                    // Another object has come to need it meanwhile.
                    Err(error) if error.kind() == ErrorKind::Busy => {}
                    merged => done.merged += merged?,
                }
                Ok(())
            });
            leave_damaged(collection, object, merged, &mut left)?;
        }
        if is_exact(object) {
            let brought = each_step(collection, object, progress, &mut |open, range| {
                done.returned += open.return_to_extent(range)?;
                Ok(())
            });
            leave_damaged(collection, object, brought, &mut left)?;
        } else {
            progress.advance(object.bytes());
        }
    }
    let spaces = collection.file_spaces()?;
    // In reverse order, so that the freed space is at the end.
    for object in objects.iter().rev() {
        let packed = each_step(collection, object, progress, &mut |open, range| {
            open.punch_left(range.clone())?;
            for (number, space) in (0..).zip(&spaces) {
                if space.end > space.used {
                    done.moved += open.fill_gaps(range.clone(), number, space.used)?;
                }
            }
            Ok(())
        });
        leave_damaged(collection, object, packed, &mut left)?;
    }
    done.left = left.len() as u64;
    // Released first, so that objects deleted meanwhile can be dropped.
    drop(objects);
    collection.punch_unowned()?;
    (done.before, done.after) = collection.truncate_files()?;
    collection.checkpoint_now()?;
    done.at = now_seconds();
    Ok(done)
}

/// Moves the blocks of exact objects back to their data files, so that the kernel can read those without the daemon.
/// Blocks stay where they are while somebody reads the data file directly or shares it, and on a full disk.
pub(super) fn return_to_extents(
    collection: &Arc<Collection>,
    objects: &[Arc<Object>],
    progress: &dyn Progress,
) -> Result<()> {
    for object in objects.iter().filter(|object| is_exact(object)) {
        let returned = each_step(collection, object, &Uncounted(progress), &mut |open, range| {
            open.return_to_extent(range).map(|_| ())
        });
        match returned {
            Err(error) if error.kind() == ErrorKind::Full && collection.poisoned().is_none() => return Ok(()),
            returned => leave_damaged(collection, object, returned, &mut HashSet::new())?,
        }
    }
    Ok(())
}

/// Goes on after an error of a single object, because the others may be intact.
fn leave_damaged(
    collection: &Collection,
    object: &Object,
    done: Result<()>,
    left: &mut HashSet<ObjectId>,
) -> Result<()> {
    let Err(error) = done else { return Ok(()) };
    let is_its_own = matches!(
        error.kind(),
        ErrorKind::Corrupt | ErrorKind::Io | ErrorKind::NotFound | ErrorKind::Gone | ErrorKind::Absent
    );
    // Nothing can be written after a failed batch or sync.
    if !is_its_own || collection.poisoned().is_some() {
        return Err(error);
    }
    if left.insert(object.entry.id) {
        let state = collection.state();
        let files = state
            .nodes()
            .filter(|node| node.file().is_some_and(|file| file.objects.contains(&object.entry.id)));
        let paths = files.map(|node| String::from_utf8_lossy(&state.path(node.entry.id)).into_owned());
        let path = paths.min().unwrap_or_default();
        drop(state);
        let place = format!("{}/{path}", collection.path());
        let text = format!("not compacted: {error}");
        collection.event_log().tell(EventKind::Corruption, &place, "compact", &text);
        log::error!("{place}: {text}");
    }
    Ok(())
}

impl Engine {
    /// Compacts a collection, see [`compact`], and stores the result.
    pub fn compact(&self, collection: &Arc<Collection>, progress: &dyn Progress) -> Result<Compacted> {
        let done = compact(collection, progress)?;
        self.compacted.lock().insert(collection.path(), done);
        Ok(done)
    }

    /// Logical bytes that a compaction processes: those of the collection twice.
    pub fn compact_bytes(&self, collection: &Collection) -> u64 {
        collection.state().objects().map(|object| object.bytes()).sum::<u64>() * 2
    }

    /// The result of the last compaction of a collection since the store was opened.
    pub fn last_compact(&self, collection: &Collection) -> Option<Compacted> {
        self.compacted.lock().get(&collection.path()).copied()
    }
}

/// Whether blocks of an object are packed. Packed objects have their later writes packed again.
fn is_packed(object: &Object) -> bool {
    let layout = object.logged_layout();
    object.blocks.read().pieces(layout).any(|(_, block)| block.stored.tier == Tier::Packed)
}

/// Whether all blocks of an object are stored verbatim.
fn is_exact(object: &Object) -> bool {
    let layout = object.logged_layout();
    object.blocks.read().pieces(layout).all(|(_, block)| block.stored.tier == Tier::Exact)
}

/// Runs a step on an object, a range of blocks at a time.
fn each_step(
    collection: &Arc<Collection>,
    object: &Arc<Object>,
    progress: &dyn Progress,
    step: &mut dyn FnMut(&OpenObject, std::ops::Range<u32>) -> Result<()>,
) -> Result<()> {
    let open = OpenObject::open(collection, object, Verify::First)?;
    let layout = object.logged_layout();
    let count = (STEP_BYTES / u64::from(layout.block_bytes.max(1))).max(1) as u32;
    let mut first = 0;
    while first < layout.blocks() {
        let zeros = object.zeros_from(first, layout).saturating_sub(first);
        let last = first.saturating_add(count.max(zeros)).min(layout.blocks());
        step(&open, first..last)?;
        progress.advance(layout.start(last).min(layout.bytes) - layout.start(first));
        first = last;
        if progress.is_cancelled() {
            return Err(Error::new(ErrorKind::Interrupted, "cancelled by request"));
        }
    }
    Ok(())
}
