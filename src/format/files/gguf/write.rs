//! Writes the header of a GGUF file with other tensor types.

use crate::format::cursor::Writer;
use crate::format::files::gguf::{Entry, FILE_TYPE_KEY, FileType, Header, bytes_of, code_of_type};
use crate::model::{Dtype, Error, Result};

/// Where the count of the metadata stands, in bytes from the file's start.
const METADATA_COUNT_AT: u64 = 16;
/// The type of a value that is a u32.
const U32_TYPE: u32 = 4;

/// A header with the locations of its tensors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Retyped {
    /// The header. Zeros follow up to `data_start`.
    pub bytes: Vec<u8>,
    /// Start of the data, in bytes from the file's start.
    pub data_start: u64,
    /// The tensors in the order of the header. Zeros follow each tensor up to the next multiple of the alignment, also
    /// the last one, as `ggml` requires.
    pub tensors: Vec<Place>,
}

/// The space of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The tensor's bytes.
    pub bytes: u64,
    /// The zeros after the tensor.
    pub padding: u64,
}

/// The header of a copy of a file in which each tensor has the type that `type_of` returns. Copies the metadata byte for
/// byte, but for `general.file_type`, which becomes `file_type` if there is one, and is added if the file has none.
/// `prefix` is the prefix of the file from which `header` was parsed.
///
/// # Errors
/// `Invalid` on overflow, for a prefix that does not belong to the header, and for a type whose blocks do not divide the
/// rows of a tensor; `Unsupported` for a type that ggml lacks.
pub fn with_types(
    prefix: &[u8],
    header: &Header,
    file_type: Option<u32>,
    type_of: impl Fn(&Entry) -> Dtype,
) -> Result<Retyped> {
    let too_long = || Error::invalid("a gguf file of more bytes than can be counted");
    let same = usize::try_from(header.metadata.end).ok().and_then(|end| prefix.get(..end));
    let same = same.ok_or_else(|| Error::invalid("a gguf file without its metadata"))?;
    let mut out = Writer::new();
    let split = |at: u64| same.split_at_checked(usize::try_from(at).ok()?);
    match (file_type, header.file_type) {
        (Some(value), FileType::At(at)) => {
            let (before, after) = split(at).ok_or_else(too_long)?;
            out.bytes(before).u32(value).bytes(after.get(4..).unwrap_or_default());
        }
        (Some(value), FileType::Missing) => {
            let (before, after) = split(METADATA_COUNT_AT).ok_or_else(too_long)?;
            out.bytes(before).u64(header.metadata_count + 1).bytes(after.get(8..).unwrap_or_default());
            out.u64(FILE_TYPE_KEY.len() as u64).bytes(FILE_TYPE_KEY).u32(U32_TYPE).u32(value);
        }
        (_, FileType::Odd) | (None, _) => {
            out.bytes(same);
        }
    }
    let mut tensors = Vec::with_capacity(header.tensors.len());
    let mut at: u64 = 0;
    for entry in &header.tensors {
        let dtype = type_of(entry);
        let code = code_of_type(dtype);
        let code = code.ok_or_else(|| Error::unsupported(format!("{dtype} in a gguf file")))?;
        let bytes = bytes_of(dtype, &entry.shape);
        let end = bytes.and_then(|bytes| at.checked_add(bytes)?.checked_next_multiple_of(header.alignment));
        let (bytes, end) = bytes.zip(end).ok_or_else(too_long)?;
        let sizes = entry.shape.dimensions();
        out.u64(entry.name.len() as u64).bytes(entry.name.as_bytes()).u32(sizes.len() as u32);
        for size in sizes.iter().rev() {
            out.u64(*size);
        }
        out.u32(code).u64(at);
        tensors.push(Place { bytes, padding: end - at - bytes });
        at = end;
    }
    let data_start = (out.position() as u64).checked_next_multiple_of(header.alignment);
    Ok(Retyped { bytes: out.into_bytes(), data_start: data_start.ok_or_else(too_long)?, tensors })
}
