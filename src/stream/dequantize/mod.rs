//! Shows the codes of a quantized weight as floats.
//!
//! [`Rows`] decodes the matrix as it is stored; [`Exchanged`] shows it with rows and columns exchanged. Both read the codes and
//! the rows of the tables that a range needs, and no others.

mod rows;
mod tables;
mod transpose;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::format::files::safetensors::Weight;
use crate::model::{Dtype, Error, Result};
use crate::stream::{Computed, Stream};
use rows::Rows;
use transpose::Exchanged;

/// The tensors of a weight, by name, each with the type of its elements.
pub type Parts = HashMap<String, (Stream, Dtype)>;

/// The values of a weight as elements of `to`, in row-major order of its shape. The first read reads the small tensors that
/// say how others lie.
pub struct Dequantized {
    weight: Arc<Weight>,
    to: Dtype,
    parts: Parts,
    made: OnceLock<Box<dyn Computed>>,
}

impl Dequantized {
    pub fn new(weight: Arc<Weight>, parts: Parts, to: Dtype) -> Dequantized {
        Dequantized { weight, to, parts, made: OnceLock::new() }
    }
}

impl Computed for Dequantized {
    fn bytes(&self) -> u64 {
        self.weight.shape.elements().saturating_mul(self.to.bytes())
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        if let Some(made) = self.made.get() {
            return made.read(range, out);
        }
        let rows = Rows::new(self.weight.clone(), &self.parts, self.to)?;
        let made: Box<dyn Computed> =
            if self.weight.is_transposed { Box::new(Exchanged::new(rows)?) } else { Box::new(rows) };
        self.made.get_or_init(|| made).read(range, out)
    }
}

/// The part with a name.
fn part<'a>(parts: &'a Parts, name: &str) -> Result<&'a (Stream, Dtype)> {
    parts.get(name).ok_or_else(|| Error::corrupt(format!("tensor {name:?} of a weight is missing")))
}
