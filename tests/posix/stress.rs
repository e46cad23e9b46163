//! Many threads on few files: no call may hang, and no reader may see bytes that were never written.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::{
    Aligned, Fixture, Random, SetOnDrop, WritableMapping, container_of, goes_on, npy_file, open_direct,
    read_at, scale,
};

const THREADS: u64 = 8;
const LASTING: Duration = Duration::from_secs(20);

/// The kernel asks for whole requests, past the length that it knows.
#[test]
fn a_direct_reader_of_a_growing_file_sees_no_byte_before_it_is_written() {
    const CHUNK: usize = 1 << 20;
    let fixture = Fixture::new();
    let path = fixture.path("growing.bin");
    let mut writer = fs::File::create(&path).unwrap();
    writer.write_all(&[7; 4096]).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let reader = open_direct(&path);
            let mut memory = Aligned::new(2 * CHUNK);
            while !stop.load(Ordering::Relaxed) {
                let end = reader.metadata().unwrap().len();
                let got = memory.pages(2 * CHUNK);
                let count = read_at(&reader, got, (end - 1) / 4096 * 4096);
                let wrong = got[..count].iter().position(|byte| *byte != 7);
                assert_eq!(wrong, None, "of {count} bytes from {end}");
            }
        });
        let _stop = SetOnDrop(&stop);
        for _ in 0..100 {
            writer.write_all(&[7; CHUNK]).unwrap();
        }
    });
}

/// Containers that are created and removed in one directory: the kernel is notified of their tensors' names meanwhile.
#[test]
fn many_threads_write_and_remove_containers_at_once() {
    let fixture = Fixture::new();
    let until = Instant::now() + Duration::from_secs(5) * scale();
    let container = container_of(&mut Random(3), &[("a", 3), ("b", 5), ("deep/c", 40)]);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (fixture, container) = (&fixture, &container);
            scope.spawn(move || {
                let path = fixture.path(&format!("x{thread}.safetensors"));
                while Instant::now() < until {
                    fs::write(&path, container).unwrap();
                    assert_eq!(&fs::read(&path).unwrap(), container);
                    fs::remove_file(&path).unwrap();
                }
            });
        }
        scope.spawn(|| {
            while Instant::now() < until {
                for entry in fs::read_dir(fixture.path("")).unwrap() {
                    match fs::metadata(entry.unwrap().path()) {
                        Ok(seen) => assert_ne!(seen.mode(), 0),
                        // It may have been removed since, and created and removed again.
                        Err(error) => assert!(is_expected(&error), "{error}"),
                    }
                }
            }
        });
    });
    fixture.check();
}

/// A reader of a file that is replaced by rename sees one whole version and never gets an error.
#[test]
fn a_file_replaced_by_rename_can_always_be_opened() {
    let fixture = Fixture::new();
    let path = fixture.path("current");
    fs::write(&path, [0; 5000]).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut reads = 0;
                while !ended.load(Ordering::Relaxed) || reads < 100 {
                    let found = fs::read(&path).unwrap();
                    assert_eq!(found.len(), 5000);
                    assert!(found.iter().all(|byte| *byte == found[0]), "a mixture of two versions");
                    reads += 1;
                }
            });
        }
        let until = Instant::now() + Duration::from_secs(6) * scale();
        let _ends = SetOnDrop(&ended);
        let mut version = 0u8;
        while Instant::now() < until {
            version = version.wrapping_add(1);
            let new = fixture.path("next");
            fs::write(&new, [version; 5000]).unwrap();
            fs::rename(&new, &path).unwrap();
        }
    });
    fixture.check();
}

/// Errors that threads may get when others remove their files.
fn is_expected(error: &std::io::Error) -> bool {
    let known = [
        ErrorKind::NotFound,
        ErrorKind::AlreadyExists,
        ErrorKind::DirectoryNotEmpty,
        ErrorKind::IsADirectory,
        ErrorKind::NotADirectory,
        ErrorKind::PermissionDenied,
        ErrorKind::InvalidInput,
        ErrorKind::UnexpectedEof,
        // The kernel repeats a lookup once; a tensor's name may have gone again by then, with its container.
        ErrorKind::StaleNetworkFileHandle,
    ];
    known.contains(&error.kind())
}

fn one_operation(root: &Path, random: &mut Random, made: &[Vec<u8>]) -> std::io::Result<()> {
    const NAMES: [&str; 9] =
        ["plain", "other", "x.npy", "y.safetensors", "x", "d/x.npy", "d/plain", "one", "z.safetensors"];
    let name = |random: &mut Random| root.join(NAMES[random.below(NAMES.len())]);
    let path = name(random);
    let open = || fs::OpenOptions::new().read(true).write(true).open(&path);
    match random.below(14) {
        0 => fs::write(&path, &made[random.below(made.len())]),
        1 => fs::read(&path).map(|_| ()),
        2 => open()?.write_all_at(&random.bytes(300), random.below(20_000) as u64),
        3 => open()?.set_len(random.below(30_000) as u64),
        4 => fs::remove_file(&path),
        5 => fs::rename(&path, name(random)),
        6 => fs::hard_link(&path, name(random)),
        7 => open()?.sync_all(),
        8 => fs::OpenOptions::new().append(true).create(true).open(&path)?.write_all(&random.bytes(100)),
        9 => fs::read_dir(root)?.try_for_each(|entry| entry?.metadata().map(|_| ())),
        10 => fs::create_dir(root.join("d")),
        11 => fs::remove_dir(root.join("d")),
        12 => fs::metadata(&path).map(|_| ()),
        _ => {
            // No thread truncates this file: that would kill threads that have it mapped.
            let file = fs::OpenOptions::new().read(true).write(true).open(root.join("mapped"))?;
            let mut map = WritableMapping::of(&file, 8192, libc::MAP_SHARED);
            map.write(random.below(8000), b"mapped");
            if random.below(2) == 0 { map.sync() } else { Ok(()) }
        }
    }
}

#[test]
fn many_threads_of_mixed_operations_on_few_files_finish() {
    let fixture = Fixture::new();
    let root = fixture.path("");
    let mut random = Random(17);
    let mut made: Vec<Vec<u8>> = vec![random.bytes(9000), npy_file(&random.floats(2000)), Vec::new()];
    made.push(container_of(&mut random, &[("plain", 100), ("d/t", 2000)]));
    made.push(container_of(&mut random, &[("first", 3000), ("other", 7)]));
    fs::write(root.join("mapped"), [0; 8192]).unwrap();
    let until = Instant::now() + LASTING * scale();
    std::thread::scope(|scope| {
        for seed in 0..THREADS {
            let (root, made) = (&root, &made);
            scope.spawn(move || {
                let mut random = Random(seed);
                let mut done = 0;
                while goes_on(until, done, 1000 / THREADS) {
                    if let Err(error) = one_operation(root, &mut random, made) {
                        assert!(is_expected(&error), "after {done} of thread {seed}: {error}");
                    }
                    done += 1;
                }
            });
        }
    });
    assert!(fixture.mounted().is_mounted());
    fixture.check();
}
