//! Offline repair of a collection: keeps what is readable and reports what is not.
//!
//! The state in the log is corrected (`salvage`), blocks with corrupt payloads are recorded as lost,
//! and a checkpoint of the result replaces the log in one step. The old log is kept beside it. Until
//! that step nothing changes.

pub(in crate::store) mod salvage;
pub(in crate::store) mod set_aside;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::format::log::catalog::{Entry, NodeEntry, NodeType};
use crate::format::log::record::{Record, Stored};
use crate::model::{CollectionName, EntryId, Error, ErrorKind, ObjectId, Result, StoreId};
use crate::store::clock::now_seconds;
use crate::store::collection::Collection;
use crate::store::collection::open::refuse_remains;
use crate::store::collection::open_object::{OpenObject, Verify};
use crate::store::disk::{Disk, Open};
use crate::store::log::LOG_NAME;
use crate::store::log::append::LogEnd;
use crate::store::log::checkpoint::{switch_log, write_draft};
use crate::store::log::replay::{Damage, Replayed, salvage};
use crate::store::object::Object;
use crate::store::object::links::{PayloadPlace, place_of, place_of_stored};
use crate::store::repair::salvage::{RepairedTree, name_unowned, repair_tree};
use crate::store::repair::set_aside::{Reasons, take_in};

/// The old log is copied in chunks of this many bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// Maximum number of ranges that a message lists.
const RANGES_NAMED: usize = 3;

/// Result of a repair.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Repaired {
    /// Damage of the log, if any.
    pub reason: Option<String>,
    /// Path of the kept copy of the old log.
    pub kept_log: String,
    /// The losses, by path.
    pub lost: Vec<Lost>,
    /// Files with blocks that the log describes only before its damage. Their checksums agree, but
    /// later writes may be missing.
    pub unsure: Vec<String>,
    /// Things that got another name, or a first one: their location.
    pub moved: Vec<String>,
}

/// The losses of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost {
    /// Its path below the collection.
    pub path: String,
    /// Length of the file, if known.
    pub bytes: Option<u64>,
    /// The lost bytes, in ascending order. Empty if the length is unknown: all bytes are lost.
    pub ranges: Vec<Range<u64>>,
}

impl Lost {
    /// Whether the whole file was lost.
    pub fn is_whole(&self) -> bool {
        let is_all = |bytes| self.ranges.first().is_some_and(|first| *first == (0..bytes));
        self.bytes.is_none_or(is_all)
    }
}

/// Lost blocks, by object.
pub(in crate::store) type LostBlocks = HashMap<ObjectId, Vec<Range<u32>>>;

/// Repairs a collection that nobody has open. `number` becomes its number if the log has lost it.
/// `None` if the collection is intact and nothing was changed.
pub fn repair(
    disk: &Arc<dyn Disk>,
    store: StoreId,
    place: CollectionName<'_>,
    number: u32,
) -> Result<Option<Repaired>> {
    let path = place.to_string();
    let opened = disk.open(&format!("{path}/{LOG_NAME}"), Open::Read);
    let opened = opened.map_err(|error| Error::io(format!("opening {path}/{LOG_NAME}"), error));
    let salvaged = opened.and_then(|file| salvage(&file, store).map_err(|error| error.at(&path)));
    if salvaged.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        // Creation never finished, or nothing is left of the log.
        refuse_remains(disk, &path)?;
    }
    let (replayed, refused) = salvaged?;
    let Replayed { mut state, mut end, damage, freed, dropped, .. } = replayed;
    freed.into_iter().for_each(|(_, freed)| freed.forget());
    state.forget_freed();
    if state.node(crate::store::state::ROOT).is_none() && damage.is_none() {
        return Err(Error::new(ErrorKind::NotFound, format!("{path}: the collection was never finished")));
    }
    let mut reasons = Reasons::new();
    if let Some(dropped) = &dropped {
        reasons = take_in(&mut state, dropped);
        end.next_sequence = end.next_sequence.max(dropped.last_sequence() + 1);
    }
    let collection = Arc::new(Collection::of_state(disk, store, place, state));
    let mut lost = lost_blocks(&collection, |_| true)?;
    let is_broken = {
        let state = collection.state.read();
        state.nodes().any(|node| !state.missing_objects(node).is_empty())
    };
    if damage.is_none() && lost.is_empty() && !is_broken {
        return Ok(None);
    }
    let mut tree = RepairedTree::default();
    if damage.is_some() || is_broken {
        let state = &mut collection.state.write();
        tree = repair_tree(state, refused, &mut lost, &reasons, number, place)?;
        state.forget_all_copies()?;
    } else if dropped.is_some() {
        tree = name_unowned(&mut collection.state.write(), &lost, &reasons, place)?;
    }
    let mut repaired = describe(&collection, &lost, damage.as_ref(), tree)?;
    if dropped.is_some() {
        repaired.reason.get_or_insert_with(|| "the end of meta.log was dropped".to_owned());
    }
    replace_log(&collection, &lost, end, repaired).map(Some)
}

/// The unreadable blocks of the objects that `which` selects, in ascending order. An I/O error ends the
/// repair, because the data may be readable on another machine.
pub(in crate::store) fn lost_blocks(
    collection: &Arc<Collection>,
    which: impl Fn(&Object) -> bool,
) -> Result<LostBlocks> {
    let mut objects: Vec<Arc<Object>> = collection.state().objects().cloned().collect();
    objects.retain(|object| which(object));
    let mut lost = LostBlocks::new();
    let mut places: Vec<(u8, Range<u64>, u64, ObjectId, u32)> = Vec::new();
    for object in objects {
        let open = OpenObject::open(collection, &object, Verify::Always)?;
        let layout = object.layout();
        for (piece, block) in object.pieces(0..layout.blocks(), layout) {
            let index = piece.start;
            match open.check(index) {
                // The first block of equal ones without a payload stands for all of them.
                Ok(_) if piece.len() > 1 => {}
                Err(_) if piece.len() > 1 || block.is_none() => {
                    lost.entry(object.entry.id).or_default().push(piece);
                }
                Ok(block) => {
                    let links = object.deltas(index, block.epoch);
                    let links = links.iter().flat_map(|links| links.iter().map(place_of));
                    let own = Some(place_of_stored(&block.stored));
                    let own = own.filter(|_| !block.stored.in_data && block.stored.len > 0);
                    places.extend(own.into_iter().chain(links).map(|PayloadPlace { file, offset, len }| {
                        (file, offset..offset + len, block.epoch, object.entry.id, index)
                    }));
                }
                Err(error) if error.kind() == ErrorKind::Io => {
                    return Err(Error::io(
                        format!("{error}; copy the store to another disk first"),
                        std::io::ErrorKind::Other.into(),
                    ));
                }
                // The block can still be read from its origin, at the latest when that disk is present,
                // so it is not lost.
                Err(_) if object.origin_place(index).is_some() => {}
                Err(_) => lost.entry(object.entry.id).or_default().push(piece),
            }
        }
    }
    // Of two blocks that claim the same bytes, the older one is lost.
    places.sort_by_key(|place| (place.0, place.1.start, place.2));
    let mut before: Option<&(u8, Range<u64>, u64, ObjectId, u32)> = None;
    for place in &places {
        if let Some(last) = before.filter(|last| last.0 == place.0 && place.1.start < last.1.end) {
            let older = if last.2 <= place.2 { last } else { place };
            lost.entry(older.3).or_default().push(older.4..older.4 + 1);
            before = Some(if last.2 <= place.2 { place } else { last });
        } else {
            before = Some(place);
        }
    }
    lost.values_mut().for_each(joined);
    Ok(lost)
}

/// Sorts ranges and joins those that touch.
fn joined(ranges: &mut Vec<Range<u32>>) {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    ranges.dedup_by(|next, before| {
        let touches = next.start <= before.end;
        if touches {
            before.end = before.end.max(next.end);
        }
        touches
    });
}

/// Lists losses and unsure files by path. A file with losses is not listed as unsure.
fn describe(
    collection: &Collection,
    lost: &LostBlocks,
    damage: Option<&Damage>,
    tree: RepairedTree,
) -> Result<Repaired> {
    let mut state = collection.state.write();
    let mut out = Repaired {
        reason: damage.map(|damage| damage.reason.clone()),
        moved: tree.moved,
        lost: tree.lost,
        ..Repaired::default()
    };
    let mut noted: Vec<NodeEntry> = Vec::new();
    for node in state.nodes() {
        let Some(file) = node.file() else { continue };
        let (mut at, mut ranges, mut is_unsure) = (0_u64, Vec::<Range<u64>>::new(), false);
        for object in file.objects.iter().filter_map(|id| state.object(*id)) {
            let layout = object.layout();
            for blocks in lost.get(&object.entry.id).into_iter().flatten() {
                let from = at + layout.start(blocks.start);
                let until = from + layout.bytes_of(blocks);
                match ranges.last_mut().filter(|last| last.end == from) {
                    Some(last) => last.end = until,
                    None => ranges.push(from..until),
                }
            }
            let sequence = damage.map_or(0, |damage| damage.sequence);
            let blocks = object.blocks.read();
            let gone = lost.get(&object.entry.id);
            is_unsure |= damage.is_some()
                && blocks.pieces(layout).any(|(piece, block)| {
                    block.epoch <= sequence && !gone.is_some_and(|gone| has(gone, piece.start))
                });
            at += layout.bytes;
        }
        let path = String::from_utf8_lossy(&state.path(node.entry.id)).into_owned();
        if !ranges.is_empty() {
            let mut entry = node.entry.clone();
            if let NodeType::File(file) = &mut entry.node_type {
                file.why = format!("{} were lost; copy the file in again", sentence(&ranges)).into();
            }
            noted.push(entry);
            out.lost.push(Lost { path: path.clone(), bytes: Some(at), ranges });
        }
        if is_unsure {
            out.unsure.push(path);
        }
    }
    for entry in noted {
        state.apply_entry(Entry::Node(Box::new(entry)))?;
    }
    out.lost.sort_by(|one, other| one.path.cmp(&other.path));
    out.unsure.sort_unstable();
    Ok(out)
}

/// Records the losses and replaces the log by a checkpoint.
pub(in crate::store) fn replace_log(
    collection: &Collection,
    lost: &LostBlocks,
    end: LogEnd,
    mut out: Repaired,
) -> Result<Repaired> {
    let mut sequence = end.next_sequence;
    let mut state = collection.state.write();
    for (object, blocks) in
        lost.iter().flat_map(|(object, ranges)| ranges.iter().map(move |range| (object, range)))
    {
        if state.object(*object).is_none() {
            continue;
        }
        let record = Record::EmptyRun {
            object: *object,
            block: blocks.start,
            count: blocks.end - blocks.start,
            stored: Stored::LOST,
            created_at: now_seconds(),
        };
        state.apply_record(&record, sequence, &[])?;
        sequence += 1;
    }
    state.forget_freed();
    out.kept_log = keep_log(collection)?;
    if out.reason.is_some() {
        out.moved.extend(keep_unnamed_data(collection, &state)?);
    }
    let (disk, path) = (collection.files.disk(), collection.files.path());
    let generation = end.generation.wrapping_add(1);
    write_draft(disk, path, collection.identity.store(), &state, generation, sequence)?;
    switch_log(disk, path)?;
    Ok(out)
}

/// Makes a durable copy of the log. Returns its path.
fn keep_log(collection: &Collection) -> Result<String> {
    let listed = collection.files.disk().list(&collection.path());
    let listed = listed.map_err(|error| Error::io(format!("listing {}", collection.path()), error))?;
    let number = (1_u32..).find(|number| {
        let name = format!("{LOG_NAME}.damaged-{number}");
        !listed.iter().any(|entry| entry.name == name)
    });
    let to = format!("{}/{LOG_NAME}.damaged-{}", collection.path(), number.unwrap_or_default());
    let failed = |error| Error::io(format!("copying the log to {to}"), error);
    let from = collection
        .files
        .disk()
        .open(&format!("{}/{LOG_NAME}", collection.path()), Open::Read)
        .map_err(failed)?;
    let copy = collection.files.disk().open(&to, Open::Create).map_err(failed)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    loop {
        let count = from.read_at(&mut chunk, at).map_err(failed)?;
        let Some(bytes) = chunk.get(..count).filter(|bytes| !bytes.is_empty()) else { break };
        copy.write_at(bytes, at).map_err(failed)?;
        at += count as u64;
    }
    copy.sync_data().map_err(failed)?;
    collection.files.disk().sync_directory(&collection.path()).map_err(failed)?;
    Ok(to)
}

/// Renames data files without objects, because opening the collection would remove them.
fn keep_unnamed_data(collection: &Collection, state: &crate::store::state::State) -> Result<Vec<String>> {
    let directory = format!("{}/data", collection.path());
    let failed = |error| Error::io(format!("keeping files of {directory}"), error);
    let listed = match collection.files.disk().list(&directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        listed => listed.map_err(failed)?,
    };
    let mut kept = Vec::new();
    for entry in listed.into_iter().filter(|entry| entry.name.len() == 16) {
        if u64::from_str_radix(&entry.name, 16).is_ok_and(|id| !state.has_extent(id)) {
            let (from, to) =
                (format!("{directory}/{}", entry.name), format!("{directory}/{}.lost", entry.name));
            collection.files.disk().rename(&from, &to).map_err(failed)?;
            kept.push(format!("{from}, which no known file uses, is now {to}"));
        }
    }
    if !kept.is_empty() {
        collection.files.disk().sync_directory(&directory).map_err(failed)?;
    }
    Ok(kept)
}

/// Whether the ascending ranges contain a block.
fn has(ranges: &[Range<u32>], block: u32) -> bool {
    let place = ranges.partition_point(|range| range.end <= block);
    ranges.get(place).is_some_and(|range| range.contains(&block))
}

/// `bytes 0 to 16383 and 32768 to 40000`.
fn sentence(ranges: &[Range<u64>]) -> String {
    let named = ranges.iter().take(RANGES_NAMED).map(|range| format!("{} to {}", range.start, range.end - 1));
    let named: Vec<String> = named.collect();
    let more = match ranges.len().saturating_sub(RANGES_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more ranges"),
    };
    format!("bytes {}{more}", named.join(", "))
}

/// A loss of a whole file of unknown length.
pub(in crate::store) fn lost_whole(path: String) -> Lost {
    Lost { path, bytes: None, ranges: Vec::new() }
}

/// The name in `lost+found` of something that has lost its name.
pub(in crate::store) fn unnamed(what: &str, id: EntryId) -> String {
    format!("{what}-{}", id.0)
}
