//! Settings of directories for what arrives, and tensors that arrived and grew since.

use std::sync::Arc;

use crate::engine::moves::with_container;
use crate::engine::select::{Target, targets};
use crate::format::log::catalog::{Entry, NodeEntry, NodeType};
use crate::model::{Aim, Encoder, EntryId, Error, ErrorKind, Result, Storing, Tier};
use crate::store::{Collection, Elements, Object, OpenObject, Touched, now_nanoseconds};

/// Logical bytes that are stored with one batch.
const STEP_BYTES: u64 = 8 << 20;

/// Sets a setting for what arrives to a value that the caller has checked.
pub fn set_arrival(collection: &Collection, node: EntryId, key: &str, value: &str) -> Result<()> {
    collection.record(Touched::default(), |batch, state| {
        let found = state.node(node).ok_or_else(|| Error::new(ErrorKind::Gone, "the file is gone"))?;
        batch.entry(Entry::Setting { node, key: key.to_owned(), value: Some(value.to_owned()) });
        batch.node(NodeEntry { ctime: now_nanoseconds(), ..found.entry.clone() });
        Ok(())
    })
}

/// How the exact blocks of a file that has arrived before are stored.
pub struct StoreArrived<'a> {
    /// The tier of a tensor. `None` if it stays as it is.
    pub tier_of: &'a dyn Fn(&Target) -> Option<Tier>,
    pub encoder: Encoder,
    /// Begin of the bytes that were written since, if the file is one tensor.
    pub from: u64,
}

/// Stores the exact blocks of the tensors in a file. Blocks that are encoded, and their patches, stay. Returns the nodes
/// whose bytes changed; times stay.
pub fn store_arrived(
    collection: &Arc<Collection>,
    node: EntryId,
    how: &StoreArrived<'_>,
) -> Result<Vec<EntryId>> {
    let mut changed = Vec::new();
    for target in targets(collection, node)? {
        let tier = (how.tier_of)(&target).filter(|_| !target.is_view);
        let is_of_type = target.objects.iter().all(|object| object.dtype() == target.dtype);
        if let Some(tier) = tier.filter(|_| is_of_type)
            && store(collection, &target, tier, how, if target.node == node { how.from } else { 0 })?
            && !tier.is_exact()
        {
            changed.extend(with_container(&collection.state(), target.node));
        }
    }
    Ok(changed)
}

/// The first block of an object that may be due after a write at byte `from`: that of the byte, or the first of the exact
/// ones right before it. An earlier close may have failed to store these.
fn first_due(object: &Object, from: u64) -> u32 {
    let layout = object.layout();
    let mut first = if from < layout.bytes { layout.index(from) } else { layout.blocks() };
    let is_exact = |index| object.block(index, layout).is_some_and(|block| block.stored.tier == Tier::Exact);
    while let Some(before) = first.checked_sub(1).filter(|before| is_exact(*before)) {
        first = before;
    }
    first
}

/// Stores those of a tensor that were written from byte `from` on. Whether there were any.
fn store(
    collection: &Arc<Collection>,
    target: &Target,
    tier: Tier,
    how: &StoreArrived<'_>,
    from: u64,
) -> Result<bool> {
    let encoder = how.encoder;
    let mut begin = 0;
    let aim = if tier == Tier::Packed { Aim::Pack } else { Aim::Tier(tier) };
    let storing = Storing { aim, packs: tier == Tier::Packed, encoder };
    let mut is_any = false;
    for object in &target.objects {
        let open = OpenObject::open_by_name(collection, object)?;
        let layout = object.layout();
        let step = u32::try_from(STEP_BYTES / u64::from(layout.block_bytes)).unwrap_or(1).max(1);
        let first = first_due(object, from.saturating_sub(begin));
        begin += layout.bytes;
        let due = object.stored_blocks(first..layout.blocks(), layout);
        let due =
            due.filter(|(index, block)| block.stored.tier.is_exact() && open.is_due(*index, block, aim));
        let due: Vec<u32> = due.map(|(index, _)| index).collect();
        for blocks in due.chunk_by(|before, next| before + 1 == *next && next % step != 0) {
            let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else { continue };
            let migrated = open.migrate(*first..last + 1, storing, &|open, index, block, out| {
                if !block.stored.tier.is_exact() {
                    return Ok(Elements::Kept);
                }
                open.read(open.object().layout().start(index), out).map(|()| Elements::Other)
            });
            let mut migration = migrated?;
            if migration.is_empty() {
                continue;
            }
            is_any = true;
            let (touched, measured) = (std::mem::take(&mut migration.touched), migration.measured);
            collection.record(touched, |batch, state| {
                migration.add(batch);
                if aim.keeps_bytes() {
                    batch.keep_bytes();
                } else if let Some(found) = state.node(target.node) {
                    let mut entry = NodeEntry { ctime: now_nanoseconds(), ..found.entry.clone() };
                    if let NodeType::File(file) = &mut entry.node_type {
                        file.error.get_or_insert_default().add(measured);
                    }
                    batch.node(entry);
                }
                Ok(())
            })?;
        }
    }
    Ok(is_any)
}
