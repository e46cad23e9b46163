//! `model.gguf` of a directory that holds a model of the hub: GGUF that is made when it is read.
//!
//! 1. `directory.rs` finds the files of a model. One of them, the anchor, is the node whose inode number, owner and pins the
//!    shown file has. It has a name in no other model's directory.
//! 2. `headers.rs` reads the small files and lays the GGUF file out (`format/files/hub/`), few at a time (`memory.rs`). It
//!    remembers some layouts (`recent.rs`), and makes the recipe.
//! 3. `tensor.rs` is the part that shows a tensor.

mod directory;
mod headers;
mod memory;
mod recent;
mod tensor;

pub use directory::{anchors_of, find, name};
pub(super) use headers::recipe;
pub use headers::{inputs, is_shown, size, why_none, why_of_config};
pub(super) use tensor::ModelTensor;
