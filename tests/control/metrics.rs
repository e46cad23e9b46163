//! Metrics, as the parser of the Prometheus project's own client for Python reads them.

use std::fs;
use std::os::unix::fs::FileExt;

use serde_json::Value;

use support::{Mounted, Place, Random, imported, npy_file, python, refused};

/// The samples by name and label, and the types of families.
fn metrics(mounted: &Mounted) -> Value {
    serde_json::from_str(&python("metrics.py", [mounted.path(".ctl/metrics")])).unwrap()
}

fn sample(metrics: &Value, name: &str) -> u64 {
    let value = metrics["samples"][name].as_f64();
    value.unwrap_or_else(|| panic!("no {name} in {metrics}")) as u64
}

fn count(metrics: &Value, operation: &str) -> u64 {
    sample(metrics, &format!("tierfs_operation_seconds_count{{operation={operation}}}"))
}

#[test]
fn requests_bytes_and_errors_are_counted_and_agree_with_the_statistics() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let before = metrics(&mounted);
    let path = mounted.path("demo/model/new");
    let file = fs::File::create(&path).unwrap();
    for round in 0..3 {
        file.write_all_at(&[7; 4096], round * 4096).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(fs::read(mounted.path("demo/model/sub/vocab.txt")).unwrap().len(), 100_003);
    refused(fs::metadata(mounted.path("demo/model/nothing there")), libc::ENOENT);
    let after = metrics(&mounted);
    let more = |name: &str| sample(&after, name) - sample(&before, name);
    assert_eq!(more("tierfs_written_bytes_total{}"), 3 * 4096);
    assert!(more("tierfs_read_bytes_total{}") >= 100_003);
    for (operation, least) in
        [("lookup", 3), ("open", 1), ("create", 1), ("read", 1), ("write", 3), ("flush", 1), ("fsync", 1)]
    {
        let done = count(&after, operation) - count(&before, operation);
        assert!(done >= least, "{operation}: {done}");
    }
    assert_eq!(count(&after, "write") - count(&before, "write"), 3);
    let stats = mounted.stats();
    assert_eq!(stats["operations"]["write"], count(&after, "write"));
    assert_eq!(stats["written_bytes"], sample(&after, "tierfs_written_bytes_total{}"));
    for (key, name) in
        [("blocks", "blocks"), ("logical_bytes", "logical_bytes"), ("stored_bytes", "stored_bytes")]
    {
        assert_eq!(stats["tiers"]["exact"][key], sample(&after, &format!("tierfs_{name}{{tier=exact}}")));
    }
    assert_eq!(stats["files"], sample(&after, "tierfs_files{}"));
    assert_eq!(sample(&after, "tierfs_errors_total{}"), 0);
    assert_eq!(after["types"]["tierfs_operation_seconds"], "histogram");
    assert_eq!(after["types"]["tierfs_read_bytes"], "counter");
    assert_eq!(after["types"]["tierfs_stored_bytes"], "gauge");
}

#[test]
fn metrics_show_delta_chains_and_corruption() {
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&Random(3).floats(64 << 10)));
    place.import("demo/c", &[&source], &["--tier", "q8:all"]);
    let mounted = place.mount(&["--verify", "always"]);
    let file = fs::OpenOptions::new().write(true).open(mounted.path("demo/c/w")).unwrap();
    // Three patches on one block, one on another.
    for (round, at) in [(0, 0), (1, 400), (2, 800), (3, 200_000)] {
        file.write_all_at(&Random(round).floats(1), at).unwrap();
        file.sync_all().unwrap();
    }
    let shown = metrics(&mounted);
    assert_eq!(sample(&shown, "tierfs_chain_links_max{}"), 3);
    assert_eq!(shown["samples"]["tierfs_chain_links_mean{}"], 2.0);
    assert!(sample(&shown, "tierfs_stored_bytes{tier=q8}") > 0);
    assert_eq!(sample(&shown, "tierfs_corrupt_total{}"), 0);
    let path = place.store().join("demo/c/tier1.dat");
    let length = fs::metadata(&path).unwrap().len();
    fs::write(&path, vec![0xaa; length as usize]).unwrap();
    refused(fs::read(mounted.path("demo/c/w.npy")), libc::EIO);
    let shown = metrics(&mounted);
    assert!(sample(&shown, "tierfs_corrupt_total{}") >= 1);
    assert!(sample(&shown, "tierfs_errors_total{}") >= 1);
}

#[test]
fn the_last_bucket_of_each_histogram_is_named_as_the_format_says_and_counts_all() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    drop(fs::read(mounted.path("demo/model/x")).unwrap());
    let shown = metrics(&mounted);
    let samples = shown["samples"].as_object().unwrap();
    let name = "tierfs_operation_seconds_bucket{";
    let bounds: Vec<&str> = samples
        .keys()
        .filter_map(|sample| {
            sample.strip_prefix(name)?.split(['{', ',', '}']).find_map(|label| label.strip_prefix("le="))
        })
        .collect();
    assert!(
        bounds.iter().all(|bound| *bound == "+Inf" || bound.parse::<f64>().unwrap().is_finite()),
        "{bounds:?}"
    );
    let operations =
        samples.keys().filter(|sample| sample.starts_with("tierfs_operation_seconds_count")).count();
    assert!(operations > 0);
    assert_eq!(bounds.iter().filter(|bound| **bound == "+Inf").count(), operations);
    let all = sample(&shown, "tierfs_operation_seconds_bucket{le=+Inf,operation=read}");
    assert_eq!(all, count(&shown, "read"));
}
