//! Encoded files that the kernel reads from decoded copies: their bytes are those that the daemon serves, at every time.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use support::{
    Mapping, Mounted, Place, Random, WritableMapping, answer, assert_same, container_of, files_below,
    npy_file, open_direct, set, wait_until,
};

/// Every file is decoded when it is opened.
const ALL: [&str; 3] = ["--decode-all", "-o", "decoded_cache=64M"];
/// Files are decoded as the setting says, and after whole reads.
const AUTO: [&str; 2] = ["-o", "decoded_cache=64M"];

/// A container and an array of random numbers, encoded.
fn encoded(tier: &str) -> Place {
    let (place, mut random) = (Place::new(), Random(97));
    let tensors = [("a", 300_000), ("deep/b", 77), ("c", 700_001)];
    let model = place.write("model/m.safetensors", container_of(&mut random, &tensors));
    let array = place.write("model/x.npy", npy_file(&random.floats(400_003)));
    let options: &[&str] = if tier == "packed" { &["--pack"] } else { &["--tier", tier] };
    place.import("demo/model", &[&model, &array], options);
    place
}

fn model(mounted: &Mounted, name: &str) -> PathBuf {
    mounted.path(Path::new("demo/model").join(name))
}

/// The bytes as the daemon decodes them.
fn by_daemon(path: &Path) -> Vec<u8> {
    assert!(path.exists(), "{}", path.display());
    let file = open_direct(path);
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Opens a file until the kernel reads it from a copy: the time of an open may not be enough on a busy machine.
#[track_caller]
fn opened_decoded(mounted: &Mounted, path: &Path) -> File {
    let mut opened = None;
    wait_until(&format!("a decoded copy of {}", path.display()), || {
        let before = mounted.counter("decoded_hits");
        opened = Some(File::open(path).unwrap());
        mounted.counter("decoded_hits") > before
    });
    opened.unwrap()
}

/// Reads a file from its copy: whole, and mapped.
#[track_caller]
fn check_decoded(mounted: &Mounted, path: &Path, wanted: &[u8]) {
    let file = opened_decoded(mounted, path);
    let mut bytes = vec![0; wanted.len() + 1];
    let mut len = 0;
    while let Some(more) = Some(file.read_at(&mut bytes[len..], len as u64).unwrap()).filter(|more| *more > 0)
    {
        len += more;
    }
    assert_same(&bytes[..len], wanted, &path.display().to_string());
    assert_same(WritableMapping::whole(&file, libc::MAP_PRIVATE).bytes(), wanted, "mapped");
}

#[test]
fn copies_have_the_bytes_that_the_daemon_serves_for_every_tier_and_form() {
    for tier in ["q8:all", "q7:all", "q5:all", "q3:all", "q3x:all", "packed"] {
        let place = encoded(tier);
        let mounted = place.mount(&ALL);
        let mut paths: Vec<PathBuf> = Vec::new();
        let files = files_below(&model(&mounted, "."));
        paths.extend(files.iter().map(|name| mounted.path(Path::new("demo/model").join(name))));
        paths.extend(["c", ".tensors/m.safetensors/a"].map(|name| model(&mounted, name)));
        let forms = ["f32/m.safetensors", "bf16/m.safetensors", "f16/x.npy", "npy/a.npy", "bf16/c"];
        paths.extend(forms.map(|name| model(&mounted, ".as").join(name)));
        for path in paths {
            let wanted = by_daemon(&path);
            check_decoded(&mounted, &path, &wanted);
            assert_eq!(
                fs::metadata(&path).unwrap().ino(),
                File::open(&path).unwrap().metadata().unwrap().ino()
            );
        }
        let reads = mounted.counter("reads");
        assert_same(
            &fs::read(model(&mounted, "m.safetensors")).unwrap(),
            &by_daemon(&model(&mounted, "m.safetensors")),
            "again",
        );
        assert!(mounted.counter("reads") > reads, "a direct read is the daemon's");
        mounted.unmount();
    }
}

#[test]
fn the_copy_of_a_form_ends_with_an_eviction_of_its_file() {
    let place = encoded("q8:all");
    let mounted = place.mount(&AUTO);
    set(&model(&mounted, "."), "cache", "decoded").unwrap();
    let (file, form) = (model(&mounted, "m.safetensors"), model(&mounted, ".as/bf16/m.safetensors"));
    for _ in 0..3 {
        // Each open looks the form up under the number of its copy, and the kernel forgets the other one.
        (0..3).for_each(|_| drop(opened_decoded(&mounted, &form)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(mounted.counter("decoded_bytes") > 0);
        set(&file, "evict", "cache").unwrap();
        wait_until("the end of the copy", || mounted.counter("decoded_bytes") == 0);
    }
    mounted.unmount();
}

#[test]
fn a_file_is_decoded_at_its_open_where_the_setting_says_so() {
    let place = encoded("q8:all");
    let mounted = place.mount(&AUTO);
    let (directory, file) = (model(&mounted, "."), model(&mounted, "m.safetensors"));
    assert_eq!(support::get(&file, "cache"), "auto");
    set(&directory, "cache", "kernel").unwrap();
    assert_eq!(support::get(&file, "cache"), "kernel");
    let wanted = fs::read(&file).unwrap();
    for _ in 0..3 {
        assert_same(&fs::read(&file).unwrap(), &wanted, "by the daemon");
    }
    assert_eq!((mounted.counter("decoded_hits"), mounted.counter("decoded_bytes")), (0, 0));
    set(&directory, "cache", "decoded").unwrap();
    check_decoded(&mounted, &file, &wanted);
    assert!(mounted.counter("decoded_bytes") >= wanted.len() as u64);
    let status = fs::read_to_string(mounted.path(".ctl/status")).unwrap();
    assert!(status.lines().any(|line| line.starts_with("decoded ") && line.contains("hits")), "{status}");
    let metrics = fs::read_to_string(mounted.path(".ctl/metrics")).unwrap();
    assert!(metrics.contains("tierfs_decoded_hits_total") && metrics.contains("tierfs_decoded_bytes "));
    set(&file, "evict", "cache").unwrap();
    wait_until("the end of the copy", || mounted.counter("decoded_bytes") == 0);
    assert_same(&fs::read(&file).unwrap(), &wanted, "afterwards");
    let refused = set(&file, "cache", "always").unwrap_err();
    assert_eq!(refused, rustix::io::Errno::INVAL);
    mounted.unmount();
}

#[test]
fn a_file_that_is_not_cached_is_served_by_the_daemon_at_every_read() {
    let place = encoded("q8:all");
    let mounted = place.mount(&AUTO);
    let file = model(&mounted, "m.safetensors");
    let wanted = fs::read(&file).unwrap();
    // The copy that this read causes is not shown any more.
    set(&file, "cache", "none").unwrap();
    for _ in 0..2 {
        let reads = mounted.counter("reads");
        assert_same(&fs::read(&file).unwrap(), &wanted, "without a cache");
        assert!(mounted.counter("reads") >= reads + 4, "the kernel had it");
        assert_same(Mapping::of(&file, libc::MAP_SHARED).bytes(), &wanted, "mapped");
    }
    let mut written = fs::OpenOptions::new().write(true).open(&file).unwrap();
    std::io::Write::write_all(&mut written, &wanted[..8]).unwrap();
    drop(written);
    assert_same(&fs::read(&file).unwrap(), &wanted, "written");
    mounted.unmount();
}

#[test]
fn a_file_is_decoded_after_a_program_has_read_it_whole() {
    let place = encoded("q8:all");
    let mounted = place.mount(&AUTO);
    let file = model(&mounted, "m.safetensors");
    let wanted = fs::read(&file).unwrap();
    // While memory is scarce nothing is decoded ahead: then a later read causes it.
    let mut read = Instant::now();
    wait_until("a copy of a file that was read", || {
        if read.elapsed() > Duration::from_secs(5) {
            assert!(fs::read(&file).unwrap() == wanted);
            read = Instant::now();
        }
        let stats = mounted.stats();
        stats["decoded_bytes"].as_u64().unwrap() >= wanted.len() as u64
    });
    check_decoded(&mounted, &file, &wanted);
    // An exact file that the daemon verified is read where it lies.
    assert_eq!(mounted.counter("passthrough_opens"), 0);
    mounted.unmount();
}

#[test]
fn programs_that_read_the_beginning_of_a_file_decode_nothing() {
    let (place, mut random) = (Place::new(), Random(5));
    let source = place.write("m.safetensors", container_of(&mut random, &[("a", 12 << 20)]));
    place.import("demo/model", &[&source], &["--tier", "q8:all"]);
    let mounted = place.mount(&AUTO);
    for program in [&["head", "-c", "4096"][..], &["file"], &["ls", "-l"], &["head", "-c", "262144"]] {
        let mut command = std::process::Command::new(program[0]);
        answer(command.args(&program[1..]).arg(model(&mounted, "m.safetensors"))).ok();
    }
    let file = File::open(model(&mounted, "m.safetensors")).unwrap();
    for at in [0, 9 << 20, 27 << 20, 41 << 20] {
        file.read_exact_at(&mut [0; 4096], at).unwrap();
    }
    drop(file);
    // The kernel tells of a close later: unmounting waits for that.
    let until = mounted.counter("opens");
    wait_until("the closes", || mounted.stats()["operations"]["release"].as_u64().unwrap() + 2 >= until);
    assert_eq!((mounted.counter("decoded_hits"), mounted.counter("decoded_bytes")), (0, 0));
    mounted.unmount();
}

#[test]
fn writes_moves_and_evictions_end_a_copy() {
    let place = encoded("q8:all");
    let mounted = place.mount(&ALL);
    let (file, tensor) = (model(&mounted, "m.safetensors"), model(&mounted, "c"));
    let mut wanted = by_daemon(&file);
    check_decoded(&mounted, &file, &wanted);
    let before = by_daemon(&tensor);
    check_decoded(&mounted, &tensor, &before);
    let at = wanted.windows(64).position(|bytes| *bytes == before[4000..4064]).unwrap();
    let writer = fs::OpenOptions::new().write(true).open(&tensor).unwrap();
    writer.write_all_at(&[1; 64], 4000).unwrap();
    drop(writer);
    wanted[at..at + 64].fill(1);
    assert_same(&fs::read(&file).unwrap(), &wanted, "written by another name");
    check_decoded(&mounted, &file, &wanted);
    for (name, value) in [("tier", "q5:all:lossy"), ("tier", "q3:all:lossy"), ("evict", "cache")] {
        mounted_set(&file, name, value);
        let now = fs::read(&file).unwrap();
        assert_same(&now, &by_daemon(&file), value);
        check_decoded(&mounted, &file, &now);
    }
    let replaced = container_of(&mut Random(7), &[("a", 300_000)]);
    fs::write(&file, &replaced).unwrap();
    assert_same(&fs::read(&file).unwrap(), &replaced, "replaced");
    mounted.unmount();
}

#[track_caller]
fn mounted_set(file: &Path, name: &str, value: &str) {
    set(file, name, value)
        .unwrap_or_else(|error| panic!("{name}={value}: {error}: {}", support::get(file, "why")));
}

#[test]
fn a_mapping_keeps_its_bytes_when_the_file_changes_and_others_are_decoded() {
    let place = encoded("q8:all");
    let mounted = place.mount(&ALL);
    let file = model(&mounted, "m.safetensors");
    let mut kept: Vec<(WritableMapping, Vec<u8>)> = Vec::new();
    for round in 0..4_u8 {
        let wanted = by_daemon(&file);
        check_decoded_or_served(&file, &wanted);
        if round == 0 {
            let opened = opened_decoded(&mounted, &file);
            kept.push((WritableMapping::whole(&opened, libc::MAP_PRIVATE), wanted));
        }
        let writer = fs::OpenOptions::new().write(true).open(&file).unwrap();
        writer.write_all_at(&[round; 4096], 1 << 20).unwrap();
        drop(writer);
        fs::read(model(&mounted, "x.npy")).unwrap();
        for (mapping, wanted) in &mut kept {
            assert_same(mapping.bytes(), wanted, "a mapping of a copy");
        }
    }
    // The copy counts until its mapping ends.
    wait_until("the other copies", || mounted.counter("decoded_bytes") >= kept[0].1.len() as u64);
    drop(kept);
    for name in ["m.safetensors", "x.npy"] {
        set(&model(&mounted, name), "evict", "cache").unwrap();
    }
    wait_until("the end of all copies", || mounted.counter("decoded_bytes") == 0);
    mounted.unmount();
}

#[track_caller]
fn check_decoded_or_served(file: &Path, wanted: &[u8]) {
    assert_same(&fs::read(file).unwrap(), wanted, "read");
    assert_same(Mapping::of(file, libc::MAP_PRIVATE).bytes(), wanted, "mapped");
}

#[test]
fn a_reader_that_opens_after_a_close_sees_every_write() {
    let place = encoded("q8:all");
    let mounted = place.mount(&["--decode-all", "-o", "decoded_cache=16M"]);
    let (file, tensor) = (model(&mounted, "m.safetensors"), model(&mounted, "c"));
    let (mut wanted, mut whole) = (by_daemon(&tensor), by_daemon(&file));
    let start = whole.windows(64).position(|bytes| *bytes == wanted[..64]).unwrap();
    let ends = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for name in [&file, &tensor] {
            let ends = &ends;
            scope.spawn(move || {
                while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                    let mapping = Mapping::of(name, libc::MAP_SHARED);
                    std::hint::black_box(mapping.bytes().iter().map(|byte| u64::from(*byte)).sum::<u64>());
                }
            });
        }
        let mut random = Random(41);
        let rounds = 60 * support::scale() as usize;
        for _ in 0..rounds {
            let by_tensor = random.below(2) == 0;
            let at = random.below(wanted.len() - 70_000);
            let len = 1 + random.below(70_000);
            let bytes = random.bytes(len);
            let (name, place) = if by_tensor { (&tensor, at) } else { (&file, start + at) };
            let writer = fs::OpenOptions::new().write(true).open(name).unwrap();
            writer.write_all_at(&bytes, place as u64).unwrap();
            drop(writer);
            wanted[at..at + len].copy_from_slice(&bytes);
            whole[start + at..start + at + len].copy_from_slice(&bytes);
            assert_same(Mapping::of(&tensor, libc::MAP_SHARED).bytes(), &wanted, "the tensor");
            assert_same(&fs::read(&file).unwrap(), &whole, "the container");
        }
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    mounted.unmount();
}

#[test]
fn a_damaged_block_is_never_shown_from_a_copy() {
    let place = encoded("q8:all");
    let folder = place.store().join("demo/model");
    let tier = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
    let tier = tier.filter(|path| path.extension().is_some_and(|suffix| suffix == "dat"));
    let tier = tier.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&tier).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle] ^= 0x40;
    fs::write(&tier, bytes).unwrap();
    let mounted = place.mount(&ALL);
    let failing = ["m.safetensors", "x.npy"].map(|name| model(&mounted, name));
    let failed = failing.iter().filter(|path| {
        (0..4).all(|_| fs::read(path).is_err_and(|error| error.raw_os_error() == Some(libc::EIO)))
    });
    assert_eq!(failed.count(), 1, "one of the files is damaged");
    mounted.unmount();
}

#[test]
fn nothing_is_decoded_without_passthrough_or_where_reads_always_verify() {
    for options in [&["-o", "passthrough=off"][..], &["--verify", "always"], &["--zero-fill"]] {
        let place = encoded("q8:all");
        let mounted = place.mount(&[&ALL[..], options].concat());
        let file = model(&mounted, "m.safetensors");
        let wanted = by_daemon(&file);
        (0..3).for_each(|_| assert_same(&fs::read(&file).unwrap(), &wanted, "by the daemon"));
        assert_eq!((mounted.counter("decoded_hits"), mounted.counter("decoded_budget_bytes")), (0, 0));
        mounted.unmount();
    }
}
