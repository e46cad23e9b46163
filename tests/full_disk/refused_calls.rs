//! A full store, or a log without room: failed operations change nothing, stored files stay whole, and removals free
//! space at once for all collections.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::full_store::{Small, write};
use support::{
    Aligned, Random, WritableMapping, assert_same, container_of, npy_file, open_direct, read_at, wait_until,
};

impl Small {
    /// Fills the disk and the free space in the log of the collection.
    pub fn fill(&self) {
        self.fill_disk();
        let full =
            (0..10_000).find_map(|number| fs::create_dir(self.fixture.path(&format!("d{number}"))).err());
        assert_eq!(full.unwrap().raw_os_error(), Some(libc::ENOSPC));
    }

    pub fn fill_disk(&self) {
        let mut filler = fs::File::options().append(true).create(true).open(self.filler()).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
    }

    pub fn empty(&self) {
        fs::remove_file(self.filler()).unwrap();
    }

    pub fn filler(&self) -> std::path::PathBuf {
        self.store.join("filler")
    }

    pub fn sync(&self) {
        fs::write(self.fixture.mounted().path(".ctl/sync"), "now").unwrap();
    }
}

#[track_caller]
fn full<T: std::fmt::Debug>(done: std::io::Result<T>) {
    assert_eq!(done.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
}

fn truncate(path: &Path, bytes: u64) -> std::io::Result<()> {
    fs::File::options().write(true).open(path)?.set_len(bytes)
}

#[test]
fn space_freed_in_one_collection_serves_another_at_once() {
    let small = Small::new();
    let mut random = Random(5);
    let other = small.fixture.mounted().path("demo/other");
    fs::create_dir(&other).unwrap();
    let names: Vec<_> = (0..300).map(|number| other.join(format!("f{number}"))).collect();
    for name in &names {
        assert_eq!(write(name, &random.bytes(3000)), Ok(()));
    }
    small.fill_disk();
    for name in &names {
        fs::remove_file(name).unwrap();
    }
    let bytes = random.bytes(400_000);
    assert_eq!(write(&small.fixture.path("new"), &bytes), Ok(()));
    assert_same(&small.fixture.read("new"), &bytes, "what took its place");
}

#[test]
fn a_failed_close_leaves_one_version_that_is_logged_when_space_returns() {
    let mut small = Small::new();
    let mut random = Random(6);
    let (before, after) = (random.bytes(65_536), random.bytes(65_536));
    assert_eq!(write(&small.fixture.path("old"), &before), Ok(()));
    let old = fs::File::options().write(true).open(small.fixture.path("old")).unwrap();
    let new = fs::File::create(small.fixture.path("new")).unwrap();
    old.write_all_at(&after, 0).unwrap();
    new.write_all_at(&after, 0).unwrap();
    small.fill();
    for file in [old, new] {
        // Repeated failures do not lose the written bytes.
        (0..3).for_each(|_| full(file.sync_all()));
        // The close fails too, but its error is not visible here.
        drop(file);
    }
    for name in ["old", "new"] {
        assert_same(&small.fixture.read(name), &after, name);
    }
    small.empty();
    small.sync();
    small.fixture.crash();
    for name in ["old", "new"] {
        assert_same(&small.fixture.read(name), &after, name);
    }
    small.fixture.remount();
}

#[test]
fn every_name_shows_a_write_that_a_full_log_has_not_taken_yet() {
    let mut small = Small::new();
    let mut random = Random(14);
    let container = container_of(&mut random, &[("w", 100_000), ("u", 7), ("v", 7)]);
    assert_eq!(write(&small.fixture.path("m.safetensors"), &container), Ok(()));
    // Its page of the tier file has room for the later write, which lacks only room in the log.
    let u = fs::File::options().write(true).open(small.fixture.path("u")).unwrap();
    u.write_all_at(&[5, 6, 7, 0], 0).unwrap();
    drop(u);
    small.sync();
    let names = ["m.safetensors", ".tensors/m.safetensors/v", "v", ".as/npy/v.npy"];
    let ends = |small: &Small| {
        let direct = open_direct(&small.fixture.path("m.safetensors"));
        let mut buffer = Aligned::new(1 << 20);
        let count = read_at(&direct, buffer.pages(1 << 20), 0);
        let direct = buffer.pages(1 << 20)[..count].to_vec();
        let mut all: Vec<Vec<u8>> = names.iter().map(|name| small.fixture.read(name)).collect();
        all.push(direct);
        all.into_iter().map(|bytes| bytes[bytes.len() - 28..].to_vec()).collect::<Vec<_>>()
    };
    let mut wanted = ends(&small)[0].clone();
    wanted[12..16].copy_from_slice(&[1, 2, 3, 4]);
    small.fill();
    let v = fs::File::options().write(true).open(small.fixture.path("v")).unwrap();
    v.write_all_at(&[1, 2, 3, 4], 12).unwrap();
    full(v.sync_all());
    let check = |small: &Small, when: &str| {
        for (end, name) in ends(small).iter().zip(names.iter().chain(&["direct"])) {
            assert_eq!(*end, wanted, "{name} {when}");
        }
    };
    check(&small, "after a failed fsync");
    // A later write is shown as well.
    v.write_all_at(&[4, 4, 4, 4], 20).unwrap();
    wanted[20..24].copy_from_slice(&[4; 4]);
    drop(v);
    let check = |small: &Small, when: &str| {
        for (end, name) in ends(small).iter().zip(names.iter().chain(&["direct"])) {
            assert_eq!(*end, wanted, "{name} {when}");
        }
    };
    check(&small, "after a failed close");
    small.empty();
    small.sync();
    check(&small, "with room");
    small.fixture.crash();
    check(&small, "after a crash");
}

#[test]
fn a_mapped_write_without_room_is_refused_and_not_shown() {
    let mut small = Small::new();
    let mut random = Random(15);
    let container = container_of(&mut random, &[("w", 100_000)]);
    let path = small.fixture.path("m.safetensors");
    assert_eq!(write(&path, &container), Ok(()));
    small.sync();
    small.fill();
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut mapping = WritableMapping::whole(&file, libc::MAP_SHARED);
    for at in [0, 8192, container.len() - 8] {
        mapping.write(at, b"refused!");
        full(mapping.sync());
        // The kernel drops the pages after it has the answer.
        wait_until("the refused bytes to go", || {
            small.fixture.read("m.safetensors") == container && mapping.bytes()[..] == container[..]
        });
    }
    drop((mapping, file));
    small.empty();
    small.sync();
    assert_same(&small.fixture.read("m.safetensors"), &container, "with room");
    assert_same(&small.fixture.read("w"), &container[container.len() - 400_000..], "the tensor");
    small.fixture.crash();
    assert_same(&small.fixture.read("m.safetensors"), &container, "after a crash");
}

#[test]
fn a_file_keeps_its_size_when_a_truncation_or_growth_fails() {
    let mut small = Small::new();
    let mut random = Random(7);
    let bytes = random.bytes(50_000);
    for name in ["closed", "open"] {
        assert_eq!(write(&small.fixture.path(name), &bytes), Ok(()));
    }
    let open = fs::File::options().read(true).write(true).open(small.fixture.path("open")).unwrap();
    open.write_all_at(b"written", 40_000).unwrap();
    let mut written = bytes.clone();
    written[40_000..40_007].copy_from_slice(b"written");
    small.fill();
    for len in [1, 30_000, 49_999, 50_001, 90_000] {
        full(truncate(&small.fixture.path("closed"), len));
        full(open.set_len(len));
        for (name, bytes) in [("closed", &bytes), ("open", &written)] {
            assert_eq!(fs::metadata(small.fixture.path(name)).unwrap().len(), 50_000, "{name}, {len}");
            assert_same(&small.fixture.read(name), bytes, name);
        }
    }
    small.empty();
    drop(open);
    small.fixture.crash();
    assert_same(&small.fixture.read("closed"), &bytes, "the one that was closed");
    assert_same(&small.fixture.read("open"), &written, "the one that was open");
}

#[test]
fn a_small_file_keeps_its_bytes_and_size_when_it_cannot_grow() {
    let small = Small::new();
    let mut random = Random(8);
    let before = random.bytes(5000);
    assert_eq!(write(&small.fixture.path("f"), &before), Ok(()));
    let file = fs::File::options().read(true).write(true).open(small.fixture.path("f")).unwrap();
    small.fill_disk();
    let after = random.bytes(300_000);
    full(file.write_at(&after, 0));
    assert_eq!(file.metadata().unwrap().len(), 5000);
    let found = small.fixture.read("f");
    let is_either = |place: usize| found[place] == before[place] || found[place] == after[place];
    assert!(found.len() == 5000 && (0..5000).all(is_either), "bytes that nobody wrote");
    // Readers see the bytes that are written from now on.
    small.empty();
    file.write_all_at(b"later", 100).unwrap();
    assert_eq!(&small.fixture.read("f")[100..105], b"later");
}

#[test]
fn a_rename_succeeds_on_a_full_disk_and_its_tensors_appear_when_space_returns() {
    let small = Small::new();
    let elements = Random(9).floats(3000);
    let array = npy_file(&elements);
    assert_eq!(write(&small.fixture.path("x.bin"), &array), Ok(()));
    small.fill_disk();
    let renamed = fs::rename(small.fixture.path("x.bin"), small.fixture.path("x.npy"));
    assert_eq!(small.fixture.path("x.bin").exists(), renamed.is_err());
    renamed.unwrap();
    assert_same(&small.fixture.read("x.npy"), &array, "the file under its new name");
    assert!(!small.fixture.path("x").exists(), "there was room for it: the test shows nothing");
    small.empty();
    small.sync();
    assert_same(&small.fixture.read("x"), &array[array.len() - 12_000..], "its tensor");
}

/// Fills the space that the log reserves for removals, so that it takes no further record.
pub fn use_up_the_reserve(small: &Small, names: &[String]) {
    for name in names {
        if fs::remove_file(small.fixture.path(name)).is_err() {
            return;
        }
        small.fill_disk();
    }
    panic!("the log takes removals still: there are too few files to use its reserve up");
}

#[test]
fn a_file_that_cannot_be_truncated_to_zero_keeps_its_bytes_over_a_crash() {
    let mut small = Small::new();
    let mut random = Random(11);
    let bytes = random.bytes(20_000);
    assert_eq!(write(&small.fixture.path("f"), &bytes), Ok(()));
    let open = fs::File::options().read(true).write(true).open(small.fixture.path("f")).unwrap();
    // Names of empty files: their removal frees no space for a record.
    let names: Vec<String> = (0..1500).map(|number| format!("empty{number}")).collect();
    for name in &names {
        fs::write(small.fixture.path(name), b"").unwrap();
    }
    small.sync();
    small.fill();
    use_up_the_reserve(&small, &names);
    full(fs::write(small.fixture.path("f"), b"other"));
    full(open.set_len(0));
    assert_same(&small.fixture.read("f"), &bytes, "a file that could not be cut");
    small.empty();
    small.sync();
    open.write_all_at(b"and more", 20_012).unwrap();
    drop(open);
    let expected = [&bytes[..], &[0; 12], b"and more"].concat();
    assert_same(&small.fixture.read("f"), &expected, "written behind its end");
    small.fixture.crash();
    assert_same(&small.fixture.read("f"), &expected, "after a crash");
}

#[test]
fn a_failed_truncation_inside_a_damaged_tensor_keeps_every_tensor() {
    let mut fixture = support::Fixture::new();
    let mut random = Random(12);
    let container = support::container_of(&mut random, &[("a", 300_000), ("b", 300_000), ("c", 300_000)]);
    fs::write(fixture.path("m.safetensors"), &container).unwrap();
    fixture.unmount();
    // Flips a bit on the disk in the tensor in the middle.
    let data =
        fs::read_dir(fixture.place.store().join("demo/m/data")).unwrap().next().unwrap().unwrap().path();
    let at = (container.len() - 900_000 * 4 + 450_000 * 4) as u64;
    let file = fs::File::options().read(true).write(true).open(data).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    drop(file);
    fixture.mount();
    let open = fs::File::options().read(true).write(true).open(fixture.path("m.safetensors")).unwrap();
    assert_eq!(open.set_len(at + 10).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(open.metadata().unwrap().len(), container.len() as u64);
    // A later write into the first tensor is logged, and all tensors remain.
    let begin = container.len() - 3_600_000;
    open.write_all_at(&container[begin..begin + 8], begin as u64).unwrap();
    drop(open);
    for name in ["a", "c"] {
        let size = fs::metadata(fixture.path(name)).unwrap_or_else(|error| panic!("{name}: {error}")).len();
        assert_eq!(size, 1_200_000, "{name}");
    }
    let end = container.len() - 1_200_000;
    assert_same(&fixture.read("c"), &container[end..], "the tensor behind the cut");
    assert_eq!(fs::metadata(fixture.path("m.safetensors")).unwrap().len(), container.len() as u64);
}

#[test]
fn a_collection_with_remains_of_an_import_opens_on_a_full_disk_and_is_cleaned_later() {
    use std::sync::Arc;
    use tierfs::format::log::catalog::{Entry, Extent, ObjectEntry};
    use tierfs::model::{Dtype, ObjectId, SeedId, TensorId};
    use tierfs::store::Touched;
    use tierfs::store::disk::files::FileDisk;
    use tierfs::store::{Access, Store};

    let mut small = Small::new();
    let bytes = Random(13).bytes(30_000);
    assert_eq!(write(&small.fixture.path("f"), &bytes), Ok(()));
    small.fixture.unmount();
    {
        // The remains of a killed import: objects that no file has.
        let store = Store::open(Arc::new(FileDisk::new(&small.store)), Access::Write, "a test").unwrap();
        let collection = store.collection("demo", "m").unwrap();
        let (extent, _) = collection.create_data_file().unwrap();
        for number in 1..=200_u64 {
            let entry = ObjectEntry {
                id: ObjectId(u128::from(number)),
                tensor: TensorId(1),
                seed: SeedId(0),
                creation: number,
                dtype: Dtype::U8,
                bytes: 0,
                block_bytes: 16 << 10,
                extent: Some(Extent { file: extent, offset: 0 }),
                parent: None,
            };
            let add = |batch: &mut tierfs::store::Batch, _: &_| {
                batch.entry(Entry::Object(entry));
                Ok(())
            };
            collection.commit(Touched::default(), add).unwrap();
        }
    }
    // Gives up the space that the log has reserved, as a copy of the store does.
    let log = small.store.join("demo/m/meta.log");
    let copy = fs::read(&log).unwrap();
    fs::remove_file(&log).unwrap();
    fs::write(&log, &copy).unwrap();
    small.fill_disk();
    small.fixture.mount();
    assert_same(&small.fixture.read("f"), &bytes, "a file of a full disk");
    assert_eq!(fs::read_dir(small.fixture.path("")).unwrap().count(), 1);
    small.empty();
    fs::remove_file(small.fixture.path("f")).unwrap();
    small.sync();
    small.fixture.unmount();
    assert_eq!(small.fixture.data_files(), 0, "the remains are there still");
}
