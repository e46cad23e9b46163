//! Encodes a block.

use super::layout::{
    CELL, CONSTANT, ELEMENTS_MAX, HEAD_ALIGN, HEAD_LEN, LADDER, LADDER_LEN, LEVELS_MAX, RAW, SPARSE,
    SPARSE_LEN, SYMBOLS, VERSION, WIDTH_MAX, cells_len,
};
use super::scratch::Scratch;
use crate::codec::arch::{InstructionSet, Job, Kernel};
use crate::model::{Dtype, Error, Result};

/// A packed block is kept only if it has at most this share of the block, in hundredths.
const WORTH_HUNDREDTHS: usize = 97;

/// How elements are taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Split {
    width: usize,
    is_rotated: bool,
    low: [Low; WIDTH_MAX],
}

/// The encodings that an encoder tries for a plane that is not constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Low {
    /// None: its bytes stay as they are.
    Raw,
    /// A ladder with this many low bits apart.
    Bits(u8),
    /// A ladder if a sample has few different values.
    Sampled,
    /// A ladder with the number of low bits that gives the least bytes.
    Best,
}

impl Split {
    /// How elements of `dtype` are taken apart; `None` for types that stay as they are.
    pub fn of(dtype: Dtype) -> Option<Split> {
        use Low::{Best, Bits, Raw, Sampled};
        let (is_rotated, low): (bool, &[Low]) = match dtype {
            Dtype::Bf16 => (true, &[Raw, Bits(0)]),
            Dtype::F16 => (true, &[Raw, Bits(3)]),
            Dtype::F32 => (true, &[Sampled, Sampled, Raw, Bits(0)]),
            Dtype::F64 => (true, &[Sampled, Sampled, Sampled, Sampled, Raw, Raw, Raw, Bits(0)]),
            Dtype::F8E4M3 => (true, &[Bits(4)]),
            Dtype::F8E5M2 => (true, &[Bits(3)]),
            Dtype::I8 | Dtype::U8 => (false, &[Best]),
            _ => return None,
        };
        let mut split = Split { width: low.len(), is_rotated, low: [Raw; WIDTH_MAX] };
        split.low[..low.len()].copy_from_slice(low);
        Some(split)
    }

    /// Takes elements of `low.len()` bytes (1, 2, 4 or 8) apart. `low` gives the number of low bits of a
    /// ladder, or `None` for a plane that stays as it is.
    pub fn with_low_bits(is_rotated: bool, low: &[Option<u8>]) -> Option<Split> {
        if !matches!(low.len(), 1 | 2 | 4 | 8) || low.iter().flatten().any(|bits| *bits > 7) {
            return None;
        }
        let mut split = Split { width: low.len(), is_rotated, low: [Low::Raw; WIDTH_MAX] };
        for (plane, low) in split.low.iter_mut().zip(low) {
            *plane = low.map_or(Low::Raw, Low::Bits);
        }
        Some(split)
    }
}

/// Appends the payload of a block to `out`: `raw`, little-endian elements of `dtype`. Returns whether it
/// did: where the payload would save less than 3 %, or the type is not packed, `out` stays unchanged.
///
/// Errors: [`Invalid`](crate::model::ErrorKind::Invalid) if `raw` is not a whole number of elements.
pub fn encode(dtype: Dtype, raw: &[u8], out: &mut Vec<u8>, scratch: &mut Scratch) -> Result<bool> {
    let begin = out.len();
    let Some(split) = Split::of(dtype) else { return Ok(false) };
    if raw.is_empty() || raw.len() / split.width > ELEMENTS_MAX {
        return Ok(false);
    }
    encode_split(&split, raw, out, scratch)?;
    let is_worth = (out.len() - begin) * 100 <= raw.len() * WORTH_HUNDREDTHS;
    if !is_worth {
        out.truncate(begin);
    }
    Ok(is_worth)
}

/// Appends the payload of a block of elements that `split` takes apart, however long it is.
///
/// Errors: [`Invalid`](crate::model::ErrorKind::Invalid) if `raw` is not 1 to 65,536 whole elements.
pub fn encode_split(split: &Split, raw: &[u8], out: &mut Vec<u8>, scratch: &mut Scratch) -> Result<()> {
    encode_on(InstructionSet::detected(), split, raw, out, scratch)
}

/// [`encode_split`] with the instructions of `set`.
pub fn encode_on(
    set: InstructionSet,
    split: &Split,
    raw: &[u8],
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Result<()> {
    let elements = raw.len() / split.width;
    if !raw.len().is_multiple_of(split.width) || !(1..=ELEMENTS_MAX).contains(&elements) {
        return Err(Error::invalid(format!(
            "{} bytes are not 1 to {ELEMENTS_MAX} elements of {} bytes",
            raw.len(),
            split.width
        )));
    }
    let scratch = scratch.take((split.width + 2) * buffer_len(elements));
    match (split.width, split.is_rotated) {
        (1, false) => set.run(Encode::<1, false> { split, raw, out, scratch }),
        (1, true) => set.run(Encode::<1, true> { split, raw, out, scratch }),
        (2, false) => set.run(Encode::<2, false> { split, raw, out, scratch }),
        (2, true) => set.run(Encode::<2, true> { split, raw, out, scratch }),
        (4, false) => set.run(Encode::<4, false> { split, raw, out, scratch }),
        (4, true) => set.run(Encode::<4, true> { split, raw, out, scratch }),
        (_, false) => set.run(Encode::<8, false> { split, raw, out, scratch }),
        (_, true) => set.run(Encode::<8, true> { split, raw, out, scratch }),
    }
    Ok(())
}

/// Bytes of a buffer of `codes` codes: whole cells, and one more that may be written.
fn buffer_len(codes: usize) -> usize {
    codes.next_multiple_of(CELL) + CELL
}

/// Encodes elements of `WIDTH` bytes, rotated or not. The lengths have been checked.
struct Encode<'a, const WIDTH: usize, const ROTATED: bool> {
    split: &'a Split,
    raw: &'a [u8],
    out: &'a mut Vec<u8>,
    scratch: &'a mut [u8],
}

/// How a plane is stored.
#[derive(Clone, Copy)]
enum Choice {
    Raw,
    Constant(u8),
    Sparse { value: u8, count: usize },
    Ladder(Steps),
}

/// The levels of a ladder.
#[derive(Clone, Copy)]
struct Steps {
    low: usize,
    widths: [u8; LEVELS_MAX],
    level_count: usize,
    /// Escapes from each level.
    escapes: [usize; LEVELS_MAX],
    symbols: [u8; SYMBOLS],
    /// Bits of the levels and of the bytes that escape from the last, 64 for each level.
    cost: usize,
}

impl<const WIDTH: usize, const ROTATED: bool> Job for Encode<'_, WIDTH, ROTATED> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        let Encode { split, raw, out, scratch } = self;
        let elements = raw.len() / WIDTH;
        let (planes, buffers) = scratch.split_at_mut(WIDTH * buffer_len(elements));
        let (this, next) = buffers.split_at_mut(buffer_len(elements));
        take_apart::<K, WIDTH, ROTATED>(kernel, raw, planes, buffer_len(elements));

        let mut choices = [Choice::Raw; WIDTH];
        let mut head = Head::new(WIDTH, ROTATED, elements);
        let all = planes.chunks_exact(buffer_len(elements)).zip(split.low);
        for (i, (choice, (plane, low))) in choices.iter_mut().zip(all).enumerate() {
            *choice = choose(&plane[..elements], low);
            head.describe(i, choice);
        }
        out.extend_from_slice(head.finish());
        for (choice, plane) in choices.iter().zip(planes.chunks_exact(buffer_len(elements))) {
            let plane = &plane[..elements.next_multiple_of(CELL)];
            match choice {
                Choice::Constant(_) => {}
                Choice::Raw => out.extend_from_slice(&plane[..elements]),
                Choice::Sparse { value, count } => append_sparse(&plane[..elements], *value, *count, out),
                Choice::Ladder(steps) => append_ladder(kernel, plane, elements, steps, this, next, out),
            }
        }
    }
}

/// Stores the rotated bytes of the elements plane after plane, `stride` bytes each. Zeros fill the last
/// cell.
#[inline(always)]
fn take_apart<K: Kernel, const WIDTH: usize, const ROTATED: bool>(
    kernel: K,
    raw: &[u8],
    planes: &mut [u8],
    stride: usize,
) {
    let mut padded = [0; CELL * WIDTH_MAX];
    for (i, cell) in raw.chunks(CELL * WIDTH).enumerate() {
        let cell = if cell.len() == CELL * WIDTH {
            cell
        } else {
            padded[..cell.len()].copy_from_slice(cell);
            &padded[..CELL * WIDTH]
        };
        let mut elements = [kernel.load_bytes(&[0; CELL]); WIDTH];
        for (element, bytes) in elements.iter_mut().zip(cell.as_chunks().0) {
            *element = kernel.load_bytes(bytes);
        }
        let bytes = split_cells::<K, WIDTH, ROTATED>(kernel, elements);
        for (bytes, plane) in bytes.into_iter().zip(planes.chunks_exact_mut(stride)) {
            if let Some(place) = plane[i * CELL..].first_chunk_mut() {
                kernel.store_bytes(bytes, place);
            }
        }
    }
}

/// The planes of a cell, from its elements.
#[inline(always)]
fn split_cells<K: Kernel, const WIDTH: usize, const ROTATED: bool>(
    kernel: K,
    mut cells: [K::Bytes; WIDTH],
) -> [K::Bytes; WIDTH] {
    if WIDTH == 1 {
        if ROTATED {
            cells[0] = kernel.rotate_left::<1>(cells[0]);
        }
        return cells;
    }
    if WIDTH == 8 {
        let both = cells;
        for i in 0..WIDTH / 2 {
            let [low, high] = kernel.deinterleave::<4>([both[2 * i], both[2 * i + 1]]);
            cells[i] = low;
            cells[i + WIDTH / 2] = high;
        }
    }
    if WIDTH >= 4 {
        for quad in cells.as_chunks_mut().0 {
            let [a, b, c, d] = *quad;
            let ([a, c], [b, d]) = (kernel.deinterleave::<2>([a, b]), kernel.deinterleave::<2>([c, d]));
            *quad = [a, b, c, d];
        }
    }
    if ROTATED {
        for half in &mut cells[WIDTH - 2..] {
            *half = kernel.rotate_left::<2>(*half);
        }
    }
    for pair in cells.as_chunks_mut().0 {
        *pair = kernel.deinterleave::<1>(*pair);
    }
    cells
}

/// Chooses how to store a plane.
fn choose(plane: &[u8], low: Low) -> Choice {
    let Some(first) = plane.first() else { return Choice::Raw };
    if plane.iter().all(|byte| byte == first) {
        return Choice::Constant(*first);
    }
    let low = match low {
        Low::Raw => return Choice::Raw,
        Low::Sampled if !has_few_values(plane) => return Choice::Raw,
        Low::Sampled => 0..=0,
        Low::Bits(bits) => bits..=bits,
        Low::Best => 0..=7,
    };
    let counts = count(plane);
    let bits = |steps: &Steps| steps.cost + steps.low * plane.len();
    let ladders = low.map(|low| ladder(&counts, plane.len(), usize::from(low)));
    let Some(steps) = ladders.min_by_key(|steps| bits(steps)) else { return Choice::Raw };

    // The most frequent byte, the largest of several.
    let (value, most) = (0..=u8::MAX).zip(counts).max_by_key(|(_, count)| *count).unwrap_or((0, 0));
    let others = plane.len() - most as usize;
    if others * 24 < bits(&steps) {
        return Choice::Sparse { value, count: others };
    }
    // 7.9 bits an element, in the arithmetic of the reference.
    if bits(&steps) as f64 >= 7.9 * plane.len() as f64 { Choice::Raw } else { Choice::Ladder(steps) }
}

/// Whether 128 bytes of a plane have at most 24 different values.
fn has_few_values(plane: &[u8]) -> bool {
    let middle = plane.len() / 2;
    let mut is_seen = [false; 256];
    for byte in plane.iter().take(64).chain(plane.iter().skip(middle).take(64)) {
        is_seen[usize::from(*byte)] = true;
    }
    is_seen.iter().filter(|seen| **seen).count() <= 24
}

/// How often each byte occurs.
fn count(plane: &[u8]) -> [u32; 256] {
    // Four tables, because equal bytes in a row would wait for each other.
    let mut tables = [[0_u32; 256]; 4];
    let (fours, rest) = plane.as_chunks::<4>();
    for four in fours {
        for (table, byte) in tables.iter_mut().zip(four) {
            table[usize::from(*byte)] += 1;
        }
    }
    let [mut counts, b, c, d] = tables;
    for (((count, b), c), d) in counts.iter_mut().zip(b).zip(c).zip(d) {
        *count += b + c + d;
    }
    for byte in rest {
        counts[usize::from(*byte)] += 1;
    }
    counts
}

/// The widths of one to four levels, in lexicographic order.
static WIDTHS: [[u8; LEVELS_MAX]; widths_count()] = {
    let mut all = [[0; LEVELS_MAX]; widths_count()];
    let (mut number, mut count) = (0, 0);
    while number < WIDTHS_END {
        if let Some(widths) = widths_of(number) {
            all[count] = widths;
            count += 1;
        }
        number += 1;
    }
    all
};

/// Numbers of combinations: the first width is 1 to 4, the second 0 to 4, the others 0 to 3.
const WIDTHS_END: usize = 4 * 5 * 4 * 4;

/// The combination with a number, if it is allowed: no level after a missing one, at most 16 symbols.
const fn widths_of(number: usize) -> Option<[u8; LEVELS_MAX]> {
    let widths = [number / 80 + 1, number / 16 % 5, number / 4 % 4, number % 4];
    let is_dense = (widths[1] > 0 || widths[2] == 0) && (widths[2] > 0 || widths[3] == 0);
    let symbols = (1 << widths[0]) + (1 << widths[1]) + (1 << widths[2]) + (1 << widths[3]) - 4;
    if is_dense && symbols <= SYMBOLS {
        Some([widths[0] as u8, widths[1] as u8, widths[2] as u8, widths[3] as u8])
    } else {
        None
    }
}

const fn widths_count() -> usize {
    let (mut number, mut count) = (0, 0);
    while number < WIDTHS_END {
        if widths_of(number).is_some() {
            count += 1;
        }
        number += 1;
    }
    count
}

/// The cheapest ladder with `low` low bits apart for bytes of which `counts` gives the numbers.
fn ladder(counts: &[u32; 256], elements: usize, low: usize) -> Steps {
    let mut masked = [0_u32; 256];
    for (byte, count) in counts.iter().enumerate() {
        masked[byte >> low << low] += count;
    }
    let mut order: [u8; 256] = std::array::from_fn(|byte| byte as u8);
    order.sort_unstable_by_key(|byte| (std::cmp::Reverse(masked[usize::from(*byte)]), *byte));
    let mut symbols = [0; SYMBOLS];
    // Elements that the first symbols leave.
    let mut left = [elements; SYMBOLS + 1];
    for (i, byte) in order.into_iter().take(SYMBOLS).enumerate() {
        let count = masked[usize::from(byte)] as usize;
        if count > 0 {
            symbols[i] = byte;
        }
        left[i + 1] = left[i] - count;
    }
    let mut best = Steps { low, widths: [0; 4], level_count: 0, escapes: [0; 4], symbols, cost: usize::MAX };
    for widths in &WIDTHS {
        let mut steps = Steps { cost: 0, ..best };
        let (mut rest, mut used, mut level_count) = (elements, 0, 0);
        for (width, escapes) in widths.iter().zip(&mut steps.escapes) {
            if *width == 0 || (level_count > 0 && rest == 0) {
                break;
            }
            steps.cost += usize::from(*width) * rest;
            used += (1 << width) - 1;
            level_count += 1;
            rest = left[used];
            *escapes = rest;
        }
        steps.cost += 8 * rest + 64 * level_count;
        if steps.cost < best.cost {
            steps.escapes[level_count..].fill(0);
            steps.widths = [0; LEVELS_MAX];
            steps.widths[..level_count].copy_from_slice(&widths[..level_count]);
            best = Steps { level_count, ..steps };
        }
    }
    best
}

/// Collects the header.
struct Head {
    bytes: [u8; HEAD_MAX],
    len: usize,
}

/// The longest header.
const HEAD_MAX: usize = (HEAD_LEN + WIDTH_MAX * LADDER_LEN).next_multiple_of(HEAD_ALIGN);

impl Head {
    fn new(width: usize, is_rotated: bool, elements: usize) -> Head {
        let mut head = Head { bytes: [0; HEAD_MAX], len: 0 };
        head.append(&[VERSION, width as u8, u8::from(is_rotated), 0]);
        head.append(&(elements as u32).to_le_bytes());
        Head { len: HEAD_LEN, ..head }
    }

    fn append(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Adds the mode, the value and the descriptor of a plane.
    fn describe(&mut self, plane: usize, choice: &Choice) {
        let (mode, value) = match *choice {
            Choice::Raw => (RAW, 0),
            Choice::Constant(value) => (CONSTANT, value),
            Choice::Sparse { value, .. } => (SPARSE, value),
            Choice::Ladder(_) => (LADDER, 0),
        };
        self.bytes[8 + plane] = mode;
        self.bytes[16 + plane] = value;
        match choice {
            Choice::Raw | Choice::Constant(_) => {}
            Choice::Sparse { count, .. } => {
                self.append(&(*count as u32).to_le_bytes());
                self.append(&[0; SPARSE_LEN - 4]);
            }
            Choice::Ladder(steps) => {
                self.append(&[steps.low as u8, steps.level_count as u8]);
                self.append(&steps.widths);
                self.append(&[0; 2]);
                for escapes in steps.escapes {
                    self.append(&(escapes as u32).to_le_bytes());
                }
                self.append(&steps.symbols);
            }
        }
    }

    /// The whole header.
    fn finish(&self) -> &[u8] {
        &self.bytes[..self.len.next_multiple_of(HEAD_ALIGN)]
    }
}

/// Appends zeros up to a multiple of 8 bytes of a body of `len` bytes.
fn pad(len: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; 8][..len.next_multiple_of(8) - len]);
}

fn append_sparse(plane: &[u8], value: u8, count: usize, out: &mut Vec<u8>) {
    let others = || (0..=u16::MAX).zip(plane).filter(|(_, byte)| **byte != value);
    for (position, _) in others() {
        out.extend_from_slice(&position.to_le_bytes());
    }
    out.extend(others().map(|(_, byte)| *byte));
    pad(3 * count, out);
}

#[inline(always)]
fn append_ladder<K: Kernel>(
    kernel: K,
    plane: &[u8],
    elements: usize,
    steps: &Steps,
    this: &mut [u8],
    next: &mut [u8],
    out: &mut Vec<u8>,
) {
    match steps.low {
        0 => {}
        1 => append_low::<K, 1>(kernel, plane, elements, out),
        2 => append_low::<K, 2>(kernel, plane, elements, out),
        3 => append_low::<K, 3>(kernel, plane, elements, out),
        4 => append_low::<K, 4>(kernel, plane, elements, out),
        5 => append_low::<K, 5>(kernel, plane, elements, out),
        6 => append_low::<K, 6>(kernel, plane, elements, out),
        _ => append_low::<K, 7>(kernel, plane, elements, out),
    }
    let (mut this, mut next) = (this, next);
    let (mut len, mut first) = (elements, 0);
    for (j, width) in steps.widths.iter().take(steps.level_count).enumerate() {
        let count = (1 << width) - 1;
        // Bytes with different low bits have the code of their symbol.
        let mut codes = [count as u8; 256];
        let symbols = &steps.symbols[first..first + count];
        for (code, symbol) in symbols.iter().enumerate().rev() {
            codes[usize::from(*symbol)..][..1 << steps.low].fill(code as u8);
        }
        // The last level's escapes have lost their low bits too.
        let source = if j == 0 { plane } else { &*this };
        let level = LevelCodes { symbols, codes: &codes, mask: 0xff << steps.low };
        match width {
            1 => append_level::<K, 1>(kernel, source, len, level, next, out),
            2 => append_level::<K, 2>(kernel, source, len, level, next, out),
            3 => append_level::<K, 3>(kernel, source, len, level, next, out),
            _ => append_level::<K, 4>(kernel, source, len, level, next, out),
        }
        std::mem::swap(&mut this, &mut next);
        (len, first) = (steps.escapes[j], first + count);
    }
    out.extend_from_slice(&this[..len]);
    pad(len, out);
}

/// The bits of the first `len` codes of a cell.
#[inline(always)]
fn valid_bits(len: usize) -> u64 {
    if len < CELL { (1 << len) - 1 } else { u64::MAX }
}

/// Appends cells of the low bits.
#[inline(always)]
fn append_low<K: Kernel, const BITS: usize>(kernel: K, plane: &[u8], elements: usize, out: &mut Vec<u8>) {
    out.reserve(cells_len(elements, BITS));
    for (i, bytes) in plane.as_chunks().0.iter().enumerate() {
        let words = kernel.bits_of_bytes::<BITS>(kernel.load_bytes(bytes));
        let valid = valid_bits(elements - i * CELL);
        out.extend_from_slice(words.map(|word| (word & valid).to_le_bytes()).as_flattened());
    }
}

/// The codes of a level.
#[derive(Clone, Copy)]
struct LevelCodes<'a> {
    /// The bytes with codes, without their low bits.
    symbols: &'a [u8],
    /// The code of each byte.
    codes: &'a [u8; 256],
    /// The bits of a byte that are not low bits.
    mask: u8,
}

/// Appends the cells of a level, and stores the bytes that escape, without their low bits, in `next`.
#[inline(always)]
fn append_level<K: Kernel, const WIDTH: usize>(
    kernel: K,
    source: &[u8],
    len: usize,
    level: LevelCodes<'_>,
    next: &mut [u8],
    out: &mut Vec<u8>,
) {
    let LevelCodes { symbols, codes, mask } = level;
    out.reserve(cells_len(len, WIDTH));
    let mut escaped = 0;
    for (i, bytes) in source.as_chunks::<CELL>().0.iter().take(len.div_ceil(CELL)).enumerate() {
        let valid = valid_bits(len - i * CELL);
        let bytes = kernel.load_bytes(bytes);
        let words = kernel.bits_of_bytes::<WIDTH>(kernel.codes(bytes, symbols, mask, codes));
        let words = words.map(|word| word & valid);
        out.extend_from_slice(words.map(u64::to_le_bytes).as_flattened());
        let escapes = words.into_iter().fold(u64::MAX, |all, word| all & word);
        if let Some(place) = next.get_mut(escaped..).and_then(|next| next.first_chunk_mut()) {
            kernel.compress_bytes(bytes, escapes, place);
        }
        escaped += escapes.count_ones() as usize;
    }
    if mask != 0xff {
        next[..escaped].iter_mut().for_each(|byte| *byte &= mask);
    }
}
