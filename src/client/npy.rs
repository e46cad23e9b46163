//! The header of a NumPy `.npy` file.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 6 | magic `93 4e 55 4d 50 59` (`\x93NUMPY`) |
//! | 6 | 2 | version: 1.0, 2.0 or 3.0 |
//! | 8 | 2 or 4 | length of the text, little-endian: u16 in version 1, u32 after |
//! | 10 or 12 | .. | a Python dict literal `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`, spaces, a newline |
//! | .. | .. | the elements, to the end of the file |
//!
//! Source: NumPy Enhancement Proposal 1 and `numpy.lib.format`. Types are named as on a mount: `<V2` is bf16, which NumPy
//! lacks, and `|V2` is pairs of bytes. `|V1` is bytes here, since nothing says for which type of 8 bits it stands; a mount
//! shows no tensor of it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::dtype::Dtype;
use crate::error::{ErrorKind, Wrong};
use crate::shape::{DIMENSIONS_MAX, Shape};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Longest text of a header in bytes.
const TEXT_BYTES_MAX: usize = 1 << 16;
const CUT_OFF: &str = "the npy header is cut off";

/// A parsed header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub dtype: Dtype,
    pub shape: Shape,
    /// Offset of the elements in the file.
    pub data_start: u64,
}

/// Reads the header of a file. `None` if the file does not begin as a `.npy` file.
///
/// # Errors
/// An error of the system; about the header `Unsupported` for versions, element types, orders and numbers of dimensions
/// that this crate does not read, and `Invalid` for all others.
pub(crate) fn read(file: &File) -> io::Result<Option<Result<Header, Wrong>>> {
    let mut fixed = [0; 12];
    let len = read_most(file, &mut fixed, 0)?;
    let Some(fixed) = fixed.get(..len).filter(|fixed| fixed.starts_with(MAGIC)) else {
        return Ok(None);
    };
    let (text_start, length) = match text_place(fixed) {
        Ok(place) => place,
        Err(wrong) => return Ok(Some(Err(wrong))),
    };
    let mut text = vec![0; length];
    let len = read_most(file, &mut text, text_start)?;
    if len < length {
        return Ok(Some(Err(invalid(CUT_OFF))));
    }
    Ok(Some(parse(&text).map(|(dtype, shape)| Header {
        dtype,
        shape,
        data_start: text_start + length as u64,
    })))
}

fn invalid(text: impl Into<String>) -> Wrong {
    Wrong::new(ErrorKind::Invalid, text)
}

fn unsupported(text: impl Into<String>) -> Wrong {
    Wrong::new(ErrorKind::Unsupported, text)
}

/// Fills a buffer, as far as the file goes.
fn read_most(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, at + done as u64) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Where the text begins, and its length.
fn text_place(fixed: &[u8]) -> Result<(u64, usize), Wrong> {
    let (start, length) = match fixed.get(MAGIC.len()..) {
        Some([1, 0, low, high, ..]) => (10, u32::from(u16::from_le_bytes([*low, *high]))),
        Some([2 | 3, 0, a, b, c, d]) => (12, u32::from_le_bytes([*a, *b, *c, *d])),
        Some([1..=3, 0, ..]) => return Err(invalid(CUT_OFF)),
        Some([major, minor, ..]) => {
            return Err(unsupported(format!("npy version {major}.{minor} is not known")));
        }
        _ => return Err(invalid(CUT_OFF)),
    };
    let length = usize::try_from(length).ok().filter(|length| *length <= TEXT_BYTES_MAX);
    let too_long = || unsupported(format!("an npy header of more than {TEXT_BYTES_MAX} bytes"));
    Ok((start, length.ok_or_else(too_long)?))
}

/// The element type and the shape that a text names.
fn parse(text: &[u8]) -> Result<(Dtype, Shape), Wrong> {
    let text = str::from_utf8(text).map_err(|_| invalid("the npy header is not UTF-8"))?;
    let mut scanner = Scanner { rest: text };
    let (mut descr, mut order, mut sizes) = (None, None, None);
    scanner.expect('{')?;
    while !scanner.take('}') {
        let key = scanner.quoted()?;
        scanner.expect(':')?;
        let is_again = match key {
            "descr" => descr.replace(scanner.descr()?).is_some(),
            "fortran_order" => order.replace(scanner.boolean()?).is_some(),
            "shape" => sizes.replace(scanner.sizes()?).is_some(),
            _ => return Err(invalid(format!("the npy header has an unknown key {key:?}"))),
        };
        if is_again {
            return Err(invalid(format!("the npy header has the key {key:?} twice")));
        }
        if !scanner.take(',') {
            scanner.expect('}')?;
            break;
        }
    }
    if !scanner.rest.trim_ascii().is_empty() {
        return Err(invalid("the npy header goes on after its dict"));
    }
    let missing = |key: &str| invalid(format!("the npy header has no key {key:?}"));
    let descr = descr.ok_or_else(|| missing("descr"))?;
    let mut sizes = sizes.ok_or_else(|| missing("shape"))?;
    // With at most one dimension of several, both orders are the same.
    let is_row_major = sizes.contains(&0) || sizes.iter().filter(|size| **size > 1).count() < 2;
    if order.ok_or_else(|| missing("fortran_order"))? && !is_row_major {
        return Err(unsupported("an npy file in Fortran order; its tensor below .tensors is too"));
    }
    let dtype = match descr {
        "|V2" | "V2" => {
            sizes.push(2);
            Dtype::U8
        }
        descr => dtype_of(descr)?,
    };
    if sizes.len() > DIMENSIONS_MAX {
        return Err(unsupported(format!("an npy file with more than {DIMENSIONS_MAX} dimensions")));
    }
    let too_many = || invalid("the shape in the npy header has too many elements");
    let shape = Shape::new(sizes).ok_or_else(too_many)?;
    Ok((dtype, shape))
}

fn dtype_of(descr: &str) -> Result<Dtype, Wrong> {
    let (order, kind) = match descr.split_at_checked(1) {
        Some((order @ ("<" | ">" | "=" | "|"), kind)) => (order, kind),
        _ => ("|", descr),
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
        "u1" | "V1" => Dtype::U8,
        "u2" => Dtype::U16,
        "u4" => Dtype::U32,
        "u8" => Dtype::U64,
        "b1" | "?" => Dtype::Bool,
        _ => return Err(unsupported(format!("npy files of the element type {descr:?} are not read"))),
    };
    if order == ">" && dtype.block().1 > 1 {
        return Err(unsupported("an npy file with big-endian elements is not read"));
    }
    Ok(dtype)
}

/// The rest of a dict literal. White space between its parts is skipped.
struct Scanner<'a> {
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    fn take(&mut self, c: char) -> bool {
        self.rest = self.rest.trim_ascii_start();
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, c: char) -> Result<(), Wrong> {
        let missing = || invalid(format!("the npy header has no {c:?} where one is expected"));
        self.take(c).then_some(()).ok_or_else(missing)
    }

    /// A text in quotes. No text of a header has escapes.
    fn quoted(&mut self) -> Result<&'a str, Wrong> {
        let quote = ['\'', '"'].into_iter().find(|quote| self.take(*quote));
        let quote = quote.ok_or_else(|| invalid("the npy header has no text where one is expected"))?;
        let found = self.rest.split_once(quote);
        let (text, rest) = found.ok_or_else(|| invalid("a text of the npy header has no end"))?;
        if text.contains('\\') {
            return Err(invalid("a text of the npy header has an escape"));
        }
        self.rest = rest;
        Ok(text)
    }

    fn descr(&mut self) -> Result<&'a str, Wrong> {
        if self.rest.trim_ascii_start().starts_with(['[', '(']) {
            return Err(unsupported("an npy file of records is not read"));
        }
        self.quoted()
    }

    /// Letters and digits.
    fn word(&mut self) -> &'a str {
        let rest = self.rest.trim_ascii_start();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        self.rest = rest;
        word
    }

    fn boolean(&mut self) -> Result<bool, Wrong> {
        match self.word() {
            "True" => Ok(true),
            "False" => Ok(false),
            _ => Err(invalid("fortran_order of the npy header is not True or False")),
        }
    }

    fn sizes(&mut self) -> Result<Vec<usize>, Wrong> {
        let mut sizes = Vec::new();
        self.expect('(')?;
        while !self.take(')') {
            let word = self.word();
            // Python 2 wrote `3L`.
            let digits = word.strip_suffix('L').unwrap_or(word);
            let is_size = digits.bytes().all(|byte| byte.is_ascii_digit())
                && (digits.len() == 1 || !digits.starts_with('0'));
            let size = if is_size { digits.parse().ok() } else { None };
            sizes.push(size.ok_or_else(|| invalid(format!("{word:?} is not the size of a dimension")))?);
            if !self.take(',') {
                if sizes.len() == 1 {
                    return Err(invalid("the shape of the npy header is not a tuple"));
                }
                self.expect(')')?;
                break;
            }
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::{Header, parse, read};
    use crate::dtype::Dtype;
    use crate::error::{ErrorKind, Wrong};

    /// The header of a file with these bytes.
    fn of_bytes(bytes: &[u8]) -> Option<Result<Header, Wrong>> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        read(&file).unwrap()
    }

    fn of_version(version: u8, text: &str) -> Vec<u8> {
        let length = (text.len() as u32).to_le_bytes();
        let length = if version == 1 { &length[..2] } else { &length[..] };
        [b"\x93NUMPY".as_slice(), &[version, 0], length, text.as_bytes()].concat()
    }

    #[test]
    fn headers_of_all_versions_are_read() {
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }     \n";
        for version in 1..=3 {
            let found = of_bytes(&of_version(version, text)).unwrap().unwrap();
            assert_eq!((found.dtype, found.shape.dimensions()), (Dtype::F32, [3, 4].as_slice()));
            assert_eq!(found.data_start as usize, of_version(version, text).len());
        }
        assert!(of_bytes(b"GGUF").is_none() && of_bytes(b"").is_none());
    }

    #[test]
    fn a_header_that_is_cut_off_or_too_long_is_an_error() {
        let whole = of_version(2, "{'descr': '|u1', 'fortran_order': False, 'shape': ()}");
        for len in 6..whole.len() {
            let wrong = of_bytes(&whole[..len]).unwrap().unwrap_err();
            assert_eq!(wrong.kind, ErrorKind::Invalid, "{len}: {}", wrong.text);
        }
        assert!(of_bytes(&whole).unwrap().is_ok());
        let long = [b"\x93NUMPY\x02\x00".as_slice(), &u32::MAX.to_le_bytes()].concat();
        for (bytes, text) in [(long.as_slice(), "more than"), (b"\x93NUMPY\x04\x00\x00\x00\x00\x00", "4.0")] {
            let wrong = of_bytes(bytes).unwrap().unwrap_err();
            assert!(wrong.kind == ErrorKind::Unsupported && wrong.text.contains(text), "{}", wrong.text);
        }
    }

    #[test]
    fn texts_of_other_writers_are_read() {
        let cases = [
            ("{\"shape\":(7,),\"fortran_order\":True,\"descr\":\"|b1\"}", Dtype::Bool, vec![7]),
            ("{'descr': '<V2', 'fortran_order': False, 'shape': (2L, 3L)}", Dtype::Bf16, vec![2, 3]),
            ("{'descr': '|V2', 'fortran_order': False, 'shape': (5,)}", Dtype::U8, vec![5, 2]),
            ("{'descr': '<c8', 'fortran_order': False, 'shape': ()}", Dtype::C64, vec![]),
            ("{'descr': '>u1', 'fortran_order': True, 'shape': (0, 2, 3)}", Dtype::U8, vec![0, 2, 3]),
        ];
        for (text, dtype, sizes) in cases {
            let (found, shape) = parse(text.as_bytes()).unwrap();
            assert_eq!((found, shape.dimensions()), (dtype, sizes.as_slice()), "{text}");
        }
    }

    #[test]
    fn texts_that_name_no_tensor_are_errors() {
        for text in [
            "",
            "{",
            "{}",
            "[]",
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'shape': (4,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} x",
            "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (3,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (03,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551615, 2)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
            "{'descr': '<f\\u0034', 'fortran_order': False, 'shape': (3,)}",
            "{'descr': '<f4",
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap_err().kind, ErrorKind::Invalid, "{text}");
        }
        assert_eq!(parse(b"{'descr': '\xff").unwrap_err().kind, ErrorKind::Invalid);
    }

    #[test]
    fn arrays_that_are_not_read_are_unsupported() {
        for text in [
            "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1)}",
            "{'descr': '>f4', 'fortran_order': False, 'shape': (3,)}",
            "{'descr': '|O', 'fortran_order': False, 'shape': (3,)}",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}",
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap_err().kind, ErrorKind::Unsupported, "{text}");
        }
    }
}
