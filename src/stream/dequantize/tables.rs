//! The tables of a weight: scales and zero points.

use std::ops::Range;

use crate::codec::dequantize::Alphabet;
use crate::format::files::safetensors::{Scales, Weight, Zeros};
use crate::model::{Dtype, Error, Result};
use crate::stream::Stream;
use crate::stream::cast::cast;
use crate::stream::dequantize::{Parts, part};

/// Most bytes of a tensor that is read whole: lists of groups, tables of scales.
const WHOLE_BYTES_MAX: u64 = 64 << 20;

/// A number of a table, or several in a row.
pub(super) struct Tables {
    scales: Table,
    zeros: Option<Table>,
    /// Multiplies all values.
    pub factor: f32,
}

/// The numbers in some rows and columns of the tables.
#[derive(Default)]
pub(super) struct Numbers {
    rows: Range<u64>,
    columns: Range<u64>,
    /// Row by row.
    scales: Vec<f32>,
    zeros: Option<Vec<f32>>,
}

impl Numbers {
    pub fn has(&self, row: u64, columns: &Range<u64>) -> bool {
        self.rows.contains(&row) && self.columns.start <= columns.start && columns.end <= self.columns.end
    }

    pub fn columns(&self) -> &Range<u64> {
        &self.columns
    }

    /// The scales in a row, and the zero points if the weight has them.
    pub fn row(&self, row: u64) -> (&[f32], Option<&[f32]>) {
        let width = (self.columns.end - self.columns.start) as usize;
        let from = row.saturating_sub(self.rows.start) as usize * width;
        let part = from..from + width;
        let zeros = self.zeros.as_ref().map(|zeros| zeros.get(part.clone()).unwrap_or_default());
        (self.scales.get(part.clone()).unwrap_or_default(), zeros)
    }

    /// The same of a column, from one of the rows on.
    pub fn column(&self, column: u64, first: u64, scales: &mut Vec<f32>, zeros: &mut Vec<f32>) {
        let width = (self.columns.end - self.columns.start).max(1) as usize;
        let from = first as usize * width + column.saturating_sub(self.columns.start) as usize;
        for (to, all) in [(scales, Some(&self.scales)), (zeros, self.zeros.as_ref())] {
            let all = all.and_then(|all| all.get(from..)).unwrap_or_default();
            to.clear();
            to.extend(all.iter().step_by(width));
        }
    }

    pub fn has_zeros(&self) -> bool {
        self.zeros.is_some()
    }

    pub fn add_to_zeros(&mut self, number: f32) {
        self.zeros.iter_mut().flatten().for_each(|zero| *zero += number);
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        let zeros = self.zeros.as_ref().map_or(0, Vec::capacity);
        (self.scales.capacity() + zeros) * size_of::<f32>()
    }
}

/// A stored table of numbers.
struct Table {
    source: Stream,
    dtype: Dtype,
    kind: Kind,
    columns: u64,
}

/// How numbers are made of what is stored.
enum Kind {
    Plain,
    /// Each divided by a number.
    Divided(f32),
    Nested {
        table: Vec<f32>,
        scales: Vec<f32>,
        block: u64,
        offset: f32,
    },
    Columns {
        bits: u64,
        added: u8,
    },
    Awq,
    Rows {
        bits: u64,
        columns: u64,
    },
}

impl Tables {
    pub fn new(weight: &Weight, parts: &Parts) -> Result<Tables> {
        let (source, dtype) = part(parts, &weight.scales_name)?.clone();
        let number = |name: &str| -> Result<f32> { one(&whole(parts, name)?) };
        let mut factor = 1.0;
        let mut dtype = dtype;
        let kind = match &weight.scales {
            Scales::Plain => Kind::Plain,
            Scales::Powers => {
                dtype = Dtype::F8E8M0;
                Kind::Plain
            }
            Scales::Divided(name) => Kind::Divided(number(name)?),
            Scales::Multiplied(name) => {
                factor = number(name)?;
                Kind::Plain
            }
            Scales::Nested { table, scales, block, offset } => Kind::Nested {
                table: whole(parts, table)?,
                scales: whole(parts, scales)?,
                block: (*block).max(1),
                offset: *offset,
            },
        };
        let columns = weight.table_columns;
        let scales = Table { source, dtype, kind, columns };
        let zeros = match &weight.zeros_name {
            None => None,
            Some(name) => {
                let (source, dtype) = part(parts, name)?.clone();
                let kind = match &weight.zeros {
                    Zeros::Plain => Kind::Plain,
                    Zeros::Columns { bits, added } => {
                        Kind::Columns { bits: u64::from(*bits).max(1), added: *added }
                    }
                    Zeros::Awq => Kind::Awq,
                    Zeros::Rows { bits } => Kind::Rows { bits: u64::from(*bits).max(1), columns },
                };
                Some(Table { source, dtype, kind, columns })
            }
        };
        Ok(Tables { scales, zeros, factor })
    }

    /// The numbers in some rows and columns.
    pub fn read(&self, rows: Range<u64>, columns: Range<u64>) -> Result<Numbers> {
        let zeros = self.zeros.as_ref().map(|zeros| zeros.read(&rows, &columns)).transpose()?;
        let scales = self.scales.read(&rows, &columns)?;
        Ok(Numbers { rows, columns, scales, zeros })
    }

    /// Bytes of memory that a number takes, or a number of each table.
    pub fn bytes_of_number(&self) -> u64 {
        (1 + u64::from(self.zeros.is_some())) * size_of::<f32>() as u64
    }
}

impl Table {
    fn read(&self, rows: &Range<u64>, columns: &Range<u64>) -> Result<Vec<f32>> {
        let count = columns.end - columns.start;
        let is_contiguous = matches!(self.kind, Kind::Plain | Kind::Divided(_) | Kind::Nested { .. });
        if is_contiguous && count == self.columns {
            return self.read_row(rows.start, columns.start, count.saturating_mul(rows.end - rows.start));
        }
        let mut numbers = Vec::new();
        for row in rows.clone() {
            numbers.extend(self.read_row(row, columns.start, count)?);
        }
        Ok(numbers)
    }

    fn read_row(&self, row: u64, first: u64, count: u64) -> Result<Vec<f32>> {
        match &self.kind {
            Kind::Plain => self.numbers(row * self.columns + first, count),
            Kind::Divided(by) => {
                let mut numbers = self.numbers(row * self.columns + first, count)?;
                numbers.iter_mut().for_each(|number| *number /= by);
                Ok(numbers)
            }
            Kind::Nested { table, scales, block, offset } => {
                let at = row * self.columns + first;
                let mut codes = vec![0; count as usize];
                self.source.read_exact(at, &mut codes)?;
                let of = |(at, code): (u64, &u8)| {
                    let scale = scales.get((at / block) as usize).copied();
                    table
                        .get(usize::from(*code))
                        .copied()
                        .zip(scale)
                        .map(|(number, scale)| number * scale + offset)
                };
                let numbers: Option<Vec<f32>> = (at..).zip(&codes).map(of).collect();
                numbers.ok_or_else(|| Error::corrupt("a table of scales is too short"))
            }
            Kind::Columns { bits, added } => {
                let (each, mask) = (32 / bits, (1_u64 << bits) as u32 - 1);
                let words = self.words(
                    row * self.columns.div_ceil(each),
                    first / each,
                    (first + count).div_ceil(each),
                )?;
                let of = |at: u64| {
                    let word = words.get((at / each - first / each) as usize).copied().unwrap_or_default();
                    (word >> (at % each * bits) & mask) as f32 + f32::from(*added)
                };
                Ok((first..first + count).map(of).collect())
            }
            Kind::Awq => {
                let (begin, end) = (first / 8, (first + count).div_ceil(8));
                let words = self.words(row * self.columns.div_ceil(8), begin, end)?;
                let mut numbers = vec![0.0; words.len() * 8];
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                Alphabet::Awq.numbers(&bytes, &mut numbers);
                let skip = (first - begin * 8) as usize;
                Ok(numbers.get(skip..skip + count as usize).map(<[f32]>::to_vec).unwrap_or_default())
            }
            Kind::Rows { bits, columns } => {
                let (each, mask) = (32 / bits, (1_u64 << bits) as u32 - 1);
                let words = self.words(row / each * columns, first, first + count)?;
                let half = (1_u32 << (bits - 1)) as f32;
                Ok(words.iter().map(|word| (word >> (row % each * bits) & mask) as f32 - half).collect())
            }
        }
    }

    fn numbers(&self, at: u64, count: u64) -> Result<Vec<f32>> {
        numbers(&self.source, self.dtype, at, count)
    }

    /// Words from `begin` to `end` of a row that starts at the word `row`.
    fn words(&self, row: u64, begin: u64, end: u64) -> Result<Vec<u32>> {
        let mut bytes = vec![0; ((end - begin) * 4) as usize];
        self.source.read_exact((row + begin) * 4, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }
}

/// The numbers of a whole tensor.
pub(super) fn whole(parts: &Parts, name: &str) -> Result<Vec<f32>> {
    let (source, dtype) = part(parts, name)?;
    numbers(source, *dtype, 0, dtype.elements_in(source.bytes()))
}

/// The integers of a whole tensor of i32 that says which group each row, or column, is in.
pub(super) fn list(parts: &Parts, name: &str, groups: u64) -> Result<Vec<u32>> {
    let (source, _) = part(parts, name)?;
    if source.bytes() > WHOLE_BYTES_MAX {
        return Err(Error::corrupt(format!("tensor {name:?} lists too many groups")));
    }
    let mut bytes = vec![0; source.bytes() as usize];
    source.read_exact(0, &mut bytes)?;
    let words = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
    let found: Option<Vec<u32>> = words.map(|group| (u64::from(group) < groups).then_some(group)).collect();
    found
        .ok_or_else(|| Error::corrupt(format!("tensor {name:?} names a group that its weight does not have")))
}

fn one(numbers: &[f32]) -> Result<f32> {
    numbers.first().copied().ok_or_else(|| Error::corrupt("a scale without a number"))
}

fn numbers(source: &Stream, dtype: Dtype, at: u64, count: u64) -> Result<Vec<f32>> {
    let each = dtype.bytes();
    if count.saturating_mul(each) > WHOLE_BYTES_MAX {
        return Err(Error::corrupt("a table of scales is too long"));
    }
    let mut bytes = vec![0; (count * each) as usize];
    source.read_exact(at * each, &mut bytes)?;
    Ok(match dtype {
        Dtype::I8 => bytes.iter().map(|byte| f32::from(*byte as i8)).collect(),
        Dtype::U8 => bytes.iter().map(|byte| f32::from(*byte)).collect(),
        Dtype::I32 => bytes.as_chunks().0.iter().map(|word| i32::from_le_bytes(*word) as f32).collect(),
        Dtype::F32 => bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect(),
        _ => {
            let mut wide = vec![0; count as usize * 4];
            cast(dtype, Dtype::F32, &bytes, &mut wide)?;
            wide.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
        }
    })
}
