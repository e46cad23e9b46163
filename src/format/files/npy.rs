//! The header of a NumPy `.npy` file.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 6 | magic `93 4e 55 4d 50 59` (`\x93NUMPY`) |
//! | 6 | 2 | version: 1.0, 2.0 or 3.0 |
//! | 8 | 2 or 4 | length of the text: u16 in version 1, u32 after |
//! | 10 or 12 | .. | a Python dict literal `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`, spaces, a newline; UTF-8 in version 3, else Latin-1 |
//! | .. | .. | the elements, to the end of the file |
//!
//! Source: NumPy Enhancement Proposal 1 and `numpy.lib.format`. `npy/literal.rs` parses the text.
//!
//! NumPy has no name for bfloat16. `ml_dtypes` writes it as `<V2`, and so does this module. `ml_dtypes`
//! writes several 8-bit types as `<V1` without recording which, so those are refused. `|V2` is NumPy's type of records
//! of two raw bytes: such an array is one of bytes, with a last dimension of 2.
//!
//! Bytes after the array belong to other arrays, which `numpy.save` appends; the file is not one tensor then.

use crate::format::budget::Budget;
use crate::format::cursor::{Reader, Writer};
use crate::format::files::cut_off;
use crate::model::{Dtype, Error, Result, Shape};

mod literal;

/// Longest text of a header in bytes.
pub const HEADER_BYTES_MAX: u64 = 65_536;

/// A prefix of a file with this many bytes contains the header, unless the header is too long.
pub const PREFIX_BYTES_MAX: u64 = HEADER_BYTES_MAX + 12;

const MAGIC: [u8; 6] = *b"\x93NUMPY";

/// Digits that NumPy reserves for the dimension that grows on an append
/// (`GROWTH_AXIS_MAX_DIGITS` of `numpy.lib.format`).
const GROWTH_DIGITS: usize = 21;

/// A parsed header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The type of the elements.
    pub dtype: Dtype,
    /// The dimensions, outermost first.
    pub shape: Shape,
    /// Whether the first dimension varies fastest in the data, rather than the last.
    pub fortran_order: bool,
    /// Whether elements of more than one byte are big-endian.
    pub big_endian: bool,
    /// Start of the elements, in bytes from the file's start. They extend to the end of the file.
    pub data_start: u64,
}

impl Header {
    /// Whether the data are little-endian and row-major. In Fortran order they are row-major too if at most
    /// one dimension is longer than 1.
    pub fn is_plain(&self) -> bool {
        !self.big_endian && (!self.fortran_order || is_row_major(self.shape.dimensions()))
    }
}

/// Whether elements in Fortran order are in row-major order too.
fn is_row_major(dimensions: &[u64]) -> bool {
    dimensions.iter().filter(|size| **size > 1).count() < 2 || dimensions.contains(&0)
}

/// Parses the header at the start of `prefix`, which is the first [`PREFIX_BYTES_MAX`] bytes of a file
/// of `file_len` bytes, or all of it. Each byte of the text is looked at once, so the budget suffices.
///
/// # Errors
/// `Unsupported` for versions, element types (structures, objects, texts, complex numbers of 16 bytes, dates) and
/// numbers of dimensions that a tensor cannot have, and for bytes after the array; `Unreadable` for a file that is cut
/// off; `Invalid` for all other errors.
pub fn parse(prefix: &[u8], file_len: u64, budget: &mut Budget) -> Result<Header> {
    budget.add_read(prefix.len() as u64);
    let (text, data_start) = text_of(prefix)?;
    budget.take_entry(text.len())?;
    let literal::Fields { descr, mut fortran_order, mut dimensions } =
        literal::parse(text).map_err(|error| error.at("npy header"))?;
    let (dtype, big_endian) = if matches!(descr.as_str(), "|V2" | "V2") {
        fortran_order &= !is_row_major(&dimensions);
        dimensions.push(2);
        (Dtype::U8, false)
    } else {
        dtype_of(&descr)?
    };
    if dimensions.len() > crate::model::DIMENSIONS_MAX {
        return Err(Error::unsupported("npy header: more than 8 dimensions"));
    }
    let shape = Shape::new(&dimensions)
        .ok_or_else(|| Error::invalid("npy header: more elements than can be counted"))?;
    let end = dtype
        .bytes_of(shape.elements())
        .and_then(|size| size.checked_add(data_start))
        .ok_or_else(|| Error::invalid("npy header: more bytes than can be counted"))?;
    if end != file_len {
        let text = format!(
            "npy header: shape ({shape}) of {dtype} ends at byte {end} of a file of {file_len} bytes"
        );
        return Err(if end > file_len {
            cut_off(text)
        } else {
            let advice = "more arrays may follow; save each array in a separate file";
            Error::unsupported(format!("{text}: {advice}"))
        });
    }
    Ok(Header { dtype, shape, fortran_order, big_endian, data_start })
}

/// The shape of an array of pairs of bytes if they are bf16, or of one of bf16 if they are pairs of bytes. `None` for other
/// types and shapes. `numpy.save` turns arrays of bf16 into records of two raw bytes, so a person may know better.
pub fn as_pairs(from: Dtype, to: Dtype, shape: &Shape) -> Option<Shape> {
    match (from, to, shape.dimensions()) {
        (Dtype::U8, Dtype::Bf16, [of @ .., 2]) => Shape::new(of),
        (Dtype::Bf16, Dtype::U8, of) if of.len() < crate::model::DIMENSIONS_MAX => {
            Shape::new(&[of, &[2]].concat())
        }
        _ => None,
    }
}

/// The text of the header, and the offset of the byte after it.
fn text_of(prefix: &[u8]) -> Result<(&[u8], u64)> {
    let short = |error: Error| cut_off(format!("npy header: {error}"));
    let mut input = Reader::new(prefix);
    if input.array().map_err(short)? != MAGIC {
        return Err(Error::invalid("not an npy file: the magic is missing"));
    }
    let version = (input.u8().map_err(short)?, input.u8().map_err(short)?);
    let length = match version {
        (1, 0) => u64::from(input.u16().map_err(short)?),
        (2 | 3, 0) => u64::from(input.u32().map_err(short)?),
        (major, minor) => {
            return Err(Error::unsupported(format!("npy version {major}.{minor}")));
        }
    };
    if length > HEADER_BYTES_MAX {
        return Err(Error::unsupported(format!(
            "npy header of {length} bytes; at most {HEADER_BYTES_MAX} are read"
        )));
    }
    let length = usize::try_from(length).map_err(|_| Error::invalid("npy header too long"))?;
    let text = input.bytes(length).map_err(short)?;
    let data_start = u64::try_from(input.position()).map_err(|_| Error::invalid("npy header too long"))?;
    Ok((text, data_start))
}

/// The element type of a `descr`, and whether it is big-endian. Treats `=`, which NumPy itself never
/// writes, as little-endian.
fn dtype_of(descr: &str) -> Result<(Dtype, bool)> {
    let (big_endian, kind) = match descr.split_at_checked(1) {
        Some((">", kind)) => (true, kind),
        Some(("<" | "=" | "|", kind)) => (false, kind),
        _ => (false, descr),
    };
    let dtype = match kind {
        "f8" => Dtype::F64,
        "f4" => Dtype::F32,
        "f2" => Dtype::F16,
        "V2" => Dtype::Bf16,
        "c8" => Dtype::C64,
        "i1" => Dtype::I8,
        "i2" => Dtype::I16,
        "i4" => Dtype::I32,
        "i8" => Dtype::I64,
        "u1" => Dtype::U8,
        "u2" => Dtype::U16,
        "u4" => Dtype::U32,
        "u8" => Dtype::U64,
        "b1" | "?" => Dtype::Bool,
        "V1" => {
            return Err(Error::unsupported(format!(
                "npy element type '{descr}': which 8-bit type it stands for is not recorded"
            )));
        }
        _ => return Err(Error::unsupported(format!("npy element type '{descr}'"))),
    };
    Ok((dtype, big_endian && dtype.bytes() > 1))
}

/// The `descr` of an element type. 8-bit floats become `|V1`, which NumPy shows as raw bytes.
fn descr_of(dtype: Dtype) -> Option<&'static str> {
    Some(match dtype {
        Dtype::F64 => "<f8",
        Dtype::F32 => "<f4",
        Dtype::F16 => "<f2",
        Dtype::Bf16 => "<V2",
        Dtype::C64 => "<c8",
        Dtype::I8 => "|i1",
        Dtype::I16 => "<i2",
        Dtype::I32 => "<i4",
        Dtype::I64 => "<i8",
        Dtype::U8 => "|u1",
        Dtype::U16 => "<u2",
        Dtype::U32 => "<u4",
        Dtype::U64 => "<u8",
        Dtype::Bool => "|b1",
        Dtype::F8E4M3 | Dtype::F8E5M2 | Dtype::F8E8M0 => "|V1",
        _ => return None,
    })
}

/// The header of a file of row-major, little-endian elements, padded to a multiple of `alignment` bytes.
/// With 64, the result equals the output of NumPy. Writes version 1, or 2 if the length requires it. By
/// default NumPy refuses headers of more than 10,000 bytes, so 4096 is a good alignment and 16384 is not.
///
/// # Errors
/// `Unsupported` for types with blocks of several elements; `Invalid` for an alignment of 0 or one that makes
/// the header longer than [`HEADER_BYTES_MAX`].
pub fn write_header(dtype: Dtype, shape: &Shape, alignment: usize) -> Result<Vec<u8>> {
    let descr =
        descr_of(dtype).ok_or_else(|| Error::unsupported(format!("{dtype} elements in an npy file")))?;
    let sizes: Vec<String> = shape.dimensions().iter().map(u64::to_string).collect();
    let tuple = match sizes.as_slice() {
        [one] => format!("({one},)"),
        more => format!("({})", more.join(", ")),
    };
    let growth = match sizes.first() {
        Some(digits) => GROWTH_DIGITS.saturating_sub(digits.len()),
        None => 0,
    };
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple}, }}{:growth$}", "");
    let padded = |fixed: usize| {
        let whole = (fixed + text.len() + 1).checked_next_multiple_of(alignment)?;
        Some(whole - fixed)
    };
    let too_long = || Error::invalid(format!("npy header aligned to {alignment} bytes"));
    let mut out = Writer::new();
    out.bytes(&MAGIC);
    let first = padded(10).ok_or_else(too_long)?;
    let length = if let Ok(short) = u16::try_from(first) {
        out.u8(1).u8(0).u16(short);
        first
    } else {
        let second = padded(12).ok_or_else(too_long)?;
        let long = u32::try_from(second).map_err(|_| too_long())?;
        if u64::from(long) > HEADER_BYTES_MAX {
            return Err(too_long());
        }
        out.u8(2).u8(0).u32(long);
        second
    };
    out.bytes(text.as_bytes());
    let spaces = length - text.len() - 1;
    let mut bytes = out.into_bytes();
    bytes.resize(bytes.len() + spaces, b' ');
    bytes.push(b'\n');
    Ok(bytes)
}
