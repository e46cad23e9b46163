//! Containers that change: their tensors change with them, for every reader.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tierfs::model::NameIn;
use tierfs::store::ROOT;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, Store};
use tierfs::vfs::open;

use support::{
    Fixture, Mapping, Place, Random, assert_same, container_of, header_of, npy_file, safetensors_file,
    script, tensors_of, wait_until,
};

const TENSORS: [(&str, usize); 3] = [("a", 30_000), ("deep/b", 5001), ("c", 9)];

fn placed(fixture: &Fixture, seed: u64) -> Vec<u8> {
    let bytes = container_of(&mut Random(seed), &TENSORS);
    fs::write(fixture.path("m.safetensors"), &bytes).unwrap();
    bytes
}

/// The container reads as `bytes`, and every tensor as its part of them.
#[track_caller]
fn check(fixture: &Fixture, name: &str, bytes: &[u8]) {
    let folder = name.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
    assert_same(&fixture.read(name), bytes, name);
    for (tensor, data) in tensors_of(bytes) {
        assert_same(&fixture.read(&format!("{folder}{tensor}")), &data, &tensor);
    }
}

fn denied<T: std::fmt::Debug>(result: std::io::Result<T>) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EPERM));
}

#[test]
fn a_write_through_either_name_is_seen_through_both_at_close() {
    // A reader whom the kernel serves from the data file keeps the version that it opened.
    let mut fixture = Fixture::unmounted(Place::new());
    fixture.mount_with(&["--allow-other", "--create", "--passthrough", "off"]);
    fs::create_dir_all(fixture.path("")).unwrap();
    let mut bytes = placed(&fixture, 1);
    let start = bytes.len() - (30_000 + 5001 + 9) * 4;
    for name in ["m.safetensors", "a", "deep/b", "c"] {
        fixture.read(name);
    }
    let mappings = ["m.safetensors", "a"].map(|name| Mapping::of(&fixture.path(name), libc::MAP_SHARED));
    let readers = ["m.safetensors", "a"].map(|name| fs::File::open(fixture.path(name)).unwrap());
    let mut random = Random(2);
    for round in 0..12 {
        let at = random.below(30_000 * 4 - 9000);
        let len = 1 + random.below(9000);
        let new = random.bytes(len);
        fixture.place.write("patch", &new);
        let (name, seek) = if round % 2 == 0 { (".tensors/a", at) } else { ("m.safetensors", start + at) };
        let from = fixture.place.path("patch");
        let dd =
            format!("dd if={} of={name} conv=notrunc oflag=seek_bytes seek={seek} bs=4000", from.display());
        script(&fixture.path(""), &dd).ok();
        bytes[start + at..start + at + len].copy_from_slice(&new);
        check(&fixture, "m.safetensors", &bytes);
        for (place, wanted) in [&bytes[..], &bytes[start..start + 120_000]].into_iter().enumerate() {
            let mut found = vec![0; wanted.len()];
            readers[place].read_exact_at(&mut found, 0).unwrap();
            assert_same(&found, wanted, "a reader that was there before");
            assert_same(mappings[place].bytes(), wanted, "a mapping that was there before");
        }
    }
    drop((mappings, readers));
    fixture.crash();
    check(&fixture, "m.safetensors", &bytes);
    fixture.remount();
    check(&fixture, "m.safetensors", &bytes);
}

#[test]
fn a_background_sync_is_seen_through_the_other_name_at_close() {
    let fixture = Fixture::new();
    let mut bytes = placed(&fixture, 14);
    let start = bytes.len() - (30_000 + 5001 + 9) * 4;
    fixture.read("m.safetensors");
    let file = fs::File::options().write(true).open(fixture.path("a")).unwrap();
    file.write_all_at(&[9; 5000], 100).unwrap();
    // A sync by another program.
    fs::write(fixture.path("other"), b"x").unwrap();
    let log = || fs::metadata(fixture.place.store().join("demo/m/meta.log")).unwrap().modified().unwrap();
    let before = log();
    wait_until("the sync in the background", || log() > before);
    drop(file);
    bytes[start + 100..start + 5100].fill(9);
    check(&fixture, "m.safetensors", &bytes);
}

#[test]
fn another_container_copied_over_one_replaces_its_tensors() {
    let mut fixture = Fixture::new();
    placed(&fixture, 3);
    let old = fs::File::open(fixture.path("a")).unwrap();
    let first = fixture.read("a");
    let other = container_of(&mut Random(4), &[("a", 7), ("new", 40_000), ("deep/er/x", 3)]);
    fixture.place.write("other", &other);
    let copy = format!("cp {} m.safetensors", fixture.place.path("other").display());
    script(&fixture.path(""), &copy).ok();
    check(&fixture, "m.safetensors", &other);
    wait_until("the old names' end", || !fixture.path("c").exists() && !fixture.path("deep/b").exists());
    let mut found = vec![0; first.len()];
    old.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &first, "a tensor that was open");
    fixture.crash();
    check(&fixture, "m.safetensors", &other);
    assert!(!fixture.path("c").exists() && !fixture.path("deep/b").exists());
}

#[test]
fn a_broken_header_makes_the_file_plain_until_it_is_repaired() {
    let mut fixture = Fixture::new();
    let bytes = placed(&fixture, 5);
    for _ in 0..2 {
        let file = fs::File::options().write(true).open(fixture.path("m.safetensors")).unwrap();
        file.write_all_at(b"garbage!garbage!", 0).unwrap();
        drop(file);
        wait_until("the tensors' end", || !fixture.path("a").exists() && !fixture.path("deep/b").exists());
        assert!(fixture.attribute("m.safetensors", "why").contains("plain"));
        let mut broken = bytes.clone();
        broken[..16].copy_from_slice(b"garbage!garbage!");
        assert_same(&fixture.read("m.safetensors"), &broken, "the broken file");
        fixture.crash();
        assert_same(&fixture.read("m.safetensors"), &broken, "the broken file");
        let file = fs::File::options().write(true).open(fixture.path("m.safetensors")).unwrap();
        file.write_all_at(&bytes[..16], 0).unwrap();
        drop(file);
        wait_until("the tensors", || fixture.path("a").exists());
        check(&fixture, "m.safetensors", &bytes);
    }
    fixture.remount();
    check(&fixture, "m.safetensors", &bytes);
}

#[test]
fn an_array_that_is_renamed_shows_its_tensor_under_the_new_name() {
    let mut fixture = Fixture::new();
    let data = Random(6).floats(20_000);
    fs::write(fixture.path("x.npy"), npy_file(&data)).unwrap();
    assert_same(&fixture.read("x"), &data, "x");
    fs::rename(fixture.path("x.npy"), fixture.path("y.npy")).unwrap();
    wait_until("the old name's end", || !fixture.path("x").exists());
    assert_same(&fixture.read("y"), &data, "y");
    fs::rename(fixture.path("y.npy"), fixture.path("y.bin")).unwrap();
    assert_same(&fixture.read("y.bin"), &npy_file(&data), "y.bin");
    fixture.remount();
    assert_same(&fixture.read("y.bin"), &npy_file(&data), "y.bin");
    assert!(!fixture.path("x").exists());
}

#[test]
fn a_container_that_moves_takes_its_tensors_along() {
    let mut fixture = Fixture::new();
    let bytes = placed(&fixture, 7);
    fs::create_dir(fixture.path("sub")).unwrap();
    fs::rename(fixture.path("m.safetensors"), fixture.path("sub/n.safetensors")).unwrap();
    wait_until("the old names' end", || !fixture.path("a").exists() && !fixture.path("deep/b").exists());
    check(&fixture, "sub/n.safetensors", &bytes);
    fs::rename(fixture.path("sub"), fixture.path("bus")).unwrap();
    check(&fixture, "bus/n.safetensors", &bytes);
    fixture.remount();
    check(&fixture, "bus/n.safetensors", &bytes);
    assert!(!fixture.path("a").exists() && !fixture.path("sub").exists());
}

#[test]
fn a_tensor_cannot_be_cut_renamed_linked_or_removed_alone_and_a_file_can_take_its_name() {
    let mut fixture = Fixture::new();
    let bytes = placed(&fixture, 8);
    let tensor = fs::File::options().write(true).open(fixture.path("a")).unwrap();
    denied(tensor.set_len(4));
    denied(tensor.set_len(1 << 20));
    denied(tensor.write_all_at(b"x", 120_000));
    denied(fs::rename(fixture.path("a"), fixture.path("z")));
    denied(fs::hard_link(fixture.path("a"), fixture.path("z")));
    denied(fs::File::create(fixture.path("a")));
    denied(fs::remove_file(fixture.path("a")));
    denied(fs::remove_dir(fixture.path(".tensors/deep")));
    drop(tensor);
    check(&fixture, "m.safetensors", &bytes);
    fs::write(fixture.path("other"), b"o").unwrap();
    fs::rename(fixture.path("other"), fixture.path("").join("a")).unwrap();
    for _ in 0..2 {
        assert_eq!(fixture.read("a"), b"o");
        assert_same(&fixture.read(".tensors/a"), &tensor_of(&bytes, "a"), "the tensor");
        assert_same(&fixture.read("m.safetensors"), &bytes, "the container");
        fixture.remount();
    }
    fs::remove_file(fixture.path("a")).unwrap();
    check(&fixture, "m.safetensors", &bytes);
    fs::remove_file(fixture.path("m.safetensors")).unwrap();
    wait_until("the names' end", || !fixture.path("c").exists() && !fixture.path("deep/b").exists());
    fixture.remount();
    assert!(!fixture.path("c").exists());
    assert_eq!(fixture.data_files(), 0);
}

fn tensor_of(container: &[u8], name: &str) -> Vec<u8> {
    tensors_of(container).into_iter().find(|(known, _)| known == name).unwrap().1
}

#[test]
fn a_name_that_a_file_or_another_container_has_leads_there() {
    let mut fixture = Fixture::new();
    fs::write(fixture.path("a"), b"mine").unwrap();
    let bytes = placed(&fixture, 9);
    assert_eq!(fixture.read("a"), b"mine");
    assert_same(&fixture.read(".tensors/a"), &tensor_of(&bytes, "a"), "the tensor");
    let second = safetensors_file(&header_of(&[("c", 9), ("d", 5)]), &Random(10).floats(14));
    fs::write(fixture.path("second.safetensors"), &second).unwrap();
    let c = tensor_of(&bytes, "c");
    assert_same(&fixture.read("c"), &c, "c");
    let why = fixture.attribute("second.safetensors", "why");
    assert!(why.ends_with("below .tensors/second.safetensors: c"), "{why}");
    assert_same(&fixture.read(".tensors/second.safetensors/c"), &tensor_of(&second, "c"), "second c");
    assert!(support::try_get(&fixture.path("m.safetensors"), "why").is_err());
    fixture.remount();
    assert_eq!(fixture.read("a"), b"mine");
    assert_same(&fixture.read("c"), &c, "c");
    assert_same(&fixture.read("m.safetensors"), &bytes, "the container");
    assert_same(&fixture.read("second.safetensors"), &second, "the second container");
}

#[test]
fn a_daemon_recognizes_a_file_that_was_renamed_just_before_the_last_one_was_killed() {
    let mut fixture = Fixture::new();
    let (first, second) = ([21, 22]).map(|seed| container_of(&mut Random(seed), &TENSORS)).into();
    fs::write(fixture.path("m.safetensors"), &first).unwrap();
    fs::write(fixture.path(".m.part"), &second).unwrap();
    fixture.unmount();
    {
        let disk = Arc::new(FileDisk::new(&fixture.place.store()));
        let store = Store::open(disk, Access::Write, "a test").unwrap();
        let collection = store.collection("demo", "m").unwrap();
        open::rename(
            &collection,
            NameIn { directory: ROOT, name: b".m.part" },
            NameIn { directory: ROOT, name: b"m.safetensors" },
            false,
        )
        .unwrap();
    }
    fixture.mount();
    check(&fixture, "m.safetensors", &second);
    fixture.remount();
    check(&fixture, "m.safetensors", &second);
}
