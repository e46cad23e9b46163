//! The header of a safetensors file.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 8 | u64 length of the JSON |
//! | 8 | .. | JSON, padded with spaces: an object of `name: {"dtype", "shape", "data_offsets": [begin, end]}`, offsets counted from the end of the JSON; `__metadata__`, if present, is an object of texts |
//! | .. | .. | the tensors' bytes, without gap or overlap, to the end of the file |
//!
//! Source: <https://huggingface.co/docs/safetensors>. This parser refuses every file that the
//! `safetensors` crate refuses, but for element types that a newer version of it may know. As in that crate, the last of several tensors of a name counts. Tensors that this program
//! does not support (more than 8 dimensions, element types of `OTHER_TYPES`, names that are too long) are listed apart.
//! `safetensors/json.rs` reads the JSON.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashSet;

use crate::format::budget::Budget;
use crate::format::cursor::{Reader, Writer};
use crate::format::files::{TensorRange, cut_off};
use crate::model::{
    CONTAINER_NAMES_MAX, DIMENSIONS_MAX, Dtype, Error, Result, Shape, check_tensor_name, quoted_name,
};

mod codes;
mod json;
mod scheme;
mod weight_state;
mod weights;

pub use codes::{has_codes, parts_of_weights};
pub use json::DIMENSIONS_READ_MAX;
pub use scheme::scheme;
pub use weight_state::STATE_BYTES_MAX;
pub use weights::{Codes, Group, RENAMED, Role, Scales, Tensors, Weight, Zeros};

/// Longest JSON of a header in bytes.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Largest number of tensors in a header.
pub const TENSORS_MAX: usize = CONTAINER_NAMES_MAX;

/// Bytes before the JSON.
const LENGTH_BYTES: u64 = 8;

/// The key of the file's metadata among the names of tensors.
const METADATA: &str = "__metadata__";

/// Whether a tensor of the format may have this name.
pub fn is_name(name: &str) -> bool {
    name != METADATA
}

/// Element types of the format that this program has no tensors of, with their bits. Those that a newer version may
/// add have as many bytes as their offsets say.
const OTHER_TYPES: [(&str, u64); 4] =
    [("F6_E2M3", 6), ("F6_E3M2", 6), ("F8_E4M3FNUZ", 8), ("F8_E5M2FNUZ", 8)];

/// A parsed header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The tensors in the order of their bytes in the file. With the others they cover it from
    /// `data_start` to its end.
    pub tensors: Vec<TensorRange>,
    /// The tensors that this program does not support, in the same order.
    pub others: Vec<Other>,
    /// Start of the tensors, in bytes from the file's start.
    pub data_start: u64,
    /// The file's own metadata, in the order of the header.
    pub metadata: Vec<(String, String)>,
}

/// A tensor that this program does not support.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Other {
    /// Any text, unescaped.
    pub name: String,
    /// The name of its element type.
    pub type_name: Cow<'static, str>,
    /// Its dimensions, outermost first.
    pub dimensions: Vec<u64>,
    /// Its first byte, counted from the file's start.
    pub begin: u64,
    /// The byte after its last.
    pub end: u64,
    /// Why it is not supported.
    pub why: String,
}

/// A tensor of a header to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Any text, unescaped.
    pub name: &'a str,
    /// The name of its element type.
    pub type_name: &'a str,
    /// Its dimensions, outermost first.
    pub dimensions: &'a [u64],
    /// Its bytes.
    pub bytes: u64,
}

/// The length in bytes of the JSON of a file of `file_len` bytes that begins with `first`. Refuses
/// lengths past [`HEADER_BYTES_MAX`] or the file's end, so the caller can allocate the result.
///
/// # Errors
/// `Unreadable` for a file that is cut off, `Invalid` for a header that is too long.
pub fn header_len(first: [u8; 8], file_len: u64) -> Result<u64> {
    let length = Reader::new(&first).u64()?;
    if length > HEADER_BYTES_MAX {
        return Err(Error::invalid(format!(
            "safetensors header of {length} bytes; at most {HEADER_BYTES_MAX} are read"
        )));
    }
    if length.saturating_add(LENGTH_BYTES) > file_len {
        return Err(cut_off(format!("safetensors header of {length} bytes in a file of {file_len}")));
    }
    Ok(length)
}

/// Parses the header `json` of a file of `file_len` bytes. Needs memory in proportion to the length of
/// the header, whatever its contents. Each byte of it is looked at once and copied at most once, so the budget suffices.
///
/// # Errors
/// `Unsupported` for a type whose name no version of the format can have, for more than [`DIMENSIONS_READ_MAX`] dimensions
/// and for more than [`TENSORS_MAX`] tensors; `Unreadable` for a file that is cut off; `Invalid` for all other errors.
pub fn parse(json: &[u8], file_len: u64, budget: &mut Budget) -> Result<Header> {
    budget.add_read(json.len() as u64);
    let text =
        std::str::from_utf8(json).map_err(|error| Error::invalid(format!("safetensors header: {error}")))?;
    let data_start = u64::try_from(json.len())
        .ok()
        .and_then(|length| length.checked_add(LENGTH_BYTES))
        .ok_or_else(|| Error::invalid("safetensors header too long"))?;
    let json::Fields { tensors: mut entries, metadata } = json::parse(text, budget)?;
    keep_last(&mut entries);
    let mut header = Header { tensors: Vec::new(), others: Vec::new(), data_start, metadata };
    for entry in entries {
        match range(entry, data_start)? {
            Range::Tensor(tensor) => header.tensors.push(tensor),
            Range::Other(other) => header.others.push(other),
        }
    }
    header.tensors.sort_by_key(|tensor| (tensor.begin, tensor.end));
    header.others.sort_by_key(|other| (other.begin, other.end));
    check_cover(&header, file_len)?;
    Ok(header)
}

/// Of several tensors of a name, keeps the last.
fn keep_last(tensors: &mut Vec<json::Tensor>) {
    let is_last: Vec<bool> = {
        let mut names = HashSet::with_capacity(tensors.len());
        tensors.iter().rev().map(|tensor| names.insert(tensor.name.as_str())).collect()
    };
    let mut is_last = is_last.into_iter().rev();
    tensors.retain(|_| is_last.next().unwrap_or_default());
}

/// The element type of a tensor, and the name of one that this program has none of.
#[derive(Clone, Copy)]
enum ElementType {
    Known(Dtype),
    Other {
        name: &'static str,
        bits: u64,
    },
    /// One that this version does not know.
    Unknown,
}

impl ElementType {
    fn from_name(name: &str) -> Option<ElementType> {
        let other = || OTHER_TYPES.iter().find(|(other, _)| *other == name);
        match Dtype::from_safetensors_name(name) {
            Some(dtype) => Some(ElementType::Known(dtype)),
            None => other().map(|(name, bits)| ElementType::Other { name, bits: *bits }),
        }
    }

    /// Bytes of `elements` elements. `None` if they are not whole or exceed 2^64.
    fn bytes_of(self, elements: u64) -> Option<u64> {
        match self {
            ElementType::Known(dtype) => dtype.bytes_of(elements),
            ElementType::Other { bits, .. } => {
                elements.checked_mul(bits).filter(|bits| bits.is_multiple_of(8)).map(|bits| bits / 8)
            }
            ElementType::Unknown => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            ElementType::Known(dtype) => dtype.safetensors_name().unwrap_or_default(),
            ElementType::Other { name, .. } => name,
            ElementType::Unknown => "an unknown type",
        }
    }
}

enum Range {
    Tensor(TensorRange),
    Other(Other),
}

fn range(tensor: json::Tensor, data_start: u64) -> Result<Range> {
    let json::Tensor { name, element_type, unknown_type, dimensions, offsets: (begin, end) } = tensor;
    let place = |error: Error| error.at(format_args!("tensor {:?}", quoted_name(&name)));
    let overflow = || place(Error::invalid("more elements than can be counted"));
    let is_short = dimensions.len() <= DIMENSIONS_MAX;
    let shape = if is_short { Some(Shape::new(&dimensions).ok_or_else(overflow)?) } else { None };
    let elements = match &shape {
        Some(shape) => Some(shape.elements()),
        None => dimensions.iter().try_fold(1_u64, |all, size| all.checked_mul(*size)),
    };
    let elements = elements.ok_or_else(overflow)?;
    let size = match unknown_type {
        Some(_) => end.checked_sub(begin),
        None => element_type.bytes_of(elements),
    };
    if end.checked_sub(begin) != size || size.is_none() {
        let sizes: Vec<String> = dimensions.iter().map(u64::to_string).collect();
        return Err(place(Error::invalid(format!(
            "data_offsets [{begin}, {end}] for shape [{}] of {}",
            sizes.join("x"),
            element_type.name()
        ))));
    }
    let from_start = |offset: u64| {
        offset.checked_add(data_start).ok_or_else(|| place(Error::invalid(format!("offset {offset}"))))
    };
    let (begin, end) = (from_start(begin)?, from_start(end)?);
    let why = match (element_type, shape, check_tensor_name(&name)) {
        (ElementType::Known(dtype), Some(shape), Ok(())) => {
            return Ok(Range::Tensor(TensorRange { name, dtype, shape, begin, end }));
        }
        (ElementType::Other { name, .. }, ..) => format!("element type {name}"),
        (ElementType::Unknown, ..) => {
            format!("element type {:?}", quoted_name(unknown_type.as_deref().unwrap_or_default()))
        }
        (_, None, _) => format!("more than {DIMENSIONS_MAX} dimensions"),
        (_, _, Err(error)) => error.to_string(),
    };
    let type_name = match unknown_type {
        Some(name) => Cow::Owned(name.into_string()),
        None => Cow::Borrowed(element_type.name()),
    };
    let dimensions = dimensions.into_vec();
    Ok(Range::Other(Other { name, type_name, dimensions, begin, end, why }))
}

fn check_unique<'a>(names: impl Iterator<Item = &'a str>, what: &str) -> Result<()> {
    match json::duplicate(names) {
        Some(name) => Err(Error::invalid(format!("{what} {:?} appears twice", quoted_name(name)))),
        None => Ok(()),
    }
}

/// Checks that the tensors fill the file without gap or overlap.
fn check_cover(header: &Header, file_len: u64) -> Result<()> {
    let tensors = header.tensors.iter().map(|tensor| (tensor.begin, tensor.end, &tensor.name));
    let others = header.others.iter().map(|other| (other.begin, other.end, &other.name));
    let mut all: Vec<(u64, u64, &String)> = tensors.chain(others).collect();
    all.sort_unstable();
    let mut expected = header.data_start;
    for (begin, end, name) in all {
        if begin != expected {
            let wrong = if begin < expected {
                "overlaps the tensor before it"
            } else {
                "leaves a gap after the tensor before it"
            };
            return Err(Error::invalid(format!(
                "tensor {:?}: begins at byte {begin} of the file instead of {expected}: {wrong}",
                quoted_name(name)
            )));
        }
        expected = end;
    }
    let text = format!("the tensors end at byte {expected} of a file of {file_len} bytes");
    match expected.cmp(&file_len) {
        Ordering::Less => Err(Error::invalid(text)),
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(cut_off(text)),
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
    let entries = tensors.into_iter().map(|(name, dtype, shape)| entry(name, dtype, shape));
    write_entries(&entries.collect::<Result<Vec<_>>>()?, metadata, alignment)
}

/// A tensor of a header to write.
///
/// # Errors
/// As those of [`write_header`].
pub fn entry<'a>(name: &'a str, dtype: Dtype, shape: &'a Shape) -> Result<Entry<'a>> {
    let place = |error: Error| error.at(format_args!("tensor {name:?}"));
    let type_name = dtype
        .safetensors_name()
        .ok_or_else(|| place(Error::unsupported(format!("{dtype} in a safetensors file"))))?;
    let bytes = dtype
        .bytes_of(shape.elements())
        .ok_or_else(|| place(Error::invalid("more bytes than can be counted")))?;
    Ok(Entry { name, type_name, dimensions: shape.dimensions(), bytes })
}

/// As [`write_header`], also for tensors that this program does not support.
///
/// # Errors
/// `Invalid`, as there.
pub fn write_entries(
    entries: &[Entry<'_>],
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
    let mut begin = 0_u64;
    for Entry { name, type_name, dimensions, bytes } in entries {
        let place = |error: Error| error.at(format_args!("tensor {name:?}"));
        if !is_name(name) {
            return Err(place(Error::invalid("is not a valid tensor name")));
        }
        let end = begin
            .checked_add(*bytes)
            .ok_or_else(|| place(Error::invalid("more bytes than can be counted")))?;
        let sizes: Vec<String> = dimensions.iter().map(u64::to_string).collect();
        let comma = if json.len() > 1 { "," } else { "" };
        json.push_str(&format!(
            r#"{comma}{}:{{"dtype":{},"shape":[{}],"data_offsets":[{begin},{end}]}}"#,
            quoted(name)?,
            quoted(type_name)?,
            sizes.join(",")
        ));
        begin = end;
    }
    check_unique(entries.iter().map(|entry| entry.name), "tensor")?;
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
