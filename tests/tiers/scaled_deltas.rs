//! Writes into encoded tensors that are stored as scaled differences, where the setting asks for it.

use std::fs;
use std::os::unix::fs::FileExt;

use support::{Place, Random, get, npy_file, run, set};

const ELEMENTS: usize = 1 << 18;

/// Elements with an approximately normal distribution: sums of twelve uniform ones.
fn normal(random: &mut Random, count: usize) -> Vec<f32> {
    let even = |random: &mut Random| random.below(1 << 24) as f32 / (1 << 24) as f32;
    (0..count).map(|_| (0..12).map(|_| even(random)).sum::<f32>() - 6.0).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

#[test]
fn small_changes_are_rounded_within_their_bound_and_take_a_fifth_of_an_encoding() {
    let mut random = Random(21);
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&bytes(&normal(&mut random, ELEMENTS))));
    place.import("t/c", &[&source], &["--tier", "q3:all"]);
    let mut mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/w");
    set(&tensor, "writes", "delta").unwrap();
    let full: u64 = get(&tensor, "bytes_stored").parse().unwrap();
    for round in 1..=10 {
        let tensor = mounted.path("t/c/w");
        let before = floats(&fs::read(&tensor).unwrap());
        let mut wanted = before.clone();
        let file = fs::OpenOptions::new().write(true).open(&tensor).unwrap();
        for _ in 0..ELEMENTS / 100 {
            let at = random.below(ELEMENTS);
            wanted[at] = before[at] + 0.6 * (random.below(1001) as f32 / 1000.0 - 0.5);
            file.write_all_at(&wanted[at].to_le_bytes(), at as u64 * 4).unwrap();
        }
        drop(file);
        let found = floats(&fs::read(&tensor).unwrap());
        // The ninth change of a block encodes it anew. A periodic flush meanwhile counts as one change.
        let bound = if round < 4 { 0.3 / 32767.0 * 0.5 + 1e-6 } else { 4.0 };
        for (at, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            assert!((found - wanted).abs() <= bound, "round {round}, element {at}: {found} for {wanted}");
            assert!(round > 3 || wanted != &before[at] || found == wanted, "element {at} was not written");
        }
        assert_eq!(get(&tensor, "tier"), "q3");
        let stored: u64 = get(&tensor, "bytes_stored").parse().unwrap();
        if round == 1 {
            assert!(stored > full && stored - full < full / 5, "{} of {full}", stored - full);
        }
        if round % 4 == 0 {
            mounted.unmount();
            mounted = place.mount(&[]);
            assert_eq!(
                floats(&fs::read(mounted.path("t/c/w")).unwrap()),
                found,
                "round {round}, mounted again"
            );
        }
    }
    assert!(get(&mounted.path("t/c/w"), "chain").parse::<u64>().unwrap() <= 8);
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn large_changes_are_encoded_again_and_infinite_values_stay_exact() {
    let mut random = Random(22);
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&bytes(&normal(&mut random, ELEMENTS / 8))));
    place.import("t/c", &[&source], &["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/w");
    set(&tensor, "writes", "delta").unwrap();
    let before: u64 = get(&tensor, "bytes_stored").parse().unwrap();
    let new = normal(&mut random, 8192);
    let file = fs::OpenOptions::new().write(true).open(&tensor).unwrap();
    file.write_all_at(&bytes(&new), 16_384).unwrap();
    drop(file);
    assert_eq!((get(&tensor, "tier").as_str(), get(&tensor, "bytes_stored")), ("q8", before.to_string()));
    let found = floats(&fs::read(&tensor).unwrap());
    for (found, wanted) in found[4096..].iter().zip(&new) {
        assert!((found - wanted).abs() < 0.05, "{found} for {wanted}");
    }
    let file = fs::OpenOptions::new().write(true).open(&tensor).unwrap();
    file.write_all_at(&f32::INFINITY.to_le_bytes(), 0).unwrap();
    drop(file);
    assert_eq!(get(&tensor, "tier"), "mixed");
    assert_eq!(floats(&fs::read(&tensor).unwrap())[0], f32::INFINITY);
}
