//! Changes of precision: moves of tensors between tiers, evictions, packing, reconstruction, and the rules that forbid
//! them.
//!
//! Invariants:
//! 1. The last exact copy of a block is dropped only where `lossy` allows it, and only to the tier that it allows.
//! 2. A rejected request changes nothing but `why`.
//! 3. A move takes the most precise bytes available, and never records a block as more precise than these.
//! 4. A reader sees each block as it was either before a move or after it.
//!
//! `stretches.rs` rounds rows to whole stretches of blocks, `tails.rs` moves the rows behind the tail of a tensor that
//! grows. `plan_move.rs` says which blocks a request takes and whether their sources allow it, `moves.rs` carries it out,
//! `evict/` drops payloads, `reconstruct/` has the list of the ways to make a block again. `policy.rs` is the plan of
//! automatic moves, a function of plain values; `automatic.rs` feeds and executes it. A step of the policy is an entry
//! of `STEPS`. With `unit=block` each stretch is a tensor of the plan.
//!
//! # Packing
//!
//! Exact blocks have two layouts: verbatim (`Tier::Exact`) and packed (`Tier::Packed`, the encoding of
//! `codec/ladder/`). Users see both as the tier `exact`: `Tier::is_exact` asks for either, and a change between them
//! needs no consent and changes no byte, time or digest.
//!
//! - A move has an `Aim` (`model/move_to.rs`): a tier, to pack, or to unpack. `Aim::takes` says which blocks it moves:
//!   only verbatim ones are packed, only packed ones unpacked, and a move to `exact` leaves both as they are.
//! - `packs` and `packs_blocks_of` name the types and block lengths that are packed by default. A block stays verbatim
//!   if the encoder saves less than 3 %.
//! - The setting `pack` concerns arrivals: `PartTensor::packed_tier` gives each arriving tensor its tier. Without room
//!   for the copy a written file stays verbatim.
//! - A batch of a pack is marked with `Batch::keep_bytes`, so pinned copies and digests stay valid.
//! - An unpack ends with `return_to_extents` (`compact.rs`). A write makes a patch or a verbatim block, which
//!   `OpenObject::pack_again` packs in a compaction.
//! - A packed file in place leaves its outside file as a whole: `OpenObject::take_in` copies its unpacked parts, the
//!   header too. `import --in-place --pack` packs after the import (`finish_import.rs`).
//! - The policy has a step `Packed` between `Exact` and `Q8`.

mod access;
mod arrivals;
mod automatic;
mod compact;
mod evict;
#[cfg(feature = "mount")]
mod finish_import;
mod heal;
mod move_preview;
mod moves;
mod pins;
mod plan_move;
pub mod policy;
mod policy_preview;
mod reconstruct;
mod refuse;
mod results;
mod scrub;
mod select;
mod settings;
mod state;
mod stretches;
mod summary;
mod tails;
mod variants;
mod work;

pub use access::Heat;
pub use arrivals::{StoreArrived, set_arrival, store_arrived};
pub use compact::compact;
pub use evict::{Evict, EvictRequest};
#[cfg(feature = "mount")]
pub use finish_import::Finish;
pub use move_preview::{MovePreview, would_move};
pub use pins::Pinned;
pub use plan_move::{MoveRequest, SourceCheck, Sources};
pub use policy_preview::ForeseenMove;
pub use reconstruct::has_lost_blocks;
pub use reconstruct::setting::{Reconstruct, set_reconstruct};
pub use results::{Compacted, CorruptRange, IMPORT_AGAIN, Moved, Scrubbed};
pub use select::{Target, targets};
pub use settings::{
    CACHE, CacheLimit, Consent, ENCODER, LIST, LOSSY, PACK, PLAIN, POLICY, Setting, UNIT, WRITES, encoder,
    is_moved_by_block, is_moved_by_policy, note_why, set_setting, set_threshold, writes,
};
pub use summary::Summary;
pub use tails::cool_behind_tail;
pub use variants::variant;
pub use work::{Counted, Engine, Forms, Running};
