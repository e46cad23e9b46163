//! Mounts as many machines use them: the memory of a daemon that nobody reads from, direct reads here and there.

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use support::{Bucket, Manners, Mounted, Place, Random, assert_same, container_of, tierfs, wait_until};

/// The most memory that an idle daemon of a remote holds.
const IDLE_BYTES_MAX: u64 = 60 << 20;
const PAGE: usize = 4096;

struct Stand {
    place: Place,
    bucket: Bucket,
    source: Vec<u8>,
}

impl Stand {
    /// `acme/m` with a file of 128 MiB, in a bucket.
    fn new() -> Stand {
        let place = Place::new();
        let source = container_of(&mut Random(31), &[("a", 16 << 20), ("b", 16 << 20)]);
        place.write("in/large.safetensors", &source);
        support::run([Path::new("init"), &place.store()]).ok();
        place.import("acme/m", &[&place.path("in")], &[]);
        let directory = place.path("buckets/models/demo");
        fs::create_dir_all(&directory).unwrap();
        let url = format!("file://{}", directory.display());
        support::run(["push", place.store().to_str().unwrap(), "acme/m", &url, "--create"]).ok();
        let bucket = Bucket::with(&place.path("buckets"), 0, Manners::default());
        Stand { place, bucket, source }
    }

    fn mount(&self, cache: &str) -> Mounted {
        let mut command = tierfs();
        command.envs(self.bucket.environment());
        let url = PathBuf::from("s3://models/demo");
        self.place.mount_store_by(&mut command, url, "mounted", &["--cache", cache])
    }
}

/// The memory of a process.
fn resident(process: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn the_daemon_of_a_remote_gives_memory_back_when_nobody_reads() {
    let stand = Stand::new();
    let cache = stand.place.path("cache");
    let mounted = stand.mount(cache.to_str().unwrap());
    let process = mounted.daemon().unwrap();
    let before = resident(process);
    let path = mounted.path("acme/m/large.safetensors");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_same(&fs::read(&path).unwrap(), &stand.source, "the file"));
        }
    });
    let after = resident(process);
    println!("{before} bytes after the mount, {after} after the reads");
    wait_until("little memory is left", || resident(process) <= IDLE_BYTES_MAX);
    assert_same(&fs::read(&path).unwrap(), &stand.source, "the file again");
    mounted.unmount();
}

/// Memory for a direct read.
#[repr(align(4096))]
struct Aligned([u8; PAGE]);

#[test]
fn direct_reads_of_4_kib_here_and_there_fetch_their_blocks_with_a_cache_and_without() {
    let stand = Stand::new();
    let cache = stand.place.path("cache");
    for cache in [cache.to_str().unwrap(), "none"] {
        let mounted = stand.mount(cache);
        let received = || mounted.stats()["remote"]["received_bytes"].as_u64().unwrap();
        let path = mounted.path("acme/m/large.safetensors");
        let file = fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        let mut page = Aligned([0; PAGE]);
        file.read_exact_at(&mut page.0, 0).unwrap();
        // The beginning comes with its whole piece.
        std::thread::sleep(Duration::from_millis(500));
        let (before, random, count) = (received(), &mut Random(8), 100);
        for _ in 0..count {
            let at = (stand.source.len() / 2 / PAGE + random.below(stand.source.len() / 2 / PAGE - 1)) * PAGE;
            file.read_exact_at(&mut page.0, at as u64).unwrap();
            assert!(page.0 == stand.source[at..at + PAGE], "{at}");
        }
        let each = (received() - before) / count;
        println!("cache {cache}: {each} bytes for each read of 4 KiB");
        // Its tensors have blocks of 128 KiB, each with one checksum.
        assert!(each <= 192 << 10, "{each}");
        drop(file);
        mounted.unmount();
    }
}
