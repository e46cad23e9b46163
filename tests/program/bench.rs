//! `tierfs bench`: its measurements and its refusals.

use std::fs;

use support::{Place, imported, run};

#[test]
fn bench_measures_a_file_of_a_mount_against_a_plain_copy_and_leaves_nothing() {
    let (place, _) = imported(&["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    let copies = place.path("copies");
    fs::create_dir(&copies).unwrap();
    let (path, copy_to) = (mounted.path("demo/model/deep"), copies.to_str().unwrap());
    let file = path.join("er/b");
    let rows = run(["bench", file.to_str().unwrap(), "--copy-to", copy_to, "--rounds", "2", "--json"]).json();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 4, "{rows:?}");
    for row in rows {
        let [median, least, largest] = [0, 1, 2].map(|place| row["ratio"][place].as_f64().unwrap());
        assert!(0.0 < least && least <= median && median <= largest, "{row}");
        assert_eq!(row["reference"], "a plain file");
    }
    assert_eq!(fs::read_dir(&copies).unwrap().count(), 0);
    mounted.unmount();
}

#[test]
fn bench_without_paths_measures_the_codecs() {
    let out = run(["bench", "--rounds", "1"]).ok();
    for tier in ["q8", "q7", "q5", "q3"] {
        assert!(out.contains(&format!("decode {tier} to f32")), "{out}");
        assert!(out.contains(&format!("encode {tier} of f32")), "{out}");
    }
}

#[test]
fn bench_refuses_missing_and_small_files() {
    let place = Place::new();
    let small = place.path("small");
    fs::write(&small, b"few").unwrap();
    run(["bench", small.to_str().unwrap()]).failed(1, &["has 3 bytes"]);
    run(["bench", place.path("none").to_str().unwrap()]).failed(1, &["none"]);
    run(["bench", "--rounds", "0"]).failed(2, &["--rounds"]);
}
