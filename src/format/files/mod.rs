//! File formats of imports and forms: tensor containers, embedding batches.

/// The end of an error for a file that is shorter than its header says.
const CUT_OFF: &str = "it is cut off; download or copy it again";

pub mod cgeb;
pub mod cgei;
pub mod gguf;
pub mod npy;
pub mod safetensors;
