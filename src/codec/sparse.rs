//! Sparse exact differences: the elements in which two versions differ, as small numbers.
//!
//! A payload has for each changed element, ascending, two varints (seven bits a byte, the lowest first, the highest bit
//! of a byte set if another follows): the number of equal elements before it, and `z = (d << 1) XOR (d >> 63)`, where
//! `d` is the new element minus the old one modulo `2^(8 * width)`, as a signed number. Elements are little-endian
//! numbers of 1, 2, 4 or 8 bytes, whatever their type: floats of one sign that are neighbours differ by 1.
//!
//! Example, width 2: from `00 01 02 03 04 05` to `00 01 02 03 05 05` the payload is `02 02`.

use crate::model::{Error, Result};

/// Bytes that are compared at a time. A multiple of each width.
const STEP: usize = 64;

/// Appends the difference of `block` from `base` to `out`. Returns whether it did; a payload of more than `bytes_max`
/// is given up. `width` is 1, 2, 4 or 8; `base` and `block` have the same number of whole elements.
pub fn encode_sparse(width: usize, base: &[u8], block: &[u8], bytes_max: usize, out: &mut Vec<u8>) -> bool {
    debug_assert!(
        base.len() == block.len() && matches!(width, 1 | 2 | 4 | 8) && block.len().is_multiple_of(width)
    );
    // An array of a known length is compared as one number.
    match width {
        2 => encode_elements::<2>(base, block, bytes_max, out),
        4 => encode_elements::<4>(base, block, bytes_max, out),
        8 => encode_elements::<8>(base, block, bytes_max, out),
        _ => encode_elements::<1>(base, block, bytes_max, out),
    }
}

fn encode_elements<const WIDTH: usize>(
    base: &[u8],
    block: &[u8],
    bytes_max: usize,
    out: &mut Vec<u8>,
) -> bool {
    let (begin, mut equal) = (out.len(), 0_u64);
    for (old, new) in base.chunks(STEP).zip(block.chunks(STEP)) {
        if old == new {
            equal += (old.len() / WIDTH) as u64;
            continue;
        }
        for (old, new) in old.as_chunks::<WIDTH>().0.iter().zip(new.as_chunks::<WIDTH>().0) {
            if old == new {
                equal += 1;
                continue;
            }
            put_varint(out, equal);
            let difference = number(new).wrapping_sub(number(old));
            let signed = signed(difference, WIDTH);
            put_varint(out, ((signed << 1) ^ (signed >> 63)) as u64);
            equal = 0;
        }
        if out.len() - begin > bytes_max {
            out.truncate(begin);
            return false;
        }
    }
    true
}

/// The number of elements of 1, 2, 4 or 8 bytes in which `block` differs from `base`; of each only whole elements count.
pub fn changed_elements(width: usize, base: &[u8], block: &[u8]) -> usize {
    match width {
        2 => count::<2>(base, block),
        4 => count::<4>(base, block),
        8 => count::<8>(base, block),
        _ => count::<1>(base, block),
    }
}

fn count<const WIDTH: usize>(base: &[u8], block: &[u8]) -> usize {
    let elements = base.as_chunks::<WIDTH>().0.iter().zip(block.as_chunks::<WIDTH>().0);
    elements.filter(|(old, new)| old != new).count()
}

/// Turns `block`, which holds the base, into the version that a sparse difference from it encodes.
///
/// Errors: [`Corrupt`](crate::model::ErrorKind::Corrupt) if `payload` is not a difference of such a block; `block` may
/// be partly changed then.
pub fn add_sparse(width: usize, payload: &[u8], block: &mut [u8]) -> Result<()> {
    let wrong = || Error::corrupt("a sparse difference that does not fit its block");
    let (mut rest, mut elements) = (payload, block.chunks_exact_mut(width));
    while !rest.is_empty() {
        let equal = take_varint(&mut rest).and_then(|equal| usize::try_from(equal).ok());
        let element = equal.and_then(|equal| elements.nth(equal));
        let (Some(element), Some(z)) = (element, take_varint(&mut rest)) else { return Err(wrong()) };
        let signed = (z >> 1) as i64 ^ -((z & 1) as i64);
        let new = number(element).wrapping_add(signed as u64);
        let bytes = new.to_le_bytes();
        element.iter_mut().zip(bytes).for_each(|(byte, new)| *byte = new);
    }
    Ok(())
}

/// The number of a little-endian element.
fn number(element: &[u8]) -> u64 {
    element.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The lowest bytes of a number as a signed one.
fn signed(number: u64, width: usize) -> i64 {
    let unused = 64 - 8 * width as u32;
    ((number << unused) as i64) >> unused
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for place in 0..10 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit.
        if place == 9 && bits > 1 {
            return None;
        }
        number |= bits << (7 * place);
        if *byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{add_sparse, changed_elements, encode_sparse};

    #[test]
    fn the_example_of_the_module_is_what_the_encoder_writes() {
        let mut payload = Vec::new();
        assert!(encode_sparse(2, &[0, 1, 2, 3, 4, 5], &[0, 1, 2, 3, 5, 5], 9, &mut payload));
        assert_eq!(payload, [2, 2]);
    }

    proptest! {
        #[test]
        fn a_block_is_made_again_of_its_base_and_the_difference(
            width in prop::sample::select(vec![1_usize, 2, 4, 8]),
            base in prop::collection::vec(any::<u8>(), 0..600),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        ) {
            let base = &base[..base.len() / width * width];
            let mut block = base.to_vec();
            for (at, byte) in changes.iter().filter(|_| !base.is_empty()) {
                block[at.index(base.len())] = *byte;
            }
            let mut payload = vec![7];
            prop_assert!(encode_sparse(width, base, &block, usize::MAX, &mut payload));
            let mut found = base.to_vec();
            add_sparse(width, &payload[1..], &mut found).unwrap();
            prop_assert_eq!(&found, &block);
            prop_assert_eq!(payload.len() == 1, base == block);
            let changed = base.chunks(width).zip(block.chunks(width)).filter(|(old, new)| old != new).count();
            prop_assert_eq!(changed_elements(width, base, &block), changed);
        }

        #[test]
        fn any_payload_is_applied_or_refused(
            width in prop::sample::select(vec![1_usize, 2, 4, 8]),
            payload in prop::collection::vec(any::<u8>(), 0..60),
            mut block in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            drop(add_sparse(width, &payload, &mut block));
        }
    }

    #[test]
    fn a_difference_that_grows_too_long_is_given_up_and_a_wrong_one_is_refused() {
        let (base, block, mut out) = (vec![0; 4096], vec![0xff; 4096], vec![1, 2, 3]);
        assert!(!encode_sparse(2, &base, &block, 100, &mut out));
        assert_eq!(out, [1, 2, 3]);
        for payload in [&[0][..], &[5, 2], &[0x80], &[0xff; 12]] {
            assert!(add_sparse(2, payload, &mut [0; 8]).is_err(), "{payload:?}");
        }
    }
}
