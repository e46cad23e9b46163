//! The largest singular values of a matrix, with the vectors of its shorter side.
//!
//! Small matrices are decomposed whole: the squared singular values are the eigenvalues of the product of the
//! matrix with its own transpose. The time of that grows with the third power of the side. Of larger ones
//! only a subspace is computed, by block power iteration from random vectors (Halko, Martinsson, Tropp: Finding
//! structure with randomness), on all cores.

use nalgebra::{DMatrix, SymmetricEigen};
use rayon::prelude::*;

/// Matrices with a shorter side up to this are decomposed whole.
const WHOLE_MAX: usize = 512;
/// Vectors beyond those that are asked for, as a part of these, and the least number.
const MORE_PART: usize = 4;
const MORE_MIN: usize = 16;
/// The iteration ends when it finds less than this part more of the squares of all elements,
const GAIN_MIN: f64 = 1e-6;
/// or after so many steps.
const STEPS_MAX: usize = 24;
/// Squares below this part of the largest are those of rounding errors.
const SQUARE_MIN: f64 = 1e-14;

/// Largest singular values, descending.
pub(super) struct Leading {
    pub squares: Vec<f64>,
    /// A column for each, of unit length: the singular vectors of the shorter side.
    pub vectors: DMatrix<f64>,
}

/// A matrix with at least as many rows as columns.
pub(super) struct Tall {
    matrix: DMatrix<f64>,
    transposed: DMatrix<f64>,
    /// The sum of the squares of its elements, and so of its singular values.
    pub total: f64,
}

impl Tall {
    pub fn new(matrix: DMatrix<f64>) -> Tall {
        let (transposed, total) = (matrix.transpose(), matrix.norm_squared());
        Tall { matrix, transposed, total }
    }

    pub fn side(&self) -> usize {
        self.matrix.ncols()
    }

    /// The `rank` largest singular values, or all.
    pub fn leading(&self, rank: usize) -> Leading {
        let width = rank.saturating_add((rank / MORE_PART).max(MORE_MIN));
        let mut found = if self.side() <= WHOLE_MAX || width > self.side() / 3 {
            leading_of(&product(&self.transposed, &self.matrix))
        } else {
            self.iterated(rank, width)
        };
        let rank = rank.min(found.squares.len());
        found.squares.truncate(rank);
        found.vectors = found.vectors.columns(0, rank).into_owned();
        found
    }

    /// The fewest largest singular values whose squares sum up to this part of all, at most `rank_max`.
    /// Otherwise `rank_max` and one more.
    pub fn with_energy(&self, energy: f64, rank_max: usize) -> Leading {
        let most = rank_max.saturating_add(1).min(self.side());
        let mut rank = if self.side() <= WHOLE_MAX { most } else { MORE_MIN.min(most) };
        loop {
            let mut found = self.leading(rank);
            let mut sum = 0.0;
            let reached = found.squares.iter().position(|square| {
                sum += square;
                sum >= energy * self.total
            });
            if let Some(count) = reached.map(|place| place + 1).or_else(|| (rank == most).then_some(rank)) {
                found.squares.truncate(count);
                found.vectors = found.vectors.columns(0, found.squares.len()).into_owned();
                return found;
            }
            rank = rank.saturating_mul(2).min(most);
        }
    }

    /// The other side's vectors, times the singular values.
    pub fn times(&self, vectors: &DMatrix<f64>) -> DMatrix<f64> {
        product(&self.matrix, vectors)
    }

    fn iterated(&self, rank: usize, width: usize) -> Leading {
        let mut vectors = orthonormal(random(self.side(), width));
        let (mut before, mut steps) = (0.0, 0);
        loop {
            let image = self.times(&vectors);
            let small = leading_of(&product(&image.transpose(), &image));
            let sum: f64 = small.squares.iter().take(rank).sum();
            steps += 1;
            if sum - before <= GAIN_MIN * self.total && steps > 1 || steps == STEPS_MAX {
                return Leading { squares: small.squares, vectors: product(&vectors, &small.vectors) };
            }
            before = sum;
            vectors = orthonormal(product(&self.transposed, &image));
        }
    }
}

/// The eigenvalues and eigenvectors of a product of a matrix with its transpose, the largest first.
fn leading_of(product: &DMatrix<f64>) -> Leading {
    let eigen = SymmetricEigen::new(product.clone());
    let square = |place: usize| eigen.eigenvalues.get(place).copied().unwrap_or(0.0).max(0.0);
    let mut order: Vec<usize> = (0..eigen.eigenvalues.len()).collect();
    order.sort_by(|one, other| square(*other).total_cmp(&square(*one)));
    let squares = order.iter().map(|place| square(*place)).collect();
    Leading { squares, vectors: eigen.eigenvectors.select_columns(&order) }
}

/// A product, on all cores.
fn product(left: &DMatrix<f64>, right: &DMatrix<f64>) -> DMatrix<f64> {
    let count = right.ncols();
    let width = count.div_ceil(rayon::current_num_threads()).max(1);
    let starts: Vec<usize> = (0..count).step_by(width).collect();
    let parts: Vec<DMatrix<f64>> =
        starts.into_par_iter().map(|start| left * right.columns(start, width.min(count - start))).collect();
    let columns: Vec<f64> = parts.iter().flat_map(|part| part.iter().copied()).collect();
    DMatrix::from_vec(left.nrows(), count, columns)
}

/// Columns of unit length, at right angles to each other, that span the same space. Columns that others span
/// already become zeros.
fn orthonormal(mut vectors: DMatrix<f64>) -> DMatrix<f64> {
    // A second pass corrects the rounding of the first.
    for _ in 0..2 {
        let found = leading_of(&product(&vectors.transpose(), &vectors));
        let least = found.squares.first().copied().unwrap_or(0.0) * SQUARE_MIN;
        let mut turned = product(&vectors, &found.vectors);
        for (mut column, square) in turned.column_iter_mut().zip(&found.squares) {
            column *= if *square > least { square.sqrt().recip() } else { 0.0 };
        }
        vectors = turned;
    }
    vectors
}

/// The same random numbers every time, with a mean of zero.
fn random(rows: usize, columns: usize) -> DMatrix<f64> {
    let mut state = 0_u64;
    DMatrix::from_fn(rows, columns, |_, _| {
        // Steele, Lea, Flood: SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    })
}

#[cfg(test)]
mod tests {
    use super::{DMatrix, Tall, random};

    /// A matrix whose singular values fall from 1 to `least`.
    fn falling(rows: usize, columns: usize, least: f64) -> Tall {
        let left = super::orthonormal(random(rows, columns));
        let right = super::orthonormal(random(columns, columns).transpose());
        let scale = |place: usize| least.powf(place as f64 / (columns - 1) as f64);
        let scaled = DMatrix::from_fn(rows, columns, |row, column| left[(row, column)] * scale(column));
        Tall::new(scaled * right.transpose())
    }

    #[test]
    fn the_iteration_finds_what_the_whole_decomposition_finds() {
        // The slower the singular values fall, the less sharp the subspace is.
        for (least, lost_max) in [(1e-6, 1e-3), (0.2, 1e-3), (0.9, 3e-3)] {
            let tall = falling(700, 600, least);
            let whole = super::leading_of(&super::product(&tall.transposed, &tall.matrix));
            for rank in [1, 20, 64] {
                let found = tall.iterated(rank, rank + 16);
                let sum = |squares: &[f64]| squares.iter().take(rank).sum::<f64>();
                let (found_sum, best) = (sum(&found.squares), sum(&whole.squares));
                let lost = (best - found_sum) / tall.total;
                assert!((-1e-9..lost_max).contains(&lost), "rank {rank} of {least}: {lost} is lost");
                let image = tall.times(&found.vectors.columns(0, rank).into_owned());
                assert!((image.norm_squared() - found_sum).abs() < 1e-6 * tall.total);
            }
        }
    }

    #[test]
    fn the_rank_of_an_energy_is_the_least_that_has_it() {
        for columns in [90, 600] {
            let tall = falling(700, columns, 1e-3);
            let whole = super::leading_of(&super::product(&tall.transposed, &tall.matrix));
            for energy in [0.5, 0.9] {
                let mut sum = 0.0;
                let reached = whole.squares.iter().position(|square| {
                    sum += square;
                    sum >= energy * tall.total
                });
                let wanted = reached.unwrap() + 1;
                let found = tall.with_energy(energy, columns).squares.len();
                assert!((wanted..=wanted + 1).contains(&found), "{found}, not {wanted}");
                assert_eq!(tall.with_energy(energy, 3).squares.len(), wanted.min(4));
            }
        }
    }

    #[test]
    fn a_matrix_of_lower_rank_has_singular_values_of_zero() {
        let tall = Tall::new(random(700, 5) * random(5, 600));
        let found = tall.leading(20);
        assert_eq!(found.squares.len(), 20);
        let sum: f64 = found.squares.iter().take(5).sum();
        assert!((sum - tall.total).abs() < 1e-9 * tall.total && found.squares[5] < 1e-9 * tall.total);
        let image = tall.times(&found.vectors);
        assert!(image.iter().all(|value| value.is_finite()));
    }
}
