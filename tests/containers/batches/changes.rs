//! Batches that are encoded, written to, replaced or renamed after they came in. The daemon always serves a valid
//! batch.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use crate::batches::batch::{Batch, checked};
use support::{Fixture, assert_same, names, run, set};

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect()
}

/// A batch of 200 records and its index, copied in as `y`.
fn copied(fixture: &Fixture, kind: &str) -> Batch {
    let batch = Batch::made(&fixture.place, "src", kind, [200, 256, 8, 2]);
    fs::copy(&batch.path, fixture.path("y.cgeb")).unwrap();
    fs::copy(batch.index_path(), fixture.path("y.cgei")).unwrap();
    batch
}

#[test]
fn an_encoded_batch_stays_within_the_bound_and_all_its_hashes_verify() {
    let mut fixture = Fixture::new();
    let batch = copied(&fixture, "mixed");
    let container = fixture.path("y.cgeb");
    for (name, value) in [("lossy", "allow"), ("encoder", "absmax"), ("tier", "q8:all")] {
        set(&container, name, value).unwrap();
    }
    let (exact, weights) = (floats(&batch.vectors), floats(&batch.weights));
    for _ in 0..2 {
        let read = floats(&fixture.read("y"));
        assert_ne!(read, exact);
        for (all, read) in [(&exact, &read), (&weights, &floats(&fixture.read("y.weights")))] {
            for (group, read) in all.chunks(64).zip(read.chunks(64)) {
                let largest = group.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                for (value, read) in group.iter().zip(read) {
                    // Half a step, and the rounding of the scale of a group.
                    assert!(
                        (value - read).abs() <= largest / 127.0 * 0.5 + largest / 1024.0,
                        "{value} {read}"
                    );
                }
            }
        }
        let (records, covered) = checked(&container, &fixture.path("y.cgei"));
        assert_eq!(records, 200);
        assert!(covered > 50, "{covered}");
        let served = fixture.read("y.cgeb");
        assert_ne!(served, batch.data);
        assert_eq!(served.len(), batch.data.len());
        assert_eq!(fixture.read("y.selected"), batch.selected);
        // The first record is big-endian and the second little-endian.
        let vector = |at: usize| served[at + 64..at + 64 + 1024].to_vec();
        let mut first = vector(0);
        first.as_chunks_mut::<4>().0.iter_mut().for_each(|float| float.reverse());
        assert_eq!(floats(&first), read[..256]);
        assert_eq!(floats(&vector(4096)), read[256..512]);
        fixture.crash();
    }
    // A batch that is copied out is valid for other programs.
    let (data, index) = (fixture.place.path("out.cgeb"), fixture.place.path("out.cgei"));
    fs::copy(fixture.path("y.cgeb"), &data).unwrap();
    fs::copy(fixture.path("y.cgei"), &index).unwrap();
    checked(&data, &index);
    let served = fs::read(&data).unwrap();
    fixture.unmount();
    let store = fixture.place.store();
    let out = fixture.place.path("exported.cgeb");
    run(["export".as_ref(), store.as_os_str(), "demo/m/y.cgeb".as_ref(), out.as_os_str()]).ok();
    assert_same(&fs::read(&out).unwrap(), &served, "what was exported");
}

#[test]
fn a_write_to_a_tensor_updates_the_batch_its_hash_and_the_index() {
    let mut fixture = Fixture::new();
    let batch = copied(&fixture, "plain");
    let file = fs::File::options().write(true).open(fixture.path("y")).unwrap();
    file.write_all_at(&1.25_f32.to_le_bytes(), 7 * 1024).unwrap();
    drop(file);
    let file = fs::File::options().write(true).open(fixture.path("y.selected")).unwrap();
    file.write_all_at(&[99], 2 * 11).unwrap();
    drop(file);
    for _ in 0..2 {
        let served = fixture.read("y.cgeb");
        assert_eq!(served[7 * 4096 + 64..][..4], 1.25_f32.to_le_bytes());
        assert_eq!(served[11 * 4096 + 64 + 1024 + 32], 99);
        assert_eq!(checked(&fixture.path("y.cgeb"), &fixture.path("y.cgei")).0, 200);
        fixture.crash();
    }
    // Written back, the batch and its index read as they came in.
    let file = fs::File::options().write(true).open(fixture.path("y")).unwrap();
    file.write_all_at(&batch.vectors[7 * 1024..][..4], 7 * 1024).unwrap();
    drop(file);
    let file = fs::File::options().write(true).open(fixture.path("y.selected")).unwrap();
    file.write_all_at(&batch.selected[22..23], 22).unwrap();
    drop(file);
    assert_same(&fixture.read("y.cgeb"), &batch.data, "the batch");
    assert_same(&fixture.read("y.cgei"), &batch.index, "the index");
}

#[test]
fn a_batch_refuses_writes_with_a_reason_and_can_be_replaced() {
    let fixture = Fixture::new();
    let batch = copied(&fixture, "plain");
    let path = fixture.path("y.cgeb");
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    for refused in [file.write_at(b"x", 100), file.write_at(b"x", batch.data.len() as u64)] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    for len in [4096, batch.data.len() as u64 + 4096] {
        assert_eq!(file.set_len(len).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    drop(file);
    assert!(fixture.attribute("y.cgeb", "why").contains("write to these or replace"));
    assert_same(&fixture.read("y.cgeb"), &batch.data, "the batch");
    let other = Batch::made(&fixture.place, "other", "mixed", [31, 20, 1, 1]);
    // Truncated to zero and written anew.
    fs::copy(&other.path, &path).unwrap();
    assert_same(&fixture.read("y.cgeb"), &other.data, "written anew");
    assert_same(&fixture.read("y"), &other.vectors, "its vectors");
    // Replaced by a rename.
    fs::copy(&batch.path, fixture.path("new.tmp")).unwrap();
    fs::rename(fixture.path("new.tmp"), &path).unwrap();
    assert_same(&fixture.read("y.cgeb"), &batch.data, "replaced");
    assert_same(&fixture.read("y"), &batch.vectors, "its vectors");
    fs::File::create(&path).unwrap();
    assert_eq!(names(&fixture.path("")), ["y.cgeb", "y.cgei"]);
    assert_eq!(fixture.read("y.cgeb"), b"");
}

#[test]
fn a_batch_is_renamed_moved_linked_and_removed_with_its_tensors() {
    let mut fixture = Fixture::new();
    let batch = copied(&fixture, "mixed");
    fs::rename(fixture.path("y.cgeb"), fixture.path("z.cgeb")).unwrap();
    assert_eq!(names(&fixture.path("")), ["y.cgei", "z.cgeb"]);
    assert_eq!(names(&fixture.path(".tensors")), ["z", "z.selected", "z.weights"]);
    assert_same(&fixture.read("z.cgeb"), &batch.data, "renamed");
    fs::create_dir(fixture.path("sub")).unwrap();
    fs::rename(fixture.path("z.cgeb"), fixture.path("sub/z.cgeb")).unwrap();
    assert_eq!(names(&fixture.path("sub")), ["z.cgeb"]);
    assert_eq!(names(&fixture.path("sub/.tensors")), ["z", "z.selected", "z.weights"]);
    assert_same(&fixture.read("sub/z.cgeb"), &batch.data, "moved");
    assert_same(&fixture.read("sub/z"), &batch.vectors, "its vectors");
    fs::hard_link(fixture.path("sub/z.cgeb"), fixture.path("linked.cgeb")).unwrap();
    assert_same(&fixture.read("linked.cgeb"), &batch.data, "linked");
    fs::rename(fixture.path("sub/z.cgeb"), fixture.path("sub/z.bin")).unwrap();
    assert_same(&fixture.read("sub/z.bin"), &batch.data, "renamed to a plain file");
    fixture.remount();
    for name in ["sub/z.bin", "linked.cgeb"] {
        assert_same(&fixture.read(name), &batch.data, name);
        fs::remove_file(fixture.path(name)).unwrap();
    }
    assert_eq!(names(&fixture.path("sub")), [""; 0]);
    assert_eq!(names(&fixture.path("sub/.tensors")), [""; 0]);
    fixture.unmount();
}

#[test]
fn an_encoded_batch_that_is_moved_stays_encoded() {
    let mut fixture = Fixture::new();
    copied(&fixture, "plain");
    for (name, value) in [("lossy", "allow"), ("tier", "q8:all")] {
        set(&fixture.path("y.cgeb"), name, value).unwrap();
    }
    let served = fixture.read("y.cgeb");
    fs::create_dir(fixture.path("sub")).unwrap();
    fs::rename(fixture.path("y.cgeb"), fixture.path("sub/z.cgeb")).unwrap();
    for _ in 0..2 {
        let mut value = [0; 16];
        let len = rustix::fs::getxattr(fixture.path("sub/z"), "user.tierfs.tier", &mut value[..]).unwrap();
        assert_eq!(&value[..len], b"q8");
        assert_same(&fixture.read("sub/z.cgeb"), &served, "moved");
        fixture.crash();
    }
}

#[test]
fn blocks_and_verify_show_a_batch_and_extents_refer_to_its_tensors() {
    let fixture = Fixture::new();
    copied(&fixture, "mixed");
    let control = |name: &str| fs::read_to_string(fixture.path(".ctl").join(name));
    assert!(control("verify/y.cgeb").unwrap().ends_with("ok\n"));
    assert!(control("blocks/y.cgeb").unwrap().lines().count() > 10);
    assert!(control("extents/y.cgeb").is_err());
    assert!(control("extents/y").unwrap().contains("file_offset"));
}
