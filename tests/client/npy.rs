//! Headers of NumPy files: the crate's reader against that of the daemon.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use support::{Place, Random, assert_same, repository};
use tierfs::format::budget::Budget;
use tierfs::format::files::npy;
use tierfs_client::{Dtype, ErrorKind, Tensor};

/// Texts of headers in the tests of both readers.
const TEXTS: &[&str] = &[
    "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }     \n",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (0, 7), }",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (5,), }",
    "{'descr': '|i1', 'fortran_order': False, 'shape': (5,), }",
    "{'descr': '|b1', 'fortran_order': False, 'shape': (5,), }",
    "{'descr': '?', 'fortran_order': False, 'shape': (5,), }",
    "{'descr': '<V2', 'fortran_order': False, 'shape': (2, 2), }",
    "{'descr': '<u2', 'fortran_order': False, 'shape': (1, 2, 3), }",
    "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1), }",
    "{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '<f2', 'fortran_order': True, 'shape': (3, 4), }",
    "{'descr': '>f8', 'fortran_order': False, 'shape': (3, 4), }",
    "{'descr': '<u4', 'fortran_order': True, 'shape': (2, 3), }",
    "{'descr': '|V2', 'fortran_order': False, 'shape': (3, 4), }",
    "{'descr': 'V2', 'fortran_order': True, 'shape': (3, 1), }",
    "{'descr': '|V2', 'fortran_order': True, 'shape': (3, 4), }",
    "{'descr': '|V2', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1), }",
    "{\"shape\":(7,),\"fortran_order\":True,\"descr\":\"|b1\"}",
    "{'descr': '<V2', 'fortran_order': False, 'shape': (2L, 3L)}",
    "{'descr': '<c8', 'fortran_order': False, 'shape': ()}",
    "{'descr': '>u1', 'fortran_order': True, 'shape': (0, 2, 3)}",
    " {\"descr\" : \"<f4\" ,\t'shape' : ( 2 , 3 , ) , 'fortran_order' : False , }\n\n",
    "{'descr': '=f4', 'fortran_order': False, 'shape': (2, 3)}",
    "{'descr': 'f4', 'fortran_order': False, 'shape': (2, 3)}",
    "",
    "{",
    "{}",
    "{,}",
    "[]",
    "{'descr': '|u1', 'fortran_order': False}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (1)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': [1]}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (-1,)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (+1,)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (01,)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (00,)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (L,)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (1.0,)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (1,,)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (,)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (1,",
    "{'descr': '|u1, 'fortran_order': False, 'shape': (1,)}",
    "{'descr': '|u1' 'fortran_order': False, 'shape': (1,)}",
    "{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (1,)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), 'shape': (4,)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), 'more': 1}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (3,)} x",
    "{'descr': '|u1', 'fortran_order': Maybe, 'shape': (3,)}",
    "{'descr': '|u1', 'fortran_order': 0, 'shape': (1,)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551615, 2)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (0, 4294967296, 4294967296)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (18446744073709551616,)}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775807,)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1)}",
    "{'descr': '<f1', 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '<c16', 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '|S3', 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,)}",
    "{'descr': '<f\\u0034', 'fortran_order': False, 'shape': (3,)}",
    "{'descr': '<f4\u{e9}', 'fortran_order': False, 'shape': (3,)}",
    "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}",
    "{'descr': '<f4",
];

/// Files that the readers judge differently: a text, and the bytes of its elements. The daemon reads both orders, and the
/// crate shows its tensor below `.tensors`. The crate reads `|V1` as bytes.
const DIFFERENT: [(&str, u64, Result<Dtype, ErrorKind>); 6] = [
    ("{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}", 8, Err(ErrorKind::Unsupported)),
    ("{'descr': '>V2', 'fortran_order': False, 'shape': ()}", 2, Err(ErrorKind::Unsupported)),
    ("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2)}", 16, Err(ErrorKind::Unsupported)),
    ("{'descr': '|V2', 'fortran_order': True, 'shape': (2, 2)}", 8, Err(ErrorKind::Unsupported)),
    ("{'descr': '|V1', 'fortran_order': False, 'shape': (3,)}", 3, Ok(Dtype::U8)),
    ("{'descr': '<V1', 'fortran_order': False, 'shape': (3,)}", 3, Ok(Dtype::U8)),
];

fn header(version: u8, text: &[u8]) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_le_bytes();
    let length = if version == 1 { &length[..2] } else { &length[..] };
    [b"\x93NUMPY", &[version, 0][..], length, text].concat()
}

/// Both readers, of one file after another.
struct Both {
    path: PathBuf,
    file: File,
    data: Vec<u8>,
}

impl Both {
    fn new(place: &Place) -> Both {
        let path = place.path("a.npy");
        Both { file: File::create(&path).unwrap(), path, data: Random(12).bytes(128) }
    }

    /// Compares the readers on a header and so many bytes of elements. Returns whether both read them.
    #[track_caller]
    fn read(&self, header: &[u8], bytes: usize) -> bool {
        self.read_file(&[header, &self.data[..bytes]].concat())
    }

    /// Compares the readers on a file with these bytes. Returns whether both read them.
    #[track_caller]
    fn read_file(&self, bytes: &[u8]) -> bool {
        self.file.write_all_at(bytes, 0).unwrap();
        self.file.set_len(bytes.len() as u64).unwrap();
        let text = String::from_utf8_lossy(bytes);
        match (npy::parse(bytes, bytes.len() as u64, &mut Budget::default()), Tensor::open(&self.path)) {
            (Ok(wanted), Ok(found)) => {
                assert!(wanted.is_plain(), "{text}");
                assert_eq!(found.dtype().name(), wanted.dtype.name(), "{text}");
                let shape = found.shape().iter().map(|size| *size as u64);
                assert!(shape.eq(wanted.shape.dimensions().iter().copied()), "{text}");
                let mut elements = vec![0; found.nbytes()];
                found.read_bytes_into(&mut elements).unwrap();
                assert_same(&elements, &bytes[wanted.data_start as usize..], &text);
                true
            }
            (Ok(wanted), Err(error)) => {
                assert!(!wanted.is_plain() && error.kind() == ErrorKind::Unsupported, "{text}: {error}");
                false
            }
            (Err(error), Ok(found)) => {
                assert!(text.contains("V1") && found.dtype() == Dtype::U8, "{text}: {error}");
                false
            }
            (Err(_), Err(_)) => false,
        }
    }
}

#[test]
fn both_readers_agree_on_each_text_with_elements_of_any_length() {
    let place = Place::new();
    let both = Both::new(&place);
    let mut were_read = 0;
    for text in TEXTS {
        for version in 1..=4 {
            let header = header(version, text.as_bytes());
            were_read += (0..=96).filter(|bytes| both.read(&header, *bytes)).count();
        }
    }
    assert_eq!(were_read, 3 * 20);
    // A byte less, or another one.
    let mut changed = 0;
    for text in TEXTS {
        for at in 0..text.len() {
            let (before, after) = (&text.as_bytes()[..at], &text.as_bytes()[at + 1..]);
            for instead in ["", "1", "'", "\u{ff}"] {
                let header = header(1, &[before, instead.as_bytes(), after].concat());
                changed += [1, 8, 12, 24].iter().filter(|bytes| both.read(&header, **bytes)).count();
            }
        }
    }
    assert!(changed > 100, "{changed}");
}

#[test]
fn both_readers_agree_on_the_corpus_and_on_each_part_of_its_files() {
    let place = Place::new();
    let both = Both::new(&place);
    let mut were_read = Vec::new();
    for entry in fs::read_dir(repository("tests/fuzz/corpus/npy")).unwrap() {
        let entry = entry.unwrap();
        let bytes = fs::read(entry.path()).unwrap();
        for len in 0..=bytes.len() {
            if both.read_file(&bytes[..len]) {
                assert_eq!(len, bytes.len());
                were_read.push(entry.file_name().into_string().unwrap());
            }
        }
    }
    were_read.sort_unstable();
    assert_eq!(were_read, ["matrix", "none", "scalar"]);
}

#[test]
fn the_readers_differ_in_orders_and_in_the_type_of_one_raw_byte() {
    let place = Place::new();
    let both = Both::new(&place);
    for (text, bytes, wanted) in DIFFERENT {
        let header = header(1, text.as_bytes());
        assert!(!both.read(&header, bytes as usize), "{text}");
        let found = Tensor::open(&both.path).map(|tensor| tensor.dtype()).map_err(|error| error.kind());
        assert_eq!(found, wanted, "{text}");
        let of_daemon = npy::parse(&header, header.len() as u64 + bytes, &mut Budget::default());
        assert_eq!(of_daemon.is_ok(), wanted.is_err(), "{text}");
    }
}
