//! Moves between tiers. A moved tensor reads as after an import into that tier; other tests compare imports with an
//! independent implementation.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use support::{
    Aligned, Mounted, Place, Random, container_of, get, npy_file, open_direct, read_at, refused_set, run,
    set, try_get, wait_until,
};

const TENSORS: [(&str, usize); 4] = [("a", 200_000), ("b/w", 70_001), ("norm", 80_000), ("small", 100)];

/// The contents of each tensor and of the container after an import into a tier.
fn imported_into(source: &[u8], tier: &str, encoder: &str) -> Vec<Vec<u8>> {
    let place = Place::new();
    let model = place.write("m.safetensors", source);
    place.import("t/c", &[&model], &["--tier", tier, "--encoder", encoder]);
    let mounted = place.mount(&["--read-only"]);
    all(&mounted)
}

fn all(mounted: &Mounted) -> Vec<Vec<u8>> {
    let names = TENSORS.iter().map(|(name, _)| *name).chain(["m.safetensors"]);
    names.map(|name| fs::read(mounted.path(Path::new("t/c").join(name))).unwrap()).collect()
}

pub fn stored_bytes(store: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut waiting = vec![store.to_path_buf()];
    let mut bytes = 0;
    while let Some(path) = waiting.pop() {
        let seen = fs::symlink_metadata(&path).unwrap();
        bytes += seen.blocks() * 512;
        if seen.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    bytes
}

#[test]
fn a_moved_container_reads_as_an_import_into_the_same_tier() {
    let source = container_of(&mut Random(11), &TENSORS);
    for (tier, encoder) in [("q8:all", "absmax"), ("q5:all", "best"), ("q3:all", "best"), ("q3x:all", "best")]
    {
        let place = Place::new();
        let model = place.write("m.safetensors", &source);
        place.import("t/c", &[&model], &[]);
        let mounted = place.mount(&[]);
        let container = mounted.path("t/c/m.safetensors");
        // The kernel must drop its cached pages.
        let before = all(&mounted);
        let exact_bytes = stored_bytes(&place.store());
        assert!(refused_set(&container, "tier", tier, Errno::PERM).contains("lossy"));
        assert_eq!(all(&mounted), before);
        set(&container, "lossy", "allow").unwrap();
        set(&container, "encoder", encoder).unwrap();
        let mtime = fs::metadata(&container).unwrap().modified().unwrap();
        set(&container, "tier", tier).unwrap();
        let wanted = imported_into(&source, tier, encoder);
        assert_eq!(all(&mounted), wanted, "{tier} {encoder}");
        assert!(fs::metadata(&container).unwrap().modified().unwrap() > mtime);
        assert_eq!(try_get(&container, "why").ok(), None);
        assert!(stored_bytes(&place.store()) < exact_bytes / 2 || tier == "q5", "space was not given back");
        mounted.unmount();
        run(["fsck".as_ref(), place.store().as_os_str()]).ok();
        let mounted = place.mount(&["--read-only"]);
        assert_eq!(all(&mounted), wanted, "{tier} {encoder}, mounted again");
    }
}

#[test]
fn a_tensor_goes_down_step_by_step_and_not_up_again() {
    let mut random = Random(12);
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&random.floats(300_000)));
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/w");
    set(&mounted.path("t/c"), "lossy", "allow").unwrap();
    for (tier, shown) in [("hot", "q8"), ("warm", "q7"), ("q5", "q5"), ("q3x", "q3x"), ("cold", "q3")] {
        set(&tensor, "tier", tier).unwrap();
        assert_eq!(get(&tensor, "tier"), shown);
        assert!(get(&tensor, "error").starts_with("max="));
    }
    let cold = fs::read(&tensor).unwrap();
    for tier in ["exact", "q8", "q3x"] {
        assert!(refused_set(&tensor, "tier", tier, Errno::INVAL).contains("more precise"), "{tier}");
    }
    set(&tensor, "tier", "q3").unwrap();
    assert_eq!(fs::read(&tensor).unwrap(), cold);
    // Written bytes are exact, and follow the next move.
    let new = random.floats(300_000);
    let file = fs::OpenOptions::new().write(true).open(&tensor).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &new, 0).unwrap();
    drop(file);
    assert_eq!((get(&tensor, "tier"), fs::read(&tensor).unwrap()), ("exact".to_owned(), new));
    set(&tensor, "tier", "q5").unwrap();
    assert_eq!(get(&tensor, "tier"), "q5");
}

#[test]
fn blocks_that_cannot_be_encoded_stay_exact() {
    let mut random = Random(13);
    let mut elements = random.floats(100_000);
    elements[200_000..200_004].copy_from_slice(&f32::NAN.to_le_bytes());
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&elements));
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/w");
    set(&tensor, "lossy", "allow").unwrap();
    for _ in 0..2 {
        set(&tensor, "tier", "q8").unwrap();
        assert_eq!(get(&tensor, "tier"), "mixed");
    }
    let found = fs::read(&tensor).unwrap();
    let block = 200_000 / 16_384 * 16_384;
    assert_eq!(found[block..block + 16_384], elements[block..block + 16_384]);
    let plain = place.write("plain.bin", b"no tensor");
    fs::copy(plain, mounted.path("t/c/plain.bin")).unwrap();
    assert!(refused_set(&mounted.path("t/c/plain.bin"), "tier", "q8", Errno::PERM).contains("dtype"));
}

#[test]
fn a_directory_is_moved_in_the_background_and_small_and_listed_tensors_stay() {
    let source = container_of(&mut Random(14), &TENSORS);
    let place = Place::new();
    let model = place.write("m.safetensors", &source);
    place.import("t/c", &[&model], &[]);
    let mounted = place.mount(&[]);
    let collection = mounted.path("t/c");
    assert_eq!(set(&collection, "tier", "q8:all"), Err(Errno::PERM));
    set(&collection, "lossy", "allow").unwrap();
    set(&collection, "tier", "q8:all").unwrap();
    let jobs = mounted.path(".ctl/jobs");
    wait_until("the job ends", || fs::read_to_string(&jobs).unwrap().contains("done"));
    assert!(fs::read_to_string(&jobs).unwrap().starts_with("1 tier=q8:all t/c done in "));
    for (name, _) in TENSORS {
        assert_eq!(get(&collection.join(name), "tier"), "q8", "{name}");
    }
    assert_eq!(all(&mounted), imported_into(&source, "q8:all", "best"));
}

#[test]
fn readers_see_each_moving_block_in_its_old_or_new_state() {
    let mut random = Random(15);
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&random.floats(2 << 20)));
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/w");
    set(&tensor, "lossy", "allow").unwrap();
    let exact = fs::read(&tensor).unwrap();
    let wanted = {
        let place = Place::new();
        place.import("t/c", &[&source], &["--tier", "q8:all"]);
        fs::read(place.mount(&["--read-only"]).path("t/c/w")).unwrap()
    };
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (tensor, exact, wanted, ended) = (&tensor, &exact, &wanted, &ended);
            scope.spawn(move || {
                // With the cache, whole pages are of one tier; without it, whole blocks.
                let direct = seed % 2 == 0;
                let file = if direct { open_direct(tensor) } else { fs::File::open(tensor).unwrap() };
                let mut random = Random(seed);
                let mut buffer = Aligned::new(16_384);
                let len = if direct { 16_384 } else { 4096 };
                while !ended.load(Ordering::Relaxed) {
                    let at = random.below(exact.len() / len) * len;
                    let found = buffer.pages(len);
                    assert_eq!(read_at(&file, found, at as u64), len);
                    let range = at..at + len;
                    assert!(found == &exact[range.clone()] || found == &wanted[range], "one of neither");
                }
            });
        }
        set(&tensor, "tier", "q8").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::read(&tensor).unwrap(), wanted);
}

#[test]
fn a_plain_file_declared_a_tensor_moves_like_one() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    let path = mounted.path("t/c/raw.bin");
    let floats = Random(77).floats(70_000);
    fs::write(&path, &floats).unwrap();
    set(&path, "dtype", "f32").unwrap();
    set(&path, "shape", "700x100").unwrap();
    set(&path, "lossy", "allow").unwrap();
    set(&path, "tier", "q8").unwrap();
    assert_eq!(get(&path, "tier"), "q8");
    let moved = fs::read(&path).unwrap();
    let value = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    let pairs = || moved.chunks_exact(4).zip(floats.chunks_exact(4));
    assert!(moved != floats && pairs().all(|(one, other)| (value(one) - value(other)).abs() < 0.01));
    // Its codes are those of f32 now.
    assert!(refused_set(&path, "dtype", "bf16", Errno::PERM).contains("exact"));
    let cut: Vec<u8> = floats.chunks_exact(4).flat_map(|four| [four[2], four[3]]).collect();
    fs::write(&path, &cut).unwrap();
    set(&path, "dtype", "bf16").unwrap();
    set(&path, "shape", "700x100").unwrap();
    set(&path, "tier", "q5").unwrap();
    assert_eq!(get(&path, "tier"), "q5");
    let halves = fs::read(&path).unwrap();
    fs::write(mounted.path("t/c/.ctl/compact"), "start").unwrap();
    assert!(fs::read(&path).unwrap() == halves);
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    assert!(fs::read(mounted.path("t/c/raw.bin")).unwrap() == halves);
    assert_eq!(get(&mounted.path("t/c/raw.bin"), "dtype"), "bf16");
    // Written whole it is still a tensor of the same type.
    fs::write(mounted.path("t/c/raw.bin"), &cut).unwrap();
    set(&mounted.path("t/c/raw.bin"), "tier", "q8").unwrap();
    assert_eq!(get(&mounted.path("t/c/raw.bin"), "tier"), "q8");
}

/// Allocated bytes of the files below a directory of a collection.
fn allocated(place: &Place, below: &str) -> u64 {
    stored_bytes(&place.store().join("t/c").join(below))
}

#[test]
fn a_move_gives_back_every_page_that_only_moved_tensors_used() {
    let place = Place::new();
    // No tensor begins at a page.
    let names: Vec<String> = (0..40).map(|number| format!("w{number:02}")).collect();
    let tensors: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), 25_001)).collect();
    let source = container_of(&mut Random(41), &tensors);
    let model = place.write("m.safetensors", &source);
    place.import("t/c", &[&model], &[]);
    let mounted = place.mount(&[]);
    let container = mounted.path("t/c/m.safetensors");
    let whole = allocated(&place, "data");
    assert!(whole >= source.len() as u64);
    set(&container, "lossy", "allow").unwrap();
    set(&container, "tier", "q5:all").unwrap();
    // The header and the end of the file keep their pages; the file system adds some.
    let left = allocated(&place, "data");
    assert!(left <= 16 << 10, "{left} of {whole} bytes are still taken");
    let moved = fs::read(&container).unwrap();
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    assert!(fs::read(place.mount(&[]).path("t/c/m.safetensors")).unwrap() == moved);
}

#[test]
fn a_cancelled_move_leaves_each_block_whole_in_its_old_or_new_tier() {
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&Random(42).floats(12 << 20)));
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&[]);
    let (collection, tensor) = (mounted.path("t/c"), mounted.path("t/c/w"));
    let exact = fs::read(&tensor).unwrap();
    set(&collection, "lossy", "allow").unwrap();
    set(&collection, "tier", "q8:all").unwrap();
    let jobs = || fs::read_to_string(mounted.path(".ctl/jobs")).unwrap();
    wait_until("it has begun", || jobs().contains(" 8388608 of ") || jobs().contains("done"));
    if fs::write(mounted.path(".ctl/jobs"), "cancel 1").is_err() {
        assert!(jobs().contains(" done in "), "{}", jobs());
    }
    wait_until("it ends", || jobs().contains("cancelled") || jobs().contains(" done in "));
    let found = fs::read(&tensor).unwrap();
    let moved = {
        let place = Place::new();
        place.import("t/c", &[&source], &["--tier", "q8:all"]);
        fs::read(place.mount(&["--read-only"]).path("t/c/w")).unwrap()
    };
    let blocks = found.chunks(16_384).zip(exact.chunks(16_384)).zip(moved.chunks(16_384));
    for (index, ((found, exact), moved)) in blocks.enumerate() {
        assert!(found == exact || found == moved, "block {index} is neither");
    }
    mounted.kill();
    drop(mounted);
    let mounted = place.mount(&[]);
    assert!(fs::read(mounted.path("t/c/w")).unwrap() == found, "after a crash");
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn a_program_that_polls_the_list_of_jobs_is_woken_when_a_move_ends() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&Random(43).floats(1 << 20)));
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&[]);
    let is_ready = |file: &fs::File, seconds: i64| {
        let most = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&most)).unwrap() == 1
    };
    let open = || fs::File::open(mounted.path(".ctl/jobs")).unwrap();
    let jobs = open();
    assert!(!is_ready(&jobs, 0), "no job was queued");
    assert!(is_ready(&fs::File::open(mounted.path("t/c/w")).unwrap(), 0), "a file is always ready");
    set(&mounted.path("t/c"), "lossy", "allow").unwrap();
    set(&mounted.path("t/c"), "tier", "q8:all").unwrap();
    assert!(is_ready(&jobs, 60), "a job was queued");
    // Each wake-up shows another state; a sleep here could only hide a lost wake-up.
    for _ in 0..4 {
        let jobs = open();
        if fs::read_to_string(mounted.path(".ctl/jobs")).unwrap().contains(" done in ") {
            return;
        }
        assert!(is_ready(&jobs, 60), "nothing woke the program");
    }
    panic!("the job has not ended");
}
