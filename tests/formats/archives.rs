//! PyTorch checkpoints, NumPy archives and ONNX models: files of their own libraries (`tests/golden/models.py`), and
//! hostile zip archives, pickles and protobufs.

use std::path::Path;

use tierfs::format::budget::Budget;
use tierfs::format::files::onnx::Place;
use tierfs::format::files::{View, npz, onnx, torch, zip};
use tierfs::model::{Dtype, Error, ErrorKind, Result, Shape};

use crate::{damaged, golden};

/// A reader of bytes that panics on a range outside the file.
fn reader(bytes: &[u8]) -> impl FnMut(&mut [u8], u64) -> Result<()> {
    move |out, at| {
        out.copy_from_slice(&bytes[at as usize..][..out.len()]);
        Ok(())
    }
}

pub fn checkpoint(bytes: &[u8]) -> Result<torch::Checkpoint> {
    torch::parse(&mut reader(bytes), bytes.len() as u64, &mut Budget::default())
}

fn entries(bytes: &[u8]) -> Result<Vec<zip::Entry>> {
    zip::entries(&mut reader(bytes), bytes.len() as u64, &mut Budget::default())
}

fn model(bytes: &[u8]) -> Result<onnx::Model> {
    onnx::parse(&mut reader(bytes), bytes.len() as u64, &mut Budget::default())
}

fn refused<T: std::fmt::Debug>(found: Result<T>, words: &str) -> ErrorKind {
    let error: Error = found.unwrap_err();
    assert!(error.to_string().contains(words), "{error}");
    error.kind()
}

/// Name, element type, shape and bytes of each tensor, as the file's own library loads them.
type Loaded = Vec<(String, String, String, String)>;

fn loaded(name: &str) -> Loaded {
    let mut all: serde_json::Value = serde_json::from_slice(&golden("models/models.json")).unwrap();
    serde_json::from_value(all[name].take()).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn checkpoints_have_the_tensors_that_pytorch_loads() {
    for (name, views) in [
        ("state.pt", 0),
        ("training.ckpt", 0),
        ("types.pth", 0),
        ("only.pt", 0),
        ("tied.bin", 1),
        ("transposed.pt", 1),
        ("overlapping.pt", 1),
        ("complex.pt", 0),
        ("strided.pt", 11),
    ] {
        let bytes = golden(&format!("models/{name}"));
        let found = checkpoint(&bytes).unwrap();
        let mut shown: Loaded = Vec::new();
        for entry in &found.tensors {
            let data = hex(&bytes[entry.begin as usize..entry.end as usize]);
            shown.push((entry.name.clone(), entry.dtype.to_string(), entry.shape.to_string(), data));
        }
        for torch::TensorView { name, dtype, shape, view } in &found.views {
            let data = hex(&viewed(&bytes, view, *dtype, shape));
            shown.push((name.clone(), dtype.to_string(), shape.to_string(), data));
        }
        let mut wanted = loaded(name);
        wanted.sort();
        shown.sort();
        assert_eq!(shown, wanted, "{name}");
        assert_eq!((found.views.len(), &found.others[..]), (views, &[][..]), "{name}");
    }
}

/// The elements of a view one by one, by the definition of strides.
fn viewed(bytes: &[u8], view: &View, dtype: Dtype, shape: &Shape) -> Vec<u8> {
    let mut places = vec![view.begin];
    for (count, stride) in shape.dimensions().iter().zip(&view.strides) {
        let step = stride * dtype.bytes();
        places = places.iter().flat_map(|at| (0..*count).map(move |index| at + index * step)).collect();
    }
    places.iter().flat_map(|at| bytes[*at as usize..][..dtype.bytes() as usize].to_vec()).collect()
}

#[test]
fn checkpoints_that_only_python_can_load_are_unsupported() {
    for (name, words) in [("class.pt", "__main__.Net"), ("scripted.pt", "scripted model")] {
        let found = checkpoint(&golden(&format!("models/{name}")));
        assert_eq!(refused(found, words), ErrorKind::Unsupported, "{name}");
    }
}

#[test]
fn damaged_checkpoints_and_models_are_refused_or_have_tensors_inside_the_file() {
    let bytes = golden("models/only.pt");
    for damaged in damaged(&bytes, bytes.len()) {
        let Ok(found) = checkpoint(&damaged) else { continue };
        assert!(found.tensors.iter().all(|entry| entry.end <= damaged.len() as u64));
        let inside =
            |it: &torch::TensorView| it.view.range(it.dtype, &it.shape).unwrap().end <= damaged.len() as u64;
        assert!(found.views.iter().all(inside));
    }
    let bytes = golden("models/model.onnx");
    for damaged in damaged(&bytes, bytes.len()) {
        let Ok(found) = model(&damaged) else { continue };
        for entry in &found.tensors {
            assert!(!matches!(&entry.place, Place::Here(range) if range.end > damaged.len() as u64));
        }
    }
}

/// An entry of an archive: its name, method, data, and the size that both headers state.
pub struct Made<'a> {
    name: &'a str,
    method: u16,
    data: &'a [u8],
    size: u32,
}

pub fn stored<'a>(name: &'a str, data: &'a [u8]) -> Made<'a> {
    Made { name, method: 0, data, size: data.len() as u32 }
}

/// The fields that both headers of an entry share, from the flags to the lengths.
fn fields(made: &Made<'_>) -> Vec<u8> {
    let mut bytes = vec![0, 0];
    bytes.extend(made.method.to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend((made.data.len() as u32).to_le_bytes());
    bytes.extend(made.size.to_le_bytes());
    bytes.extend((made.name.len() as u16).to_le_bytes());
    bytes.extend([0; 2]);
    bytes
}

/// Bytes of an archive, and the offset of its directory.
pub fn archive(made: &[Made<'_>]) -> (Vec<u8>, usize) {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for made in made {
        directory.extend(b"PK\x01\x02\x14\0\x14\0");
        directory.extend(fields(made));
        directory.extend([0; 10]);
        directory.extend((bytes.len() as u32).to_le_bytes());
        directory.extend(made.name.as_bytes());
        bytes.extend(b"PK\x03\x04\x14\0");
        bytes.extend(fields(made));
        bytes.extend(made.name.as_bytes());
        bytes.extend(made.data);
    }
    let start = bytes.len();
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    let count = made.len() as u16;
    bytes.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend((start as u32).to_le_bytes());
    bytes.extend([0; 2]);
    (bytes, start)
}

/// The same archive with a zip64 end record.
fn large(made: &[Made<'_>]) -> Vec<u8> {
    let (mut bytes, start) = archive(made);
    let end = bytes.len() - 22;
    let last = bytes.split_off(end);
    let mut record = b"PK\x06\x06".to_vec();
    record.extend(44_u64.to_le_bytes());
    record.extend([45, 0, 45, 0]);
    record.extend([0; 8]);
    for number in [made.len() as u64, made.len() as u64, (end - start) as u64, start as u64] {
        record.extend(number.to_le_bytes());
    }
    bytes.extend(record);
    bytes.extend(b"PK\x06\x07\0\0\0\0");
    bytes.extend((end as u64).to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(&last[..8]);
    bytes.extend([0xff; 12]);
    bytes.extend([0; 2]);
    bytes
}

#[test]
fn entries_of_archives_are_ranges_of_the_file() {
    let made = [stored("a", b"first"), stored("b/c", b"")];
    let wanted = [("a", 31..36, true), ("b/c", 69..69, true)];
    for bytes in [archive(&made).0, large(&made)] {
        let found = entries(&bytes).unwrap();
        let found: Vec<_> =
            found.iter().map(|entry| (&*entry.name, entry.data.clone(), entry.is_stored)).collect();
        assert_eq!(found, wanted);
        for cut in 0..bytes.len() {
            assert!(entries(&bytes[..cut]).is_err(), "{cut} bytes");
        }
    }
    let packed = [Made { name: "x", method: 8, data: b"packed", size: 900 }];
    assert!(!entries(&archive(&packed).0).unwrap()[0].is_stored);
    // A comment of the archive that looks like an end record.
    let (mut bytes, _) = archive(&made);
    let end = bytes.len();
    bytes[end - 2] = 22;
    bytes.extend([&b"PK\x05\x06"[..], &[0; 16], &[9, 0]].concat());
    assert_eq!(entries(&bytes).unwrap().len(), 2);
    // Bytes behind the archive, which zipfile skips.
    assert_eq!(entries(&[&archive(&made).0[..], b"\n"].concat()).unwrap().len(), 2);
}

#[test]
fn hostile_archives_are_refused() {
    let made = [stored("a", b"first"), stored("b", b"second")];
    let (whole, start) = archive(&made);
    let with = |at: usize, new: &[u8]| {
        let mut bytes = whole.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        entries(&bytes)
    };
    let end = whole.len() - 22;
    let second = start + 47;
    for (at, new, words) in [
        (second + 42, &[0_u8, 0, 0, 0][..], "inside the entry before it"),
        (second + 42, &[37, 0, 0, 0], "local header is not where"),
        (second + 42, &[0xf0, 0xff, 0, 0], "past the begin"),
        (start + 20, &[200, 0, 0, 0, 200, 0, 0, 0], "differs"),
        (18, &[200, 0, 0, 0, 200, 0, 0, 0], "differs"),
        (start + 24, &[6, 0, 0, 0], "differs"),
        (30, b"x", "differs"),
        (6, &[1, 0], "differs"),
        (8, &[8, 0], "differs"),
        (second + 46, b"a", "twice"),
        (end + 8, &[3, 0, 3, 0], "3 entries"),
        (end + 8, &[1, 0, 1, 0], "follow the last entry"),
        (end + 8, &[0xff, 0xff, 0xff, 0xff], "zip64"),
        (end + 12, &[0xff, 0xff, 0xff, 0xff], "zip64"),
        (end + 16, &[0, 0, 0, 0], "does not end"),
        (start + 42, &[0xff, 0xff, 0xff, 0xff], "zip64"),
    ] {
        let is_damaged = ["local header is not where", "past the begin", "3 entries", "zip64"];
        let kind = if is_damaged.contains(&words) { ErrorKind::Invalid } else { ErrorKind::Unsupported };
        assert_eq!(refused(with(at, new), words), kind, "{new:?} at {at}");
    }
    assert_eq!(refused(with(end + 4, &[1, 0]), "several files"), ErrorKind::Unsupported);
    // Both headers state another stored size.
    let lying = [Made { size: 9000, ..stored("a", b"first") }];
    assert_eq!(refused(entries(&archive(&lying).0), "stored size differs"), ErrorKind::Invalid);
    let whole = large(&made);
    let record = whole.len() - 22 - 20 - 56;
    for (at, new, words) in [
        (record + 40, &[0xff; 8][..], "does not end"),
        (record + 24, &[0xff; 16], "entries"),
        (record + 24, &[9; 8], "unknown form"),
        (record + 4, &[45; 1], "unknown form"),
        (record + 56 + 8, &[0; 8], "not where its locator says"),
    ] {
        let mut bytes = whole.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        refused(entries(&bytes), words);
    }
    assert_eq!(refused(entries(b""), "the end record is missing"), ErrorKind::Unreadable);
}

/// A checkpoint with this pickle and a storage of 64 bytes.
pub fn pickled(pickle: &[u8]) -> Result<torch::Checkpoint> {
    checkpoint(&archive(&[stored("x/data.pkl", pickle), stored("x/data/0", &[7; 64])]).0)
}

pub fn text(value: &str) -> Vec<u8> {
    [&b"X"[..], &(value.len() as u32).to_le_bytes(), value.as_bytes()].concat()
}

/// The operations that make a tensor of the storage.
pub fn tensor(offset: u8, sizes: &[u8], strides: &[u8]) -> Vec<u8> {
    let tuple = |numbers: &[u8]| {
        let numbers = numbers.iter().flat_map(|number| [b'K', *number]);
        [&b"("[..], &numbers.collect::<Vec<_>>(), b"t"].concat()
    };
    let storage =
        [&b"("[..], &text("storage"), b"ctorch\nFloatStorage\n", &text("0"), &text("cpu"), b"K\x10tQ"];
    let after = b"\x89ccollections\nOrderedDict\n)RtR";
    [
        &b"ctorch._utils\n_rebuild_tensor_v2\n("[..],
        &storage.concat(),
        b"K",
        &[offset],
        &tuple(sizes),
        &tuple(strides),
        after,
    ]
    .concat()
}

/// A dictionary with one tensor.
pub fn of_one(tensor: &[u8]) -> Vec<u8> {
    [&b"\x80\x02}"[..], &text("w"), tensor, b"s."].concat()
}

#[test]
fn a_pickle_describes_tensors_and_executes_nothing() {
    let found = pickled(&of_one(&tensor(4, &[2, 3], &[3, 1]))).unwrap();
    let [entry] = &found.tensors[..] else { panic!("{found:?}") };
    assert_eq!((&*entry.name, entry.shape.dimensions(), entry.end - entry.begin), ("w", &[2, 3][..], 24));
    let marker = Path::new(env!("CARGO_TARGET_TMPDIR")).join("a-pickle-was-executed");
    let command = text(&format!("touch {}", marker.display()));
    for call in [
        &b"cos\nsystem\n"[..],
        b"cposix\nsystem\n",
        b"cbuiltins\nexec\n",
        b"cbuiltins\neval\n",
        b"csubprocess\nrun\n",
    ] {
        let pickle = [&b"\x80\x02"[..], call, &command, b"\x85R."].concat();
        assert_eq!(refused(pickled(&pickle), "outside of objects"), ErrorKind::Unsupported);
    }
    let by_text = [&b"\x80\x04"[..], &text("os"), &text("system"), b"\x93", &command, b"\x85R."].concat();
    assert_eq!(refused(pickled(&by_text), "os.system"), ErrorKind::Unsupported);
    assert!(!marker.exists());
    // Other operations that call, and calls of values that are not names.
    for pickle in [
        &b"\x80\x02}}\x81."[..],
        b"}(R.",
        b"})R.",
        b"(i\nos\nsystem\n.",
        b"}P0\n.",
        b"}\x82\x01.",
        b"](K\x01o.",
    ] {
        let found = pickled(pickle);
        assert!(found.is_ok_and(|found| found == torch::Checkpoint::default()) || pickled(pickle).is_err());
    }
}

#[test]
fn tensors_that_do_not_fit_their_storage_are_refused() {
    for (made, words) in [
        (tensor(0, &[17], &[1]), "past the end of its storage"),
        (tensor(13, &[4], &[1]), "past the end of its storage"),
        (tensor(0, &[4, 5], &[1, 4]), "past the end of its storage"),
        (tensor(0, &[2, 9], &[0, 2]), "past the end of its storage"),
        (tensor(1, &[2, 2], &[15, 1]), "past the end of its storage"),
        (tensor(0, &[1; 9], &[1; 9]), "8 numbers"),
        (tensor(0, &[255; 8], &[1; 8]), "too many elements"),
        (tensor(0, &[2, 2], &[1]), "different numbers of sizes"),
    ] {
        refused(pickled(&of_one(&made)), words);
    }
    let missing = archive(&[stored("x/data.pkl", &of_one(&tensor(0, &[1], &[1])))]).0;
    assert_eq!(refused(checkpoint(&missing), "storage is missing"), ErrorKind::Invalid);
    let storage = Made { name: "x/data/0", method: 8, data: &[7; 64], size: 64 };
    let packed = archive(&[stored("x/data.pkl", &of_one(&tensor(0, &[1], &[1]))), storage]).0;
    assert_eq!(refused(checkpoint(&packed), "compressed"), ErrorKind::Unsupported);
    let pickle = of_one(&tensor(0, &[1], &[1]));
    let big = [stored("x/data.pkl", &pickle), stored("x/data/0", &[7; 64]), stored("x/byteorder", b"big")];
    assert_eq!(refused(checkpoint(&archive(&big).0), "big-endian"), ErrorKind::Unsupported);
}

#[test]
fn pickles_without_end_are_refused_within_bounds() {
    let endless = [&b"]"[..], &b"]".repeat(5 << 20), b"."].concat();
    assert_eq!(refused(pickled(&endless), "values"), ErrorKind::Unsupported);
    let many = [&b"N"[..], &b"2".repeat(5 << 20), b"."].concat();
    assert_eq!(refused(pickled(&many), "values"), ErrorKind::Unsupported);
    let long = vec![b'.'; torch::PICKLE_BYTES_MAX as usize + 1];
    assert_eq!(refused(pickled(&long), "at most"), ErrorKind::Unsupported);
    for early in [
        &b""[..],
        b"(",
        b"X\xff\xff\xff\xffx",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
        b"h\x05.",
        b"0.",
        b"1.",
        b"s.",
        b"(R.",
        b"Q.",
    ] {
        refused(pickled(early), "data.pkl");
    }
}

#[test]
fn arrays_of_an_archive_are_checked_as_numpy_files() {
    let text = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }");
    let array = [&b"\x93NUMPY\x01\x00\x76\x00"[..], text.as_bytes(), &[1; 12]].concat();
    let parse = |made: &[Made<'_>]| {
        let bytes = archive(made).0;
        npz::parse(&mut reader(&bytes), bytes.len() as u64, &mut Budget::default())
    };
    let found = parse(&[stored("a/w.npy", &array)]).unwrap();
    assert_eq!((&*found.arrays[0].name, found.arrays[0].end - found.arrays[0].begin), ("a/w", 12));
    assert_eq!(refused(parse(&[stored("w.npy", &array[..130])]), "cut off"), ErrorKind::Unsupported);
    assert_eq!(refused(parse(&[stored("w.txt", &array)]), "does not end in .npy"), ErrorKind::Unsupported);
    let packed = Made { name: "w.npy", method: 8, data: &array, size: 9 };
    assert_eq!(refused(parse(&[packed]), "savez"), ErrorKind::Unsupported);
    let objects = String::from_utf8(array[10..128].to_vec()).unwrap().replace("'<f4'", "'|O' ");
    let objects = [&array[..10], objects.as_bytes(), &array[128..]].concat();
    let found = parse(&[stored("w.npy", &array), stored("o.npy", &objects)]).unwrap();
    assert_eq!((found.arrays.len(), &*found.others[0].0), (1, "o.npy"));
    // Entries that are not arrays, and compressed ones, hide no other.
    let packed = Made { name: "p.npy", method: 8, data: &array, size: 9 };
    let found = parse(&[stored("w.npy", &array), stored("readme.txt", b"x"), packed]).unwrap();
    assert_eq!((found.arrays.len(), found.others.len()), (1, 2), "{found:?}");
}

#[test]
fn a_model_has_the_initializers_that_onnx_loads() {
    let bytes = golden("models/model.onnx");
    let found = model(&bytes).unwrap();
    let shown: Loaded = found
        .tensors
        .iter()
        .map(|entry| {
            let Place::Here(range) = &entry.place else { panic!("{entry:?}") };
            let data = hex(&bytes[range.start as usize..range.end as usize]);
            (entry.name.clone(), entry.dtype.to_string(), entry.shape.to_string(), data)
        })
        .collect();
    assert_eq!(shown, loaded("model.onnx"));
    assert_eq!(found.others, [("listed".to_owned(), "it has no raw_data".to_owned())]);
    let beside = model(&golden("models/beside.onnx")).unwrap();
    let data = golden("models/beside.weights");
    for (name, _, _, bytes) in loaded("model.onnx") {
        let entry = beside.tensors.iter().find(|entry| entry.name == name).unwrap();
        let Place::Beside { location, range } = &entry.place else { panic!("{entry:?}") };
        assert_eq!(location, "beside.weights");
        assert_eq!(hex(&data[range.start as usize..range.end as usize]), bytes);
    }
}

/// A protobuf field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    [&out[..], bytes].concat()
}

/// A model with an initializer of 8 bytes in another file.
fn beside(location: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let pairs = [("location", location)].into_iter().chain(more.iter().copied());
    let pairs = pairs
        .flat_map(|(key, value)| field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat()));
    let rest =
        [&field(8, b"w")[..], &[2 << 3, 1, 1 << 3, 2, 14 << 3, 1], &pairs.collect::<Vec<_>>()].concat();
    field(7, &field(5, &rest))
}

#[test]
fn a_location_is_a_path_below_the_directory_of_the_model() {
    for (text, wanted) in [("w", "w"), ("./a/./w", "a/w"), ("...", "..."), ("a b", "a b")] {
        let found = model(&beside(text, &[("offset", "8"), ("length", "8")])).unwrap();
        assert_eq!(found.tensors[0].place, Place::Beside { location: wanted.to_owned(), range: 8..16 });
    }
    for text in ["", ".", "..", "/w", "../w", "a/../w", "a//w", "a/", "a\0", "a\nb"] {
        let found = model(&beside(text, &[])).unwrap();
        assert!(found.tensors.is_empty(), "{text:?}");
        assert!(found.others[0].1.contains("is not a path below the directory of the model"), "{found:?}");
    }
}

#[test]
fn hostile_protobufs_are_refused_within_bounds() {
    let initializer = |parts: &[&[u8]]| field(7, &field(5, &parts.concat()));
    let (name, f32) = (field(8, b"w"), [2 << 3, 1]);
    let raw = field(9, &[0; 8]);
    let size = [1 << 3, 2];
    assert_eq!(model(&initializer(&[&name, &f32, &size, &raw])).unwrap().tensors.len(), 1);
    assert_eq!(model(&initializer(&[&name, &f32, &field(1, &[2]), &raw])).unwrap().tensors.len(), 1);
    for (bytes, words) in [
        (vec![], "no graph"),
        (vec![0x3a], "past byte"),
        (vec![0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], "go past"),
        (vec![0x80; 11], "ten bytes"),
        (vec![0x3b, 0], "wire type 3"),
        (vec![2, 0], "number 0"),
        ([field(7, b""), field(7, b"")].concat(), "two graphs"),
        ([&field(7, b"")[..], &[8, 1].repeat((onnx::FIELDS_MAX + 1) as usize)].concat(), "fields"),
    ] {
        refused(model(&bytes), words);
    }
    for (bytes, words) in [
        (initializer(&[&f32, &size, &raw]), "name is missing"),
        (initializer(&[&name, &f32, &[1 << 3, 3], &raw]), "8 bytes for shape"),
        (initializer(&[&name, &f32, &size.repeat(9), &raw]), "dimensions"),
        (initializer(&[&field(8, &[b'n'; 5000]), &f32, &size, &raw]), "too long"),
        (initializer(&[&name, &f32, &size, &[14 << 3, 1]]), "another file"),
        (initializer(&[&name, &[2 << 3, 14], &size, &raw]), "data type is 14"),
        (beside("w", &[("offset", "18446744073709551615")]), "past every file"),
        (beside("w", &[("offset", "-1")]), "not a number"),
        (beside("w", &[("length", "9")]), "does not fit its shape"),
    ] {
        let found = model(&bytes).unwrap();
        assert!(found.tensors.is_empty());
        assert!(found.others[0].1.contains(words), "{found:?}");
    }
}

#[test]
fn fields_that_a_model_gives_twice_count_as_in_the_runtime() {
    let initializer = |name: &str, rest: &[u8]| field(5, &[&field(8, name.as_bytes()), rest].concat());
    let rest = |value: u8| [&[2 << 3, 1, 1 << 3, 2][..], &field(9, &[value; 8])].concat();
    let graph = [initializer("w", &rest(1)), initializer("v", &rest(2)), initializer("w", &rest(3))].concat();
    let bytes = field(7, &graph);
    let found = model(&bytes).unwrap();
    let shown: Vec<_> = found
        .tensors
        .iter()
        .map(|entry| {
            let Place::Here(range) = &entry.place else { panic!("{entry:?}") };
            (&*entry.name, bytes[range.start as usize])
        })
        .collect();
    assert_eq!(shown, [("w", 3), ("v", 2)]);
    assert_eq!(found.others.len(), 1);
    // The last of a field too, and an initializer without a name hides no other.
    let twice = [&field(8, b"no")[..], &field(9, &[9; 4]), &field(8, b"w"), &rest(4)].concat();
    let bytes = field(7, &[field(5, &twice), field(5, &rest(5)), initializer("", &rest(6))].concat());
    let found = model(&bytes).unwrap();
    assert_eq!((found.tensors.len(), &*found.tensors[0].name, found.others.len()), (1, "w", 2));
}

#[test]
fn other_values_of_a_model_are_named() {
    let tensor =
        |name: &str| [&field(8, name.as_bytes())[..], &[2 << 3, 1, 1 << 3, 2], &field(9, &[1; 8])].concat();
    let constant = |output: &str| {
        let value = field(5, &[field(1, b"value"), field(5, &tensor(""))].concat());
        field(1, &[field(2, output.as_bytes()), field(4, b"Constant"), value].concat())
    };
    let branch = [field(5, &tensor("inner")), constant("deep")].concat();
    let condition = field(1, &[field(4, b"If"), field(5, &field(6, &branch))].concat());
    let sparse = field(15, &field(1, &tensor("thin")));
    let graph =
        [field(5, &tensor("w")), field(5, &tensor("c")), condition, sparse, constant("c"), constant("k")];
    let found = model(&field(7, &graph.concat())).unwrap();
    let names: Vec<&str> = found.tensors.iter().map(|entry| &*entry.name).collect();
    assert_eq!(names, ["w"], "a Constant node has the name before an initializer");
    let mut others: Vec<_> = found.others.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    others.sort();
    assert_eq!(
        others,
        [
            "c: it is the value of a Constant node",
            "deep: it is the value of a Constant node",
            "inner: it is an initializer of a subgraph",
            "k: it is the value of a Constant node",
            "thin: it is sparse",
        ]
    );
}
