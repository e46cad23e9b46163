//! `model.gguf` of a directory that holds a model of the hub: GGUF that is made when it is read.
//!
//! 1. `directory.rs` finds the files of a model. One of them, the anchor, is the node whose inode number, owner and pins the
//!    shown file has. It has a name in no other model's directory.
//! 2. `headers.rs` reads the small files and lays the GGUF file out (`format/files/hub/`), and remembers some layouts.
//! 3. `plan.rs` makes the parts of the recipe; `tensor.rs` is the part that shows a tensor.

mod directory;
mod headers;
mod plan;
mod tensor;

pub use directory::{anchors_of, find, is_anchor, name};
pub use headers::{inputs, is_shown, why_none, why_of_config};
pub(super) use plan::recipe;
pub(super) use tensor::ModelTensor;
