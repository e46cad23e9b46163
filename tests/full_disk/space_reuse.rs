//! Space is neither lost nor used twice.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use tierfs::model::{CollectionName, Owner};
use tierfs::store::Collection;
use tierfs::store::ROOT;
use tierfs::store::Verify;
use tierfs::store::disk::Disk;
use tierfs::vfs::open::{self, Changes, OpenFiles};

use crate::history::{History, STORE};
use crate::power_cut_disk::CutDisk;
use support::{Fixture, Random, assert_same, container_of, scale, wait_until};

#[test]
fn no_two_blocks_share_an_extent_and_files_stay_bounded() {
    for seed in 0..6 * u64::from(scale()) {
        let cut_disk = CutDisk::default();
        let disk: Arc<dyn Disk> = Arc::new(cut_disk.clone());
        let mut history = History::new(&disk, seed);
        for step in 0..300 {
            history.step();
            if step % 10 == 0 {
                history.flush_all();
                history.sync();
                History::check_owners(&history.collection, |path| cut_disk.len(path));
                History::check(
                    &history.names.clone(),
                    &history.collection,
                    &format!("seed {seed}, step {step}"),
                );
            }
        }
        let bytes = cut_disk.len("t/c/tier0.dat");
        assert!(bytes < 4 << 20, "seed {seed}: tier0.dat has {bytes} bytes for at most five files of 240 KB");
        let files = disk.list("t/c/data").unwrap().len();
        assert!(files <= 12, "seed {seed}: {files} data files");
    }
}

#[test]
fn a_sync_syncs_each_file_once_after_many_writes() {
    let cut_disk = CutDisk::default();
    let disk: Arc<dyn Disk> = Arc::new(cut_disk.clone());
    let mut history = History::new(&disk, 1);
    history.write_often("f", 200);
    let before = cut_disk.syncs();
    history.sync();
    let syncs = cut_disk.syncs() - before;
    assert!((2..=4).contains(&syncs), "{syncs} syncs");
}

#[test]
fn a_close_of_a_new_file_syncs_nothing() {
    let cut_disk = CutDisk::default();
    let disk: Arc<dyn Disk> = Arc::new(cut_disk.clone());
    disk.create_directory("t").unwrap();
    let collection = Arc::new(
        Collection::create(&disk, STORE, CollectionName::new("t", "c"), 1, Owner { uid: 0, gid: 0 }, 0o755)
            .unwrap(),
    );
    let table = OpenFiles::default();
    let mut random = Random(3);
    let before = cut_disk.syncs();
    for (name, bytes) in [
        ("small", random.bytes(700)),
        ("large", random.bytes(300_000)),
        ("model.safetensors", container_of(&mut random, &[("a", 40_000), ("b", 3)])),
        ("broken.safetensors", random.bytes(30_000)),
        ("empty", Vec::new()),
    ] {
        let node = open::create(&collection, ROOT, name.as_bytes(), 0o644, Owner { uid: 0, gid: 0 }).unwrap();
        let open_file = table.open(&collection, node, Verify::First).unwrap();
        open_file.write(0, &bytes).unwrap();
        open_file.flush_closed(&mut Changes::default()).unwrap();
        drop(open_file);
        assert_eq!(cut_disk.syncs() - before, 0, "{name}");
    }
}

#[test]
fn long_overwriting_does_not_grow_the_store() {
    let mut fixture = Fixture::new();
    let mut random = Random(2);
    let mut expected = container_of(&mut random, &[("w", 512 * 1024)]);
    fs::write(fixture.path("m.safetensors"), &expected).unwrap();
    let start = expected.len() - (2 << 20);
    let mut highest = 0;
    for round in 0..60 {
        let file = fs::File::options().write(true).open(fixture.path("w")).unwrap();
        for _ in 0..10 {
            let at = random.below((2 << 20) - 20_000);
            let len = 1 + random.below(20_000);
            let new = random.bytes(len);
            file.write_all_at(&new, at as u64).unwrap();
            expected[start + at..start + at + len].copy_from_slice(&new);
        }
        file.sync_all().unwrap();
        drop(file);
        highest = highest.max(fs::metadata(fixture.place.store().join("demo/m/tier0.dat")).unwrap().len());
        if round == 30 {
            fixture.crash();
        }
    }
    // All blocks once, and a second time those of the rounds that are not durable yet.
    assert!(highest < 5 << 20, "tier0.dat grew to {highest} bytes");
    assert_same(&fixture.read("m.safetensors"), &expected, "the container");
    fixture.remount();
    assert_same(&fixture.read("m.safetensors"), &expected, "after a check");
}

#[test]
fn an_open_version_keeps_its_space() {
    let mut fixture = Fixture::new();
    let mut random = Random(3);
    let mut open: Vec<(fs::File, Vec<u8>)> = Vec::new();
    for round in 0..60 {
        let size = [3000, 15_000, 150_000][round % 3];
        let bytes = random.bytes(size + round);
        let name = format!("f{}", round % 4);
        match round % 5 {
            0 => {
                fs::write(fixture.path(".t"), &bytes).unwrap();
                fs::rename(fixture.path(".t"), fixture.path(&name)).unwrap();
            }
            1 if fixture.path(&name).exists() => {
                fs::remove_file(fixture.path(&name)).unwrap();
                fs::write(fixture.path(&name), &bytes).unwrap();
            }
            _ => {
                // Not in place: that would change the file that is open.
                fs::write(fixture.path(".u"), &bytes).unwrap();
                fs::rename(fixture.path(".u"), fixture.path(&name)).unwrap();
            }
        }
        let file = fs::File::open(fixture.path(&name)).unwrap();
        file.sync_all().unwrap();
        open.push((file, bytes));
        if open.len() > 12 {
            open.swap_remove(random.below(12));
        }
        for (file, bytes) in &open {
            // Reads past the kernel's cache too.
            rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let mut found = vec![0; bytes.len()];
            file.read_exact_at(&mut found, 0).unwrap();
            assert_same(&found, bytes, "a version that is open");
        }
    }
    drop(open);
    fixture.unmount();
    assert!(fixture.data_files() <= 4, "{} data files", fixture.data_files());
}

#[test]
fn a_file_unlinked_before_its_close_leaves_nothing() {
    let mut fixture = Fixture::new();
    for size in [1000, 900_000] {
        let file = fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(fixture.path("t"))
            .unwrap();
        let bytes = Random(4).bytes(size);
        fs::remove_file(fixture.path("t")).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let mut found = vec![0; size];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &bytes, "a file without a name");
        drop(file);
        // Truncated to zero and written again: the old bytes go first.
        fs::write(fixture.path("u"), &bytes).unwrap();
        fs::write(fixture.path("u"), &bytes[..size / 2]).unwrap();
    }
    support::wait_until("the data files' end", || fixture.data_files() <= 1);
    assert_same(&fixture.read("u"), &Random(4).bytes(900_000)[..450_000], "u");
    assert!(fixture.allocated("tier0.dat") < 1 << 20);
    fixture.remount();
}

/// A GGUF file with one matrix of f32, and bytes behind it that no tensor has.
fn gguf_of(tensor: &[u8], behind: usize) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let columns = 256_u64;
    let rows = tensor.len() as u64 / 4 / columns;
    let mut bytes = [&b"GGUF"[..], &3_u32.to_le_bytes(), &1_u64.to_le_bytes(), &1_u64.to_le_bytes()].concat();
    // Enough metadata for the tensor to begin at a page.
    bytes.extend([text("note"), 8_u32.to_le_bytes().to_vec()].concat());
    let entry = [text("w"), 2_u32.to_le_bytes().to_vec()].concat().len() + 16 + 4 + 8;
    bytes.extend(text(&"n".repeat(8192 - bytes.len() - 8 - entry)));
    bytes.extend([text("w"), 2_u32.to_le_bytes().to_vec()].concat());
    bytes.extend([columns.to_le_bytes(), rows.to_le_bytes()].concat());
    bytes.extend([&0_u32.to_le_bytes()[..], &0_u64.to_le_bytes()].concat());
    assert_eq!(bytes.len(), 8192);
    bytes.extend(tensor);
    bytes.extend(vec![7; behind]);
    bytes
}

#[test]
fn an_open_tensor_stays_readable_when_its_container_is_rewritten_and_moved() {
    let fixture = Fixture::new();
    let values = |value: f32| value.to_le_bytes();
    let tensor: Vec<u8> = (0..512 << 10).flat_map(|at| values((at as f32 * 0.37).sin())).collect();
    fs::write(fixture.path("m.gguf"), gguf_of(&tensor, 100_000)).unwrap();
    let set = |name: &str, key: &str, value: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(fixture.path(name), format!("user.tierfs.{key}"), value.as_bytes(), flags)
            .unwrap();
    };
    let reader = fs::File::open(fixture.path("w")).unwrap();
    // The same tensor in blocks of another length, at the same place.
    let file = fs::OpenOptions::new().write(true).open(fixture.path("m.gguf")).unwrap();
    file.set_len(8192 + tensor.len() as u64).unwrap();
    drop(file);
    assert_eq!(fixture.data_files(), 1, "it was copied: the test tests nothing");
    set("m.gguf", "lossy", "allow");
    let allocated = || {
        let data = fixture.place.store().join("demo/m/data");
        let files = fs::read_dir(data).unwrap().map(|file| file.unwrap().metadata().unwrap().blocks());
        files.sum::<u64>() * 512
    };
    set("w", "tier", "q8:all");
    assert_eq!(fixture.attribute("w", "tier"), "q8");
    sync(&fixture);
    let mut found = vec![0; tensor.len()];
    reader.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &tensor, "the tensor that was open");
    drop(reader);
    wait_until("its space is given back", || {
        sync(&fixture);
        allocated() < tensor.len() as u64 / 2
    });
}

/// Syncs the collection, which frees released space.
fn sync(fixture: &Fixture) {
    fs::write(fixture.path("other"), b"x").unwrap();
    fs::File::open(fixture.path("other")).unwrap().sync_all().unwrap();
}
