//! The shape of a tensor.

use std::fmt;

use smallvec::SmallVec;

/// A tensor has at most this many dimensions.
pub const DIMENSIONS_MAX: usize = 8;

/// The sizes of a tensor's dimensions in elements, outermost first. A shape without dimensions is a
/// scalar: one element.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Shape {
    // Most shapes have at most two dimensions, which are stored inline.
    sizes: SmallVec<[u64; 2]>,
}

impl Shape {
    /// A shape with these dimensions. `None` if there are more than [`DIMENSIONS_MAX`], or if their
    /// product exceeds 2^63 - 1.
    pub fn new(dimensions: &[u64]) -> Option<Shape> {
        if dimensions.len() > DIMENSIONS_MAX {
            return None;
        }
        // A zero makes the whole product zero, so the product of the other sizes is checked: readers
        // multiply in another order.
        let mut product: u64 = 1;
        for &size in dimensions.iter().filter(|&&size| size != 0) {
            product = product.checked_mul(size)?;
        }
        let mut sizes = SmallVec::with_capacity(dimensions.len());
        sizes.extend_from_slice(dimensions);
        (product <= i64::MAX as u64).then_some(Shape { sizes })
    }

    /// The dimensions, outermost first.
    pub fn dimensions(&self) -> &[u64] {
        &self.sizes
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.dimensions().iter().product()
    }

    /// Parses a shape like `4096x11008`. The empty text is a scalar.
    pub fn parse(text: &str) -> Option<Shape> {
        if text.is_empty() {
            return Some(Shape::default());
        }
        let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        let sizes: Option<Vec<u64>> =
            text.split('x').map(|part| digits(part).then(|| part.parse().ok()).flatten()).collect();
        Shape::new(&sizes?)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, size) in self.dimensions().iter().enumerate() {
            let cross = if place == 0 { "" } else { "x" };
            write!(out, "{cross}{size}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Shape;

    #[test]
    fn shapes_round_trip_as_text() {
        for text in ["", "0", "7", "4096x11008", "1x2x3x4x5x6x7x8"] {
            assert_eq!(Shape::parse(text).unwrap().to_string(), text);
        }
        for text in ["x", "3x", "-1", "+1", "1x2x3x4x5x6x7x8x9", "3 x 4", "4294967296x4294967296"] {
            assert_eq!(Shape::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_zero_does_not_hide_an_overflow() {
        assert_eq!(Shape::new(&[u64::MAX, u64::MAX, 0]), None);
        assert_eq!(Shape::new(&[5, 0]).unwrap().elements(), 0);
        assert_eq!(Shape::default().elements(), 1);
    }
}
