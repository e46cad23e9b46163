//! The experts of a tensor that has them all: its parts along the first dimension, each a file.

use crate::format::log::catalog::TensorEntry;
use crate::model::{Error, ErrorKind, Result, Shape};
use crate::store::{Node, StridedElements};
use crate::vfs::form::recipe::{Part, Source};

/// The most experts of a tensor.
const EXPERTS_MAX: u64 = 4096;
/// The end of the name of a tensor of experts in a GGUF file.
const GGUF_SUFFIX: &str = "_exps";

/// The number of experts of a tensor: one of three or more dimensions, or of two if its name says that they are experts.
/// `None` for another tensor.
pub(super) fn count(tensor: &TensorEntry) -> Option<u32> {
    let dimensions = tensor.shape.dimensions();
    let is_of_experts =
        || tensor.name.split('.').any(|word| word == "experts" || word.ends_with(GGUF_SUFFIX));
    let is_stack = dimensions.len() > 2 || dimensions.len() == 2 && is_of_experts();
    let first = dimensions.first().filter(|first| is_stack && (1..=EXPERTS_MAX).contains(first))?;
    // No two of them share a byte.
    tensor.dtype.bytes_of(tensor.shape.elements() / first).filter(|bytes| *bytes > 0)?;
    u32::try_from(*first).ok()
}

/// The number of experts of a node, 0 for any other.
pub(super) fn of(node: &Node) -> u32 {
    node.file().and_then(|file| file.tensor.as_ref()).and_then(count).unwrap_or_default()
}

/// The expert of a node with a name: its number without leading zeros.
pub(super) fn named(node: &Node, name: &[u8]) -> Option<u32> {
    let index: u32 = std::str::from_utf8(name).ok()?.parse().ok()?;
    (index < of(node) && index.to_string().as_bytes() == name).then_some(index)
}

/// One of the experts of a tensor.
pub(super) fn one_of(tensor: &TensorEntry) -> Option<TensorEntry> {
    count(tensor)?;
    let shape = Shape::new(tensor.shape.dimensions().get(1..)?)?;
    Some(TensorEntry { shape, ..tensor.clone() })
}

/// The bytes of an expert: a range of those of its tensor.
pub(super) fn part(index: u32, source: Source, tensor: &TensorEntry) -> Result<Part> {
    let none = || Error::new(ErrorKind::NotFound, "the tensor has no such expert");
    let count = count(tensor).filter(|count| index < *count).ok_or_else(none)?;
    let bytes = source.bytes / u64::from(count);
    // The index is less than the count, so the range ends within the tensor.
    let elements = StridedElements::range(u64::from(index) * bytes, bytes);
    Ok(Part::slice(source, elements))
}
