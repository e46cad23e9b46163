//! Everything that is read is a stream: a concatenation of segments. A segment is an object, literal bytes, or bytes
//! that are computed when they are read.
//!
//! Planning (`plan.rs`) maps a range of bytes to parts of segments by arithmetic alone. Assembling (`assemble.rs`)
//! reads these parts directly into the caller's buffer. `cast.rs` casts floats, `digest.rs` takes SHA-256 and BLAKE3.
//!
//! `batch.rs` assembles embedding batches from their parts. To change how: the stored layout of the records is in
//! `format/files/cgeb/runs.rs` and `format/log/catalog/records.rs`, the hash and the index of a batch in
//! `embedding_index.rs`.

mod assemble;
mod batch;
mod byte_source;
mod cast;
mod computed_bytes;
mod dequantize;
mod digest;
mod embedding_index;
mod ggml_tensor;
mod low_rank;
mod plan;
mod strides;
mod tiles;

pub use assemble::{Segment, Stream};
pub use batch::AssembledBatch;
pub use byte_source::Computed;
pub use cast::{cast, is_castable};
pub use computed_bytes::{Cast, Zeros};
pub use dequantize::{Dequantized, Parts};
pub use digest::{Digester, sums};
pub use embedding_index::{
    HASH, batch_beside, batch_hash, batch_index, batch_stream, index_beside, may_show_other_hash, put_hash,
    shown_hash,
};
pub use ggml_tensor::{Incremented, Interleaved, Quantized};
pub use low_rank::{Factor, Factors, LowRank};
pub use plan::{Piece, Plan};
pub use strides::Strided;
pub use tiles::{OwnTiles, Tiles};
