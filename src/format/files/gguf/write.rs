//! The header of a GGUF file whose tensors have other types.

use crate::format::cursor::Writer;
use crate::format::files::gguf::{GgmlType, Header};
use crate::model::{Dtype, Error, Result};

/// A header, and where it says that its tensors lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Retyped {
    /// All of the header. Zeros go on to `data_start`.
    pub bytes: Vec<u8>,
    /// Where the data begins, in bytes from the file's start.
    pub data_start: u64,
    /// The tensors in the order of the header. They lie one after the other, with zeros up to the next multiple of the
    /// alignment after each, after the last too, as `ggml` wants it.
    pub tensors: Vec<Place>,
}

/// Where a tensor lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its bytes.
    pub bytes: u64,
    /// The zeros after them.
    pub padding: u64,
}

/// The header of a file with the tensors of another one, of which those that `type_of` says have another type. Its
/// metadata is that of the other file, byte for byte. `prefix` is what `header` was read of.
///
/// # Errors
/// `Invalid` for more bytes than can be counted, for a prefix that is not the header's, and for a type whose blocks
/// are no rows of a tensor.
pub fn with_types(
    prefix: &[u8],
    header: &Header,
    type_of: impl Fn(&'static GgmlType) -> &'static GgmlType,
) -> Result<Retyped> {
    let too_long = || Error::invalid("a gguf file of more bytes than can be counted");
    let same = usize::try_from(header.metadata.end).ok().and_then(|end| prefix.get(..end));
    let same = same.ok_or_else(|| Error::invalid("a gguf file without its metadata"))?;
    let mut out = Writer::new();
    out.bytes(same);
    let mut tensors = Vec::with_capacity(header.tensors.len());
    let mut at: u64 = 0;
    for entry in &header.tensors {
        let ggml_type = type_of(entry.ggml_type);
        let stored = ggml_type.stored(&entry.elements);
        let bytes = stored.and_then(|stored| ggml_type.dtype.bytes_of(stored.elements()));
        let end = bytes.and_then(|bytes| at.checked_add(bytes)?.checked_next_multiple_of(header.alignment));
        let (bytes, end) = bytes.zip(end).ok_or_else(too_long)?;
        let sizes = entry.elements.dimensions();
        out.u64(entry.name.len() as u64).bytes(entry.name.as_bytes()).u32(sizes.len() as u32);
        for size in sizes.iter().rev() {
            out.u64(*size);
        }
        out.u32(ggml_type.code).u64(at);
        tensors.push(Place { bytes, padding: end - at - bytes });
        at = end;
    }
    let data_start = (out.position() as u64).checked_next_multiple_of(header.alignment);
    Ok(Retyped { bytes: out.into_bytes(), data_start: data_start.ok_or_else(too_long)?, tensors })
}

/// The type of single elements like these; none where ggml has no such.
pub fn type_of_elements(dtype: Dtype) -> Option<&'static GgmlType> {
    super::TYPES.iter().find(|known| known.dtype == dtype && dtype != Dtype::Opaque)
}
