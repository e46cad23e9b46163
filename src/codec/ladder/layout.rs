//! Parses the header of a payload: where each plane lies. Everything that the sizes depend on is checked.

use std::ops::Range;

use crate::model::{Error, Result};

/// The version of the layout.
pub(super) const VERSION: u8 = 1;
/// The most elements of a block.
pub const ELEMENTS_MAX: usize = 1 << 16;
/// The most bytes of an element.
pub(super) const WIDTH_MAX: usize = 8;
/// Elements of a cell.
pub(super) const CELL: usize = 64;
/// The most levels of a ladder.
pub(super) const LEVELS_MAX: usize = 4;
/// Symbols of a ladder.
pub(super) const SYMBOLS: usize = 16;
/// Bytes before the descriptors.
pub(super) const HEAD_LEN: usize = 24;
pub(super) const LADDER_LEN: usize = 40;
pub(super) const SPARSE_LEN: usize = 8;
/// The most bytes of a header.
pub const HEAD_MAX: usize = (HEAD_LEN + WIDTH_MAX * LADDER_LEN).next_multiple_of(HEAD_ALIGN);
/// The header has a multiple of this many bytes.
pub(super) const HEAD_ALIGN: usize = 64;

pub(super) const RAW: u8 = 0;
pub(super) const CONSTANT: u8 = 1;
pub(super) const LADDER: u8 = 2;
pub(super) const SPARSE: u8 = 3;

/// A checked header.
pub(super) struct Layout {
    /// Bytes of an element.
    pub(super) width: usize,
    pub(super) is_rotated: bool,
    pub(super) elements: usize,
    planes: [Plane; WIDTH_MAX],
}

/// One plane. Offsets are those in the payload.
#[derive(Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "a header has at most eight, on the stack")]
pub(super) enum Plane {
    Raw { at: usize },
    Constant(u8),
    Ladder(Ladder),
    Sparse { value: u8, at: usize, count: usize },
}

#[derive(Clone, Copy)]
pub(super) struct Ladder {
    /// Number of low bits kept apart.
    pub(super) low: usize,
    /// Offset of their cells.
    pub(super) low_at: usize,
    levels: [Level; LEVELS_MAX],
    level_count: usize,
    /// Offset of the bytes that escaped from the last level.
    pub(super) escaped_at: usize,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Level {
    /// Bits of a code.
    pub(super) width: usize,
    /// Number of codes.
    pub(super) len: usize,
    /// Number of escapes among them.
    pub(super) escapes: usize,
    /// Offset of its cells.
    pub(super) at: usize,
    /// Its symbols; the rest is zero.
    pub(super) symbols: [u8; SYMBOLS],
}

impl Ladder {
    pub(super) fn levels(&self) -> &[Level] {
        &self.levels[..self.level_count]
    }

    /// Number of bytes that escaped from the last level.
    pub(super) fn escaped(&self) -> usize {
        self.levels().last().map_or(0, |level| level.escapes)
    }
}

/// Bytes of `codes` codes of `width` bits.
pub(super) fn cells_len(codes: usize, width: usize) -> usize {
    codes.div_ceil(CELL) * width * 8
}

fn corrupt(text: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("a packed block: {text}"))
}

/// Reads fields in order.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN]> {
        let (array, rest) = self.0.split_first_chunk().ok_or_else(|| corrupt("its header is cut off"))?;
        self.0 = rest;
        Ok(*array)
    }

    fn byte(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<usize> {
        // At least 32 bits on every supported platform.
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn zeros<const LEN: usize>(&mut self) -> Result<()> {
        if self.array::<LEN>()? == [0; LEN] { Ok(()) } else { Err(corrupt("a reserved byte is not zero")) }
    }
}

impl Layout {
    /// The planes, lowest byte first.
    pub(super) fn planes(&self) -> &[Plane] {
        &self.planes[..self.width]
    }

    /// The bytes of the payload behind the header that decoding the elements `part` reads, in order: of
    /// raw planes and of low bits, only those of the part.
    pub(super) fn bytes_of(&self, part: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let elements = self.elements;
        let each = move |plane: &Plane| match plane {
            Plane::Raw { at } => [at + part.start..at + part.end, 0..0],
            Plane::Constant(_) => [0..0, 0..0],
            Plane::Sparse { at, count, .. } => [*at..at + 3 * count, 0..0],
            Plane::Ladder(ladder) => {
                let cells = |end: usize| ladder.low_at + cells_len(end, ladder.low);
                let low_end = cells(elements);
                let low = cells(part.start / CELL * CELL)..cells(part.end).min(low_end);
                [low, low_end..ladder.escaped_at + ladder.escaped()]
            }
        };
        self.planes[..self.width].iter().flat_map(each).filter(|range| !range.is_empty())
    }

    /// Parses the header of `payload`, which must hold `elements` elements of `width` bytes.
    pub(super) fn parse(payload: &[u8], width: usize, elements: usize) -> Result<Layout> {
        let mut fields = Fields(payload);
        let version = fields.byte()?;
        if version != VERSION {
            return Err(corrupt(format_args!("its version is {version}, not {VERSION}")));
        }
        let stored_width = usize::from(fields.byte()?);
        if stored_width != width || !matches!(width, 1 | 2 | 4 | 8) {
            return Err(corrupt(format_args!("its elements have {stored_width} bytes, not {width}")));
        }
        let is_rotated = match fields.byte()? {
            0 => false,
            1 => true,
            other => return Err(corrupt(format_args!("its rotation is {other}; it must be 0 or 1"))),
        };
        fields.zeros::<1>()?;
        let stored_elements = fields.u32()?;
        if stored_elements != elements || !(1..=ELEMENTS_MAX).contains(&elements) {
            return Err(corrupt(format_args!("it has {stored_elements} elements, not {elements}")));
        }
        let (modes, values) = (fields.array::<WIDTH_MAX>()?, fields.array::<WIDTH_MAX>()?);
        let mut layout = Layout { width, is_rotated, elements, planes: [Plane::Constant(0); WIDTH_MAX] };
        for (i, (mode, value)) in modes.into_iter().zip(values).enumerate() {
            let has_value = i < width && matches!(mode, CONSTANT | SPARSE);
            if (i >= width && mode != RAW) || (!has_value && value != 0) {
                return Err(corrupt(format_args!(
                    "plane {i} has mode {mode} and value {value}, which do not go together"
                )));
            }
            if let Some(plane) = layout.planes[..width].get_mut(i) {
                *plane = plane_of(mode, value, elements, &mut fields)?;
            }
        }
        layout.place_bodies(payload, fields.0.len())?;
        Ok(layout)
    }

    /// Sets the offsets of the bodies; `rest` is the length behind the descriptors.
    fn place_bodies(&mut self, payload: &[u8], rest: usize) -> Result<()> {
        let descriptors_end = payload.len() - rest;
        let mut at = descriptors_end.next_multiple_of(HEAD_ALIGN);
        let padding = payload.get(descriptors_end..at).ok_or_else(|| corrupt("its header is cut off"))?;
        if padding.iter().any(|byte| *byte != 0) {
            return Err(corrupt("a reserved byte is not zero"));
        }
        // No sum overflows: a block has at most 65,536 elements of 8 bytes.
        let elements = self.elements;
        for plane in &mut self.planes[..self.width] {
            match plane {
                Plane::Raw { at: begin } => {
                    *begin = at;
                    at += elements;
                }
                Plane::Constant(_) => {}
                Plane::Sparse { at: begin, count, .. } => {
                    *begin = at;
                    at += (3 * *count).next_multiple_of(8);
                }
                Plane::Ladder(ladder) => {
                    ladder.low_at = at;
                    at += cells_len(elements, ladder.low);
                    for level in &mut ladder.levels[..ladder.level_count] {
                        level.at = at;
                        at += cells_len(level.len, level.width);
                    }
                    ladder.escaped_at = at;
                    at += ladder.escaped().next_multiple_of(8);
                }
            }
        }
        if at != payload.len() {
            return Err(corrupt(format_args!("it has {} bytes, but its header says {at}", payload.len())));
        }
        Ok(())
    }
}

/// Parses a plane, with its descriptor. Offsets follow later.
fn plane_of(mode: u8, value: u8, elements: usize, fields: &mut Fields<'_>) -> Result<Plane> {
    match mode {
        RAW => Ok(Plane::Raw { at: 0 }),
        CONSTANT => Ok(Plane::Constant(value)),
        LADDER => ladder_of(elements, fields).map(Plane::Ladder),
        SPARSE => {
            let count = fields.u32()?;
            fields.zeros::<4>()?;
            if count > elements {
                return Err(corrupt(format_args!(
                    "a plane has {count} exceptions, more than the {elements} elements of the block"
                )));
            }
            Ok(Plane::Sparse { value, at: 0, count })
        }
        other => Err(corrupt(format_args!("mode {other} of a plane does not exist"))),
    }
}

fn ladder_of(elements: usize, fields: &mut Fields<'_>) -> Result<Ladder> {
    let (low, level_count) = (usize::from(fields.byte()?), usize::from(fields.byte()?));
    let widths = fields.array::<LEVELS_MAX>()?;
    fields.zeros::<2>()?;
    let mut counts = [0; LEVELS_MAX];
    for count in &mut counts {
        *count = fields.u32()?;
    }
    let symbols = fields.array::<SYMBOLS>()?;
    if low > 7 || !(1..=LEVELS_MAX).contains(&level_count) {
        return Err(corrupt(format_args!(
            "a ladder has {level_count} levels and {low} low bits; it can have 1 to {LEVELS_MAX} levels and 0 to 7 low bits"
        )));
    }
    if symbols.iter().any(|symbol| symbol & ((1 << low) - 1) != 0) {
        return Err(corrupt("a symbol has low bits set; these are stored separately"));
    }
    let mut levels = [Level::default(); LEVELS_MAX];
    let (mut len, mut first) = (elements, 0);
    for (j, (width, escapes)) in widths.into_iter().zip(counts).enumerate() {
        if j >= level_count {
            if width != 0 || escapes != 0 {
                return Err(corrupt("a ladder of {level_count} levels describes a further one"));
            }
            continue;
        }
        if !(1..=4).contains(&width) {
            return Err(corrupt(format_args!("a level has codes of {width} bits; they can have 1 to 4")));
        }
        let symbol_count = (1 << width) - 1;
        let own =
            symbols.get(first..first + symbol_count).ok_or_else(|| corrupt("it has too many symbols"))?;
        if escapes > len {
            return Err(corrupt(format_args!("a level of {len} codes has {escapes} escapes")));
        }
        let mut level = Level { width: usize::from(width), len, escapes, at: 0, symbols: [0; SYMBOLS] };
        level.symbols[..symbol_count].copy_from_slice(own);
        levels[j] = level;
        (len, first) = (escapes, first + symbol_count);
    }
    Ok(Ladder { low, low_at: 0, levels, level_count, escaped_at: 0 })
}
