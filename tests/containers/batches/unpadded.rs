//! Batches whose last record ends without its padding, as `tests/golden/batches.py` wrote them.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::batches::batch::{Batch, checked};
use support::{
    Aligned, Fixture, Place, answer, assert_same, names, open_direct, read_at, repository, run, set, tierfs,
};

const NAMES: [&str; 4] = ["three", "single", "aux", "full"];

fn golden(name: &str) -> PathBuf {
    repository("tests/golden/batches").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    fs::read(golden(name)).unwrap()
}

fn files() -> Vec<PathBuf> {
    NAMES
        .iter()
        .flat_map(|name| [format!("{name}.cgeb"), format!("{name}.cgei")])
        .map(|name| golden(&name))
        .collect()
}

/// The files, their indexes and the vectors are those of the writer.
fn compare(folder: &std::path::Path) {
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    for name in NAMES {
        let (batch, index) = (format!("{name}.cgeb"), format!("{name}.cgei"));
        assert_same(&read(&batch), &bytes(&batch), &batch);
        assert_same(&read(&index), &bytes(&index), &index);
        assert_same(&read(&format!(".as/cgeb/{batch}")), &bytes(&batch), "as a batch");
        assert_same(&read(&format!(".as/cgeb/{index}")), &bytes(&index), "its index");
    }
    assert_same(&read(".tensors/three"), &bytes("three.f32"), "the vectors");
    assert_same(&read(".tensors/single"), &bytes("three.f32")[..6144], "the vector");
}

#[test]
fn batches_without_the_last_padding_come_back_byte_for_byte() {
    let place = Place::new();
    assert_eq!(
        ["single", "three", "full"].map(|name| bytes(&format!("{name}.cgeb")).len()),
        [6242, 22_626, 4096]
    );
    for name in NAMES {
        let told = run(["cgeb".into(), "verify".into(), golden(&format!("{name}.cgeb"))]).ok();
        assert!(told.contains("its index agrees"), "{told}");
    }
    run(["cgeb".into(), "show".into(), golden("three.cgeb"), "--record".into(), "2".into()]).ok();
    let files = files();
    let paths: Vec<_> = files.iter().map(PathBuf::as_path).collect();
    place.import("demo/m", &paths, &["--strict"]);
    place.import("demo/packed", &paths, &["--strict", "--pack"]);
    let mounted = place.mount(&[]);
    for folder in ["demo/m", "demo/packed"] {
        compare(&mounted.path(folder));
    }
    // The end of a file that is not whole pages, read past the page cache.
    let direct = open_direct(&mounted.path("demo/m/three.cgeb"));
    let mut pages = Aligned::new(1 << 20);
    assert_eq!(read_at(&direct, pages.pages(8192), 16_384), 6242);
    assert_same(&pages.pages(8192)[..6242], &bytes("three.cgeb")[16_384..], "the last record");
    assert_eq!(read_at(&direct, pages.pages(4096), 24_576), 0);
}

#[test]
fn a_copied_batch_without_the_last_padding_is_recognized_encoded_pinned_and_survives_a_crash() {
    let mut fixture = Fixture::new();
    for file in files() {
        fs::copy(&file, fixture.path(file.file_name().unwrap().to_str().unwrap())).unwrap();
    }
    for _ in 0..2 {
        compare(&fixture.path(""));
        fixture.crash();
    }
    let path = fixture.path("aux.cgeb");
    for (name, value) in [("lossy", "allow"), ("tier", "q8:all")] {
        set(&path, name, value).unwrap();
    }
    let encoded = fixture.read("aux.cgeb");
    assert_eq!(encoded.len(), bytes("aux.cgeb").len());
    assert_ne!(encoded, bytes("aux.cgeb"));
    assert_eq!(checked(&path, &fixture.path("aux.cgei")), (4, 4));
    set(&path, "pin", "1").unwrap();
    fixture.remount();
    assert_same(&fixture.read("aux.cgeb"), &encoded, "pinned");
    fs::rename(&path, fixture.path("aux.bin")).unwrap();
    fixture.crash();
    assert_same(&fixture.read("aux.bin"), &encoded, "a plain file");
    fixture.unmount();
}

#[test]
fn a_record_after_one_without_padding_makes_a_batch_only_if_the_padding_comes_first() {
    let mut fixture = Fixture::new();
    let record = bytes("single.cgeb");
    let path = fixture.path("y.cgeb");
    let refused = |text: &[u8], words: &[&str]| {
        fs::write(&path, text).unwrap();
        let why = fixture.attribute("y.cgeb", "why");
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
        assert_same(&fixture.read("y.cgeb"), text, "a plain file");
        assert_eq!(names(&fixture.path(".tensors")), [""; 0]);
        fs::write(fixture.place.path("y.cgeb"), text).unwrap();
        fixture.place.path("y.cgeb")
    };
    // Right after it: its first byte lies where zeros must be.
    let file = refused(&[&record[..], &record].concat(), &["record 0", "byte 6242", "not zero"]);
    run(["cgeb".into(), "verify".into(), file]).failed(3, &["record 0", "not zero"]);
    // A file that ends in the middle of the padding was cut off.
    let file = refused(&[&record[..], &[0; 100]].concat(), &["record 0", "ends at byte 6342 of 8192"]);
    run(["cgeb".into(), "verify".into(), file]).failed(3, &["ends at byte 6342 of 8192"]);
    refused(&record[..6241], &["record 0", "ends at byte"]);

    // With each sync the file is a batch already, and it goes on.
    let mut file = fs::File::create(&path).unwrap();
    let zeros = vec![0; 8192 - record.len()];
    for part in [&record, &zeros, &record, &zeros, &record] {
        file.write_all(part).unwrap();
        file.sync_all().unwrap();
    }
    drop(file);
    let all = fs::read(&path).unwrap();
    assert_eq!(all.len(), 2 * 8192 + 6242);
    assert_same(&fixture.read("y"), &bytes("three.f32")[..6144].repeat(3), "three records");
    // Closed, it is a container: it is replaced, not appended to.
    for add in [&zeros, &record] {
        let mut file = fs::File::options().append(true).open(&path).unwrap();
        assert_eq!(file.write(add).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    fs::write(&path, [&all[..], &zeros, &record].concat()).unwrap();
    assert_eq!(fixture.read("y").len(), 4 * 6144);
    fixture.unmount();
}

#[test]
fn a_batch_without_the_last_padding_is_pushed_cloned_and_written_to() {
    let place = Place::new();
    let files = files();
    let paths: Vec<_> = files.iter().map(PathBuf::as_path).collect();
    place.import("demo/m", &paths, &["--strict"]);
    let url = format!("file://{}", place.path("remote").display());
    fs::create_dir(place.path("remote")).unwrap();
    answer(tierfs().arg("push").arg(place.store()).args(["demo/m", &url, "--create"])).ok();
    let other = Place::new();
    run(["init".as_ref(), other.store().as_os_str()]).ok();
    answer(tierfs().args(["clone", &url, "demo/m"]).arg(other.store())).ok();
    let mounted = other.mount(&[]);
    let folder = mounted.path("demo/m");
    compare(&folder);
    let file = fs::File::options().write(true).open(folder.join(".tensors/three")).unwrap();
    file.write_all_at(&[0; 6144], 2 * 6144).unwrap();
    drop(file);
    let mut expected = bytes("three.cgeb");
    expected[2 * 8192 + 64..][..6144].fill(0);
    assert_same(&fs::read(folder.join("three.cgeb")).unwrap(), &expected, "written to");
    assert_eq!(checked(&folder.join("three.cgeb"), &folder.join("three.cgei")), (3, 0));
}

#[test]
fn random_ranges_of_batches_without_the_last_padding_equal_the_file() {
    let place = Place::new();
    let mut batches = Vec::new();
    for (name, kind, sizes) in [("a", "mixed", [60, 100, 3, 5]), ("b", "mixed", [5, 40_001, 255, 255])] {
        let batch = Batch::made(&place, name, kind, sizes);
        let mut data = batch.data;
        let last = u64::from_be_bytes(batch.index[batch.index.len() - 8..].try_into().unwrap()) as usize;
        let head = |at: usize| u64::from_be_bytes(data[last + at..][..8].try_into().unwrap()) as usize;
        let fixed = 64 + 4 * (sizes[1] + sizes[2]) + sizes[3];
        let end = if head(32) > 0 { head(32) + head(40) } else { fixed };
        data.truncate(last + end);
        let path = place.write(&format!("short/{name}.cgeb"), &data);
        place.import("demo/m", &[&path], &["--strict"]);
        batches.push((name, data));
    }
    let mounted = place.mount(&[]);
    let mut random = support::Random(9);
    for (name, data) in &batches {
        let file = fs::File::open(mounted.path("demo/m").join(format!("{name}.cgeb"))).unwrap();
        for _ in 0..40 {
            let at = data.len() - random.below(9000).min(data.len());
            let mut out = vec![0; random.below(10_000) + 1];
            let got = read_at(&file, &mut out, at as u64);
            assert_eq!(got, out.len().min(data.len() - at));
            assert_same(&out[..got], &data[at..at + got], "a range");
        }
    }
}
