//! File formats of imports and forms: tensor containers, embedding batches.

/// The end of an error for a file that is shorter than its header says.
const CUT_OFF: &str = "it is cut off; download or copy it again";

pub mod adapter_config;
pub mod cgeb;
pub mod cgei;
pub mod gguf;
pub mod hub;
pub mod npy;
pub mod npz;
pub mod onnx;
pub mod quantization_config;
pub mod safetensors;
pub mod shard_index;
pub mod tensor_parallel;
pub mod torch;
mod view;
pub mod zip;

pub use view::View;

use crate::model::{Dtype, Error, ErrorKind, Shape};

/// The error of a file that is shorter than its header says.
fn cut_off(text: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Unreadable, format!("{text}: {CUT_OFF}"))
}

/// A tensor that is a range of its container's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorRange {
    /// Any text, unescaped.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: Shape,
    /// Its first byte, counted from the file's start.
    pub begin: u64,
    /// The byte after its last.
    pub end: u64,
}

/// Fills a buffer with the bytes of a file from an offset. For formats whose headers lie in several places.
pub type ReadAt<'a> = dyn FnMut(&mut [u8], u64) -> crate::model::Result<()> + 'a;
