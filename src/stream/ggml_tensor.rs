//! The values of a tensor as a GGUF file has them: rows in another order, one more, or as quantized blocks.

use std::ops::Range;

use crate::codec::ggml;
use crate::model::{Dtype, Error, Result};
use crate::stream::Stream;
use crate::stream::byte_source::Computed;
use crate::stream::cast::cast;

/// Values to encode at a time: whole blocks of every type.
const STEP: u64 = 16 << 10;

/// Bytes of rows to bring into order at a time. Longer rows are read where they belong.
const ROWS_BYTES: u64 = 64 << 10;

/// The rows of heads with the two halves of each interleaved: the first row of the first half, the first of the second, and so on.
pub struct Interleaved {
    /// The rows as they are stored.
    pub source: Stream,
    /// The bytes of a row.
    pub row_bytes: u64,
    /// The rows of a head, an even number.
    pub head_rows: u64,
}

impl Interleaved {
    /// The place of a row among the stored rows.
    fn stored(&self, row: u64) -> u64 {
        let (head, number) = (row / self.head_rows, row % self.head_rows);
        head * self.head_rows + number % 2 * (self.head_rows / 2) + number / 2
    }

    /// Copies the rows of one head with these numbers in it. `at` is the first row of the head.
    fn head(&self, at: u64, rows: Range<u64>, out: &mut [u8]) -> Result<()> {
        let (pairs, half) = (rows.start / 2..rows.end.div_ceil(2), self.head_rows / 2);
        let row = usize::try_from(self.row_bytes).map_err(|_| Error::invalid("a row of too many bytes"))?;
        let mut stored = vec![0; (pairs.end - pairs.start) as usize * row];
        for side in 0..2 {
            self.source.read_exact((at + side * half + pairs.start) * self.row_bytes, &mut stored)?;
            for (pair, bytes) in pairs.clone().zip(stored.chunks_exact(row)) {
                let number = 2 * pair + side;
                if rows.contains(&number) {
                    let begin = (number - rows.start) as usize * row;
                    out[begin..begin + row].copy_from_slice(bytes);
                }
            }
        }
        Ok(())
    }
}

impl Computed for Interleaved {
    fn bytes(&self) -> u64 {
        self.source.bytes()
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let head_bytes = self.row_bytes * self.head_rows;
        if head_bytes == 0 {
            return Ok(());
        }
        let most = ROWS_BYTES / self.row_bytes;
        let (mut at, mut rest) = (range.start, out);
        let mut rows_read = Vec::new();
        while !rest.is_empty() {
            if most < 4 {
                let skip = at % self.row_bytes;
                let len = (self.row_bytes - skip).min(rest.len() as u64);
                let (here, after) = std::mem::take(&mut rest).split_at_mut(len as usize);
                self.source.read_exact(self.stored(at / self.row_bytes) * self.row_bytes + skip, here)?;
                at += len;
                rest = after;
                continue;
            }
            let head = at / head_bytes;
            let first = at % head_bytes / self.row_bytes;
            let skip = (at % self.row_bytes) as usize;
            let wanted = (rest.len() as u64 + skip as u64).div_ceil(self.row_bytes);
            let rows = first..(first + wanted.min(most)).min(self.head_rows);
            rows_read.resize(((rows.end - rows.start) * self.row_bytes) as usize, 0);
            self.head(head * self.head_rows, rows, &mut rows_read)?;
            let found = &rows_read[skip..];
            let len = found.len().min(rest.len());
            let (here, after) = std::mem::take(&mut rest).split_at_mut(len);
            here.copy_from_slice(&found[..len]);
            at += len as u64;
            rest = after;
        }
        Ok(())
    }
}

/// Floats and one, as f32.
pub struct Incremented {
    pub source: Stream,
    /// Their type. The sum is rounded to f16 where they are f16.
    pub from: Dtype,
}

impl Computed for Incremented {
    fn bytes(&self) -> u64 {
        self.from.elements_in(self.source.bytes()).saturating_mul(4)
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let step = STEP * 4;
        let mut done = range.start;
        while done < range.end {
            let first = done / 4;
            let end = range.end.min(done - done % 4 + step);
            let count = end.div_ceil(4) - first;
            let mut stored = vec![0; (count * self.from.bytes()) as usize];
            self.source.read_exact(first * self.from.bytes(), &mut stored)?;
            let mut wide = vec![0; count as usize * 4];
            cast(self.from, Dtype::F32, &stored, &mut wide)?;
            for bytes in wide.as_chunks_mut().0 {
                *bytes = (f32::from_le_bytes(*bytes) + 1.0).to_le_bytes();
            }
            if self.from == Dtype::F16 {
                cast(Dtype::F32, Dtype::F16, &wide, &mut stored)?;
                cast(Dtype::F16, Dtype::F32, &stored, &mut wide)?;
            }
            let skip = (done % 4) as usize;
            let target = (done - range.start) as usize..(end - range.start) as usize;
            let len = target.len();
            out[target].copy_from_slice(&wide[skip..skip + len]);
            done = end;
        }
        Ok(())
    }
}

/// Values of f32 as blocks of a quantized type of ggml.
pub struct Quantized {
    pub source: Stream,
    pub to: Dtype,
}

impl Computed for Quantized {
    fn bytes(&self) -> u64 {
        self.to.bytes_of(self.source.bytes() / 4).unwrap_or_default()
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let (each, narrow) = self.to.block();
        let most = STEP / each;
        let (mut at, mut rest) = (range.start, out);
        let (mut wide, mut blocks) = (Vec::new(), Vec::new());
        while !rest.is_empty() {
            let (first, skip) = (at / narrow, (at % narrow) as usize);
            let count = (rest.len() as u64 + skip as u64).div_ceil(narrow).min(most);
            wide.resize((count * each * 4) as usize, 0);
            self.source.read_exact(first * each * 4, &mut wide)?;
            blocks.resize((count * narrow) as usize, 0);
            ggml::quantize(self.to, &wide, &mut blocks)?;
            let found = &blocks[skip..];
            let len = found.len().min(rest.len());
            let (here, after) = std::mem::take(&mut rest).split_at_mut(len);
            here.copy_from_slice(&found[..len]);
            at += len as u64;
            rest = after;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{Incremented, Interleaved, Quantized};
    use crate::codec::ggml;
    use crate::model::{Dtype, Result};
    use crate::stream::{Computed, Segment, Stream};

    fn whole(computed: &dyn Computed) -> Vec<u8> {
        let mut out = vec![0; computed.bytes() as usize];
        computed.read(0..computed.bytes(), &mut out).unwrap();
        out
    }

    /// Every range reads as that part of the whole.
    fn check_ranges(computed: &dyn Computed) {
        let all = whole(computed);
        for begin in (0..all.len()).step_by(7) {
            for len in [1, 5, 70, 4000] {
                let end = (begin + len).min(all.len());
                let mut out = vec![0; end - begin];
                computed.read(begin as u64..end as u64, &mut out).unwrap();
                assert!(out == all[begin..end], "{begin}..{end}");
            }
        }
    }

    #[test]
    fn halves_of_heads_are_interleaved() {
        // Rows of 3 bytes, numbered; heads of 4.
        let rows: Vec<u8> = (0..12).flat_map(|row| [row; 3]).collect();
        let source = Stream::new(vec![Segment::literal(rows)]).unwrap();
        let made = Interleaved { source, row_bytes: 3, head_rows: 4 };
        let order: Vec<u8> = whole(&made).chunks(3).map(|row| row[0]).collect();
        assert_eq!(order, [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11]);
        check_ranges(&made);
    }

    /// Rows of numbers, which notes the most bytes that it was asked for.
    struct Rows(u64, AtomicUsize);

    impl Computed for Rows {
        fn bytes(&self) -> u64 {
            self.0
        }

        fn read(&self, range: std::ops::Range<u64>, out: &mut [u8]) -> Result<()> {
            self.1.fetch_max(out.len(), Ordering::Relaxed);
            out.iter_mut().zip(range).for_each(|(byte, at)| *byte = (at % 251) as u8);
            Ok(())
        }
    }

    #[test]
    fn a_part_of_a_long_row_is_read_alone() {
        let row_bytes = 20 << 20;
        let rows = Arc::new(Rows(8 * row_bytes, AtomicUsize::new(0)));
        let source = Stream::new(vec![Segment::Computed(rows.clone())]).unwrap();
        let made = Interleaved { source, row_bytes, head_rows: 4 };
        let mut found = [0; 100];
        // The end of row 4, which is stored as row 4, and the begin of row 5, which is stored as row 6.
        made.read(5 * row_bytes - 50..5 * row_bytes + 50, &mut found).unwrap();
        let byte = |at: u64| (at % 251) as u8;
        let wanted: Vec<u8> = (0..50)
            .map(|at| byte(5 * row_bytes - 50 + at))
            .chain((0..50).map(|at| byte(6 * row_bytes + at)))
            .collect();
        assert_eq!(found.to_vec(), wanted);
        assert_eq!(rows.1.load(Ordering::Relaxed), 50);
    }

    #[test]
    fn one_is_added_in_the_type_of_the_source() {
        let halves =
            [half::f16::from_f32(2.0_f32.powi(-11)), half::f16::from_f32(1.5), half::f16::from_f32(-0.25)];
        let bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
        let source = Stream::new(vec![Segment::literal(bytes)]).unwrap();
        let made = Incremented { source, from: Dtype::F16 };
        let values: Vec<f32> =
            whole(&made).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(values, [1.0, 2.5, 0.75]);
        check_ranges(&made);
    }

    #[test]
    fn blocks_are_encoded_where_they_are_read() {
        let bytes: Vec<u8> =
            (0..32 * 1200).flat_map(|at| ((at * 7919 % 1000) as f32 / 500.0 - 1.0).to_le_bytes()).collect();
        for to in ggml::ENCODED_TYPES {
            let source = Stream::new(vec![Segment::literal(bytes.clone())]).unwrap();
            let made = Quantized { source, to };
            let mut wanted = vec![0; made.bytes() as usize];
            ggml::quantize(to, &bytes, &mut wanted).unwrap();
            let made: Arc<dyn Computed> = Arc::new(made);
            assert!(whole(&*made) == wanted);
            check_ranges(&*made);
        }
    }
}
