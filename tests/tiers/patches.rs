//! Small writes into encoded tensors: written elements read as written, the others as before, in little space.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use support::{Mounted, Place, Random, get, npy_file};

const ELEMENTS: usize = 256 << 10;
const ROUNDS: usize = 20;

fn stored(path: &Path) -> u64 {
    get(path, "bytes_stored").parse().unwrap()
}

fn same(mounted: &Mounted, wanted: &[u8], round: usize) {
    let found = fs::read(mounted.path("demo/c/w")).unwrap();
    let differs = found.iter().zip(wanted).position(|(one, other)| one != other);
    assert!(found.len() == wanted.len() && differs.is_none(), "round {round}: first at {differs:?}");
}

/// Overwrites one element in a hundred of a tensor in `tier`, twenty times over remounts. The share of the exact
/// size that the first round adds, and the longest chain seen.
fn overwritten(tier: &str) -> (f64, usize) {
    let mut random = Random(7);
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&random.floats(ELEMENTS)));
    place.import("demo/c", &[&source], &["--tier", &format!("{tier}:all")]);
    let mut mounted = place.mount(&[]);
    let mut wanted = fs::read(mounted.path("demo/c/w")).unwrap();
    let before = stored(&mounted.path("demo/c/w"));
    let (mut first, mut longest) = (0.0, 0);
    for round in 0..ROUNDS {
        let file = fs::OpenOptions::new().write(true).open(mounted.path("demo/c/w")).unwrap();
        for _ in 0..ELEMENTS / 100 {
            let (at, new) = (random.below(ELEMENTS) * 4, random.floats(1));
            file.write_all_at(&new, at as u64).unwrap();
            wanted[at..at + 4].copy_from_slice(&new);
        }
        drop(file);
        same(&mounted, &wanted, round);
        if round == 0 {
            first = (stored(&mounted.path("demo/c/w")) - before) as f64 / wanted.len() as f64;
            assert_eq!(get(&mounted.path("demo/c/w"), "tier"), tier);
        }
        longest = longest.max(get(&mounted.path("demo/c/w"), "chain").parse().unwrap());
        if round % 5 == 4 {
            mounted.unmount();
            mounted = place.mount(&[]);
            same(&mounted, &wanted, round);
        }
    }
    mounted.unmount();
    support::run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    (first, longest)
}

#[test]
fn a_q3_tensor_overwritten_in_a_hundredth_twenty_times_reads_as_written_and_stays_small() {
    let (first, longest) = overwritten("q3");
    assert!(first < 0.05, "the first round takes {first} of the exact size");
    assert_eq!(longest, 8);
}

#[test]
fn a_q8_tensor_overwritten_in_a_hundredth_twenty_times_reads_as_written_and_stays_small() {
    assert!(overwritten("q8").0 < 0.05);
}

#[test]
fn a_large_change_makes_a_block_exact_and_an_identical_write_keeps_it() {
    let mut random = Random(8);
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&random.floats(ELEMENTS)));
    place.import("demo/c", &[&source], &["--tier", "q5:all"]);
    let mounted = place.mount(&[]);
    let path = mounted.path("demo/c/w");
    let mut wanted = fs::read(&path).unwrap();
    let before = stored(&path);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&wanted, 0).unwrap();
    drop(file);
    assert_eq!((get(&path, "tier").as_str(), stored(&path)), ("q5", before));
    // One block of 16 KiB and a half.
    let new = random.floats(6 << 10);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&new, 16 << 10).unwrap();
    drop(file);
    wanted[16 << 10..40 << 10].copy_from_slice(&new);
    same(&mounted, &wanted, 0);
    assert_eq!(get(&path, "tier"), "mixed");
    // An element that is NaN reads as it was written.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&f32::NAN.to_le_bytes(), 400_000).unwrap();
    drop(file);
    wanted[400_000..400_004].copy_from_slice(&f32::NAN.to_le_bytes());
    same(&mounted, &wanted, 1);
}

#[test]
fn a_compaction_merges_the_patches_of_a_block_into_one() {
    let mut random = Random(9);
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&random.floats(ELEMENTS)));
    place.import("demo/c", &[&source], &["--tier", "q5:all"]);
    let mut mounted = place.mount(&[]);
    let mut wanted = fs::read(mounted.path("demo/c/w")).unwrap();
    for _ in 0..4 {
        let file = fs::OpenOptions::new().write(true).open(mounted.path("demo/c/w")).unwrap();
        for _ in 0..40 {
            let (at, new) = (random.below(ELEMENTS / 2) * 4, random.floats(1));
            file.write_all_at(&new, at as u64).unwrap();
            wanted[at..at + 4].copy_from_slice(&new);
        }
        drop(file);
    }
    assert!(get(&mounted.path("demo/c/w"), "chain").parse::<u32>().unwrap() > 1);
    mounted.unmount();
    let said = support::run(["compact".as_ref(), place.store().as_os_str()]).ok();
    assert!(said.contains("blocks merged"), "{said}");
    support::run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    mounted = place.mount(&[]);
    assert_eq!(get(&mounted.path("demo/c/w"), "chain"), "1");
    same(&mounted, &wanted, 0);
}

/// A mount with an encoded tensor, and its bytes.
fn encoded() -> (Place, Mounted, Vec<u8>) {
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&Random(11).floats(ELEMENTS)));
    place.import("demo/c", &[&source], &["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    let bytes = fs::read(mounted.path("demo/c/w")).unwrap();
    (place, mounted, bytes)
}

fn write_at(path: &Path, bytes: &[u8], at: usize, wanted: &mut [u8]) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at as u64).unwrap();
    wanted[at..at + bytes.len()].copy_from_slice(bytes);
}

#[test]
fn the_limits_of_deltas_are_those_of_the_settings() {
    let (_place, mounted, mut wanted) = encoded();
    let w = mounted.path("demo/c/w");
    support::set(&mounted.path("demo/c"), "delta_chain", "2").unwrap();
    for round in 0..5_usize {
        write_at(&w, &Random(12 + round as u64).floats(1), 400 + 8 * round, &mut wanted);
        same(&mounted, &wanted, round);
        assert_eq!(get(&w, "chain"), ["1", "2", "1", "2", "1"][round]);
    }
    // A block of 16,384 bytes has 4,096 elements, of which a tenth may change.
    let block = 64 << 10;
    write_at(&w, &Random(20).floats(300), block, &mut wanted);
    assert_eq!((get(&w, "tier"), get(&w, "chain")), ("q8".into(), "1".into()));
    support::set(&mounted.path("demo/c"), "delta_changed", "0.01").unwrap();
    write_at(&w, &Random(21).floats(300), 2 * block, &mut wanted);
    same(&mounted, &wanted, 9);
    assert_eq!(get(&w, "tier"), "mixed");
}

#[test]
fn a_rounded_delta_is_as_large_as_delta_norm_says() {
    let (_place, mounted, mut wanted) = encoded();
    let w = mounted.path("demo/c/w");
    support::set(&mounted.path("demo/c"), "lossy", "allow").unwrap();
    support::set(&w, "writes", "delta").unwrap();
    let changed = |wanted: &[u8], at: usize| {
        let value = f32::from_le_bytes(wanted[at..at + 4].try_into().unwrap());
        (value + 0.01).to_le_bytes()
    };
    let value = changed(&wanted, 800);
    write_at(&w, &value, 800, &mut wanted);
    assert_eq!((get(&w, "tier"), get(&w, "chain")), ("q8".into(), "1".into()));
    support::set(&w, "delta_norm", "0").unwrap();
    let value = changed(&wanted, 808);
    write_at(&w, &value, 808, &mut wanted);
    // The block is encoded anew, without a chain.
    assert_eq!((get(&w, "tier"), get(&w, "chain")), ("q8".into(), "0".into()));
}

#[test]
fn a_compaction_leaves_the_patches_of_a_parent_that_a_child_needs() {
    let place = Place::new();
    let mut random = Random(30);
    let values = random.floats(ELEMENTS);
    let base = place.write("base/w.npy", npy_file(&values));
    place.import("demo/base", &[&base], &["--tier", "q5:all"]);
    let mut mounted = place.mount(&[]);
    let parent = mounted.path("demo/base/w");
    for round in 0..3_usize {
        let file = fs::OpenOptions::new().write(true).open(&parent).unwrap();
        file.write_all_at(&random.floats(1), 400 + 8 * round as u64).unwrap();
    }
    assert_eq!(get(&parent, "chain"), "3");
    let mut tuned = fs::read(&parent).unwrap();
    tuned[40_000..40_004].copy_from_slice(&random.floats(1));
    let child = place.write("tuned/w.npy", npy_file(&tuned));
    mounted.unmount();
    place.import("demo/tuned", &[&child], &["--parent", "demo/base", "--reconstruct", "delta"]);
    mounted = place.mount(&[]);
    assert_eq!(get(&mounted.path("demo/tuned/w"), "tier"), "absent");
    mounted.unmount();
    support::run(["compact".as_ref(), place.store().as_os_str()]).ok();
    support::run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    mounted = place.mount(&[]);
    assert_eq!(get(&mounted.path("demo/base/w"), "chain"), "3");
    assert!(fs::read(mounted.path("demo/tuned/w")).unwrap() == tuned);
}
