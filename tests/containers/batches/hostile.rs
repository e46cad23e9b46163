//! Files that cannot be assembled again from their parts: an import refuses them, and written ones stay plain files.

use std::fs;
use std::path::Path;

use crate::batches::batch::Batch;
use support::{Fixture, Place, Random, assert_same, names};

/// A way to damage a batch, and words of the message about it.
type Damage = (&'static str, fn(&mut Vec<u8>), &'static [&'static str]);

const DAMAGES: &[Damage] = &[
    ("padding", |data| data[4096 * 2 - 1] = 1, &["record 1", "not zero"]),
    ("after", |data| data.extend([0; 4096]), &["record 40", "magic"]),
    ("cut", |data| data.truncate(data.len() - 1), &["record 39", "ends at byte"]),
    ("header", |data| data.truncate(4096 * 3 + 10), &["record 3", "ends at byte"]),
    ("hash", |data| data[4096 * 2 + 70] ^= 1, &["record 2", "hash"]),
    ("magic", |data| data[4096 * 5] = b'X', &["record 5", "magic"]),
    ("version", |data| data[4096 * 5 + 5] = 9, &["record 5", "version 9"]),
    ("flags", |data| data[4096 * 5 + 6] = 0x80, &["record 5", "flags"]),
    ("dimension", |data| data[4096 * 4 + 11] -= 1, &["record 4", "dimension"]),
    ("dimension of the first", |data| data[8] = 0xFF, &["record 0", "ends at byte"]),
    ("aux", |data| data[4096 * 4 + 32] = 0x7F, &["record 4", "aux"]),
    ("empty", Vec::clear, &["ends at byte 0"]),
];

fn damaged(place: &Place) -> (Batch, Vec<(&'static Damage, std::path::PathBuf)>) {
    let batch = Batch::made(place, "src", "plain", [40, 64, 1, 1]);
    let files = DAMAGES.iter().map(|damage| {
        let mut data = batch.data.clone();
        damage.1(&mut data);
        (damage, place.write(&format!("in/{}.cgeb", damage.0), &data))
    });
    let files = files.collect();
    (batch, files)
}

#[test]
fn an_import_refuses_a_batch_that_cannot_be_assembled_and_names_the_record() {
    let place = Place::new();
    let (batch, files) = damaged(&place);
    for ((name, _, words), path) in &files {
        println!("{name}");
        place.try_import("demo/m", &[path], &["--strict"]).failed(1, words);
    }
    place.try_import("demo/m", &[&batch.path], &["--in-place"]).failed(1, &["stored as separate tensors"]);
    place.import("demo/m", &[&batch.path], &[]);
    let mounted = place.mount(&[]);
    assert_eq!(names(&mounted.path("demo/m")), ["src.cgeb"]);
    assert_eq!(names(&mounted.path("demo/m/.tensors")), ["src", "src.selected", "src.weights"]);
}

#[test]
fn a_written_batch_that_cannot_be_assembled_stays_a_plain_file_and_says_why() {
    let mut fixture = Fixture::new();
    let (_, files) = damaged(&fixture.place);
    let check = |fixture: &Fixture, name: &str, path: &Path, words: &[&str]| {
        let file = format!("{name}.cgeb");
        assert_same(&fixture.read(&file), &fs::read(path).unwrap(), name);
        if name != "empty" {
            let why = fixture.attribute(&file, "why");
            assert!(words.iter().all(|word| why.contains(word)), "{name}: {why}");
        }
    };
    for ((name, _, words), path) in &files {
        fs::copy(path, fixture.path(&format!("{name}.cgeb"))).unwrap();
        check(&fixture, name, path, words);
    }
    assert_eq!(names(&fixture.path("")).len(), files.len());
    fixture.crash();
    for ((name, _, words), path) in &files {
        check(&fixture, name, path, words);
    }
    fixture.unmount();
}

#[test]
fn a_random_byte_is_refused_or_kept() {
    let fixture = Fixture::new();
    let batch = Batch::made(&fixture.place, "src", "mixed", [30, 40, 2, 2]);
    let mut random = Random(77);
    for _ in 0..40 {
        let mut data = batch.data.clone();
        let place = match random.below(2) {
            0 => random.below(30) * 4096 + random.below(64),
            _ => random.below(data.len()),
        };
        let end = data.len();
        data[place.min(end - 1)] ^= 1 << random.below(8);
        fs::write(fixture.path("y.cgeb"), &data).unwrap();
        assert_same(&fixture.read("y.cgeb"), &data, &format!("byte {place}"));
    }
}
