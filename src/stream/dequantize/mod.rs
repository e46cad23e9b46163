//! Shows the codes of a quantized weight as floats.
//!
//! [`Rows`] decodes the matrix as it is stored; [`Exchanged`] shows it with rows and columns exchanged. Both read the codes and
//! the rows of the tables that a range needs, and no others.

mod exchanged;
mod rows;
mod tables;

use std::collections::HashMap;
use std::sync::Arc;

use crate::format::files::safetensors::Weight;
use crate::model::{Dtype, Error, Result};
use crate::stream::{Computed, Stream};
use exchanged::Exchanged;
use rows::Rows;

/// The tensors of a weight, by name, each with the type of its elements.
pub type Parts = HashMap<String, (Stream, Dtype)>;

/// The values of a weight as elements of `to`, in row-major order of its shape.
pub fn dequantized(weight: &Arc<Weight>, parts: Parts, to: Dtype) -> Result<Arc<dyn Computed>> {
    let rows = Rows::new(weight.clone(), parts, to)?;
    Ok(if weight.is_transposed { Arc::new(Exchanged::new(rows)) } else { Arc::new(rows) })
}

/// The part with a name.
fn part<'a>(parts: &'a Parts, name: &str) -> Result<&'a (Stream, Dtype)> {
    parts.get(name).ok_or_else(|| Error::corrupt(format!("tensor {name:?} of a weight is missing")))
}
