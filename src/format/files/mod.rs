//! File formats of imports and forms: tensor containers, embedding batches.

pub mod cgeb;
pub mod cgei;
pub mod gguf;
pub mod npy;
pub mod safetensors;
