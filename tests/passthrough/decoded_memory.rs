//! The memory of decoded copies: its budget, what goes first, and what is given back when memory is scarce.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::{
    Mapping, Mounted, Place, Random, WritableMapping, assert_same, npy_file, program, read_at, scale,
    wait_until,
};

const MIB: u64 = 1 << 20;

/// Arrays of 4 MiB each, encoded.
fn arrays(count: usize) -> (Place, Vec<String>) {
    let (place, mut random) = (Place::new(), Random(3));
    let names: Vec<String> = (0..count).map(|number| format!("x{number}.npy")).collect();
    let sources: Vec<PathBuf> =
        names.iter().map(|name| place.write(name, npy_file(&random.floats(1 << 20)))).collect();
    let sources: Vec<&Path> = sources.iter().map(PathBuf::as_path).collect();
    place.import("demo/model", &sources, &["--tier", "q5:all"]);
    (place, names)
}

fn hits(mounted: &Mounted, path: &Path) -> bool {
    let before = mounted.counter("decoded_hits");
    drop(File::open(path).unwrap());
    mounted.counter("decoded_hits") > before
}

/// Opens a file until it has a copy.
#[track_caller]
fn decode(mounted: &Mounted, path: &Path) {
    wait_until("a decoded copy", || hits(mounted, path));
}

#[test]
fn the_copies_that_were_opened_last_stay_within_the_budget() {
    let (place, names) = arrays(6);
    let mounted = place.mount(&["--decode-all", "-o", "decoded_cache=13M"]);
    let paths: Vec<PathBuf> =
        names.iter().map(|name| mounted.path(Path::new("demo/model").join(name))).collect();
    let held = || mounted.counter("decoded_bytes");
    for path in &paths {
        decode(&mounted, path);
        assert!(held() <= 13 * MIB, "{}", held());
    }
    assert!(held() > 12 * MIB, "three fit");
    let misses = mounted.counter("decoded_misses");
    for path in &paths[3..] {
        assert!(hits(&mounted, path), "{}", path.display());
    }
    assert_eq!(mounted.counter("decoded_misses"), misses);
    mounted.unmount();
}

#[test]
fn copies_that_are_open_or_mapped_stay_and_the_daemon_serves_the_rest() {
    let (place, names) = arrays(4);
    let mounted = place.mount(&["--decode-all", "-o", "decoded_cache=9M"]);
    let paths: Vec<PathBuf> =
        names.iter().map(|name| mounted.path(Path::new("demo/model").join(name))).collect();
    decode(&mounted, &paths[0]);
    let open = File::open(&paths[0]).unwrap();
    decode(&mounted, &paths[1]);
    // Its descriptor is closed, and the mapping goes on.
    let mut mapped = WritableMapping::whole(&File::open(&paths[1]).unwrap(), libc::MAP_PRIVATE);
    let wanted: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    for _ in 0..2 {
        for (path, wanted) in paths.iter().zip(&wanted).skip(2) {
            assert!(!hits(&mounted, path), "there is no room");
            assert_same(Mapping::of(path, libc::MAP_SHARED).bytes(), wanted, "by the daemon");
        }
    }
    let mut bytes = vec![0; wanted[0].len()];
    assert_eq!(read_at(&open, &mut bytes, 0), bytes.len());
    assert_same(&bytes, &wanted[0], "an open copy");
    assert_same(mapped.bytes(), &wanted[1], "a mapped copy");
    drop((open, mapped));
    decode(&mounted, &paths[2]);
    assert!(mounted.counter("decoded_bytes") <= 9 * MIB);
    mounted.unmount();
}

#[test]
fn several_opens_wait_for_one_decode() {
    let (place, names) = arrays(1);
    let mounted = place.mount(&["--decode-all", "-o", "decoded_cache=64M"]);
    let path = mounted.path(Path::new("demo/model").join(&names[0]));
    let read: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..8).map(|_| scope.spawn(|| fs::read(&path).unwrap())).collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    read.iter().for_each(|bytes| assert_same(bytes, &read[0], "a reader"));
    assert!(mounted.counter("decoded_bytes") <= 5 * MIB, "{}", mounted.counter("decoded_bytes"));
    mounted.unmount();
}

/// A control group with little memory. It is removed with the value.
struct Group(PathBuf);

impl Group {
    /// A group of either version. `None`, with the reason in the output, where none can be made.
    fn new(bytes: u64) -> Option<Group> {
        let made =
            ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"].map(|root| Group::below(Path::new(root), bytes));
        let reasons: Vec<String> = made.iter().filter_map(|made| made.as_ref().err().cloned()).collect();
        let found = made.into_iter().find_map(Result::ok);
        if found.is_none() {
            eprintln!("skipped: no control group for memory can be made: {}", reasons.join("; "));
        }
        found
    }

    fn below(root: &Path, bytes: u64) -> Result<Group, String> {
        // A process may run several tests.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("tierfs-test-{}-{number}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let group = Group(path);
        let limit = ["memory.max", "memory.limit_in_bytes"].map(|name| group.0.join(name));
        let limit = limit.iter().find(|limit| limit.exists());
        let limit = limit.ok_or_else(|| format!("{}: no limit of memory", root.display()))?;
        fs::write(limit, bytes.to_string()).map_err(|error| format!("{}: {error}", limit.display()))?;
        Ok(group)
    }

    fn number(&self, names: [&str; 2]) -> u64 {
        let text = names.iter().find_map(|name| fs::read_to_string(self.0.join(name)).ok()).unwrap();
        text.trim().parse().unwrap()
    }

    fn used(&self) -> u64 {
        self.number(["memory.current", "memory.usage_in_bytes"])
    }

    fn limit(&self) -> u64 {
        self.number(["memory.max", "memory.limit_in_bytes"])
    }

    /// The memory that its processes can still have, as the daemon counts it.
    fn available(&self) -> u64 {
        let statistics = fs::read_to_string(self.0.join("memory.stat")).unwrap();
        let of = |name: &str| {
            let line = statistics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.map_or(0, |number| number.parse::<u64>().unwrap())
        };
        (self.limit() + of("inactive_file") + of("active_file")).saturating_sub(self.used())
    }

    /// How many of its processes the kernel has killed for want of memory.
    fn killed(&self) -> u64 {
        let files = ["memory.events", "memory.oom_control"].map(|name| fs::read_to_string(self.0.join(name)));
        let text = files.into_iter().find_map(Result::ok).unwrap();
        let number = text.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap();
        number.trim().parse().unwrap()
    }

    /// A command that runs a shell line in the group. `$0` is the program under test.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        let line = format!("echo $$ > '{}/cgroup.procs'; {line}", self.0.display());
        command.args(["-c", &line]).arg(program());
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group's processes have been told to end.
        let until = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < until {
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}

mod heavy {
    use super::*;

    #[test]
    fn all_copies_are_given_back_within_a_second_when_memory_becomes_scarce() {
        let Some(group) = Group::new(400 * MIB) else { return };
        let (place, names) = arrays(12);
        let mut daemon = group.command("exec \"$0\" \"$@\"");
        daemon.env("TIERFS_LOG", "info");
        let mounted = place.mount_by(&mut daemon, "mnt", &["--decode-all", "-o", "decoded_cache=25%"]);
        assert_eq!(mounted.counter("decoded_budget_bytes") / MIB, 100, "a quarter of the group's memory");
        let paths: Vec<PathBuf> =
            names.iter().map(|name| mounted.path(Path::new("demo/model").join(name))).collect();
        paths.iter().for_each(|path| decode(&mounted, path));
        let held = mounted.counter("decoded_bytes");
        assert!(held > 40 * MIB, "{held}");
        let kept = File::open(&paths[0]).unwrap();
        let mut wanted = vec![0; 4096];
        read_at(&kept, &mut wanted, 1 << 20);
        // Most of the memory at once, the rest so slowly that the daemon can follow, until the test ends it.
        let line = format!(
            "exec python3 -c '\nimport time\nheld = [b\"x\" * {}]\nprint(1, flush=True)\nwhile True:\n \
             held.append(b\"x\" * (1 << 20))\n time.sleep(0.02)'",
            group.limit() - 60 * MIB - group.used()
        );
        let mut hog = group.command(&line).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        hog.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
        wait_until("memory to become scarce", || group.available() < 16 * MIB);
        let began = Instant::now();
        wait_until("the copies to be given back", || mounted.counter("decoded_bytes") <= 5 * MIB);
        let took = began.elapsed();
        hog.kill().unwrap();
        hog.wait().unwrap();
        println!("given back {took:?} after memory became scarce");
        assert!(took <= Duration::from_secs(1), "{took:?}");
        let mut bytes = vec![0; 4096];
        assert_eq!(read_at(&kept, &mut bytes, 1 << 20), 4096);
        assert_same(&bytes, &wanted, "an open copy stays");
        assert!(mounted.daemon().is_some() && group.killed() == 0, "a process was killed");
        assert!(mounted.log().contains("memory is scarce"), "it was given back for another reason");
        fs::read(&paths[5]).unwrap();
        drop(kept);
        mounted.unmount();
    }

    #[test]
    fn a_daemon_with_little_memory_keeps_to_its_budget_and_is_not_killed() {
        let Some(group) = Group::new(192 * MIB) else { return };
        let (place, names) = arrays(32);
        let mut daemon = group.command("exec \"$0\" \"$@\"");
        let mounted = place.mount_by(&mut daemon, "mnt", &["--decode-all", "-o", "decoded_cache=40%"]);
        let budget = mounted.counter("decoded_budget_bytes");
        assert_eq!(budget / MIB, 76);
        let paths: Vec<PathBuf> =
            names.iter().map(|name| mounted.path(Path::new("demo/model").join(name))).collect();
        let first: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
        let reader = |seed: u64| {
            let mut random = Random(seed);
            let mut mapped = Vec::new();
            for _ in 0..100 * scale() {
                let at = random.below(paths.len());
                let mapping = Mapping::of(&paths[at], libc::MAP_SHARED);
                assert_same(mapping.bytes(), &first[at], &names[at]);
                // Some copies stay in use meanwhile.
                mapped.push(mapping);
                if mapped.len() > 3 {
                    mapped.swap_remove(random.below(4));
                }
                let held = mounted.counter("decoded_bytes");
                assert!(held <= budget, "{held} of {budget}");
            }
        };
        std::thread::scope(|scope| (1..=3).for_each(|seed| drop(scope.spawn(move || reader(seed)))));
        assert!(mounted.counter("decoded_hits") > 30, "copies were used");
        assert!(mounted.daemon().is_some() && group.killed() == 0, "a process was killed");
        mounted.unmount();
    }
}
