//! Combinations: files that are open and not flushed, files in place, checkpoints of the log.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use support::{Place, Random, get, header_of, npy_file, run, safetensors_file, set, try_get, wait_until};

#[test]
fn a_grown_file_in_place_survives_a_log_rewrite() {
    let place = Place::new();
    let mut wanted = Random(51).bytes(100_000);
    let source = place.write("plain.bin", &wanted);
    place.import("t/c", &[&source], &["--in-place"]);
    let mounted = place.mount(&[]);
    let mut file = fs::OpenOptions::new().append(true).open(mounted.path("t/c/plain.bin")).unwrap();
    file.write_all(b"more").unwrap();
    drop(file);
    wanted.extend_from_slice(b"more");
    mounted.job("t/c/.ctl/compact", "start");
    assert_eq!(fs::read(mounted.path("t/c/plain.bin")).unwrap(), wanted);
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    assert_eq!(fs::read(mounted.path("t/c/plain.bin")).unwrap(), wanted);
    fs::write(mounted.path("t/c/other"), b"it takes writes").unwrap();
}

#[test]
fn a_tensor_that_grows_while_it_is_open_can_be_renamed_and_linked() {
    let place = Place::new();
    place.write("empty", b"");
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    let path = mounted.path("t/c/cache");
    fs::write(&path, [1; 4096]).unwrap();
    set(&path, "dtype", "f32").unwrap();
    set(&path, "shape", "16x64").unwrap();
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(&[2; 512]).unwrap();
    fs::rename(&path, mounted.path("t/c/moved")).unwrap();
    fs::hard_link(mounted.path("t/c/moved"), mounted.path("t/c/linked")).unwrap();
    file.write_all(&[3; 512]).unwrap();
    drop(file);
    let found = fs::read(mounted.path("t/c/moved")).unwrap();
    assert_eq!((found.len(), found[4096], found[5119]), (5120, 2, 3));
    assert_eq!(get(&mounted.path("t/c/moved"), "shape"), "20x64");
    fs::write(mounted.path("t/c/other"), b"it takes writes").unwrap();
}

#[test]
fn bytes_restored_to_a_tensor_in_place_become_its_content() {
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&Random(52).floats(100_000)));
    place.import("t/c", &[&source], &["--in-place"]);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/w");
    set(&tensor, "tier", "q3").unwrap();
    let decoded = fs::read(&tensor).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&tensor).unwrap();
    file.write_all_at(&decoded, 0).unwrap();
    drop(file);
    // All of its bytes are exact now: the move has nothing to do and changes nothing.
    set(&tensor, "tier", "exact").unwrap();
    assert_eq!(fs::read(&tensor).unwrap(), decoded);
}

#[test]
fn a_container_under_another_name_keeps_the_tiers_of_its_tensors() {
    let place = Place::new();
    let mut random = Random(53);
    let header = header_of(&[("deep/a", 70_000), ("b", 70_000), ("c", 70_000)]);
    let model = safetensors_file(&header, &random.floats(210_000));
    let sources =
        [place.write("m.safetensors", &model), place.write("x.npy", npy_file(&random.floats(70_000)))];
    place.import("t/c", &[&sources[0], &sources[1]], &["--in-place"]);
    let mounted = place.mount(&[]);
    let at = |name: &str| mounted.path(Path::new("t/c").join(name));
    for (name, tier) in [("deep/a", "q8"), ("b", "q3"), ("x", "q5")] {
        set(&at(name), "lossy", "allow").unwrap();
        set(&at(name), "tier", tier).unwrap();
    }
    set(&at("c"), "reconstruct", "origin").unwrap();
    set(&at("c"), "evict", "1").unwrap();
    let (tensor, array) = (fs::read(at("b")).unwrap(), fs::read(at("x.npy")).unwrap());
    let number = |name: &str| fs::metadata(at(name)).unwrap().ino();
    let (before, held) = (number("b"), fs::File::open(at("b")).unwrap());
    fs::create_dir(at("sub")).unwrap();
    fs::write(at("sub/c"), "taken").unwrap();
    let container = fs::read(at("m.safetensors")).unwrap();
    fs::rename(at("m.safetensors"), at("sub/n.safetensors")).unwrap();
    fs::rename(at("x.npy"), at("y.npy")).unwrap();
    for (name, tier) in [("sub/deep/a", "q8"), ("sub/b", "q3"), ("y", "q5")] {
        assert_eq!(get(&at(name), "tier"), tier, "{name}");
        assert_eq!(get(&at(name), "lossy"), "allow", "{name}");
    }
    assert_eq!((number("sub/b"), held.metadata().unwrap().nlink()), (before, 1));
    assert_eq!(fs::read(at("sub/c")).unwrap(), b"taken");
    assert_eq!(get(&at("sub/.tensors/c"), "tier"), "absent");
    let check = |name: &dyn Fn(&str) -> std::path::PathBuf| {
        for gone in ["b", "deep/a", "c", "x", "x.npy"] {
            assert!(!name(gone).exists(), "{gone}");
        }
        assert!(fs::read(name("sub/b")).unwrap() == tensor && fs::read(name("y.npy")).unwrap() == array);
        assert!(fs::read(name("sub/n.safetensors")).unwrap() == container);
        assert_eq!(fs::read(name("sub/c")).unwrap(), b"taken");
    };
    check(&at);
    // Back to the old name, which is free again.
    fs::rename(at("sub/n.safetensors"), at("n.safetensors")).unwrap();
    assert_eq!(get(&at("c"), "tier"), "absent");
    assert!(try_get(&at("n.safetensors"), "why").is_err());
    fs::rename(at("n.safetensors"), at("sub/n.safetensors")).unwrap();
    mounted.kill();
    drop(mounted);
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    check(&|name| mounted.path(Path::new("t/c").join(name)));
    assert_eq!(get(&mounted.path("t/c/sub/b"), "tier"), "q3");
}

#[test]
fn a_tensor_and_its_container_agree_after_a_move_before_the_close() {
    let place = Place::new();
    let large = place.write("large.npy", npy_file(&Random(57).floats(4_000_000)));
    let small = place.write("x.npy", npy_file(&Random(58).floats(20_000)));
    place.import("t/c", &[&large, &small], &[]);
    let mounted = place.mount(&[]);
    let path = mounted.path("t/c/large");
    set(&path, "lossy", "allow").unwrap();
    // The kernel has pages of the container.
    let container = fs::File::open(mounted.path("t/c/x.npy")).unwrap();
    let begin = container.metadata().unwrap().len() - 80_000;
    let shown = || {
        let mut shown = [0; 4];
        container.read_exact_at(&mut shown, begin).unwrap();
        shown
    };
    let mut last = shown();
    for (round, tier) in ["q8", "q7", "q5", "q3"].into_iter().enumerate() {
        let writer = fs::OpenOptions::new().write(true).open(mounted.path("t/c/x")).unwrap();
        let written = [round as u8 + 1, 2, 3, 4];
        writer.write_all_at(&written, 0).unwrap();
        assert_ne!(written, last);
        std::thread::scope(|scope| {
            let moving = scope.spawn(|| set(&path, "tier", tier).unwrap());
            wait_until("the move", || get(&path, "tier").contains("->") || moving.is_finished());
            drop(writer);
            assert_eq!(shown(), written, "on the way to {tier}");
        });
        last = written;
    }
}
