//! Decodes the weights of quantized models to floats: `(code - zero) * scale`, rounded once.
//!
//! [`Row::decode`] decodes codes that follow each other. An [`Alphabet`] says how codes lie in bytes and which number each is;
//! scales and zero points are f32, one for each value or for each group of values.
//!
//! The product is exact where a code has at most 8 significant bits and a scale 16, so one rounding to the element type
//! suffices. Other products are rounded to odd in f32, and then to the element type, which gives the same result as one
//! rounding. Source: Boldo, Melquiond, "When double rounding is odd".

mod alphabet;
mod known_products;
mod look_up;
mod product;

pub use alphabet::Alphabet;
pub use known_products::KnownProducts;

use std::cell::RefCell;

use super::arch::InstructionSet;
use crate::model::{Dtype, Error, Result};
use look_up::LookUp;
use product::{Products, Scratch};

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::new()) };
}

/// Numbers that belong to the values of a row.
#[derive(Clone, Copy, Debug)]
pub enum Spread<'a> {
    /// One for each value.
    Each(&'a [f32]),
    /// One for each group of values.
    Groups {
        /// Values of a group.
        len: usize,
        /// Values that are left of the first group.
        first: usize,
        /// The numbers of the groups.
        numbers: &'a [f32],
    },
}

/// Codes that follow each other, with their scales.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The alphabet of the codes.
    pub alphabet: &'a Alphabet,
    /// The codes, in whole units of the alphabet.
    pub codes: &'a [u8],
    /// The values of the first unit to leave out.
    pub skip: usize,
    /// The scales.
    pub scales: Spread<'a>,
    /// The zero points, if there are any.
    pub zeros: Option<Spread<'a>>,
    /// A scale of all values, exactly 1 for a weight without it.
    pub factor: f32,
    /// A divisor of all values, exactly 1 for a weight without it.
    pub divisor: f32,
}

impl<'a> Spread<'a> {
    /// Whether there is a number for each of `count` values.
    fn covers(&self, count: usize) -> bool {
        match self {
            Spread::Each(numbers) => numbers.len() >= count,
            Spread::Groups { len, first, numbers } => {
                let more = count.saturating_sub(*first).div_ceil((*len).max(1));
                count == 0 || (*len > 0 && *first > 0 && numbers.len() > more)
            }
        }
    }

    fn numbers(self) -> &'a [f32] {
        match self {
            Spread::Each(numbers) | Spread::Groups { numbers, .. } => numbers,
        }
    }

    /// The length of a group, and the values that are left of the first.
    fn groups(self) -> Option<(usize, usize)> {
        match self {
            Spread::Each(_) => None,
            Spread::Groups { len, first, .. } => Some((len, first)),
        }
    }
}

impl Row<'_> {
    /// Decodes as many values as `out` has room for, as little-endian elements of `to`.
    ///
    /// Fails with [`Invalid`](crate::model::ErrorKind::Invalid) for a type other than f32, f16 and bf16, and if there are
    /// fewer codes, scales or zero points than values.
    pub fn decode(&self, to: Dtype, out: &mut [u8]) -> Result<()> {
        self.decode_with(InstructionSet::detected(), to, out)
    }

    /// [`Row::decode`] with an instruction set.
    pub fn decode_with(&self, set: InstructionSet, to: Dtype, out: &mut [u8]) -> Result<()> {
        let count = out.len() / to.bytes() as usize;
        let (bytes, values) = self.alphabet.unit();
        let are_codes =
            self.codes.len() / bytes >= (count + self.skip).div_ceil(values) && self.skip < values;
        let are_numbers = self.scales.covers(count) && self.zeros.is_none_or(|zeros| zeros.covers(count));
        if !are_codes || !are_numbers || count * to.bytes() as usize != out.len() {
            return Err(Error::invalid(format!(
                "{} bytes of codes do not give {count} values",
                self.codes.len()
            )));
        }
        SCRATCH.with_borrow_mut(|scratch| {
            match to {
                Dtype::F32 => set.run(Products::<4> { row: self, to, out, scratch }),
                Dtype::F16 | Dtype::Bf16 => match LookUp::new(self, to, out, scratch) {
                    Ok(look_up) => set.run(look_up),
                    Err(products) => set.run(products),
                },
                _ => return Err(Error::invalid(format!("weights in {to}"))),
            }
            Ok(())
        })
    }
}
