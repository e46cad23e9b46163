//! The vocabulary of all layers: identities, names, element types, shapes, tiers, error kinds. Imports
//! nothing from the crate.

mod dtype;
mod error;
mod id;
mod name;
mod shape;
mod tier;

pub use dtype::Dtype;
pub use error::{Error, ErrorKind, Result, beginning};
pub use id::{EntryId, ObjectId, SeedId, StoreId, TensorId};
pub use name::{
    CONTAINER_NAMES_MAX, EscapedPath, TENSOR_NAME_BYTES_MAX, TENSOR_NAME_PARTS_MAX, TensorNames, check_label,
    check_tensor_name, escape_component, is_reserved, quoted_name,
};
pub use shape::{DIMENSIONS_MAX, Shape};
pub use tier::{Encoder, Encoding, GROUP_LEN, Tier};
