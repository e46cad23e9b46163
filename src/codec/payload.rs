//! The layout of a payload: the arithmetic of group sizes, and the ranges of codes.
//!
//! | tiers | one group of n values | full group |
//! |---|---|---|
//! | q8 | scale f32, n bytes | 68 |
//! | q7, q5, q3 | scale f32, `ceil(n * bits / 8)` bytes of codes | 60, 44, 28 |
//! | q3x | primary f32, secondary f32, `ceil(n / 8)` bytes of flags, `ceil(3 n / 8)` bytes of codes | 40 |
//!
//! Groups stand back to back without padding and restart at each block.

use crate::model::{Encoding, GROUP_LEN, Tier};

/// Bytes of a group's scale.
pub(super) const SCALE_LEN: usize = 4;

/// Bytes of the flags of a full two-level group.
pub(super) const FLAGS_LEN: usize = GROUP_LEN / 8;

/// Bytes of a full group's codes of `bits` bits.
pub(super) const fn codes_len(bits: usize) -> usize {
    GROUP_LEN * bits / 8
}

const _: () = assert!(SCALE_LEN + codes_len(8) == 68);
const _: () = assert!(SCALE_LEN + codes_len(7) == 60);
const _: () = assert!(SCALE_LEN + codes_len(5) == 44);
const _: () = assert!(SCALE_LEN + codes_len(3) == 28);
const _: () = assert!(2 * SCALE_LEN + FLAGS_LEN + codes_len(3) == 40);

/// Bytes of one group of `elements` values, at most [`GROUP_LEN`].
fn group_len(tier: Tier, elements: usize) -> Option<usize> {
    let bits = usize::from(tier.code_bits()?);
    let codes = (elements * bits).div_ceil(8);
    Some(match tier.encoding() {
        Encoding::TwoLevel => 2 * SCALE_LEN + elements.div_ceil(8) + codes,
        Encoding::Grouped | Encoding::Verbatim | Encoding::Ladder => SCALE_LEN + codes,
    })
}

/// Bytes of the payload of a block of `elements` elements in `tier`.
///
/// `None` for a tier without codes ([`Tier::Exact`], [`Tier::Absent`]) and for a
/// length past the address space.
pub fn payload_len(tier: Tier, elements: usize) -> Option<usize> {
    let full = group_offset(tier, elements / GROUP_LEN)?;
    match elements % GROUP_LEN {
        0 => Some(full),
        rest => full.checked_add(group_len(tier, rest)?),
    }
}

/// Byte offset in the payload of group number `group`, which is also the length of
/// the full groups before it. `None` as for [`payload_len`].
pub fn group_offset(tier: Tier, group: usize) -> Option<usize> {
    group_len(tier, GROUP_LEN)?.checked_mul(group)
}

/// The code that absmax assigns to the largest magnitude: 127, 63, 15, 3.
pub(super) const fn largest_code(bits: usize) -> i8 {
    ((1u8 << (bits - 1)) - 1) as i8
}

/// The codes that a group may have.
#[derive(Clone, Copy)]
pub(super) struct CodeRange {
    pub smallest: i8,
    pub largest: i8,
}

/// The codes of `bits` bits.
pub(super) fn code_range(bits: usize) -> CodeRange {
    let largest = largest_code(bits);
    let (smallest, largest) = if bits == 8 { (i8::MIN, largest) } else { (-largest, largest + 1) };
    CodeRange { smallest, largest }
}
