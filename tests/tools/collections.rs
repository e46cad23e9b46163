//! Whole collections and tenants: renamed, given to another tenant, removed, compared.

use std::fs::{self, File};
use std::path::Path;

use support::{Answer, Place, Random, answer, container_of, get, npy_file, run, shell, tierfs};

fn said(words: &[&str], place: &Place) -> Answer {
    answer(tierfs().args(words).current_dir(place.path("")))
}

/// A store with `t/base`, `t/tuned`, `u/other`.
fn place() -> Place {
    let place = Place::new();
    let base = container_of(&mut Random(7), &[("w", 100_000), ("norm", 64)]);
    let mut tuned = base.clone();
    let len = tuned.len();
    tuned[len - 5] ^= 1;
    place.write("base/m.safetensors", base);
    place.write("tuned/m.safetensors", tuned);
    place.write("x.npy", npy_file(&Random(8).floats(5000)));
    place.import("t/base", &[&place.path("base")], &[]);
    place.import("t/tuned", &[&place.path("tuned")], &["--parent", "t/base"]);
    place.import("u/other", &[&place.path("x.npy")], &[]);
    place
}

#[test]
fn collections_and_tenants_are_renamed_on_a_mount_and_keep_everything() {
    let place = place();
    let mounted = place.mount(&[]);
    let bytes = fs::read(mounted.path("u/other/x.npy")).unwrap();
    shell(&place.path("mnt"), "mkdir u/made && echo hi > u/made/file && mv u/other u/renamed");
    assert!(!mounted.path("u/other").exists());
    assert!(fs::read(mounted.path("u/renamed/x.npy")).unwrap() == bytes);
    assert_eq!(said(&["mv", "store", "u/renamed", "t/given"], &place).ok(), "u/renamed: now t/given\n");
    assert!(fs::read(mounted.path("t/given/x")).unwrap() == bytes[bytes.len() - 20_000..]);
    fs::write(mounted.path("t/given/new"), b"new").unwrap();
    assert_eq!(said(&["mv", "mnt", "u", "v"], &place).ok(), "u: now v\n");
    assert_eq!(fs::read(mounted.path("v/made/file")).unwrap(), b"hi\n");
    fs::write(mounted.path("v/made/file"), b"again").unwrap();
    assert!(!mounted.path("u").exists());
    fs::create_dir(mounted.path("u")).unwrap();
    assert_eq!(fs::read_dir(mounted.path("u")).unwrap().count(), 0);
    mounted.unmount();
    assert_eq!(said(&["mv", "store", "t/given", "u/back"], &place).ok(), "t/given: now u/back\n");
    assert_eq!(said(&["mv", "store", "v", "w"], &place).ok(), "v: now w\n");
    support::fsck(&place.store());
    let mounted = place.mount(&[]);
    assert!(fs::read(mounted.path("u/back/x.npy")).unwrap() == bytes);
    assert_eq!(fs::read(mounted.path("u/back/new")).unwrap(), b"new");
    assert_eq!(fs::read(mounted.path("w/made/file")).unwrap(), b"again");
}

#[test]
fn a_collection_that_is_in_use_or_that_lineage_names_keeps_its_name_and_says_why() {
    let place = place();
    let mounted = place.mount(&[]);
    let open = File::open(mounted.path("u/other/x.npy")).unwrap();
    for words in
        [&["mv", "store", "u/other", "u/new"][..], &["rm", "store", "u/other"], &["mv", "store", "u", "v"]]
    {
        said(words, &place).failed(1, &["u/other is in use: x.npy is open; close it first"]);
    }
    drop(open);
    said(&["mv", "store", "u/other", "t/base"], &place).failed(1, &["t/base"]);
    fs::write(mounted.path("t/.ctl/quota"), "files=7").unwrap();
    said(&["mv", "store", "u/other", "t/new"], &place)
        .failed(1, &["the quota of t is 7 files", "remove files, or raise"]);
    fs::write(mounted.path("t/.ctl/quota"), "files=none").unwrap();
    // Absent tensors of t/tuned need those of t/base.
    said(&["set", "reconstruct=delta", "mnt/t/tuned"], &place).ok();
    said(&["evict", "mnt/t/tuned"], &place).ok();
    let full = fs::read(place.path("tuned/m.safetensors")).unwrap();
    let of_tuned = format!("tierfs tier exact {}", mounted.path("t/tuned").display());
    for words in [
        &["mv", "store", "t/base", "t/new"][..],
        &["mv", "store", "t/tuned", "t/new"],
        &["mv", "store", "t", "v"],
        &["rm", "store", "t/base"],
    ] {
        said(words, &place).failed(1, &["stored as differences to t/base", &of_tuned]);
        assert!(fs::read(mounted.path("t/tuned/m.safetensors")).unwrap() == full);
    }
    mounted.unmount();
    said(&["rm", "store", "t/base"], &place).failed(1, &["stored as differences to t/base"]);
    let mounted = place.mount(&[]);
    assert!(fs::read(mounted.path("t/tuned/m.safetensors")).unwrap() == full);
    said(&["tier", "exact", "mnt/t/tuned"], &place).ok();
    said(&["mv", "store", "t/base", "t/new"], &place).ok();
    said(&["rm", "store", "t/new"], &place).ok();
    assert!(fs::read(mounted.path("t/tuned/m.safetensors")).unwrap() == full);
    mounted.unmount();
    support::fsck(&place.store());
}

#[test]
fn a_removed_collection_gives_back_its_space_also_after_an_interruption() {
    let place = place();
    let mounted = place.mount(&[]);
    assert!(mounted.path("t/tuned/m.safetensors").exists() && mounted.path("t/tuned/w").exists());
    let text = said(&["rm", "store", "t/tuned"], &place).ok();
    assert!(text.starts_with("t/tuned: removed, ") && text.ends_with(" stored\n"), "{text}");
    for name in ["t/tuned/m.safetensors", "t/tuned/w", "t/tuned"] {
        assert!(!mounted.path(name).exists(), "{name}");
    }
    // The name can be used again at once.
    fs::create_dir(mounted.path("t/tuned")).unwrap();
    assert_eq!(fs::read_dir(mounted.path("t/tuned")).unwrap().count(), 0);
    fs::remove_dir(mounted.path("t/tuned")).unwrap();
    assert_eq!(fs::read_dir(place.store().join("t")).unwrap().count(), 2, "t/base and .tenant.toml");
    said(&["rm", "store", "t/none"], &place).failed(1, &["t/none"]);
    mounted.unmount();
    said(&["rm", "--json", "store", "u/other"], &place).ok();
    assert!(!place.store().join("u/other").exists());
    // A killed removal leaves the renamed directory.
    fs::rename(place.store().join("t/base"), place.store().join("t/.removed-1")).unwrap();
    let mounted = place.mount(&[]);
    assert!(!place.store().join("t/.removed-1").exists());
    fs::remove_dir(mounted.path("t")).unwrap();
    mounted.unmount();
    support::fsck(&place.store());
}

#[test]
fn diff_tells_same_tensors_from_rounded_changed_and_missing_ones() {
    let place = place();
    place.import("t/copy", &[&place.path("base")], &["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    let compare = |one: &str, other: &str| {
        run(["diff".as_ref(), place.path(one).as_os_str(), place.path(other).as_os_str()])
    };
    assert_eq!(
        compare("base", "mnt/t/base").ok(),
        "norm  f32 64  same\nw  f32 100000  same\n2 same, 0 different\n"
    );
    assert!(
        compare("base/m.safetensors", "mnt/t/base/m.safetensors").ok().ends_with("2 same, 0 different\n")
    );
    let changed = compare("mnt/t/base/norm", "mnt/t/tuned/.tensors/norm");
    let other = compare("mnt/t/base/w", "mnt/t/tuned/.tensors/w");
    // One of the two tensors has the last bytes of the file.
    assert_eq!(
        [changed.code, other.code].iter().filter(|code| **code == Some(1)).count(),
        1,
        "{changed:?} {other:?}"
    );
    let rounded = run(["diff", "--json"]
        .map(AsRef::<std::ffi::OsStr>::as_ref)
        .into_iter()
        .chain([place.path("base").as_os_str(), place.path("mnt/t/copy").as_os_str()]));
    assert_eq!(rounded.code, Some(1));
    let rounded: serde_json::Value = serde_json::from_str(&rounded.out).unwrap();
    let found = fs::read(mounted.path("t/copy/w")).unwrap();
    let exact = fs::read(mounted.path("t/base/w")).unwrap();
    let floats = |bytes: &[u8]| -> Vec<f64> {
        bytes.chunks(4).map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().unwrap()))).collect()
    };
    let differences: Vec<f64> =
        floats(&exact).into_iter().zip(floats(&found)).map(|(one, other)| (one - other).abs()).collect();
    let max = differences.iter().copied().fold(0.0, f64::max);
    let rms = (differences.iter().map(|one| one * one).sum::<f64>() / 100_000.0).sqrt();
    let row = rounded["rows"].as_array().unwrap().iter().find(|row| row["name"] == "w").unwrap();
    assert!(max > 0.0 && row["max"].as_f64() == Some(max), "{row} {max}");
    assert!((row["rms"].as_f64().unwrap() - rms).abs() <= rms * 1e-9, "{row} {rms}");
    let answer = compare("mnt/t/base", "mnt/u/other");
    assert_eq!(answer.code, Some(1));
    assert!(answer.out.contains("w  f32 100000  only in the first\n"), "{answer:?}");
    assert!(answer.out.contains("x  f32 5000  only in the second\n"), "{answer:?}");
    assert_eq!(get(Path::new(&mounted.path("t/copy/w")), "tier"), "q8");
}
