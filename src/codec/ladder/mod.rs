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
