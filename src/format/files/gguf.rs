//! The header of a GGUF file.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 4 | magic `GGUF` |
//! | 4 | 4 | version: 2 or 3 |
//! | 8 | 8 | u64 count of tensors |
//! | 16 | 8 | u64 count of metadata |
//! | 24 | .. | metadata: a key (text), u32 type, value |
//! | .. | .. | tensors: a name (text), u32 count of dimensions, u64 each, the fastest first, u32 ggml type, u64 offset from the start of the data |
//! | .. | .. | padding to a multiple of the alignment |
//! | .. | .. | the data: each tensor at a multiple of the alignment |
//!
//! A text is a u64 length and its bytes. Types of values: 0 u8, 1 i8, 2 u16, 3 i16, 4 u32, 5 i32, 6 f32,
//! 7 bool (a byte), 8 text, 9 array (u32 type, u64 count, the values), 10 u64, 11 i64, 12 f64. The alignment is 32
//! or the u32 `general.alignment`.
//!
//! Source: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Version 1 had shorter counts, and big-endian
//! files have a byte-swapped version. Both are refused. Tensors may have any order and leave gaps, as the Python reader
//! permits.

use std::collections::HashSet;
use std::ops::Range;

use crate::format::budget::Budget;
use crate::format::cursor::Reader;
use crate::format::files::cut_off;
use crate::model::{DIMENSIONS_MAX, Dtype, Error, Result, Shape, check_tensor_name, quoted_name};

mod types;
mod write;

pub use types::{bytes_of, code_of_type, type_of_code};
pub use write::{Place, Retyped, with_types};

/// Longest header in bytes, up to the data. Tokenizers take tens of megabytes of it.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Largest number of tensors in a file. An import needs a few kilobytes for each; models have a few thousand.
pub const TENSORS_MAX: u64 = 1 << 14;

/// The default alignment in bytes.
pub const ALIGNMENT: u64 = 32;

/// The key of the alignment.
pub const ALIGNMENT_KEY: &[u8] = b"general.alignment";

/// The key of the type that most tensors have.
const FILE_TYPE_KEY: &[u8] = b"general.file_type";

const MAGIC: [u8; 4] = *b"GGUF";

/// Largest nesting depth of arrays. `llama.cpp` accepts no nesting.
const DEPTH_MAX: u32 = 4;

/// The bytes of a tensor's entry without its name and dimensions.
const ENTRY_BYTES_MIN: u64 = 24;

/// The bytes of an empty key, a type, and a value of one byte.
const METADATA_BYTES_MIN: u64 = 13;

/// A parsed header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// Entries of the metadata.
    pub metadata_count: u64,
    /// The range of the metadata, in bytes from the file's start: all keys, types and values. The entries of the
    /// tensors follow.
    pub metadata: Range<u64>,
    /// Where `general.file_type` stands.
    pub file_type: FileType,
    /// Alignment of tensors in bytes, counted from `data_start`. A power of two.
    pub alignment: u64,
    /// Start of the data, in bytes from the file's start. Without tensors it may lie past the file's end.
    pub data_start: u64,
    /// The tensors in the order of the header.
    pub tensors: Vec<Entry>,
}

/// The place of `general.file_type` in the metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileType {
    /// The metadata has no such key.
    Missing,
    /// Where its value begins, a u32, in bytes from the file's start.
    At(u64),
    /// Its value is not a u32.
    Odd,
}

/// One tensor of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Any text.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions in elements, outermost first, which is the reverse of the file's order.
    pub shape: Shape,
    /// Its first byte, counted from [`Header::data_start`].
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Parses the header at the start of `prefix`, the first bytes of a file of `file_len` bytes. `None` if the header
/// continues past `prefix`; the caller then needs a longer prefix, up to [`HEADER_BYTES_MAX`]. Needs memory in
/// proportion to the tensors in `prefix`, whatever count the header claims. A step reads at least one byte, and a name is
/// copied once, so the budget suffices.
///
/// # Errors
/// `Unsupported` for other versions and byte orders, for unknown ggml types, whose lengths cannot be checked, for more
/// than 8 dimensions, for more than [`TENSORS_MAX`] tensors, and for names that a tensor cannot have; `Invalid` for all
/// other errors.
pub fn parse(prefix: &[u8], file_len: u64, budget: &mut Budget) -> Result<Option<Header>> {
    let bytes_max = file_len.min(HEADER_BYTES_MAX);
    budget.add_read(prefix.len() as u64);
    let mut input = Input { rest: Reader::new(prefix), bytes_max, is_short: false, budget };
    match header(&mut input, file_len) {
        Err(_) if input.is_short => Ok(None),
        read => read.map(Some).map_err(|error| error.at("gguf header")),
    }
}

/// The first bytes of a file.
struct Input<'a> {
    rest: Reader<'a>,
    /// Largest possible end of a header.
    bytes_max: u64,
    /// Whether a read failed only because the prefix is too short.
    is_short: bool,
    budget: &'a mut Budget,
}

impl<'a> Input<'a> {
    fn bytes(&mut self, count: u64) -> Result<&'a [u8]> {
        self.budget.take(1)?;
        let at = self.position();
        if at.checked_add(count).is_none_or(|end| end > self.bytes_max) {
            let place = format!("{count} bytes from byte {at} on");
            return Err(if self.bytes_max < HEADER_BYTES_MAX {
                cut_off(format!("{place} are past the file's end"))
            } else {
                Error::invalid(format!("{place} are past byte {HEADER_BYTES_MAX}, where headers end"))
            });
        }
        let read = usize::try_from(count).ok().and_then(|count| self.rest.bytes(count).ok());
        self.is_short = read.is_none();
        read.ok_or_else(|| Error::invalid(format!("the file ends before the {count} bytes at byte {at}")))
    }

    fn u32(&mut self) -> Result<u32> {
        Reader::new(self.bytes(4)?).u32()
    }

    fn u64(&mut self) -> Result<u64> {
        Reader::new(self.bytes(8)?).u64()
    }

    fn text(&mut self) -> Result<&'a [u8]> {
        let length = self.u64()?;
        self.bytes(length)
    }

    fn position(&self) -> u64 {
        u64::try_from(self.rest.position()).unwrap_or(u64::MAX)
    }
}

fn header(input: &mut Input<'_>, file_len: u64) -> Result<Header> {
    if input.bytes(4)? != MAGIC {
        return Err(Error::invalid("not a gguf file: the magic is missing"));
    }
    let version = input.u32()?;
    check_version(version)?;
    let (count, metadata_count) = (input.u64()?, input.u64()?);
    if count > TENSORS_MAX {
        return Err(Error::unsupported(format!("{count} tensors; at most {TENSORS_MAX} are read")));
    }
    // Refuse counts that cannot fit the file before reading any entry.
    let least = count
        .checked_mul(ENTRY_BYTES_MIN)
        .zip(metadata_count.checked_mul(METADATA_BYTES_MIN))
        .and_then(|(tensors, metadata)| tensors.checked_add(metadata)?.checked_add(input.position()));
    if least.is_none_or(|least| least > file_len) {
        return Err(Error::invalid(format!(
            "{count} tensors and {metadata_count} entries of metadata in a file of {file_len} bytes"
        )));
    }
    let begin = input.position();
    let Known { alignment, file_type } = metadata(input, metadata_count)?;
    let metadata = begin..input.position();
    let mut tensors = Vec::new();
    for number in 0..count {
        tensors.push(entry(input).map_err(|error| error.at(format_args!("tensor {number}")))?);
    }
    let too_long = || Error::invalid(format!("an alignment of {alignment} bytes"));
    let data_start = input.position().checked_next_multiple_of(alignment).ok_or_else(too_long)?;
    let header = Header { version, metadata_count, metadata, file_type, alignment, data_start, tensors };
    check_tensors(&header, file_len)?;
    Ok(header)
}

fn check_version(version: u32) -> Result<()> {
    match version {
        2 | 3 => Ok(()),
        // The low half of a swapped version is zero, which no real version has.
        version if version & 0xffff == 0 && version != 0 => {
            Err(Error::unsupported("big-endian; convert it to little-endian first"))
        }
        version => Err(Error::unsupported(format!("version {version}; 2 and 3 are read"))),
    }
}

/// The known values of the metadata.
struct Known {
    alignment: u64,
    file_type: FileType,
}

/// Skips the metadata. Returns the alignment that it specifies, and where the type of the file stands.
fn metadata(input: &mut Input<'_>, count: u64) -> Result<Known> {
    let (mut alignment, mut file_type) = (None, FileType::Missing);
    for _ in 0..count {
        let key = input.text()?;
        let kind = input.u32()?;
        if key == FILE_TYPE_KEY {
            file_type = if kind == 4 { FileType::At(input.position()) } else { FileType::Odd };
        }
        if key != ALIGNMENT_KEY {
            value(input, kind, 0).map_err(|error| {
                error.at(format_args!("metadata {:?}", String::from_utf8_lossy(key.get(..64).unwrap_or(key))))
            })?;
            continue;
        }
        if kind != 4 {
            return Err(Error::invalid(format!("general.alignment of type {kind} instead of 4, u32")));
        }
        let said = input.u32()?;
        if !said.is_power_of_two() || alignment.is_some() {
            return Err(Error::invalid(format!(
                "general.alignment {said}: not a power of two, or given twice"
            )));
        }
        alignment = Some(u64::from(said));
    }
    Ok(Known { alignment: alignment.unwrap_or(ALIGNMENT), file_type })
}

/// The bytes of a value of this type, if the type has a fixed size.
fn fixed_bytes(kind: u32) -> Option<u64> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}

/// Skips a value. The work is bounded by its bytes, because every value has at least one.
fn value(input: &mut Input<'_>, kind: u32, depth: u32) -> Result<()> {
    match (fixed_bytes(kind), kind) {
        (Some(bytes), _) => input.bytes(bytes).map(|_| ()),
        (None, 8) => input.text().map(|_| ()),
        (None, 9) if depth < DEPTH_MAX => {
            let kind = input.u32()?;
            let count = input.u64()?;
            match fixed_bytes(kind) {
                Some(bytes) => input.bytes(count.saturating_mul(bytes)).map(|_| ()),
                None => (0..count).try_for_each(|_| value(input, kind, depth + 1)),
            }
        }
        (None, 9) => Err(Error::unsupported(format!("arrays more than {DEPTH_MAX} deep"))),
        (None, kind) => Err(Error::invalid(format!("a value of type {kind}"))),
    }
}

fn entry(input: &mut Input<'_>) -> Result<Entry> {
    let name = std::str::from_utf8(input.text()?);
    let name = name.map_err(|error| Error::invalid(format!("its name: {error}")))?;
    check_tensor_name(name)?;
    input.budget.take(name.len() as u64)?;
    let name = name.to_owned();
    let place = |error: Error| error.at(format_args!("{:?}", quoted_name(&name)));
    let count = input.u32()?;
    let mut sizes = [0; DIMENSIONS_MAX];
    let sizes = usize::try_from(count)
        .ok()
        .and_then(|count| sizes.get_mut(..count))
        .ok_or_else(|| place(Error::unsupported(format!("{count} dimensions; at most {DIMENSIONS_MAX}"))))?;
    // The file lists the fastest dimension first.
    for size in sizes.iter_mut().rev() {
        *size = input.u64()?;
    }
    let code = input.u32()?;
    let offset = input.u64()?;
    let dtype =
        type_of_code(code).ok_or_else(|| place(Error::unsupported(format!("unknown ggml type {code}"))))?;
    let wrong = || {
        let sizes = sizes.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
        Error::invalid(format!("shape {sizes} of {dtype}: too large, or not a whole number of blocks"))
    };
    let shape = Shape::new(sizes).ok_or_else(|| place(wrong()))?;
    let bytes = bytes_of(dtype, &shape).ok_or_else(|| place(wrong()))?;
    Ok(Entry { name, dtype, shape, offset, bytes })
}

/// Checks that names are unique, and that tensors are aligned, lie within the file and do not overlap.
fn check_tensors(header: &Header, file_len: u64) -> Result<()> {
    let mut names = HashSet::with_capacity(header.tensors.len());
    if let Some(twice) = header.tensors.iter().find(|tensor| !names.insert(tensor.name.as_str())) {
        return Err(Error::invalid(format!("tensor {:?} appears twice", quoted_name(&twice.name))));
    }
    let mut sorted: Vec<&Entry> = header.tensors.iter().collect();
    sorted.sort_by_key(|tensor| (tensor.offset, tensor.bytes));
    let ends = header.tensors.iter().map(|tensor| tensor.offset.saturating_add(tensor.bytes));
    let end = ends.max().map_or(0, |end| end.saturating_add(header.data_start));
    if end > file_len {
        return Err(cut_off(format!(
            "the tensors end at byte {end} of a file of {file_len} bytes, past the end"
        )));
    }
    let mut end = 0;
    for tensor in sorted {
        let Entry { offset, bytes, .. } = tensor;
        let name = quoted_name(&tensor.name);
        if !offset.is_multiple_of(header.alignment) {
            return Err(Error::invalid(format!(
                "tensor {name:?} begins at {offset} of the data, no multiple of {}",
                header.alignment
            )));
        }
        if *offset < end {
            return Err(Error::invalid(format!(
                "tensor {name:?} begins at {offset} of the data, over the tensor before it, which ends at {end}"
            )));
        }
        end = offset.saturating_add(*bytes);
    }
    Ok(())
}
