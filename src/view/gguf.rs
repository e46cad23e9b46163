//! Shows GGUF files with their floats cast to another type.

use std::collections::HashMap;
use std::sync::Arc;

use crate::format::files::gguf;
use crate::model::{Dtype, Error, Result};
use crate::store::Collection;
use crate::store::{OpenObject, Verify};
use crate::stream::{Segment, Stream, is_castable};
use crate::view::plan::Piece;
use crate::view::recipe::{Part, Shown, Source};

/// Bytes to read first for the header. The read grows by a factor of four while the header continues.
const PREFIX_BYTES: u64 = 64 << 10;

/// The parts of a file with its floats cast and a new header. The rest is unchanged except for the gaps between tensors.
/// The tensors are in the order of the header, which this function reads.
pub(super) fn cast(collection: &Arc<Collection>, pieces: &[Piece], to: Dtype) -> Result<Vec<Part>> {
    let (prefix, header) = header(collection, pieces)?;
    let written = gguf::with_types(&prefix, &header, |dtype| if is_castable(dtype) { to } else { dtype })?;
    // The start of each object. Empty objects contribute nothing.
    let mut at = 0;
    let mut starts = HashMap::with_capacity(pieces.len());
    for object in pieces.iter().map(|piece| &piece.object).filter(|object| object.bytes() > 0) {
        starts.insert(at, object);
        at += object.bytes();
    }
    let head_padding = written.data_start - written.bytes.len() as u64;
    let mut parts = vec![Part::Literal(written.bytes), Part::Zeros(head_padding)];
    for (entry, place) in header.tensors.iter().zip(&written.tensors) {
        let dtype = entry.dtype;
        let shown = if is_castable(dtype) { Shown::Cast(to) } else { Shown::Plain };
        if entry.bytes > 0 {
            let object = starts.get(&(header.data_start + entry.offset));
            let object = object.filter(|object| object.bytes() == entry.bytes).ok_or_else(|| {
                Error::corrupt(format!(
                    "tensor {:?} of a gguf file is no object; run tierfs fsck",
                    entry.name
                ))
            })?;
            let objects = vec![Arc::clone(object)];
            parts.push(Part::Source(Source { objects, dtype, shown, bytes: entry.bytes }));
        }
        parts.push(Part::Zeros(place.padding));
    }
    Ok(parts)
}

/// The first bytes of a file, and the header that they contain.
fn header(collection: &Arc<Collection>, pieces: &[Piece]) -> Result<(Vec<u8>, gguf::Header)> {
    let bytes = pieces.iter().map(|piece| piece.object.bytes()).sum();
    // Only the objects before the tensors: the tensors may be absent.
    let before = pieces.iter().take_while(|piece| piece.tensor.is_none());
    let open =
        |piece: &Piece| OpenObject::open(collection, &piece.object, Verify::First).map(Segment::Object);
    let stream = Stream::new(before.map(open).collect::<Result<_>>()?)?;
    let mut wanted = PREFIX_BYTES;
    loop {
        let len = wanted.min(stream.bytes()).min(gguf::HEADER_BYTES_MAX);
        let mut prefix = vec![0; len as usize];
        stream.read_exact(0, &mut prefix)?;
        match gguf::parse(&prefix, bytes)? {
            Some(header) => return Ok((prefix, header)),
            None if len < wanted => {
                return Err(Error::corrupt("a gguf file without its header; run tierfs fsck"));
            }
            None => wanted *= 4,
        }
    }
}
