//! A copy is given up only for a source that was opened by its present name and compared in that call.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use support::{Mounted, Place, Random, assert_same, get, npy_file, refused_set, run, set, wait_until};

const BLOCK: usize = 16_384;

/// A source of one tensor, imported in place as `w`, and its mount.
struct InPlace {
    place: Place,
    mounted: Mounted,
    source: PathBuf,
    bytes: Vec<u8>,
    mtime: SystemTime,
}

impl InPlace {
    fn new(seed: u64) -> InPlace {
        let place = Place::new();
        let source = place.write("in/w.npy", npy_file(&Random(seed).floats(100_000)));
        place.import("t/c", &[&source], &["--in-place"]);
        let mounted = place.mount(&[]);
        let (bytes, mtime) = (fs::read(&source).unwrap(), modified(&source));
        InPlace { place, mounted, source, bytes, mtime }
    }

    fn tensor(&self) -> PathBuf {
        self.mounted.path("t/c/w")
    }

    /// Writes into the source and restores its time.
    fn damage(&self, at: u64) {
        let file = fs::File::options().write(true).open(&self.source).unwrap();
        file.write_all_at(&[self.bytes[at as usize] ^ 1], at).unwrap();
        file.set_modified(self.mtime).unwrap();
    }

    fn restore(&self) {
        fs::write(&self.source, &self.bytes).unwrap();
        set_modified(&self.source, self.mtime);
    }

    /// The content of the tensor, read with O_DIRECT.
    fn read(&self) -> std::io::Result<Vec<u8>> {
        set(&self.tensor(), "evict", "cache").unwrap();
        fs::read(self.tensor())
    }
}

fn modified(path: &Path) -> SystemTime {
    fs::metadata(path).unwrap().modified().unwrap()
}

fn set_modified(path: &Path, time: SystemTime) {
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

/// Checks that requests that need the source are refused, and that the tensor stays in q8 with the same content.
fn check_nothing_is_given_up(model: &InPlace, hot: &[u8], what: &str) {
    let tensor = model.tensor();
    refused_set(&tensor, "evict", "1", Errno::INVAL);
    refused_set(&tensor, "tier", "q3", Errno::PERM);
    refused_set(&tensor, "tier", "exact", Errno::INVAL);
    assert_eq!(get(&tensor, "tier"), "q8", "{what}");
    assert_same(&model.read().unwrap(), hot, what);
}

#[test]
fn codes_are_kept_when_the_source_is_damaged_after_its_verification() {
    let model = InPlace::new(1);
    let tensor = model.tensor();
    set(&tensor, "reconstruct", "origin").unwrap();
    set(&tensor, "tier", "q3").unwrap();
    // This compares the whole source.
    set(&tensor, "tier", "q8").unwrap();
    let hot = fs::read(&tensor).unwrap();
    model.damage(128 + 3 * BLOCK as u64);
    check_nothing_is_given_up(&model, &hot, "damaged");
    model.restore();
    set(&tensor, "evict", "1").unwrap();
    assert_eq!(get(&tensor, "tier"), "absent");
    assert_same(&model.read().unwrap(), &model.bytes[128..], "evicted");
}

#[test]
fn codes_are_kept_when_the_source_is_unlinked_but_open() {
    let model = InPlace::new(2);
    let tensor = model.tensor();
    set(&tensor, "reconstruct", "origin").unwrap();
    set(&tensor, "tier", "q8").unwrap();
    let hot = fs::read(&tensor).unwrap();
    // The daemon keeps the source open for these requests.
    let held = [fs::File::open(&tensor).unwrap(), fs::File::open(model.mounted.path("t/c/w.npy")).unwrap()];
    let away = model.place.path("in/away");
    fs::rename(&model.source, &away).unwrap();
    check_nothing_is_given_up(&model, &hot, "renamed");
    // Another file of the same size and time has its name.
    fs::write(&model.source, vec![7; model.bytes.len()]).unwrap();
    set_modified(&model.source, model.mtime);
    check_nothing_is_given_up(&model, &hot, "replaced");
    fs::rename(&away, &model.source).unwrap();
    set(&tensor, "evict", "1").unwrap();
    assert_same(&model.read().unwrap(), &model.bytes[128..], "evicted");
    drop(held);
}

#[test]
fn a_delta_to_a_parent_whose_source_is_unlinked_is_refused() {
    let place = Place::new();
    let mut elements = Random(3).floats(100_000);
    let base = place.write("base/w.npy", npy_file(&elements));
    for element in elements.chunks_exact_mut(4).step_by(50) {
        element.copy_from_slice(&0.5_f32.to_le_bytes());
    }
    let tuned = place.write("tune/w.npy", npy_file(&elements));
    place.import("t/base", &[&base], &["--in-place"]);
    place.import("t/tune", &[&tuned], &["--parent", "t/base"]);
    let mounted = place.mount(&[]);
    let child = mounted.path("t/tune/w");
    set(&child, "reconstruct", "delta").unwrap();
    let held = fs::File::open(mounted.path("t/base/w")).unwrap();
    let away = place.path("base/away");
    fs::rename(&base, &away).unwrap();
    refused_set(&child, "evict", "1", Errno::IO);
    assert_eq!(get(&child, "tier"), "exact");
    drop(held);
    set(&child, "evict", "cache").unwrap();
    assert_same(&fs::read(&child).unwrap(), &elements, "refused");
    fs::rename(&away, &base).unwrap();
    set(&child, "evict", "1").unwrap();
    assert_eq!(get(&child, "tier"), "absent");
    assert_same(&fs::read(&child).unwrap(), &elements, "a difference");
}

#[test]
fn the_copy_of_a_pinned_file_is_kept_while_its_blocks_are_damaged() {
    let place = Place::new();
    let bytes = Random(4).bytes(200_000);
    let source = place.write("plain.bin", &bytes);
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&[]);
    let file = mounted.path("t/c/plain.bin");
    set(&file, "pin", "1").unwrap();
    let data = fs::read_dir(place.store().join("t/c/data")).unwrap().next().unwrap().unwrap().path();
    let stored = fs::File::options().write(true).open(&data).unwrap();
    stored.write_all_at(&[bytes[50_000] ^ 1], 50_000).unwrap();
    set(&file, "pin", "0").unwrap();
    assert_eq!(get(&file, "pin"), "0");
    set(&file, "evict", "cache").unwrap();
    assert_same(&fs::read(&file).unwrap(), &bytes, "unpinned");
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn the_copy_of_a_pinned_file_is_kept_while_nothing_else_has_its_bytes() {
    let model = InPlace::new(5);
    let tensor = model.tensor();
    set(&tensor, "reconstruct", "origin").unwrap();
    set(&tensor, "evict", "1").unwrap();
    set(&tensor, "pin", "1").unwrap();
    let away = model.place.path("in/away");
    fs::rename(&model.source, &away).unwrap();
    assert!(refused_set(&tensor, "pin", "0", Errno::IO).contains("pinned copy"));
    assert_eq!(get(&tensor, "pin"), "1");
    assert_same(&model.read().unwrap(), &model.bytes[128..], "pinned still");
    fs::rename(&away, &model.source).unwrap();
    set(&tensor, "pin", "0").unwrap();
    assert_same(&model.read().unwrap(), &model.bytes[128..], "unpinned");
}

#[test]
fn a_touched_source_is_used_while_its_checksums_hold() {
    let model = InPlace::new(6);
    let tensor = model.tensor();
    let data = &model.bytes[128..];
    assert_same(&model.read().unwrap(), data, "imported");
    let later = model.mtime + Duration::from_secs(1);
    set_modified(&model.source, later);
    assert_same(&model.read().unwrap(), data, "touched");
    let verified = fs::read_to_string(model.mounted.path("t/c/.ctl/verify/w.npy")).unwrap();
    assert!(verified.ends_with("ok\n"), "{verified}");
    set(&tensor, "evict", "cache").unwrap();
    let mut part = vec![0; 1000];
    fs::File::open(&tensor).unwrap().read_exact_at(&mut part, 2 * BLOCK as u64 + 100).unwrap();
    assert_same(&part, &data[2 * BLOCK + 100..][..1000], "a part");
    let digest = get(&model.mounted.path("t/c/w.npy"), "sha256");
    assert_eq!(get(&model.mounted.path("t/c/w.npy"), "sha256"), digest);
    // Blocks that were compared before are compared again: one differs.
    let file = fs::File::options().write(true).open(&model.source).unwrap();
    file.write_all_at(&[data[2 * BLOCK] ^ 1], 128 + 2 * BLOCK as u64).unwrap();
    file.set_modified(later).unwrap();
    set(&tensor, "evict", "cache").unwrap();
    let file = fs::File::open(&tensor).unwrap();
    wait_until("the block is an error", || {
        errno(file.read_at(&mut part, 2 * BLOCK as u64)) == Some(Errno::IO)
    });
    assert_eq!(errno(file.read_at(&mut part, 2 * BLOCK as u64 + 8192)), Some(Errno::IO));
    file.read_exact_at(&mut part, 5 * BLOCK as u64).unwrap();
    assert_same(&part, &data[5 * BLOCK..][..1000], "another block");
    assert_eq!(support::try_get(&model.mounted.path("t/c/w.npy"), "sha256"), Err(Errno::IO));
    drop(file);
    // With its bytes restored it serves all requests, with any time.
    fs::write(&model.source, &model.bytes).unwrap();
    set_modified(&model.source, later);
    set(&tensor, "reconstruct", "origin").unwrap();
    for tier in ["q3", "q8"] {
        set(&tensor, "tier", tier).unwrap();
    }
    set(&tensor, "evict", "1").unwrap();
    assert_same(&model.read().unwrap(), data, "evicted");
    model.mounted.unmount();
    run(["fsck".as_ref(), model.place.store().as_os_str()]).ok();
    let mounted = model.place.mount(&[]);
    assert_same(&fs::read(mounted.path("t/c/w.npy")).unwrap(), &model.bytes, "mounted again");
}

/// A directory of the store under another path, until it is dropped.
struct Bound(PathBuf);

impl Bound {
    fn new(place: &Place, what: &Path) -> Bound {
        let at = place.path("bound");
        fs::create_dir_all(&at).unwrap();
        rustix::mount::mount_bind(what, &at).unwrap();
        Bound(at)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH) {
            eprintln!("unmounting {}: {error}", self.0.display());
        }
    }
}

#[test]
fn a_file_of_a_store_is_refused_as_a_source_in_place_by_any_path() {
    let place = Place::new();
    let source = place.write("in/a.bin", Random(7).bytes(50_000));
    place.import("t/c", &[&source], &[]);
    let refused = |of: &Place, path: &Path, words: &str| {
        let answer = of.try_import("t/other", &[path], &["--in-place"]);
        assert!(answer.code == Some(1) && answer.err.contains(words), "{}: {answer:?}", path.display());
    };
    let data = fs::read_dir(place.store().join("t/c/data")).unwrap().next().unwrap().unwrap().path();
    for (number, inside) in [data.clone(), place.store().join("t/c/meta.log")].iter().enumerate() {
        let linked = place.path(format!("linked/{number}.bin"));
        fs::create_dir_all(place.path("linked")).unwrap();
        fs::hard_link(inside, &linked).unwrap();
        refused(&place, &linked, "in the store itself");
    }
    refused(&place, &place.path("linked"), "in the store itself");
    for above in [place.store(), place.store().join("t/c"), place.store().join("t/c/data")] {
        let bound = Bound::new(&place, &above);
        let below = bound.0.join(data.strip_prefix(&above).unwrap());
        refused(&place, &below, "in the store itself");
        refused(&place, &bound.0, "in the store itself");
    }
    // A file of another store is refused too: it changes with that store.
    let other = Place::new();
    refused(&other, &data, "in the tierfs store");
    let mounted = other.mount(&["--create"]);
    refused(&place, &other.store().join("tierfs.toml"), "in the tierfs store");
    let bound = Bound::new(&place, &other.store());
    refused(&place, &bound.0.join("tierfs.toml"), "in the tierfs store");
    drop(bound);
    // A daemon refuses it too.
    refused(&other, &data, "in the tierfs store");
    mounted.unmount();
    let mounted = place.mount(&[]);
    refused(&place, &place.path("linked/0.bin"), "in the store itself");
    let listed = fs::read_dir(mounted.path("t")).unwrap().count();
    assert_eq!(listed, 1, "nothing was made for what was refused");
}
