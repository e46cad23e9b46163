//! Files that are taken apart: headers of tensors, embedding batches.

pub mod cgeb;
pub mod cgei;
pub mod gguf;
pub mod npy;
pub mod safetensors;
