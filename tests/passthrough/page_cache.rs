//! A file that is read through the daemon is not cached twice.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::Advice;

use support::{Aligned, Mapping, Place, Random, assert_same, open_direct, read_at};

const PAGE_BYTES: usize = 4096;
const CALL_BYTES: usize = 1 << 20;

/// Pages of a file that are in memory.
fn resident(path: &Path) -> usize {
    let mapping = Mapping::of(path, libc::MAP_SHARED);
    let bytes = mapping.bytes();
    let mut pages = vec![0_u8; bytes.len().div_ceil(PAGE_BYTES)];
    // SAFETY: the mapping is this long, and there is a byte for each of its pages.
    let code = unsafe { libc::mincore(bytes.as_ptr().cast_mut().cast(), bytes.len(), pages.as_mut_ptr()) };
    assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
    pages.iter().filter(|page| **page & 1 == 1).count()
}

/// Pages of a file that stay cached after they are dropped: none, except on a file system in memory.
fn kept_by_the_system(place: &Place, bytes: &[u8]) -> usize {
    let path = place.write("let-go", bytes);
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    resident(&path)
}

#[test]
fn cached_pages_of_a_data_file_are_dropped_only_after_a_full_read() {
    let place = Place::new();
    let bytes = Random(1).bytes(21 * CALL_BYTES + 1234);
    let source = place.write("values.bin", &bytes);
    place.import("demo/c", &[&source], &[]);
    let outside = place.write("outside.bin", &bytes);
    place.import("demo/c", &[&outside], &["--in-place"]);
    let data = place.store().join("demo/c/data/0000000000000001");
    let least = kept_by_the_system(&place, &bytes);
    let pages = bytes.len().div_ceil(PAGE_BYTES);
    let mounted = place.mount(&["--verify", "always"]);
    let path = mounted.path("demo/c/values.bin");

    // At several places, and with O_DIRECT.
    fs::read(&data).unwrap();
    let before = resident(&data);
    let file = File::open(&path).unwrap();
    let mut few = vec![0; 100];
    for at in (0..bytes.len() - 100).step_by(bytes.len() / 7) {
        assert_eq!(read_at(&file, &mut few, at as u64), 100);
    }
    let direct = open_direct(&path);
    let mut memory = Aligned::new(CALL_BYTES);
    for at in 0..21 {
        let got = memory.pages(CALL_BYTES);
        assert_eq!(read_at(&direct, got, (at * CALL_BYTES) as u64), CALL_BYTES);
        assert_same(got, &bytes[at * CALL_BYTES..][..CALL_BYTES], "past the cache");
    }
    drop(direct);
    let spared = resident(&data);
    assert!(spared >= before.min(pages) - pages / 4, "{spared} of {before} pages were kept");

    // The whole file in order.
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    assert_same(&fs::read(&path).unwrap(), &bytes, "through the daemon");
    let left = resident(&data);
    assert!(left <= least + pages / 10, "{left} of {pages} pages are in memory twice, {least} must be");
    drop(file);
    // Other programs use a file outside the store.
    fs::read(&outside).unwrap();
    let before = resident(&outside);
    assert_same(&fs::read(mounted.path("demo/c/outside.bin")).unwrap(), &bytes, "in place");
    assert!(resident(&outside) >= before - pages / 4, "pages of a file outside the store went");
    mounted.unmount();
}
