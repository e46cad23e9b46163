//! The daemon survives a panic in a request, and files of the store that are truncated or removed.

use std::fs::{self, File as SystemFile};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tierfs::fs::{Options, mount};
use tierfs::store::Verify;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::disk::forward::{ForwardDisk, ForwardFile};
use tierfs::store::disk::{Disk, File, Open};
use tierfs::store::{Access, Store};
use tierfs::vfs::ListMode;

use support::{Aligned, Place, Random, assert_same, open_direct, run, shell, wait_until};

/// A disk whose reads of data files, or writes to tier files, panic on command.
#[derive(Clone)]
struct Panicking {
    inner: FileDisk,
    reads: Arc<AtomicBool>,
    writes: Arc<AtomicBool>,
}

struct PanickingFile {
    inner: Arc<dyn File>,
    reads: Option<Arc<AtomicBool>>,
    writes: Option<Arc<AtomicBool>>,
}

fn panics_if(told: &Option<Arc<AtomicBool>>) {
    assert!(
        !told.as_ref().is_some_and(|told| told.load(Ordering::SeqCst)),
        "a panic that the test asked for"
    );
}

impl ForwardFile for PanickingFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        panics_if(&self.reads);
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        panics_if(&self.writes);
        self.inner.write_at(bytes, offset)
    }
}

impl ForwardDisk for Panicking {
    fn inner(&self) -> &dyn Disk {
        &self.inner
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        let inner = self.inner.open(path, how)?;
        let reads = path.contains("/data/").then(|| self.reads.clone());
        let writes = path.contains("/tier").then(|| self.writes.clone());
        Ok(Arc::new(PanickingFile { inner, reads, writes }))
    }
}

/// The log messages of this process.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Lines;

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// A mount in this process; dropping it waits for its end.
struct InProcess {
    mountpoint: PathBuf,
    stop: Arc<AtomicBool>,
    serving: Option<JoinHandle<()>>,
}

impl InProcess {
    fn new(place: &Place, disk: Panicking) -> InProcess {
        let mountpoint = place.path("here");
        fs::create_dir(&mountpoint).unwrap();
        let store = Arc::new(Store::open(Arc::new(disk), Access::Write, "a test").unwrap());
        let options = Options {
            reads_all: false,
            list: ListMode::Files,
            verify: Verify::Always,
            allow_other: false,
            threads: Some(2),
            kernel: Vec::new(),
            ..Options::default()
        };
        let mounted = mount(store, &mountpoint, &options).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let serving = std::thread::spawn(move || {
            let leave = |_| tierfs::model::Error::unsupported("nothing is taken over");
            mounted.wait(|| told.load(Ordering::SeqCst), Duration::from_secs(5), leave).unwrap();
        });
        InProcess { mountpoint, stop, serving: Some(serving) }
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let served = self.serving.take().unwrap().join();
        // Unmounts it even after a failure.
        if served.is_err()
            && let Err(error) = rustix::mount::unmount(&self.mountpoint, rustix::mount::UnmountFlags::DETACH)
        {
            eprintln!("unmounting {}: {error}", self.mountpoint.display());
        }
        assert!(served.is_ok() || std::thread::panicking(), "the mount ended with a panic");
    }
}

#[test]
fn a_panic_fails_its_request_and_the_mount_survives() {
    log::set_logger(&Lines).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let place = Place::new();
    let mut random = Random(1);
    let (large, small) = (random.bytes(300_000), random.bytes(900));
    let sources = [("large", &large), ("small", &small)].map(|(name, bytes)| place.write(name, bytes));
    place.import("demo/c", &[&sources[0], &sources[1]], &[]);
    let disk =
        Panicking { inner: FileDisk::new(&place.store()), reads: Arc::default(), writes: Arc::default() };
    let (reads, writes) = (disk.reads.clone(), disk.writes.clone());
    let mounted = InProcess::new(&place, disk);
    let folder = mounted.mountpoint.join("demo/c");

    reads.store(true, Ordering::SeqCst);
    // More requests than the daemon has threads.
    for _ in 0..8 {
        let error = fs::read(folder.join("large")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
        assert_same(&fs::read(folder.join("small")).unwrap(), &small, "small");
    }
    reads.store(false, Ordering::SeqCst);
    assert_same(&fs::read(folder.join("large")).unwrap(), &large, "large");
    // The answer comes before the log line.
    let told = |what: &str| LINES.lock().unwrap().iter().any(|line| line.contains(what));
    wait_until("the line about reads", || told("read: a bug in tierfs"));

    // A write over logged bytes goes to a tier file.
    let file = SystemFile::options().write(true).open(folder.join("large")).unwrap();
    writes.store(true, Ordering::SeqCst);
    for at in [0, 100_000] {
        let error = file.write_all_at(&[7; 20_000], at).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    }
    writes.store(false, Ordering::SeqCst);
    wait_until("the line about writes", || told("write: a bug in tierfs"));
    file.write_all_at(&[9; 20_000], 100_000).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let mut right = large;
    right[100_000..120_000].fill(9);
    assert_same(&fs::read(folder.join("large")).unwrap(), &right, "large, written to");
    drop(mounted);
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    assert_same(&fs::read(mounted.path("demo/c/large")).unwrap(), &right, "large, in the next mount");
    mounted.unmount();
}

#[test]
fn a_store_file_truncated_or_removed_during_the_mount_fails_only_its_blocks() {
    const BLOCK: u64 = 16 << 10;
    let place = Place::new();
    let mut random = Random(2);
    let files = ["cut", "gone", "well"].map(|name| (name, random.bytes(200_000)));
    let sources = files.each_ref().map(|(name, bytes)| place.write(name, bytes));
    for source in &sources {
        place.import("demo/c", &[source], &[]);
    }
    let mounted = place.mount(&["--verify", "always"]);
    let data = |number: u32| place.store().join(format!("demo/c/data/{number:016x}"));
    // The file is open when this happens.
    let open = files.each_ref().map(|(name, _)| open_direct(&mounted.path(Path::new("demo/c").join(name))));
    let mut memory = Aligned::new(BLOCK as usize);
    for file in &open {
        file.read_exact_at(memory.pages(BLOCK as usize), 0).unwrap();
    }
    SystemFile::options().write(true).open(data(1)).unwrap().set_len(3 * BLOCK + 7).unwrap();
    fs::remove_file(data(2)).unwrap();
    for block in 0..200_000 / BLOCK {
        let range = (block * BLOCK) as usize..((block + 1) * BLOCK) as usize;
        let read = open[0].read_exact_at(memory.pages(BLOCK as usize), block * BLOCK);
        match read {
            Ok(()) => {
                assert!(block < 3, "block {block} of the file that was cut");
                assert_same(memory.pages(BLOCK as usize), &files[0].1[range.clone()], "cut");
            }
            Err(error) => {
                assert_eq!((error.raw_os_error(), block >= 3), (Some(libc::EIO), true), "block {block}");
            }
        }
        open[2].read_exact_at(memory.pages(BLOCK as usize), block * BLOCK).unwrap();
        assert_same(memory.pages(BLOCK as usize), &files[2].1[range], "well");
    }
    drop(open);
    // A new open finds it gone and does not create it again. The daemon learns of a close only afterwards.
    wait_until("the file that is gone", || {
        let gone = open_direct(&mounted.path("demo/c/gone"));
        match gone.read_exact_at(memory.pages(BLOCK as usize), 0) {
            Ok(()) => {
                assert_same(memory.pages(BLOCK as usize), &files[1].1[..BLOCK as usize], "gone, held");
                false
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EIO));
                true
            }
        }
    });
    assert!(!data(2).exists());
    fs::write(mounted.path("demo/c/new"), &files[1].1).unwrap();
    assert_same(&fs::read(mounted.path("demo/c/new")).unwrap(), &files[1].1, "new");
    let log = mounted.log();
    assert!(log.contains("tierfs fsck") && !log.contains("panicked"), "{log}");
}

#[test]
fn pipes_in_place_of_store_files_are_errors_and_block_nobody() {
    let place = Place::new();
    let bytes = Random(4).bytes(100_000);
    for (collection, name) in [("demo/data", "x"), ("demo/log", "x"), ("demo/well", "x")] {
        place.import(collection, &[&place.write(name, &bytes)], &[]);
    }
    for file in ["demo/data/data/0000000000000001", "demo/log/meta.log", "demo/well/access"] {
        let path = place.store().join(file);
        if path.exists() {
            fs::remove_file(&path).unwrap();
        }
        shell(&place.path(""), &format!("mkfifo {}", path.display()));
    }
    let found = run(["fsck".as_ref(), place.store().as_os_str()]);
    assert_eq!(found.code, Some(3), "{found:?}");
    assert!(found.out.contains("demo/log") && found.out.contains("it is not a file"), "{found:?}");
    let mounted = place.mount(&["--read-only"]);
    let error = fs::read(mounted.path("demo/data/x")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert_same(&fs::read(mounted.path("demo/well/x")).unwrap(), &bytes, "a file beside them");
    assert!(fs::read(mounted.path("demo/log/x")).is_err());
    mounted.unmount();
    // The command asks the holder of the store through its lock.
    let lock = place.store().join("lock");
    fs::remove_file(&lock).unwrap();
    shell(&place.path(""), &format!("mkfifo {}", lock.display()));
    run(["ls".as_ref(), place.store().as_os_str()]).failed(1, &["lock"]);
}
