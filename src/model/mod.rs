//! The vocabulary of every layer: identities, names, element types, shapes, tiers,
//! error kinds. Imports nothing of the crate.

mod dtype;
mod error;
mod id;
mod name;
mod shape;
mod tier;

pub use dtype::Dtype;
pub use error::{Error, ErrorKind, Result};
pub use id::{EntryId, ObjectId, SeedId, StoreId, TensorId};
pub use name::{EscapedPath, check_label, escape_component, escape_tensor_path, is_reserved};
pub use shape::{DIMENSIONS_MAX, Shape};
pub use tier::{Encoder, Encoding, GROUP_LEN, Tier};
