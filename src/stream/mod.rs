//! Everything that is read is a stream: segments, one after the other.
//!
//! Planning says which parts of which segments a range of bytes is made of, and looks
//! at nothing else; assembling fetches them, straight into the caller's buffer.

mod assemble;
mod batch;
mod cast;
mod digest;
mod index;
mod made;
mod plan;

pub use assemble::{Segment, Stream};
pub use batch::Stitched;
pub use cast::{cast, is_castable};
pub use digest::{Digester, sums};
pub use index::{HASH, batch_hash, batch_index, batch_stream, put_hash, shown_hash};
pub use made::{Cast, Made, Zeros};
pub use plan::{Piece, Plan};
