//! Changes of precision: moves of tensors between tiers, and the rules that forbid them.
//!
//! Invariants:
//! 1. The last exact copy of a block is dropped only where `lossy` allows it.
//! 2. A rejected request changes nothing but `why`.
//! 3. A move takes the most precise bytes available, and never records a block as more precise than
//!    these.
//! 4. A reader sees each block as it was either before a move or after it.

mod access;
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
mod reconstruct;
mod refuse;
mod results;
mod scrub;
mod select;
mod settings;
mod state;
mod summary;
mod variants;
mod work;

pub use access::Heat;
pub use compact::compact;
pub use evict::{Evict, EvictRequest};
#[cfg(feature = "mount")]
pub use finish_import::Finish;
pub use move_preview::{MovePreview, would_move};
pub use pins::Pinned;
pub use plan_move::{MoveRequest, SourceCheck, Sources};
pub use reconstruct::setting::{Reconstruct, set_reconstruct};
pub use results::{Compacted, CorruptRange, IMPORT_AGAIN, Moved, Scrubbed};
pub use select::{Target, targets};
pub use settings::{
    CACHE, Consent, ENCODER, LIST, LOSSY, PACK, PLAIN, POLICY, Setting, WRITES, cache_bytes, encoder,
    note_why, quantizes_writes, set_setting,
};
pub use summary::Summary;
pub use variants::variant;
pub use work::{Counted, Engine, Forms, Running};
