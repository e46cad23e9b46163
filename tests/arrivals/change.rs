//! Containers that change: their tensors follow, whoever looks and however.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tierfs::open;
use tierfs::store::ROOT;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, Store};

use crate::support::{
    Mapping, Random, assert_same, container_of, header_of, npy_file, safetensors_file, wait_until,
};
use crate::world::{World, script, tensors_of};

const TENSORS: [(&str, usize); 3] = [("a", 30_000), ("deep/b", 5001), ("c", 9)];

fn placed(world: &World, seed: u64) -> Vec<u8> {
    let bytes = container_of(&mut Random(seed), &TENSORS);
    fs::write(world.path("m.safetensors"), &bytes).unwrap();
    bytes
}

/// The container reads as `bytes`, and every tensor as its part of them.
#[track_caller]
fn check(world: &World, name: &str, bytes: &[u8]) {
    let folder = name.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
    assert_same(&world.read(name), bytes, name);
    for (tensor, data) in tensors_of(bytes) {
        assert_same(&world.read(&format!("{folder}{tensor}")), &data, &tensor);
    }
}

fn denied<T: std::fmt::Debug>(result: std::io::Result<T>) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EPERM));
}

#[test]
fn a_write_through_either_name_is_seen_through_both_at_close() {
    let mut world = World::new();
    let mut bytes = placed(&world, 1);
    let start = bytes.len() - (30_000 + 5001 + 9) * 4;
    for name in ["m.safetensors", "a", "deep/b", "c"] {
        world.read(name);
    }
    let mappings = ["m.safetensors", "a"].map(|name| Mapping::of(&world.path(name), libc::MAP_SHARED));
    let readers = ["m.safetensors", "a"].map(|name| fs::File::open(world.path(name)).unwrap());
    let mut random = Random(2);
    for round in 0..12 {
        let at = random.below(30_000 * 4 - 9000);
        let len = 1 + random.below(9000);
        let new = random.bytes(len);
        world.place.write("patch", &new);
        let (name, seek) = if round % 2 == 0 { ("a", at) } else { ("m.safetensors", start + at) };
        let from = world.place.path("patch");
        let dd =
            format!("dd if={} of={name} conv=notrunc oflag=seek_bytes seek={seek} bs=4000", from.display());
        script(&world.path(""), &dd).ok();
        bytes[start + at..start + at + len].copy_from_slice(&new);
        check(&world, "m.safetensors", &bytes);
        for (place, wanted) in [&bytes[..], &bytes[start..start + 120_000]].into_iter().enumerate() {
            let mut found = vec![0; wanted.len()];
            readers[place].read_exact_at(&mut found, 0).unwrap();
            assert_same(&found, wanted, "a reader that was there before");
            assert_same(mappings[place].bytes(), wanted, "a mapping that was there before");
        }
    }
    drop((mappings, readers));
    world.crash();
    check(&world, "m.safetensors", &bytes);
    world.again();
    check(&world, "m.safetensors", &bytes);
}

#[test]
fn what_is_synced_in_the_background_is_seen_by_the_other_name_at_close() {
    let world = World::new();
    let mut bytes = placed(&world, 14);
    let start = bytes.len() - (30_000 + 5001 + 9) * 4;
    world.read("m.safetensors");
    let file = fs::File::options().write(true).open(world.path("a")).unwrap();
    file.write_all_at(&[9; 5000], 100).unwrap();
    // A sync of somebody else's.
    fs::write(world.path("other"), b"x").unwrap();
    let log = || fs::metadata(world.place.store().join("demo/m/meta.log")).unwrap().modified().unwrap();
    let before = log();
    wait_until("the sync in the background", || log() > before);
    drop(file);
    bytes[start + 100..start + 5100].fill(9);
    check(&world, "m.safetensors", &bytes);
}

#[test]
fn another_container_copied_over_one_replaces_its_tensors() {
    let mut world = World::new();
    placed(&world, 3);
    let old = fs::File::open(world.path("a")).unwrap();
    let first = world.read("a");
    let other = container_of(&mut Random(4), &[("a", 7), ("new", 40_000), ("deep/er/x", 3)]);
    world.place.write("other", &other);
    let copy = format!("cp {} m.safetensors", world.place.path("other").display());
    script(&world.path(""), &copy).ok();
    check(&world, "m.safetensors", &other);
    wait_until("the old names' end", || !world.path("c").exists() && !world.path("deep/b").exists());
    let mut found = vec![0; first.len()];
    old.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &first, "a tensor that was open");
    world.crash();
    check(&world, "m.safetensors", &other);
    assert!(!world.path("c").exists() && !world.path("deep/b").exists());
}

#[test]
fn a_header_that_breaks_makes_the_file_plain_until_it_is_repaired() {
    let mut world = World::new();
    let bytes = placed(&world, 5);
    for _ in 0..2 {
        let file = fs::File::options().write(true).open(world.path("m.safetensors")).unwrap();
        file.write_all_at(b"garbage!garbage!", 0).unwrap();
        drop(file);
        wait_until("the tensors' end", || !world.path("a").exists() && !world.path("deep/b").exists());
        assert!(world.attribute("m.safetensors", "why").contains("plain"));
        let mut broken = bytes.clone();
        broken[..16].copy_from_slice(b"garbage!garbage!");
        assert_same(&world.read("m.safetensors"), &broken, "the broken file");
        world.crash();
        assert_same(&world.read("m.safetensors"), &broken, "the broken file");
        let file = fs::File::options().write(true).open(world.path("m.safetensors")).unwrap();
        file.write_all_at(&bytes[..16], 0).unwrap();
        drop(file);
        wait_until("the tensors", || world.path("a").exists());
        check(&world, "m.safetensors", &bytes);
    }
    world.again();
    check(&world, "m.safetensors", &bytes);
}

#[test]
fn an_array_that_is_renamed_shows_its_tensor_under_the_new_name() {
    let mut world = World::new();
    let data = Random(6).floats(20_000);
    fs::write(world.path("x.npy"), npy_file(&data)).unwrap();
    assert_same(&world.read("x"), &data, "x");
    fs::rename(world.path("x.npy"), world.path("y.npy")).unwrap();
    wait_until("the old name's end", || !world.path("x").exists());
    assert_same(&world.read("y"), &data, "y");
    fs::rename(world.path("y.npy"), world.path("y.bin")).unwrap();
    assert_same(&world.read("y.bin"), &npy_file(&data), "y.bin");
    world.again();
    assert_same(&world.read("y.bin"), &npy_file(&data), "y.bin");
    assert!(!world.path("x").exists());
}

#[test]
fn a_container_that_moves_takes_its_tensors_along() {
    let mut world = World::new();
    let bytes = placed(&world, 7);
    fs::create_dir(world.path("sub")).unwrap();
    fs::rename(world.path("m.safetensors"), world.path("sub/n.safetensors")).unwrap();
    wait_until("the old names' end", || !world.path("a").exists() && !world.path("deep/b").exists());
    check(&world, "sub/n.safetensors", &bytes);
    fs::rename(world.path("sub"), world.path("bus")).unwrap();
    check(&world, "bus/n.safetensors", &bytes);
    world.again();
    check(&world, "bus/n.safetensors", &bytes);
    assert!(!world.path("a").exists() && !world.path("sub").exists());
}

#[test]
fn a_tensor_cannot_be_cut_renamed_or_linked_alone_and_its_name_can_go() {
    let mut world = World::new();
    let bytes = placed(&world, 8);
    let tensor = fs::File::options().write(true).open(world.path("a")).unwrap();
    denied(tensor.set_len(4));
    denied(tensor.set_len(1 << 20));
    denied(tensor.write_all_at(b"x", 120_000));
    denied(fs::rename(world.path("a"), world.path("z")));
    denied(fs::hard_link(world.path("a"), world.path("z")));
    denied(fs::File::create(world.path("a")));
    fs::write(world.path("other"), b"o").unwrap();
    denied(fs::rename(world.path("other"), world.path("a")));
    drop(tensor);
    check(&world, "m.safetensors", &bytes);
    fs::remove_file(world.path("a")).unwrap();
    assert!(!world.path("a").exists());
    assert_same(&world.read("m.safetensors"), &bytes, "the container");
    world.again();
    assert!(!world.path("a").exists());
    assert_same(&world.read("m.safetensors"), &bytes, "the container");
    fs::remove_file(world.path("m.safetensors")).unwrap();
    wait_until("the names' end", || !world.path("c").exists() && !world.path("deep/b").exists());
    world.again();
    assert!(!world.path("c").exists());
    assert_eq!(world.data_files(), 0);
}

#[test]
fn a_name_that_is_taken_stays_with_its_first_owner() {
    let mut world = World::new();
    fs::write(world.path("a"), b"mine").unwrap();
    let bytes = placed(&world, 9);
    assert_eq!(world.read("a"), b"mine");
    assert!(world.attribute("m.safetensors", "why").contains('a'));
    let second = safetensors_file(&header_of(&[("c", 9), ("d", 5)]), &Random(10).floats(14));
    fs::write(world.path("second.safetensors"), &second).unwrap();
    let c = tensors_of(&bytes).into_iter().find(|(name, _)| name == "c").unwrap().1;
    assert_same(&world.read("c"), &c, "c");
    assert!(world.attribute("second.safetensors", "why").contains('c'));
    world.again();
    assert_eq!(world.read("a"), b"mine");
    assert_same(&world.read("c"), &c, "c");
    assert_same(&world.read("m.safetensors"), &bytes, "the container");
    assert_same(&world.read("second.safetensors"), &second, "the second container");
}

#[test]
fn a_daemon_killed_between_a_rename_and_looking_at_the_file_leaves_the_looking_to_the_next_one() {
    let mut world = World::new();
    let (first, second) = ([21, 22]).map(|seed| container_of(&mut Random(seed), &TENSORS)).into();
    fs::write(world.path("m.safetensors"), &first).unwrap();
    fs::write(world.path(".m.part"), &second).unwrap();
    world.unmount();
    {
        let disk = Arc::new(FileDisk::new(&world.place.store()));
        let store = Store::open(disk, Access::Write, "a test").unwrap();
        let collection = store.collection("demo", "m").unwrap();
        open::rename(&collection, (ROOT, b".m.part"), (ROOT, b"m.safetensors"), false).unwrap();
    }
    world.mount();
    check(&world, "m.safetensors", &second);
    world.again();
    check(&world, "m.safetensors", &second);
}
