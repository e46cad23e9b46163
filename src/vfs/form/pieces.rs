//! The objects of a file with the tensors that they hold, from which a form is planned.

use std::sync::Arc;

use crate::format::log::catalog::TensorEntry;
use crate::model::{Dtype, EntryId, Error, ErrorKind, Result};
use crate::store::{Collection, Object, OpenObject, StridedElements, Verify};
use crate::stream::{Segment, Stream, is_castable};
use crate::vfs::form::recipe::{Part, Shown, Source, View, source};

/// Data start at multiples of the page size.
pub(super) const ALIGNMENT: u64 = 4096;

/// An object of a file, and the tensor that it holds, if any.
pub(super) struct Piece {
    pub object: Arc<Object>,
    pub tensor: Option<(EntryId, TensorEntry)>,
    /// For a tensor whose elements lie in objects of others, these objects and the elements in them.
    pub view: Option<(Vec<Arc<Object>>, Arc<StridedElements>)>,
    /// Whether the tensor is a part of a quantized weight, whose numbers mean nothing alone.
    pub is_part_of_weight: bool,
}

impl Piece {
    /// How a cast shows a tensor of this type, and the type that it has then.
    pub fn cast(&self, dtype: Dtype, to: Dtype) -> (Dtype, Shown) {
        if is_castable(dtype) && !self.is_part_of_weight {
            (to, Shown::Cast(to))
        } else {
            (dtype, Shown::Plain)
        }
    }
}

/// A tensor that is a file, with all its shards.
pub(super) fn tensor(pieces: &[Piece]) -> Result<(Source, TensorEntry)> {
    let entry = pieces.first().and_then(|piece| piece.tensor.clone());
    let (_, entry) = entry.ok_or_else(|| Error::new(ErrorKind::NotFound, "not a tensor"))?;
    if let Some((objects, elements)) = pieces.first().and_then(|piece| piece.view.clone()) {
        return Ok((viewed(objects, elements, &entry)?, entry));
    }
    let objects = pieces.iter().map(|piece| piece.object.clone()).collect();
    Ok((source(objects, &entry, Shown::Plain)?, entry))
}

/// A tensor whose elements lie in these objects of others.
pub(super) fn viewed(
    objects: Vec<Arc<Object>>,
    elements: Arc<StridedElements>,
    tensor: &TensorEntry,
) -> Result<Source> {
    let view = Some(View { elements, moves: Vec::new() });
    Ok(Source { view, ..source(objects, tensor, Shown::Plain)? })
}

/// The bytes of objects in a row. `None` if they are more than `most`.
pub(super) fn bytes_of(
    collection: &Arc<Collection>,
    objects: &[Arc<Object>],
    most: u64,
) -> Result<Option<Vec<u8>>> {
    let open = |object| OpenObject::open(collection, object, Verify::First).map(Segment::Object);
    let stream = Stream::new(objects.iter().map(open).collect::<Result<_>>()?)?;
    if stream.bytes() > most {
        return Ok(None);
    }
    let mut bytes = vec![0; stream.bytes() as usize];
    stream.read_exact(0, &mut bytes)?;
    Ok(Some(bytes))
}

/// The bytes of an object, unchanged.
pub(super) fn plain(object: Arc<Object>) -> Part {
    let (dtype, bytes) = (object.dtype(), object.bytes());
    Part::Source(Source { objects: vec![object], view: None, dtype, shown: Shown::Plain, bytes })
}
