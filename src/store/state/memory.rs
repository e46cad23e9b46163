//! The memory that a state takes, as an estimate from the number of its parts.

use crate::store::object::Object;
use crate::store::object::blocks::{Block, Blocks};
use crate::store::object::parts::Part;
use crate::store::state::State;

/// Bytes of a node with its entry, its names and the places that lead to them. Measured.
const NODE_BYTES: u64 = 450;
/// Bytes of an object with its entry, without its blocks. Measured.
const OBJECT_BYTES: u64 = 450;
/// Bytes of the further state of an object that was written to or moved.
const WRITE_STATE_BYTES: u64 = 300;
/// Bytes of a part of an object whose blocks are of several kinds, without its blocks.
const PART_BYTES: u64 = 100;

impl State {
    /// Bytes of memory that it takes, about: the blocks of tensors have most of them.
    pub fn memory(&self) -> u64 {
        let blocks: u64 = self.objects().map(|object| object.blocks.read().memory()).sum();
        let further = |object: &Object| {
            let write_state = object.existing_write_state().map_or(0, |_| WRITE_STATE_BYTES);
            write_state + object.accesses.memory()
        };
        let further: u64 = self.objects().map(|object| further(object)).sum();
        self.nodes.len() as u64 * NODE_BYTES
            + self.objects.len() as u64 * OBJECT_BYTES
            + blocks
            + further
            + self.shard_index_bytes()
    }
}

impl Blocks {
    /// Bytes of memory outside of it.
    fn memory(&self) -> u64 {
        let inside = |part: &Part| match part {
            Part::Run(run) if !run.checksums.spilled() => 0,
            Part::Run(run) => run.checksums.capacity() * size_of::<u32>(),
            Part::Dense(blocks) => blocks.capacity() * size_of::<Block>(),
            Part::Uniform(_) => 0,
        };
        match self {
            Blocks::Unknown => 0,
            Blocks::One(part) => inside(part) as u64,
            Blocks::Parts(_) => self.parts().map(|(_, part)| PART_BYTES + inside(part) as u64).sum(),
        }
    }
}
