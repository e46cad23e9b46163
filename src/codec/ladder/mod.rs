//! The ladder encoding: lossless, about a third smaller for trained weights, with random access.
//!
//! A payload holds one block. Its elements are rotated so that the exponent of a float becomes one byte,
//! then stored as planes: plane i is byte i of every element. The bytes of a plane are raw, one constant,
//! a constant with exceptions (sparse), or a ladder: short codes of the most frequent bytes, level after
//! level; the last code of a level, its escape, refers to the next level. All numbers are little-endian.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 1 | version, 1 |
//! | 1 | 1 | w: bytes of an element, 1, 2, 4 or 8 |
//! | 2 | 1 | rotated: 1 if the top 16 bits of every element (all 8 if w is 1) are rotated left by one |
//! | 3 | 1 | zero |
//! | 4 | 4 | n: elements, 1 to 65,536 |
//! | 8 | 8 | mode of each plane: 0 raw, 1 constant, 2 ladder, 3 sparse; zero from plane w on |
//! | 16 | 8 | the byte of each constant or sparse plane, else zero |
//! | 24 | | a descriptor for each ladder (40 bytes) and sparse plane (8), then zeros to a multiple of 64 |
//! | | | the body of each plane |
//!
//! Descriptor of a ladder, with k levels, 1 to 4, of which level j has codes of width j (1 to 4 bits):
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 1 | l: number of low bits kept apart, 0 to 7 |
//! | 1 | 1 | k |
//! | 2 | 4 | width of each level, zero from level k on; `2^width - 1`, summed, is at most 16 |
//! | 6 | 2 | zero |
//! | 8 | 16 | u32 for each level: its number of escapes, zero from level k on |
//! | 24 | 16 | the symbols, level after level; their l low bits are zero |
//!
//! Descriptor of a sparse plane: the number of exceptions (u32), zero (u32).
//!
//! | mode | body |
//! |---|---|
//! | raw | n bytes |
//! | constant | none |
//! | ladder | if l is not 0, cells of the low bits; the cells of each level; the bytes that escaped from the last level, and zeros to a multiple of 8 |
//! | sparse | a u16 for each exception: its element; a byte for each; zeros to a multiple of 8 |
//!
//! A cell has 64 codes of one width: word j, of 64 bits, holds bit j of each. Codes after the last element
//! are zero. Level 0 has a code for each element, the next one a code for each escape before it. Code c is
//! symbol c of its level; the largest code is the escape. The byte of an element is its symbol OR its low bits.
//!
//! An example: 50 elements of BF16, of which the first ten are 0.5, 0.25, -0.5, 0.5, 0.5, 1.5, 0.5, -0.25, 0.5, 0.125;
//! then 0.5 and 0.25 in turns. (So short a block would stay verbatim; this one shows the parts.)
//!
//! ```text
//!   0  01 02 01 00 32 00 00 00   version 1, w 2, rotated, 0x32 = 50 elements
//!   8  00 02 00 00 00 00 00 00   plane 0 is raw, plane 1 a ladder
//!  16  00 00 00 00 00 00 00 00   no constant and no sparse plane
//!  24  00 01 02 00 00 00 00 00   the ladder: no low bits, 1 level of 2 bits
//!  32  01 00 00 00 00 00 00 00   1 escape
//!  40  00 00 00 00 00 00 00 00
//!  48  7e 7d 7c 7f 00 00 00 00   symbols 0 to 2; the fourth is not used by 2 bits
//!  56  00 00 00 00 00 00 00 00
//!  64  00 00 01 00 00 80 00 01 .. plane 0, 50 bytes: mantissa and sign; 01 is the sign of -0.5, 80 the half of 1.5
//! 114  a2 a8 aa aa aa aa 02 00   bit 0 of the codes of plane 1: set for elements 1, 5, 7, 11, 13, ...
//! 122  20 02 00 00 00 00 00 00   bit 1: set for elements 5 and 9
//! 130  7f 00 00 00 00 00 00 00   the escaped byte, and zeros
//! ```
//!
//! Element 0 has code 0, the symbol 7e: with its byte of plane 0 it is 7e00, rotated right by one 3f00, which is 0.5.
//! Element 1 has code 1, so 7d00 is 3e80, 0.25. Element 5 has both bits, code 3, which for 2 bits is the escape: it
//! takes 7f, and 7f80 is 3fc0, 1.5. Element 9 has code 2: 7c00 is 3e00, 0.125.

mod decode;
mod encode;
mod layout;
mod scratch;

pub use decode::{Block, decode, decode_on, decode_part};
pub use encode::{Split, encode, encode_on, encode_split};
pub use layout::{ELEMENTS_MAX, HEAD_MAX};
pub use scratch::Scratch;

use crate::model::Dtype;

/// Whether blocks of `elements` elements of `dtype` can be encoded: the types for which it saves space.
pub fn is_encodable(dtype: Dtype, elements: usize) -> bool {
    (1..=ELEMENTS_MAX).contains(&elements) && Split::of(dtype).is_some()
}
