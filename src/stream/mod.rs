//! Everything that is read is a stream: a concatenation of segments.
//!
//! Planning maps a range of bytes to parts of segments by arithmetic alone. Assembling reads these parts
//! directly into the caller's buffer.

mod assemble;
mod batch;
mod cast;
mod computed_bytes;
mod dequantize;
mod digest;
mod embedding_index;
mod plan;

pub use assemble::{Segment, Stream};
pub use batch::AssembledBatch;
pub use cast::{cast, is_castable};
pub use computed_bytes::{Cast, Computed, Zeros};
pub use dequantize::{Dequantized, Parts};
pub use digest::{Digester, sums};
pub use embedding_index::{
    HASH, batch_beside, batch_hash, batch_index, batch_stream, index_beside, may_show_other_hash, put_hash,
    shown_hash,
};
pub use plan::{Piece, Plan};
