//! The fields of protobuf messages in a file, of which only the heads are read.

use std::ops::Range;

use crate::format::budget::Budget;
use crate::format::files::onnx::{FIELDS_MAX, damaged};
use crate::format::files::{ReadAt, cut_off};
use crate::model::{Error, Result};

/// Bytes read at a time.
const WINDOW_BYTES: u64 = 16 << 10;

/// Longest text that is read.
const TEXT_BYTES_MAX: u64 = 4096;

/// Reads fields of a file.
pub(super) struct Fields<'a, 'r> {
    read: &'a mut ReadAt<'r>,
    file_len: u64,
    budget: &'a mut Budget,
    /// Bytes of the file, from `start` on.
    window: Vec<u8>,
    start: u64,
    count: u64,
}

/// The value of a field.
pub(super) enum Value {
    Varint(u64),
    /// Its place in the file.
    Bytes(Range<u64>),
    /// Four or eight bytes, which no field here has.
    Fixed,
}

impl<'a, 'r> Fields<'a, 'r> {
    pub(super) fn new(read: &'a mut ReadAt<'r>, file_len: u64, budget: &'a mut Budget) -> Fields<'a, 'r> {
        Fields { read, file_len, budget, window: Vec::new(), start: 0, count: 0 }
    }

    /// Fields that were read.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The next field of a message, and its value; `None` at its end.
    pub(super) fn next(&mut self, at: &mut Range<u64>) -> Result<Option<(u64, Value)>> {
        if at.start >= at.end {
            return Ok(None);
        }
        self.count += 1;
        if self.count > FIELDS_MAX {
            return Err(Error::unsupported(format!("more than {FIELDS_MAX} fields")));
        }
        self.budget.take(1)?;
        let tag = self.varint(at)?;
        let (number, wire) = (tag >> 3, tag & 7);
        if number == 0 || number > (1 << 29) - 1 {
            return Err(no_model(format_args!("field number {number}"), at.start));
        }
        let length = match wire {
            0 => return Ok(Some((number, Value::Varint(self.varint(at)?)))),
            1 => 8,
            2 => self.varint(at)?,
            5 => 4,
            _ => return Err(no_model(format_args!("wire type {wire}"), at.start)),
        };
        let end = at.start.checked_add(length).filter(|end| *end <= at.end);
        let end =
            end.ok_or_else(|| self.past(format_args!("{length} bytes at byte {} go", at.start), at.end))?;
        let value = if wire == 2 { Value::Bytes(at.start..end) } else { Value::Fixed };
        at.start = end;
        Ok(Some((number, value)))
    }

    pub(super) fn varint(&mut self, at: &mut Range<u64>) -> Result<u64> {
        let mut value = 0;
        for place in 0..10 {
            let byte = self.byte(at)?;
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::invalid("a number of more than ten bytes"))
    }

    /// The text in a range. `None` if it is too long, or not UTF-8.
    pub(super) fn text(&mut self, range: Range<u64>) -> Result<Option<String>> {
        let len = range.end - range.start;
        if len > TEXT_BYTES_MAX {
            return Ok(None);
        }
        self.budget.take(len)?;
        let bytes = match self.in_window(&range) {
            Some(bytes) => bytes.to_vec(),
            None => {
                let mut bytes = vec![0; len as usize];
                self.budget.add_read(len);
                (self.read)(&mut bytes, range.start)?;
                bytes
            }
        };
        Ok(String::from_utf8(bytes).ok())
    }

    /// The error for a part of a message that goes past the message's end.
    fn past(&self, goes: std::fmt::Arguments, end: u64) -> Error {
        let text = format!("{goes} past byte {end}");
        if end == self.file_len { cut_off(text) } else { damaged(text) }
    }

    fn byte(&mut self, at: &mut Range<u64>) -> Result<u8> {
        if at.start >= at.end {
            return Err(self.past(format_args!("a number goes"), at.end));
        }
        let place = at.start..at.start + 1;
        let byte = match self.in_window(&place) {
            Some(bytes) => bytes.first().copied(),
            None => {
                self.window.resize(WINDOW_BYTES.min(self.file_len - at.start) as usize, 0);
                self.start = at.start;
                self.budget.add_read(self.window.len() as u64);
                (self.read)(&mut self.window, at.start)?;
                self.window.first().copied()
            }
        };
        at.start += 1;
        byte.ok_or_else(|| Error::invalid("it ends early"))
    }

    fn in_window(&self, range: &Range<u64>) -> Option<&[u8]> {
        let start = usize::try_from(range.start.checked_sub(self.start)?).ok()?;
        let len = usize::try_from(range.end - range.start).ok()?;
        self.window.get(start..start.checked_add(len)?)
    }
}

/// The error for bytes that no program for ONNX writes.
fn no_model(found: std::fmt::Arguments, at: u64) -> Error {
    damaged(format_args!("{found} before byte {at}"))
}
