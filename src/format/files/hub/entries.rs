//! The metadata of a GGUF file, in the order in which it is set, and the bytes of its header.

use std::collections::HashMap;

use crate::format::cursor::Writer;
use crate::format::files::gguf;
use crate::model::{Dtype, Error, Result, Shape};

/// The version of GGUF.
const VERSION: u32 = 3;

/// A value of the metadata.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Entry {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
}

impl Entry {
    /// The number of its type in files.
    fn kind(&self) -> u32 {
        match self {
            Entry::U32(_) => 4,
            Entry::I32(_) => 5,
            Entry::F32(_) => 6,
            Entry::Bool(_) => 7,
            Entry::Text(_) => 8,
            Entry::Texts(_) | Entry::I32s(_) | Entry::F32s(_) => 9,
        }
    }

    /// Whether gguf-py leaves it out: empty texts and arrays.
    fn is_empty(&self) -> bool {
        match self {
            Entry::Text(text) => text.is_empty(),
            Entry::Texts(all) => all.is_empty(),
            Entry::I32s(all) => all.is_empty(),
            Entry::F32s(all) => all.is_empty(),
            _ => false,
        }
    }

    fn write(&self, out: &mut Writer) {
        match self {
            Entry::U32(value) => out.u32(*value),
            Entry::I32(value) => out.bytes(&value.to_le_bytes()),
            Entry::F32(value) => out.bytes(&value.to_le_bytes()),
            Entry::Bool(value) => out.u8(u8::from(*value)),
            Entry::Text(value) => text(out, value),
            Entry::Texts(all) => {
                out.u32(8).u64(all.len() as u64);
                all.iter().for_each(|value| {
                    text(out, value);
                });
                out
            }
            Entry::I32s(all) => {
                out.u32(5).u64(all.len() as u64);
                all.iter().fold(out, |out, value| out.bytes(&value.to_le_bytes()))
            }
            Entry::F32s(all) => out.u32(6).u64(all.len() as u64).f32s(all),
        };
    }
}

fn text<'a>(out: &'a mut Writer, value: &str) -> &'a mut Writer {
    out.u64(value.len() as u64).bytes(value.as_bytes())
}

/// The metadata of a file. A key that is set again keeps its place.
#[derive(Default)]
pub(super) struct Entries {
    all: Vec<(String, Entry)>,
    places: HashMap<String, usize>,
}

impl Entries {
    /// Sets a key. An empty text or array changes nothing.
    pub(super) fn set(&mut self, key: impl Into<String>, entry: Entry) {
        if entry.is_empty() {
            return;
        }
        let key = key.into();
        match self.places.get(&key).and_then(|place| self.all.get_mut(*place)) {
            Some((_, old)) => *old = entry,
            None => {
                self.places.insert(key.clone(), self.all.len());
                self.all.push((key, entry));
            }
        }
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.set(key, Entry::Text(value.to_owned()));
    }
}

/// A tensor in the header.
pub(super) struct Listed<'a> {
    pub(super) name: &'a str,
    pub(super) dtype: Dtype,
    pub(super) shape: &'a Shape,
}

/// The header of a file, with zeros up to the data.
///
/// # Errors
/// `Unsupported` for a header of more bytes than GGUF files may have here.
pub(super) fn write(entries: &Entries, tensors: &[Listed<'_>]) -> Result<Vec<u8>> {
    let too_long = || Error::unsupported("a header that is too long");
    let mut out = Writer::new();
    out.bytes(b"GGUF").u32(VERSION).u64(tensors.len() as u64).u64(entries.all.len() as u64);
    for (key, entry) in &entries.all {
        text(&mut out, key).u32(entry.kind());
        entry.write(&mut out);
    }
    let mut at: u64 = 0;
    for Listed { name, dtype, shape } in tensors {
        let code = gguf::code_of_type(*dtype);
        let code = code.ok_or_else(|| Error::unsupported(format!("{dtype} in a gguf file")))?;
        let sizes = shape.dimensions();
        text(&mut out, name).u32(sizes.len() as u32);
        sizes.iter().rev().fold(&mut out, |out, size| out.u64(*size)).u32(code).u64(at);
        let bytes = gguf::bytes_of(*dtype, shape);
        let end = bytes.and_then(|bytes| at.checked_add(bytes)?.checked_next_multiple_of(gguf::ALIGNMENT));
        at = end.ok_or_else(too_long)?;
    }
    let padding = out.position().next_multiple_of(gguf::ALIGNMENT as usize) - out.position();
    out.zeros(padding);
    if out.position() as u64 > gguf::HEADER_BYTES_MAX {
        return Err(too_long());
    }
    Ok(out.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::{Entries, Entry, Listed, write};
    use crate::format::budget::Budget;
    use crate::format::files::gguf;
    use crate::model::{Dtype, Shape};

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let mut entries = Entries::default();
        entries.text("general.name", "first");
        entries.set("a.count", Entry::U32(7));
        entries.set("a.texts", Entry::Texts(vec!["b".into(), String::new()]));
        entries.set("a.numbers", Entry::F32s(vec![1.0]));
        entries.set("a.empty", Entry::I32s(Vec::new()));
        entries.text("general.name", "second");
        let shape = Shape::new(&[2, 32]).unwrap();
        let tensors = [("one", Dtype::Q8_0), ("two", Dtype::F32)];
        let listed = tensors.map(|(name, dtype)| Listed { name, dtype, shape: &shape });
        let bytes = write(&entries, &listed).unwrap();
        let header = gguf::parse(&bytes, bytes.len() as u64 + 352, &mut Budget::default()).unwrap().unwrap();
        assert_eq!((header.metadata_count, header.data_start), (4, bytes.len() as u64));
        assert_eq!(header.tensors[1].offset, 96);
        assert_eq!(header.tensors[1].shape, shape);
        let at = |text: &[u8]| bytes.windows(text.len()).position(|part| part == text);
        assert!(at(b"first").is_none() && at(b"second") < at(b"a.count"), "a key keeps its place");
    }
}
