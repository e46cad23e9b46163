//! The sizes of the two matrices of a product.

use crate::model::Shape;

/// Largest rank that is merged. The numbers of a row are held in memory.
const RANK_MAX: u64 = 8192;

/// The sizes of two matrices, of which those of a convolution have further dimensions.
pub(super) struct Sizes<'a> {
    pub rank: u64,
    /// The dimensions of a row of `A`.
    pub inner: &'a [u64],
    /// Their product.
    pub columns: u64,
    /// Rows of `B`.
    pub outer: u64,
}

impl Sizes<'_> {
    /// `None` for matrices that have no product.
    pub fn of<'a>(a: &'a Shape, b: &Shape) -> Option<Sizes<'a>> {
        let (rank, inner) = a.dimensions().split_first()?;
        let (outer, rest) = b.dimensions().split_first()?;
        let (own_rank, ones) = rest.split_first()?;
        if own_rank != rank || *rank > RANK_MAX || ones.iter().any(|size| *size != 1) {
            return None;
        }
        let columns = inner.iter().try_fold(1_u64, |product, size| product.checked_mul(*size))?;
        Some(Sizes { rank: *rank, inner, columns, outer: *outer })
    }
}
