//! The memory of decoded copies: its budget, what goes first, and what is given back when memory is scarce.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{
    Mapping, Mounted, Place, Random, WritableMapping, assert_same, npy_file, program, read_at, wait_until,
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
    let paths: Vec<PathBuf> = names.iter().map(|name| mounted.path("demo/model").join(name)).collect();
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
    let paths: Vec<PathBuf> = names.iter().map(|name| mounted.path("demo/model").join(name)).collect();
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
    let path = mounted.path("demo/model").join(&names[0]);
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
    /// Of either version.
    fn new(bytes: u64) -> Group {
        let name = format!("tierfs-test-{}", std::process::id());
        for (root, limit) in
            [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")]
        {
            let group = Path::new(root).join(&name);
            if fs::create_dir(&group).is_ok() {
                if group.join(limit).exists() {
                    fs::write(group.join(limit), bytes.to_string()).unwrap();
                    return Group(group);
                }
                fs::remove_dir(&group).unwrap();
            }
        }
        panic!("no control group for memory can be made");
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
        let (place, names) = arrays(12);
        let group = Group::new(400 * MIB);
        let mut daemon = group.command("exec \"$0\" \"$@\"");
        daemon.env("TIERFS_LOG", "info");
        let mounted = place.mount_by(&mut daemon, "mnt", &["--decode-all", "-o", "decoded_cache=25%"]);
        assert_eq!(mounted.counter("decoded_budget_bytes") / MIB, 100, "a quarter of the group's memory");
        let paths: Vec<PathBuf> = names.iter().map(|name| mounted.path("demo/model").join(name)).collect();
        paths.iter().for_each(|path| decode(&mounted, path));
        let held = mounted.counter("decoded_bytes");
        assert!(held > 40 * MIB, "{held}");
        let kept = File::open(&paths[0]).unwrap();
        let mut wanted = vec![0; 4096];
        read_at(&kept, &mut wanted, 1 << 20);
        let used = ["memory.usage_in_bytes", "memory.current"].map(|name| group.0.join(name));
        let used = used.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap();
        let used: u64 = used.trim().parse().unwrap();
        // Most of the group's memory at once, the rest so slowly that the daemon can follow.
        let line = format!(
            "exec python3 -c '\nimport time\nheld = [b\"x\" * {}]\nprint(1, flush=True)\n\
             for step in range(40):\n held.append(b\"x\" * (1 << 20))\n time.sleep(0.02)\ninput()'",
            350 * MIB - used
        );
        let mut hog = group.command(&line).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        hog.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
        let began = Instant::now();
        wait_until("the copies to be given back", || mounted.counter("decoded_bytes") <= 5 * MIB);
        let took = began.elapsed();
        println!("given back {took:?} after memory became scarce");
        let mut bytes = vec![0; 4096];
        assert_eq!(read_at(&kept, &mut bytes, 1 << 20), 4096);
        assert_same(&bytes, &wanted, "an open copy stays");
        hog.kill().unwrap();
        hog.wait().unwrap();
        assert!(mounted.daemon().is_some(), "the daemon was killed");
        assert!(mounted.log().contains("memory is scarce"), "it was given back for another reason");
        fs::read(&paths[5]).unwrap();
        drop(kept);
        mounted.unmount();
    }
}
