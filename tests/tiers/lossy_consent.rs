//! The consent of an import, `lossy=allow:TIER`, covers the imported bytes, because the user has their source. Bytes that are
//! written over them have no other source.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;

use support::{Mounted, Place, Random, assert_same, container_of, get, npy_file, refused_set, run, set};

const TENSORS: [(&str, usize); 2] = [("v", 70_000), ("w", 70_000)];

/// A container that was imported into q8, its mount, and another container.
fn imported(options: &[&str]) -> (Place, Mounted, Vec<u8>) {
    let place = Place::new();
    let mut random = Random(81);
    let source = place.write("m.safetensors", container_of(&mut random, &TENSORS));
    let other = container_of(&mut random, &TENSORS);
    place.import("t/c", &[&source], &[&["--tier", "q8:all"], options].concat());
    let mounted = place.mount(&[]);
    (place, mounted, other)
}

fn lossy<const N: usize>(mounted: &Mounted, names: [&str; N]) -> [String; N] {
    names.map(|name| get(&mounted.path(Path::new("t/c").join(name)), "lossy"))
}

fn check_kept(path: &Path) {
    let before = fs::read(path).unwrap();
    assert!(refused_set(path, "evict", "discard", Errno::PERM).contains("lossy"));
    assert!(refused_set(path, "tier", "q3", Errno::PERM).contains("lossy"));
    assert_same(&fs::read(path).unwrap(), &before, "refused");
}

#[test]
fn a_copy_over_an_imported_file_ends_the_consent_of_the_import() {
    let (place, mounted, other) = imported(&[]);
    let names = ["m.safetensors", "v", "w"];
    assert_eq!(lossy(&mounted, names), ["allow:q8"; 3]);
    fs::write(mounted.path("t/c/m.safetensors"), &other).unwrap();
    assert_eq!(lossy(&mounted, names), ["deny"; 3]);
    for tensor in ["v", "w"] {
        check_kept(&mounted.path(Path::new("t/c").join(tensor)));
    }
    assert_same(&fs::read(mounted.path("t/c/m.safetensors")).unwrap(), &other, "written");
    mounted.kill();
    drop(mounted);
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    assert_eq!(lossy(&mounted, names), ["deny"; 3]);
    check_kept(&mounted.path("t/c/w"));
}

#[test]
fn a_write_to_a_tensor_ends_the_consent_of_the_import_for_it_and_for_its_container() {
    let (place, mounted, _) = imported(&[]);
    let w = mounted.path("t/c/w");
    let file = fs::OpenOptions::new().write(true).open(&w).unwrap();
    file.write_all_at(&1.5_f32.to_le_bytes(), 400).unwrap();
    drop(file);
    assert_eq!(lossy(&mounted, ["m.safetensors", "v", "w"]), ["deny", "allow:q8", "deny"]);
    check_kept(&w);
    mounted.unmount();
    let mounted = place.mount(&[]);
    assert_eq!(lossy(&mounted, ["m.safetensors", "v", "w"]), ["deny", "allow:q8", "deny"]);
    // The import has agreed to q8, not to less.
    assert!(refused_set(&mounted.path("t/c/v"), "tier", "q3", Errno::PERM).contains("lossy"));
    // Through the container.
    let container = mounted.path("t/c/m.safetensors");
    let at = fs::metadata(&container).unwrap().len() - 280_000 - 4;
    fs::OpenOptions::new().write(true).open(&container).unwrap().write_all_at(&[0; 4], at).unwrap();
    assert_eq!(lossy(&mounted, ["v"]), ["deny"]);
    mounted.job("t/c/.ctl/compact", "start");
    mounted.unmount();
    let mounted = place.mount(&[]);
    assert_eq!(lossy(&mounted, ["m.safetensors", "v", "w"]), ["deny"; 3]);
}

#[test]
fn the_origin_of_consent_survives_a_truncation_and_a_log_rewrite() {
    let place = Place::new();
    let source = place.write("x.npy", npy_file(&Random(82).floats(70_000)));
    place.import("t/c", &[&source], &["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    mounted.job("t/c/.ctl/compact", "start");
    assert_eq!(lossy(&mounted, ["x.npy", "x"]), ["allow:q8"; 2]);
    let file = fs::OpenOptions::new().write(true).open(mounted.path("t/c/x.npy")).unwrap();
    file.set_len(100_000).unwrap();
    drop(file);
    assert_eq!(lossy(&mounted, ["x.npy"]), ["deny"]);
}

#[test]
fn consent_given_by_a_user_stays_after_writes() {
    let (place, mounted, other) = imported(&[]);
    // The same value: from now on it is the user's setting.
    for name in ["m.safetensors", "w"] {
        set(&mounted.path(Path::new("t/c").join(name)), "lossy", "allow").unwrap();
    }
    let w = mounted.path("t/c/w");
    fs::OpenOptions::new().write(true).open(&w).unwrap().write_all_at(&[0; 64], 4096).unwrap();
    assert_eq!(lossy(&mounted, ["m.safetensors", "v", "w"]), ["allow"; 3]);
    mounted.unmount();
    let mounted = place.mount(&[]);
    fs::write(mounted.path("t/c/m.safetensors"), &other).unwrap();
    assert_eq!(lossy(&mounted, ["m.safetensors", "v", "w"]), ["allow"; 3]);
    set(&mounted.path("t/c/w"), "tier", "q3").unwrap();
    // A refusal by the user stays.
    set(&mounted.path("t/c/v"), "lossy", "deny").unwrap();
    assert!(refused_set(&mounted.path("t/c/v"), "tier", "q3", Errno::PERM).contains("lossy"));
}

#[test]
fn consent_reaches_down_to_the_tier_that_it_names() {
    let place = Place::new();
    let source = place.write("m.safetensors", container_of(&mut Random(85), &TENSORS));
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&[]);
    let w = mounted.path("t/c/w");
    set(&mounted.path("t/c"), "lossy", "allow:q5").unwrap();
    assert_eq!(get(&w, "lossy"), "allow:q5");
    set(&w, "tier", "q8").unwrap();
    set(&w, "tier", "q5").unwrap();
    for tier in ["q3x", "q3"] {
        assert!(refused_set(&w, "tier", tier, Errno::PERM).contains("lossy"));
    }
    assert!(refused_set(&w, "evict", "discard", Errno::PERM).contains("lossy"));
    set(&w, "tier", "q3:lossy").unwrap();
    set(&mounted.path("t/c"), "lossy", "allow").unwrap();
    set(&w, "evict", "discard").unwrap();
}

#[test]
fn consent_of_a_directory_covers_files_written_over_an_import() {
    let (_place, mounted, other) = imported(&[]);
    set(&mounted.path("t/c"), "lossy", "allow").unwrap();
    fs::write(mounted.path("t/c/m.safetensors"), &other).unwrap();
    assert_eq!(lossy(&mounted, ["m.safetensors", "w"]), ["allow"; 2]);
    set(&mounted.path("t/c"), "lossy", "deny").unwrap();
    assert_eq!(lossy(&mounted, ["m.safetensors", "w"]), ["deny"; 2]);
    check_kept(&mounted.path("t/c/w"));
}

#[test]
fn rounded_writes_stay_within_the_consent() {
    let place = Place::new();
    let source = place.write("m.safetensors", container_of(&mut Random(86), &TENSORS));
    place.import("t/c", &[&source], &["--in-place"]);
    let mounted = place.mount(&[]);
    let w = mounted.path("t/c/w");
    set(&mounted.path("t/c"), "lossy", "allow:q8").unwrap();
    // The source allows the lower tier, but has not the values that are written.
    set(&w, "tier", "q5").unwrap();
    set(&w, "writes", "delta").unwrap();
    let mut wanted = fs::read(&w).unwrap();
    let values = Random(87).floats(20_000);
    wanted[4096..4096 + values.len()].copy_from_slice(&values);
    let file = fs::OpenOptions::new().write(true).open(&w).unwrap();
    file.write_all_at(&values, 4096).unwrap();
    drop(file);
    mounted.unmount();
    let mounted = place.mount(&[]);
    let w = mounted.path("t/c/w");
    assert_same(&fs::read(&w).unwrap(), &wanted, "written");
    // More small writes than a chain has room for.
    for round in 0..20_usize {
        let (at, value) = (200_000 + round * 8, Random(90 + round as u64).floats(1));
        wanted[at..at + 4].copy_from_slice(&value);
        fs::OpenOptions::new().write(true).open(&w).unwrap().write_all_at(&value, at as u64).unwrap();
        assert_same(&fs::read(&w).unwrap(), &wanted, "again");
        assert!(get(&w, "chain").parse::<u32>().unwrap() <= 8);
    }
    mounted.unmount();
    support::run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    assert_same(&fs::read(mounted.path("t/c/w")).unwrap(), &wanted, "after a replay");
}

#[test]
fn small_writes_into_packed_blocks_stay_exact_with_rounded_writes() {
    let place = Place::new();
    let source = place.write("m.safetensors", container_of(&mut Random(91), &TENSORS));
    place.import("t/c", &[&source], &["--pack"]);
    let mounted = place.mount(&[]);
    let w = mounted.path("t/c/w");
    set(&mounted.path("t/c"), "lossy", "allow").unwrap();
    set(&w, "writes", "delta").unwrap();
    let mut wanted = fs::read(&w).unwrap();
    for round in 0..20_usize {
        let (at, value) = (40_000 + round * 8, Random(92 + round as u64).floats(1));
        wanted[at..at + 4].copy_from_slice(&value);
        fs::OpenOptions::new().write(true).open(&w).unwrap().write_all_at(&value, at as u64).unwrap();
    }
    mounted.unmount();
    support::run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    assert_same(&fs::read(mounted.path("t/c/w")).unwrap(), &wanted, "after a replay");
}

#[test]
fn an_import_into_a_tier_evicts_what_it_stores_as_factors() {
    let place = Place::new();
    let rows: Vec<u8> = Random(88).floats(256);
    let matrix: Vec<u8> = (0..512).flat_map(|_| rows.iter().copied()).collect();
    let mut array = npy_file(&matrix);
    let header = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (512, 256), }");
    array[10..128].copy_from_slice(header.as_bytes());
    let source = place.write("x.npy", &array);
    place.import("t/c", &[&source], &["--tier", "q8:all", "--reconstruct", "factor:rank=1"]);
    let mounted = place.mount(&[]);
    assert_eq!(get(&mounted.path("t/c/x"), "tier"), "absent");
}

#[test]
fn factors_made_by_an_import_give_no_consent_for_later_writes() {
    let place = Place::new();
    let rows: Vec<u8> = Random(83).floats(64);
    let matrix: Vec<u8> = (0..512).flat_map(|_| rows.iter().copied()).collect();
    let mut array = npy_file(&matrix);
    let header = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (512, 64), }");
    array[10..128].copy_from_slice(header.as_bytes());
    let source = place.write("x.npy", &array);
    place.import("t/c", &[&source], &["--reconstruct", "factor:rank=1"]);
    let mounted = place.mount(&[]);
    assert_eq!(get(&mounted.path("t/c/x"), "tier"), "absent");
    assert_eq!(lossy(&mounted, ["x.npy", "x"]), ["allow"; 2]);
    array[128..].copy_from_slice(&Random(84).floats(512 * 64));
    fs::write(mounted.path("t/c/x.npy"), &array).unwrap();
    assert_eq!(lossy(&mounted, ["x.npy", "x"]), ["deny"; 2]);
    set(&mounted.path("t/c/x"), "reconstruct", "factor:rank=1").unwrap();
    assert!(refused_set(&mounted.path("t/c/x"), "evict", "1", Errno::PERM).contains("lossy"));
}

#[test]
fn setting_rounded_writes_counts_as_consent_of_the_user() {
    let (_place, mounted, _) = imported(&[]);
    let w = mounted.path("t/c/w");
    set(&w, "writes", "delta").unwrap();
    let file = fs::OpenOptions::new().write(true).open(&w).unwrap();
    file.write_all_at(&0.25_f32.to_le_bytes(), 400).unwrap();
    drop(file);
    assert_eq!(lossy(&mounted, ["m.safetensors", "w", "v"]), ["deny", "allow:q8", "allow:q8"]);
    // A directory that once had the setting and no longer allows it does not move tensors.
    let v = mounted.path("t/c/v");
    set(&mounted.path("t/c"), "lossy", "allow").unwrap();
    set(&mounted.path("t/c"), "writes", "delta").unwrap();
    set(&mounted.path("t/c"), "lossy", "deny").unwrap();
    let mut wanted = fs::read(&v).unwrap();
    for place in 0..300 {
        let value = (place as f32 + 0.123) / 1000.0;
        wanted[place * 8..place * 8 + 4].copy_from_slice(&value.to_le_bytes());
        let file = fs::OpenOptions::new().write(true).open(&v).unwrap();
        if place == 299 {
            file.write_all_at(&wanted[..2400], 0).unwrap();
        }
    }
    assert_same(&fs::read(&v).unwrap(), &wanted, "exact");
}
