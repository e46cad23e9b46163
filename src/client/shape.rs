//! The shape of a tensor.

/// A tensor has at most this many dimensions.
pub(crate) const DIMENSIONS_MAX: usize = 8;

/// The sizes of a tensor's dimensions, outermost first, whose product can be counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    sizes: Box<[usize]>,
}

impl Shape {
    /// `None` for too many dimensions, and for a product over the largest size that a slice can have.
    pub fn new(sizes: Vec<usize>) -> Option<Shape> {
        if sizes.len() > DIMENSIONS_MAX {
            return None;
        }
        // A zero does not excuse the other sizes: programs multiply in any order.
        let mut product: usize = 1;
        for size in sizes.iter().filter(|size| **size != 0) {
            product = product.checked_mul(*size)?;
        }
        isize::try_from(product).is_ok().then(|| Shape { sizes: sizes.into() })
    }

    /// Parses a value of the attribute, such as `4096x11008`. The empty text is a scalar.
    pub fn parse(text: &str) -> Option<Shape> {
        if text.is_empty() {
            return Shape::new(Vec::new());
        }
        let mut sizes = Vec::new();
        for part in text.split('x').take(DIMENSIONS_MAX + 1) {
            let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            sizes.push(if is_number { part.parse().ok()? } else { return None });
        }
        Shape::new(sizes)
    }

    pub fn dimensions(&self) -> &[usize] {
        &self.sizes
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.sizes.iter().product()
    }
}

#[cfg(test)]
mod tests {
    use super::Shape;

    #[test]
    fn texts_of_attributes_are_parsed() {
        for (text, sizes) in [("", [].as_slice()), ("0", &[0]), ("7", &[7]), ("4096x11008", &[4096, 11008])] {
            assert_eq!(Shape::parse(text).unwrap().dimensions(), sizes, "{text}");
        }
        assert_eq!(Shape::parse("").unwrap().elements(), 1);
        assert_eq!(Shape::parse("3x0x5").unwrap().elements(), 0);
    }

    #[test]
    fn hostile_texts_are_no_shapes() {
        let nine = "1x1x1x1x1x1x1x1x1";
        let long = "1x".repeat(40_000);
        for text in
            ["x", "3x", "-1", "+1", "3 x 4", "1\n", "4294967296x4294967296", "0x18446744073709551615x2", nine]
        {
            assert_eq!(Shape::parse(text), None, "{text}");
        }
        assert_eq!(Shape::parse(&long), None);
    }
}
