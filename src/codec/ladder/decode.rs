//! Decodes a block, or a part of it.

use std::ops::Range;

use super::layout::{CELL, LEVELS_MAX, Ladder, Layout, Level, Plane, SYMBOLS, WIDTH_MAX};
use super::scratch::Scratch;
use crate::codec::arch::{InstructionSet, Job, Kernel};
use crate::model::{Error, Result};

/// Elements that are decoded plane after plane before their bytes are joined, so that these stay in the
/// first cache. The highest plane is decoded while it is joined, if it is a ladder without low bits.
const STRIP: usize = 4096;

/// Decodes a block of `out.len() / width` elements of `width` bytes.
///
/// Errors: [`Corrupt`](crate::model::ErrorKind::Corrupt) if `payload` is not such a block; `out` may be
/// partly written. [`Invalid`](crate::model::ErrorKind::Invalid) if `out` is not a whole number of elements.
pub fn decode(width: usize, payload: &[u8], out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
    decode_on(InstructionSet::detected(), width, payload, out, scratch)
}

/// Decodes the elements `part` of a block of `elements` elements. It checks only that part, so the payload
/// must have been verified. Errors: as [`decode`].
pub fn decode_part(
    width: usize,
    elements: usize,
    payload: &[u8],
    part: Range<usize>,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<()> {
    let block = Block::parse(width, elements, payload)?;
    block.decode(InstructionSet::detected(), part, out, scratch.take(block.scratch_len()))
}

/// [`decode`] with the instructions of `set`.
pub fn decode_on(
    set: InstructionSet,
    width: usize,
    payload: &[u8],
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<()> {
    let elements = out.len().checked_div(width).unwrap_or(0);
    let block = Block::parse(width, elements, payload)?;
    block.decode(set, 0..elements, out, scratch.take(block.scratch_len()))
}

/// A block whose header has been checked.
pub struct Block<'a> {
    layout: Layout,
    payload: &'a [u8],
}

impl Block<'_> {
    /// A block of `elements` elements of `width` bytes. Fails with
    /// [`Corrupt`](crate::model::ErrorKind::Corrupt) if `payload` is not one.
    pub fn parse(width: usize, elements: usize, payload: &[u8]) -> Result<Block<'_>> {
        Ok(Block { layout: Layout::parse(payload, width, elements)?, payload })
    }

    pub(in crate::codec) fn is_rotated(&self) -> bool {
        self.layout.is_rotated
    }

    /// The bytes of the payload, apart from its first [`HEAD_MAX`](super::HEAD_MAX), that decoding a part
    /// reads, in order. The others may have any value.
    pub fn bytes_of(&self, part: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        self.layout.bytes_of(part)
    }

    /// Bytes of memory that [`decode`](Block::decode) needs, at most a few megabytes.
    pub fn scratch_len(&self) -> usize {
        scratch_len(&self.layout)
    }

    /// [`decode_part`] with `set`. `scratch` has [`scratch_len`](Block::scratch_len) bytes of any value.
    pub fn decode(
        &self,
        set: InstructionSet,
        part: Range<usize>,
        out: &mut [u8],
        scratch: &mut [u8],
    ) -> Result<()> {
        let Block { layout, payload } = self;
        let (width, elements) = (layout.width, layout.elements);
        if part.start > part.end || part.end > elements || out.len() != (part.end - part.start) * width {
            return Err(Error::invalid(format!(
                "room for {} bytes where elements {part:?} of {elements}, of {width} bytes, are to be decoded",
                out.len()
            )));
        }
        if part.is_empty() {
            return Ok(());
        }
        let decoded = match (width, layout.is_rotated) {
            (1, false) => set.run(Decode::<1, false> { layout, payload, part, out, scratch }),
            (1, true) => set.run(Decode::<1, true> { layout, payload, part, out, scratch }),
            (2, false) => set.run(Decode::<2, false> { layout, payload, part, out, scratch }),
            (2, true) => set.run(Decode::<2, true> { layout, payload, part, out, scratch }),
            (4, false) => set.run(Decode::<4, false> { layout, payload, part, out, scratch }),
            (4, true) => set.run(Decode::<4, true> { layout, payload, part, out, scratch }),
            (_, false) => set.run(Decode::<8, false> { layout, payload, part, out, scratch }),
            (_, true) => set.run(Decode::<8, true> { layout, payload, part, out, scratch }),
        };
        decoded.map_err(|Mismatch| Error::corrupt("a packed block: its codes and its header do not agree"))
    }
}

/// The error of escapes or positions that the header does not allow.
struct Mismatch;

/// Bytes of memory for `codes` decoded codes: whole cells, and a cell that may be read after the last.
fn level_len(codes: usize) -> usize {
    codes.next_multiple_of(CELL) + 2 * CELL
}

/// Bytes of memory that decoding takes.
fn scratch_len(layout: &Layout) -> usize {
    let planes = layout.planes().iter().map(|plane| match plane {
        Plane::Raw { .. } | Plane::Constant(_) => 0,
        Plane::Sparse { .. } => level_len(layout.elements),
        Plane::Ladder(ladder) => ladder.levels().iter().map(|level| level_len(level.escapes)).sum(),
    });
    STRIP * layout.width + planes.sum::<usize>()
}

/// Decodes elements of `WIDTH` bytes, rotated or not. The lengths have been checked.
struct Decode<'a, const WIDTH: usize, const ROTATED: bool> {
    layout: &'a Layout,
    payload: &'a [u8],
    part: Range<usize>,
    out: &'a mut [u8],
    scratch: &'a mut [u8],
}

/// A plane of which only the first level is still encoded.
enum Source<'a> {
    /// The bytes of all elements.
    Whole(&'a [u8]),
    /// The bytes of the wanted cells.
    Cells(&'a [u8]),
    Constant(u8),
    Ladder(First<'a>),
}

/// The first level of a ladder, and the bytes that escape from it.
struct First<'a> {
    level: Level,
    low: usize,
    low_at: usize,
    escaped: Escaped<'a>,
}

/// Bytes that the escapes of a level take in order.
struct Escaped<'a> {
    /// The bytes, and at least a cell more.
    bytes: &'a [u8],
    /// Position of the next one.
    next: usize,
    /// Position behind the last one.
    end: usize,
    /// Whether all must be taken, because the whole level is decoded.
    is_whole: bool,
}

impl<const WIDTH: usize, const ROTATED: bool> Job for Decode<'_, WIDTH, ROTATED> {
    type Output = Result<(), Mismatch>;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> Result<(), Mismatch> {
        let Decode { layout, payload, part, out, scratch } = self;
        let cells = part.start / CELL..part.end.div_ceil(CELL);
        let (strips, mut rest) = scratch.split_at_mut(STRIP * WIDTH);
        let mut sources: [Source<'_>; WIDTH] = [const { Source::Constant(0) }; WIDTH];
        for (source, plane) in sources.iter_mut().zip(layout.planes()) {
            *source = match plane {
                Plane::Raw { at } => Source::Whole(&payload[*at..at + layout.elements]),
                Plane::Constant(value) => Source::Constant(*value),
                Plane::Sparse { value, at, count } => {
                    let (bytes, after) = std::mem::take(&mut rest).split_at_mut(level_len(layout.elements));
                    rest = after;
                    Source::Cells(sparse(&payload[*at..], *count, *value, layout.elements, &cells, bytes)?)
                }
                Plane::Ladder(ladder) => {
                    let escaped = escaped(kernel, payload, ladder, &cells, &mut rest)?;
                    let level = ladder.levels()[0];
                    Source::Ladder(First { level, low: ladder.low, low_at: ladder.low_at, escaped })
                }
            };
        }

        let mut out = Output::<WIDTH> { bytes: out, skip: part.start % CELL };
        for begin in cells.clone().step_by(STRIP / CELL) {
            let strip = begin..cells.end.min(begin + STRIP / CELL);
            let len = (strip.end - strip.start) * CELL;
            let mut planes: [&[u8]; WIDTH] = [&[]; WIDTH];
            let buffers = strips.chunks_exact_mut(STRIP);
            let all = planes.iter_mut().zip(&mut sources).zip(buffers).enumerate();
            for (number, ((plane, source), buffer)) in all {
                let buffer = &mut buffer[..len];
                *plane = match source {
                    Source::Constant(value) => {
                        buffer.fill(*value);
                        buffer
                    }
                    Source::Cells(bytes) => {
                        let (now, later) = bytes.split_at(len);
                        *bytes = later;
                        now
                    }
                    Source::Whole(bytes) => {
                        let bytes = &bytes[strip.start * CELL..];
                        match bytes.get(..len) {
                            Some(bytes) => bytes,
                            None => {
                                buffer[..bytes.len()].copy_from_slice(bytes);
                                buffer
                            }
                        }
                    }
                    Source::Ladder(first) if first.low == 0 && number == WIDTH - 1 => continue,
                    Source::Ladder(first) => {
                        first.decode(kernel, payload, &strip, buffer)?;
                        buffer
                    }
                };
            }
            if let Some(Source::Ladder(first)) = sources.last_mut()
                && first.low == 0
            {
                first.join::<K, WIDTH, ROTATED>(kernel, payload, planes, &strip, &mut out)?;
                continue;
            }
            let mut top = Stored(planes[WIDTH - 1].as_chunks().0);
            join::<K, WIDTH, ROTATED>(kernel, planes, &mut top, strip.end - strip.start, &mut out)?;
        }
        sources.iter().all(Source::is_spent).then_some(()).ok_or(Mismatch)
    }
}

impl Source<'_> {
    /// Whether every byte was taken that must be.
    fn is_spent(&self) -> bool {
        match self {
            Source::Ladder(first) => first.escaped.is_spent(),
            _ => true,
        }
    }
}

impl Escaped<'_> {
    fn is_spent(&self) -> bool {
        !self.is_whole || self.next == self.end
    }
}

/// The bytes of the wanted cells of a sparse plane.
#[inline(always)]
fn sparse<'a>(
    body: &[u8],
    count: usize,
    value: u8,
    elements: usize,
    cells: &Range<usize>,
    bytes: &'a mut [u8],
) -> Result<&'a [u8], Mismatch> {
    let bytes = &mut bytes[..(cells.end - cells.start) * CELL];
    bytes.fill(value);
    let (positions, values) = body.split_at(2 * count);
    for (position, value) in positions.as_chunks().0.iter().zip(values) {
        let position = usize::from(u16::from_le_bytes(*position));
        if position >= elements {
            return Err(Mismatch);
        }
        if let Some(byte) = position.checked_sub(cells.start * CELL).and_then(|at| bytes.get_mut(at)) {
            *byte = *value;
        }
    }
    Ok(bytes)
}

/// The words of the cell at the beginning of `cells`.
#[inline(always)]
fn words<const WIDTH: usize>(cell: &[[u8; 8]]) -> [u64; WIDTH] {
    let mut words = [0; WIDTH];
    for (word, bytes) in words.iter_mut().zip(cell) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

/// The escapes of a cell, of which only the first `len` codes count.
#[inline(always)]
fn escapes_of<const WIDTH: usize>(words: [u64; WIDTH], len: usize) -> u64 {
    let all = words.into_iter().fold(u64::MAX, |all, word| all & word);
    if len < CELL { all & ((1 << len) - 1) } else { all }
}

/// Number of escapes in some cells of a level.
#[inline(always)]
fn count_escapes(payload: &[u8], level: &Level, cells: Range<usize>) -> usize {
    let mut count = 0;
    for cell in cells {
        let begin = level.at + cell * level.width * 8;
        let words = payload[begin..begin + level.width * 8].as_chunks().0;
        let all = words.iter().fold(u64::MAX, |all, word| all & u64::from_le_bytes(*word));
        count += escapes_of([all], level.len - cell * CELL).count_ones() as usize;
    }
    count
}

/// The bytes that escape from the first level in `cells`.
#[inline(always)]
fn escaped<'a, K: Kernel>(
    kernel: K,
    payload: &'a [u8],
    ladder: &Ladder,
    cells: &Range<usize>,
    rest: &mut &'a mut [u8],
) -> Result<Escaped<'a>, Mismatch> {
    // For each level, the wanted escapes from it.
    let mut wanted: [Range<usize>; LEVELS_MAX] = [const { 0..0 }; LEVELS_MAX];
    let mut cells = cells.clone();
    for (level, wanted) in ladder.levels().iter().zip(&mut wanted) {
        *wanted = if cells.start == 0 && cells.end == level.len.div_ceil(CELL) {
            0..level.escapes
        } else {
            let before = count_escapes(payload, level, 0..cells.start);
            before..before + count_escapes(payload, level, cells)
        };
        if wanted.end > level.escapes {
            return Err(Mismatch);
        }
        cells = wanted.start / CELL..wanted.end.div_ceil(CELL);
    }

    let levels = ladder.levels();
    let (bytes, after) = std::mem::take(rest).split_at_mut(level_len(ladder.escaped()));
    *rest = after;
    let last = wanted[levels.len() - 1].clone();
    let begin = ladder.escaped_at + last.start;
    let count = last.end - last.start;
    bytes[..count].copy_from_slice(&payload[begin..begin + count]);
    let is_whole = |wanted: &Range<usize>, level: &Level| *wanted == (0..level.escapes);
    let mut escaped =
        Escaped { bytes, next: 0, end: count, is_whole: is_whole(&last, &levels[levels.len() - 1]) };
    for j in (1..levels.len()).rev() {
        let (bytes, after) = std::mem::take(rest).split_at_mut(level_len(levels[j].len));
        *rest = after;
        let above = wanted[j - 1].clone();
        let cells = above.start / CELL..above.end.div_ceil(CELL);
        decode_level(
            kernel,
            payload,
            &levels[j],
            &cells,
            &mut escaped,
            &mut bytes[..(cells.end - cells.start) * CELL],
        )?;
        if !escaped.is_spent() {
            return Err(Mismatch);
        }
        let skip = above.start % CELL;
        escaped = Escaped {
            bytes,
            next: skip,
            end: skip + (above.end - above.start),
            is_whole: is_whole(&above, &levels[j - 1]),
        };
    }
    Ok(escaped)
}

/// Decodes some cells of a level to `out`.
#[inline(always)]
fn decode_level<K: Kernel>(
    kernel: K,
    payload: &[u8],
    level: &Level,
    cells: &Range<usize>,
    escaped: &mut Escaped<'_>,
    out: &mut [u8],
) -> Result<(), Mismatch> {
    match level.width {
        1 => decode_cells::<K, 1>(kernel, payload, level, cells, escaped, out),
        2 => decode_cells::<K, 2>(kernel, payload, level, cells, escaped, out),
        3 => decode_cells::<K, 3>(kernel, payload, level, cells, escaped, out),
        _ => decode_cells::<K, 4>(kernel, payload, level, cells, escaped, out),
    }
}

#[inline(always)]
fn decode_cells<K: Kernel, const WIDTH: usize>(
    kernel: K,
    payload: &[u8],
    level: &Level,
    cells: &Range<usize>,
    escaped: &mut Escaped<'_>,
    out: &mut [u8],
) -> Result<(), Mismatch> {
    let mut codes = Codes::<WIDTH>::new(payload, level, cells, escaped);
    for out in out.as_chunks_mut().0 {
        kernel.store_bytes(codes.next(kernel)?, out);
    }
    let next = codes.next;
    escaped.next = next;
    Ok(())
}

/// Bytes of a plane, cell after cell.
trait Bytes<K: Kernel> {
    /// The next cell.
    fn next(&mut self, kernel: K) -> Result<K::Bytes, Mismatch>;
}

/// Bytes in memory.
struct Stored<'a>(&'a [[u8; CELL]]);

impl<K: Kernel> Bytes<K> for Stored<'_> {
    #[inline(always)]
    fn next(&mut self, kernel: K) -> Result<K::Bytes, Mismatch> {
        let (cell, later) = self.0.split_first().ok_or(Mismatch)?;
        self.0 = later;
        Ok(kernel.load_bytes(cell))
    }
}

/// Codes of `WIDTH` bits.
struct Codes<'a, const WIDTH: usize> {
    cells: &'a [[u8; 8]],
    /// Number of codes in the cells.
    left: usize,
    symbols: &'a [u8; SYMBOLS],
    /// The fields of [`Escaped`].
    escaped: &'a [u8],
    next: usize,
    end: usize,
}

impl<'a, const WIDTH: usize> Codes<'a, WIDTH> {
    #[inline(always)]
    fn new(
        payload: &'a [u8],
        level: &'a Level,
        cells: &Range<usize>,
        escaped: &'a Escaped<'_>,
    ) -> Codes<'a, WIDTH> {
        let stored = &payload[level.at + cells.start * WIDTH * 8..level.at + cells.end * WIDTH * 8];
        Codes {
            cells: stored.as_chunks().0,
            left: level.len - cells.start * CELL,
            symbols: &level.symbols,
            escaped: escaped.bytes,
            next: escaped.next,
            end: escaped.end,
        }
    }
}

impl<K: Kernel, const WIDTH: usize> Bytes<K> for Codes<'_, WIDTH> {
    #[inline(always)]
    fn next(&mut self, kernel: K) -> Result<K::Bytes, Mismatch> {
        let (cell, later) = self.cells.split_first_chunk::<WIDTH>().ok_or(Mismatch)?;
        let words = words::<WIDTH>(cell);
        let mask = escapes_of(words, self.left);
        let end = self.next + mask.count_ones() as usize;
        let bytes = self.escaped.get(self.next..).and_then(|bytes| bytes.first_chunk::<CELL>());
        let Some(bytes) = bytes.filter(|_| end <= self.end) else { return Err(Mismatch) };
        self.cells = later;
        self.left = self.left.saturating_sub(CELL);
        self.next = end;
        // The symbol of an escape is zero.
        let symbols = kernel.symbols(words, self.symbols);
        Ok(kernel.expand_bytes(symbols, mask, bytes))
    }
}

impl First<'_> {
    /// Decodes some cells of the plane.
    #[inline(always)]
    fn decode<K: Kernel>(
        &mut self,
        kernel: K,
        payload: &[u8],
        cells: &Range<usize>,
        out: &mut [u8],
    ) -> Result<(), Mismatch> {
        decode_level(kernel, payload, &self.level, cells, &mut self.escaped, out)?;
        let low = &payload[self.low_at..];
        match self.low {
            0 => {}
            1 => add_low::<K, 1>(kernel, low, cells, out),
            2 => add_low::<K, 2>(kernel, low, cells, out),
            3 => add_low::<K, 3>(kernel, low, cells, out),
            4 => add_low::<K, 4>(kernel, low, cells, out),
            5 => add_low::<K, 5>(kernel, low, cells, out),
            6 => add_low::<K, 6>(kernel, low, cells, out),
            _ => add_low::<K, 7>(kernel, low, cells, out),
        }
        Ok(())
    }

    /// [`join`] where this is the highest plane, without low bits: a cell is joined while its bytes are in registers.
    #[inline(always)]
    fn join<K: Kernel, const WIDTH: usize, const ROTATED: bool>(
        &mut self,
        kernel: K,
        payload: &[u8],
        planes: [&[u8]; WIDTH],
        cells: &Range<usize>,
        out: &mut Output<'_, WIDTH>,
    ) -> Result<(), Mismatch> {
        match self.level.width {
            1 => self.join_codes::<K, WIDTH, ROTATED, 1>(kernel, payload, planes, cells, out),
            2 => self.join_codes::<K, WIDTH, ROTATED, 2>(kernel, payload, planes, cells, out),
            3 => self.join_codes::<K, WIDTH, ROTATED, 3>(kernel, payload, planes, cells, out),
            _ => self.join_codes::<K, WIDTH, ROTATED, 4>(kernel, payload, planes, cells, out),
        }
    }

    #[inline(always)]
    fn join_codes<K: Kernel, const WIDTH: usize, const ROTATED: bool, const BITS: usize>(
        &mut self,
        kernel: K,
        payload: &[u8],
        planes: [&[u8]; WIDTH],
        cells: &Range<usize>,
        out: &mut Output<'_, WIDTH>,
    ) -> Result<(), Mismatch> {
        let mut codes = Codes::<BITS>::new(payload, &self.level, cells, &self.escaped);
        join::<K, WIDTH, ROTATED>(kernel, planes, &mut codes, cells.end - cells.start, out)?;
        let next = codes.next;
        self.escaped.next = next;
        Ok(())
    }
}

/// Sets the low bits of the bytes.
#[inline(always)]
fn add_low<K: Kernel, const BITS: usize>(kernel: K, low: &[u8], cells: &Range<usize>, out: &mut [u8]) {
    let low = &low[cells.start * BITS * 8..cells.end * BITS * 8];
    for (cell, out) in low.as_chunks().0.chunks_exact(BITS).zip(out.as_chunks_mut::<CELL>().0) {
        let low = kernel.bytes_of_bits(words::<BITS>(cell));
        kernel.store_bytes(kernel.or_bytes(kernel.load_bytes(out), low), out);
    }
}

/// The wanted elements that are still to be written.
struct Output<'a, const WIDTH: usize> {
    bytes: &'a mut [u8],
    /// Elements of the next cell that are not wanted.
    skip: usize,
}

/// Joins `count` cells of the planes to elements. `top` has the bytes of the highest plane; the last of `planes` is
/// not read.
#[inline(always)]
fn join<K: Kernel, const WIDTH: usize, const ROTATED: bool>(
    kernel: K,
    planes: [&[u8]; WIDTH],
    top: &mut impl Bytes<K>,
    count: usize,
    out: &mut Output<'_, WIDTH>,
) -> Result<(), Mismatch> {
    let planes = planes.map(|plane| plane.as_chunks::<CELL>().0);
    // Local, so that the loop keeps them in registers.
    let (mut bytes, mut skip) = (std::mem::take(&mut out.bytes), out.skip);
    for i in 0..count {
        let mut cells = [top.next(kernel)?; WIDTH];
        for (cell, plane) in cells.iter_mut().zip(planes).take(WIDTH - 1) {
            *cell = kernel.load_bytes(&plane[i]);
        }
        let elements = join_cells::<K, WIDTH, ROTATED>(kernel, cells);
        if skip == 0 && bytes.len() >= CELL * WIDTH {
            let (now, later) = bytes.split_at_mut(CELL * WIDTH);
            for (cell, now) in elements.into_iter().zip(now.as_chunks_mut().0) {
                kernel.store_bytes(cell, now);
            }
            bytes = later;
            continue;
        }
        let mut stored = [[0; CELL]; WIDTH_MAX];
        for (cell, stored) in elements.into_iter().zip(&mut stored) {
            kernel.store_bytes(cell, stored);
        }
        let wanted = &stored.as_flattened()[skip * WIDTH..CELL * WIDTH];
        let (now, later) = bytes.split_at_mut(wanted.len().min(bytes.len()));
        now.copy_from_slice(&wanted[..now.len()]);
        (bytes, skip) = (later, 0);
    }
    *out = Output { bytes, skip };
    Ok(())
}

/// The elements of a cell, from its planes.
#[inline(always)]
fn join_cells<K: Kernel, const WIDTH: usize, const ROTATED: bool>(
    kernel: K,
    mut planes: [K::Bytes; WIDTH],
) -> [K::Bytes; WIDTH] {
    if WIDTH == 1 {
        if ROTATED {
            planes[0] = kernel.rotate_right::<1>(planes[0]);
        }
        return planes;
    }
    // Pairs of bytes.
    for pair in planes.as_chunks_mut().0 {
        *pair = kernel.interleave::<1>(pair[0], pair[1]);
    }
    if ROTATED {
        for half in &mut planes[WIDTH - 2..] {
            *half = kernel.rotate_right::<2>(*half);
        }
    }
    if WIDTH >= 4 {
        for quad in planes.as_chunks_mut().0 {
            let [a, b, c, d] = *quad;
            let ([a, b], [c, d]) = (kernel.interleave::<2>(a, c), kernel.interleave::<2>(b, d));
            *quad = [a, b, c, d];
        }
    }
    if WIDTH == 8 {
        let low = planes;
        for i in 0..WIDTH / 2 {
            let [first, last] = kernel.interleave::<4>(low[i], low[i + WIDTH / 2]);
            planes[2 * i] = first;
            planes[2 * i + 1] = last;
        }
    }
    planes
}
