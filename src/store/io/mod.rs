//! I/O of payloads: read, verify, write, migrate, relocate and repair.
//!
//! # A read
//!
//! `OpenObject::read` (`read.rs`) looks up 64 blocks at a time, dirty blocks first, then the index of the object, and
//! releases these locks. It holds `Collection::gate` shared until the bytes are there, so space that it looked up is
//! not used again.
//!
//! 1. Neighbouring payloads of one tier take one `pread`: exact ones straight into the buffer of the caller, encoded
//!    ones, up to 1 MiB, into a buffer of the thread (`buffer.rs`).
//! 2. A payload that was read whole is compared with the CRC32C in the log; a dirty block has none yet. A part of an
//!    exact block that was never verified is read together with the rest of the block. Of a verified encoded block
//!    without deltas only the groups that are wanted are fetched.
//! 3. Encoded blocks are decoded into the buffer of the caller, partial ones through a buffer of the thread. Deltas are
//!    applied (`deltas.rs`). An absent or damaged block is made again by `rebuild.rs`, behind which stands
//!    `engine/reconstruct/`.
//!
//! # A write
//!
//! `OpenObject::write` (`write.rs`) has one writer an object:
//!
//! 1. A dirty block is overwritten in place. Zeros change nothing in a block that nobody wrote, in objects of 1 MiB and
//!    more.
//! 2. `OpenObject::place_block` gives any other block a new place, never the place that the log names: in the data file
//!    where the extent of the object was never used or the log has a hole there, else a slot of `tier0.dat`. A hole
//!    reads as zeros until a batch describes the block, whatever a killed process has left there.
//! 3. A block written in part is first read, verified and decoded. An encoded block goes to `tier0.dat`.
//! 4. The place goes into `WriteState::dirty` and hides the described block at once, by every name of these bytes that
//!    asks the daemon. With it goes the CRC32C of the first bytes of the block and their number. A write to counted
//!    bytes forgets the CRC32C first.
//!
//! `places.rs` says where the bytes of an object lie (`OpenObject::stretches`), so that a recognized file can be cut
//! there. `copy.rs` gives a copy the blocks of its source.

pub(in crate::store) mod buffer;
pub(in crate::store) mod clones;
pub(in crate::store) mod contiguous;
pub(in crate::store) mod copy;
pub(in crate::store) mod deltas;
pub(in crate::store) mod encode;
pub(in crate::store) mod heal;
pub(in crate::store) mod link;
pub(in crate::store) mod migrate;
pub(in crate::store) mod origin;
pub(in crate::store) mod packed_blocks;
pub(in crate::store) mod pinned_copies;
pub(in crate::store) mod places;
pub(in crate::store) mod read;
pub(in crate::store) mod rebuild;
pub(in crate::store) mod relocate;
pub(in crate::store) mod scaled_delta;
pub(in crate::store) mod verify;
pub(in crate::store) mod write;
pub(in crate::store) mod zeros;
