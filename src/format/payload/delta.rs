//! One record of `delta.dat`: changes to the elements of one block.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 16 | object id |
//! | 16 | 4 | block index |
//! | 20 | 8 | base epoch: the epoch of the block that the changes apply to |
//! | 28 | 2 | number of changes, nnz; 0 in an exact difference |
//! | 30 | 4 | scale f32; 0 unless the record is scaled |
//! | 34 | 4 | CRC32C of the block that the changes make of a lineage parent's; 0 if they apply to the block itself |
//! | 38 | .. | the changes, in ascending order of the element they change |
//!
//! A change is a u16, the index of the element in its block, and then: in a scaled record
//! an i16, in a patch the element's own bytes. An exact difference has the payload of all elements
//! (`codec/difference.rs`) instead. The log holds the kind of a record, its element type, and its
//! checksum.
//!
//! For `F4` an index means a byte, which holds two elements.

use crate::format::cursor::{Reader, Writer};
use crate::format::payload::element::{put_values, value};
use crate::model::{Dtype, Error, ObjectId, Result};

/// Largest number of changes of a record. If more elements change, the block is rewritten.
pub const CHANGES_MAX: usize = u16::MAX as usize;

/// Bytes before the changes.
pub const HEAD_BYTES: usize = 38;

/// Bit of the kind byte of the log: the changes apply to the sum of the parent's block and a product (`factor.rs`).
pub const ON_PRODUCT: u8 = 4;

/// How a record changes elements: the kind byte of the log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeltaKind {
    /// Adds a number times a scale to an element.
    Scaled,
    /// Replaces an element.
    Patch,
    /// Leads from all elements of the base to those of the block, without loss.
    Exact,
}

impl DeltaKind {
    /// The kind byte of the log.
    pub fn byte(self) -> u8 {
        match self {
            DeltaKind::Scaled => 0,
            DeltaKind::Patch => 1,
            DeltaKind::Exact => 2,
        }
    }

    /// The kind of a byte of the log; `None` if unknown.
    pub fn from_byte(byte: u8) -> Option<DeltaKind> {
        match byte {
            0 => Some(DeltaKind::Scaled),
            1 => Some(DeltaKind::Patch),
            2 => Some(DeltaKind::Exact),
            _ => None,
        }
    }
}

/// Changes to the elements of one block.
#[derive(Clone, PartialEq, Debug)]
pub struct Delta {
    /// The object of the block.
    pub object: ObjectId,
    /// The block of the object.
    pub block: u32,
    /// The epoch of the block that the changes apply to.
    pub base_epoch: u64,
    /// CRC32C of the block that the changes make of a lineage parent's block. 0 if they apply to the block itself, whose
    /// payload has a checksum.
    pub result: u32,
    /// The changes.
    pub changes: Changes,
}

/// Changes, in ascending order of the index of their element.
#[derive(Clone, PartialEq, Debug)]
pub enum Changes {
    /// `x[index] + value * scale`.
    Scaled {
        /// The factor of each value. Finite.
        scale: f32,
        /// Index and value.
        pairs: Vec<(u16, i16)>,
    },
    /// New elements.
    Patch {
        /// The indexes of the elements.
        indices: Vec<u16>,
        /// The bytes of the new elements, concatenated.
        elements: Vec<u8>,
    },
    /// The payload of an exact difference, which the codec applies.
    Exact(Vec<u8>),
}

impl Delta {
    /// Reads a whole record of `kind` for a block of `elements` elements of `dtype`.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8], kind: DeltaKind, dtype: Dtype, elements: u64) -> Result<Delta> {
        let mut input = Reader::new(bytes);
        let object = ObjectId(input.u128()?);
        let block = input.u32()?;
        let base_epoch = input.u64()?;
        let count = usize::from(input.u16()?);
        let scale = input.f32()?;
        let result = input.u32()?;
        let width = value_bytes(kind, dtype);
        if kind != DeltaKind::Scaled && scale.to_bits() != 0 {
            return Err(Error::corrupt(format!("a patch has the scale {scale}; it must be 0")));
        }
        if kind == DeltaKind::Exact {
            let changes = Changes::Exact(input.bytes(input.remaining())?.to_vec());
            changes.check(dtype, elements).map_err(Error::corrupt)?;
            if count != 0 {
                return Err(Error::corrupt(format!(
                    "an exact difference counts {count} changes; it must count 0"
                )));
            }
            return Ok(Delta { object, block, base_epoch, result, changes });
        }
        if input.remaining() != count.saturating_mul(2 + width) {
            return Err(Error::corrupt(format!(
                "a delta of {count} changes of {width} bytes does not fit its record of {} bytes",
                bytes.len()
            )));
        }
        let changes = match kind {
            DeltaKind::Scaled => Changes::Scaled {
                scale,
                pairs: (0..count).map(|_| Ok((input.u16()?, input.i16()?))).collect::<Result<_>>()?,
            },
            _ => {
                let mut indices = Vec::with_capacity(count);
                let mut replacements = Vec::with_capacity(count * width);
                for _ in 0..count {
                    indices.push(input.u16()?);
                    replacements.extend_from_slice(input.bytes(width)?);
                }
                Changes::Patch { indices, elements: replacements }
            }
        };
        changes.check(dtype, elements).map_err(Error::corrupt)?;
        Ok(Delta { object, block, base_epoch, result, changes })
    }

    /// The record's bytes, for a block of elements of `dtype`.
    ///
    /// # Errors
    /// `Invalid` for changes that [`Delta::parse`] would refuse, and for more than [`CHANGES_MAX`].
    pub fn write(&self, dtype: Dtype) -> Result<Vec<u8>> {
        let count = self.changes.len();
        let nnz = u16::try_from(count)
            .map_err(|_| Error::invalid(format!("delta of {count} changes, over {CHANGES_MAX}")))?;
        self.changes.check(dtype, u64::MAX).map_err(Error::invalid)?;
        let width = value_bytes(self.changes.kind(), dtype);
        let mut out = Writer::with_capacity(self.changes.record_bytes(dtype));
        out.u128(self.object.0).u32(self.block).u64(self.base_epoch).u16(nnz);
        match &self.changes {
            Changes::Scaled { scale, pairs } => {
                out.f32(*scale).u32(self.result);
                for (index, value) in pairs {
                    out.u16(*index).i16(*value);
                }
            }
            Changes::Patch { indices, elements } => {
                out.f32(0.0).u32(self.result);
                for (index, element) in indices.iter().zip(elements.chunks_exact(width)) {
                    out.u16(*index).bytes(element);
                }
            }
            Changes::Exact(payload) => {
                out.f32(0.0).u32(self.result).bytes(payload);
            }
        }
        Ok(out.into_bytes())
    }

    /// Applies the changes to `block`, elements of `dtype`. A scaled change computes
    /// `x + (value as f32) * scale` in f32, rounded after the multiplication and after the addition, and
    /// rounds the sum to `dtype`, ties to even. After an error the block is unchanged.
    ///
    /// # Errors
    /// `Corrupt` for changes that do not fit the block, `Invalid` for an exact difference.
    pub fn apply(&self, dtype: Dtype, block: &mut [u8]) -> Result<()> {
        let width = element_bytes(dtype);
        let whole = block.len() - block.len() % width;
        let (elements, _) = block.split_at_mut(whole);
        let count = u64::try_from(whole / width).unwrap_or(u64::MAX);
        self.changes.check(dtype, count).map_err(Error::corrupt)?;
        match &self.changes {
            Changes::Scaled { scale, pairs } => {
                for (index, value) in pairs {
                    let at = usize::from(*index) * width;
                    if let Some(element) = elements.get_mut(at..at + width) {
                        add(dtype, element, f32::from(*value) * scale);
                    }
                }
            }
            Changes::Patch { indices, elements: replacements } => {
                for (index, replacement) in indices.iter().zip(replacements.chunks_exact(width)) {
                    let at = usize::from(*index) * width;
                    if let Some(element) = elements.get_mut(at..at + width) {
                        element.copy_from_slice(replacement);
                    }
                }
            }
            Changes::Exact(_) => return Err(Error::invalid("the codec applies an exact difference")),
        }
        Ok(())
    }
}

impl Changes {
    /// The kind of the changes.
    pub fn kind(&self) -> DeltaKind {
        match self {
            Changes::Scaled { .. } => DeltaKind::Scaled,
            Changes::Patch { .. } => DeltaKind::Patch,
            Changes::Exact(_) => DeltaKind::Exact,
        }
    }

    /// Bytes of a record of these changes.
    pub fn record_bytes(&self, dtype: Dtype) -> usize {
        let changes = match self {
            Changes::Exact(payload) => payload.len(),
            _ => self.len() * (2 + value_bytes(self.kind(), dtype)),
        };
        HEAD_BYTES + changes
    }

    /// The number of elements that it lists: 0 for an exact difference.
    pub fn len(&self) -> usize {
        match self {
            Changes::Scaled { pairs, .. } => pairs.len(),
            Changes::Patch { indices, .. } => indices.len(),
            Changes::Exact(_) => 0,
        }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.kind() != DeltaKind::Exact
    }

    /// Checks that the changes fit a block of `elements` elements of `dtype`. Returns the problem if not.
    fn check(&self, dtype: Dtype, elements: u64) -> Result<(), String> {
        let (ascending, last) = match self {
            Changes::Scaled { scale, pairs } => {
                if !dtype.is_quantizable() {
                    return Err(format!("a scaled delta is for {dtype} elements; only floats can have one"));
                }
                if !scale.is_finite() {
                    return Err(format!("a delta has the scale {scale}, which is not finite"));
                }
                let ascending = pairs.is_sorted_by(|left, right| left.0 < right.0);
                (ascending, pairs.last().map(|(index, _)| *index))
            }
            Changes::Patch { indices, elements: replacements } => {
                if Some(replacements.len()) != indices.len().checked_mul(element_bytes(dtype)) {
                    return Err(format!(
                        "a patch of {} elements of {dtype} has {} bytes",
                        indices.len(),
                        replacements.len()
                    ));
                }
                let ascending = indices.is_sorted_by(|left, right| left < right);
                (ascending, indices.last().copied())
            }
            Changes::Exact(_) if !dtype.is_quantizable() => {
                return Err(format!("an exact difference is for {dtype} elements; only floats can have one"));
            }
            Changes::Exact(_) => return Ok(()),
        };
        match last {
            _ if !ascending => Err("the indices of a delta do not ascend".to_owned()),
            Some(last) if u64::from(last) >= elements => {
                Err(format!("delta changes element {last} of a block of {elements}"))
            }
            _ => Ok(()),
        }
    }
}

/// Bytes after the index in one change.
fn value_bytes(kind: DeltaKind, dtype: Dtype) -> usize {
    match kind {
        DeltaKind::Scaled => 2,
        DeltaKind::Patch => element_bytes(dtype),
        DeltaKind::Exact => 0,
    }
}

/// Bytes of one element: 1 to 8.
fn element_bytes(dtype: Dtype) -> usize {
    usize::try_from(dtype.bytes()).map_or(1, |bytes| bytes.max(1))
}

/// Adds to one element of a quantizable type.
fn add(dtype: Dtype, element: &mut [u8], change: f32) {
    // `Changes::check` refuses all other types and widths.
    if let Some(value) = value(dtype, element) {
        put_values(dtype, &[value + change], element);
    }
}
