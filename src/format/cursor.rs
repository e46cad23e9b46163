//! Reads and writes numbers in bytes. Byte orders are handled only here.
//!
//! Names without a suffix are little-endian; `_be` is big-endian. Signed numbers are
//! two's complement, floats are IEEE 754 and keep every bit, NaN payloads included.

use crate::model::{Error, Result};

/// Reads numbers in sequence. A read past the end fails with
/// [`Corrupt`](crate::model::ErrorKind::Corrupt), with the end in its text, and consumes nothing.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    length: usize,
}

/// Appends numbers to bytes.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

macro_rules! numbers {
    ($( $name:ident, $number:ty, $from:ident, $to:ident, $order:literal; )*) => {
        impl Reader<'_> {
            $(
                #[doc = concat!("The next `", stringify!($number), "`, ", $order, ".")]
                #[inline]
                pub fn $name(&mut self) -> Result<$number> {
                    Ok(<$number>::$from(self.array()?))
                }
            )*
        }

        impl Writer {
            $(
                #[doc = concat!("Appends a `", stringify!($number), "`, ", $order, ".")]
                pub fn $name(&mut self, value: $number) -> &mut Writer {
                    self.bytes(&value.$to())
                }
            )*
        }
    };
}

numbers! {
    u8, u8, from_le_bytes, to_le_bytes, "one byte";
    u16, u16, from_le_bytes, to_le_bytes, "little-endian";
    u32, u32, from_le_bytes, to_le_bytes, "little-endian";
    u64, u64, from_le_bytes, to_le_bytes, "little-endian";
    u128, u128, from_le_bytes, to_le_bytes, "little-endian";
    i16, i16, from_le_bytes, to_le_bytes, "little-endian";
    f32, f32, from_le_bytes, to_le_bytes, "little-endian";
    u16_be, u16, from_be_bytes, to_be_bytes, "big-endian";
    u32_be, u32, from_be_bytes, to_be_bytes, "big-endian";
    u64_be, u64, from_be_bytes, to_be_bytes, "big-endian";
    f32_be, f32, from_be_bytes, to_be_bytes, "big-endian";
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from their start.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes, length: bytes.len() }
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.length.saturating_sub(self.rest.len())
    }

    /// Bytes left to read.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next `count` bytes.
    #[inline]
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.ends(count))?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or_else(|| self.ends(N))?;
        self.rest = rest;
        Ok(*taken)
    }

    /// The next `count` f32, little-endian. Allocates only if enough bytes remain.
    pub fn f32s(&mut self, count: usize) -> Result<Vec<f32>> {
        let bytes = self.bytes(count.saturating_mul(4))?;
        let (values, _) = bytes.as_chunks();
        Ok(values.iter().copied().map(f32::from_le_bytes).collect())
    }

    /// Skips the next `count` bytes.
    pub fn skip(&mut self, count: usize) -> Result<()> {
        self.bytes(count).map(|_| ())
    }

    fn ends(&self, wanted: usize) -> Error {
        Error::corrupt(format!(
            "ends at byte {}, but {wanted} more bytes were expected from byte {}",
            self.length,
            self.position()
        ))
    }
}

impl Writer {
    /// No bytes yet.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// No bytes yet, with room for `capacity`.
    pub fn with_capacity(capacity: usize) -> Writer {
        Writer { bytes: Vec::with_capacity(capacity) }
    }

    /// Bytes written so far.
    pub fn position(&self) -> usize {
        self.bytes.len()
    }

    /// Appends `bytes`.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Appends `values`, little-endian.
    pub fn f32s(&mut self, values: &[f32]) -> &mut Writer {
        self.bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }

    /// Appends `count` zero bytes.
    pub fn zeros(&mut self, count: usize) -> &mut Writer {
        let length = self.bytes.len().saturating_add(count);
        self.bytes.resize(length, 0);
        self
    }

    /// The written bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// The written bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::{Reader, Writer};
    use crate::model::ErrorKind;

    #[test]
    fn each_number_is_written_in_its_byte_order_and_read_back() {
        let mut out = Writer::new();
        out.u8(0x01).u16(0x0203).u32(0x0405_0607);
        out.u64(0x08).u128(0x09).i16(-2).f32(1.0);
        out.u16_be(0x0203).u32_be(0x0405_0607).u64_be(0x08);
        out.f32_be(1.0).zeros(2).bytes(b"xy");
        let expected: Vec<u8> = [
            &[0x01, 0x03, 0x02, 0x07, 0x06, 0x05, 0x04][..],
            &[8, 0, 0, 0, 0, 0, 0, 0],
            &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0xfe, 0xff, 0, 0, 0x80, 0x3f],
            &[0x02, 0x03, 0x04, 0x05, 0x06, 0x07],
            &[0, 0, 0, 0, 0, 0, 0, 8],
            &[0x3f, 0x80, 0, 0, 0, 0, b'x', b'y'],
        ]
        .concat();
        assert_eq!(out.as_slice(), expected);

        let mut input = Reader::new(&expected);
        assert_eq!(input.u8().unwrap(), 0x01);
        assert_eq!(input.u16().unwrap(), 0x0203);
        assert_eq!(input.u32().unwrap(), 0x0405_0607);
        assert_eq!(input.u64().unwrap(), 8);
        assert_eq!(input.u128().unwrap(), 9);
        assert_eq!(input.i16().unwrap(), -2);
        assert_eq!(input.f32().unwrap(), 1.0);
        assert_eq!(input.u16_be().unwrap(), 0x0203);
        assert_eq!(input.u32_be().unwrap(), 0x0405_0607);
        assert_eq!(input.u64_be().unwrap(), 8);
        assert_eq!(input.f32_be().unwrap(), 1.0);
        input.skip(2).unwrap();
        assert_eq!(input.array().unwrap(), *b"xy");
        assert_eq!(input.position(), expected.len());
    }

    #[test]
    fn a_read_past_the_end_reports_the_offset_and_reads_nothing() {
        let mut input = Reader::new(&[1, 2, 3]);
        input.u8().unwrap();
        let error = input.u32().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().starts_with("ends at byte 3"), "{error}");
        assert!(input.bytes(usize::MAX).is_err());
        assert_eq!((input.position(), input.remaining()), (1, 2));
        assert_eq!(input.u16().unwrap(), 0x0302);
    }
}
