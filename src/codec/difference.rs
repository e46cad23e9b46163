//! Exact differences between two versions of a block, as ladder payloads that are not rotated.
//!
//! For an x of 16 bits, `u(x)` is `NOT x` if its highest bit is set, else `x XOR 0x8000`: a bijection that
//! keeps the order of floats. With `d = u(x) - u(base)` modulo 2^16, the payload has the elements
//! `z = (d << 1) XOR (d >> 15)`, the shift to the right arithmetic, so that small differences of either sign
//! are small numbers. An element of four bytes is so subtracted in its upper two bytes; its lower two are
//! those of the new version.
//!
//! Example in BF16: base = 0x3F80 (1.0) and x = 0x3F81, the next float. u(base) = 0xBF80, u(x) = 0xBF81, d = 1, z = 2.
//! For x = 0x3F7F, d = 0xFFFF and z = 1. This program stores the bytes of z as ladders without low bits, sparse or
//! constant, whichever is smallest, and the lower two bytes of F32 raw.

use crate::codec::arch::{InstructionSet, Job, Kernel};
use crate::codec::ladder::{Block, ELEMENTS_MAX, Scratch, Split, encode_on};
use crate::model::{Dtype, Error, Result};

/// How differences of elements of `dtype` are taken apart; `None` for types that are not subtracted.
fn split_of(dtype: Dtype) -> Option<Split> {
    match dtype {
        Dtype::Bf16 | Dtype::F16 => Split::with_low_bits(false, &[Some(0), Some(0)]),
        Dtype::F32 => Split::with_low_bits(false, &[None, None, Some(0), Some(0)]),
        _ => None,
    }
}

/// Appends the payload of the difference of a block from an equally long `base` to `out`. Returns whether
/// it did: only for F32, F16 and BF16, and 1 to 65,536 elements.
///
/// Errors: [`Invalid`](crate::model::ErrorKind::Invalid) if the lengths differ or are not whole elements.
pub fn encode_difference(
    dtype: Dtype,
    base: &[u8],
    block: &[u8],
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Result<bool> {
    encode_difference_on(InstructionSet::detected(), dtype, base, block, out, scratch)
}

/// [`encode_difference`] with the instructions of `set`.
pub fn encode_difference_on(
    set: InstructionSet,
    dtype: Dtype,
    base: &[u8],
    block: &[u8],
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Result<bool> {
    let Some(split) = split_of(dtype) else { return Ok(false) };
    let width = dtype.bytes() as usize;
    if base.len() != block.len() || !block.len().is_multiple_of(width) {
        let text = format!("a difference of {} bytes from {}, of {dtype}", block.len(), base.len());
        return Err(Error::invalid(text));
    }
    if !(1..=ELEMENTS_MAX).contains(&(block.len() / width)) {
        return Ok(false);
    }
    let mut differences = std::mem::take(&mut scratch.elements);
    differences.clear();
    differences.extend_from_slice(block);
    let wide = |x, base| upper(x, base, x, subtract);
    set.run(EachElement {
        is_wide: width == 4,
        elements: &mut differences,
        others: base,
        narrow: subtract,
        wide,
    });
    let encoded = encode_on(set, &split, &differences, out, scratch);
    scratch.elements = differences;
    encoded.map(|()| true)
}

/// Turns `block`, which holds the base, into the version that a difference from it encodes.
///
/// Errors: [`Corrupt`](crate::model::ErrorKind::Corrupt) if `payload` is not a difference of such a block;
/// `block` is unchanged then.
pub fn add_difference(dtype: Dtype, payload: &[u8], block: &mut [u8], scratch: &mut Scratch) -> Result<()> {
    add_difference_on(InstructionSet::detected(), dtype, payload, block, scratch)
}

/// [`add_difference`] with the instructions of `set`.
pub fn add_difference_on(
    set: InstructionSet,
    dtype: Dtype,
    payload: &[u8],
    block: &mut [u8],
    scratch: &mut Scratch,
) -> Result<()> {
    let width = dtype.bytes() as usize;
    if split_of(dtype).is_none() || !block.len().is_multiple_of(width) {
        return Err(Error::corrupt(format!("an exact difference of {} bytes of {dtype}", block.len())));
    }
    let elements = block.len() / width;
    let parsed = Block::parse(width, elements, payload)?;
    if parsed.is_rotated() {
        return Err(Error::corrupt("an exact difference whose elements are rotated"));
    }
    let mut differences = std::mem::take(&mut scratch.elements);
    differences.resize(block.len(), 0);
    let memory = scratch.take(parsed.scratch_len());
    let decoded = parsed.decode(set, 0..elements, &mut differences, memory);
    if decoded.is_ok() {
        let wide = |base, z| upper(base, z, z, add);
        set.run(EachElement {
            is_wide: width == 4,
            elements: block,
            others: &differences,
            narrow: add,
            wide,
        });
    }
    scratch.elements = differences;
    decoded
}

/// `u(x)` of the module's documentation.
#[inline(always)]
fn ordered(x: u16) -> u16 {
    x ^ (((x as i16) >> 15) as u16 | 0x8000)
}

/// The inverse of [`ordered`].
#[inline(always)]
fn unordered(u: u16) -> u16 {
    u ^ (((!u as i16) >> 15) as u16 | 0x8000)
}

#[inline(always)]
fn subtract(x: u16, base: u16) -> u16 {
    let d = ordered(x).wrapping_sub(ordered(base));
    (d << 1) ^ ((d as i16) >> 15) as u16
}

#[inline(always)]
fn add(base: u16, z: u16) -> u16 {
    let d = (z >> 1) ^ (z & 1).wrapping_neg();
    unordered(ordered(base).wrapping_add(d))
}

/// `apply` to the upper two bytes of the elements of four bytes `a` and `b`, over the lower two of `low`.
#[inline(always)]
fn upper(a: u32, b: u32, low: u32, apply: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(apply((a >> 16) as u16, (b >> 16) as u16)) << 16 | (low & 0xffff)
}

/// Replaces each element by a function of it and of the other one at its place, with the instructions of each set: `narrow`
/// for elements of two bytes, `wide` for elements of four.
struct EachElement<'a, N, W> {
    is_wide: bool,
    elements: &'a mut [u8],
    others: &'a [u8],
    narrow: N,
    wide: W,
}

impl<N: Fn(u16, u16) -> u16, W: Fn(u32, u32) -> u32> Job for EachElement<'_, N, W> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, _: K) {
        let EachElement { is_wide, elements, others, narrow, wide } = self;
        if is_wide {
            for (element, other) in elements.as_chunks_mut::<4>().0.iter_mut().zip(others.as_chunks::<4>().0)
            {
                *element = wide(u32::from_le_bytes(*element), u32::from_le_bytes(*other)).to_le_bytes();
            }
            return;
        }
        for (element, other) in elements.as_chunks_mut::<2>().0.iter_mut().zip(others.as_chunks::<2>().0) {
            *element = narrow(u16::from_le_bytes(*element), u16::from_le_bytes(*other)).to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{add, ordered, subtract, unordered};

    #[test]
    fn every_difference_of_sixteen_bits_leads_back() {
        for x in 0..=u16::MAX {
            assert_eq!(unordered(ordered(x)), x);
            for base in [0, 1, 0x3f80, 0x7fff, 0x8000, 0xbf80, 0xffff, x, x ^ 0x8000, x.wrapping_mul(40503)] {
                assert_eq!(add(base, subtract(x, base)), x);
            }
        }
    }

    #[test]
    fn neighbours_among_floats_differ_by_one() {
        // The next larger and the next smaller of 1.0 and of -1.0; -0.0 and 0.0.
        assert_eq!((subtract(0x3f81, 0x3f80), subtract(0x3f7f, 0x3f80)), (2, 1));
        assert_eq!((subtract(0xbf7f, 0xbf80), subtract(0xbf81, 0xbf80)), (2, 1));
        assert_eq!((subtract(0x0000, 0x8000), subtract(0x8000, 0x0000)), (2, 1));
    }
}
