//! The parts of a recognized file.

use std::sync::Arc;

use crate::format::files::View;
use crate::format::files::cgeb::Runs;
use crate::format::log::catalog::Content;
use crate::ingest::recognize::block_size::Blocking;
use crate::model::{Dtype, Error, Result, Shape, Tier, packs, packs_blocks_of};
use crate::store::disk::File;

/// The content of a file.
#[derive(Clone, Debug)]
pub struct Recognized {
    /// The kind of its content.
    pub content: Content,
    /// Bytes of the file.
    pub bytes: u64,
    /// Its parts, which follow each other and cover the file. Those of an embedding batch are listed
    /// one after the other, although its records interleave them.
    pub parts: Vec<Part>,
    /// Where the records of an embedding batch lie.
    pub records: Option<Arc<Runs>>,
    /// A remark on parts of the file that are not tensors, or empty.
    pub note: String,
    /// The paths of files that have further tensors, relative to its directory.
    pub data_files: Vec<String>,
    /// The containers that the index of a sharded model names, as text (`format/files/shard_index.rs`).
    pub shards: Option<String>,
}

/// A file that is a tensor from its first byte to its last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WholeTensor {
    pub dtype: Dtype,
    /// One dimension with all elements if `None`.
    pub shape: Option<Shape>,
}

impl WholeTensor {
    /// The shape of a file of `bytes` bytes. Fails with `Invalid` where these are not its elements.
    pub(in crate::ingest) fn shape_of(&self, bytes: u64) -> Result<Shape> {
        let WholeTensor { dtype, shape } = self;
        let agrees = |shape: &Shape| dtype.bytes_of(shape.elements()) == Some(bytes);
        let found = shape.clone().or_else(|| Shape::new(&[dtype.elements_in(bytes)]));
        found.filter(agrees).ok_or_else(|| {
            let shape = shape
                .as_ref()
                .map_or_else(|| "whole elements".to_owned(), |shape| format!("the shape {shape}"));
            Error::invalid(format!("it has {bytes} bytes, which do not match {shape} of {dtype}"))
        })
    }
}

impl Recognized {
    /// The same bytes as one tensor.
    pub(in crate::ingest) fn into_tensor(self, name: &[u8], whole: &WholeTensor) -> Result<Recognized> {
        let name = String::from_utf8_lossy(name).into_owned();
        let shape = whole.shape_of(self.bytes)?;
        let tensor = PartTensor { own_name: name.clone(), name, dtype: whole.dtype, shape, view: None };
        let part = Part { begin: 0, end: self.bytes, tensor: Some(tensor) };
        Ok(Recognized { content: Content::Tensor, parts: vec![part], ..self })
    }
}

/// A range of a file that becomes one object.
#[derive(Clone, Debug)]
pub struct Part {
    /// Byte offset in the file.
    pub begin: u64,
    /// End offset in the file.
    pub end: u64,
    /// Its tensor; `None` for a header, a gap, or a plain file.
    pub tensor: Option<PartTensor>,
}

/// A tensor in a file.
#[derive(Clone, Debug)]
pub struct PartTensor {
    /// Its name in the file: its own, after the stem of a file that gives its name to its tensors.
    pub name: String,
    /// Its own name, unescaped; in an `.npy` or `.cgeb` file, the part after the file's stem.
    pub own_name: String,
    pub dtype: Dtype,
    pub shape: Shape,
    /// The place of its elements in the file, if its part has none of them.
    pub view: Option<Arc<View>>,
}

impl PartTensor {
    /// The tier of an exact tensor that arrives where the setting says to pack, if it is packed too.
    pub(in crate::ingest) fn packed_tier(&self, blocking: Blocking) -> Option<Tier> {
        let bytes = self.dtype.bytes_of(self.shape.elements()).filter(|_| self.view.is_none())?;
        let is_packed = packs(self.dtype) && packs_blocks_of(blocking.block_bytes(self.dtype, bytes));
        is_packed.then_some(Tier::Packed)
    }
}

/// Reads bytes of a file.
pub(in crate::ingest) fn read(source: &Arc<dyn File>, out: &mut [u8], at: u64) -> Result<()> {
    source.read_exact_at(out, at).map_err(|error| Error::io("reading it", error))
}
