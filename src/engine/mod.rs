//! What changes how precisely tensors are kept: moves between tiers, and what may not be
//! moved.
//!
//! Invariants:
//! 1. The last exact copy of a block goes only where `lossy` allows it.
//! 2. A request that is refused changes nothing but `why`.
//! 3. A block is moved from the most precise bytes at hand, and is never said to be more
//!    precise than these.
//! 4. A reader sees each block whole, as it was before a move or after it.

mod access;
mod automatic;
mod by_delta;
mod by_factor;
mod compact;
mod evict;
mod heal;
mod imported;
mod moves;
mod pins;
pub mod policy;
mod rebuild;
mod reconstruct;
mod scrub;
mod select;
mod settings;
mod what_if;
mod work;

pub use access::Heat;
pub use compact::{Compacted, compact};
pub use evict::Evict;
pub use imported::evict_imported;
pub use moves::{Moved, REFUSED};
pub use pins::{Forms, Pinned};
pub use reconstruct::{Reconstruct, set_reconstruct};
pub use scrub::Scrubbed;
pub use select::{Target, targets};
pub use settings::{
    ENCODER, LOSSY, POLICY, Setting, WRITES, cache_bytes, encoder, note_why, rounds_writes, set_setting,
};
pub use what_if::{WhatIf, would_move};
pub use work::{Counted, Engine, Running};
