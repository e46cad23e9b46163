//! `all.npy`, `all.fvecs` and `all.fbin` of a directory: one array over its batches and arrays, that grows.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use support::{
    Fixture, Mapping, Place, Random, as_nobody, assert_same, get, names, python_line, repository, set,
};

const HEADER_BYTES: usize = 4096;

/// An array of NumPy.
fn array(descr: &str, sizes: &str, data: &[u8]) -> Vec<u8> {
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
    text.push_str(&" ".repeat(117 - text.len()));
    text.push('\n');
    [b"\x93NUMPY\x01\x00", &118_u16.to_le_bytes()[..], text.as_bytes(), data].concat()
}

fn floats(random: &mut Random, count: usize) -> Vec<u8> {
    (0..count).flat_map(|_| (random.below(2000) as f32 / 8.0 - 100.0).to_le_bytes()).collect()
}

/// An array of so many rows of f32.
fn rows(data: &[u8], dimension: usize) -> Vec<u8> {
    array("<f4", &format!("{}, {dimension}", data.len() / dimension / 4), data)
}

/// Reads the three files with NumPy. Each must be the same array. Returns its bytes.
fn read(folder: &Path) -> Vec<u8> {
    const SCRIPT: &str = r#"
import sys, numpy as np
folder, out = sys.argv[1:]
array = np.load(f"{folder}/all.npy", mmap_mode="r")
assert array.offset == 4096, array.offset
n, d = np.memmap(f"{folder}/all.fbin", "<u4", "r", shape=(2,))
assert (n, d) == array.shape, (n, d, array.shape)
flat = np.memmap(f"{folder}/all.fbin", "<f4", "r", offset=8).reshape(n, d)
assert np.array_equal(flat, array.astype("<f4"), equal_nan=True)
vectors = np.memmap(f"{folder}/all.fvecs", "<i4", "r").reshape(-1, d + 1)
assert (vectors[:, 0] == d).all() and np.array_equal(vectors[:, 1:].view("<f4"), flat, equal_nan=True)
array.tofile(out)
"#;
    let out = tempfile();
    python_line(SCRIPT, [folder.as_os_str(), out.as_os_str()]);
    let bytes = fs::read(&out).unwrap();
    fs::remove_file(out).unwrap();
    bytes
}

fn tempfile() -> PathBuf {
    let number = std::thread::current().id();
    std::env::temp_dir().join(format!("tierfs-rows-{}-{number:?}", std::process::id()))
}

/// Adds a file by a rename, as producers do.
fn add(fixture: &Fixture, name: &str, bytes: &[u8]) {
    let draft = fixture.path("e/.draft");
    fs::write(&draft, bytes).unwrap();
    fs::rename(draft, fixture.path("e").join(name)).unwrap();
}

fn folder(fixture: &Fixture) -> PathBuf {
    fixture.path(".as/npy/e")
}

fn batch(name: &str) -> Vec<u8> {
    fs::read(repository("tests/golden/batches").join(name)).unwrap()
}

#[test]
fn one_array_over_a_directory_grows_when_a_file_is_renamed_in() {
    let mut fixture = Fixture::new();
    fs::create_dir(fixture.path("e")).unwrap();
    let mut random = Random(3);
    let mut all = batch("three.f32");
    add(&fixture, "00.cgeb", &batch("three.cgeb"));
    add(&fixture, "00.cgei", &batch("three.cgei"));
    assert_same(&read(&folder(&fixture)), &all, "a batch");
    let path = folder(&fixture).join("all.npy");
    let open = File::open(&path).unwrap();
    let mapping = Mapping::of(&path, libc::MAP_SHARED);
    let first = mapping.bytes().to_vec();
    for (number, count) in [1, 700, 0, 3].into_iter().enumerate() {
        let more = floats(&mut random, count * 1536);
        add(&fixture, &format!("{:02}.npy", number + 1), &rows(&more, 1536));
        let (before, after) = (all.len(), more.len());
        all.extend(more);
        // The open file grows, and its page with the old end is not stale.
        assert_eq!(open.metadata().unwrap().len() as usize, HEADER_BYTES + all.len());
        let mut end = vec![0; after.min(9000) + 100];
        open.read_exact_at(&mut end, (HEADER_BYTES + before - 100) as u64).unwrap();
        assert_same(&end, &all[before - 100..][..end.len()], "at the old end");
        assert_same(&read(&folder(&fixture)), &all, &format!("with file {number}"));
        // A mapping keeps its length and its rows.
        assert_same(&mapping.bytes()[HEADER_BYTES..], &first[HEADER_BYTES..], "the mapping");
    }
    add(&fixture, "05.cgeb", &batch("single.cgeb"));
    all.extend(&batch("three.f32")[..6144]);
    for _ in 0..2 {
        assert_same(&read(&folder(&fixture)), &all, "all");
        assert!(!names(&folder(&fixture)).iter().any(|name| name.starts_with("all.")));
        fixture.crash();
    }
    drop((mapping, open));
    // A change of a member and of its tier is seen by those who have the file open.
    let open = File::open(&path).unwrap();
    let mapping = Mapping::of(&path, libc::MAP_SHARED);
    assert_same(&mapping.bytes()[HEADER_BYTES..], &all, "mapped");
    let member = File::options().write(true).open(fixture.path("e/.tensors/02")).unwrap();
    member.write_all_at(&[7; 400], 6144 * 11).unwrap();
    drop(member);
    all[4 * 6144 + 6144 * 11..][..400].fill(7);
    assert_same(&mapping.bytes()[HEADER_BYTES..], &all, "mapped, after a write");
    for (name, value) in [("lossy", "allow"), ("tier", "q8:all")] {
        set(&fixture.path("e/00.cgeb"), name, value).unwrap();
    }
    let encoded = fs::read(fixture.path("e/.tensors/00")).unwrap();
    assert_ne!(encoded, &all[..encoded.len()]);
    all[..encoded.len()].copy_from_slice(&encoded);
    assert_same(&mapping.bytes()[HEADER_BYTES..], &all, "mapped, after a move");
    assert_same(&read(&folder(&fixture)), &all, "encoded");
    assert!(set(&path, "pin", "1").is_err());
    assert!(fs::write(&path, "x").is_err());
    drop((mapping, open));
    fixture.unmount();
}

#[test]
fn rows_of_an_open_file_stay_when_a_name_comes_before_them_or_goes() {
    let mut fixture = Fixture::new();
    fs::create_dir(fixture.path("e")).unwrap();
    let mut random = Random(4);
    let parts: Vec<Vec<u8>> = (0..4).map(|count| floats(&mut random, (count + 500) * 64)).collect();
    for name in [1, 3] {
        add(&fixture, &format!("{name}.npy"), &rows(&parts[name], 64));
    }
    let path = folder(&fixture).join("all.npy");
    let open = File::open(&path).unwrap();
    let old = [&parts[1][..], &parts[3]].concat();
    let mapping = Mapping::of(&path, libc::MAP_SHARED);
    assert_same(&mapping.bytes()[HEADER_BYTES..], &old, "before");
    let check = |wanted: &[usize], what: &str| {
        let wanted: Vec<u8> = wanted.iter().flat_map(|number| parts[*number].clone()).collect();
        assert_same(&read(&folder(&fixture)), &wanted, what);
        assert_same(&mapping.bytes()[HEADER_BYTES..], &old, what);
        let mut kept = vec![0; old.len()];
        open.read_exact_at(&mut kept, HEADER_BYTES as u64).unwrap();
        assert_same(&kept, &old, what);
        assert_eq!(open.metadata().unwrap().len() as usize, HEADER_BYTES + old.len(), "{what}");
    };
    add(&fixture, "0.npy", &rows(&parts[0], 64));
    check(&[0, 1, 3], "a name before the others");
    add(&fixture, "2.npy", &rows(&parts[2], 64));
    check(&[0, 1, 2, 3], "a name between");
    fs::rename(fixture.path("e/0.npy"), fixture.path("e/9.npy")).unwrap();
    check(&[1, 2, 3, 0], "another name");
    fs::remove_file(fixture.path("e/2.npy")).unwrap();
    check(&[1, 3, 0], "without one");
    fs::rename(fixture.path("e/9.npy"), fixture.path("9.npy")).unwrap();
    assert_same(&read(&folder(&fixture)), &old, "as it was");
    drop((mapping, open));
    fixture.unmount();
}

#[test]
fn directories_that_are_not_one_array_are_refused_with_a_reason() {
    let mut fixture = Fixture::new();
    fs::create_dir(fixture.path("e")).unwrap();
    let refused = |files: &[&str], words: &[&str]| {
        for file in ["all.npy", "all.fvecs", "all.fbin"].iter().filter(|file| files.contains(file)) {
            let error = fs::read(folder(&fixture).join(file)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{file}");
        }
        let why = get(&folder(&fixture), "why");
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    };
    let every = ["all.npy", "all.fvecs", "all.fbin"];
    refused(&every, &["no embedding batches"]);
    fs::write(fixture.path("e/notes.txt"), "text").unwrap();
    add(&fixture, "a.npy", &rows(&[1; 48], 4));
    assert_eq!(read(&folder(&fixture)), [1; 48]);
    let add_wrong = |name: &str, bytes: &[u8], words: &[&str]| {
        add(&fixture, name, bytes);
        refused(&every, words);
        fs::remove_file(fixture.path("e").join(name)).unwrap();
        assert_eq!(read(&folder(&fixture)), [1; 48]);
    };
    add_wrong("b.npy", &rows(&[1; 48], 6), &["b.npy", "6 f32", "a.npy", "4 f32"]);
    add_wrong("b.npy", &array("<f8", "2, 4", &[1; 64]), &["b.npy", "4 f64", "4 f32"]);
    add_wrong("0.npy", &array("<f4", "5,", &[1; 20]), &["0.npy", "shape", "5"]);
    add_wrong("b.npy", &array("<f4", "1, 2, 4", &[1; 32]), &["1x2x4"]);
    add_wrong("b.cgeb", &batch("single.cgeb"), &["b.cgeb", "1536 f32"]);
    // Integers are an array of NumPy only; halves are cast.
    fs::remove_file(fixture.path("e/a.npy")).unwrap();
    add(&fixture, "a.npy", &array("<i8", "2, 3", &[5; 48]));
    refused(&["all.fvecs", "all.fbin"], &["all.fvecs", "i64 elements"]);
    let all = fs::read(folder(&fixture).join("all.npy")).unwrap();
    assert_same(&all[HEADER_BYTES..], &[5; 48], "integers");
    fs::remove_file(fixture.path("e/a.npy")).unwrap();
    add(&fixture, "a.npy", &array("<f2", "2, 4", &[0x3C; 16]));
    add(&fixture, "b.npy", &array("<f2", "1, 4", &[0x40; 8]));
    assert_eq!(read(&folder(&fixture)), [[0x3C; 16].as_slice(), &[0x40; 8]].concat());
    // A tensor has its name first.
    add(&fixture, "all.npy", &array("<f2", "1, 4", &[9; 8]));
    assert_eq!(&fs::read(folder(&fixture).join("all.npy")).unwrap()[HEADER_BYTES..], [9; 8]);
    assert_eq!(fs::read(folder(&fixture).join("all.fbin")).unwrap().len(), 8 + 4 * 16);
    fixture.unmount();
}

#[test]
fn a_member_that_others_may_not_read_hides_the_array_from_them() {
    let mut fixture = Fixture::new();
    fs::create_dir(fixture.path("e")).unwrap();
    add(&fixture, "a.npy", &rows(&[1; 48], 4));
    add(&fixture, "b.npy", &rows(&[2; 48], 4));
    let line = "cat .as/npy/e/all.npy | wc -c";
    assert_eq!(as_nobody(&fixture.path(""), line).ok().trim(), "4192");
    fs::set_permissions(fixture.path("e/b.npy"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(as_nobody(&fixture.path(""), line).ok().trim(), "0");
    assert_eq!(read(&folder(&fixture)).len(), 96);
    fixture.unmount();
}

#[test]
fn many_files_are_one_array() {
    let place = Place::new();
    let mut random = Random(5);
    let all = floats(&mut random, 1200 * 32);
    for (number, row) in all.chunks(32 * 4).enumerate() {
        place.write(&format!("in/{number:05}.npy"), rows(row, 32));
    }
    place.import("demo/m", &[&place.path("in")], &[]);
    for options in [&[][..], &["--read-only"]] {
        let mounted = place.mount(options);
        let begin = Instant::now();
        let folder = mounted.path("demo/m/.as/npy");
        assert_same(&read(&folder), &all, "all");
        println!("{:?} to read 1,200 files three times", begin.elapsed());
        let file = File::open(folder.join("all.fvecs")).unwrap();
        for _ in 0..50 {
            let (at, mut out) = (random.below(1200 * 132 - 400), vec![0; random.below(400)]);
            file.read_exact_at(&mut out, at as u64).unwrap();
            let row = |byte: usize| match byte % 132 {
                place @ 0..4 => 32_u32.to_le_bytes()[place],
                place => all[byte / 132 * 128 + place - 4],
            };
            let wanted: Vec<u8> = (at..at + out.len()).map(row).collect();
            assert_same(&out, &wanted, "a range");
        }
    }
}
