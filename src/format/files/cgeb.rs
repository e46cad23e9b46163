//! `.cgeb` files: records of embeddings with the data of their producer. [`Header`] has the table of a
//! record. The index of a file is in [`cgei`](crate::format::files::cgei); [`CgebError`] has the errors of
//! both.

mod aux;
mod batch;
mod error;
mod header;
mod record;
mod runs;

pub use batch::BatchWriter;
pub use error::CgebError;
pub(super) use header::zero;
pub use header::{AuxEncoding, ContentHash, HEADER_BYTES, Header, Layout, RECORD_ALIGNMENT, leading_hash};
pub use record::{Floats, FloatsIter, NewRecord, OwnedRecord, Record};
pub use runs::{Part, PlacedRun, RUNS_MAX, Run, Runs, Sizes};
