//! A variant of a frozen collection: its log and its tier files, as they would be after a move of tensors to
//! another tier. All other files are those of the collection, or have some of its bytes at the same offsets.
//!
//! No payload is kept. A block is encoded once for its place and its checksum, and once more when a piece with
//! it is read. Blocks that are differences from other collections are stored whole, so a variant needs no
//! other collection. Blocks of a variant that differ from those of the collection have epochs of their own.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use crate::codec;
use crate::format::log::catalog::{Entry, Measured, NodeEntry, NodeType};
use crate::format::log::record::Stored;
use crate::format::snapshot::manifest::FileKind;
use crate::model::{Encoder, EntryId, ObjectId, Progress, Result, StoreId};
use crate::store::collection::open_object::{OpenObject, Verify};
use crate::store::object::Object;
use crate::store::object::blocks::{Block, IndexedBlock};
use crate::store::snapshot::canonical::{Canonical, Files, lacks, log_of};
use crate::store::snapshot::choice::{Choice, Recode};
use crate::store::snapshot::freeze::{copied, next_sequence};
use crate::store::snapshot::payloads::{CanonicalFile, Payload, PayloadReader};
use crate::store::snapshot::shared_pieces::Narrowed;
use crate::store::state::State;
use crate::store::state::node::Node;

/// Logical bytes that are encoded at a time.
const STEP_BYTES: usize = 8 << 20;

/// The files of a variant that are not those of the collection.
pub struct CanonicalVariant {
    choice: Choice,
    log: Vec<u8>,
    files: Vec<CanonicalFile>,
    /// By the number of a data file, the stretches with payloads of the variant, ascending.
    used: HashMap<u64, Vec<Range<u64>>>,
}

impl CanonicalVariant {
    /// The tensors that it stores otherwise.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Its log.
    pub fn log(&self) -> &[u8] {
        &self.log
    }

    /// Its tier files.
    pub fn files(&self) -> &[CanonicalFile] {
        &self.files
    }

    /// How the variant has a data file of the collection; `None` if it shares all pieces.
    pub fn narrowed(&self, file: &CanonicalFile) -> Option<Narrowed> {
        file.narrowed(self.used.get(&file.number).map(Vec::as_slice).unwrap_or_default())
    }
}

impl Canonical {
    /// Chooses what a variant stores otherwise. Reads no payload.
    pub fn choose(&self, recode: &Arc<dyn Recode>) -> Choice {
        let still = self.frozen().still();
        let places: HashMap<ObjectId, usize> =
            self.objects().iter().enumerate().map(|(place, object)| (object.entry.id, place)).collect();
        let mut nodes: Vec<(EntryId, Vec<usize>)> = {
            let state = still.state();
            let tensors = state.nodes().filter(|node| node.file().is_some_and(|file| file.tensor.is_some()));
            let of = |node: &Node| -> Vec<usize> {
                let objects = node.file().into_iter().flat_map(|file| file.objects.iter());
                objects.filter_map(|id| places.get(id).copied()).collect()
            };
            tensors.map(|node| (node.entry.id, of(node))).collect()
        };
        nodes.sort_unstable();
        let mut encoders = vec![None; self.objects().len()];
        let mut tensors = Vec::new();
        let mut hasher = blake3::Hasher::new();
        let tier = recode.tier();
        hasher.update(concat!("tierfs variant ", env!("CARGO_PKG_VERSION"), "\n").as_bytes());
        hasher.update(&codec::ENCODERS_REVISION.to_le_bytes());
        hasher.update(format!("{} {tier}\n", recode.name()).as_bytes());
        for (node, places) in nodes {
            let Some(encoder) = recode.takes(still, node) else { continue };
            for place in &places {
                if let Some(chosen) = encoders.get_mut(*place) {
                    chosen.get_or_insert(encoder);
                }
            }
            hasher.update(format!("{} {encoder:?}\n", node.0).as_bytes());
            tensors.push((node, places));
        }
        Choice { recode: recode.clone(), encoders, tensors, recipe: *hasher.finalize().as_bytes() }
    }

    /// Logical bytes of the tensors that a variant takes.
    pub fn bytes_of(&self, choice: &Choice) -> u64 {
        let taken = self.objects().iter().zip(&choice.encoders).filter(|(_, encoder)| encoder.is_some());
        taken.map(|(object, _)| object.logged_layout().bytes).sum()
    }

    /// The files of a variant, with a log for the store `remote`. `progress` learns of the bytes that are
    /// encoded.
    pub fn variant(
        &self,
        choice: Choice,
        remote: StoreId,
        progress: &dyn Progress,
    ) -> Result<CanonicalVariant> {
        let path = self.frozen().still().path();
        let mut state = copied(self.state(), |_| true)?;
        let first_epoch = next_sequence(&state);
        let mut used: HashMap<u64, Vec<Range<u64>>> = HashMap::new();
        let (mut files, mut measured) = (Files::default(), vec![Measured::default(); self.objects().len()]);
        for (place, (from, encoder)) in self.objects().iter().zip(&choice.encoders).enumerate() {
            let object = state.object(from.entry.id).ok_or_else(|| lacks(&path, from))?.clone();
            let moving = Moving { from, object: &object, epoch: first_epoch.saturating_add(place as u64) };
            if encoder.is_some() || object.needs_parent() {
                let done = self.recode(&choice, &moving, *encoder, progress);
                let done = done.map_err(|error| error.at(self.frozen().still().path_of(from)))?;
                if let Some(measured) = measured.get_mut(place) {
                    *measured = done;
                }
            }
            moving.place(place as u32, &mut files)?;
            if let Some(extent) = object.extent() {
                moving.note_used(used.entry(extent.file).or_default());
            }
        }
        used.values_mut().for_each(|ranges| ranges.sort_unstable_by_key(|range| range.start));
        note_errors(&mut state, &choice.tensors, &measured)?;
        let log = log_of(&state, remote)?;
        Ok(CanonicalVariant { choice, log, files: files.finish(&path)?, used })
    }

    /// Gives those blocks of an object their new state that the variant stores otherwise. Returns the error
    /// of the encoded ones.
    fn recode(
        &self,
        choice: &Choice,
        moving: &Moving,
        encoder: Option<Encoder>,
        progress: &dyn Progress,
    ) -> Result<Measured> {
        let open = OpenObject::open(self.frozen().still(), moving.from, Verify::First)?;
        let layout = moving.from.logged_layout();
        let step = (STEP_BYTES / (layout.block_bytes as usize).max(1)).max(1);
        let blocks: Vec<(u32, Block)> = moving.from.stored_blocks(0..layout.blocks(), layout).collect();
        let mut measured = Measured::default();
        for some in blocks.chunks(step) {
            progress.check()?;
            let recoded: Vec<Option<(Stored, Measured)>> = some
                .par_iter()
                .map(|(index, block)| {
                    choice.payload(&open, IndexedBlock { index: *index, block }, encoder, &mut Vec::new())
                })
                .collect::<Result<_>>()?;
            for ((index, block), recoded) in some.iter().zip(recoded) {
                let Some((stored, error)) = recoded else { continue };
                measured.add(error);
                moving.object.forget_deltas(*index, block.epoch);
                let block = Block { epoch: moving.epoch, stored, since: block.since };
                moving.object.set_block(*index, block, layout)?;
            }
            if encoder.is_some() {
                progress.advance(some.iter().map(|(index, _)| layout.len(*index) as u64).sum());
            }
        }
        Ok(measured)
    }

    /// Replaces `out` by the bytes of stretches of a file of a variant.
    pub fn read_variant(
        &self,
        variant: &CanonicalVariant,
        file: &CanonicalFile,
        stretches: &[Range<u64>],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        out.clear();
        let mut reader =
            PayloadReader::of_variant(self.frozen().still(), self.objects(), self.state(), &variant.choice);
        stretches.iter().try_for_each(|stretch| reader.read(file, stretch, out))
    }
}

/// An object of a variant that is being put together.
struct Moving<'a> {
    /// The object of the collection.
    from: &'a Arc<Object>,
    /// Its copy in the state of the variant.
    object: &'a Arc<Object>,
    /// The epoch of blocks that differ.
    epoch: u64,
}

impl Moving<'_> {
    /// Gives the payloads in tier files their places.
    fn place(&self, place: u32, files: &mut Files) -> Result<()> {
        let layout = self.object.logged_layout();
        let begins: Vec<u64> = (0..4).map(|number| files.file(FileKind::Tier, number).bytes).collect();
        let blocks: Vec<(Range<u32>, Block)> = self.object.blocks.read().pieces(layout).collect();
        for (piece, block) in blocks.into_iter().filter(|(_, block)| block.stored.has_slot()) {
            let index = piece.start;
            let payload = if block.epoch == self.epoch {
                Payload::Recoded { block: index, checksum: block.stored.checksum }
            } else {
                Payload::Block(index)
            };
            let file = files.file(FileKind::Tier, u64::from(block.stored.tier.byte()));
            let offset = file.add_slot(place, u64::from(block.stored.len), payload);
            let stored = Stored { offset, ..block.stored };
            self.object.set_block(index, Block { stored, ..block }, layout)?;
        }
        for (number, begin) in (0..).zip(begins) {
            files.file(FileKind::Tier, number).end_object(begin);
        }
        Ok(())
    }
}

impl Moving<'_> {
    /// Adds the stretches of the data file that have payloads of the object.
    fn note_used(&self, used: &mut Vec<Range<u64>>) {
        let blocks = self.object.blocks.read();
        let in_data = blocks.pieces(self.object.logged_layout()).filter(|(_, block)| block.stored.in_data);
        for (_, block) in in_data {
            let end = block.stored.offset.saturating_add(u64::from(block.stored.len));
            match used.last_mut() {
                Some(last) if last.end == block.stored.offset => last.end = end,
                _ => used.push(block.stored.offset..end),
            }
        }
    }
}

/// Notes the error of each tensor that was encoded.
fn note_errors(state: &mut State, tensors: &[(EntryId, Vec<usize>)], measured: &[Measured]) -> Result<()> {
    for (node, places) in tensors {
        let mut sum = Measured::default();
        places.iter().filter_map(|place| measured.get(*place)).for_each(|of_object| sum.add(*of_object));
        let Some(found) = state.node(*node).filter(|_| sum.elements > 0) else { continue };
        let mut entry: NodeEntry = found.entry.clone();
        if let NodeType::File(file) = &mut entry.node_type {
            file.error = Some(Box::new(sum));
        }
        state.apply_entry(Entry::Node(Box::new(entry)))?;
    }
    Ok(())
}
