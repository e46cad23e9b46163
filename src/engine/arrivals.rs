//! Settings of directories for what arrives, and tensors that arrived and grew since.

use std::sync::Arc;

use crate::engine::moves::with_container;
use crate::engine::select::{Target, targets};
use crate::format::log::catalog::{Entry, NodeEntry, NodeType};
use crate::ingest::{Arrival, Arriving, NONE, parse_blocking, parse_row, parse_tier};
use crate::model::{Aim, Dtype, EntryId, Error, ErrorKind, Result, Storing, Tier};
use crate::store::{
    ARRIVE, BLOCK_BYTES, Collection, DTYPE, Elements, HEAD_DIM, OpenObject, ROW, Touched, now_nanoseconds,
};

/// Logical bytes that are stored with one batch.
const STEP_BYTES: u64 = 8 << 20;

/// Sets a setting for what arrives. Fails with `Invalid` for an impossible value.
pub fn set_arrival(collection: &Collection, node: EntryId, key: &str, text: &str) -> Result<()> {
    let value = checked(key, text)?;
    collection.record(Touched::default(), |batch, state| {
        let found = state.node(node).ok_or_else(|| Error::new(ErrorKind::Gone, "the file is gone"))?;
        batch.entry(Entry::Setting { node, key: key.to_owned(), value: Some(value) });
        batch.node(NodeEntry { ctime: now_nanoseconds(), ..found.entry.clone() });
        Ok(())
    })
}

/// The value as the log has it.
fn checked(key: &str, text: &str) -> Result<String> {
    let invalid = |valid: &str| Error::invalid(format!("invalid value {text:?} of {key}; expected {valid}"));
    if key == ARRIVE {
        let valid = "exact, packed, or a tier such as q8, which may be followed by :all";
        return parse_tier(text).map(|to| to.variant_name()).map_err(|_| invalid(valid));
    }
    if text == NONE {
        return Ok(NONE.to_owned());
    }
    match key {
        DTYPE => {
            let dtype =
                Dtype::from_name(text).ok_or_else(|| invalid("a type such as f32, bf16 or i8, or none"))?;
            Ok(dtype.name().to_owned())
        }
        ROW => {
            let row = parse_row(text)
                .map_err(|_| invalid("the sizes of all dimensions but the first, such as 8x128, or none"))?;
            Ok(row.to_string())
        }
        HEAD_DIM | BLOCK_BYTES => parse_blocking(key, text).map(|_| text.to_owned()),
        _ => Err(Error::invalid(format!("{key} is no setting for what arrives"))),
    }
}

/// Stores the exact blocks of tensors in a file that has arrived before as the settings say. Blocks that are encoded, and
/// their patches, stay. Returns the nodes whose bytes changed; times stay.
pub fn store_arrived(collection: &Arc<Collection>, node: EntryId, arrival: &Arrival) -> Result<Vec<EntryId>> {
    let mut changed = Vec::new();
    for target in targets(collection, node)? {
        let Some(block_bytes) = target.objects.first().map(|object| object.entry.block_bytes) else {
            continue;
        };
        let arriving = Arriving {
            dtype: target.dtype,
            shape: &target.shape,
            name: &target.name,
            has_codes: target.has_codes,
            is_bound: target.is_checksummed,
            block_bytes,
        };
        let tier = arrival.tier_of(collection, &arriving).filter(|_| !target.is_view);
        let is_of_type = target.objects.iter().all(|object| object.dtype() == target.dtype);
        if let Some(tier) = tier.filter(|_| is_of_type)
            && store(collection, &target, tier, arrival)?
            && !tier.is_exact()
        {
            changed.extend(with_container(&collection.state(), target.node));
        }
    }
    Ok(changed)
}

/// Whether there were any such blocks.
fn store(collection: &Arc<Collection>, target: &Target, tier: Tier, arrival: &Arrival) -> Result<bool> {
    let aim = if tier == Tier::Packed { Aim::Pack } else { Aim::Tier(tier) };
    let storing = Storing { aim, packs: tier == Tier::Packed, encoder: arrival.encoder() };
    let mut is_any = false;
    for object in &target.objects {
        let open = OpenObject::open_by_name(collection, object)?;
        let layout = object.layout();
        let step = u32::try_from(STEP_BYTES / u64::from(layout.block_bytes)).unwrap_or(1).max(1);
        let due = object.stored_blocks(0..layout.blocks(), layout);
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
