//! The moves that the policy would make: `tierfs tier policy --dry-run` and `coldest.json`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use support::{Place, Random, as_nobody, get, npy_file, run, set};

#[test]
fn a_day_without_a_use_is_foreseen_and_nothing_moves() {
    let place = Place::new();
    let matrix = |seed: u64| {
        let mut file = npy_file(&Random(seed).floats(1 << 17));
        let shape = b"(131072,), }".as_slice();
        let at = file.windows(shape.len()).position(|text| text == shape).unwrap();
        file[at..at + 15].copy_from_slice(b"(2, 65536), }  ");
        file
    };
    let files = [("one.npy", 1), ("two.npy", 2)].map(|(name, seed)| place.write(name, matrix(seed)));
    place.import("demo/c", &[&files[0], &files[1]], &[]);
    let mounted = place.mount(&["--allow-other"]);
    let directory = mounted.path("demo/c");
    let asked =
        |path: &Path| run(["tier".as_ref(), "policy".as_ref(), "--dry-run".as_ref(), path.as_os_str()]);
    assert!(asked(&directory).ok().contains("the policy would move nothing"));
    for (name, value) in [("policy", "auto:q7"), ("lossy", "allow")] {
        set(&directory, name, value).unwrap();
    }
    let told = asked(&directory).ok();
    assert!(told.contains("in a day without a use: 6 moves of 2 tensors, from 1.0 MiB to "), "{told}");
    let told = asked(&directory.join("one")).ok();
    assert!(told.contains("3 moves of 1 tensor, from 512.0 KiB to 120.0 KiB"), "{told}");
    let coldest = mounted.path(".ctl/coldest.json");
    let rows: Value = serde_json::from_slice(&fs::read(&coldest).unwrap()).unwrap();
    let steps: Vec<(&str, &str)> = rows
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["path"] == "demo/c/one")
        .map(|row| (row["from"].as_str().unwrap(), row["to"].as_str().unwrap()))
        .collect();
    assert_eq!(steps, [("exact", "packed"), ("packed", "q8"), ("q8", "q7")]);
    let bytes = |at: usize, key: &str| rows[at][key].as_u64().unwrap();
    assert_eq!((bytes(2, "bytes"), bytes(2, "bytes_after")), (524_288, 139_264));
    assert!(bytes(0, "after_seconds") <= bytes(5, "after_seconds"));
    assert_eq!(get(&directory.join("one"), "tier"), "exact");
    // Names of collections that others may not list stand in it.
    let other = as_nobody(Path::new("/"), &format!("cat {}", coldest.display()));
    assert!(other.code != Some(0) && other.out.is_empty(), "{other:?}");
    run(["tier".as_ref(), "policy".as_ref(), directory.as_os_str()]).failed(2, &["policy is not a tier"]);
}
