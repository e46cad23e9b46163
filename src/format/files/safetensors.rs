//! The header of a safetensors file.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 8 | u64 length of the JSON |
//! | 8 | .. | JSON, padded with spaces: an object of `name: {"dtype", "shape", "data_offsets": [begin, end]}`, offsets counted from the end of the JSON; `__metadata__`, if present, is an object of texts |
//! | .. | .. | the tensors' bytes, without gap or overlap, to the end of the file |
//!
//! Source: <https://huggingface.co/docs/safetensors>. This parser refuses every file that the
//! `safetensors` crate refuses. It also refuses duplicate names, which that crate accepts, and tensors
//! that this program does not support (more than 8 dimensions, unknown element types).
//! `safetensors/json.rs` reads the JSON.

use std::cmp::Ordering;

use crate::format::cursor::{Reader, Writer};
use crate::format::files::CUT_OFF;
use crate::format::files::TensorRange;
use crate::model::{CONTAINER_NAMES_MAX, Dtype, Error, Result, Shape, quoted_name};

mod json;
mod scheme;

pub use scheme::scheme;

/// Longest JSON of a header in bytes.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Largest number of tensors in a header.
pub const TENSORS_MAX: usize = CONTAINER_NAMES_MAX;

/// Bytes before the JSON.
const LENGTH_BYTES: u64 = 8;

/// The key of the file's metadata among the names of tensors.
const METADATA: &str = "__metadata__";

/// A parsed header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The tensors in the order of their bytes in the file. They cover it from
    /// `data_start` to its end.
    pub tensors: Vec<TensorRange>,
    /// Start of the tensors, in bytes from the file's start.
    pub data_start: u64,
    /// The file's own metadata, in the order of the header.
    pub metadata: Vec<(String, String)>,
}

/// The length in bytes of the JSON of a file of `file_len` bytes that begins with `first`. Refuses
/// lengths past [`HEADER_BYTES_MAX`] or the file's end, so the caller can allocate the result.
///
/// # Errors
/// `Invalid`.
pub fn header_len(first: [u8; 8], file_len: u64) -> Result<u64> {
    let length = Reader::new(&first).u64()?;
    if length > HEADER_BYTES_MAX {
        return Err(Error::invalid(format!(
            "safetensors header of {length} bytes; at most {HEADER_BYTES_MAX} are read"
        )));
    }
    if length.saturating_add(LENGTH_BYTES) > file_len {
        let text = format!("safetensors header of {length} bytes in a file of {file_len}: {CUT_OFF}");
        return Err(Error::invalid(text));
    }
    Ok(length)
}

/// Parses the header `json` of a file of `file_len` bytes. Needs memory in proportion to the length of
/// the header, whatever its contents.
///
/// # Errors
/// `Unsupported` for unknown element types, for more than 8 dimensions, for more than [`TENSORS_MAX`] tensors, and for
/// names that a tensor cannot have; `Invalid` for all other errors.
pub fn parse(json: &[u8], file_len: u64) -> Result<Header> {
    let text =
        std::str::from_utf8(json).map_err(|error| Error::invalid(format!("safetensors header: {error}")))?;
    let data_start = u64::try_from(json.len())
        .ok()
        .and_then(|length| length.checked_add(LENGTH_BYTES))
        .ok_or_else(|| Error::invalid("safetensors header too long"))?;
    let json::Fields { mut tensors, metadata } = json::parse(text, |tensor| entry(tensor, data_start))?;
    check_unique(tensors.iter().map(|tensor| tensor.name.as_str()), "tensor")?;
    tensors.sort_by_key(|tensor| (tensor.begin, tensor.end));
    check_cover(&tensors, data_start, file_len)?;
    Ok(Header { tensors, data_start, metadata })
}

fn entry(tensor: json::Tensor, data_start: u64) -> Result<TensorRange> {
    let json::Tensor { name, dtype, dimensions, offsets: (begin, end) } = tensor;
    let place = |error: Error| error.at(format_args!("tensor {:?}", quoted_name(&name)));
    let dtype = Dtype::from_safetensors_name(&dtype)
        .ok_or_else(|| place(Error::unsupported(format!("element type {:?}", quoted_name(&dtype)))))?;
    let dimensions = dimensions.sizes().ok_or_else(|| place(Error::unsupported("more than 8 dimensions")))?;
    let shape =
        Shape::new(dimensions).ok_or_else(|| place(Error::invalid("more elements than can be counted")))?;
    let size = dtype.bytes_of(shape.elements());
    if end.checked_sub(begin) != size || size.is_none() {
        return Err(place(Error::invalid(format!(
            "data_offsets [{begin}, {end}] for shape [{shape}] of {dtype}"
        ))));
    }
    let from_start = |offset: u64| {
        offset.checked_add(data_start).ok_or_else(|| place(Error::invalid(format!("offset {offset}"))))
    };
    Ok(TensorRange { dtype, begin: from_start(begin)?, end: from_start(end)?, shape, name })
}

fn check_unique<'a>(names: impl Iterator<Item = &'a str>, what: &str) -> Result<()> {
    match json::duplicate(names) {
        Some(name) => Err(Error::invalid(format!("{what} {:?} appears twice", quoted_name(name)))),
        None => Ok(()),
    }
}

/// Checks that the sorted tensors fill the file without gap or overlap.
fn check_cover(tensors: &[TensorRange], data_start: u64, file_len: u64) -> Result<()> {
    let mut expected = data_start;
    for tensor in tensors {
        if tensor.begin != expected {
            let wrong = if tensor.begin < expected {
                "overlaps the tensor before it"
            } else {
                "leaves a gap after the tensor before it"
            };
            return Err(Error::invalid(format!(
                "tensor {:?}: begins at byte {} of the file instead of {expected}: {wrong}",
                quoted_name(&tensor.name),
                tensor.begin
            )));
        }
        expected = tensor.end;
    }
    let text = format!("the tensors end at byte {expected} of a file of {file_len} bytes");
    match expected.cmp(&file_len) {
        Ordering::Less => Err(Error::invalid(text)),
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(Error::invalid(format!("{text}: {CUT_OFF}"))),
    }
}

/// The beginning of a file that holds `tensors` in this order: the length, and the JSON
/// padded with spaces so that the first tensor begins at a multiple of `alignment` bytes.
///
/// # Errors
/// `Unsupported` for an element type that safetensors lacks; `Invalid` for an alignment
/// of 0, an invalid or duplicate name, and a header or file that is too long.
pub fn write_header<'a>(
    tensors: impl IntoIterator<Item = (&'a str, Dtype, &'a Shape)>,
    metadata: &[(String, String)],
    alignment: u64,
) -> Result<Vec<u8>> {
    let mut json = String::from("{");
    if !metadata.is_empty() {
        let keys = metadata.iter().map(|(key, _)| key.as_str());
        check_unique(keys, "metadata")?;
        let texts: Vec<String> = metadata
            .iter()
            .map(|(key, value)| Ok(format!("{}:{}", quoted(key)?, quoted(value)?)))
            .collect::<Result<_>>()?;
        json.push_str(&format!("{}:{{{}}}", quoted(METADATA)?, texts.join(",")));
    }
    let mut names = Vec::new();
    let mut begin = 0_u64;
    for (name, dtype, shape) in tensors {
        let place = |error: Error| error.at(format_args!("tensor {name:?}"));
        if name == METADATA {
            return Err(place(Error::invalid("is not a valid tensor name")));
        }
        let type_name = dtype
            .safetensors_name()
            .ok_or_else(|| place(Error::unsupported(format!("{dtype} in a safetensors file"))))?;
        let end = dtype
            .bytes_of(shape.elements())
            .and_then(|size| begin.checked_add(size))
            .ok_or_else(|| place(Error::invalid("more bytes than can be counted")))?;
        let sizes: Vec<String> = shape.dimensions().iter().map(u64::to_string).collect();
        let comma = if json.len() > 1 { "," } else { "" };
        json.push_str(&format!(
            r#"{comma}{}:{{"dtype":"{type_name}","shape":[{}],"data_offsets":[{begin},{end}]}}"#,
            quoted(name)?,
            sizes.join(",")
        ));
        names.push(name);
        begin = end;
    }
    check_unique(names.into_iter(), "tensor")?;
    json.push('}');
    padded(json, alignment)
}

/// `text` as a JSON string.
fn quoted(text: &str) -> Result<String> {
    serde_json::to_string(text).map_err(|error| Error::invalid(format!("{text:?}: {error}")))
}

/// The length of `json` followed by `json`, padded to a multiple of `alignment` bytes.
fn padded(json: String, alignment: u64) -> Result<Vec<u8>> {
    let too_long = || {
        Error::invalid(format!(
            "safetensors header of {} bytes, aligned to {alignment}; at most {HEADER_BYTES_MAX} are read",
            json.len()
        ))
    };
    let length = u64::try_from(json.len())
        .ok()
        .and_then(|length| length.checked_add(LENGTH_BYTES))
        .and_then(|length| length.checked_next_multiple_of(alignment))
        .and_then(|length| length.checked_sub(LENGTH_BYTES))
        .filter(|length| *length <= HEADER_BYTES_MAX)
        .ok_or_else(too_long)?;
    let mut out = Writer::new();
    out.u64(length).bytes(json.as_bytes());
    let mut bytes = out.into_bytes();
    let whole = usize::try_from(length + LENGTH_BYTES).map_err(|_| too_long())?;
    bytes.resize(whole, b' ');
    Ok(bytes)
}
