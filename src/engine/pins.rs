//! Pinned files: their copies are made, checked, and made anew.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::engine::work::Engine;
use crate::format::catalog::What;
use crate::ingest::Progress;
use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::Collection;
use crate::store::collection::Touched;
use crate::store::object::Object;
use crate::store::pinned::{PinnedCopy, pin_entry};
use crate::store::read::{OpenObject, Verify};
use crate::store::state::State;
use crate::stream::{Segment, Stream};

/// Bytes of a file that are copied at a time.
const CHUNK_BYTES: usize = 4 << 20;
/// How often a copy is tried of a file that changes while it is made.
const TRIES: u32 = 3;
/// A copy that failed is tried again after so long.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Pinned files that are to be looked at.
#[derive(Default)]
pub(super) struct Tended {
    waiting: BTreeMap<(String, EntryId), Arc<Collection>>,
    failed: BTreeMap<(String, EntryId), Instant>,
}

/// The pinned files that wait, and those that failed.
pub(super) type Pins = Mutex<Tended>;

/// What pinning has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pinned {
    /// Files whose pin changed.
    pub files: u64,
    /// Bytes of copies that were made.
    pub bytes: u64,
}

/// A copy that no batch names yet.
struct Made {
    node: EntryId,
    copy: PinnedCopy,
    /// What it was made of, and how often that had changed.
    seen: Vec<(Arc<Object>, u64)>,
}

impl Made {
    /// Whether the file is what the copy was made of.
    fn is_current(&self, state: &State) -> bool {
        let Some(file) = state.node(self.node).and_then(|node| node.file()) else { return false };
        let is_same = |(object, changes): &(Arc<Object>, u64)| {
            state.object(object.entry.id).is_some_and(|known| Arc::ptr_eq(known, object))
                && changes_of(object) == *changes
                && !object.is_dirty()
        };
        let ids = self.seen.iter().map(|(object, _)| object.entry.id);
        ids.eq(file.objects.iter().copied()) && self.seen.iter().all(is_same)
    }
}

impl Engine {
    /// Pins a file, a container with its tensors, or all files below a directory: what they
    /// read as now is copied, and they are not moved. Durable when it returns; where a copy
    /// cannot be made nothing is pinned. A file that somebody writes to meanwhile is pinned
    /// without a copy, which is made later.
    pub fn pin(
        &self,
        collection: &Arc<Collection>,
        node: EntryId,
        progress: &dyn Progress,
    ) -> Result<Pinned> {
        let _alone = self.at_work.lock();
        collection.check_writable()?;
        let files = {
            let state = collection.state();
            let mut files = files_of(&state, node)?;
            files.retain(|node| !state.is_pinned(*node) || state.lacks_copy(*node));
            files
        };
        let mut made = Vec::new();
        let copied = files.iter().try_for_each(|node| {
            if let Some(copy) = copy_tried(collection, *node, progress)? {
                made.push(copy);
            }
            Ok(())
        });
        let recorded = copied.and_then(|()| name_copies(collection, &files, made.iter()));
        if let Err(error) = recorded {
            give_up(collection, &made);
            return Err(error);
        }
        collection.sync()?;
        let bytes = made.iter().map(|made| made.copy.bytes).sum();
        Ok(Pinned { files: files.len() as u64, bytes })
    }

    /// Lets a file, a container with its tensors, or all files below a directory go: their
    /// copies are removed. Durable when it returns.
    pub fn unpin(&self, collection: &Arc<Collection>, node: EntryId) -> Result<Pinned> {
        let _alone = self.at_work.lock();
        collection.check_writable()?;
        let files = collection.record(Touched::default(), |batch, state| {
            let mut files = files_of(state, node)?;
            files.retain(|node| state.is_pinned(*node));
            files.iter().for_each(|node| batch.entry(pin_entry(*node, None)));
            Ok(files.len() as u64)
        })?;
        collection.sync()?;
        Ok(Pinned { files, bytes: 0 })
    }

    /// Notes that a pinned file is to be looked at: its copy is not there, or was not compared.
    pub fn note_pin(&self, collection: &Arc<Collection>, node: EntryId) {
        let key = (collection.path(), node);
        let mut pins = self.pins.lock();
        pins.failed.retain(|_, since| since.elapsed() < AGAIN_AFTER);
        if !pins.failed.contains_key(&key) {
            pins.waiting.insert(key, collection.clone());
        }
    }

    /// Whether pinned files wait to be looked at.
    pub fn has_pins_waiting(&self) -> bool {
        !self.pins.lock().waiting.is_empty()
    }

    /// Compares the copies that wait, and makes anew those that are wrong or not there. How
    /// many were made; what fails is told in the log, and tried again later.
    pub fn tend_pins(&self, progress: &dyn Progress) -> u64 {
        let waiting = std::mem::take(&mut self.pins.lock().waiting);
        let mut count = 0;
        for ((path, node), collection) in waiting {
            match self.tend(&collection, node, progress) {
                Ok(is_made) => count += u64::from(is_made),
                Err(error) => {
                    log::warn!("{path}: a pinned file has no copy: {error}");
                    self.pins.lock().failed.insert((path, node), Instant::now());
                }
            }
        }
        count
    }

    fn tend(&self, collection: &Arc<Collection>, node: EntryId, progress: &dyn Progress) -> Result<bool> {
        let _alone = self.at_work.lock();
        let copy = collection.state().copy_of(node).cloned();
        if let Some(copy) = copy {
            let is_sound = collection.is_sound(node, &copy, &|| progress.is_cancelled());
            if is_sound || copy.is_sound().is_none() || collection.check_writable().is_err() {
                return Ok(false);
            }
            collection.record(Touched::default(), |batch, state| {
                if state.copy_of(node).is_some_and(|known| Arc::ptr_eq(known, &copy)) {
                    batch.entry(pin_entry(node, Some(None)));
                }
                Ok(())
            })?;
        }
        if !collection.state().lacks_copy(node) || collection.check_writable().is_err() {
            return Ok(false);
        }
        let Some(made) = copy_tried(collection, node, progress)? else { return Ok(false) };
        if let Err(error) = name_copies(collection, &[node], [&made]) {
            give_up(collection, &[made]);
            return Err(error);
        }
        collection.sync()?;
        Ok(true)
    }
}

/// The files that a node is: itself, with the tensors of a container; of a directory all
/// below it, each once.
pub(super) fn files_of(state: &State, node: EntryId) -> Result<Vec<EntryId>> {
    let found = state.node(node).ok_or_else(|| Error::new(ErrorKind::Gone, "the file is gone"))?;
    let mut files = Vec::new();
    let mut seen = HashSet::from([node]);
    let mut waiting = vec![found.clone()];
    while let Some(node) = waiting.pop() {
        let mut add = |found: &Arc<crate::store::state::Node>| {
            if seen.insert(found.entry.id) {
                waiting.push(found.clone());
            }
        };
        match &node.entry.what {
            What::File(file) => {
                files.push(node.entry.id);
                if file.content.is_container() {
                    state.parts(file).for_each(add);
                }
            }
            What::Directory => {
                let Some(names) = state.directory(node.entry.id) else { continue };
                names.after(EntryId(0)).filter_map(|(_, _, node)| state.node(node)).for_each(&mut add);
            }
            What::Symlink(_) => {}
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn changes_of(object: &Object) -> u64 {
    object.changes.load(std::sync::atomic::Ordering::Acquire)
}

/// Copies a file, anew where it changed meanwhile; `None` where it goes on changing, and where
/// it has no bytes.
fn copy_tried(collection: &Arc<Collection>, node: EntryId, progress: &dyn Progress) -> Result<Option<Made>> {
    for _ in 0..TRIES {
        let Some(made) = copy(collection, node, progress)? else { return Ok(None) };
        if made.is_current(&collection.state()) {
            return Ok(Some(made));
        }
        collection.remove_pinned(made.copy.number);
    }
    Ok(None)
}

/// Copies a file as it reads now; durable, and named by no batch.
fn copy(collection: &Arc<Collection>, node: EntryId, progress: &dyn Progress) -> Result<Option<Made>> {
    let seen: Vec<(Arc<Object>, u64)> = {
        let state = collection.state();
        let file = state.node(node).and_then(|node| node.file());
        let objects = file.into_iter().flat_map(|file| &file.objects);
        objects
            .filter_map(|id| state.object(*id))
            .map(|object| (object.clone(), changes_of(object)))
            .collect()
    };
    let segments = seen.iter().map(|(object, _)| {
        // Every byte that goes into it is checked.
        OpenObject::open(collection, object, Verify::Always).map(Segment::Object)
    });
    let stream = Stream::new(segments.collect::<Result<_>>()?)?;
    let bytes = stream.bytes();
    if bytes == 0 {
        return Ok(None);
    }
    let (number, file) = collection.create_pinned()?;
    let written = || -> Result<[u8; 32]> {
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; CHUNK_BYTES.min(usize::try_from(bytes).unwrap_or(CHUNK_BYTES))];
        let mut at = 0;
        while at < bytes {
            let len = stream.read(at, &mut chunk)?;
            let here = chunk.get(..len).filter(|here| !here.is_empty());
            let here = here.ok_or_else(|| Error::new(ErrorKind::Busy, "it is being cut"))?;
            let failed = |error| Error::io(format!("writing {}", collection.pinned_path(number)), error);
            file.write_at(here, at).map_err(failed)?;
            hasher.update(here);
            at += len as u64;
            progress.advance(len as u64);
            if progress.is_cancelled() {
                return Err(Error::new(ErrorKind::Interrupted, "it was told to stop"));
            }
        }
        collection.finish_pinned(number, &file)?;
        Ok(*hasher.finalize().as_bytes())
    };
    match written() {
        Ok(blake3) => Ok(Some(Made { node, copy: PinnedCopy::written(number, bytes, blake3), seen })),
        Err(error) => {
            collection.remove_pinned(number);
            Err(error)
        }
    }
}

/// Pins files with one batch, with those copies that are what they read as still.
fn name_copies<'a>(
    collection: &Arc<Collection>,
    files: &[EntryId],
    made: impl IntoIterator<Item = &'a Made>,
) -> Result<()> {
    let made: BTreeMap<EntryId, &Made> = made.into_iter().map(|made| (made.node, made)).collect();
    let stale = collection.record(Touched::default(), |batch, state| {
        let mut stale = Vec::new();
        for node in files.iter().filter(|node| state.node(**node).is_some()) {
            let made = made.get(node);
            let current = made.filter(|made| made.is_current(state));
            stale.extend(made.filter(|_| current.is_none()).map(|made| made.copy.number));
            batch.entry(pin_entry(*node, Some(current.map(|made| &made.copy))));
        }
        let gone = made.values().filter(|made| state.node(made.node).is_none());
        stale.extend(gone.map(|made| made.copy.number));
        Ok(stale)
    })?;
    stale.into_iter().for_each(|number| collection.remove_pinned(number));
    for made in made.values() {
        let copy = collection.state().copy_of(made.node).cloned();
        if let Some(copy) = copy.filter(|copy| copy.number == made.copy.number) {
            copy.was_written();
        }
    }
    Ok(())
}

/// Removes copies that no batch names; where that is not known they stay.
fn give_up(collection: &Collection, made: &[Made]) {
    if collection.poisoned().is_none() {
        made.iter().for_each(|made| collection.remove_pinned(made.copy.number));
    }
}
