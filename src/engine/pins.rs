//! Pinned files: creates, verifies and recreates their copies.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::reconstruct::check_without_copy;
use crate::engine::work::Engine;
use crate::format::log::catalog::TensorEntry;
use crate::model::{EntryId, Error, ErrorKind, Instant, Progress, Result, Tier};
use crate::store::Collection;
use crate::store::Object;
use crate::store::Touched;
use crate::store::{Compare, PinnedCopy};
use crate::store::{Node, State, Walk};
use crate::store::{OpenObject, Verify};
use crate::store::{Pin, pin_entry};
use crate::store::{Reserved, Use};
use crate::stream::Stream;

/// Bytes of a file that are copied at a time.
const CHUNK_BYTES: usize = 4 << 20;
/// Maximal attempts to copy a file that keeps changing.
const TRIES: u32 = 3;
/// Delay before a failed copy is retried.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The result of pinning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pinned {
    /// Files whose pin changed.
    pub files: u64,
    /// Bytes of copies that were made.
    pub bytes: u64,
}

/// A copy that is not committed yet.
struct NewCopy {
    pin: Pin,
    copy: PinnedCopy,
    /// The tensor entry of the file at that time.
    tensor: Option<TensorEntry>,
    /// The objects that it was made of, and their change counts.
    seen: Vec<(Arc<Object>, u32)>,
    /// Its quota reservation until the commit.
    _counted: Reserved,
}

impl NewCopy {
    /// Whether the file has not changed since the copy.
    fn is_current(&self, state: &State) -> bool {
        let Some(file) = state.node(self.pin.node).and_then(|node| node.file()) else { return false };
        let is_same = |(object, changes): &(Arc<Object>, u32)| {
            state.object(object.entry.id).is_some_and(|known| Arc::ptr_eq(known, object))
                && changes_of(object) == *changes
                && !object.is_dirty()
        };
        let ids = self.seen.iter().map(|(object, _)| object.entry.id);
        ids.eq(file.objects.iter().copied()) && self.tensor == file.tensor && self.seen.iter().all(is_same)
    }
}

impl Engine {
    /// Pins a file or all files below a directory: copies their current bytes, and excludes them from
    /// moves. A container is copied once, with its tensors. Durable when it returns. Where a copy cannot be
    /// created, nothing is pinned. A file that is being written to is pinned without a copy, which is
    /// created later.
    pub fn pin(
        &self,
        collection: &Arc<Collection>,
        node: EntryId,
        progress: &dyn Progress,
    ) -> Result<Pinned> {
        let files: Vec<EntryId> = {
            let state = collection.state();
            let found = files_of(&state, node)?;
            let all: HashSet<EntryId> = found.iter().copied().collect();
            // The copy of a container has the bytes of its tensors.
            let is_in_copy = |id: &EntryId| {
                let file = state.node(*id).and_then(|node| node.file());
                file.and_then(|file| file.container).is_some_and(|container| all.contains(&container))
            };
            found.into_iter().filter(|id| !is_in_copy(id)).collect()
        };
        self.pin_all(collection, files.into_iter().map(Pin::file).collect(), progress)
    }

    /// Pins a form of a file, as [`pin`](Self::pin) does for a file. The file is excluded from moves
    /// as well.
    pub fn pin_form(
        &self,
        collection: &Arc<Collection>,
        pin: Pin,
        progress: &dyn Progress,
    ) -> Result<Pinned> {
        self.pin_all(collection, vec![pin], progress)
    }

    fn pin_all(
        &self,
        collection: &Arc<Collection>,
        mut pins: Vec<Pin>,
        progress: &dyn Progress,
    ) -> Result<Pinned> {
        let _alone = self.at_work.lock();
        collection.check_writable()?;
        {
            let state = collection.state();
            pins.retain(|pin| state.pins_of(pin.node).all(|known| known != *pin) || state.lacks_copy(*pin));
        }
        let mut made = Vec::new();
        let copied = pins.iter().try_for_each(|pin| {
            if let Some(copy) = self.copy_tried(collection, *pin, progress)? {
                made.push(copy);
            }
            Ok(())
        });
        let recorded = copied.and_then(|()| name_copies(collection, &pins, made.iter()));
        if let Err(error) = recorded {
            give_up(collection, &made);
            return Err(error);
        }
        collection.sync()?;
        let bytes = made.iter().map(|made| made.copy.bytes).sum();
        Ok(Pinned { files: pins.len() as u64, bytes })
    }

    /// Unpins a file, a container with its tensors, or all files below a directory, and removes their
    /// copies. Durable when it returns.
    pub fn unpin(&self, collection: &Arc<Collection>, node: EntryId) -> Result<Pinned> {
        self.unpin_all(collection, &|state| Ok(files_of(state, node)?.into_iter().map(Pin::file).collect()))
    }

    /// Unpins a form of a file.
    pub fn unpin_form(&self, collection: &Arc<Collection>, pin: Pin) -> Result<Pinned> {
        self.unpin_all(collection, &|_| Ok(vec![pin]))
    }

    fn unpin_all(
        &self,
        collection: &Arc<Collection>,
        pins: &dyn Fn(&State) -> Result<Vec<Pin>>,
    ) -> Result<Pinned> {
        let _alone = self.at_work.lock();
        collection.check_writable()?;
        let pinned = pins(&collection.state())?;
        pinned.iter().try_for_each(|pin| self.keep_what_a_copy_has(collection, *pin))?;
        let files = collection.record(Touched::default(), |batch, state| {
            let mut pins = pins(state)?;
            pins.retain(|pin| state.pins_of(pin.node).any(|known| known == *pin));
            pins.iter().for_each(|pin| batch.entry(pin_entry(*pin, None)));
            Ok(pins.len() as u64)
        })?;
        collection.sync()?;
        Ok(Pinned { files, bytes: 0 })
    }

    /// Heals blocks of a pinned file whose only intact source is its copy, so that the copy can be
    /// removed. Fails with `Corrupt` where that is impossible; the copy then stays.
    fn keep_what_a_copy_has(&self, collection: &Arc<Collection>, pin: Pin) -> Result<()> {
        if pin.form > 0 || collection.state().copy_of(pin).is_none() {
            return Ok(());
        }
        for object in collection.objects_of(pin.node)? {
            let open = OpenObject::open_by_name(collection, &object)?;
            let layout = object.logged_layout();
            for (index, block) in object.stored_blocks(0..layout.blocks(), layout) {
                let Err(error) = check_without_copy(&open, index, &block) else { continue };
                let is_healed = block.stored.tier != Tier::Absent && self.heal(&open, index, &block)?;
                if is_healed || object.block(index, layout) != Some(block) {
                    continue;
                }
                if open.read_pinned(index, Compare::Again, &mut vec![0; layout.len(index)])? {
                    let text = format!(
                        "only the pinned copy holds block {index} of object {}: {error}; \
                         copy the file and write the copy over it first",
                        object.entry.id
                    );
                    return Err(Error::corrupt(text));
                }
            }
        }
        Ok(())
    }

    /// Queues a pinned file whose copy is missing or not verified.
    pub fn note_pin(&self, collection: &Arc<Collection>, pin: Pin) {
        let key = (collection.path(), pin);
        let mut pins = self.pins.lock();
        pins.failed.retain(|_, since| since.elapsed() < AGAIN_AFTER);
        if !pins.failed.contains_key(&key) {
            pins.waiting.insert(key, collection.clone());
        }
    }

    /// Whether pinned files are queued.
    pub fn has_pins_waiting(&self) -> bool {
        !self.pins.lock().waiting.is_empty()
    }

    /// Verifies the queued copies, and recreates missing and damaged ones. Returns how many it
    /// created. It logs errors and retries later.
    pub fn tend_pins(&self, progress: &dyn Progress) -> u64 {
        let waiting = std::mem::take(&mut self.pins.lock().waiting);
        let mut count = 0;
        for ((path, pin), collection) in waiting {
            match self.tend(&collection, pin, progress) {
                Ok(is_made) => count += u64::from(is_made),
                Err(error) => {
                    log::warn!("{path}: a pinned file has no copy: {error}");
                    self.pins.lock().failed.insert((path, pin), Instant::now());
                }
            }
        }
        count
    }

    fn tend(&self, collection: &Arc<Collection>, pin: Pin, progress: &dyn Progress) -> Result<bool> {
        let _alone = self.at_work.lock();
        let copy = collection.state().copy_of(pin).cloned();
        if let Some(copy) = copy {
            let is_sound = collection.is_sound(pin, &copy, &|| progress.is_cancelled());
            if is_sound || copy.is_sound().is_none() || collection.check_writable().is_err() {
                return Ok(false);
            }
            collection.record(Touched::default(), |batch, state| {
                if state.copy_of(pin).is_some_and(|known| Arc::ptr_eq(known, &copy)) {
                    batch.entry(pin_entry(pin, Some(None)));
                }
                Ok(())
            })?;
        }
        if !collection.state().lacks_copy(pin) || collection.check_writable().is_err() {
            return Ok(false);
        }
        let Some(made) = self.copy_tried(collection, pin, progress)? else { return Ok(false) };
        if let Err(error) = name_copies(collection, &[pin], [&made]) {
            give_up(collection, &[made]);
            return Err(error);
        }
        collection.sync()?;
        Ok(true)
    }

    /// Copies a pinned item, and retries where it changed meanwhile. `None` where it keeps changing,
    /// or has no bytes.
    fn copy_tried(
        &self,
        collection: &Arc<Collection>,
        pin: Pin,
        progress: &dyn Progress,
    ) -> Result<Option<NewCopy>> {
        for _ in 0..TRIES {
            let Some(made) = self.copy(collection, pin, progress)? else { return Ok(None) };
            if made.is_current(&collection.state()) {
                return Ok(Some(made));
            }
            collection.remove_pinned(made.copy.number);
        }
        Ok(None)
    }

    /// Copies the current bytes of a pinned item. The copy is durable, but not committed.
    fn copy(
        &self,
        collection: &Arc<Collection>,
        pin: Pin,
        progress: &dyn Progress,
    ) -> Result<Option<NewCopy>> {
        let (seen, assembly, tensor): (Vec<(Arc<Object>, u32)>, _, _) = {
            let state = collection.state();
            let Some(file) = state.node(pin.node).and_then(|node| node.file()) else { return Ok(None) };
            let (objects, assembly) = state.parts_of(file)?;
            let seen = objects.into_iter().map(|object| {
                let changes = changes_of(&object);
                (object, changes)
            });
            (seen.collect(), assembly, file.tensor.clone())
        };
        // Every byte of the copy is verified.
        let stream = if pin.form > 0 {
            self.forms.stream(collection, pin, Verify::Always)?
        } else {
            let objects = seen.iter().map(|(object, _)| OpenObject::open(collection, object, Verify::Always));
            Stream::of_file(objects.collect::<Result<_>>()?, assembly.as_ref())?
        };
        let bytes = stream.bytes();
        if bytes == 0 {
            return Ok(None);
        }
        let counted = collection.meter().reserve(Use { stored: bytes, ..Use::default() })?;
        let (number, blake3) = write_copy(collection, &stream, progress)?;
        let copy = PinnedCopy::written(number, bytes, blake3);
        Ok(Some(NewCopy { pin, copy, tensor, seen, _counted: counted }))
    }
}

/// The files of a node: itself with the tensors of a container, or all files below a directory, each
/// once.
pub(super) fn files_of(state: &State, node: EntryId) -> Result<Vec<EntryId>> {
    let found = state.node(node).ok_or_else(|| Error::new(ErrorKind::Gone, "the file is gone"))?;
    let mut files = BTreeSet::new();
    let mut add = |node: &Node| {
        let Some(file) = node.file() else { return };
        files.insert(node.entry.id);
        if file.content.is_container() {
            files.extend(state.parts(file).map(|part| part.entry.id));
        }
    };
    add(found);
    state.walk(node, &mut |visited| {
        add(visited.node);
        Walk::Enter
    });
    Ok(files.into_iter().collect())
}

fn changes_of(object: &Object) -> u32 {
    object.changes()
}

/// Writes a stream into the file of a copy. Returns its number and the BLAKE3 digest.
fn write_copy(
    collection: &Arc<Collection>,
    stream: &Stream,
    progress: &dyn Progress,
) -> Result<(u64, [u8; 32])> {
    let bytes = stream.bytes();
    let (number, file) = collection.create_pinned()?;
    let written = || -> Result<[u8; 32]> {
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; CHUNK_BYTES.min(usize::try_from(bytes).unwrap_or(CHUNK_BYTES))];
        let mut at = 0;
        while at < bytes {
            let len = stream.read(at, &mut chunk)?;
            let here = chunk.get(..len).filter(|here| !here.is_empty());
            let here = here.ok_or_else(|| Error::new(ErrorKind::Busy, "it is being truncated"))?;
            let failed = |error| Error::io(format!("writing {}", collection.pinned_path(number)), error);
            // Zeros become a hole in the copy too.
            if here.iter().all(|byte| *byte == 0) {
                file.set_len(at + len as u64).map_err(failed)?
            } else {
                file.write_at(here, at).map_err(failed)?
            }
            hasher.update(here);
            at += len as u64;
            progress.advance(len as u64);
            progress.check()?;
        }
        collection.finish_pinned(number, &file)?;
        Ok(*hasher.finalize().as_bytes())
    };
    let written = written();
    if written.is_err() {
        collection.remove_pinned(number);
    }
    written.map(|blake3| (number, blake3))
}

/// Pins files with one batch, and commits the copies that are still current.
fn name_copies<'a>(
    collection: &Arc<Collection>,
    pins: &[Pin],
    made: impl IntoIterator<Item = &'a NewCopy>,
) -> Result<()> {
    let made: BTreeMap<Pin, &NewCopy> = made.into_iter().map(|made| (made.pin, made)).collect();
    let stale = collection.record(Touched::default(), |batch, state| {
        let mut stale = Vec::new();
        for pin in pins.iter().filter(|pin| state.node(pin.node).is_some()) {
            let made = made.get(pin);
            let current = made.filter(|made| made.is_current(state));
            stale.extend(made.filter(|_| current.is_none()).map(|made| made.copy.number));
            batch.entry(pin_entry(*pin, Some(current.map(|made| &made.copy))));
        }
        let gone = made.values().filter(|made| state.node(made.pin.node).is_none());
        stale.extend(gone.map(|made| made.copy.number));
        Ok(stale)
    })?;
    stale.into_iter().for_each(|number| collection.remove_pinned(number));
    for made in made.values() {
        let copy = collection.state().copy_of(made.pin).cloned();
        if let Some(copy) = copy.filter(|copy| copy.number == made.copy.number) {
            copy.was_written();
        }
    }
    Ok(())
}

/// Removes uncommitted copies. They stay where the outcome of a batch is unknown.
fn give_up(collection: &Collection, made: &[NewCopy]) {
    if collection.poisoned().is_none() {
        made.iter().for_each(|made| collection.remove_pinned(made.copy.number));
    }
}
