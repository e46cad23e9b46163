//! Writes into tensors in every tier, and files that grow by small appends.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};

use support::{Fixture, Place, Random, assert_same, container_of, text};

const ELEMENTS: usize = 256 * 1024;

fn in_tier(tier: &str, seed: u64) -> Fixture {
    let place = Place::new();
    let file = place.write("w.safetensors", container_of(&mut Random(seed), &[("w", ELEMENTS)]));
    place.import("demo/m", &[&file], &["--tier", &format!("{tier}:all")]);
    let mut fixture = Fixture::unmounted(place);
    fixture.mount();
    fixture
}

#[test]
fn written_elements_of_a_quantized_tensor_read_exactly_and_others_are_unchanged() {
    for (tier, seed) in [("q8", 1), ("q5", 2), ("q3", 3)] {
        let mut fixture = in_tier(tier, seed);
        let mut random = Random(seed + 100);
        let mut expected = fixture.read("w");
        let header = fixture.read("w.safetensors").len() - expected.len();
        assert_eq!(fixture.attribute("w", "tier"), tier);
        for round in 0..20 {
            let through_container = round % 3 == 0;
            let name = if through_container { "w.safetensors" } else { "w" };
            let skip = if through_container { header } else { 0 };
            let file = fs::File::options().write(true).open(fixture.path(name)).unwrap();
            for _ in 0..10 {
                let at = random.below(ELEMENTS) * 4;
                let new =
                    if random.below(8) == 0 { f32::NAN.to_le_bytes().to_vec() } else { random.floats(1) };
                file.write_all_at(&new, (skip + at) as u64).unwrap();
                expected[at..at + 4].copy_from_slice(&new);
            }
            if round % 5 == 0 {
                // A whole block, and a stretch over the edges of blocks.
                let new = random.floats(4096 * 3);
                let at = random.below(ELEMENTS / 4096 - 4) * 16384 + if round == 5 { 4000 } else { 0 };
                file.write_all_at(&new, (skip + at) as u64).unwrap();
                expected[at..at + new.len()].copy_from_slice(&new);
            }
            drop(file);
            assert_same(&fixture.read("w"), &expected, tier);
            assert_same(&fixture.read("w.safetensors")[header..], &expected, "the container");
            match round % 4 {
                0 => fixture.crash(),
                1 => fixture.remount(),
                _ => {}
            }
            assert_same(&fixture.read("w"), &expected, "after a remount");
        }
        assert_eq!(fixture.attribute("w", "tier"), "mixed");
        assert_same(&fixture.read("w.safetensors")[header..], &expected, "the container");
    }
}

#[test]
fn a_write_to_a_sharded_tensor_crosses_the_bounds_of_shards() {
    let place = Place::new();
    let mut random = Random(4);
    let shards = [70_001, 16_384, 3].map(|len| random.bytes(len));
    let paths: Vec<_> =
        shards.iter().enumerate().map(|(n, bytes)| place.write(&format!("s{n}"), bytes)).collect();
    let paths: Vec<&std::path::Path> = paths.iter().map(|path| path.as_path()).collect();
    place.import("demo/m", &paths, &["--shard-of", "t"]);
    let mut fixture = Fixture::unmounted(place);
    fixture.mount();
    let mut expected = shards.concat();
    assert_same(&fixture.read("t"), &expected, "before");
    for round in 0..10 {
        let file = fs::File::options().write(true).open(fixture.path("t")).unwrap();
        for _ in 0..5 {
            let at = random.below(expected.len() - 1);
            let new = {
                let len = 1 + random.below((expected.len() - at).min(30_000));
                random.bytes(len)
            };
            file.write_all_at(&new, at as u64).unwrap();
            expected[at..at + new.len()].copy_from_slice(&new);
        }
        drop(file);
        assert_same(&fixture.read("t"), &expected, "written");
        if round % 3 == 0 {
            fixture.crash();
            assert_same(&fixture.read("t"), &expected, "after a crash");
        }
    }
    fixture.remount();
    assert_same(&fixture.read("t"), &expected, "at the end");
}

#[test]
fn a_file_that_grows_by_ten_thousand_appends_stays_one_data_file() {
    let mut fixture = Fixture::new();
    let mut random = Random(5);
    let mut expected = Vec::new();
    let mut file = fs::File::options().append(true).create(true).open(fixture.path("log")).unwrap();
    for number in 0..10_000 {
        let line = {
            let len = 1 + random.below(90);
            random.bytes(len)
        };
        file.write_all(&line).unwrap();
        expected.extend(line);
        if number % 500 == 250 {
            file.sync_all().unwrap();
        }
        if number % 2500 == 0 {
            drop(file);
            file = fs::File::options().append(true).open(fixture.path("log")).unwrap();
        }
    }
    drop(file);
    assert_same(&fixture.read("log"), &expected, "the file");
    assert!(fixture.data_files() <= 1, "{} data files", fixture.data_files());
    let log = fs::metadata(fixture.place.store().join("demo/m/meta.log")).unwrap().len();
    assert!(log < 512 << 10, "{log} bytes of log");
    let stored = fs::metadata(fixture.path("log")).unwrap().blocks() * 512;
    assert!((expected.len() as u64..expected.len() as u64 + 4096).contains(&stored), "{stored} bytes in du");
    fixture.crash();
    assert_same(&fixture.read("log"), &expected, "after a crash");
    fixture.remount();
    assert_same(&fixture.read("log"), &expected, "after a remount");
    let mut file = fs::File::options().append(true).open(fixture.path("log")).unwrap();
    for _ in 0..100 {
        file.write_all(b"more").unwrap();
        expected.extend(b"more");
    }
    drop(file);
    fixture.remount();
    assert_same(&fixture.read("log"), &expected, "after more");
    assert!(fixture.data_files() <= 1, "{} data files", fixture.data_files());
    let used =
        text(&support::script(&fixture.path(""), "du -s --block-size=1 . | cut -f1").ok().into_bytes());
    let used: u64 = used.trim().parse().unwrap();
    assert!(used >= expected.len() as u64 && used < expected.len() as u64 + 65536, "{used}");
}

/// `cp` and `>` truncate the file first: all of its bytes are new then, and the tensor stays the same one.
#[test]
fn a_plain_tensor_stays_a_tensor_while_its_size_is_whole_rows() {
    let mut fixture = Fixture::new();
    let path = fixture.path("w");
    let mut random = Random(12);
    fs::write(&path, random.bytes(4000)).unwrap();
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&path, "user.tierfs.dtype", b"f32", none).unwrap();
    rustix::fs::setxattr(&path, "user.tierfs.shape", b"100x10", none).unwrap();
    for (rows, shape) in [(0, "0x10"), (3, "3x10"), (20_000, "20000x10"), (1, "1x10")] {
        let bytes = random.bytes(rows * 40);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(
            (fixture.attribute("w", "dtype"), fixture.attribute("w", "shape")),
            ("f32".into(), shape.into())
        );
        fixture.remount();
        assert!(fixture.read("w") == bytes, "{rows} rows");
        assert_eq!(fixture.attribute("w", "shape"), shape);
    }
    fs::write(&path, random.bytes(41)).unwrap();
    assert!(fixture.attribute("w", "why").contains("41 bytes"), "{}", fixture.attribute("w", "why"));
    fixture.unmount();
}

#[test]
fn a_small_write_into_a_container_of_many_tensors_takes_a_short_record() {
    let fixture = Fixture::new();
    let names: Vec<String> = (0..2000).map(|number| format!("t{number}")).collect();
    let tensors: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), 8)).collect();
    let mut expected = support::container_of(&mut Random(21), &tensors);
    fs::write(fixture.path("m.safetensors"), &expected).unwrap();
    let log = fixture.place.store().join("demo/m/meta.log");
    let sync = || fs::write(fixture.mounted().path(".ctl/sync"), "now").unwrap();
    sync();
    let before = fs::metadata(&log).unwrap().len();
    let at = expected.len() - 8 * 4 * 1000;
    for (round, name) in ["m.safetensors", "t1000"].iter().enumerate() {
        let file = fs::File::options().write(true).open(fixture.path(name)).unwrap();
        let at = if round == 0 { at } else { 4 };
        file.write_all_at(&[round as u8; 4], at as u64).unwrap();
        drop(file);
        sync();
    }
    expected[at..at + 4].fill(0);
    expected[at + 4..at + 8].fill(1);
    let grown = fs::metadata(&log).unwrap().len() - before;
    assert!(grown < 16 << 10, "two writes of four bytes took {grown} bytes of the log");
    assert_same(&fixture.read("m.safetensors"), &expected, "the container");
    assert_same(&fixture.read("t1000"), &expected[at..at + 32], "the tensor");
}
