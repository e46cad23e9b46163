//! Shows safetensors files with their floats cast to another type.

use std::collections::HashMap;
use std::sync::Arc;

use crate::format::budget::Budget;
use crate::format::files::safetensors::{Entry, Header, Other, entry, header_len, parse, write_entries};
use crate::model::{Dtype, Error, Result};
use crate::store::Collection;
use crate::store::{OpenObject, Verify};
use crate::stream::{Segment, Stream, is_castable};
use crate::vfs::form::plan::{ALIGNMENT, Piece, plain, source};
use crate::vfs::form::recipe::{Part, Shown};

/// The parts of a file with its floats cast and a new header. Tensors that this program does not support are as in the
/// file.
pub(super) fn cast(collection: &Arc<Collection>, pieces: &[Piece], to: Dtype) -> Result<Vec<Part>> {
    let header = header(collection, pieces)?;
    let (empty, others): (Vec<&Other>, Vec<&Other>) =
        header.others.iter().partition(|other| other.begin == other.end);
    let mut others: HashMap<u64, &Other> = others.into_iter().map(|other| (other.begin, other)).collect();
    let (mut entries, mut parts) = (Vec::new(), Vec::new());
    let mut at = 0;
    for piece in pieces {
        let (begin, bytes) = (at, piece.object.bytes());
        at += bytes;
        if let Some((_, tensor)) = &piece.tensor {
            let is_cast = is_castable(tensor.dtype);
            let (dtype, shown) = if is_cast { (to, Shown::Cast(to)) } else { (tensor.dtype, Shown::Plain) };
            entries.push(entry(&tensor.name, dtype, &tensor.shape)?);
            parts.push(Part::Source(source(vec![piece.object.clone()], tensor, shown)?));
        } else if let Some(other) = others.remove(&begin).filter(|other| other.end == at) {
            entries.push(unchanged(other));
            parts.push(plain(piece.object.clone()));
        }
    }
    if let Some(other) = others.values().next() {
        let text = format!(
            "tensor {:?} of a safetensors file has no object in the store; run tierfs fsck",
            other.name
        );
        return Err(Error::corrupt(text));
    }
    entries.extend(empty.into_iter().map(unchanged));
    let head = write_entries(&entries, &header.metadata, ALIGNMENT)?;
    Ok([Part::Literal(head)].into_iter().chain(parts).collect())
}

fn unchanged(other: &Other) -> Entry<'_> {
    let Other { name, type_name, dimensions, begin, end, .. } = other;
    Entry { name, type_name, dimensions, bytes: end - begin }
}

/// The header of a file.
fn header(collection: &Arc<Collection>, pieces: &[Piece]) -> Result<Header> {
    let open =
        |piece: &Piece| OpenObject::open(collection, &piece.object, Verify::First).map(Segment::Object);
    let stream = Stream::new(pieces.iter().map(open).collect::<Result<_>>()?)?;
    let mut first = [0; 8];
    stream.read_exact(0, &mut first)?;
    let mut json = vec![0; header_len(first, stream.bytes())? as usize];
    stream.read_exact(8, &mut json)?;
    parse(&json, stream.bytes(), &mut Budget::default())
}
