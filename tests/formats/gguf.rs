//! Headers of GGUF files, against the `gguf-rs-lib` crate, the layout of the specification, and damaged bytes.
//! `tests/containers/gguf.rs` compares files that the Python package `gguf` writes, on mounts.

use std::io::Cursor;

use gguf_rs_lib::prelude::GGUFFileReader;
use proptest::prelude::*;
use tierfs::format::budget::Budget;
use tierfs::format::files::gguf::{
    self, HEADER_BYTES_MAX, Header, TENSORS_MAX, code_of_type, type_of_code, with_types,
};
use tierfs::model::{Dtype, ErrorKind, Result};

use crate::damaged;

fn parse(prefix: &[u8], file_len: u64) -> Result<Option<Header>> {
    gguf::parse(prefix, file_len, &mut Budget::default())
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
}

/// A value: its type and its bytes.
fn value(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), bytes].concat()
}

fn array(kind: u32, count: u64, bytes: &[u8]) -> Vec<u8> {
    [&9u32.to_le_bytes()[..], &kind.to_le_bytes(), &count.to_le_bytes(), bytes].concat()
}

/// A tensor: its name, ggml type, dimensions with the fastest first, offset.
type Tensor<'a> = (&'a str, u32, &'a [u64], u64);

/// A file with this header and `data` bytes behind it.
fn file(
    version: u32,
    metadata: &[(&str, Vec<u8>)],
    tensors: &[Tensor<'_>],
    alignment: usize,
    data: usize,
) -> Vec<u8> {
    let mut bytes = [&b"GGUF"[..], &version.to_le_bytes()].concat();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        bytes.extend(text(key));
        bytes.extend(value);
    }
    for (name, kind, sizes, offset) in tensors {
        bytes.extend(text(name));
        bytes.extend((sizes.len() as u32).to_le_bytes());
        bytes.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(alignment) + data, 7);
    bytes
}

/// Two tensors, one of blocks, and metadata of several types.
fn two() -> Vec<u8> {
    let metadata = [
        ("general.architecture", value(8, &text("llama"))),
        ("tokens", array(8, 2, &[text("a"), text("")].concat())),
        ("scores", array(6, 2, &[0; 8])),
        ("general.alignment", value(4, &16u32.to_le_bytes())),
        ("deep", array(9, 1, &array(0, 3, &[1, 2, 3])[4..])),
    ];
    let tensors: [Tensor<'_>; 2] = [("blk.0.weight", 2, &[64, 3], 16), ("norm", 0, &[4], 0)];
    file(3, &metadata, &tensors, 16, 16 + 3 * 36)
}

fn whole(bytes: &[u8]) -> Result<Header> {
    parse(bytes, bytes.len() as u64).map(|header| header.unwrap())
}

fn refused(bytes: &[u8], words: &str) -> ErrorKind {
    let error = whole(bytes).unwrap_err();
    assert!(error.to_string().contains(words), "{error}");
    error.kind()
}

#[test]
fn tensors_are_shown_row_major_in_elements() {
    for version in [2, 3] {
        let mut bytes = two();
        bytes[4] = version;
        let header = whole(&bytes).unwrap();
        assert_eq!((header.version, header.alignment, header.metadata_count), (u32::from(version), 16, 5));
        assert_eq!(header.metadata.start, 24);
        assert_eq!(bytes[header.metadata.end as usize..][8..20], *b"blk.0.weight");
        assert_eq!(header.data_start + 16 + 108, bytes.len() as u64);
        let [blocks, norm] = &header.tensors[..] else { panic!("{header:?}") };
        assert_eq!((blocks.dtype, blocks.shape.dimensions()), (Dtype::Q4_0, &[3, 64][..]));
        assert_eq!((blocks.offset, blocks.bytes), (16, 108));
        assert_eq!((norm.dtype, norm.shape.dimensions()), (Dtype::F32, &[4][..]));
        assert_eq!((norm.offset, norm.bytes), (0, 16));
    }
}

#[test]
fn a_header_read_in_pieces_parses_as_a_header_read_at_once() {
    let bytes = two();
    let all = bytes.len() as u64;
    let header = whole(&bytes).unwrap();
    let end = bytes.windows(4).rposition(|four| four == b"norm").unwrap() + 4 + 4 + 8 + 4 + 8;
    for length in 0..bytes.len() {
        let read = parse(&bytes[..length], all).unwrap();
        assert_eq!(read, (length >= end).then(|| header.clone()), "{length} bytes");
    }
}

#[test]
fn another_reader_agrees_on_types_and_offsets_of_tensors() {
    let tensors: &[Tensor<'_>] =
        &[("a", 28, &[5, 3], 64), ("blocks", 2, &[32, 2], 0), ("n", 24, &[7], 192), ("none", 1, &[0], 192)];
    let metadata = [("general.alignment", value(4, &64u32.to_le_bytes())), ("k", value(8, &text("v")))];
    let bytes = file(3, &metadata, tensors, 64, 256);
    let header = whole(&bytes).unwrap();
    let same = with_types(&bytes, &header, None, |entry| entry.dtype).unwrap();
    assert_eq!(same.bytes.len(), bytes.len() - 256 - (header.data_start as usize - same.bytes.len()));
    assert_eq!(same.bytes[..header.metadata.end as usize], bytes[..header.metadata.end as usize]);
    let written = with_types(&bytes, &header, None, |entry| match entry.dtype {
        Dtype::F64 => Dtype::F16,
        _ => entry.dtype,
    })
    .unwrap();
    assert_eq!(written.data_start, header.data_start);
    let mut made = written.bytes.clone();
    made.resize(header.data_start as usize, 0);
    for place in &written.tensors {
        made.resize(made.len() + (place.bytes + place.padding) as usize, 0);
    }
    let read = whole(&made).unwrap();
    assert_eq!((read.version, read.metadata, read.alignment), (3, header.metadata.clone(), 64));
    let found: Vec<_> = read
        .tensors
        .iter()
        .map(|entry| (&*entry.name, entry.dtype.name(), entry.offset, entry.bytes))
        .collect();
    let wanted =
        [("a", "f16", 0, 30), ("blocks", "q4_0", 64, 36), ("n", "i8", 128, 7), ("none", "f16", 192, 0)];
    assert_eq!(found, wanted);
    let reader = GGUFFileReader::new(Cursor::new(made)).unwrap();
    let other: Vec<_> = reader.tensor_infos().iter().map(|info| info.expected_data_size()).collect();
    assert_eq!(other, [30, 36, 7, 0]);
    let lacking = with_types(&bytes, &header, None, |_| Dtype::U8).unwrap_err();
    assert_eq!(lacking.kind(), ErrorKind::Unsupported);
}

#[test]
fn a_header_gets_the_type_of_its_file_where_it_can_have_one() {
    let typed = |kind: Option<Vec<u8>>| {
        let mut metadata = vec![("general.architecture", value(8, &text("llama")))];
        metadata.extend(kind.map(|kind| ("general.file_type", kind)));
        file(3, &metadata, &[("a", 0, &[4], 0)], 32, 16)
    };
    for (kind, expected) in [
        (None, value(4, &32u32.to_le_bytes())),
        (Some(value(4, &3u32.to_le_bytes())), value(4, &32u32.to_le_bytes())),
        // Not a number that llama.cpp reads.
        (Some(value(8, &text("Q4"))), value(8, &text("Q4"))),
    ] {
        let source = typed(kind);
        let header = whole(&source).unwrap();
        let mut written = with_types(&source, &header, Some(32), |entry| entry.dtype).unwrap();
        written.bytes.resize(written.data_start as usize, 0);
        written.bytes.resize(written.data_start as usize + 32, 7);
        let wanted = file(
            3,
            &[("general.architecture", value(8, &text("llama"))), ("general.file_type", expected)],
            &[("a", 0, &[4], 0)],
            32,
            32,
        );
        let (found, wanted) = (whole(&written.bytes).unwrap(), whole(&wanted).unwrap());
        assert_eq!(found, wanted);
        GGUFFileReader::new(Cursor::new(written.bytes)).unwrap();
    }
}

#[test]
fn element_types_equal_those_of_another_reader() {
    let mut count = 0;
    for (dtype, code) in Dtype::ALL.iter().filter_map(|dtype| Some((*dtype, code_of_type(*dtype)?))) {
        count += 1;
        assert_eq!(type_of_code(code), Some(dtype));
        let other = gguf_rs_lib::tensor::TensorType::from_u32(code).unwrap();
        let row = dtype.block().0 * 3;
        let bytes = file(3, &[], &[("t", code, &[row], 0)], 32, 4096);
        let reader = GGUFFileReader::new(Cursor::new(bytes.clone())).unwrap();
        let info = &reader.tensor_infos()[0];
        assert_eq!(info.tensor_type(), other);
        assert_eq!(info.expected_data_size(), whole(&bytes).unwrap().tensors[0].bytes, "{dtype}");
        assert_eq!(dtype.is_ggml(), dtype.block().0 > 1, "{dtype}");
    }
    assert_eq!(count, 35);
    for gone in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
        assert_eq!(type_of_code(gone), None);
        let bytes = file(3, &[], &[("t", gone, &[256], 0)], 32, 4096);
        assert_eq!(refused(&bytes, "ggml type"), ErrorKind::Unsupported);
    }
}

#[test]
fn other_versions_and_byte_orders_are_unsupported() {
    let mut bytes = two();
    for (version, words) in
        [([1, 0, 0, 0], "version 1"), ([4, 0, 0, 0], "version 4"), ([0, 0, 0, 3], "big-endian")]
    {
        bytes[4..8].copy_from_slice(&version);
        assert_eq!(refused(&bytes, words), ErrorKind::Unsupported);
    }
    bytes[4..8].copy_from_slice(&[0; 4]);
    assert_eq!(refused(&bytes, "version 0"), ErrorKind::Unsupported);
    assert_eq!(refused(b"GGML\x03\0\0\0", "magic"), ErrorKind::Invalid);
}

#[test]
fn tensors_that_do_not_fit_the_file_are_invalid() {
    let f32s: &[u64] = &[4];
    let cases: [(&[Tensor<'_>], &str); 9] = [
        (&[("a", 0, f32s, 0), ("a", 0, f32s, 32)], "twice"),
        (&[("a", 0, f32s, 0), ("b", 0, f32s, 0)], "over the tensor before it"),
        (&[("a", 0, f32s, 16)], "no multiple"),
        (&[("a", 0, &[33], 0)], "past the end"),
        (&[("a", 0, f32s, u64::MAX - 31)], "past the end"),
        (&[("a", 2, &[33], 0)], "whole number of blocks"),
        (&[("a", 2, &[], 0)], "whole number of blocks"),
        (&[("a", 0, &[1 << 32, 1 << 32], 0)], "too large"),
        (&[("a", 0, &[1 << 62], 0)], "too large"),
    ];
    for (tensors, words) in cases {
        let kind = if words == "past the end" { ErrorKind::Unreadable } else { ErrorKind::Invalid };
        assert_eq!(refused(&file(3, &[], tensors, 32, 128), words), kind, "{words}");
    }
    let many: &[u64] = &[1; 9];
    assert_eq!(refused(&file(3, &[], &[("a", 0, many, 0)], 32, 128), "9 dimensions"), ErrorKind::Unsupported);
    for (metadata, words) in [
        (value(4, &48u32.to_le_bytes()), "power of two"),
        (value(4, &[0; 4]), "power of two"),
        (value(10, &[32, 0, 0, 0, 0, 0, 0, 0]), "of type 10"),
    ] {
        let bytes = file(3, &[("general.alignment", metadata)], &[], 32, 0);
        assert_eq!(refused(&bytes, words), ErrorKind::Invalid, "{words}");
    }
    assert_eq!(refused(&file(3, &[("k", value(13, &[0]))], &[], 32, 0), "type 13"), ErrorKind::Invalid);
}

#[test]
fn an_impossible_count_or_length_is_refused_before_memory_is_allocated() {
    for (at, count, words) in
        [(8, u64::MAX, "at most"), (8, TENSORS_MAX, "in a file"), (16, 1 << 40, "in a file")]
    {
        let mut bytes = two();
        bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
        refused(&bytes, words);
    }
    for metadata in [array(6, u64::MAX, &[]), array(0, HEADER_BYTES_MAX, &[]), value(8, &[255; 8])] {
        let bytes = file(3, &[("k", metadata)], &[], 1, 0);
        // In a file that really has this many bytes too: the parser asks for no more of it.
        for file_len in [bytes.len() as u64, u64::MAX] {
            let error = parse(&bytes, file_len).unwrap_err();
            assert!(error.to_string().contains("past"), "{error}");
        }
    }
    for kind in [8, 9] {
        let bytes = file(3, &[("k", array(kind, u64::MAX, &[]))], &[], 1, 0);
        assert_eq!(refused(&bytes, "past"), ErrorKind::Unreadable);
    }
    let deep = (0..100).fold(array(0, 0, &[]), |inner, _| array(9, 1, &inner[4..]));
    assert_eq!(refused(&file(3, &[("k", deep)], &[], 32, 0), "deep"), ErrorKind::Unsupported);
}

#[test]
fn a_file_without_tensors_may_end_with_its_metadata() {
    let mut bytes = file(3, &[("k", value(0, &[1]))], &[], 32, 0);
    bytes.truncate(24 + 9 + 4 + 1);
    let header = whole(&bytes).unwrap();
    assert_eq!((header.metadata, header.data_start), (24..38, 64));
}

/// Damaged bytes are parsed as by the other reader if that one accepts them.
fn agrees(bytes: &[u8]) {
    let Ok(header) = whole(bytes) else { return };
    for tensor in &header.tensors {
        assert!(header.data_start + tensor.offset + tensor.bytes <= bytes.len() as u64);
    }
    let Ok(other) = GGUFFileReader::new(Cursor::new(bytes)) else { return };
    assert_eq!(other.tensor_infos().len(), header.tensors.len());
    for (one, tensor) in other.tensor_infos().iter().zip(&header.tensors) {
        let reversed: Vec<u64> = tensor.shape.dimensions().iter().rev().copied().collect();
        assert_eq!(
            (one.name(), one.shape().dims(), one.data_offset()),
            (&*tensor.name, &*reversed, tensor.offset)
        );
    }
    if !header.tensors.is_empty() {
        assert_eq!(other.tensor_data_offset(), header.data_start);
    }
}

#[test]
fn truncated_and_flipped_headers_are_refused_or_parsed_as_by_another_reader() {
    let bytes = two();
    agrees(&bytes);
    for damaged in damaged(&bytes, bytes.len() - 124) {
        agrees(&damaged);
    }
}

proptest! {
    #[test]
    fn random_bytes_are_refused_or_parsed_as_by_another_reader(
        changes in prop::collection::vec((0usize..400, any::<u8>()), 1..6),
        cut in 0usize..500,
    ) {
        let mut bytes = two();
        for (at, to) in changes {
            let at = at % bytes.len();
            bytes[at] = to;
        }
        agrees(&bytes);
        bytes.truncate(cut.min(bytes.len()));
        agrees(&bytes);
    }
}
