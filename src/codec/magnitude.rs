//! The largest magnitude of many values.

use super::arch::{Group, InstructionSet, Job, Kernel, LANES};

impl InstructionSet {
    /// [`max_abs`](super::max_abs) with this set.
    pub fn max_abs(self, values: &[f32]) -> f32 {
        self.run(MaxAbs { values })
    }
}

struct MaxAbs<'a> {
    values: &'a [f32],
}

impl Job for MaxAbs<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> f32 {
        let load = |values: &[f32; LANES]| {
            let mut bytes = [0; 4 * LANES];
            for (element, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                *element = value.to_le_bytes();
            }
            kernel.load_f32(&bytes)
        };
        let (vectors, rest) = self.values.as_chunks::<LANES>();
        let (fours, vectors) = vectors.as_chunks::<4>();
        let mut largest = [kernel.splat(0.0); 4];
        for four in fours {
            for (largest, values) in largest.iter_mut().zip(four) {
                *largest = kernel.larger_magnitude(*largest, load(values));
            }
        }
        for values in vectors {
            largest[0] = kernel.larger_magnitude(largest[0], load(values));
        }
        let mut last = [0.0; LANES];
        last[..rest.len()].copy_from_slice(rest);
        largest[0] = kernel.larger_magnitude(largest[0], load(&last));
        magnitude(kernel, largest)
    }
}

/// The largest magnitude of a group; a NaN if a value is a NaN.
#[inline(always)]
pub(super) fn magnitude<K: Kernel>(kernel: K, group: Group<K>) -> f32 {
    let [a, b, c, d] = group;
    let ab = kernel.larger_magnitude(a, b);
    let cd = kernel.larger_magnitude(c, d);
    kernel.largest(kernel.larger_magnitude(ab, cd))
}
