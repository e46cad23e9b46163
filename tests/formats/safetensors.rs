//! Headers of safetensors files, against the `safetensors` crate.

use std::collections::HashMap;

use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::{TensorView, serialize};
use tierfs::format::budget::Budget;
use tierfs::format::files::TensorRange;
use tierfs::format::files::safetensors::{
    Entry, HEADER_BYTES_MAX, Header, header_len, parse, write_entries, write_header,
};
use tierfs::model::{Dtype, Error, ErrorKind, Result, Shape};

/// The parsed header of a whole file.
fn read(file: &[u8]) -> Result<Header> {
    let first = file.first_chunk().copied();
    let first = first.ok_or_else(|| Error::invalid("shorter than a length"))?;
    let length = usize::try_from(header_len(first, file.len() as u64)?).unwrap();
    parse(&file[8..8 + length], file.len() as u64, &mut Budget::default())
}

/// A file with this JSON and this many bytes of data.
fn file(json: &str, data: usize) -> Vec<u8> {
    let length = (json.len() as u64).to_le_bytes();
    [&length, json.as_bytes(), &vec![7; data]].concat()
}

/// Both parsers agree on `file`.
fn assert_agrees(file: &[u8], ours: &Header) {
    let theirs = SafeTensors::deserialize(file).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(file));
    });
    assert_eq!(theirs.len(), ours.tensors.len() + ours.others.len());
    for other in &ours.others {
        let tensor = theirs.tensor(&other.name).unwrap();
        assert_eq!(tensor.dtype().to_string(), other.type_name);
        assert!(tensor.shape().iter().map(|size| *size as u64).eq(other.dimensions.iter().copied()));
        let data = &file[usize::try_from(other.begin).unwrap()..usize::try_from(other.end).unwrap()];
        assert_eq!(tensor.data().as_ptr_range(), data.as_ptr_range());
    }
    for TensorRange { name, dtype, shape, begin, end } in &ours.tensors {
        let tensor = theirs.tensor(name).unwrap();
        assert_eq!(Some(tensor.dtype().to_string().as_str()), dtype.safetensors_name());
        let sizes: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
        assert_eq!(sizes, shape.dimensions());
        let data = &file[usize::try_from(*begin).unwrap()..usize::try_from(*end).unwrap()];
        assert_eq!(tensor.data().as_ptr_range(), data.as_ptr_range());
    }
    let (_, header) = SafeTensors::read_metadata(file).unwrap();
    let metadata: HashMap<String, String> = ours.metadata.iter().cloned().collect();
    assert_eq!(header.metadata().clone().unwrap_or_default(), metadata);
}

fn element_type() -> impl Strategy<Value = Dtype> {
    let known: Vec<Dtype> =
        Dtype::ALL.iter().copied().filter(|dtype| dtype.safetensors_name().is_some()).collect();
    prop::sample::select(known)
}

/// Tensors with unique names and even sizes, so that `F4` fills bytes.
fn tensors() -> impl Strategy<Value = Vec<(String, Dtype, Shape)>> {
    let shape = prop::collection::vec(0..5_u64, 0..5).prop_map(|mut sizes| {
        sizes.push(2);
        Shape::new(&sizes).unwrap()
    });
    prop::collection::btree_map(".{0,12}", (element_type(), shape), 0..6)
        .prop_map(|tensors| tensors.into_iter().map(|(name, (dtype, shape))| (name, dtype, shape)).collect())
}

fn metadata() -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::btree_map(".{0,8}", ".{0,8}", 0..4).prop_map(|entries| entries.into_iter().collect())
}

fn their_dtype(dtype: Dtype) -> safetensors::Dtype {
    let name = dtype.safetensors_name().unwrap();
    serde_json::from_value(name.into()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn files_that_the_crate_wrote_are_read_the_same(tensors in tensors(), metadata in metadata()) {
        let data = vec![3; 1 << 13];
        let views = tensors.iter().map(|(name, dtype, shape)| {
            let sizes = shape.dimensions().iter().map(|size| *size as usize).collect();
            let size = dtype.bytes_of(shape.elements()).unwrap() as usize;
            (name, TensorView::new(their_dtype(*dtype), sizes, &data[..size]).unwrap())
        });
        // The crate writes no JSON for empty metadata without tensors.
        let metadata = (!metadata.is_empty()).then(|| metadata.into_iter().collect());
        let file = serialize(views, metadata).unwrap();
        let ours = read(&file).unwrap();
        assert_eq!(ours.tensors.len(), tensors.len());
        assert_agrees(&file, &ours);
    }

    #[test]
    fn written_files_are_read_by_the_crate(
        tensors in tensors(),
        metadata in metadata(),
        alignment in prop::sample::select(vec![1, 8, 64, 4096_u64]),
    ) {
        let entries = tensors.iter().map(|(name, dtype, shape)| (name.as_str(), *dtype, shape));
        let mut file = write_header(entries, &metadata, alignment).unwrap();
        prop_assert_eq!(file.len() as u64 % alignment, 0);
        let size: u64 = tensors.iter().map(|(_, dtype, shape)| dtype.bytes_of(shape.elements()).unwrap()).sum();
        file.resize(file.len() + size as usize, 1);
        let ours = read(&file).unwrap();
        assert_agrees(&file, &ours);
        prop_assert_eq!(ours.metadata, metadata);
        let names = ours.tensors.iter().map(|tensor| &tensor.name);
        prop_assert!(names.eq(tensors.iter().map(|(name, _, _)| name)));
    }

    #[test]
    fn every_accepted_file_is_accepted_by_the_crate(
        edits in prop::collection::vec((any::<prop::sample::Index>(), edit()), 1..3),
        padding in 0..3_usize,
    ) {
        let mut json = BASE.to_owned();
        for (place, (cut, put)) in edits {
            let start = json.floor_char_boundary(place.index(json.len() + 1));
            let end = json.floor_char_boundary((start + cut).min(json.len()));
            json.replace_range(start..end.max(start), put);
        }
        json.push_str(&" ".repeat(padding));
        for data in [12, 11] {
            compare(&file(&json, data))?;
        }
    }

    #[test]
    fn the_crate_agrees_on_numbers_and_fields(
        numbers in right_or(
            ["1", "1", "0", "4", "2", "1", "4", "12"],
            &["0", "2", "8", "-1", "-0", "4.0", "1e1", "01", "18446744073709551616", "9223372036854775808", "null", "\"4\"", "[]", ""],
        ),
        dtypes in right_or(["F32", "F32"], &["U8", "F4", "C64", "f32", "F6_E2M3", "F8_E5M2FNUZ", "I32"]),
        extra in right_or(
            ["", r#","x":[1,{"y":null}]"#],
            &[r#","dtype":"F32""#, r#","x":1e999"#, r#","x":"\ud800""#, r#","x":-1.5e3"#, r#","x":tru"#, ","],
        ),
        between in right_or(
            [",", ",\"__metadata__\":{\"a\":\"b\"}"],
            &[",\"__metadata__\":null", ",\"__metadata__\":{\"a\":1}", ",\"__metadata__\":[]", ",\"a\":{}", "\n "],
        ),
        data in right_or(["12"], &["0", "11", "13"]),
    ) {
        let between = format!("{},", between[1]).replacen(",,", ",", 1) + &between[0][1..];
        let json = format!(
            r#"{{"a":{{"dtype":"{}","shape":[{},{}],"data_offsets":[{},{}]{}}}{between}"b":{{"data_offsets":[{},{}]{},"dtype":"{}","shape":[{},{}]}}}}"#,
            dtypes[0], numbers[0], numbers[1], numbers[2], numbers[3], extra[0],
            numbers[6], numbers[7], extra[1], dtypes[1], numbers[4], numbers[5],
        );
        compare(&file(&json, data[0].parse().unwrap()))?;
    }
}

/// Each of `right`, sometimes with one of `wrong` in its place.
fn right_or<const N: usize>(
    right: [&'static str; N],
    wrong: &'static [&'static str],
) -> impl Strategy<Value = Vec<&'static str>> {
    right.map(|right| prop_oneof![12 => Just(right), 1 => prop::sample::select(wrong)]).to_vec()
}

const BASE: &str = r#"{"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"ä\n":{"shape":[1,2],"dtype":"BF16","data_offsets":[8,12]}}"#;

/// How many bytes to cut, and the bytes that replace them.
fn edit() -> impl Strategy<Value = (usize, &'static str)> {
    let put = prop::sample::select(vec![
        "", "", "0", "1", "8", "9", "-", ",", ":", "\"", "[", "]", "{", "}", "\\", "\\u00e4", "\\ud800",
        "\u{0}", " ", "null", "\"x\":{}", "[],", "{},", "1.0", "1e3", "a", "F32", "U8",
    ]);
    (0..2_usize, put)
}

/// The crate accepts each accepted file and reads the same; this parser refuses a file that the crate accepts only for
/// the documented reasons.
fn compare(file: &[u8]) -> std::result::Result<(), TestCaseError> {
    match (read(file), SafeTensors::deserialize(file)) {
        (Ok(ours), _) if has_newer_type(&ours) => {}
        (Ok(ours), _) => assert_agrees(file, &ours),
        (Err(ours), Ok(_)) => {
            let text = ours.to_string();
            prop_assert!(
                ours.kind() == ErrorKind::Unsupported || text.contains("twice"),
                "{}: {}",
                text,
                String::from_utf8_lossy(file)
            );
        }
        (Err(_), Err(_)) => {}
    }
    Ok(())
}

/// Whether a tensor has a type that this version of the crate does not know.
fn has_newer_type(header: &Header) -> bool {
    let is_known = |name: &str| serde_json::from_value::<safetensors::Dtype>(name.into()).is_ok();
    header.others.iter().any(|other| !is_known(&other.type_name))
}

fn refused(json: &str, data: usize) -> ErrorKind {
    read(&file(json, data)).unwrap_err().kind()
}

fn tensor(dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

#[test]
fn a_length_beyond_the_limit_or_the_file_is_refused() {
    for length in [200_000_000, HEADER_BYTES_MAX + 1, u64::MAX] {
        let error = header_len(length.to_le_bytes(), u64::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    assert_eq!(header_len(93_u64.to_le_bytes(), 100).unwrap_err().kind(), ErrorKind::Unreadable);
    assert_eq!(header_len(HEADER_BYTES_MAX.to_le_bytes(), u64::MAX).unwrap(), HEADER_BYTES_MAX);
    assert_eq!(header_len(92_u64.to_le_bytes(), 100).unwrap(), 92);
    assert!(header_len(0_u64.to_le_bytes(), 7).is_err());
}

#[test]
fn the_last_of_several_tensors_of_a_name_counts() {
    let (one, two) = (tensor("U8", "[1]", 0, 1), tensor("U8", "[1]", 1, 2));
    for (json, data) in [
        (format!(r#"{{"a":{one},"a":{one}}}"#), 1),
        (format!(r#"{{"a":{one},"\u0061":{}}}"#, tensor("I8", "[1,1]", 0, 1)), 1),
        (format!(r#"{{"a":{},"a":{one}}}"#, tensor("U8", "[9]", 5, 2)), 1),
        (format!(r#"{{"a":{one},"b":{one},"a":{two}}}"#), 2),
        (format!(r#"{{"a":{},"a":{one}}}"#, tensor("F6_E2M3", "[3]", 5, 2)), 1),
    ] {
        assert_agrees(&file(&json, data), &read(&file(&json, data)).unwrap());
    }
    assert_eq!(refused(&format!(r#"{{"a":{one},"a":{two}}}"#), 2), ErrorKind::Invalid);
    assert_eq!(
        refused(&format!(r#"{{"a":{},"a":{one}}}"#, tensor("opaque", "[1]", 0, 1)), 1),
        ErrorKind::Unsupported
    );
}

#[test]
fn fields_and_metadata_that_appear_twice_are_refused() {
    let one = tensor("U8", "[1]", 0, 1);
    assert_eq!(
        refused(&format!(r#"{{"__metadata__":{{}},"__metadata__":{{}},"a":{one}}}"#), 1),
        ErrorKind::Invalid
    );
    assert_eq!(refused(r#"{"__metadata__":{"x":"1","x":"1"}}"#, 0), ErrorKind::Invalid);
    let field = r#"{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    assert_eq!(refused(field, 1), ErrorKind::Invalid);
}

#[test]
fn tensors_that_overlap_leave_gaps_or_do_not_fill_the_file_are_refused() {
    for (first, second, data) in [
        ((0, 4), (2, 6), 6),
        ((0, 4), (0, 4), 4),
        ((0, 4), (5, 9), 9),
        ((1, 5), (5, 9), 9),
        ((0, 4), (4, 8), 9),
        ((4, 0), (4, 8), 8),
        ((0, 5), (5, 9), 9),
    ] {
        let one = tensor("U8", "[4]", first.0, first.1);
        let two = tensor("U8", "[4]", second.0, second.1);
        assert_eq!(refused(&format!(r#"{{"a":{one},"b":{two}}}"#), data), ErrorKind::Invalid);
    }
    let json = format!(r#"{{"a":{}}}"#, tensor("U8", "[4]", 0, 4));
    assert_eq!(refused(&json, 3), ErrorKind::Unreadable);
}

#[test]
fn shapes_that_overflow_are_refused() {
    for shape in [
        "[4294967296,4294967296]",
        "[4294967296,4294967296,0]",
        "[18446744073709551615]",
        "[9223372036854775807]",
        "[18446744073709551616]",
        "[-1]",
    ] {
        let json = format!(r#"{{"a":{}}}"#, tensor("F64", shape, 0, 0));
        assert_eq!(refused(&json, 0), ErrorKind::Invalid, "{shape}");
    }
    let far = tensor("U8", "[1]", u64::MAX - 1, u64::MAX);
    assert_eq!(refused(&format!(r#"{{"a":{far}}}"#), 1), ErrorKind::Invalid);
}

#[test]
fn tensors_that_are_not_supported_hide_no_others() {
    let nine = tensor("U8", "[1,1,1,1,1,1,1,1,1]", 8, 9);
    for (other, end) in [
        (tensor("F6_E2M3", "[2,2]", 8, 11), 11),
        (tensor("F6_E3M2", "[4]", 8, 11), 11),
        (tensor("F8_E4M3FNUZ", "[3]", 8, 11), 11),
        (tensor("F8_E5M2FNUZ", "[0]", 8, 8), 8),
        (nine.clone(), 9),
    ] {
        for data in [
            format!(r#"{{"a":{},"b":{other}}}"#, tensor("F32", "[2]", 0, 8)),
            format!(r#"{{"b":{other},"a":{}}}"#, tensor("C64", "[1]", 0, 8)),
        ] {
            let whole = file(&data, end);
            let header = read(&whole).unwrap();
            assert_eq!((header.tensors.len(), header.others.len()), (1, 1), "{data}");
            assert_agrees(&whole, &header);
        }
    }
    let long = "n".repeat(5000);
    let whole = file(&format!(r#"{{"{long}":{}}}"#, tensor("U8", "[1]", 0, 1)), 1);
    let header = read(&whole).unwrap();
    assert_eq!(header.others.first().map(|other| &other.name), Some(&long));
    assert_agrees(&whole, &header);
    let entries: Vec<Entry<'_>> = header
        .others
        .iter()
        .map(|other| Entry {
            name: &other.name,
            type_name: &other.type_name,
            dimensions: &other.dimensions,
            bytes: other.end - other.begin,
        })
        .collect();
    let mut written = write_entries(&entries, &[], 8).unwrap();
    written.push(1);
    assert_eq!(read(&written).unwrap().others.len(), 1);
}

#[test]
fn tensors_of_types_of_newer_versions_hide_no_others() {
    let (one, two) = (tensor("F32", "[2]", 0, 8), tensor("F5_E2M2X", "[3]", 8, 10));
    let whole = file(&format!(r#"{{"a":{one},"b":{two}}}"#), 10);
    let header = read(&whole).unwrap();
    assert_eq!((header.tensors.len(), header.others.len()), (1, 1));
    let other = header.others.first().unwrap();
    assert_eq!((&*other.type_name, other.end - other.begin), ("F5_E2M2X", 2));
    assert_eq!(other.why, "element type \"F5_E2M2X\"");
    let wrong = format!(r#"{{"a":{one},"b":{}}}"#, tensor("F5_E2M2X", "[3]", 9, 10));
    assert_eq!(refused(&wrong, 10), ErrorKind::Invalid);
}

#[test]
fn impossible_types_of_tensors_are_unsupported() {
    for dtype in ["f32", "", "opaque", "F 32", "1F"] {
        let json = format!(r#"{{"a":{}}}"#, tensor(dtype, "[1]", 0, 8));
        assert_eq!(refused(&json, 8), ErrorKind::Unsupported);
    }
    for (dtype, shape, end) in [("F6_E2M3", "[3]", 3), ("C64", "[1]", 7), ("F8_E4M3FNUZ", "[4]", 3)] {
        let json = format!(r#"{{"a":{}}}"#, tensor(dtype, shape, 0, end));
        assert_eq!(refused(&json, end as usize), ErrorKind::Invalid);
    }
    let overflow = tensor("U8", "[4294967296,4294967296,0,1,1,1,1,1,1]", 0, 0);
    assert_eq!(refused(&format!(r#"{{"a":{overflow}}}"#), 0), ErrorKind::Invalid);
    let million = format!("[{}1]", "1,".repeat(1_000_000));
    let json = format!(r#"{{"a":{}}}"#, tensor("U8", &million, 0, 1));
    assert_eq!(refused(&json, 1), ErrorKind::Unsupported);
    let odd = tensor("F4", "[3]", 0, 1);
    assert_eq!(refused(&format!(r#"{{"a":{odd}}}"#), 1), ErrorKind::Invalid);
}

#[test]
fn endlessly_nested_json_is_refused() {
    for (open, depth) in [("[", 1_000_000), (r#"{"a":"#, 1_000_000), ("[", 127)] {
        assert_eq!(refused(&open.repeat(depth), 0), ErrorKind::Invalid);
        let inside = format!(r#"{{"a":{{"dtype":"U8","shape":[0],"x":{}"#, open.repeat(depth));
        assert_eq!(refused(&inside, 0), ErrorKind::Invalid);
    }
    let closed = |depth: usize| {
        let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        format!(r#"{{"a":{{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":{nested}}}}}"#)
    };
    assert!(read(&file(&closed(100), 0)).is_ok());
    for depth in [124, 125, 126, 127, 128, 1000] {
        compare(&file(&closed(depth), 0)).unwrap();
    }
}

#[test]
fn names_are_any_text_and_an_empty_file_has_no_tensors() {
    let json = format!(
        r#"{{"":{},"a/\"\u00e4\ud83d\ude00":{}}}  "#,
        tensor("U8", "[]", 0, 1),
        tensor("U8", "[0]", 1, 1)
    );
    let header = read(&file(&json, 1)).unwrap();
    let names: Vec<&str> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["", "a/\"ä😀"]);
    let nothing = read(&file("{}", 0)).unwrap();
    assert_eq!((nothing.tensors.len(), nothing.data_start), (0, 10));
    for wrong in ["", " ", "{", "[]", "{}x", "\u{feff}{}"] {
        assert_eq!(refused(wrong, 0), ErrorKind::Invalid);
    }
    assert!(parse(b"{\"\xff\":1}", 15, &mut Budget::default()).is_err());
}

#[test]
fn headers_that_could_not_be_read_back_are_not_written() {
    let one = Shape::new(&[1]).unwrap();
    let write = |tensors: &[(&str, Dtype)], alignment| {
        let tensors = tensors.iter().map(|(name, dtype)| (*name, *dtype, &one));
        write_header(tensors, &[], alignment).map(|_| ()).map_err(|error| error.kind())
    };
    assert_eq!(write(&[("a", Dtype::F32)], 8), Ok(()));
    assert_eq!(write(&[("a", Dtype::Q4_0)], 8), Err(ErrorKind::Unsupported));
    for (tensors, alignment) in [
        (&[("a", Dtype::F4)][..], 8),
        (&[("__metadata__", Dtype::F32)], 8),
        (&[("a", Dtype::F32), ("a", Dtype::F32)], 8),
        (&[("a", Dtype::F32)], 0),
        (&[("a", Dtype::F32)], 200_000_000),
    ] {
        assert_eq!(write(tensors, alignment), Err(ErrorKind::Invalid));
    }
}
