//! Tensors whose elements lie in a container in another order than row-major, or where another tensor has them too.

use std::ops::Range;

use crate::model::{Dtype, Shape};

/// The place of the elements of a tensor in the bytes of its container. Its type has one element a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// The first element, in bytes from the container's start.
    pub begin: u64,
    /// Elements from one index of a dimension to the next, outermost first: one for each dimension.
    pub strides: Box<[u64]>,
}

impl View {
    /// The view of a tensor whose elements follow each other.
    pub fn contiguous(begin: u64, shape: &Shape) -> View {
        let mut step = 1_u64;
        let mut strides: Vec<u64> = Vec::with_capacity(shape.dimensions().len());
        for size in shape.dimensions().iter().rev() {
            strides.push(step);
            step = step.saturating_mul(*size);
        }
        strides.reverse();
        View { begin, strides: strides.into() }
    }

    /// The bytes from the first element to the end of the last one. `None` if they are more than can be counted, or
    /// there is not one stride for each dimension.
    pub fn range(&self, dtype: Dtype, shape: &Shape) -> Option<Range<u64>> {
        let sizes = shape.dimensions();
        if sizes.len() != self.strides.len() {
            return None;
        }
        if shape.elements() == 0 {
            return Some(self.begin..self.begin);
        }
        let steps = sizes.iter().zip(&self.strides);
        let last = steps
            .map(|(size, stride)| size.saturating_sub(1).checked_mul(*stride))
            .try_fold(0_u64, |sum, more| sum.checked_add(more?))?;
        let bytes = last.checked_add(1)?.checked_mul(dtype.bytes())?;
        let end = self.begin.checked_add(bytes).filter(|end| *end <= i64::MAX as u64)?;
        Some(self.begin..end)
    }
}

#[cfg(test)]
mod tests {
    use super::View;
    use crate::model::{Dtype, Shape};

    #[test]
    fn a_range_ends_after_the_element_that_lies_last() {
        let shape = Shape::new(&[3, 4]).unwrap();
        for (strides, end) in [([4, 1], 58), ([1, 3], 58), ([0, 1], 26), ([8, 2], 102)] {
            let view = View { begin: 10, strides: Box::new(strides) };
            assert_eq!(view.range(Dtype::F32, &shape), Some(10..end), "{strides:?}");
        }
        assert_eq!(View::contiguous(7, &shape), View { begin: 7, strides: Box::new([4, 1]) });
        let view = |strides: &[u64]| View { begin: 1, strides: strides.into() };
        assert_eq!(view(&[u64::MAX, 1]).range(Dtype::F32, &shape), None);
        assert_eq!(view(&[1 << 61, 1]).range(Dtype::F32, &shape), None);
        assert_eq!(view(&[1]).range(Dtype::F32, &shape), None);
        assert_eq!(view(&[1, 1]).range(Dtype::F32, &Shape::new(&[0, 4]).unwrap()), Some(1..1));
    }
}
