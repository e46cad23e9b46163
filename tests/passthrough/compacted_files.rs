//! A compaction makes overwritten files contiguous again: the kernel then reads them by passthrough.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fixture::{Fixture, WHOLE};
use support::{Random, answer, assert_same, run, tierfs};

/// Writes `bytes` over the middle of a file, as `dd conv=notrunc` does; returns the new content.
fn overwrite(fixture: &Fixture, name: &str, at: usize, bytes: &[u8]) -> Vec<u8> {
    let patch = fixture.place.write("patch", bytes);
    let mut dd = std::process::Command::new("dd");
    let (from, to) = (format!("if={}", patch.display()), format!("of={}", fixture.path(name).display()));
    let rest = ["bs=64K", "iflag=fullblock", "oflag=seek_bytes", "conv=notrunc", "status=none"];
    answer(dd.args([from, to, format!("seek={at}")]).args(rest)).ok();
    let mut wanted = fs::read(fixture.path(name)).unwrap();
    assert_eq!(&wanted[at..at + bytes.len()], bytes);
    wanted[at..at + bytes.len()].copy_from_slice(bytes);
    wanted
}

fn blocks_in_tier_file(fixture: &Fixture, name: &str) -> usize {
    let blocks = fs::read_to_string(fixture.path(".ctl/blocks").join(name)).unwrap();
    blocks.lines().filter(|line| line.contains("file=tier0.dat")).count()
}

#[test]
fn an_overwritten_file_uses_passthrough_again_after_a_compaction() {
    let mut fixture = Fixture::new(&[]);
    let mut random = Random(7);
    let mut wanted = Vec::new();
    for name in ["model.safetensors", "x.npy"] {
        let len = fixture.source(name).len();
        let at = len / 2 + 13;
        let bytes = random.bytes((len / 4).min(300_000));
        wanted.push((name, overwrite(&fixture, name, at, &bytes)));
        assert!(blocks_in_tier_file(&fixture, name) > 0, "{name}");
        let (opens, _) = fixture.by_kernel(|| (0..2).for_each(|_| drop(fs::read(fixture.path(name)))));
        assert_eq!(opens, 0, "{name} lies in two files");
    }
    for round in 0..2 {
        let job = fixture.mounted.job(".ctl/compact", "start");
        assert!(job.contains("done in") && job.contains(" back in data files"), "{job}");
        for (name, wanted) in &wanted {
            assert_eq!(blocks_in_tier_file(&fixture, name), 0, "{name}");
            assert_same(&fixture.read_by_kernel(&fixture.path(name)), wanted, name);
            assert_eq!(fs::read_to_string(fixture.path(".ctl/verify").join(name)).unwrap(), "ok\n");
        }
        if round == 0 {
            // A kill of the daemon loses none of it.
            fixture.mounted.kill();
            fixture.mount(&[]);
            for (name, wanted) in &wanted {
                assert_same(&fs::read(fixture.path(name)).unwrap(), wanted, name);
                assert_same(&fixture.read_by_kernel(&fixture.path(name)), wanted, name);
            }
        }
    }
    fixture.unmount();
    run(["fsck".as_ref(), fixture.place.store().as_os_str()]).ok();
}

#[test]
fn a_compaction_leaves_a_file_that_is_open_by_passthrough() {
    let fixture = Fixture::new(&[]);
    fixture.check("x.npy");
    let before = fixture.source("x.npy");
    let (opens, reader) = fixture.by_kernel(|| fs::File::open(fixture.path("x.npy")).unwrap());
    assert_eq!(opens, 1);
    let wanted = overwrite(&fixture, "x.npy", before.len() / 2, &[0x5a; 5000]);
    let data = fixture.data();
    fixture.mounted.job("demo/model/.ctl/compact", "start");
    assert!(blocks_in_tier_file(&fixture, "x.npy") > 0);
    assert_eq!(fixture.data(), data, "what was shown does not change");
    drop(reader);
    // The kernel reports a close later.
    support::wait_until("the file is whole", || {
        fixture.mounted.job("demo/model/.ctl/compact", "start");
        blocks_in_tier_file(&fixture, "x.npy") == 0
    });
    assert_same(&fixture.read_by_kernel(&fixture.path("x.npy")), &wanted, "x.npy");
}

#[test]
fn readers_and_writers_continue_during_a_compaction() {
    let fixture = Fixture::new(&[]);
    let mut wanted = fixture.source("model.safetensors");
    let (end, path) = (AtomicBool::new(false), fixture.path("model.safetensors"));
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let first = wanted.len() / 2;
    std::thread::scope(|scope| {
        let compacting = scope.spawn(|| {
            while !end.load(Ordering::Acquire) {
                fixture.mounted.job("demo/model/.ctl/compact", "start");
            }
        });
        let mut random = Random(3);
        for _ in 0..60 {
            let len = 1 + random.below(9000);
            let bytes = random.bytes(len);
            let at = first + random.below(wanted.len() - first - bytes.len());
            file.write_all_at(&bytes, at as u64).unwrap();
            wanted[at..at + bytes.len()].copy_from_slice(&bytes);
            file.sync_data().unwrap();
            assert_same(&fs::read(&path).unwrap(), &wanted, "meanwhile");
        }
        end.store(true, Ordering::Release);
        compacting.join().unwrap();
    });
    drop(file);
    fixture.mounted.job("demo/model/.ctl/compact", "start");
    assert_eq!(blocks_in_tier_file(&fixture, "model.safetensors"), 0);
    assert_same(&fixture.read_by_kernel(&path), &wanted, "in the end");
}

#[test]
fn an_unmounted_store_is_compacted() {
    let mut fixture = Fixture::new(&[]);
    let half = fixture.source("x.npy").len() / 2;
    let wanted = overwrite(&fixture, "x.npy", half, &[7; 4000]);
    let store = fixture.place.store();
    let through_daemon = answer(tierfs().arg("compact").arg("--json").arg(&store)).json();
    assert_eq!(through_daemon[0]["collection"], "demo/model");
    overwrite(&fixture, "x.npy", half, &[7; 4000]);
    assert!(blocks_in_tier_file(&fixture, "x.npy") > 0);
    fixture.unmount();
    let text = run(["compact".as_ref(), store.as_os_str()]).ok();
    assert!(text.starts_with("demo/model: log at ") && text.contains(" back in data files"), "{text}");
    fixture.mount(&["--read-only"]);
    assert_same(&fs::read(fixture.path("x.npy")).unwrap(), &wanted, "x.npy");
    assert_same(&fixture.read_by_kernel(&fixture.path("x.npy")), &wanted, "x.npy");
    for name in WHOLE.iter().filter(|name| **name != "x.npy") {
        assert_same(&fs::read(fixture.path(name)).unwrap(), &fixture.source(name), name);
    }
    let message = answer(tierfs().arg("compact").arg(fixture.mounted.mountpoint.clone()));
    message.failed(1, &["Read-only"]);
}
