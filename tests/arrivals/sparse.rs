//! Files that are holes for the most part: nobody reads or stores what was never written.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::support::{Random, npy_file, run};
use crate::world::World;

const HUGE: u64 = 64 << 30;

/// Bytes, and where they were written.
type Parts = Vec<(u64, Vec<u8>)>;

/// Bytes of the store's disk that are taken; without those of when blocks were used.
fn taken(world: &World) -> u64 {
    crate::support::files_below(&world.place.store())
        .iter()
        .filter(|file| !file.ends_with("access"))
        .map(|file| fs::metadata(world.place.store().join(file)).unwrap().blocks() * 512)
        .sum()
}

/// What is written where, and zeros around it.
fn check(world: &World, name: &str, bytes: u64, parts: &[(u64, Vec<u8>)]) {
    let file = fs::File::open(world.path(name)).unwrap();
    assert_eq!(file.metadata().unwrap().len(), bytes, "{name}");
    for (at, part) in parts {
        let from = at.saturating_sub(5000);
        let mut found = vec![1; (at - from) as usize + part.len() + 5000];
        let len = found.len().min((bytes - from) as usize);
        file.read_exact_at(&mut found[..len], from).unwrap();
        let begin = (at - from) as usize;
        assert!(found[begin..begin + part.len()] == part[..], "{name} at {at}");
        let around = found[..begin].iter().chain(&found[begin + part.len()..len]);
        assert!(around.clone().all(|byte| *byte == 0), "{name} around {at}");
    }
    let mut end = [1; 100];
    file.read_exact_at(&mut end, bytes / 3).unwrap();
    assert_eq!(end, [0; 100], "{name}");
}

#[test]
fn holes_of_gigabytes_are_neither_read_nor_stored() {
    let mut world = World::new();
    let mut random = Random(5);
    let mut files: Vec<(&str, u64, Parts)> = Vec::new();
    // Nothing but a hole.
    fs::File::create(world.path("empty")).unwrap().set_len(HUGE).unwrap();
    files.push(("empty", HUGE, vec![(HUGE - 1, vec![0])]));
    // Written here and there, the last first.
    let file = fs::File::create(world.path("sparse")).unwrap();
    file.set_len(HUGE + 77).unwrap();
    let mut parts = Vec::new();
    for at in [HUGE - 10_000, HUGE / 2 + 13, 1 << 20, 7] {
        let bytes = random.bytes(40_000.min((HUGE + 77 - at) as usize));
        file.write_all_at(&bytes, at).unwrap();
        parts.push((at, bytes));
    }
    drop(file);
    files.push(("sparse", HUGE + 77, parts));
    // Small first, in the log already, and grown then.
    for (name, len) in [("small", 100), ("large", 1 << 20)] {
        let bytes = random.bytes(len);
        fs::write(world.path(name), &bytes).unwrap();
        let file = fs::OpenOptions::new().append(true).open(world.path(name)).unwrap();
        file.set_len(HUGE).unwrap();
        file.sync_all().unwrap();
        (&file).write_all(b"the end").unwrap();
        drop(file);
        files.push((name, HUGE + 7, vec![(0, bytes), (HUGE, b"the end".to_vec())]));
    }
    // Cut, and grown again: nothing of what was cut comes back.
    let file = fs::File::create(world.path("cut")).unwrap();
    file.write_all_at(&random.bytes(3 << 20), 0).unwrap();
    file.set_len(1000).unwrap();
    file.set_len(HUGE).unwrap();
    let mut kept = vec![0; 1000];
    fs::File::open(world.path("cut")).unwrap().read_exact_at(&mut kept, 0).unwrap();
    drop(file);
    files.push(("cut", HUGE, vec![(0, kept)]));
    let all = |world: &World| files.iter().for_each(|(name, bytes, parts)| check(world, name, *bytes, parts));
    all(&world);
    fs::write(world.mounted().path(".ctl/sync"), "now").unwrap();
    let bytes = taken(&world);
    assert!(bytes < 64 << 20, "{bytes} bytes are taken");
    world.crash();
    all(&world);
    // A block of a hole is written later, and the file is whole.
    let file = fs::OpenOptions::new().write(true).open(world.path("sparse")).unwrap();
    file.write_all_at(b"late", 3 << 30).unwrap();
    drop(file);
    check(&world, "sparse", HUGE + 77, &[(3 << 30, b"late".to_vec())]);
    // What is left is sound; checking the holes would take its time.
    for name in ["empty", "sparse", "small", "large", "cut"] {
        fs::remove_file(world.path(name)).unwrap();
    }
    world.unmount();
    run(["fsck".as_ref(), world.place.store().as_os_str()]).ok();
}

#[test]
fn an_array_with_holes_is_recognized_and_its_checksums_hold() {
    let mut world = World::new();
    let mut data = vec![0; 40 << 20];
    data[13 << 20..(13 << 20) + 8].copy_from_slice(&Random(6).bytes(8));
    let array = npy_file(&data);
    let source = world.place.write("x.npy", &array);
    let path = world.path("x.npy");
    crate::world::script(
        &world.path(""),
        &format!("cp --sparse=always {} {}", source.display(), path.display()),
    )
    .ok();
    for _ in 0..2 {
        assert!(world.read("x.npy") == array && world.read("x") == data);
        let verified = fs::read_to_string(world.path(".ctl/verify/x.npy")).unwrap();
        assert_eq!(verified, "ok\n");
        world.crash();
        world.again();
    }
    assert!(taken(&world) < 16 << 20);
}
