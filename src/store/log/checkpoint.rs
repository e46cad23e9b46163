//! Checkpoints: writes a new log that describes the present state without its history.
//!
//! The new log is a separate file until it is complete and durable. A rename then replaces the old log
//! in one step. Blocks keep their epochs, because deltas refer to them. Records are in the order of
//! their sequence numbers, an object's entry under the number that created it, and names come last.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::format::log::block_record::is_next_slot;
use crate::format::log::catalog::{Entry, ObjectEntry};
use crate::format::log::record::{Record, Stored};
use crate::format::log::slot::SLOT_BYTES;
use crate::model::{Error, ErrorKind, Result, StoreId, Tier};
use crate::store::batch::{Batch, described, migrate};
use crate::store::disk::{Disk, File, Open, remove_if_present};
use crate::store::log::LOG_NAME;
use crate::store::log::append::Log;
use crate::store::object::Object;
use crate::store::object::blocks::{Block, BlockLayout, Blocks};
use crate::store::object::factors::FactorLink;
use crate::store::object::origin::OriginRun;
use crate::store::object::parts::Part;
use crate::store::state::{ROOT, State};

/// Name of the new log while it is being written.
const DRAFT_NAME: &str = "meta.log.new";
/// A log shorter than this is not checkpointed.
pub(in crate::store) const LOG_BYTES_MIN: u64 = 4 << 20;
/// A log is checkpointed when it has grown to this many times its length after the last checkpoint.
pub(in crate::store) const GROWTH: u64 = 4;
/// Approximate maximum of slots in a batch.
const BATCH_SLOTS_MAX: u64 = 32 << 10;

/// Result of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// Time, in seconds since 1970.
    pub at: u64,
    /// Length of the log before, in bytes.
    pub before: u64,
    /// Length of the log after, in bytes.
    pub after: u64,
}

/// Length in bytes at which the log is due for a checkpoint.
pub(in crate::store) fn due(state: &State) -> u64 {
    let blocks: u64 = state.objects().map(|object| slots_of(object)).sum();
    let entries = state.nodes().count() as u64 * 8;
    (GROWTH * (blocks + entries) * SLOT_BYTES as u64).max(LOG_BYTES_MIN)
}

/// Approximate number of slots that describe an object.
fn slots_of(object: &Object) -> u64 {
    let slots = |(_, part): (u32, &Part)| match part {
        Part::Run(run) => 1 + run.checksums.len() as u64 * 4 / SLOT_BYTES as u64,
        // For an object with an origin, the log also holds the origin's checksums.
        Part::Dense(blocks) => {
            let is_next = |before: &Block, next: &Block| is_next_slot(&before.stored, &next.stored);
            let runs = blocks.chunk_by(is_next).count() as u64;
            1 + 2 * runs + blocks.len() as u64 * 12 / SLOT_BYTES as u64
        }
        Part::Uniform(_) => 1,
    };
    3 + object.blocks.read().parts().map(slots).sum::<u64>()
}

/// Writes the state into a new, durable log of this generation, beside the present log of the collection
/// with this path.
pub(in crate::store) fn write_draft(
    disk: &Arc<dyn Disk>,
    path: &str,
    store: StoreId,
    state: &State,
    generation: u64,
    next_sequence: u64,
) -> Result<Log> {
    let draft = format!("{path}/{DRAFT_NAME}");
    let failed = |error| Error::io(format!("writing {draft}"), error);
    remove_if_present(&**disk, &draft).map_err(failed)?;
    let file = disk.open(&draft, Open::Create).map_err(failed)?;
    write_log(file, store, state, generation, next_sequence)
}

/// Writes the state as a log of this generation into an empty file, durably.
pub(in crate::store) fn write_log(
    file: Arc<dyn File>,
    store: StoreId,
    state: &State,
    generation: u64,
    next_sequence: u64,
) -> Result<Log> {
    let mut log = Log::create(file, store, generation)?;
    for batch in batches_of(state, next_sequence)? {
        log.append(&batch)?;
    }
    log.continue_from(next_sequence);
    log.sync()?;
    log.mark()?;
    Ok(log)
}

/// Renames the new log over the old one.
pub(in crate::store) fn switch_log(disk: &Arc<dyn Disk>, path: &str) -> Result<()> {
    let (log, draft) = (format!("{path}/{LOG_NAME}"), format!("{path}/{DRAFT_NAME}"));
    let switched = disk.rename(&draft, &log).and_then(|()| disk.sync_directory(path));
    switched.map_err(|error| Error::io(format!("renaming {draft}"), error))
}

/// The state as batches of records with numbers below `next_sequence`. Equal states give equal batches.
/// `Busy` while an object is being truncated.
pub(in crate::store) fn batches_of(state: &State, next_sequence: u64) -> Result<Vec<Batch>> {
    let mut objects: Vec<(u64, CheckpointItem)> = Vec::new();
    // By data file, the first object that lies in it.
    let mut first_of: HashMap<u64, u64> = HashMap::new();
    for (extent, object) in state.objects().filter_map(|object| Some((object.extent()?, object))) {
        let first = first_of.entry(extent.file).or_insert(u64::MAX);
        *first = object.entry.creation.min(*first);
    }
    for outside in state.outside_files() {
        // The entry goes before the first object that lies in the file. A file without objects is
        // dropped.
        if let Some(first) = first_of.get(&outside.file) {
            objects.push((*first, CheckpointItem::Entry(Entry::Outside(outside.as_ref().clone()))));
        }
    }
    for object in state.objects() {
        let entry = object.entry_now();
        objects.push((entry.creation, CheckpointItem::Entry(Entry::Object(entry.clone()))));
        if !blocks(object, &entry, &mut objects) {
            // The object was truncated and the batch that records it is still to come: the log names
            // all its blocks.
            let text = format!("object {} is being cut", entry.id);
            return Err(Error::new(ErrorKind::Busy, text));
        }
    }
    // The sort is stable, so an object's entry stays before its blocks.
    objects.sort_by_key(|(sequence, _)| *sequence);
    let last = next_sequence.saturating_sub(1);
    let named = names(state).into_iter().map(|entry| (last, CheckpointItem::Entry(entry)));
    let mut batches = Vec::new();
    let mut batch = Batch::new(0);
    let mut before = 0;
    for (sequence, item) in objects.into_iter().chain(named) {
        if batch.slots() >= BATCH_SLOTS_MAX && sequence > before {
            batches.push(std::mem::replace(&mut batch, Batch::new(0)));
        }
        batch.number_next(sequence);
        match item {
            CheckpointItem::Entry(entry) => batch.entry(entry),
            CheckpointItem::Record(record) => batch.record(record),
            CheckpointItem::Run(checksums, record) => batch.run(&checksums, record),
            CheckpointItem::Slots(run) => run.add_to(&mut batch),
        }
        batch.number_next(sequence);
        before = sequence;
    }
    batches.push(batch);
    Ok(batches)
}

/// Something to write to the log.
enum CheckpointItem {
    Entry(Entry),
    Record(Record),
    Run(Vec<u32>, Record),
    Slots(SlotRun),
}

/// Adds an object's blocks. Returns whether all blocks that the log names are present.
fn blocks(object: &Object, entry: &ObjectEntry, out: &mut Vec<(u64, CheckpointItem)>) -> bool {
    let described = described(entry);
    let layout = object.logged_layout();
    let blocks = object.blocks.read();
    // The blocks that came with the object: all of them in one run, or the run of its origin.
    let first_run = match (&object.origin, &*blocks) {
        (Some(origin), _) => origin.run(),
        (None, Blocks::One(Part::Run(run))) => {
            OriginRun { epoch: run.epoch, since: run.since, checksums: run.checksums.clone() }
        }
        _ => OriginRun::default(),
    };
    let first = match &*blocks {
        Blocks::One(Part::Run(run)) => Some(run.offset),
        _ => object.extent().map(|extent| extent.offset),
    };
    let is_in_first_run = |block: &Block| block.epoch == first_run.epoch && block.stored.in_data;
    if let Some(offset) = first.filter(|_| !first_run.checksums.is_empty()) {
        let record = Record::run(entry.id, 0, described.clone(), offset, u64::from(first_run.since));
        out.push((first_run.epoch, CheckpointItem::Run(first_run.checksums.to_vec(), record)));
    }
    // A factor that no block uses any more is dropped.
    let is_used = |(_, block): (_, Block)| object.factor_of(&block).is_some();
    let factor = object.factor().filter(|_| blocks.pieces(layout).any(is_used));
    if let Some(link @ FactorLink { epoch, offset, len, rank, checksum, .. }) = factor {
        let record = Record::Factor { object: entry.id, block: link.block(), offset, len, rank, checksum };
        out.push((epoch, CheckpointItem::Record(record)));
    }
    let mut count = 0;
    let mut run: Option<DataRun> = None;
    let mut slots: Option<SlotRun> = None;
    let mut empty: Option<EmptyBlocks> = None;
    for (piece, block) in blocks.pieces(layout) {
        let index = piece.start;
        count += piece.end - piece.start;
        if block.stored.is_zeros() || piece.len() > 1 {
            // How the memory divides them follows from the history.
            if empty.as_mut().is_some_and(|run| run.joins(&piece, &block, layout)) {
                continue;
            }
            out.extend(empty.replace(EmptyBlocks { piece, block }).map(|run| run.item(entry)));
            continue;
        }
        if is_in_first_run(&block) {
            continue;
        }
        if object.origin.is_none() && block.stored.in_data {
            // Blocks that came with one record go into one record again.
            if run.as_mut().is_some_and(|run| run.joins(index, &block)) {
                continue;
            }
            out.extend(run.replace(DataRun::of(index, &block)).map(|run| run.item(entry)));
            continue;
        }
        let since = u64::from(block.since);
        let is_severed = object.origin.as_ref().is_none_or(|origin| origin.is_severed(index));
        let links = object.deltas(index, block.epoch);
        // The deltas of a block follow its own record.
        if links.is_none() && block.stored.has_slot() {
            if slots.as_mut().is_some_and(|run| run.joins(index, &block, !is_severed)) {
                continue;
            }
            out.extend(slots.replace(SlotRun::of(entry, index, &block, !is_severed)).map(SlotRun::item));
            continue;
        }
        // A Create detaches the block from its origin.
        let record = if is_severed {
            Record::Create {
                object: entry.id,
                block: index,
                described: described.clone(),
                stored: block.stored,
                created_at: since,
            }
        } else {
            migrate(entry, index, Tier::Exact, block.stored, since)
        };
        out.push((block.epoch, CheckpointItem::Record(record)));
        for (place, link) in links.iter().flat_map(|links| links.iter()).enumerate() {
            // After the block's own record and before anything newer, so that the order of the deltas
            // is kept.
            out.push((
                block.epoch,
                CheckpointItem::Record(Record::Delta {
                    object: entry.id,
                    block: index,
                    base_epoch: link.base_epoch,
                    offset: link.offset,
                    len: link.len,
                    chain_len: place as u16 + 1,
                    nnz: link.changes(entry.dtype),
                    checksum: link.checksum,
                    kind: link.kind_byte(),
                    product: link.product.unwrap_or(0),
                }),
            ));
        }
    }
    out.extend(empty.map(|run| run.item(entry)));
    out.extend(run.map(|run| run.item(entry)));
    out.extend(slots.map(SlotRun::item));
    count == layout.blocks()
}

/// Consecutive blocks in adjacent slots that one record described.
struct SlotRun {
    entry: ObjectEntry,
    first: u32,
    since: u32,
    epoch: u64,
    is_move: bool,
    blocks: Vec<Stored>,
}

impl SlotRun {
    fn of(entry: &ObjectEntry, first: u32, block: &Block, is_move: bool) -> SlotRun {
        let (entry, since, blocks) = (entry.clone(), block.since, vec![block.stored]);
        SlotRun { entry, first, since, epoch: block.epoch, is_move, blocks }
    }

    /// Adds the next block if it continues the run.
    fn joins(&mut self, index: u32, block: &Block, is_move: bool) -> bool {
        let is_next = u64::from(index) == u64::from(self.first) + self.blocks.len() as u64
            && (block.epoch, block.since, is_move) == (self.epoch, self.since, self.is_move)
            && self.blocks.last().is_some_and(|before| is_next_slot(before, &block.stored));
        if is_next {
            self.blocks.push(block.stored);
        }
        is_next
    }

    fn item(self) -> (u64, CheckpointItem) {
        (self.epoch, CheckpointItem::Slots(self))
    }

    /// Adds the run, or the record of its only block, to a batch.
    fn add_to(self, batch: &mut Batch) {
        let (object, block, described) = (self.entry.id, self.first, described(&self.entry));
        let (created_at, is_move) = (u64::from(self.since), self.is_move);
        match self.blocks.as_slice() {
            [stored] if is_move => {
                batch.record(migrate(&self.entry, block, Tier::Exact, *stored, created_at))
            }
            [stored] => {
                batch.record(Record::Create { object, block, described, stored: *stored, created_at });
            }
            blocks => batch.slot_run(blocks.iter(), |stored| Record::SlotRun {
                object,
                block,
                described,
                stored,
                created_at,
                is_move,
            }),
        }
    }
}

/// Consecutive blocks without a payload that one record describes.
struct EmptyBlocks {
    piece: Range<u32>,
    /// The first of them.
    block: Block,
}

impl EmptyBlocks {
    /// Adds the next blocks if they continue the run.
    fn joins(&mut self, piece: &Range<u32>, block: &Block, layout: BlockLayout) -> bool {
        let mut expected = self.block;
        if expected.stored.in_data {
            let skipped = layout.start(piece.start).saturating_sub(layout.start(self.piece.start));
            expected.stored.offset = expected.stored.offset.saturating_add(skipped);
        }
        let is_next = piece.start == self.piece.end && *block == expected;
        if is_next {
            self.piece.end = piece.end;
        }
        is_next
    }

    fn item(self, entry: &ObjectEntry) -> (u64, CheckpointItem) {
        let record = Record::EmptyRun {
            object: entry.id,
            block: self.piece.start,
            count: self.piece.end - self.piece.start,
            stored: self.block.stored,
            created_at: u64::from(self.block.since),
        };
        (self.block.epoch, CheckpointItem::Record(record))
    }
}

/// Consecutive blocks of a data file that one record described and that have not moved since.
struct DataRun {
    first: u32,
    block: Block,
    end: u64,
    checksums: Vec<u32>,
}

impl DataRun {
    fn of(index: u32, block: &Block) -> DataRun {
        let end = block.stored.offset + u64::from(block.stored.len);
        DataRun { first: index, block: *block, end, checksums: vec![block.stored.checksum] }
    }

    /// Adds the next block if it continues the run.
    fn joins(&mut self, index: u32, block: &Block) -> bool {
        let is_next = u64::from(index) == u64::from(self.first) + self.checksums.len() as u64
            && (block.epoch, block.since) == (self.block.epoch, self.block.since)
            && block.stored.offset == self.end;
        if is_next {
            self.end += u64::from(block.stored.len);
            self.checksums.push(block.stored.checksum);
        }
        is_next
    }

    fn item(self, entry: &ObjectEntry) -> (u64, CheckpointItem) {
        let (offset, created_at) = (self.block.stored.offset, u64::from(self.block.since));
        let record = Record::run(entry.id, self.first, described(entry), offset, created_at);
        (self.block.epoch, CheckpointItem::Run(self.checksums, record))
    }
}

/// The nodes, then the names that lead to them, each directory before its content.
fn names(state: &State) -> Vec<Entry> {
    let mut entries = vec![Entry::Collection {
        number: state.number(),
        created_at: state.created_at(),
        last_entry: state.last_entry(),
    }];
    let mut nodes: Vec<_> = state.nodes().collect();
    nodes.sort_by_key(|node| node.entry.id);
    entries.extend(nodes.iter().map(|node| Entry::Node(Box::new(node.entry.clone()))));
    let mut links: Vec<Entry> = Vec::new();
    for node in &nodes {
        let parent = node.entry.id;
        let Some(directory) = state.directory(parent) else { continue };
        links.extend(directory.after(crate::model::EntryId(0)).map(|(entry, name, node)| Entry::Name {
            parent,
            entry,
            name: name.clone(),
            node,
        }));
    }
    // A file's names are in the order of their creation: the first one is its place in the tree.
    links.sort_by_key(|link| match link {
        Entry::Name { entry, .. } => entry.0,
        _ => ROOT.0,
    });
    entries.extend(links);
    for node in &nodes {
        let id = node.entry.id;
        entries.extend(state.settings_of(id).map(|(key, value)| Entry::Setting {
            node: id,
            key: key.to_owned(),
            value: Some(value.to_owned()),
        }));
    }
    entries
}
