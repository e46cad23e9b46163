//! Chooses the tensors that are packed when they arrive.

use crate::ingest::blocking::Blocking;
use crate::ingest::parts::PartTensor;
use crate::model::{Tier, packs, packs_blocks_of};

/// The tier of an exact tensor that arrives where the setting says to pack, if it is packed too.
pub(super) fn packed_tier(tensor: &PartTensor, blocking: Blocking) -> Option<Tier> {
    let bytes = tensor.dtype.bytes_of(tensor.shape.elements())?;
    let is_packed = packs(tensor.dtype) && packs_blocks_of(blocking.block_bytes(tensor.dtype, bytes));
    is_packed.then_some(Tier::Packed)
}
