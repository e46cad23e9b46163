//! Headers of safetensors files, against the format's own crate. A whole file; a short one is also parsed as the
//! beginning of a file of the stated length.

use std::collections::BTreeSet;

use safetensors::SafeTensors;
use tierfs::format::budget::Budget;
use tierfs::format::files::TensorRange;
use tierfs::format::files::safetensors::{Entry, Header, Other, entry, header_len, parse, write_entries};
use tierfs::model::{Error, ErrorKind, Result};

pub fn check(bytes: &[u8]) {
    let ours = read(bytes, bytes.len() as u64);
    if let Ok(header) = &ours {
        sound(header, bytes.len() as u64);
        rewritten(header);
    }
    agrees(bytes, ours);
    // The true length of a file with only its header here, if the last offset tells it.
    let Some(end) = last_number(bytes) else { return };
    let Some(json) = bytes.first_chunk().map(|first| u64::from_le_bytes(*first)) else { return };
    let Some(whole) = end.checked_add(json).and_then(|end| end.checked_add(8)) else { return };
    if let Ok(header) = read(bytes, whole) {
        sound(&header, whole);
        rewritten(&header);
    }
}

fn read(bytes: &[u8], file_len: u64) -> Result<Header> {
    let short = || Error::invalid("short");
    let first = *bytes.first_chunk().ok_or_else(short)?;
    let length = usize::try_from(header_len(first, file_len)?).map_err(|_| short())?;
    let mut budget = Budget::default();
    let header = parse(bytes.get(8..8 + length).ok_or_else(short)?, file_len, &mut budget);
    assert!(budget.spent() <= length as u64, "{} steps", budget.spent());
    header
}

/// The tensors and the others cover the file, and each tensor has the bytes that its shape asks for.
fn sound(header: &Header, file_len: u64) {
    for TensorRange { dtype, shape, begin, end, .. } in &header.tensors {
        assert_eq!(Some(end - begin), dtype.bytes_of(shape.elements()));
    }
    let tensors = header.tensors.iter().map(|tensor| (tensor.begin, tensor.end));
    let mut all: Vec<(u64, u64)> =
        tensors.chain(header.others.iter().map(|other| (other.begin, other.end))).collect();
    all.sort_unstable();
    let mut at = header.data_start;
    for (begin, end) in all {
        assert_eq!(begin, at, "a gap or an overlap");
        at = end;
    }
    assert_eq!(at, file_len);
    let names = header.tensors.iter().map(|tensor| &tensor.name);
    let names: BTreeSet<&String> = names.chain(header.others.iter().map(|other| &other.name)).collect();
    assert_eq!(names.len(), header.tensors.len() + header.others.len(), "a name twice");
}

/// Written again it parses to the same tensors, except for their offsets.
fn rewritten(header: &Header) {
    let entries = entries(header);
    let data: u64 = entries.iter().map(|entry| entry.bytes).sum();
    for alignment in [1, 4096] {
        let Ok(written) = write_entries(&entries, &header.metadata, alignment) else {
            panic!("a header that was read cannot be written: {header:?}");
        };
        assert_eq!(written.len() as u64 % alignment, 0);
        let Some(whole) = data.checked_add(written.len() as u64) else { continue };
        let again = read(&written, whole).unwrap_or_else(|error| panic!("{error}: {header:?}"));
        assert_eq!(again.metadata, header.metadata);
        assert_eq!(self::entries(&again), entries);
    }
}

fn entries(header: &Header) -> Vec<Entry<'_>> {
    let tensors = header.tensors.iter().map(|tensor| {
        entry(&tensor.name, tensor.dtype, &tensor.shape).unwrap_or_else(|error| panic!("{error}"))
    });
    let others = header.others.iter().map(|Other { name, type_name, dimensions, begin, end, .. }| Entry {
        name,
        type_name,
        dimensions,
        bytes: end - begin,
    });
    tensors.chain(others).collect()
}

/// The types that the crate knows.
const CRATE_TYPES: [&str; 22] = [
    "BOOL",
    "F4",
    "F6_E2M3",
    "F6_E3M2",
    "U8",
    "I8",
    "F8_E5M2",
    "F8_E4M3",
    "F8_E8M0",
    "F8_E4M3FNUZ",
    "F8_E5M2FNUZ",
    "I16",
    "U16",
    "F16",
    "BF16",
    "I32",
    "U32",
    "F32",
    "C64",
    "F64",
    "I64",
    "U64",
];

fn agrees(bytes: &[u8], ours: Result<Header>) {
    match (ours, SafeTensors::deserialize(bytes)) {
        (Ok(ours), theirs) => {
            // A newer version of the crate may know more types.
            let is_known = |name: &str| CRATE_TYPES.contains(&name);
            if ours.others.iter().any(|other| !is_known(&other.type_name)) {
                return;
            }
            let theirs = theirs.unwrap_or_else(|error| panic!("the crate refuses this: {error}"));
            assert_eq!(theirs.len(), ours.tensors.len() + ours.others.len());
            for other in &ours.others {
                let found = theirs.tensor(&other.name).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(found.dtype().to_string(), other.type_name);
                let range = other.begin as usize..other.end as usize;
                assert_eq!(Some(found.data().as_ptr_range()), bytes.get(range).map(<[u8]>::as_ptr_range));
            }
            for tensor in &ours.tensors {
                let found = theirs.tensor(&tensor.name).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(Some(found.dtype().to_string().as_str()), tensor.dtype.safetensors_name());
                assert!(
                    found.shape().iter().map(|size| *size as u64).eq(tensor
                        .shape
                        .dimensions()
                        .iter()
                        .copied())
                );
                let range = tensor.begin as usize..tensor.end as usize;
                assert_eq!(Some(found.data().as_ptr_range()), bytes.get(range).map(<[u8]>::as_ptr_range));
            }
        }
        (Err(error), Ok(_)) => {
            let is_stricter = error.kind() == ErrorKind::Unsupported || error.to_string().contains("twice");
            assert!(is_stricter, "the crate takes this: {error}");
        }
        (Err(_), Err(_)) => {}
    }
}

fn last_number(bytes: &[u8]) -> Option<u64> {
    let is_digit = u8::is_ascii_digit;
    let end = bytes.iter().rposition(is_digit)? + 1;
    let digits = bytes.get(..end)?;
    let begin = digits.iter().rposition(|byte| !is_digit(byte)).map_or(0, |place| place + 1);
    std::str::from_utf8(digits.get(begin..)?).ok()?.parse().ok()
}
