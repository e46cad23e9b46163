//! Digests of the imported bytes, compared with Python's digests of the source.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use tierfs::format::log::catalog::{Digests, Entry, NodeType, RecordedDigests};
use tierfs::store::ROOT;
use tierfs::store::Touched;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, Store};

use support::{
    Mounted, Place, Random, answer, container_of, files_below, get, imported, npy_file, python_line, run,
    set, shell, text, try_get, wait_until,
};

/// SHA-256 and BLAKE3 as other libraries take them.
fn taken(path: &Path) -> (String, String) {
    let line = "import blake3, hashlib, sys; data = open(sys.argv[1], 'rb').read(); \
                print(hashlib.sha256(data).hexdigest(), blake3.blake3(data).hexdigest())";
    let line = python_line(line, [path]);
    let (sha256, blake3) = line.trim().split_once(' ').unwrap();
    (sha256.to_owned(), blake3.to_owned())
}

fn shown(path: &Path) -> (String, String) {
    (get(path, "sha256"), get(path, "blake3"))
}

fn assert_none(path: &Path) {
    for name in ["sha256", "blake3"] {
        assert_eq!(try_get(path, name), Err(Errno::NODATA), "{name} of {}", path.display());
    }
}

/// Checks with `sha256sum` every file of a collection against its `SHA256SUMS`.
fn check_sums(mounted: &Mounted, collection: &str) {
    let folder = mounted.path(collection);
    let listed = text(&shell(&folder, "sha256sum --check --strict .as/sha256/SHA256SUMS").stdout);
    assert_eq!(listed.lines().count(), files_below(&folder).len(), "{listed}");
}

/// The elements of the first tensor of a container, in a file of their own.
fn first_tensor(place: &Place, container: &Path, bytes: usize) -> std::path::PathBuf {
    let content = fs::read(container).unwrap();
    let header = 8 + u64::from_le_bytes(content[..8].try_into().unwrap()) as usize;
    place.write("first", &content[header..header + bytes])
}

#[test]
fn imported_files_have_the_digests_of_their_sources_on_every_way_of_import() {
    let place = Place::new();
    let manifest = place.path("SHA256SUMS");
    let source = {
        let mut random = Random(71);
        place.write("model/model.safetensors", container_of(&mut random, &[("a", 1000), ("b", 700_001)]));
        place.write("model/x.npy", npy_file(&random.floats(9000)));
        place.write("model/sub/vocab.txt", random.bytes(5_000_003));
        place.write("model/empty", b"");
        place.path("model")
    };
    shell(&source, "find . -type f -exec sha256sum {} + > ../SHA256SUMS");
    let manifest = ["--manifest", manifest.to_str().unwrap()];
    let ways: [(&str, &[&str]); 4] = [
        ("t/exact", &[]),
        ("t/place", &["--in-place"]),
        ("t/listed", &manifest),
        ("t/both", &["--in-place", manifest[0], manifest[1]]),
    ];
    for (collection, options) in ways {
        place.import(collection, &[&source], options);
    }
    let files: Vec<_> =
        files_below(&source).into_iter().map(|name| (taken(&source.join(&name)), name)).collect();
    let tensor = taken(&first_tensor(&place, &source.join("model.safetensors"), 4000));
    // Without a mount.
    for (collection, _) in ways {
        for (wanted, name) in &files {
            let path = format!("{collection}/{}", name.display());
            let stat = run(["stat", place.store().to_str().unwrap(), &path, "--digests", "--json"]).json();
            assert_eq!(
                (stat["sha256"].as_str(), stat["blake3"].as_str()),
                (Some(&*wanted.0), Some(&*wanted.1))
            );
        }
    }
    let mounted = place.mount(&["--read-only"]);
    for (collection, _) in ways {
        let folder = mounted.path(collection);
        for (wanted, name) in &files {
            assert_eq!(shown(&folder.join(name)), *wanted, "{collection} {name:?}");
            // A second time: unchanged files have remembered digests.
            assert_eq!(shown(&folder.join(name)), *wanted, "{collection} {name:?}");
        }
        assert_eq!(shown(&folder.join("a")), tensor, "{collection}");
        check_sums(&mounted, collection);
    }
    mounted.unmount();
    // With a tool that asks for the size first.
    let mounted = place.mount(&[]);
    let file = mounted.path("t/place/model.safetensors");
    let asked =
        Command::new("getfattr").args(["--only-values", "-n", "user.tierfs.sha256"]).arg(&file).output();
    assert_eq!(text(&asked.unwrap().stdout), taken(&source.join("model.safetensors")).0);
}

#[test]
fn a_manifest_with_another_digest_refuses_a_file_in_place() {
    let place = Place::new();
    let good = place.write("in/good.bin", Random(5).bytes(300_000));
    let bad = place.write("in/bad.bin", Random(6).bytes(300_000));
    shell(&place.path("in"), "sha256sum * > ../SHA256SUMS");
    let changed = fs::OpenOptions::new().write(true).open(&bad).unwrap();
    changed.write_all_at(b"other", 299_000).unwrap();
    let manifest = place.path("SHA256SUMS");
    let options = ["--in-place", "--manifest", manifest.to_str().unwrap()];
    place.try_import("t/c", &[&good, &bad], &options).failed(1, &["bad.bin", "SHA-256"]);
    let mounted = place.mount(&[]);
    assert_eq!(shown(&mounted.path("t/c/good.bin")), taken(&good));
    assert!(!mounted.path("t/c/bad.bin").exists());
}

#[test]
fn a_partial_write_removes_the_digests_of_all_names_of_its_bytes() {
    let (place, source) = imported(&[]);
    let mounted = place.mount(&[]);
    let folder = mounted.path("demo/model");
    let container = folder.join("model.safetensors");
    let wanted = taken(&source.join("model.safetensors"));
    assert_eq!(shown(&container), wanted);
    // To a tensor: its container differs from the import, its neighbour does not.
    let neighbour = shown(&folder.join("deep/er/b"));
    fs::OpenOptions::new()
        .write(true)
        .open(mounted.path("demo/model/a"))
        .unwrap()
        .write_all_at(b"1234", 8)
        .unwrap();
    assert_none(&folder.join("a"));
    assert_none(&container);
    assert_eq!(shown(&folder.join("deep/er/b")), neighbour);
    assert_eq!(shown(&folder.join("norm")), taken(&folder.join("norm")));
    // To a plain file: the same byte again, an append, a truncation.
    let file = |name: &str| fs::OpenOptions::new().append(true).open(folder.join(name)).unwrap();
    file("config.json").write_all(b"more").unwrap();
    assert_none(&folder.join("config.json"));
    file("sub/vocab.txt").set_len(99_999).unwrap();
    assert_none(&folder.join("sub/vocab.txt"));
    check_sums(&mounted, "demo/model");
    mounted.unmount();
    // A container that is recognized again, in a mount that saw none of the writes before.
    let mounted = place.mount(&[]);
    let folder = mounted.path("demo/model");
    for name in ["a", "model.safetensors", "config.json", "sub/vocab.txt"] {
        assert_none(&folder.join(name));
    }
    let npy = fs::OpenOptions::new().write(true).open(folder.join("x.npy")).unwrap();
    npy.write_all_at(b"\x93NUMPY", 0).unwrap();
    drop(npy);
    assert_none(&folder.join("x.npy"));
    // A file that is written whole has digests again.
    for name in ["config.json", "sub/vocab.txt", "x.npy", "model.safetensors"] {
        fs::copy(source.join(name), folder.join(name)).unwrap();
        assert_eq!(shown(&folder.join(name)), taken(&source.join(name)), "{name}");
    }
    assert_eq!(shown(&folder.join("deep/er/b")), neighbour);
    check_sums(&mounted, "demo/model");
}

#[test]
fn files_written_whole_have_digests_until_the_next_write() {
    let place = Place::new();
    let mut random = Random(31);
    let small = place.write("in/small.bin", random.bytes(5000));
    let large = place.write("in/large.safetensors", container_of(&mut random, &[("w", 600_000), ("v", 9)]));
    place.import("t/c", &[&small], &[]);
    let mounted = place.mount(&[]);
    let folder = mounted.path("t/new");
    fs::create_dir(&folder).unwrap();
    for source in [&small, &large] {
        let path = folder.join(source.file_name().unwrap());
        fs::copy(source, &path).unwrap();
        assert_eq!(shown(&path), taken(source));
    }
    assert_eq!(shown(&folder.join(".tensors/w")), taken(&first_tensor(&place, &large, 2_400_000)));
    // A sync in between, through one descriptor: the file is still written whole.
    let pieces = folder.join("pieces.bin");
    let mut file = fs::File::create(&pieces).unwrap();
    for piece in fs::read(&large).unwrap().chunks(1_000_000) {
        file.write_all(piece).unwrap();
        file.sync_all().unwrap();
    }
    drop(file);
    assert_eq!(shown(&pieces), taken(&large));
    // As rsync and downloaders write it.
    fs::copy(&large, folder.join(".large.part")).unwrap();
    fs::rename(folder.join(".large.part"), folder.join("again.safetensors")).unwrap();
    assert_eq!(shown(&folder.join("again.safetensors")), taken(&large));
    fs::rename(mounted.path("t/c/small.bin"), mounted.path("t/c/other.bin")).unwrap();
    assert_eq!(shown(&mounted.path("t/c/other.bin")), taken(&small));
    // Another descriptor.
    let mut more = fs::OpenOptions::new().append(true).open(&pieces).unwrap();
    more.write_all(b"!").unwrap();
    drop(more);
    assert_none(&pieces);
    mounted.unmount();
    let mounted = place.mount(&[]);
    assert_none(&mounted.path("t/new/pieces.bin"));
    assert_eq!(shown(&mounted.path("t/new/small.bin")), taken(&small));
    assert_eq!(shown(&mounted.path("t/new/large.safetensors")), taken(&large));
}

#[test]
fn tensors_without_full_precision_have_no_digests_until_they_are_exact_again() {
    let place = Place::new();
    let source = place.write("in/model.safetensors", container_of(&mut Random(9), &[("w", 70_000)]));
    place.import("t/own", &[&source], &[]);
    place.import("t/place", &[&source], &["--in-place"]);
    let mounted = place.mount(&[]);
    let wanted = taken(&source);
    for collection in ["t/own", "t/place"] {
        let folder = mounted.path(collection);
        let (tensor, container) = (folder.join("w"), folder.join("model.safetensors"));
        let of_tensor = shown(&tensor);
        assert_eq!(shown(&container), wanted);
        set(&tensor, "lossy", "allow").unwrap();
        set(&tensor, "tier", "q8").unwrap();
        assert_none(&tensor);
        assert_none(&container);
        if collection == "t/place" {
            set(&tensor, "tier", "exact").unwrap();
            assert_eq!(shown(&container), wanted);
            assert_eq!(shown(&tensor), of_tensor);
        }
        check_sums(&mounted, collection);
    }
}

#[test]
fn a_replaced_outside_file_shows_no_digest() {
    let place = Place::new();
    let source = place.write("in/data.bin", Random(3).bytes(400_000));
    place.import("t/c", &[&source], &["--in-place"]);
    let mounted = place.mount(&[]);
    let path = mounted.path("t/c/data.bin");
    let wanted = taken(&source);
    assert_eq!(shown(&path), wanted);
    let time = fs::metadata(&source).unwrap().modified().unwrap();
    let file = fs::OpenOptions::new().write(true).open(&source).unwrap();
    let kept = fs::read(&source).unwrap();
    file.write_all_at(b"other", 200_000).unwrap();
    // Although the digest was read and remembered before.
    assert_eq!(try_get(&path, "sha256"), Err(Errno::IO));
    assert_eq!(get(&path, "blake3"), wanted.1);
    let store = place.store();
    file.write_all_at(&kept, 0).unwrap();
    file.set_modified(time).unwrap();
    assert_eq!(shown(&path), wanted);
    mounted.unmount();
    // The bytes are compared, not the times.
    file.write_all_at(b"other", 200_000).unwrap();
    file.set_modified(time).unwrap();
    let mut stat = support::tierfs();
    stat.args(["stat", store.to_str().unwrap(), "t/c/data.bin", "--digests"]);
    answer(&mut stat).failed(3, &["data.bin"]);
}

#[test]
fn a_sha256_is_shown_only_for_bytes_with_the_imported_blake3() {
    let place = Place::new();
    let source = place.write("in/data.bin", Random(4).bytes(100_000));
    place.import("t/c", &[&source], &[]);
    {
        let disk = std::sync::Arc::new(FileDisk::new(&place.store()));
        let store = Store::open(disk, Access::Write, "a test").unwrap();
        let collection = store.collection("t", "c").unwrap();
        let node = collection.state().directory(ROOT).unwrap().get(b"data.bin").unwrap();
        let mut entry = collection.state().node(node).unwrap().entry.clone();
        let NodeType::File(file) = &mut entry.node_type else { panic!("no file") };
        file.digests = Digests::Recorded(Box::new(RecordedDigests { blake3: [7; 32], sha256: None }));
        let written = collection.commit(Touched::default(), |batch, _| {
            batch.entry(Entry::Node(Box::new(entry)));
            Ok(())
        });
        written.unwrap();
    }
    let mounted = place.mount(&[]);
    let path = mounted.path("t/c/data.bin");
    assert_eq!(try_get(&path, "sha256"), Err(Errno::NODATA));
    assert_eq!(get(&path, "blake3"), "07".repeat(32));
}

#[test]
fn digests_are_computed_while_others_write_and_damage_is_mended() {
    let place = Place::new();
    let source = place.write("plain.bin", Random(79).bytes(8_000_000));
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&[]);
    set(&mounted.path("t/c/plain.bin"), "pin", "1").unwrap();
    mounted.unmount();
    // Flips a byte of each block: the pinned copy has it.
    let damaged = place.store().join("t/c/data/0000000000000001");
    let mut bytes = fs::read(&damaged).unwrap();
    bytes.iter_mut().step_by(4096).for_each(|byte| *byte ^= 1);
    fs::write(&damaged, bytes).unwrap();
    let mounted = place.mount(&[]);
    let (large, small) = (mounted.path("t/c/plain.bin"), mounted.path("t/c/small"));
    let wanted = taken(&source);
    let ended = Arc::new(AtomicBool::new(false));
    let until = ended.clone();
    // In threads of their own: in case of a deadlock the daemon ends with the test.
    let writing = std::thread::spawn(move || {
        while !until.load(Ordering::Relaxed) {
            fs::write(&small, b"something").unwrap();
        }
    });
    let computing = std::thread::spawn(move || shown(&large));
    wait_until("digests", || computing.is_finished());
    ended.store(true, Ordering::Relaxed);
    wait_until("writes", || writing.is_finished());
    writing.join().unwrap();
    assert_eq!(computing.join().unwrap(), wanted);
    mounted.unmount();
}

#[test]
fn a_written_file_has_no_digests_until_its_writes_are_logged() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    let (path, bytes) = (mounted.path("t/c/new.bin"), Random(85).bytes(100_000));
    let mut file = fs::File::create(&path).unwrap();
    // The daemon flushes writes by itself every 5 s.
    wait_until("busy", || {
        file.set_len(0).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        ["sha256", "blake3"].iter().all(|name| try_get(&path, name) == Err(Errno::BUSY))
    });
    file.sync_all().unwrap();
    let wanted = taken(&place.write("same", &bytes));
    assert_eq!(shown(&path), wanted);
    file.write_all(b"").unwrap();
    drop(file);
    assert_eq!(shown(&path), wanted);
    // Neither digest of the imported bytes remains after the write.
    let source = place.write("x.npy", npy_file(&Random(86).floats(10_000)));
    fs::copy(&source, mounted.path("t/c/x.npy")).unwrap();
    let (container, tensor) = (mounted.path("t/c/x.npy"), mounted.path("t/c/x"));
    assert_eq!(shown(&container), taken(&source));
    let writer = fs::OpenOptions::new().write(true).open(&tensor).unwrap();
    wait_until("busy", || {
        writer.write_all_at(&[1; 4], 0).unwrap();
        [&container, &tensor].iter().all(|path| try_get(path, "sha256") == Err(Errno::BUSY))
    });
    drop(writer);
    assert_none(&container);
    assert_none(&tensor);
}

#[test]
fn digests_cover_one_version_of_a_file_and_never_a_mixture() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    let path = mounted.path("t/c/turning.bin");
    let versions = [1_u8, 2].map(|byte| vec![byte; 8 << 20]);
    let wanted = versions.clone().map(|bytes| taken(&place.write("version", bytes)).0);
    let file = fs::File::create(&path).unwrap();
    file.write_all_at(&versions[0], 0).unwrap();
    file.sync_all().unwrap();
    let (ended, mut known, mut busy) = (AtomicBool::new(false), 0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in versions.iter().cycle() {
                file.write_all_at(version, 0).unwrap();
                file.sync_all().unwrap();
                if ended.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut wrong = None;
        while wrong.is_none() && (known < 3 || busy < 20) {
            match try_get(&path, "sha256") {
                Ok(found) if wanted.contains(&found) => known += 1,
                Err(Errno::BUSY) => busy += 1,
                found => wrong = Some(found),
            }
        }
        ended.store(true, Ordering::Relaxed);
        assert_eq!(wrong, None, "the digest of no version");
    });
    assert!(wanted.contains(&get(&path, "sha256")));
}
