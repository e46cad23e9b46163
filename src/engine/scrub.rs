//! Scrubs: reads every stored payload, compares it with the log, and heals damaged blocks that have
//! another source.

use std::collections::HashSet;
use std::sync::Arc;

use crate::engine::pins::files_of;
use crate::engine::results::Scrubbed;
use crate::engine::work::Engine;
use crate::model::{EntryId, Error, ErrorKind, Progress, Result};
use crate::store::Collection;
use crate::store::Object;
use crate::store::Pin;
use crate::store::State;
use crate::store::now_seconds;
use crate::store::{OpenObject, Verify};

/// Which payloads of a clone are checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bytes {
    /// Those that are here.
    Here,
    /// All of them; those that only the remote has are fetched.
    All,
}

impl Engine {
    /// Checks every block of a collection that the log describes. Blocks that only the remote of a clone has
    /// are left out. Damaged blocks that have another
    /// source are healed, unless the collection is read-only; durable when it returns. Fails with
    /// `Interrupted` on cancellation. The result is stored in either case.
    pub fn scrub(&self, collection: &Arc<Collection>, progress: &dyn Progress) -> Result<Scrubbed> {
        let mut objects: Vec<Arc<Object>> = collection.state().objects().cloned().collect();
        objects.sort_by_key(|object| object.entry.creation);
        let found = self.checked(collection, &objects, Bytes::Here, progress);
        collection.save_damage();
        self.scrubbed.lock().insert(collection.path(), found.clone());
        end(collection, found)
    }

    /// Checks every block of these files, with those below directories and in containers, as
    /// [`scrub`](Self::scrub) does. The blocks are in the page cache then, and files that lie in one
    /// physical file can be read by passthrough. Queues copies of pinned files that are not verified
    /// yet. Fails with `Gone` where one of `nodes` is gone, and with `Interrupted` on cancellation.
    pub fn prefetch(
        &self,
        collection: &Arc<Collection>,
        nodes: &[EntryId],
        progress: &dyn Progress,
    ) -> Result<Scrubbed> {
        let (objects, pinned) = wanted(&collection.state(), nodes)?;
        pinned.into_iter().for_each(|pin| self.note_pin(collection, pin));
        let found = self.checked(collection, &objects, Bytes::All, progress);
        self.prefetched.lock().insert(collection.path(), found.clone());
        end(collection, found)
    }

    /// Logical bytes that a prefetch processes.
    pub fn prefetch_bytes(&self, collection: &Collection, nodes: &[EntryId]) -> Result<u64> {
        let (objects, _) = wanted(&collection.state(), nodes)?;
        Ok(objects.iter().map(|object| object.bytes()).sum())
    }

    /// The result of the last prefetch in a collection since the store was opened.
    pub fn last_prefetch(&self, collection: &Collection) -> Option<Scrubbed> {
        self.prefetched.lock().get(&collection.path()).cloned()
    }

    fn checked(
        &self,
        collection: &Arc<Collection>,
        objects: &[Arc<Object>],
        bytes: Bytes,
        progress: &dyn Progress,
    ) -> Scrubbed {
        let mut found = Scrubbed::default();
        for object in objects {
            self.scrub_object(collection, object, bytes, progress, &mut found);
            if progress.is_cancelled() {
                found.is_stopped = true;
                break;
            }
        }
        found.at = now_seconds();
        found
    }

    /// The result of the last scrub of a collection since the store was opened.
    pub fn last_scrub(&self, collection: &Collection) -> Option<Scrubbed> {
        self.scrubbed.lock().get(&collection.path()).cloned()
    }

    fn scrub_object(
        &self,
        collection: &Arc<Collection>,
        object: &Arc<Object>,
        bytes: Bytes,
        progress: &dyn Progress,
        found: &mut Scrubbed,
    ) {
        let layout = object.logged_layout();
        let open = match OpenObject::open(collection, object, Verify::Always) {
            Ok(open) => open,
            Err(error) => {
                log::error!("{}: {error}", collection.path());
                found.blocks += u64::from(layout.blocks());
                found.corrupt += u64::from(layout.blocks());
                found.note(&collection.place_of(object), 0..layout.bytes, false);
                return;
            }
        };
        let mut place = None;
        for (piece, block) in object.pieces(0..layout.blocks(), layout) {
            if progress.is_cancelled() {
                return;
            }
            if bytes == Bytes::Here && block.is_some_and(|block| !open.is_here(piece.start, &block)) {
                // It is compared when it is fetched.
                progress.advance(layout.bytes_of(&piece));
                continue;
            }
            // The result for one block without a payload holds for its whole run.
            let (index, count) = (piece.start, piece.len() as u64);
            found.blocks += count;
            progress.advance(layout.bytes_of(&piece));
            let Err(error) = open.check(index).and_then(|_| open.check_hole(&piece)) else { continue };
            if object.block(index, layout) != block {
                // The block was written or moved meanwhile, so the bytes that were read are no longer
                // its own.
                found.blocks -= count;
                continue;
            }
            found.corrupt += count;
            let is_healed = match block {
                Some(block) if error.kind() == ErrorKind::Corrupt && collection.check_writable().is_ok() => {
                    self.heal(&open, index, &block).unwrap_or_else(|error| {
                        log::warn!("{}: block {index} is not healed: {error}", collection.path());
                        false
                    })
                }
                _ => false,
            };
            found.healed += u64::from(is_healed);
            if !is_healed {
                open.note_damage(index, &error);
            }
            let start = layout.start(piece.start);
            let place = place.get_or_insert_with(|| collection.place_of(object));
            found.note(place, start..start + layout.bytes_of(&piece), is_healed);
        }
        collection.note_checked(object);
    }
}

/// Syncs if blocks were healed.
fn end(collection: &Collection, found: Scrubbed) -> Result<Scrubbed> {
    if found.healed > 0 {
        collection.sync()?;
    }
    if found.is_stopped { Err(Error::new(ErrorKind::Interrupted, "cancelled by request")) } else { Ok(found) }
}

/// The objects of files, each once, in the order of the files; and the pinned files whose copies are
/// missing or not verified yet.
fn wanted(state: &State, nodes: &[EntryId]) -> Result<(Vec<Arc<Object>>, Vec<Pin>)> {
    let (mut objects, mut pinned) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for node in nodes {
        for id in files_of(state, *node)? {
            let must_be_seen = |pin: &Pin| {
                let copy = state.copy_of(*pin);
                copy.map_or(state.lacks_copy(*pin), |copy| copy.is_sound() != Some(true))
            };
            pinned.extend(state.pins_of(id).filter(must_be_seen));
            let file = state.node(id).and_then(|node| node.file());
            let ids = file.into_iter().flat_map(|file| &file.objects).filter(|id| seen.insert(**id));
            objects.extend(ids.filter_map(|id| state.object(*id).cloned()));
        }
    }
    Ok((objects, pinned))
}
