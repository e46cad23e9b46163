//! Automatic moves in a mount with short ticks.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use support::{
    self, Aligned, Place, Random, get, npy_file, open_direct, read_at, refused_set, run, set, wait_until,
};

/// Ticks of one second, and tiers that a tensor keeps for one tick.
pub fn short_ticks(place: &Place, more: &str) {
    let path = place.store().join("tierfs.toml");
    let text = fs::read_to_string(&path).unwrap();
    let text = text
        .replace("tick_seconds = 60", "tick_seconds = 1")
        .replace("hold = 3600", "hold = 1")
        .replace("pack_idle = 3600", "pack_idle = 1");
    assert!(text.contains("tick_seconds = 1\n") && text.contains("hold = 1\n"), "{text}");
    fs::write(&path, text + more).unwrap();
}

/// An array of two dimensions, large enough for automatic moves.
fn array(random: &mut Random) -> Vec<u8> {
    let mut file = npy_file(&random.floats(1 << 17));
    let shape = b"(131072,), }".as_slice();
    let place = file.windows(shape.len()).position(|text| text == shape).unwrap();
    file[place..place + 15].copy_from_slice(b"(2, 65536), }  ");
    file
}

/// The count and the time of the attribute `access`.
fn accesses(path: &Path) -> (u32, u64) {
    let text = get(path, "access");
    let (count, time) = text.split_once(' ').unwrap();
    (count.parse().unwrap(), time.parse().unwrap())
}

#[test]
fn an_unread_tensor_is_demoted_step_by_step_and_a_constantly_read_one_stays() {
    let mut random = Random(31);
    let place = Place::new();
    let files = ["idle.npy", "busy.npy"].map(|name| place.write(name, array(&mut random)));
    place.import("t/c", &[&files[0], &files[1]], &[]);
    short_ticks(&place, "");
    let mounted = place.mount(&[]);
    let (idle, busy) = (mounted.path("t/c/idle"), mounted.path("t/c/busy"));
    let exact = fs::read(&busy).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let file = open_direct(&busy);
            let mut pages = Aligned::new(exact.len());
            while !is_done.load(Ordering::Relaxed) {
                assert_eq!(read_at(&file, pages.pages(exact.len()), 0), exact.len());
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        wait_until("it is used", || get(&busy, "score").parse::<f64>().unwrap() > 512.0);
        set(&mounted.path("t/c"), "lossy", "allow").unwrap();
        fs::write(mounted.path("t/c/.ctl/policy"), "auto:q3\n").unwrap();
        wait_until("it is cold", || get(&idle, "tier") == "q3");
        is_done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    assert_eq!(get(&busy, "tier"), "exact");
    assert_eq!(fs::read(&busy).unwrap(), exact);
    let told = || fs::read_to_string(mounted.path(".ctl/events")).unwrap();
    // The event follows the move.
    wait_until("the last step is told", || told().contains("q5 -> q3"));
    let events = told();
    let moves: Vec<&str> = events.lines().filter(|line| line.contains("\"policy=auto\"")).collect();
    for (line, step) in
        moves.iter().zip(["exact -> packed", "packed -> q8", "q8 -> q7", "q7 -> q5", "q5 -> q3"])
    {
        assert!(line.contains("t/c/idle") && line.contains(step), "{line}");
    }
    assert_eq!(moves.len(), 5, "{moves:?}");
    // The kernel dropped its pages: it shows the stored bytes.
    let shown = fs::read(&idle).unwrap();
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&["--read-only"]);
    assert_eq!(fs::read(mounted.path("t/c/idle")).unwrap(), shown);
}

#[test]
fn accesses_are_counted_shown_and_kept() {
    let place = Place::new();
    let file = place.write("w.npy", array(&mut Random(32)));
    place.import("t/c", &[&file], &[]);
    let mounted = place.mount(&[]);
    let (tensor, container) = (mounted.path("t/c/w"), mounted.path("t/c/w.npy"));
    assert_eq!(accesses(&tensor), (0, 0));
    fs::read(&tensor).unwrap();
    let (count, last) = accesses(&tensor);
    // The open, and at least one read.
    assert!(count >= 2 && last > 0 && last.is_multiple_of(60), "{count} {last}");
    assert_eq!(accesses(&container), (count, last), "the same bytes");
    let score = get(&tensor, "score").parse::<f64>().unwrap();
    assert!(score > 50.0 && score <= 1000.0, "{score}");
    assert!(
        set(&tensor, "access", "0") == Err(Errno::PERM) && set(&tensor, "score", "0") == Err(Errno::PERM)
    );
    mounted.unmount();
    assert!(place.store().join("t/c/access").exists());
    let mounted = place.mount(&[]);
    assert_eq!(accesses(&mounted.path("t/c/w")), (count, last));
    mounted.unmount();
    fs::File::options().append(true).open(place.store().join("t/c/access")).unwrap().write_all(b"x").unwrap();
    let mounted = place.mount(&[]);
    assert_eq!(accesses(&mounted.path("t/c/w")), (0, 0));
}

#[test]
fn a_cache_keeps_to_its_quota_and_drops_the_least_recently_used() {
    let mut random = Random(33);
    let place = Place::new();
    place.import("t/c", &[&place.write("seed", b"x")], &[]);
    short_ticks(&place, "");
    let mounted = place.mount(&[]);
    let cache = mounted.path("t/c/cache");
    fs::create_dir_all(cache.join("deep")).unwrap();
    fs::create_dir_all(mounted.path("t/c/other")).unwrap();
    let names = ["old", "deep/used", "open", "new"];
    for name in names {
        fs::write(cache.join(name), random.bytes(100_000)).unwrap();
    }
    fs::write(mounted.path("t/c/other/file"), random.bytes(100_000)).unwrap();
    fs::read(cache.join("deep/used")).unwrap();
    let open = fs::File::open(cache.join("open")).unwrap();
    assert!(refused_set(&cache.join("new"), "policy", "cache:5", Errno::INVAL).contains("directory"));
    for wrong in
        ["cache", "cache 5", "cache:-1", "cache:x", "cache:5GB", "cache:0%", "cache:99999999999999999999"]
    {
        assert_eq!(set(&cache, "policy", wrong), Err(Errno::INVAL), "{wrong}");
    }
    set(&cache, "policy", "cache:300000").unwrap();
    assert_eq!(get(&cache, "policy"), "cache:300000");
    // The kernel caches names for a while; it asks for each listing.
    let there = || {
        let listed = [support::names(&cache), support::names(&cache.join("deep"))].concat();
        names.map(|name| listed.iter().any(|listed| name.ends_with(listed.as_str())))
    };
    wait_until("one is gone", || there() == [false, true, true, true]);
    set(&cache, "policy", "cache:200000").unwrap();
    // The file that was opened last but one is open, and the file that was read last stays.
    wait_until("another is gone", || there() == [false, true, true, false]);
    set(&cache, "policy", "cache:0").unwrap();
    wait_until("what is not open is gone", || there() == [false, false, true, false]);
    drop(open);
    wait_until("all is gone", || there() == [false; 4]);
    assert_eq!(fs::metadata(mounted.path("t/c/other/file")).unwrap().len(), 100_000);
    assert!(mounted.path("t/c/seed").exists());
    let events = fs::read_to_string(mounted.path(".ctl/events")).unwrap();
    assert_eq!(events.lines().filter(|line| line.contains("\"policy=cache\"")).count(), 4);
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn a_tensor_in_place_is_demoted_automatically_and_restored_exactly_and_a_pinned_one_stays() {
    let mut random = Random(37);
    let place = Place::new();
    let files = ["moving.npy", "pinned.npy"].map(|name| place.write(name, array(&mut random)));
    place.import("t/c", &[&files[0], &files[1]], &["--in-place"]);
    short_ticks(&place, "");
    let mounted = place.mount(&[]);
    let (moving, pinned) = (mounted.path("t/c/moving"), mounted.path("t/c/pinned"));
    let source = |name: &str| fs::read(place.path(name)).unwrap();
    let exact = fs::read(&moving).unwrap();
    assert!(source("moving.npy").ends_with(&exact));
    set(&pinned, "pin", "1").unwrap();
    assert_eq!(get(&moving, "lossy"), "deny", "the source alone allows it");
    fs::write(mounted.path("t/c/.ctl/policy"), "auto:q3\n").unwrap();
    wait_until("it is cold", || get(&moving, "tier") == "q3");
    assert_eq!(get(&pinned, "tier"), "exact");
    refused_set(&pinned, "tier", "q8", Errno::BUSY);
    assert!(get(&pinned, "why").contains("pinned"), "{}", get(&pinned, "why"));
    let lossy = fs::read(&moving).unwrap();
    assert!(lossy.len() == exact.len() && lossy != exact);
    wait_until("it is back", || {
        let file = open_direct(&moving);
        let mut pages = Aligned::new(exact.len());
        assert_eq!(read_at(&file, pages.pages(exact.len()), 0), exact.len());
        get(&moving, "tier") == "exact"
    });
    fs::write(mounted.path("t/c/.ctl/policy"), "manual\n").unwrap();
    set(&moving, "tier", "exact").unwrap();
    assert!(fs::read(&moving).unwrap() == exact);
    assert!(fs::read(mounted.path("t/c/moving.npy")).unwrap() == source("moving.npy"));
    let told = fs::read_to_string(mounted.path(".ctl/events")).unwrap();
    let migrations = told.lines().filter(|line| line.contains("\"migration\""));
    assert!(
        migrations.clone().count() >= 2 && migrations.clone().all(|line| !line.contains("pinned")),
        "{told}"
    );
    let jobs = fs::read_to_string(mounted.path(".ctl/jobs")).unwrap();
    assert!(!jobs.contains("failed"), "{jobs}");
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn a_cache_makes_room_while_too_little_of_the_disk_is_free() {
    let mut random = Random(34);
    let place = Place::new();
    place.import("t/c", &[&place.write("seed", b"x")], &[]);
    let mounted = place.mount(&[]);
    let cache = mounted.path("t/c/cache");
    fs::create_dir(&cache).unwrap();
    for name in ["one", "open", "three"] {
        fs::write(cache.join(name), random.bytes(100_000)).unwrap();
    }
    fs::write(mounted.path("t/c/beside"), random.bytes(100_000)).unwrap();
    let open = fs::File::open(cache.join("open")).unwrap();
    set(&cache, "policy", "cache:100M").unwrap();
    for wrong in ["-1", "50GB", "lots", "1e9"] {
        assert!(refused_set(&cache, "free_min", wrong, Errno::INVAL).contains("bytes, or a size"), "{wrong}");
    }
    // No disk has so much.
    set(&cache, "free_min", "8000T").unwrap();
    assert_eq!(get(&cache.join("open"), "free_min"), (8000_u64 << 40).to_string());
    let names = || {
        let entries = fs::read_dir(&cache).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    wait_until("the files that nobody has open are gone", || names() == ["open"]);
    drop(open);
    wait_until("the last one is gone", || names().is_empty());
    assert_eq!(fs::read(mounted.path("t/c/beside")).unwrap().len(), 100_000);
    mounted.unmount();
}
