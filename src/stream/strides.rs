//! The elements of a tensor in row-major order, from bytes in which they lie in another one.
//!
//! A range of elements in row-major order is a few boxes: products of ranges of indices. The axes of a box are walked
//! in the order of the source. One read fetches a stretch of the source where that costs less than a read for each part
//! of it.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::model::{DIMENSIONS_MAX, Error, ErrorKind, Result};
use crate::store::StridedElements;
use crate::stream::Stream;
use crate::stream::byte_source::Computed;

/// Longest stretch of the source that is fetched to put its elements elsewhere.
const FETCH_BYTES_MAX: u64 = 1 << 20;
/// Bytes that are read in about the time that one more read of exact bytes takes.
const READ_COST_BYTES: u64 = 4096;

/// The elements of a tensor, read from a stream in which they lie.
pub struct Strided {
    elements: Arc<StridedElements>,
    source: Stream,
    /// Bytes that are read in about the time that one more read takes.
    read_cost_bytes: u64,
}

/// A dimension of a box: the number of indices, and the bytes from one to the next in the source and in the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Axis {
    count: u64,
    source: u64,
    result: u64,
}

/// Elements at the indices of some axes, of which the first has the largest steps in the source. Their first byte in
/// the source, and in the result.
#[derive(Clone, Debug)]
struct Grid {
    source: u64,
    result: u64,
    axes: SmallVec<[Axis; DIMENSIONS_MAX]>,
}

impl Strided {
    /// The elements in `source`.
    pub fn new(elements: Arc<StridedElements>, source: Stream) -> Strided {
        Strided { elements, source, read_cost_bytes: READ_COST_BYTES }
    }

    /// The elements in a source that decodes whole blocks of so many bytes, also to read a part of one.
    pub fn with_blocks(self, block_bytes: u64) -> Strided {
        Strided { read_cost_bytes: block_bytes.max(READ_COST_BYTES), ..self }
    }

    /// Fills `out` from a byte of the source. Fails with `Busy` if the source has become shorter.
    fn fill(&self, source: u64, out: &mut [u8]) -> Result<()> {
        match self.source.read(source, out) {
            Ok(bytes) if bytes == out.len() => Ok(()),
            Err(error) if error.kind() != ErrorKind::Invalid => Err(error),
            _ => Err(Error::new(ErrorKind::Busy, "its elements were cut off; open it again")),
        }
    }

    /// Fetches the elements of a grid into `out`.
    fn fetch(&self, grid: &Grid, fetched: &mut Vec<u8>, out: &mut [u8]) -> Result<()> {
        let size = self.elements.element_bytes;
        let Grid { source, result, axes } = grid;
        let whole = span(axes, size);
        let Some((first, rest)) = axes.split_first() else {
            return self.fill(*source, part(out, *result, size)?);
        };
        if rest.is_empty() && (first.source, first.result) == (size, size) {
            return self.fill(*source, part(out, *result, whole)?);
        }
        let inner = span(rest, size);
        let each = inner.saturating_add(self.read_cost_bytes);
        if whole <= FETCH_BYTES_MAX && whole <= first.count.saturating_mul(each) {
            fetched.resize(whole as usize, 0);
            self.fill(*source, fetched)?;
            return put(fetched, axes, size, part(out, *result, result_span(axes, size))?);
        }
        // As many indices as one fetch is worth.
        let worth =
            if first.source <= each { FETCH_BYTES_MAX.saturating_sub(inner) / first.source } else { 0 };
        let step = (worth + 1).min(first.count);
        let mut at = 0;
        while at < first.count {
            let count = step.min(first.count - at);
            let own = (count > 1).then_some(Axis { count, ..*first });
            let grid = Grid {
                source: source + at * first.source,
                result: result + at * first.result,
                axes: own.into_iter().chain(rest.iter().copied()).collect(),
            };
            self.fetch(&grid, fetched, out)?;
            at += count;
        }
        Ok(())
    }
}

impl Computed for Strided {
    fn bytes(&self) -> u64 {
        self.elements.bytes()
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let size = self.elements.element_bytes;
        let elements = range.start / size..range.end.div_ceil(size);
        if elements.is_empty() {
            return Ok(());
        }
        let mut fetched = Vec::new();
        let is_whole = range.start.is_multiple_of(size) && range.end.is_multiple_of(size);
        if is_whole {
            return grids(&self.elements, elements)
                .iter()
                .try_for_each(|grid| self.fetch(grid, &mut fetched, out));
        }
        let skip = range.start - elements.start * size;
        let mut whole = vec![0; ((elements.end - elements.start) * size) as usize];
        self.read(elements.start * size..elements.end * size, &mut whole)?;
        out.copy_from_slice(part(&mut whole, skip, out.len() as u64)?);
        Ok(())
    }
}

/// The bytes from the first element to the end of the last one.
fn span(axes: &[Axis], size: u64) -> u64 {
    axes.iter().map(|axis| (axis.count - 1) * axis.source).sum::<u64>() + size
}

fn result_span(axes: &[Axis], size: u64) -> u64 {
    axes.iter().map(|axis| (axis.count - 1) * axis.result).sum::<u64>() + size
}

fn part(bytes: &mut [u8], at: u64, len: u64) -> Result<&mut [u8]> {
    let part = bytes.get_mut(at as usize..(at + len) as usize);
    part.ok_or_else(|| Error::invalid("an element past the end of a view"))
}

/// Copies elements from their places in the source to those in the result.
fn put(source: &[u8], axes: &[Axis], size: u64, out: &mut [u8]) -> Result<()> {
    let Some((first, rest)) = axes.split_first() else {
        return copy(source, out, size);
    };
    if rest.is_empty() {
        match size {
            1 => return put_each::<1>(source, *first, out),
            2 => return put_each::<2>(source, *first, out),
            4 => return put_each::<4>(source, *first, out),
            8 => return put_each::<8>(source, *first, out),
            _ => {}
        }
    }
    let past = || Error::invalid("an element past the end of a view");
    for index in 0..first.count {
        let source = source.get((index * first.source) as usize..).ok_or_else(past)?;
        let out = out.get_mut((index * first.result) as usize..).ok_or_else(past)?;
        put(source, rest, size, out)?;
    }
    Ok(())
}

fn copy(source: &[u8], out: &mut [u8], size: u64) -> Result<()> {
    match (source.get(..size as usize), out.get_mut(..size as usize)) {
        (Some(source), Some(out)) => out.copy_from_slice(source),
        _ => return Err(Error::invalid("an element past the end of a view")),
    }
    Ok(())
}

/// Copies the elements of one axis, of `N` bytes each.
fn put_each<const N: usize>(source: &[u8], axis: Axis, out: &mut [u8]) -> Result<()> {
    let Axis { count, source: from, result: to } = axis;
    let (from, to) = (from as usize, to as usize);
    let last = (count - 1) as usize;
    if source.len() < last * from + N || out.len() < last * to + N {
        return Err(Error::invalid("an element past the end of a view"));
    }
    if (from, to) == (N, N) {
        out[..(last + 1) * N].copy_from_slice(&source[..(last + 1) * N]);
        return Ok(());
    }
    for index in 0..=last {
        out[index * to..][..N].copy_from_slice(&source[index * from..][..N]);
    }
    Ok(())
}

/// The grids that have the elements of a range in row-major order. Places in the result count from the first.
fn grids(elements: &StridedElements, range: Range<u64>) -> Vec<Grid> {
    let size = elements.element_bytes;
    let mut dimensions = Vec::with_capacity(elements.dimensions.len());
    let mut step = size;
    for (count, source) in elements.dimensions.iter().rev() {
        dimensions.push(Axis { count: *count, source: *source, result: step });
        step = step.saturating_mul(*count);
    }
    dimensions.reverse();
    let mut found = Vec::new();
    cut(&dimensions, range, size, GridBegin { source: elements.begin, result: 0 }, &mut found);
    found
}

/// The first byte of a grid in the source and in the result.
#[derive(Clone, Copy)]
struct GridBegin {
    source: u64,
    result: u64,
}

/// Cuts a range of the elements of some dimensions into grids. The first element of the dimensions lies at byte `source`
/// of the source; `result` bytes of the result come before the range.
fn cut(dimensions: &[Axis], range: Range<u64>, size: u64, begin: GridBegin, found: &mut Vec<Grid>) {
    let GridBegin { source, result } = begin;
    let Some((first, rest)) = dimensions.split_first() else {
        found.push(Grid { source, result, axes: SmallVec::new() });
        return;
    };
    let inner = first.result / size;
    let (mut begin, mut end) = (range.start / inner, range.end / inner);
    let place = |index: u64, inside: u64| {
        let before = index * inner + inside - range.start;
        GridBegin { source: source + index * first.source, result: result + before * size }
    };
    if begin == end {
        let inside = range.start % inner..range.end % inner;
        cut(rest, inside.clone(), size, place(begin, inside.start), found);
        return;
    }
    if !range.start.is_multiple_of(inner) {
        let inside = range.start % inner..inner;
        cut(rest, inside.clone(), size, place(begin, inside.start), found);
        begin += 1;
    }
    if begin < end {
        let GridBegin { source, result } = place(begin, 0);
        let own = Axis { count: end - begin, ..*first };
        let axes = [own].into_iter().chain(rest.iter().copied()).filter(|axis| axis.count > 1);
        let mut axes: SmallVec<[Axis; DIMENSIONS_MAX]> = axes.collect();
        axes.sort_by_key(|axis| std::cmp::Reverse(axis.source));
        found.push(Grid { source, result, axes });
    }
    if !range.end.is_multiple_of(inner) {
        end = range.end / inner;
        cut(rest, 0..range.end % inner, size, place(end, 0), found);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use smallvec::SmallVec;

    use super::Strided;
    use crate::store::StridedElements;
    use crate::stream::{Computed, Segment, Stream};

    /// The elements one by one, by the definition of strides.
    fn by_definition(elements: &StridedElements, source: &[u8]) -> Vec<u8> {
        let mut places = vec![elements.begin];
        for (count, step) in &elements.dimensions {
            places = places.iter().flat_map(|at| (0..*count).map(move |index| at + index * step)).collect();
        }
        let size = elements.element_bytes as usize;
        places.iter().flat_map(|at| source[*at as usize..][..size].to_vec()).collect()
    }

    fn strided(elements: &StridedElements, source: &[u8]) -> Strided {
        let stream = Stream::new(vec![Segment::literal(source)]).unwrap();
        Strided::new(Arc::new(elements.clone()), stream)
    }

    fn bytes(count: usize) -> Vec<u8> {
        (0..count as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    #[test]
    fn a_transposed_matrix_reads_by_columns() {
        // Larger than one fetch, and rows that are further apart than one read costs.
        for (rows, columns) in [(700_u64, 900_u64), (3, 400_000), (400_000, 3), (60, 30_000)] {
            let source = bytes((rows * columns * 4) as usize + 8);
            let dimensions = SmallVec::from_slice(&[(columns, 4), (rows, columns * 4)]);
            let elements = StridedElements { begin: 8, element_bytes: 4, dimensions };
            let wanted = by_definition(&elements, &source);
            let view = strided(&elements, &source);
            assert_eq!(view.bytes(), wanted.len() as u64);
            for range in [0..wanted.len(), 1..wanted.len() - 3, 131_072..262_144 + 5] {
                let mut out = vec![0; range.len()];
                view.read(range.start as u64..range.end as u64, &mut out).unwrap();
                assert!(out == wanted[range.clone()], "{rows} x {columns}: {range:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_range_of_any_strides_is_that_of_the_definition(
            dimensions in prop::collection::vec((1_u64..7, 0_u64..9), 0..5),
            size in prop::sample::select(vec![1_u64, 2, 4, 8, 3]),
            begin in 0_u64..20,
            (from, to) in (0.0..1.0_f64, 0.0..1.0_f64),
            wide in prop::sample::select(vec![1_u64, 40, 3000]),
        ) {
            let dimensions: SmallVec<_> =
                dimensions.iter().map(|(count, stride)| (*count, stride * size * wide)).collect();
            let elements = StridedElements { begin, element_bytes: size, dimensions };
            let last: u64 = elements.dimensions.iter().map(|(count, step)| (count - 1) * step).sum();
            let source = bytes((begin + last + size) as usize);
            let wanted = by_definition(&elements, &source);
            let (from, to) = (from.min(to), from.max(to));
            let range = (from * wanted.len() as f64) as usize..(to * wanted.len() as f64).ceil() as usize;
            let mut out = vec![0; range.len()];
            strided(&elements, &source).read(range.start as u64..range.end as u64, &mut out).unwrap();
            prop_assert_eq!(&out[..], &wanted[range]);
        }
    }
}
