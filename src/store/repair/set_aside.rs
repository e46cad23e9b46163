//! Sets aside the objects that the dropped end of a log named.
//!
//! A log end that may once have been complete is dropped if no Commit says that it was durable: a power
//! cut has torn it, or it was damaged after it was synced. These cases look alike, so nothing that it
//! named is removed. The objects that it described, and those that lost their names with it, become
//! files in `lost+found`. Data files without a known object, and the old log, are kept under other
//! names. All of this takes effect with a checkpoint.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::format::log::catalog::{Entry, ObjectEntry};
use crate::format::log::record::Record;
use crate::model::{CollectionName, ObjectId, Result, StoreId};
use crate::store::batch::described;
use crate::store::collection::Collection;
use crate::store::collection::allocate::payloads;
use crate::store::collection::identity::Access;
use crate::store::collection::open::OpenedLog;
use crate::store::disk::Disk;
use crate::store::events::{EventKind, Note};
use crate::store::log::pending_batch::PendingBatch;
use crate::store::log::replay::Replayed;
use crate::store::object::Object;
use crate::store::object::blocks::Block;
use crate::store::object::links::{PayloadPlace, place_of_stored};
use crate::store::repair::salvage::name_unowned;
use crate::store::repair::{Repaired, lost_blocks, replace_log};
use crate::store::state::State;

/// Explanations for objects without a file.
pub(in crate::store) type Reasons = HashMap<ObjectId, String>;

/// Blocks of an object one after the other: each is one, or zeros of some length.
type Pieces = Vec<(u32, Block)>;

/// Opens a collection. `NotFound` if it does not exist or its creation never finished. If its log has a
/// dropped end and it is to be written, what that end named is set aside first. If that fails, nothing is
/// changed and the collection accepts no writes.
pub fn open_collection(
    disk: &Arc<dyn Disk>,
    store: StoreId,
    place: CollectionName<'_>,
    access: Access,
) -> Result<Collection> {
    open_log(disk, store, place, OpenedLog::read(disk, store, place, access)?)
}

/// Opens a collection whose log was read.
pub(in crate::store) fn open_log(
    disk: &Arc<dyn Disk>,
    store: StoreId,
    place: CollectionName<'_>,
    opened: OpenedLog,
) -> Result<Collection> {
    if !opened.needs_setting_aside() {
        return Collection::of_log(disk, opened, Vec::new());
    }
    let access = opened.access();
    let mut notes = opened.replayed.events.clone();
    match set_aside(disk, store, place, opened.replayed) {
        Ok(done) => {
            notes.extend(done);
            Collection::of_log(disk, OpenedLog::read(disk, store, place, access)?, notes)
        }
        Err(error) => {
            let opened = OpenedLog::read(disk, store, place, Access::Read)?;
            let collection = Collection::of_log(disk, opened, Vec::new())?;
            collection.poison(error.at("setting aside the objects that the dropped end of meta.log named"));
            Ok(collection)
        }
    }
}

/// Sets aside what a dropped log end named. An error leaves everything unchanged. Returns a description
/// for the event log.
fn set_aside(
    disk: &Arc<dyn Disk>,
    store: StoreId,
    place: CollectionName<'_>,
    replayed: Replayed,
) -> Result<Vec<Note>> {
    let Replayed { mut state, mut end, freed, dropped, .. } = replayed;
    freed.into_iter().for_each(|(_, freed)| freed.forget());
    let mut reasons = Reasons::new();
    if let Some(dropped) = &dropped {
        reasons = take_in(&mut state, dropped);
        end.next_sequence = end.next_sequence.max(dropped.last_sequence() + 1);
    }
    let collection = Arc::new(Collection::of_state(disk, store, place, state));
    let unowned: HashSet<ObjectId> = collection.objects_without_file().into_iter().collect();
    // A checkpoint needs a record of every block. A block without one is lost already.
    let is_concerned = |object: &Object| unowned.contains(&object.entry.id) || !object.has_all_blocks();
    let lost = lost_blocks(&collection, is_concerned)?;
    let tree = name_unowned(&mut collection.state.write(), &lost, &reasons, place)?;
    let reason = Some("the end of meta.log was dropped".to_owned());
    let out = Repaired { reason, moved: tree.moved, ..Repaired::default() };
    let out = replace_log(&collection, &lost, end, out)?;
    let kept = [format!("the log as it was is {}", out.kept_log)];
    let found = out.moved.into_iter().map(|moved| format!("set aside: {moved}"));
    Ok(kept.into_iter().chain(found).map(|text| Note { kind: EventKind::Repair, text }).collect())
}

/// Adds the objects that the records describe, and overwritten stretches of objects as objects of their
/// own. Sets aside the objects that a dropped log end named.
pub(in crate::store) fn take_in(state: &mut State, dropped: &PendingBatch) -> Reasons {
    let mut found = State::default();
    dropped.apply_objects(&mut found, state);
    let mut objects: Vec<Arc<Object>> = found.objects().cloned().collect();
    // Of two objects that claim the same bytes, the later one gets them.
    objects.sort_by_key(|object| std::cmp::Reverse(object.entry.creation));
    let mut taken = Places::of(state);
    let mut made: Vec<(ObjectEntry, Pieces, String)> = Vec::new();
    for object in objects {
        let entry = object.entry_now();
        let before = state.object(entry.id);
        let extent = entry.extent.filter(|extent| before.is_none() && !state.has_extent(extent.file));
        let layout = object.logged_layout();
        let (mut blocks, mut bytes) = (Vec::new(), 0);
        let mut next = 0;
        for (piece, block) in object.blocks.read().pieces(layout) {
            let is_next = piece.start == next;
            if block.stored.is_zeros() {
                // Zeros have no location of their own and stay with the blocks before them.
                if is_next && (extent.is_some() || !block.stored.in_data) {
                    next = piece.end;
                    bytes += layout.bytes_of(&piece);
                    blocks.push((piece.end - piece.start, block));
                }
                continue;
            }
            let stored = &block.stored;
            let stretch = match (stored.in_data, extent) {
                (true, Some(extent)) if is_next => {
                    let (offset, len) = (stored.offset, u64::from(stored.len));
                    Some(Stretch { in_data: true, file: extent.file, offset, len })
                }
                (true, _) => None,
                (false, _) => {
                    let PayloadPlace { file, offset, len } = place_of_stored(stored);
                    Some(Stretch { in_data: false, file: u64::from(file), offset, len })
                }
            };
            let stretch = stretch.filter(|stretch| stretch.len > 0);
            if stretch.is_some_and(|stretch| taken.take(stretch)) {
                next += 1;
                bytes += layout.bytes_of(&piece);
                blocks.push((1, block));
            }
        }
        let payloads = blocks.iter().filter(|(_, block)| !block.stored.is_zeros());
        let Some(first) = payloads.map(|(_, block)| block.epoch).min() else { continue };
        let is_whole = before.is_none() && bytes == entry.bytes;
        let why = match path_of(state, entry.id) {
            Some(path) => format!("{bytes} bytes that were written over in {path}"),
            None if is_whole => "a file".to_owned(),
            None => format!("{bytes} bytes of a file"),
        };
        let why = format!("{why}; the part of meta.log that recorded this was damaged");
        // A part of an object becomes an object of its own.
        let creation = if is_whole { entry.creation } else { first };
        let id = if is_whole { entry.id } else { ObjectId::of(entry.tensor, entry.seed, creation) };
        made.push((ObjectEntry { id, creation, bytes, extent, parent: None, ..entry }, blocks, why));
    }
    let mut reasons = Reasons::new();
    for (entry, blocks, why) in made {
        let id = entry.id;
        if let Err(error) = add(state, entry, &blocks) {
            log::warn!("object {id} of a dropped batch is not set aside: {error}");
        }
        reasons.insert(id, why);
    }
    reasons
}

/// Adds an object with these consecutive blocks, each with its count: 1, or the length of a run of
/// zeros.
fn add(state: &mut State, entry: ObjectEntry, blocks: &[(u32, Block)]) -> Result<()> {
    let (object, described) = (entry.id, described(&entry));
    state.apply_entry(Entry::Object(entry))?;
    let mut block = 0;
    for &(count, found) in blocks {
        let (stored, created_at) = (found.stored, u64::from(found.since));
        let record = if stored.is_zeros() {
            Record::EmptyRun { object, block, count, stored, created_at }
        } else {
            Record::Create { object, block, described: described.clone(), stored, created_at }
        };
        state.apply_record(&record, found.epoch, &[])?;
        block += count;
    }
    state.batch_ended();
    Ok(())
}

/// The first path of the file that contains an object, if any.
fn path_of(state: &State, object: ObjectId) -> Option<String> {
    state.object(object)?;
    let mut files =
        state.nodes().filter(|node| node.file().is_some_and(|file| file.objects.contains(&object)));
    let path = state.path(files.next()?.entry.id);
    Some(String::from_utf8_lossy(&path).into_owned())
}

/// A stretch of a data file or of a tier file.
struct Stretch {
    in_data: bool,
    /// Number of the file.
    file: u64,
    offset: u64,
    len: u64,
}

/// Stretches in use, by data file or tier file: start and end of each.
struct Places(HashMap<(bool, u64), BTreeMap<u64, u64>>);

impl Places {
    fn of(state: &State) -> Places {
        let mut places = Places(HashMap::new());
        for PayloadPlace { file, offset, len } in state.objects().flat_map(|object| payloads(object)) {
            places.0.entry((false, u64::from(file))).or_default().insert(offset, offset.saturating_add(len));
        }
        places
    }

    /// Claims a stretch. Returns whether it was free.
    fn take(&mut self, Stretch { in_data, file, offset, len }: Stretch) -> bool {
        let places = self.0.entry((in_data, file)).or_default();
        let end = offset.saturating_add(len);
        let is_free = places.range(..end).next_back().is_none_or(|(_, before)| *before <= offset);
        if is_free {
            places.insert(offset, end);
        }
        is_free
    }
}
