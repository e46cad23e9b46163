//! Batches read as the bytes that came in.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;

use crate::batches::batch::{Batch, checked};
use support::{Aligned, Fixture, Place, Random, assert_same, names, open_direct, read_at};

const TABLE: [usize; 4] = [3000, 1536, 8, 2];

#[test]
fn an_imported_batch_reads_byte_for_byte_with_its_index_and_its_tensors() {
    let place = Place::new();
    let batch = Batch::made(&place, "x", "plain", TABLE);
    place.import("demo/m", &[&batch.path, &batch.index_path()], &[]);
    let mounted = place.mount(&[]);
    let folder = mounted.path("demo/m");
    assert_eq!(names(&folder), ["x.cgeb", "x.cgei"]);
    assert_eq!(names(&folder.join(".tensors")), ["x", "x.selected", "x.weights"]);
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    assert_same(&read("x.cgeb"), &batch.data, "the batch");
    assert_same(&read("x.cgei"), &batch.index, "its index");
    assert_same(&read("x"), &batch.vectors, "the vectors");
    assert_same(&read("x.weights"), &batch.weights, "the weights");
    assert_same(&read("x.selected"), &batch.selected, "the selected experts");
    // Records begin on pages, and so do their rows.
    assert_eq!(batch.data.len(), 3000 * 8192);
    let file = fs::File::open(folder.join("x.cgeb")).unwrap();
    let mut magic = [0; 4];
    for record in (0..3000).step_by(97) {
        file.read_exact_at(&mut magic, record * 8192).unwrap();
        assert_eq!(&magic, b"CGEB");
    }
    let seen = fs::metadata(folder.join("x.cgeb")).unwrap();
    assert_eq!(seen.size() as usize, batch.data.len());
    // Headers and tensors, without the padding of records.
    let stored = 64 * 3000 + batch.vectors.len() + batch.weights.len() + batch.selected.len();
    let counted = seen.blocks() as usize * 512;
    assert!((stored..stored + 65_536).contains(&counted), "{counted}, {stored} stored");
    let shape = |name: &str| {
        let mut value = [0; 64];
        let len = rustix::fs::getxattr(folder.join(name), "user.tierfs.shape", &mut value).unwrap();
        String::from_utf8(value[..len].to_vec()).unwrap()
    };
    assert_eq!([shape("x"), shape("x.weights"), shape("x.selected")], ["3000x1536", "3000x8", "3000x2"]);
}

#[test]
fn random_ranges_equal_the_whole_file_cached_and_direct() {
    let place = Place::new();
    let batches = [
        Batch::made(&place, "plain", "plain", [500, 384, 8, 2]),
        Batch::made(&place, "mixed", "mixed", [700, 100, 3, 5]),
        Batch::made(&place, "big", "big", [90, 1, 0, 0]),
        Batch::made(&place, "wide", "mixed", [9, 40_001, 255, 255]),
    ];
    for batch in &batches {
        place.import("demo/m", &[&batch.path], &[]);
    }
    let mounted = place.mount(&[]);
    let mut random = Random(5);
    for batch in &batches {
        let path = mounted.path("demo/m").join(batch.path.file_name().unwrap());
        let direct = open_direct(&path);
        let cached = fs::File::open(&path).unwrap();
        let len = batch.data.len();
        let mut pages = Aligned::new(1 << 20);
        for _ in 0..60 {
            let at = random.below(len / 4096) * 4096;
            let wanted = (random.below(256) + 1) * 4096;
            let got = read_at(&direct, pages.pages(wanted), at as u64);
            assert_eq!(got, wanted.min(len - at));
            assert_same(&pages.pages(wanted)[..got], &batch.data[at..at + got], "a direct range");
            let at = random.below(len);
            let mut out = vec![0; random.below(100_000) + 1];
            let got = read_at(&cached, &mut out, at as u64);
            assert_eq!(got, out.len().min(len - at));
            assert_same(&out[..got], &batch.data[at..at + got], "a cached range");
        }
        assert_same(&fs::read(&path).unwrap(), &batch.data, "all of it");
    }
}

#[test]
fn a_copied_batch_is_split_into_tensors_and_survives_a_crash() {
    let mut fixture = Fixture::new();
    let batch = Batch::made(&fixture.place, "src", "mixed", [300, 200, 8, 2]);
    fs::copy(&batch.path, fixture.path("y.cgeb")).unwrap();
    fs::copy(batch.index_path(), fixture.path("y.cgei")).unwrap();
    for _ in 0..2 {
        assert_same(&fixture.read("y.cgeb"), &batch.data, "the batch");
        assert_same(&fixture.read("y.cgei"), &batch.index, "the index");
        assert_same(&fixture.read("y"), &batch.vectors, "the vectors");
        assert_same(&fixture.read("y.weights"), &batch.weights, "the weights");
        assert_same(&fixture.read("y.selected"), &batch.selected, "the selected experts");
        assert_eq!(checked(&fixture.path("y.cgeb"), &fixture.path("y.cgei")).0, 300);
        fixture.crash();
    }
    // The file that was written releases the slot of its bytes.
    fixture.unmount();
}

#[test]
fn a_slowly_written_batch_is_recognized_at_close() {
    use std::io::Write;
    let fixture = Fixture::new();
    let batch = Batch::made(&fixture.place, "src", "plain", [40, 64, 0, 0]);
    let mut file = fs::File::create(fixture.path("y.cgeb")).unwrap();
    // Each sync finds a file that is a batch already, and continues.
    for part in batch.data.chunks(4096 * 7) {
        file.write_all(part).unwrap();
        file.sync_all().unwrap();
        assert_eq!(names(&fixture.path("")), ["y.cgeb"]);
        assert_eq!(names(&fixture.path(".tensors")), [""; 0]);
    }
    drop(file);
    assert_eq!(names(&fixture.path("")), ["y.cgeb"]);
    assert_eq!(names(&fixture.path(".tensors")), ["y"]);
    assert_same(&fixture.read("y.cgeb"), &batch.data, "the batch");
    assert_same(&fixture.read("y"), &batch.vectors, "the vectors");
}

#[test]
fn a_pinned_batch_is_read_from_its_copy_before_and_after_a_remount() {
    let mut fixture = Fixture::new();
    let batch = Batch::made(&fixture.place, "src", "mixed", [120, 300, 8, 2]);
    fs::copy(&batch.path, fixture.path("y.cgeb")).unwrap();
    support::set(&fixture.path("y.cgeb"), "pin", "1").unwrap();
    assert_same(&fixture.read("y.cgeb"), &batch.data, "the pinned batch");
    fixture.remount();
    assert_same(&fixture.read("y.cgeb"), &batch.data, "the pinned batch, mounted again");
    assert_same(&fixture.read("y"), &batch.vectors, "its vectors");
}

#[test]
fn forms_show_a_batch_as_stored_and_as_it_would_read_encoded() {
    let place = Place::new();
    let batch = Batch::made(&place, "x", "mixed", [150, 512, 8, 2]);
    place.import("demo/m", &[&batch.path, &batch.index_path()], &[]);
    let mounted = place.mount(&[]);
    let form = |path: &str| mounted.path("demo/m/.as").join(path);
    for path in ["cgeb/x.cgeb", "f16/x.cgeb"] {
        assert_same(&fs::read(form(path)).unwrap(), &batch.data, path);
    }
    assert_same(&fs::read(form("cgeb/x.cgei")).unwrap(), &batch.index, "the index");
    let encoded = fs::read(form("q8/x.cgeb")).unwrap();
    assert_eq!(encoded.len(), batch.data.len());
    assert_ne!(encoded, batch.data);
    // Its hashes are those of the bytes that the form shows; the index is computed from the served bytes.
    let (data, index) = (place.path("q8.cgeb"), place.path("q8.cgei"));
    fs::write(&data, &encoded).unwrap();
    let mut head = batch.index.clone();
    head[16..24].copy_from_slice(&blake3::hash(&encoded).as_bytes()[..8]);
    fs::write(&index, head).unwrap();
    assert!(checked(&data, &index).1 > 50);
    let sums = fs::read_to_string(form("sha256/SHA256SUMS")).unwrap();
    let listed = place.write("sums", sums);
    let output = support::shell(&mounted.path("demo/m"), &format!("sha256sum -c {}", listed.display()));
    assert!(output.status.success(), "{output:?}");
}
