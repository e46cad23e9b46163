//! Cached files are verified when they are opened, so that the kernel reads them by passthrough from the first open
//! on.

use std::fs::{self, File};
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::Advice;
use rustix::io::ReadWriteFlags;

use support::{
    Mapping, Mounted, Place, Random, assert_same, container_of, npy_file, open_direct, read_at, wait_until,
};

/// A container, an array and a file in place, of more than a few blocks.
struct Large {
    place: Place,
    files: Vec<(&'static str, Vec<u8>)>,
}

impl Large {
    fn new() -> Large {
        let (place, mut random) = (Place::new(), Random(31));
        let files = vec![
            ("m.safetensors", container_of(&mut random, &[("a", 300_000), ("b", 77), ("c", 400_001)])),
            ("x.npy", npy_file(&random.floats(500_003))),
            ("outside.bin", random.bytes((2 << 20) + 5)),
        ];
        for (name, bytes) in &files {
            let source = place.write(name, bytes);
            let options: &[&str] = if *name == "outside.bin" { &["--in-place"] } else { &[] };
            place.import("demo/model", &[&source], options);
        }
        Large { place, files }
    }

    /// The physical file of a file's bytes.
    fn physical(&self, bytes: &[u8]) -> PathBuf {
        let folder = self.place.store().join("demo/model/data");
        let mut paths = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        paths.find(|path| fs::read(path).unwrap() == bytes).unwrap_or(self.place.path("outside.bin"))
    }
}

fn path(mounted: &Mounted, name: &str) -> PathBuf {
    mounted.path(Path::new("demo/model").join(name))
}

fn count(mounted: &Mounted, counter: &str) -> u64 {
    mounted.stats()[counter].as_u64().unwrap()
}

/// Whether the file system reports the cached bytes of a file: here, all of it.
fn tells(path: &Path) -> bool {
    fs::read(path).unwrap();
    let flags = ReadWriteFlags::NOWAIT;
    let mut page = [0; 4096];
    rustix::io::preadv2(File::open(path).unwrap(), &mut [IoSliceMut::new(&mut page)], 0, flags).is_ok()
}

/// Opens a file repeatedly, without reading, until passthrough serves it: on a busy machine the time of one open may
/// be too short.
fn opened_by_kernel(mounted: &Mounted, path: &Path) -> File {
    let mut opened = None;
    wait_until("an open that the kernel answers", || {
        let before = count(mounted, "passthrough_opens");
        opened = Some(File::open(path).unwrap());
        count(mounted, "passthrough_opens") > before
    });
    opened.unwrap()
}

#[test]
fn a_cached_file_uses_passthrough_from_the_first_open() {
    let large = Large::new();
    let mounted = large.place.mount(&[]);
    for (name, wanted) in &large.files {
        let (path, physical) = (path(&mounted, name), large.physical(wanted));
        if !tells(&physical) {
            drop(File::open(&path).unwrap());
            assert_eq!(count(&mounted, "passthrough_opens"), 0, "{name}");
            continue;
        }
        let opened = opened_by_kernel(&mounted, &path);
        let before = count(&mounted, "read_bytes");
        let mut got = vec![0; wanted.len() + 1];
        let len = read_at(&opened, &mut got, 0);
        assert_same(&got[..len], wanted, name);
        assert_same(Mapping::of(&path, libc::MAP_SHARED).bytes(), wanted, "mapped");
        let texts_bytes = count(&mounted, "read_bytes") - before;
        assert!(texts_bytes < 100_000, "{name}: the daemon read {texts_bytes} bytes");
    }
    mounted.unmount();
}

#[test]
fn mounts_and_writers_that_need_the_daemon_prevent_verification_on_open() {
    let large = Large::new();
    let (name, wanted) = &large.files[0];
    assert!(fs::read(large.physical(wanted)).unwrap() == *wanted);
    for options in [&["--verify", "always"], &["--passthrough", "off"]] {
        let mounted = large.place.mount(options);
        for _ in 0..3 {
            assert_same(&fs::read(path(&mounted, name)).unwrap(), wanted, name);
        }
        assert_eq!(count(&mounted, "passthrough_opens"), 0, "{options:?}");
        mounted.unmount();
    }
    let mounted = large.place.mount(&[]);
    let writer = File::options().read(true).write(true).open(path(&mounted, name)).unwrap();
    let files = [writer, open_direct(&path(&mounted, name)), File::open(path(&mounted, name)).unwrap()];
    assert_eq!(count(&mounted, "passthrough_opens"), 0, "a writer has it");
    for file in files {
        let mut byte = [0; 7];
        assert_eq!(read_at(&file, &mut byte, 700_000), 7);
        assert_eq!(byte, wanted[700_000..][..7]);
    }
    mounted.unmount();
}

#[test]
fn a_file_with_a_wrong_byte_stays_with_the_daemon_and_its_block_fails() {
    let large = Large::new();
    let (name, wanted) = &large.files[0];
    let physical = large.physical(wanted);
    let at = wanted.len() / 2;
    File::options().write(true).open(&physical).unwrap().write_all_at(&[!wanted[at]], at as u64).unwrap();
    assert_eq!(fs::read(&physical).unwrap().len(), wanted.len());
    let mounted = large.place.mount(&[]);
    let file = File::open(path(&mounted, name)).unwrap();
    for _ in 0..3 {
        let again = File::open(path(&mounted, name)).unwrap();
        assert_eq!(again.read_at(&mut [0; 10], at as u64).unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    assert_eq!(count(&mounted, "passthrough_opens"), 0);
    let mut got = vec![0; wanted.len() / 4];
    assert_eq!(read_at(&file, &mut got, 0), got.len());
    assert_same(&got, &wanted[..got.len()], "before the wrong byte");
    drop(file);
    mounted.unmount();
}

#[test]
fn a_file_that_is_not_cached_is_read_through_the_daemon_first() {
    let place = Place::new();
    let wanted = Random(32).bytes(32 << 20);
    place.import("demo/model", &[&place.write("values.bin", &wanted)], &[]);
    let physical = File::open(place.store().join("demo/model/data/0000000000000001")).unwrap();
    physical.sync_all().unwrap();
    let mounted = place.mount(&[]);
    let path = path(&mounted, "values.bin");
    rustix::fs::fadvise(&physical, 0, None, Advice::DontNeed).unwrap();
    let opened = File::open(&path).unwrap();
    assert_eq!(count(&mounted, "passthrough_opens"), 0);
    let mut got = vec![0; wanted.len()];
    assert_eq!(read_at(&opened, &mut got, 0), got.len());
    assert_same(&got, &wanted, "first");
    assert_same(&fs::read(&path).unwrap(), &wanted, "second");
    assert_eq!(count(&mounted, "passthrough_opens"), 1, "each block was checked by the first");
    drop(opened);
    mounted.unmount();
}

#[test]
fn concurrent_opens_and_writes_always_read_correct_bytes() {
    let large = Large::new();
    let (name, wanted) = &large.files[0];
    for _ in 0..3 {
        let mounted = large.place.mount(&[]);
        std::thread::scope(|scope| {
            for reader in 0..12_usize {
                let (name, bytes) = &large.files[reader % 3];
                let path = path(&mounted, name);
                scope.spawn(move || assert_same(&fs::read(path).unwrap(), bytes, name));
            }
            scope.spawn(|| {
                let at = wanted.len() - 100_000;
                let file = File::options().write(true).open(path(&mounted, name)).unwrap();
                // The same bytes at another place.
                file.write_all_at(&wanted[at..], at as u64).unwrap();
            });
        });
        assert_same(&fs::read(path(&mounted, name)).unwrap(), wanted, "in the end");
        mounted.unmount();
    }
}
