//! The disk of the cache: full, failing, read-only, with wrong bytes; and a daemon that is killed while it caches.

use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use support::{Answer, answer, assert_same, tierfs, wait_until};
use tempfile::TempDir;
use tierfs::remote::place::remote::Remote;
use tierfs::remote::read::cache::{Cache, Size};
use tierfs::remote::read::files::Source;
use tierfs::remote::read::published_collections::Published;
use tierfs::store::{SnapshotDisk, Store};

use crate::cache::bucket;
use crate::faulty::{Fault, Faulty};
use crate::mounted::pushed;
use crate::reading::files_of;

/// A file system of its own, with the directory `cache` in it.
struct Disk {
    folder: TempDir,
    /// The device of a file system in a file.
    device: Option<String>,
}

/// EXT4_IOC_SHUTDOWN: from then on every call fails with EIO, as after the loss of a disk.
const SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// Without writing anything back.
const NOTHING_WRITTEN: u32 = 2;

impl Disk {
    fn in_memory(bytes: u64) -> Disk {
        let folder = TempDir::new().unwrap();
        let options = CString::new(format!("size={bytes}")).unwrap();
        mount("tmpfs", folder.path(), "tmpfs", MountFlags::empty(), &*options).unwrap();
        Disk::with_directory(folder, None)
    }

    /// A file system of ext4; `None` where none can be made or mounted. It becomes read-only at an error.
    fn in_file(image: &Path) -> Option<Disk> {
        fs::File::create(image).unwrap().set_len(128 << 20).unwrap();
        let folder = TempDir::new().unwrap();
        let run = |command: &mut Command| match command.output() {
            Ok(output) if output.status.success() => Some(()),
            Ok(output) => {
                eprintln!("skipped: {command:?}: {}", String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                eprintln!("skipped: {command:?}: {error}");
                None
            }
        };
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(image))?;
        let mut mounting = Command::new("mount");
        run(mounting.args(["-o", "loop,errors=remount-ro"]).arg(image).arg(folder.path()))?;
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let here = mounts.lines().find(|line| line.contains(folder.path().to_str().unwrap())).unwrap();
        let device = here.split(' ').next().unwrap().trim_start_matches("/dev/").to_owned();
        Some(Disk::with_directory(folder, Some(device)))
    }

    fn with_directory(folder: TempDir, device: Option<String>) -> Disk {
        let disk = Disk { folder, device };
        fs::create_dir(disk.cache()).unwrap();
        disk
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    /// Fills it up.
    fn fill(path: &Path) {
        let mut filler = fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
    }

    fn filler(&self) -> PathBuf {
        self.folder.path().join("filler")
    }

    fn lose(path: &Path) {
        let folder = fs::File::open(path).unwrap();
        // SAFETY: the descriptor is open, and the kernel reads a number of 4 bytes at the address.
        let code = unsafe { libc::ioctl(folder.as_raw_fd(), SHUTDOWN, &NOTHING_WRITTEN) };
        assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
    }

    /// The file whose writing makes the kernel find an error.
    fn error_trigger(&self) -> PathBuf {
        format!("/sys/fs/ext4/{}/trigger_fs_error", self.device.as_ref().unwrap()).into()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.folder.path(), UnmountFlags::DETACH) {
            eprintln!("unmounting {}: {error}", self.folder.path().display());
        }
    }
}

type Told = Arc<Mutex<Vec<String>>>;

/// A store that reads the bucket through the cache, and what it tells.
fn opened(bucket: &Arc<Faulty>, cache: &Path) -> (Arc<Store>, Told) {
    let remote = Remote::open(bucket.client()).unwrap();
    let told = Told::default();
    let tell = {
        let told = told.clone();
        Box::new(move |_: &str, text: &str| told.lock().push(text.to_owned()))
    };
    let source = Source::new(remote, Some(Cache::open(cache, Size::Bytes(1 << 30)).unwrap()), tell);
    let disk = SnapshotDisk::new(Arc::new(Published::new(source.on_demand(), Default::default())));
    (Arc::new(Arc::new(disk).open_store().unwrap()), told)
}

/// Reads all files while the disk fails at the third piece, and again; then with a new store after `recover`.
fn reads_go_on(disk: Disk, fail: impl Fn() + Send + Sync + 'static, recover: impl FnOnce(&Disk)) {
    let seen = Arc::new(AtomicU64::new(0));
    let (bucket, wanted, _) = bucket(move |_| {
        // The room was asked for already, and the bytes come now.
        if seen.fetch_add(1, Ordering::SeqCst) == 2 {
            fail();
        }
        Fault::None
    });
    let (store, told) = opened(&bucket, &disk.cache());
    assert!(files_of(&store, "acme", "m") == wanted, "while it fails");
    let texts = told.lock().clone();
    assert!(texts.iter().any(|text| text.contains("the disk of the cache")), "{texts:?}");
    assert!(files_of(&store, "acme", "m") == wanted, "after it failed");
    drop(store);
    recover(&disk);
    let Ok(cache) = Cache::open(&disk.cache(), Size::default()) else { return };
    let damaged: Vec<_> = cache.verify().unwrap().into_iter().filter(|file| file.is_damaged()).collect();
    assert_eq!(damaged, []);
    drop(cache);
    let drafts = support::files_below(&disk.cache());
    assert!(!drafts.iter().any(|path| path.extension().is_some_and(|end| end == "new")), "{drafts:?}");
    let (store, _) = opened(&bucket, &disk.cache());
    assert!(files_of(&store, "acme", "m") == wanted, "after it recovered");
}

#[test]
fn reads_go_on_while_the_disk_of_the_cache_is_full() {
    let disk = Disk::in_memory(64 << 20);
    let filler = disk.filler();
    reads_go_on(disk, move || Disk::fill(&filler), |disk| fs::remove_file(disk.filler()).unwrap());
}

#[test]
fn reads_go_on_after_the_loss_of_the_disk_of_the_cache() {
    let image = TempDir::new().unwrap();
    let Some(disk) = Disk::in_file(&image.path().join("image")) else { return };
    let path = disk.folder.path().to_owned();
    reads_go_on(disk, move || Disk::lose(&path), |_| ());
}

#[test]
fn reads_go_on_after_the_disk_of_the_cache_became_read_only() {
    let image = TempDir::new().unwrap();
    let Some(disk) = Disk::in_file(&image.path().join("image")) else { return };
    let trigger = disk.error_trigger();
    if !trigger.exists() {
        eprintln!("skipped: {} is missing", trigger.display());
        return;
    }
    reads_go_on(disk, move || fs::write(&trigger, "a test").unwrap(), |_| ());
}

#[test]
fn a_cached_file_whose_disk_is_lost_is_read_from_the_remote() {
    let image = TempDir::new().unwrap();
    let Some(disk) = Disk::in_file(&image.path().join("image")) else { return };
    let (bucket, wanted, requests) = bucket(|_| Fault::None);
    let (store, told) = opened(&bucket, &disk.cache());
    assert!(files_of(&store, "acme", "m") == wanted);
    requests.lock().clear();
    Disk::lose(disk.folder.path());
    assert!(files_of(&store, "acme", "m") == wanted, "from the lost disk");
    assert!(!requests.lock().is_empty() && !told.lock().is_empty());
}

fn cache(directory: &Path, options: &[&str]) -> Answer {
    answer(tierfs().arg("cache").arg(directory).args(options))
}

#[test]
fn a_daemon_killed_while_it_caches_leaves_a_cache_that_is_right() {
    let remote = pushed();
    let directory = remote.place.path("cache");
    let source = fs::read(remote.place.path("in/large.safetensors")).unwrap();
    let mounted = remote.mount(&[]);
    let mut first = vec![0; 1 << 20];
    let file = fs::File::open(mounted.path("acme/m/large.safetensors")).unwrap();
    file.read_exact_at(&mut first, 2 << 20).unwrap();
    drop(file);
    mounted.unmount();
    // An open of a pipe waits for a writer: one piece never comes.
    let pieces = remote.place.path("bucket/piece");
    let pieces: Vec<PathBuf> = support::files_below(&pieces).iter().map(|below| pieces.join(below)).collect();
    let len = |path: &PathBuf| fs::metadata(path).unwrap().len();
    let mut large: Vec<&PathBuf> = pieces.iter().filter(|path| len(path) > 3 << 20).collect();
    large.sort_by_key(|path| {
        let head = fs::read(path).unwrap()[..64].to_vec();
        source.windows(64).position(|part| part == head)
    });
    let last = large.last().unwrap();
    fs::rename(last, last.with_extension("kept")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, *last, rustix::fs::Mode::RWXU).unwrap();
    let mounted = remote.mount(&[]);
    std::thread::scope(|scope| {
        let path = mounted.path("acme/m/large.safetensors");
        let reader = scope.spawn(move || fs::read(path));
        let cached = || {
            let blobs = support::files_below(&directory.join("blob"));
            let blocks =
                |path: &PathBuf| std::os::unix::fs::MetadataExt::blocks(&fs::metadata(path).unwrap());
            blobs.iter().map(|below| blocks(&directory.join("blob").join(below)) * 512).sum::<u64>()
        };
        wait_until("most of the file is cached", || cached() > 16 << 20);
        mounted.kill();
        assert!(reader.join().unwrap().is_err());
    });
    drop(mounted);
    fs::rename(last.with_extension("kept"), last).unwrap();
    let text = cache(&directory, &["--verify"]).ok();
    assert!(text.starts_with("compared ") && text.contains("pieces are right"), "{text}");
    let mounted = remote.mount(&[]);
    assert_same(&fs::read(mounted.path("acme/m/large.safetensors")).unwrap(), &source, "after the kill");
    mounted.unmount();
    cache(&directory, &["--verify"]).ok();
}

#[test]
fn a_check_of_a_cache_drops_what_differs_and_says_so() {
    let remote = pushed();
    let directory = remote.place.path("cache");
    let source = fs::read(remote.place.path("in/large.safetensors")).unwrap();
    let read = |what: &str| {
        let mounted = remote.mount(&[]);
        assert_same(&fs::read(mounted.path("acme/m/large.safetensors")).unwrap(), &source, what);
        assert_eq!(fs::read(mounted.path("acme/m/q8.safetensors")).unwrap().len() % 4, 0);
        mounted.unmount();
    };
    read("cold");
    let clean = cache(&directory, &["--verify", "--json"]).json();
    let files = clean["verified"].as_array().unwrap();
    // The log, two data files, and the file of q8.
    assert!(files.len() >= 4 && files.iter().all(|file| file["dropped"] == 0), "{clean}");
    let sum: u64 = files.iter().map(|file| file["bytes"].as_u64().unwrap()).sum();
    assert!(sum > source.len() as u64, "{clean}");
    let mut blobs: Vec<PathBuf> =
        fs::read_dir(directory.join("blob")).unwrap().map(|entry| entry.unwrap().path()).collect();
    blobs.retain(|path| path.extension().is_none());
    // A byte in the middle of each file's pieces is another.
    let mut changed = 0;
    for path in &blobs {
        let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut bytes = fs::read(path).unwrap();
        let Some(at) = bytes.iter().rposition(|byte| *byte != 0) else { continue };
        bytes[at] ^= 1;
        file.write_all_at(&bytes[at..=at], at as u64).unwrap();
        changed += 1;
    }
    let answer = cache(&directory, &["--verify"]);
    assert_eq!(answer.code, Some(3), "{answer:?}");
    let named = answer.out.lines().filter(|line| line.ends_with("pieces differed and were dropped")).count();
    assert_eq!(named, changed, "{}", answer.out);
    cache(&directory, &["--verify"]).ok();
    read("after the check");
    let map = blobs[0].with_extension("map");
    let mut bytes = fs::read(&map).unwrap();
    bytes[9] ^= 1;
    fs::write(&map, bytes).unwrap();
    let found = cache(&directory, &["--verify", "--json"]);
    assert_eq!(found.code, Some(3), "{found:?}");
    assert!(found.out.contains("its map is damaged"), "{}", found.out);
    assert!(!blobs[0].exists() && !map.exists());
    read("after another check");
}
