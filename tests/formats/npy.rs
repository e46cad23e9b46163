//! Headers of NumPy files, compared with files that NumPy 2.4 (and `ml_dtypes`) wrote.

use proptest::prelude::*;
use tierfs::format::budget::Budget;
use tierfs::format::files::npy::{self, Header, PREFIX_BYTES_MAX, write_header};
use tierfs::model::{Dtype, ErrorKind, Result, Shape};

use crate::damaged;

fn parse(prefix: &[u8], file_len: u64) -> Result<Header> {
    npy::parse(prefix, file_len, &mut Budget::default())
}

/// A header of version 1 and 128 bytes, as `numpy.save` pads it.
fn saved(dict: &str) -> Vec<u8> {
    [b"\x93NUMPY\x01\x00v\x00", format!("{dict:<117}\n").as_bytes()].concat()
}

/// A header with this version and dict and no padding.
fn header(version: u8, dict: &[u8]) -> Vec<u8> {
    let length = u32::try_from(dict.len()).unwrap().to_le_bytes();
    let length = if version == 1 { &length[..2] } else { &length[..] };
    [b"\x93NUMPY", &[version, 0][..], length, dict].concat()
}

fn shape(dimensions: &[u64]) -> Shape {
    Shape::new(dimensions).unwrap()
}

/// A header that NumPy wrote, the element type, the shape, whether it is in Fortran order, whether it is big-endian,
/// and whether this program writes the same.
const SAVED: &[(&str, Dtype, &[u64], bool, bool)] = &[
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }", Dtype::F32, &[3, 4], false, false),
    ("{'descr': '<f8', 'fortran_order': False, 'shape': (), }", Dtype::F64, &[], false, false),
    ("{'descr': '<i8', 'fortran_order': False, 'shape': (0, 7), }", Dtype::I64, &[0, 7], false, false),
    ("{'descr': '|u1', 'fortran_order': False, 'shape': (5,), }", Dtype::U8, &[5], false, false),
    ("{'descr': '|i1', 'fortran_order': False, 'shape': (5,), }", Dtype::I8, &[5], false, false),
    ("{'descr': '|b1', 'fortran_order': False, 'shape': (5,), }", Dtype::Bool, &[5], false, false),
    ("{'descr': '<V2', 'fortran_order': False, 'shape': (2, 2), }", Dtype::Bf16, &[2, 2], false, false),
    ("{'descr': '<u2', 'fortran_order': False, 'shape': (1, 2, 3), }", Dtype::U16, &[1, 2, 3], false, false),
    ("{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1), }", Dtype::I32, &[1, 1], false, false),
    ("{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }", Dtype::C64, &[2], false, false),
    ("{'descr': '<f2', 'fortran_order': True, 'shape': (3, 4), }", Dtype::F16, &[3, 4], true, false),
    ("{'descr': '>f8', 'fortran_order': False, 'shape': (3, 4), }", Dtype::F64, &[3, 4], false, true),
    ("{'descr': '<u4', 'fortran_order': True, 'shape': (2, 3), }", Dtype::U32, &[2, 3], true, false),
];

#[test]
fn arrays_that_numpy_wrote_are_read() {
    for &(dict, dtype, dimensions, fortran_order, big_endian) in SAVED {
        let bytes = saved(dict);
        assert_eq!(bytes.len(), 128);
        let expected = Header { dtype, shape: shape(dimensions), fortran_order, big_endian, data_start: 128 };
        let size = dtype.bytes() * expected.shape.elements();
        assert_eq!(parse(&bytes, 128 + size).unwrap(), expected, "{dict}");
        for (wrong, kind) in [
            (0, ErrorKind::Unreadable),
            (127 + size, ErrorKind::Unreadable),
            (129 + size, ErrorKind::Unsupported),
            (u64::MAX, ErrorKind::Unsupported),
        ] {
            assert_eq!(parse(&bytes, wrong).unwrap_err().kind(), kind);
        }
        assert_eq!(expected.is_plain(), !fortran_order && !big_endian);
    }
}

#[test]
fn records_of_two_raw_bytes_are_rows_of_bytes() {
    for (sizes, fortran_order, dimensions, is_plain) in [
        ("(3, 4)", "False", &[3, 4, 2][..], true),
        ("()", "False", &[2], true),
        ("(3, 1)", "True", &[3, 1, 2], true),
        ("(3, 4)", "True", &[3, 4, 2], false),
    ] {
        for descr in ["|V2", "V2"] {
            let bytes = saved(&format!(
                "{{'descr': '{descr}', 'fortran_order': {fortran_order}, 'shape': {sizes}, }}"
            ));
            let size: u64 = dimensions.iter().product();
            let header = parse(&bytes, 128 + size).unwrap();
            assert_eq!((header.dtype, header.shape.dimensions()), (Dtype::U8, dimensions));
            assert_eq!(header.is_plain(), is_plain, "{sizes}");
        }
    }
    let eight = saved("{'descr': '|V2', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1), }");
    assert_eq!(parse(&eight, 130).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn written_arrays_equal_those_of_numpy() {
    for &(dict, dtype, dimensions, fortran_order, big_endian) in SAVED {
        if !fortran_order && !big_endian {
            assert_eq!(write_header(dtype, &shape(dimensions), 64).unwrap(), saved(dict));
        }
    }
}

#[test]
fn versions_2_and_3_are_read() {
    // As numpy.lib.format.write_array wrote them with version=(2, 0) and (3, 0).
    let second = b"\x93NUMPY\x02\x00t\x00\x00\x00{'descr': '<u4', 'fortran_order': False, 'shape': (3, 4), }                                                        \n";
    let third = b"\x93NUMPY\x03\x00t\x00\x00\x00{'descr': '<i2', 'fortran_order': False, 'shape': (3, 4), }                                                        \n";
    assert_eq!(parse(second, 128 + 48).unwrap().dtype, Dtype::U32);
    assert_eq!(parse(third, 128 + 24).unwrap().dtype, Dtype::I16);
    let fourth = header(4, b"{'descr': '<u4', 'fortran_order': False, 'shape': (), }");
    let error = parse(&fourth, fourth.len() as u64 + 4).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn element_types_without_a_tensor_type_are_unsupported() {
    // As numpy wrote them: float8_e4m3fn and int4, float8_e5m2, complex, texts, a record
    // array, dates; objects.
    for descr in
        ["'<V1'", "'<f1'", "'<c16'", "'|S3'", "'<U3'", "[('a', '<f4'), ('b', '<i2')]", "'<M8[s]'", "'|O'"]
    {
        let dict = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (2,), }}");
        let bytes = saved(&dict);
        let error = parse(&bytes, bytes.len() as u64 + 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    let nine = saved("{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1), }");
    assert_eq!(parse(&nine, 129).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn every_spelling_of_a_header_that_python_accepts_is_read() {
    for dict in [
        "{'shape':(2,3),'fortran_order':False,'descr':'<f4'}",
        " {\"descr\" : \"<f4\" ,\t'shape' : ( 2 , 3 , ) , 'fortran_order' : False , }\n\n",
        "{'descr': 'f4', 'fortran_order': False, 'shape': (2L, 3L)}",
        "{'descr': '=f4', 'fortran_order': False, 'shape': (2, 3)}",
    ] {
        let bytes = header(1, dict.as_bytes());
        let found = parse(&bytes, bytes.len() as u64 + 24).unwrap();
        assert_eq!((found.dtype, found.shape), (Dtype::F32, shape(&[2, 3])), "{dict}");
    }
}

#[test]
fn a_header_that_numpy_refuses_is_invalid() {
    for dict in [
        "",
        "{}",
        "{,}",
        "{'descr': '|u1', 'fortran_order': False}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '|u1', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': [1]}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (+1,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (01,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1.0,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1,,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1,",
        "{'descr': '|u1, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '|u1' 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1,)} x",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (4294967296, 4294967296)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (0, 4294967296, 4294967296)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (18446744073709551616,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775807,)}",
    ] {
        let bytes = header(1, dict.as_bytes());
        let error = parse(&bytes, bytes.len() as u64 + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{dict}: {error}");
    }
}

#[test]
fn fortran_order_is_refused_only_with_two_long_dimensions() {
    for (dimensions, plain) in
        [(&[][..], true), (&[5], true), (&[1, 5, 1], true), (&[2, 0, 3], true), (&[2, 1, 2], false)]
    {
        let header = Header {
            dtype: Dtype::F32,
            shape: shape(dimensions),
            fortran_order: true,
            big_endian: false,
            data_start: 64,
        };
        assert_eq!(header.is_plain(), plain, "{dimensions:?}");
    }
}

#[test]
fn an_overlong_header_is_refused_before_it_is_read() {
    for length in [200_000_000_u32, u32::MAX, 65_537] {
        let bytes = [b"\x93NUMPY\x02\x00", &length.to_le_bytes()[..]].concat();
        let error = parse(&bytes, u64::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    let dimensions = "1,".repeat(30_000);
    let dict = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({dimensions})}}");
    let error = parse(&header(1, dict.as_bytes()), 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn a_written_header_is_aligned_and_read_again() {
    for dtype in Dtype::ALL.iter().copied() {
        for dimensions in [&[][..], &[7], &[0, 3], &[1, 2, 3, 4, 5, 6, 7, 1_000_000]] {
            for alignment in [1, 16, 64, 4096, 8192, 65_536] {
                let shape = shape(dimensions);
                let Ok(bytes) = write_header(dtype, &shape, alignment) else {
                    assert!(dtype.block().0 > 1);
                    continue;
                };
                assert_eq!(bytes.len() % alignment, 0);
                assert!(bytes.len() as u64 <= PREFIX_BYTES_MAX);
                assert_eq!(bytes[6], if bytes.len() < 65_546 { 1 } else { 2 });
                let size = dtype.bytes_of(shape.elements()).unwrap();
                match parse(&bytes, bytes.len() as u64 + size) {
                    Ok(header) => assert_eq!((header.dtype, header.shape), (dtype, shape)),
                    Err(error) => {
                        assert!(dtype.name().starts_with("f8_"), "{error}");
                        assert_eq!(error.kind(), ErrorKind::Unsupported);
                    }
                }
            }
        }
    }
    assert!(write_header(Dtype::F32, &shape(&[1]), 0).is_err());
    assert!(write_header(Dtype::F32, &shape(&[1]), 1 << 20).is_err());
}

#[test]
fn a_truncated_header_is_refused_and_a_flipped_bit_never_panics() {
    let bytes = saved(SAVED[0].0);
    for damaged in damaged(&bytes, bytes.len()) {
        let found = parse(&damaged, 128 + 48);
        assert!(damaged.len() == bytes.len() || found.is_err());
    }
}

proptest! {
    #[test]
    fn random_text_is_refused(text in "[{}()',: 0-9LdescrfotanhpTueFals<|V\\\\\\[\\]-]{0,90}") {
        let bytes = header(1, text.as_bytes());
        prop_assert!(parse(&bytes, bytes.len() as u64).is_err());
    }
}
