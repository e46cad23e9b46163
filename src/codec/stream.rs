//! Packs codes to streams and unpacks them: value i has the bits from `i * b`, least significant
//! first.

use super::arch::{InstructionSet, Job, Kernel, signed};
use super::payload::{CodeRange, code_range, codes_len, largest_code};
use crate::model::{Error, GROUP_LEN, Result};

/// Bytes of the stream of `codes` codes of `bits` bits. Fails with `Invalid` for bits other
/// than 3, 5, 7 and 8, and for a length past the address space.
pub fn stream_len(bits: u8, codes: usize) -> Result<usize> {
    if !matches!(bits, 3 | 5 | 7 | 8) {
        return Err(Error::invalid(format!("codes of {bits} bits do not exist, only of 3, 5, 7 and 8")));
    }
    codes
        .checked_mul(usize::from(bits))
        .map(|total| total.div_ceil(8))
        .ok_or_else(|| Error::invalid(format!("{codes} codes are more than memory can hold")))
}

/// Fails unless `stream` has the length of `codes` codes.
fn check_len(bits: u8, codes: usize, stream: usize) -> Result<()> {
    let expected = stream_len(bits, codes)?;
    if stream != expected {
        return Err(Error::invalid(format!(
            "the stream has {stream} bytes, but {codes} codes of {bits} bits need {expected}"
        )));
    }
    Ok(())
}

impl InstructionSet {
    /// [`pack`](super::pack) with this set.
    pub fn pack(self, bits: u8, codes: &[i8], stream: &mut [u8]) -> Result<()> {
        check_len(bits, codes.len(), stream.len())?;
        let CodeRange { smallest: low, largest: high } = code_range(usize::from(bits));
        let outside = codes.iter().fold(false, |outside, code| outside | (*code < low) | (*code > high));
        if outside {
            return Err(Error::invalid(format!("a code of {bits} bits is outside {low}..={high}")));
        }
        match bits {
            8 => self.run(Pack::<8> { codes, stream }),
            7 => self.run(Pack::<7> { codes, stream }),
            5 => self.run(Pack::<5> { codes, stream }),
            _ => self.run(Pack::<3> { codes, stream }),
        }
        Ok(())
    }

    /// [`unpack`](super::unpack) with this set.
    pub fn unpack(self, bits: u8, stream: &[u8], codes: &mut [i8]) -> Result<()> {
        check_len(bits, codes.len(), stream.len())?;
        match bits {
            8 => self.run(Unpack::<8> { codes, stream }),
            7 => self.run(Unpack::<7> { codes, stream }),
            5 => self.run(Unpack::<5> { codes, stream }),
            _ => self.run(Unpack::<3> { codes, stream }),
        }
        Ok(())
    }
}

struct Pack<'a, const BITS: usize> {
    codes: &'a [i8],
    stream: &'a mut [u8],
}

impl<const BITS: usize> Job for Pack<'_, BITS> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        // 63 codes can take as many bytes as 64, so count groups instead of chunking bytes.
        let (full, rest) = self.codes.as_chunks::<GROUP_LEN>();
        let (streams, out) = self.stream.split_at_mut(full.len() * codes_len(BITS));
        for (codes, stream) in full.iter().zip(streams.chunks_exact_mut(codes_len(BITS))) {
            pack_group::<K, BITS>(kernel, codes, stream);
        }
        let mut stream = [0; GROUP_LEN];
        // Unused bits of the last byte are zero, which is the smallest code.
        let mut codes = [if BITS == 8 { 0 } else { -largest_code(BITS) }; GROUP_LEN];
        codes[..rest.len()].copy_from_slice(rest);
        pack_group::<K, BITS>(kernel, &codes, &mut stream[..codes_len(BITS)]);
        out.copy_from_slice(&stream[..out.len()]);
    }
}

#[inline(always)]
fn pack_group<K: Kernel, const BITS: usize>(kernel: K, codes: &[i8; GROUP_LEN], stream: &mut [u8]) {
    let mut bytes = [0; GROUP_LEN];
    for (byte, code) in bytes.iter_mut().zip(codes) {
        *byte = *code as u8;
    }
    pack_bytes::<K, BITS>(kernel, kernel.load_bytes(&bytes), stream);
}

/// Packs the signed codes of a full group.
#[inline(always)]
pub(super) fn pack_bytes<K: Kernel, const BITS: usize>(kernel: K, codes: K::Bytes, stream: &mut [u8]) {
    let unsigned = if BITS == 8 { codes } else { kernel.shift_codes(codes, largest_code(BITS)) };
    kernel.compress::<BITS>(unsigned, stream);
}

struct Unpack<'a, const BITS: usize> {
    codes: &'a mut [i8],
    stream: &'a [u8],
}

impl<const BITS: usize> Job for Unpack<'_, BITS> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        let (full, rest) = self.codes.as_chunks_mut::<GROUP_LEN>();
        let (streams, last) = self.stream.split_at(full.len() * codes_len(BITS));
        for (codes, stream) in full.iter_mut().zip(streams.chunks_exact(codes_len(BITS))) {
            unpack_group::<K, BITS>(kernel, stream, codes);
        }
        let mut stream = [0; GROUP_LEN];
        stream[..last.len()].copy_from_slice(last);
        let mut codes = [0; GROUP_LEN];
        unpack_group::<K, BITS>(kernel, &stream[..codes_len(BITS)], &mut codes);
        rest.copy_from_slice(&codes[..rest.len()]);
    }
}

#[inline(always)]
fn unpack_group<K: Kernel, const BITS: usize>(kernel: K, stream: &[u8], codes: &mut [i8; GROUP_LEN]) {
    let mut bytes = [0; GROUP_LEN];
    kernel.store_bytes(signed::<K, BITS>(kernel, stream), &mut bytes);
    for (code, byte) in codes.iter_mut().zip(bytes) {
        *code = byte as i8;
    }
}
