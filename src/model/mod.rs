//! The vocabulary of all layers: identities, names and their escaping, mode bits, element types, shapes, tiers,
//! encodings, moves, progress, kinds of errors, the time. Imports nothing from the crate.
//!
//! `ErrorKind` has a kind only where callers must tell two errors apart; `fs/kernel/errno.rs` maps each kind to an error
//! number.

mod back;
mod clock;
mod collection_name;
mod dtype;
mod error;
mod exact_reason;
mod id;
mod keep_list;
mod loss;
mod mode;
mod move_to;
mod name;
mod owner;
mod progress;
mod refusal;
mod rows;
mod shape;
mod tags;
mod text;
mod thresholds;
mod tier;

pub use back::{Back, Behind, Tail};
pub use clock::{Clock, Instant, now_nanoseconds, now_seconds, set_host_clock};
pub use collection_name::{CollectionName, OwnedCollectionName};
pub use dtype::{Dtype, GGML_CODE};
pub use error::{Error, ErrorKind, Result, beginning, plain};
pub use exact_reason::{Kept, KeptBy};
pub use id::{EntryId, ObjectId, SeedId, StoreId, TensorId};
pub use keep_list::{KEEP, keeps};
pub use loss::{LOSSES, Loss};
pub use mode::{
    ENTER_BITS, GROUP_EXECUTES, MODE_BITS, OWNER_BITS, OWNER_WRITES, PERMISSIONS, READ_BITS, SET_GROUP_ID,
    SET_USER_ID,
};
pub use move_to::{Aim, MoveTo, Storing, packs, packs_blocks_of};
pub use name::{
    CONTAINER_NAMES_MAX, EscapedPath, NAME_BYTES_MAX, NameIn, TENSOR_NAME_BYTES_MAX, TENSOR_NAME_PARTS_MAX,
    TensorNames, check_label, check_tensor_name, escape_component, is_reserved, is_variant, quoted_name,
};
pub use owner::Owner;
pub use progress::{Progress, Silent};
pub use refusal::{About, Cause, FILES_SHOWN_MAX, Reason, Refusal, reasons};
pub use rows::{Rows, RowsOf};
pub use shape::{DIMENSIONS_MAX, Shape};
pub use tags::{TAG_BYTES_MAX, TAGS_MAX, check_tag, parse_tags};
pub use text::{hex, human, human_part, utc};
pub use thresholds::{
    DELTA_CHAIN, DELTA_CHANGED, DELTA_NORM, DOWN_BELOW, EMA_SHARE, FREE_MIN, HOLD, IDLE, THRESHOLDS,
    Threshold, Thresholds, UP_ABOVE,
};
pub use tier::{Encoder, Encoding, GROUP_LEN, Tier};
