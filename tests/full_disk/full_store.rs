//! A full store: its files stay readable, and removals make room.

use std::fs;
use std::io::Write;

use support::{Fixture, Place, Random, assert_same, npy_file, run, wait_until};

const STORE_BYTES: u64 = 16 << 20;

/// A store on a small file system of its own, which is unmounted at the end.
pub struct Small {
    pub fixture: Fixture,
    pub store: std::path::PathBuf,
}

impl Small {
    pub fn new() -> Small {
        Small::of_bytes(STORE_BYTES)
    }

    pub fn of_bytes(bytes: u64) -> Small {
        let fixture = Fixture::unmounted(Place::new());
        let store = fixture.place.store();
        fs::create_dir(&store).unwrap();
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        rustix::mount::mount("tmpfs", &store, "tmpfs", rustix::mount::MountFlags::empty(), &*options)
            .unwrap();
        let mut small = Small { fixture, store };
        run(["init".as_ref(), small.store.as_os_str()]).ok();
        small.fixture.mount();
        fs::create_dir_all(small.fixture.path("")).unwrap();
        small
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount(&self.store, rustix::mount::UnmountFlags::DETACH) {
            eprintln!("unmounting {}: {error}", self.store.display());
        }
    }
}

/// Writes a file and returns the error number if that fails.
pub fn write(path: &std::path::Path, bytes: &[u8]) -> Result<(), i32> {
    let number = |error: std::io::Error| error.raw_os_error().unwrap();
    let mut file = fs::File::create(path).map_err(number)?;
    file.write_all(bytes).map_err(number)?;
    file.sync_all().map_err(number)
}

#[test]
fn a_full_store_keeps_its_files_and_removed_files_free_space() {
    let mut small = Small::new();
    let mut random = Random(1);
    let mut kept: Vec<(String, Vec<u8>)> = Vec::new();
    let fill =
        |small: &Small, random: &mut Random, kept: &mut Vec<(String, Vec<u8>)>, tag: &str, size: usize| {
            for number in 0..100_000 {
                let (name, bytes) = (format!("{tag}{number}"), random.bytes(size + number % 7));
                match write(&small.fixture.path(&name), &bytes) {
                    Ok(()) => kept.push((name, bytes)),
                    Err(number) => {
                        assert_eq!(number, libc::ENOSPC);
                        // A file may be there without the bytes that did not fit.
                        let path = small.fixture.path(&name);
                        if path.exists() {
                            assert!(fs::read(&path).unwrap().len() <= bytes.len());
                            fs::remove_file(&path).unwrap();
                        }
                        return;
                    }
                }
            }
            panic!("it is never full");
        };
    let check = |small: &Small, kept: &[(String, Vec<u8>)]| {
        for (name, bytes) in kept {
            assert_same(&small.fixture.read(name), bytes, name);
        }
    };
    for round in 0..3 {
        fill(&small, &mut random, &mut kept, &format!("large{round}-"), 700_000);
        fill(&small, &mut random, &mut kept, &format!("middle{round}-"), 50_000);
        fill(&small, &mut random, &mut kept, &format!("small{round}-"), 3000);
        check(&small, &kept);
        if round == 1 {
            small.fixture.remount();
            check(&small, &kept);
        }
        // Removes half of the files in random order and adds as many bytes again.
        let mut freed = 0;
        while freed < STORE_BYTES as usize / 2 {
            let (name, bytes) = kept.swap_remove(random.below(kept.len()));
            fs::remove_file(small.fixture.path(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            freed += bytes.len();
        }
        let bytes = random.bytes(freed / 2);
        let name = format!("again{round}");
        // The kernel closes the files that were read at a time of its choice.
        let path = small.fixture.path(&name);
        wait_until("the space that was freed", || write(&path, &bytes) == Ok(()));
        kept.push((name, bytes));
        check(&small, &kept);
    }
    small.fixture.remount();
    check(&small, &kept);
}

#[test]
fn moves_on_a_disk_that_is_nearly_full_go_on_and_leak_no_space() {
    let small = Small::new();
    let mut random = Random(3);
    let elements = random.floats(1 << 20);
    let array = npy_file(&elements);
    assert_eq!(write(&small.fixture.path("x.npy"), &array), Ok(()));
    let tensor = small.fixture.path("x");
    let set = |key: &str, value: &str| {
        let name = format!("user.tierfs.{key}");
        rustix::fs::setxattr(&tensor, name, value.as_bytes(), rustix::fs::XattrFlags::empty())
    };
    set("lossy", "allow").unwrap();
    // Room for a part of the blocks that a move stores, not for all.
    let free = || {
        let found = rustix::fs::statvfs(&small.store).unwrap();
        found.f_bfree * found.f_frsize
    };
    let filler = small.store.join("filler");
    let leave = |bytes: u64| {
        let held = fs::metadata(&filler).map_or(0, |file| file.len());
        fs::write(&filler, vec![1; (held + free() - bytes) as usize]).unwrap();
    };
    set("tier", "q8").unwrap();
    assert_eq!(small.fixture.attribute("x", "tier"), "q8");
    set("tier", "exact").unwrap_err();
    leave(300 << 10);
    let before = free();
    for tier in ["q7", "q5", "q3"] {
        set("tier", tier).unwrap();
        assert_eq!(small.fixture.attribute("x", "tier"), tier);
    }
    fs::write(small.fixture.mounted().path(".ctl/sync"), "now").unwrap();
    let after = free();
    assert!(after > before + (256 << 10), "from {before} to {after} free bytes");
    fs::remove_file(&filler).unwrap();
}

#[test]
fn a_write_that_fails_on_a_full_disk_changes_nothing() {
    let mut small = Small::new();
    let mut random = Random(2);
    let bytes = random.bytes(9 << 20);
    assert_eq!(write(&small.fixture.path("whole"), &bytes), Ok(()));
    let file = fs::File::options().append(true).open(small.fixture.path("whole")).unwrap();
    let more = random.bytes(1 << 20);
    let mut expected = bytes;
    loop {
        use std::os::unix::fs::MetadataExt;
        match (&file).write(&more) {
            Ok(count) => expected.extend(&more[..count]),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
                assert_eq!(file.metadata().unwrap().size(), expected.len() as u64);
                break;
            }
        }
    }
    drop(file);
    assert_same(&small.fixture.read("whole"), &expected, "what fitted");
    // A write inside a file needs new space too: it happens whole or not at all.
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().write(true).open(small.fixture.path("whole")).unwrap();
    let mut refused = false;
    for at in (0..6 << 20).step_by(1 << 16) {
        match file.write_at(&more[..1 << 16], at as u64) {
            Ok(count) => expected[at..at + count].copy_from_slice(&more[..count]),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
                refused = true;
            }
        }
    }
    assert!(refused);
    drop(file);
    assert_same(&small.fixture.read("whole"), &expected, "what was written inside");
    small.fixture.crash();
    assert_same(&small.fixture.read("whole"), &expected, "after a crash");
    fs::remove_file(small.fixture.path("whole")).unwrap();
    let other = small.fixture.path("other");
    wait_until("the space that was freed", || write(&other, &expected[..9 << 20]) == Ok(()));
}
