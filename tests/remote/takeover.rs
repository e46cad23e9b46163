//! Daemons of mounted remotes that are replaced, and killed, while programs read.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::{
    Aligned, Bucket, Manners, Mapping, Mounted, Place, Random, SetOnDrop, answer, assert_same, container_of,
    daemons, files_below, get, kill_daemon, replace_by, scale, take_over_by, tierfs, wait_until,
};

use crate::imitation::{Behaviour, GOOD, Imitation};
use crate::proxy::{Fault, Proxy};

/// How often a daemon is replaced, and killed.
fn rounds() -> u32 {
    6 * scale()
}

const URL: &str = "s3://models/demo";
const BLOCK: usize = 256 << 10;
const BLOCKS: usize = 24;
const KEPT: [&str; 1] = ["--keep-device"];
/// The ways to change a daemon.
const CHANGES: [fn(&Stand, &Mounted); 2] = [Stand::replace, |_, mounted| kill_daemon(mounted)];

/// A bucket behind a proxy, a store that is pushed to it, and a home for caches.
struct Stand {
    place: Place,
    bucket: Bucket,
    proxy: Proxy,
}

/// A file of which each block says the number of the snapshot and its own.
fn numbered(number: u64) -> Vec<u8> {
    (0..BLOCKS as u64)
        .flat_map(|block| [number, block].map(u64::to_le_bytes).concat().repeat(BLOCK / 16))
        .collect()
}

/// The number of a snapshot of which all of these bytes are, which begin with a block.
fn number_of(bytes: &[u8], first: usize) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    for (at, block) in bytes.chunks(BLOCK).enumerate() {
        let expected = [number, (first + at) as u64].map(u64::to_le_bytes).concat().repeat(BLOCK / 16);
        assert!(block == expected, "block {} of snapshot {number}", first + at);
    }
    number
}

impl Stand {
    fn new(faults: usize) -> Stand {
        let place = Place::new();
        fs::create_dir_all(place.path("buckets/models/demo")).unwrap();
        let bucket = Bucket::with(&place.path("buckets"), 7, Manners { faults, ..Manners::default() });
        let proxy = Proxy::to(bucket.port());
        Stand { place, bucket, proxy }
    }

    /// A stand with the first snapshot.
    fn pushed(faults: usize) -> Stand {
        let stand = Stand::new(faults);
        support::run([Path::new("init"), &stand.place.store()]).ok();
        stand.place.write("in/model.safetensors", container_of(&mut Random(5), &[("a", 3 << 20), ("b", 70)]));
        stand.place.write("in/deep/config.json", b"{}");
        stand.publish(1, &["--variants", "q5"]);
        stand
    }

    /// Publishes the files of a number. The snapshot has the same number.
    fn publish(&self, number: u64, options: &[&str]) {
        self.place.write("in/x.bin", numbered(number));
        self.place.import("acme/m", &[&self.place.path("in")], &[]);
        let url = format!("file://{}", self.place.path("buckets/models/demo").display());
        let mut command = tierfs();
        command
            .arg("push")
            .arg(self.place.store())
            .args(["acme/m", &url, "--create", "--json"])
            .args(options);
        assert_eq!(answer(&mut command).json()["snapshot"], number);
    }

    fn command(&self) -> Command {
        let mut command = tierfs();
        command.envs(self.bucket.environment()).env("HOME", self.place.path("home"));
        command.env_remove("XDG_CACHE_HOME");
        command.env("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.proxy.port()));
        command
    }

    fn mount_url(&self, url: &str, options: &[&str]) -> Mounted {
        self.place.mount_store_by(&mut self.command(), PathBuf::from(url), "mnt", options)
    }

    fn mount(&self, options: &[&str]) -> Mounted {
        self.mount_url(URL, options)
    }

    fn replace(&self, mounted: &Mounted) {
        replace_by(&mut self.command(), mounted);
    }
}

/// Programs that read a mount, and the durations of their reads.
struct Programs<'a> {
    directory: &'a Path,
    /// Whether snapshots change, and an open between two of them may be ESTALE.
    follows: bool,
    /// Whether the kernel reads files itself. An open between two daemons may be ESTALE then.
    passes_through: bool,
    is_over: AtomicBool,
    reads: Mutex<Vec<Duration>>,
}

impl Programs<'_> {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    fn timed<T>(&self, read: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let found = read();
        self.reads.lock().unwrap().push(since.elapsed());
        found
    }

    fn open(&self) -> File {
        loop {
            match File::open(self.directory.join("x.bin")) {
                Err(error)
                    if (self.passes_through || self.follows)
                        && error.raw_os_error() == Some(libc::ESTALE) => {}
                file => return file.unwrap(),
            }
        }
    }

    /// Opens, reads, and reads past the page cache by a descriptor that stays open.
    fn read(&self, seed: u64) {
        let open = || {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(libc::O_DIRECT).open(self.directory.join("x.bin"))
        };
        let mut direct = open();
        while self.follows && direct.is_err() {
            direct = open();
        }
        let direct = direct.unwrap();
        let (mut random, mut memory, mut own) = (Random(seed), Aligned::new(BLOCK), None);
        while self.goes_on() {
            let at = random.below(BLOCKS);
            let count = self.timed(|| direct.read_at(memory.pages(BLOCK), (at * BLOCK) as u64).unwrap());
            assert_eq!(count, BLOCK);
            let number = number_of(memory.pages(BLOCK), at);
            assert_eq!(*own.get_or_insert(number), number, "the open file has the bytes of another snapshot");
            let mut read = vec![0; 2 * BLOCK];
            let at = random.below(BLOCKS - 1);
            let file = self.open();
            self.timed(|| file.read_exact_at(&mut read, (at * BLOCK) as u64).unwrap());
            number_of(&read, at);
        }
    }

    fn map(&self) {
        let file = self.open();
        let number = number_of(
            &{
                let mut bytes = vec![0; BLOCK];
                file.read_exact_at(&mut bytes, 0).unwrap();
                bytes
            },
            0,
        );
        let path = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
        let mapping = Mapping::of(&path, libc::MAP_SHARED);
        while self.goes_on() {
            let found = number_of(mapping.bytes(), 0);
            assert!(found >= number, "the mapping");
        }
    }

    /// Does as `ls -lR`.
    fn list(&self) {
        while self.goes_on() {
            let mut found = 0;
            let mut waiting = vec![self.directory.to_owned()];
            while let Some(directory) = waiting.pop() {
                let Ok(entries) = fs::read_dir(&directory) else {
                    assert!(self.follows, "{}", directory.display());
                    break;
                };
                for entry in entries {
                    let (path, kind) = match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
                        Ok(found) => found,
                        Err(error) => {
                            let is_stale = error.raw_os_error() == Some(libc::ESTALE);
                            assert!(self.follows && is_stale, "{error}");
                            continue;
                        }
                    };
                    found += 1;
                    if kind.is_dir() {
                        waiting.push(path);
                    }
                }
            }
            assert!(self.follows || found >= 4, "{found} entries");
        }
    }
}

/// Reads a mount while `disturb` replaces and kills daemons.
fn disturbed(
    mounted: Mounted,
    directory: &str,
    [follows, passes_through]: [bool; 2],
    disturb: impl Fn(&Mounted, u32),
) {
    let directory = mounted.mountpoint.join(directory);
    let is_over = AtomicBool::new(false);
    let programs =
        Programs { directory: &directory, follows, passes_through, is_over, reads: Mutex::default() };
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&programs.is_over);
        for seed in 0..3 {
            let programs = &programs;
            scope.spawn(move || (SetOnDrop(&programs.is_over), programs.read(seed)));
        }
        scope.spawn(|| (SetOnDrop(&programs.is_over), programs.map()));
        scope.spawn(|| (SetOnDrop(&programs.is_over), programs.list()));
        for round in 0..rounds() {
            let reads = programs.reads.lock().unwrap().len();
            wait_until("the programs", || {
                !programs.goes_on() || programs.reads.lock().unwrap().len() > reads + 20
            });
            assert!(programs.goes_on(), "a program has failed before round {round}");
            disturb(&mounted, round);
        }
    });
    let mut reads = programs.reads.into_inner().unwrap();
    reads.sort_unstable();
    let late = reads[reads.len() * 99 / 100];
    let longest = reads.last().unwrap();
    println!("{} reads, the 99th percentile {late:?}, the longest {longest:?}", reads.len());
    assert!(late <= Duration::from_secs(1), "{late:?}");
    mounted.unmount();
}

/// The inode numbers of all files below a directory.
fn inodes(directory: &Path) -> HashMap<PathBuf, u64> {
    let files = files_below(directory).into_iter();
    files.map(|name| (name.clone(), fs::metadata(directory.join(name)).unwrap().ino())).collect()
}

mod heavy {
    use super::*;

    #[test]
    fn readers_of_a_pushed_remote_notice_nothing_while_their_daemon_is_replaced_and_killed() {
        let stand = Stand::pushed(2);
        for options in [&["--keep-device"][..], &["--keep-device", "--cache", "none", "--passthrough", "off"]]
        {
            let passes_through = options.len() == 1;
            disturbed(stand.mount(options), "acme/m", [false, passes_through], |mounted, round| {
                match round % 3 {
                    0 => stand.replace(mounted),
                    1 => kill_daemon(mounted),
                    _ => {
                        stand.replace(mounted);
                        kill_daemon(mounted);
                    }
                }
            });
        }
    }

    #[test]
    fn readers_keep_their_snapshots_while_others_are_shown_and_daemons_change() {
        let stand = Stand::pushed(0);
        let mounted = stand.mount(&["--keep-device", "--follow", "0.2"]);
        let root = mounted.mountpoint.join("acme/m");
        disturbed(mounted, "acme/m", [true, true], |mounted, round| {
            let number = u64::from(round) + 2;
            // The next snapshot comes before, between and after the two.
            let publishes = |at| {
                if round % 3 == at {
                    stand.publish(number, &[])
                }
            };
            publishes(0);
            stand.replace(mounted);
            publishes(1);
            kill_daemon(mounted);
            publishes(2);
            wait_until("the snapshot is shown", || {
                let mut value = [0; 32];
                let len = rustix::fs::getxattr(&root, "user.tierfs.snapshot", &mut value).unwrap_or(0);
                String::from_utf8_lossy(&value[..len]) == number.to_string()
            });
        });
    }

    #[test]
    fn readers_of_foreign_files_and_of_an_index_notice_nothing_while_their_daemon_changes() {
        let stand = Stand::new(2);
        stand.place.write("buckets/models/m/x.bin", numbered(1));
        stand.place.write("buckets/models/m/deep/config.json", b"{}");
        let container = container_of(&mut Random(5), &[("a", 3 << 20), ("b", 70)]);
        stand.place.write("buckets/models/m/model.safetensors", container);
        let index = format!("file://{}", stand.place.path("index").display());
        fs::create_dir(stand.place.path("index")).unwrap();
        answer(stand.command().args(["index", "s3://models/m", &index, "--create"])).ok();
        for url in ["s3://models/m", &index] {
            for options in [&["--keep-device"][..], &["--keep-device", "--cache", "none"]] {
                let passes_through = options.len() == 1;
                let mounted = stand.mount_url(url, options);
                disturbed(mounted, "models/m", [false, passes_through], |mounted, round| match round % 2 {
                    0 => stand.replace(mounted),
                    _ => kill_daemon(mounted),
                });
            }
        }
    }
}

#[test]
fn files_keep_their_inode_numbers_and_bytes_with_each_option_of_a_mount() {
    let stand = Stand::pushed(0);
    let key = |name| support::repository("tests/golden/keys").join(name).to_str().unwrap().to_owned();
    let [signer, trusted] = ["release.pem", "release.pub.pem"].map(key);
    stand.publish(2, &["--variants", "q5", "--sign", &signer]);
    let cases: [(&[&str], u64); 5] = [
        (&["--trust", &trusted], 2),
        (&["--tier", "q5"], 2),
        (&["--at", "acme/m=1"], 1),
        (&["--cache", "none"], 2),
        (&["--follow", "0.2", "--passthrough", "off"], 2),
    ];
    for (options, number) in cases {
        let mounted = stand.mount(&[options, &KEPT].concat());
        let root = mounted.mountpoint.join("acme/m");
        let all = || {
            let below =
                ["", ".tensors", ".as/npy", ".tensors/model.safetensors"].map(|below| root.join(below));
            below.map(|below| (inodes(&below), fs::metadata(&below).unwrap().ino()))
        };
        let read = || fs::read(root.join("model.safetensors")).unwrap();
        let version = || fs::metadata(root.join(".as/@1/x.bin")).map(|found| found.ino()).ok();
        let (before, bytes, first) = (all(), read(), version());
        let open = File::open(root.join("model.safetensors")).unwrap();
        for change in CHANGES {
            change(&stand, &mounted);
            assert_eq!(
                open.metadata().unwrap().ino(),
                fs::metadata(root.join("model.safetensors")).unwrap().ino()
            );
            let mut again = vec![0; bytes.len()];
            open.read_exact_at(&mut again, 0).unwrap();
            assert_same(&again, &bytes, "by the open file");
            assert_eq!(all(), before, "{options:?}");
            assert_same(&read(), &bytes, "by name");
            assert_eq!(version(), first, "{options:?}");
            assert_eq!(get(&root, "snapshot"), number.to_string());
        }
        drop(open);
        mounted.unmount();
    }
}

#[test]
fn open_files_of_a_former_snapshot_are_read_from_the_remote_after_daemons_have_changed() {
    let stand = Stand::pushed(0);
    let mounted =
        stand.mount(&["--keep-device", "--follow", "0.1", "--cache", "none", "--passthrough", "off"]);
    let root = mounted.mountpoint.join("acme/m");
    let shown = |number: u64| {
        wait_until("the snapshot is shown", || {
            let mut value = [0; 32];
            let len = rustix::fs::getxattr(&root, "user.tierfs.snapshot", &mut value).unwrap_or(0);
            String::from_utf8_lossy(&value[..len]) == number.to_string()
        });
    };
    let mut options = OpenOptions::new();
    let direct = options.read(true).custom_flags(libc::O_DIRECT).open(root.join("x.bin")).unwrap();
    let mut open = vec![File::open(root.join("x.bin")).unwrap()];
    let mut numbers = vec![open[0].metadata().unwrap().ino()];
    for number in 2..6 {
        // Neither daemon knows of it at first.
        stand.publish(number, &[]);
        if number % 2 == 0 {
            shown(number);
        }
        stand.replace(&mounted);
        kill_daemon(&mounted);
        shown(number);
        for (at, file) in open.iter().enumerate() {
            let mut bytes = vec![0; BLOCK * BLOCKS];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!((number_of(&bytes, 0), file.metadata().unwrap().ino()), (at as u64 + 1, numbers[at]));
        }
        let file = File::open(root.join("x.bin")).unwrap();
        numbers.push(file.metadata().unwrap().ino());
        open.push(file);
    }
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), numbers.len(), "{numbers:?}");
    // One whose snapshot is gone.
    fs::remove_dir_all(stand.place.path("buckets/models/demo/snap")).unwrap();
    drop(open.split_off(1));
    stand.replace(&mounted);
    let mut memory = Aligned::new(BLOCK);
    let error = direct.read_at(memory.pages(BLOCK), 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
    drop((open, direct));
    mounted.unmount();
}

#[test]
fn a_program_with_wrong_credentials_does_not_get_the_mount() {
    let forbidden = Imitation::new(Behaviour { always: Some(("403 Forbidden", "", "")), ..GOOD });
    let stand = Stand::pushed(0);
    stand.place.write("buckets/models/foreign/x.bin", numbered(1));
    for (url, directory) in [(URL, "acme/m"), ("s3://models/foreign", "models/foreign")] {
        for options in [&[][..], &["--cache", "none"]] {
            let mounted = stand.mount_url(url, options);
            let path = mounted.mountpoint.join(directory).join("x.bin");
            let file = File::open(&path).unwrap();
            let before = daemons(&mounted.mountpoint);
            let mut command = stand.command();
            command.env("AWS_ENDPOINT", format!("http://127.0.0.1:{}", forbidden.port()));
            take_over_by(&mut command, &mounted)
                .failed(1, &["is not taken over, and its daemon goes on", "403"]);
            assert_eq!(daemons(&mounted.mountpoint), before);
            let mut bytes = vec![0; BLOCK * BLOCKS];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!((number_of(&bytes, 0), number_of(&fs::read(&path).unwrap(), 0)), (1, 1));
            drop(file);
            mounted.unmount();
        }
    }
}

#[test]
fn a_warm_cache_is_enough_to_go_on_while_the_remote_is_away() {
    let stand = Stand::pushed(0);
    let mounted = stand.mount(&["--keep-device", "--timeout", "3"]);
    let root = mounted.mountpoint.join("acme/m");
    number_of(&fs::read(root.join("x.bin")).unwrap(), 0);
    let (warm, cold) = (File::open(root.join("x.bin")).unwrap(), root.join("model.safetensors"));
    let before = inodes(&root);
    stand.proxy.plan(|_, _| Fault::Closed);
    let whole = |file: &File| {
        let mut bytes = vec![0; BLOCK * BLOCKS];
        file.read_exact_at(&mut bytes, 0).unwrap();
        number_of(&bytes, 0)
    };
    for change in CHANGES {
        change(&stand, &mounted);
        assert_eq!(whole(&warm), 1);
        assert_eq!(number_of(&fs::read(root.join("x.bin")).unwrap(), 0), 1);
        let error = fs::read(&cold).map(|bytes| bytes.len()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    }
    stand.proxy.plan(|_, _| Fault::None);
    wait_until("the rest is read", || fs::read(&cold).is_ok());
    assert_eq!(inodes(&root), before);
    drop(warm);
    mounted.unmount();
}

#[test]
fn without_a_cache_a_remote_that_is_away_is_not_taken_over_and_a_crash_is_survived() {
    let stand = Stand::pushed(0);
    stand.place.write("buckets/models/foreign/x.bin", numbered(1));
    for (url, directory) in [(URL, "acme/m"), ("s3://models/foreign", "models/foreign")] {
        let options = ["--keep-device", "--timeout", "2", "--cache", "none", "--passthrough", "off"];
        let mounted = stand.mount_url(url, &options);
        let path = mounted.mountpoint.join(directory).join("x.bin");
        let file = File::open(&path).unwrap();
        let before = daemons(&mounted.mountpoint);
        stand.proxy.plan(|_, _| Fault::Closed);
        let told = take_over_by(&mut stand.command(), &mounted);
        told.failed(1, &["is not taken over, and its daemon goes on"]);
        assert_eq!(daemons(&mounted.mountpoint), before);
        kill_daemon(&mounted);
        let begun = Instant::now();
        let error = file.read_at(&mut [0; 10], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        stand.proxy.plan(|_, _| Fault::None);
        let mut bytes = vec![0; BLOCK * BLOCKS];
        wait_until("the remote is back", || file.read_exact_at(&mut bytes, 0).is_ok());
        assert_eq!((number_of(&bytes, 0), number_of(&fs::read(&path).unwrap(), 0)), (1, 1));
        drop(file);
        mounted.unmount();
    }
}

#[test]
fn reads_that_wait_for_a_slow_remote_end_with_the_next_daemon() {
    let stand = Stand::pushed(0);
    let mounted = stand.mount(&["--cache", "none", "--passthrough", "off"]);
    let path = mounted.mountpoint.join("acme/m/x.bin");
    let file = File::open(&path).unwrap();
    stand.proxy.slow_down(Duration::from_secs(3));
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut bytes = vec![0; BLOCK];
            file.read_exact_at(&mut bytes, (7 * BLOCK) as u64).unwrap();
            number_of(&bytes, 7)
        });
        // The read has reached the daemon.
        let asked = stand.proxy.requests().0;
        wait_until("a request", || stand.proxy.requests().0 > asked);
        let begun = Instant::now();
        stand.proxy.slow_down(Duration::ZERO);
        stand.replace(&mounted);
        assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
        assert_eq!(reading.join().unwrap(), 1);
    });
    drop(file);
    mounted.unmount();
}

#[test]
fn the_lists_of_a_remote_with_unopened_collections_keep_their_inode_numbers() {
    let stand = Stand::pushed(0);
    let url = format!("file://{}", stand.place.path("buckets/models/demo").display());
    for number in 0..12 {
        let collection = format!("acme/other-{number}");
        stand.place.import(&collection, &[&stand.place.path("in/deep")], &[]);
        support::run(["push", stand.place.store().to_str().unwrap(), &collection, &url]).ok();
    }
    let mounted = stand.mount(&["--keep-device"]);
    let tenant = mounted.mountpoint.join("acme");
    let all = || -> HashMap<_, _> {
        let entries = fs::read_dir(&tenant).unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| (entry.file_name(), entry.metadata().unwrap().ino())).collect()
    };
    fs::read(tenant.join("other-3/config.json")).unwrap();
    let before = all();
    assert_eq!(before.len(), 13);
    for change in CHANGES {
        change(&stand, &mounted);
        assert_eq!(fs::read(tenant.join("other-7/config.json")).unwrap(), b"{}");
        assert_eq!(all(), before);
    }
    mounted.unmount();
}

#[test]
fn a_crash_is_survived_without_the_cache_and_without_keys_that_can_be_read() {
    let stand = Stand::pushed(0);
    let key = |name| support::repository("tests/golden/keys").join(name);
    stand.publish(2, &["--sign", key("release.pem").to_str().unwrap()]);
    let trusted = stand.place.path("trusted.pem");
    fs::copy(key("release.pub.pem"), &trusted).unwrap();
    let cache = stand.place.path("cache");
    let options = ["--keep-device", "--passthrough", "off", "--timeout", "2"];
    let places = ["--cache", cache.to_str().unwrap(), "--trust", trusted.to_str().unwrap()];
    let mounted = stand.mount(&[&options[..], &places].concat());
    let path = mounted.mountpoint.join("acme/m/x.bin");
    let file = File::open(&path).unwrap();
    // The note of the remote is damaged, and later the cache is no directory.
    for entry in fs::read_dir(cache.join("known")).unwrap() {
        fs::write(entry.unwrap().path(), "damaged").unwrap();
    }
    let direct = || {
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(libc::O_DIRECT).open(&path)?;
        let mut memory = Aligned::new(BLOCK);
        file.read_exact_at(memory.pages(BLOCK), 0).map(|()| number_of(memory.pages(BLOCK), 0))
    };
    let is_read = || direct().is_ok_and(|number| number == 2);
    stand.proxy.plan(|_, _| Fault::Closed);
    kill_daemon(&mounted);
    let error = direct().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    stand.proxy.plan(|_, _| Fault::None);
    wait_until("the remote is back", is_read);
    fs::rename(&cache, stand.place.path("former")).unwrap();
    fs::write(&cache, "no directory").unwrap();
    kill_daemon(&mounted);
    wait_until("the bytes without a cache", is_read);
    fs::rename(&trusted, stand.place.path("hidden.pem")).unwrap();
    kill_daemon(&mounted);
    wait_until("nobody is trusted", || {
        direct().is_err_and(|error| error.raw_os_error() == Some(libc::EACCES))
    });
    fs::rename(stand.place.path("hidden.pem"), &trusted).unwrap();
    kill_daemon(&mounted);
    wait_until("the keys are read again", is_read);
    let mut bytes = vec![0; BLOCK * BLOCKS];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(number_of(&bytes, 0), 2);
    drop(file);
    mounted.unmount();
}

#[test]
fn a_lookup_that_waits_for_a_remote_does_not_hold_a_takeover_up() {
    let stand = Stand::pushed(0);
    let mounted = stand.mount(&["--cache", "none"]);
    let path = mounted.mountpoint.join("acme/m/x.bin");
    stand.proxy.plan(|_, _| Fault::Hangs);
    std::thread::scope(|scope| {
        let asked = stand.proxy.requests().0;
        let looking = scope.spawn(|| fs::metadata(&path).map(|found| found.len()));
        wait_until("a request", || stand.proxy.requests().0 > asked);
        stand.proxy.plan(|_, _| Fault::None);
        let begun = Instant::now();
        stand.replace(&mounted);
        assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
        assert_eq!(looking.join().unwrap().unwrap(), (BLOCK * BLOCKS) as u64);
    });
    mounted.unmount();
}

#[test]
fn a_program_that_reaches_another_remote_does_not_get_the_mount() {
    let stand = Stand::pushed(0);
    stand.place.write("buckets/models/foreign/x.bin", numbered(1));
    // The other server has files where this one has a remote, and the same files.
    stand.place.write("others/models/demo/x.bin", numbered(3));
    stand.place.write("others/models/foreign/x.bin", numbered(1));
    let other = Bucket::with(&stand.place.path("others"), 7, Manners::default());
    for (url, directory) in [(URL, "acme/m"), ("s3://models/foreign", "models/foreign")] {
        for options in [&[][..], &["--cache", "none"]] {
            let mounted = stand.mount_url(url, options);
            let path = mounted.mountpoint.join(directory).join("x.bin");
            let file = File::open(&path).unwrap();
            let before = daemons(&mounted.mountpoint);
            let mut command = stand.command();
            command.env("AWS_ENDPOINT", format!("http://127.0.0.1:{}", other.port()));
            let told = take_over_by(&mut command, &mounted);
            told.failed(1, &["its daemon goes on", "is another remote by now"]);
            assert_eq!(daemons(&mounted.mountpoint), before);
            let mut bytes = vec![0; BLOCK * BLOCKS];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(number_of(&bytes, 0), 1);
            drop(file);
            mounted.unmount();
        }
    }
}

#[test]
fn a_signal_to_look_for_snapshots_does_not_end_a_daemon_that_gives_its_mount_up() {
    let stand = Stand::pushed(0);
    let mounted = stand.mount(&["--follow", "60"]);
    let path = mounted.mountpoint.join("acme/m/x.bin");
    for _ in 0..3 {
        let daemon = daemons(&mounted.mountpoint)[0];
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ends = SetOnDrop(&is_over);
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // SAFETY: kill takes two numbers and touches no memory of this process.
                    unsafe { libc::kill(daemon, libc::SIGHUP) };
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            stand.replace(&mounted);
        });
        assert_eq!(number_of(&fs::read(&path).unwrap(), 0), 1);
    }
    mounted.unmount();
}

#[test]
fn a_manifest_that_arrives_damaged_is_asked_for_again() {
    let stand = Stand::pushed(0);
    let mounted = stand.mount(&["--keep-device", "--cache", "none", "--passthrough", "off"]);
    let path = mounted.mountpoint.join("acme/m/x.bin");
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let snapshots = stand.place.path("buckets/models/demo/snap");
    let manifest = snapshots.join(&files_below(&snapshots)[0]);
    let whole = fs::read(&manifest).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(&manifest, damaged).unwrap();
    kill_daemon(&mounted);
    let mut memory = Aligned::new(BLOCK);
    let error = file.read_at(memory.pages(BLOCK), 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    fs::write(&manifest, whole).unwrap();
    wait_until("the bytes", || file.read_exact_at(memory.pages(BLOCK), 0).is_ok());
    assert_eq!(number_of(memory.pages(BLOCK), 0), 1);
    drop(file);
    mounted.unmount();
}

#[test]
fn open_control_files_of_a_remote_keep_their_texts() {
    let stand = Stand::pushed(0);
    let mounted = stand.mount(&["--cache", "none"]);
    for name in [".ctl/status", "acme/m/.ctl/status"] {
        let file = File::open(mounted.mountpoint.join(name)).unwrap();
        let text = || {
            let mut bytes = vec![0; 1 << 16];
            let len = file.read_at(&mut bytes, 0).unwrap();
            bytes.truncate(len);
            bytes
        };
        let before = text();
        assert!(!before.is_empty());
        fs::read(mounted.mountpoint.join("acme/m/model.safetensors")).unwrap();
        (0..2).for_each(|_| stand.replace(&mounted));
        assert_same(&text(), &before, name);
    }
    mounted.unmount();
}
