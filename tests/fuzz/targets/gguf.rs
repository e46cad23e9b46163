//! Headers of GGUF files, against a crate for them. A whole file; a short one is also parsed as the beginning of a
//! long one.

use std::io::Cursor;

use gguf_rs_lib::prelude::GGUFFileReader;
use tierfs::format::budget::Budget;
use tierfs::format::files::gguf::{self, Entry, Header};
use tierfs::model::Result;

/// The header, read in steps that its bytes allow.
fn parse(bytes: &[u8], file_len: u64) -> Result<Option<Header>> {
    let mut budget = Budget::default();
    let header = gguf::parse(bytes, file_len, &mut budget);
    assert!(budget.spent() <= 2 * bytes.len() as u64 + 8, "{} steps", budget.spent());
    header
}

pub fn check(bytes: &[u8]) {
    for file_len in [bytes.len() as u64, 1 << 62] {
        let Ok(Some(header)) = parse(bytes, file_len) else { continue };
        sound(&header, file_len);
        // A longer prefix gives the same result; a shorter one asks for more or gives it already.
        let longer = [bytes, &[0xff; 100]].concat();
        assert_eq!(parse(&longer, file_len.max(longer.len() as u64)).ok().flatten().as_ref(), Some(&header));
        let half = bytes.get(..bytes.len() / 2).unwrap_or_default();
        let read = parse(half, file_len).unwrap_or_else(|error| panic!("half of it: {error}"));
        assert!(read.is_none_or(|read| read == header));
    }
    if let Ok(Some(header)) = parse(bytes, bytes.len() as u64) {
        agrees(bytes, &header);
    }
}

/// The tensors are in the file, do not overlap, and have the bytes that their shapes ask for.
fn sound(header: &Header, file_len: u64) {
    let mut places = Vec::new();
    for entry in &header.tensors {
        assert_eq!(Some(entry.bytes), entry.dtype.bytes_of(entry.shape.elements()));
        places.push((entry.offset, entry.bytes));
    }
    places.sort_unstable();
    let mut end = 0;
    for (offset, bytes) in places {
        assert!(offset >= end, "an overlap");
        end = offset + bytes;
    }
    assert!(header.tensors.is_empty() || header.data_start + end <= file_len, "past the end");
    assert!(header.metadata.start <= header.metadata.end && header.metadata.end <= header.data_start);
}

/// Files that the other parser accepts give the same result.
fn agrees(bytes: &[u8], header: &Header) {
    let Ok(other) = GGUFFileReader::new(Cursor::new(bytes)) else { return };
    let tensors: &[Entry] = &header.tensors;
    assert_eq!(other.tensor_infos().len(), tensors.len());
    for (theirs, ours) in other.tensor_infos().iter().zip(tensors) {
        let reversed: Vec<u64> = ours.shape.dimensions().iter().rev().copied().collect();
        assert_eq!((theirs.name(), theirs.data_offset()), (&*ours.name, ours.offset));
        assert_eq!(theirs.shape().dims(), reversed);
        assert_eq!(theirs.expected_data_size(), ours.bytes);
    }
}
