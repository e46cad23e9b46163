//! Files that consist of holes for the most part: unwritten ranges are neither read nor stored.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};

use support::{Fixture, Random, npy_file};

const HUGE: u64 = 64 << 30;

/// Bytes, and where they were written.
type Parts = Vec<(u64, Vec<u8>)>;

/// Allocated bytes of the store's disk, without the file of access times.
fn taken(fixture: &Fixture) -> u64 {
    support::files_below(&fixture.place.store())
        .iter()
        .filter(|file| !file.ends_with("access"))
        .map(|file| fs::metadata(fixture.place.store().join(file)).unwrap().blocks() * 512)
        .sum()
}

/// The writes, with zeros around them.
fn check(fixture: &Fixture, name: &str, bytes: u64, parts: &[(u64, Vec<u8>)]) {
    let file = fs::File::open(fixture.path(name)).unwrap();
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
    let mut fixture = Fixture::new();
    let mut random = Random(5);
    let mut files: Vec<(&str, u64, Parts)> = Vec::new();
    // Nothing but a hole.
    fs::File::create(fixture.path("empty")).unwrap().set_len(HUGE).unwrap();
    files.push(("empty", HUGE, vec![(HUGE - 1, vec![0])]));
    // Written at several places, the last one first.
    let file = fs::File::create(fixture.path("sparse")).unwrap();
    file.set_len(HUGE + 77).unwrap();
    let mut parts = Vec::new();
    for at in [HUGE - 10_000, HUGE / 2 + 13, 1 << 20, 7] {
        let bytes = random.bytes(40_000.min((HUGE + 77 - at) as usize));
        file.write_all_at(&bytes, at).unwrap();
        parts.push((at, bytes));
    }
    drop(file);
    files.push(("sparse", HUGE + 77, parts));
    // A small file that is in the log before it grows.
    for (name, len) in [("small", 100), ("large", 1 << 20)] {
        let bytes = random.bytes(len);
        fs::write(fixture.path(name), &bytes).unwrap();
        let file = fs::OpenOptions::new().append(true).open(fixture.path(name)).unwrap();
        file.set_len(HUGE).unwrap();
        file.sync_all().unwrap();
        (&file).write_all(b"the end").unwrap();
        drop(file);
        files.push((name, HUGE + 7, vec![(0, bytes), (HUGE, b"the end".to_vec())]));
    }
    // Truncated and grown again: none of the cut bytes returns.
    let file = fs::File::create(fixture.path("cut")).unwrap();
    file.write_all_at(&random.bytes(3 << 20), 0).unwrap();
    file.set_len(1000).unwrap();
    file.set_len(HUGE).unwrap();
    let mut kept = vec![0; 1000];
    fs::File::open(fixture.path("cut")).unwrap().read_exact_at(&mut kept, 0).unwrap();
    drop(file);
    files.push(("cut", HUGE, vec![(0, kept)]));
    let all =
        |fixture: &Fixture| files.iter().for_each(|(name, bytes, parts)| check(fixture, name, *bytes, parts));
    all(&fixture);
    fs::write(fixture.mounted().path(".ctl/sync"), "now").unwrap();
    let bytes = taken(&fixture);
    assert!(bytes < 64 << 20, "{bytes} bytes are taken");
    fixture.crash();
    all(&fixture);
    // A later write to a block of a hole leaves the file whole.
    let file = fs::OpenOptions::new().write(true).open(fixture.path("sparse")).unwrap();
    file.write_all_at(b"late", 3 << 30).unwrap();
    drop(file);
    check(&fixture, "sparse", HUGE + 77, &[(3 << 30, b"late".to_vec())]);
    fixture.unmount();
}

/// Peak resident memory of the daemon in KiB.
fn peak_kib(fixture: &Fixture) -> u64 {
    let pid = fixture.mounted().daemon().unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn log_bytes(fixture: &Fixture) -> u64 {
    fs::metadata(fixture.place.store().join("demo/m/meta.log")).unwrap().len()
}

#[test]
fn a_hole_of_terabytes_costs_no_memory_no_log_and_no_time() {
    let mut fixture = Fixture::new();
    fs::write(fixture.path("small"), b"x").unwrap();
    fs::read(fixture.path(".ctl/blocks/small")).unwrap();
    let before = (peak_kib(&fixture), log_bytes(&fixture));
    let mut files: Vec<(&str, u64, Parts)> = Vec::new();
    let (huge, bytes) = (2_u64 << 40, Random(8).bytes(300_000));
    for name in ["empty", "sparse"] {
        let file = fs::File::create(fixture.path(name)).unwrap();
        file.set_len(huge).unwrap();
        let mut parts = Vec::new();
        if name == "sparse" {
            for at in [0, (1 << 40) - 77, huge - 300_000] {
                file.write_all_at(&bytes, at).unwrap();
                parts.push((at, bytes.clone()));
            }
        }
        drop(file);
        files.push((name, huge, parts));
    }
    // Truncated and grown repeatedly: used ranges of the data file are not taken for zeros, and are not stored.
    let file = fs::File::create(fixture.path("cut")).unwrap();
    for len in [huge, 1000, huge / 2, 0, huge, huge - 5] {
        file.write_all_at(b"some bytes", 100.min(len)).unwrap();
        file.set_len(len).unwrap();
        file.sync_all().unwrap();
    }
    file.write_all_at(b"more", huge / 5).unwrap();
    file.set_len(huge).unwrap();
    drop(file);
    files.push(("cut", huge, vec![(huge / 5, b"more".to_vec())]));
    // A small file that is in the log before it grows.
    fs::write(fixture.path("grown"), b"first").unwrap();
    fs::OpenOptions::new().write(true).open(fixture.path("grown")).unwrap().set_len(huge).unwrap();
    files.push(("grown", huge, vec![(0, b"first".to_vec())]));
    fs::write(fixture.mounted().path(".ctl/sync"), "now").unwrap();
    let all = |fixture: &Fixture| {
        for (name, bytes, parts) in &files {
            check(fixture, name, *bytes, parts);
            let table = fs::read_to_string(fixture.path(".ctl/blocks").join(name)).unwrap();
            assert!(table.lines().count() < 30, "{table}");
            let verified = fs::read_to_string(fixture.path(".ctl/verify").join(name)).unwrap();
            assert_eq!(verified, "ok\n", "{name}");
            let extents = fs::read_to_string(fixture.path(".ctl/extents").join(name)).unwrap();
            let extents: serde_json::Value = serde_json::from_str(&extents).unwrap();
            assert!(extents.as_array().unwrap().len() < 30, "{extents}");
        }
    };
    all(&fixture);
    fs::write(fixture.path(".ctl/prefetch"), "empty\nsparse\ncut\ngrown").unwrap();
    fixture.mounted().job(".ctl/scrub", "start");
    fixture.mounted().job(".ctl/compact", "start");
    all(&fixture);
    let (peak, log) = (peak_kib(&fixture) - before.0, log_bytes(&fixture) - before.1);
    println!("{peak} KiB of memory, {log} bytes of the log, {} bytes of the disk", taken(&fixture));
    assert!(peak < 64 << 10, "{peak} KiB");
    assert!(log < 64 << 10, "{log} bytes of the log");
    assert!(taken(&fixture) < 16 << 20, "{} bytes are taken", taken(&fixture));
    fixture.crash();
    all(&fixture);
    fixture.remount();
    all(&fixture);
    let access = fixture.place.store().join("demo/m/access");
    assert!(fs::metadata(&access).is_ok_and(|found| found.len() < 4096), "{access:?}");
    let peak = peak_kib(&fixture);
    assert!(peak < before.0 + (64 << 10), "{peak} KiB");
}

#[test]
fn the_table_of_many_blocks_is_generated_while_it_is_read() {
    let fixture = Fixture::new();
    let file = fs::File::create(fixture.path("striped")).unwrap();
    let count = 20_000_u64;
    for block in 0..count {
        file.write_all_at(b"x", 2 * block * 65_536).unwrap();
    }
    drop(file);
    // Without this a periodic sync of all these blocks could come between the two measurements.
    fs::write(fixture.mounted().path(".ctl/sync"), "now").unwrap();
    fs::write(fixture.path("small"), b"x").unwrap();
    fs::read(fixture.path(".ctl/blocks/small")).unwrap();
    let before = peak_kib(&fixture);
    let table = fs::read_to_string(fixture.path(".ctl/blocks/striped")).unwrap();
    assert_eq!(table.lines().count() as u64, 2 * count - 1);
    for (place, line) in table.lines().enumerate() {
        assert!(line.starts_with(&format!("{place} tier=exact encoding=")), "{line}");
    }
    let open = fs::File::open(fixture.path(".ctl/blocks/striped")).unwrap();
    for at in [2_000_000, 5, 1_000_000, 0, 2_500_000] {
        let mut part = [0; 5000];
        open.read_exact_at(&mut part, at).unwrap();
        assert!(part == table.as_bytes()[at as usize..][..5000], "at {at}");
    }
    let needed = peak_kib(&fixture) - before;
    println!("{needed} KiB for {} bytes", table.len());
    assert!(needed < 2 << 10, "{needed} KiB for {} bytes", table.len());
}

#[test]
fn an_array_with_holes_is_recognized_and_its_checksums_hold() {
    let mut fixture = Fixture::new();
    let mut data = vec![0; 40 << 20];
    data[13 << 20..(13 << 20) + 8].copy_from_slice(&Random(6).bytes(8));
    let array = npy_file(&data);
    let source = fixture.place.write("x.npy", &array);
    let path = fixture.path("x.npy");
    support::script(
        &fixture.path(""),
        &format!("cp --sparse=always {} {}", source.display(), path.display()),
    )
    .ok();
    for _ in 0..2 {
        assert!(fixture.read("x.npy") == array && fixture.read("x") == data);
        let verified = fs::read_to_string(fixture.path(".ctl/verify/x.npy")).unwrap();
        assert_eq!(verified, "ok\n");
        fixture.crash();
        fixture.remount();
    }
    assert!(taken(&fixture) < 16 << 20);
}
