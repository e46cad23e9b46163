//! Metrics of mounts of remotes, by collection.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use support::{Mounted, Place, Random, files_below, npy_file, run, tierfs};

use crate::metrics::{metrics, sample};

/// The directory that these tests push to.
fn bucket(place: &Place) -> PathBuf {
    place.path("bucket")
}

fn push(place: &Place, collection: &str) {
    let url = format!("file://{}", bucket(place).display());
    run(["push", place.store().to_str().unwrap(), collection, &url, "--create"]).ok();
}

/// A mount of a remote with these collections of the store of a place.
pub fn mount_pushed(place: &Place, collections: &[&str]) -> Mounted {
    fs::create_dir_all(bucket(place)).unwrap();
    collections.iter().for_each(|collection| push(place, collection));
    mount(place, &bucket(place))
}

fn mount(place: &Place, directory: &Path) -> Mounted {
    let (cache, url) = (place.path("cache"), format!("file://{}", directory.display()));
    place.mount_store_by(&mut tierfs(), url.into(), "remote", &["--cache", cache.to_str().unwrap()])
}

/// The samples of a family, by collection.
fn by_collection(metrics: &Value, family: &str) -> BTreeMap<String, f64> {
    let begin = format!("{family}{{collection=");
    let samples = metrics["samples"].as_object().unwrap().iter();
    let of_family = samples.filter_map(|(name, value)| {
        let collection = name.strip_prefix(&begin)?.strip_suffix('}')?;
        Some((collection.to_owned(), value.as_f64().unwrap()))
    });
    of_family.collect()
}

#[test]
fn the_traffic_with_a_remote_is_counted_for_each_collection_and_adds_up() {
    let place = Place::new();
    let sources =
        [3, 4].map(|seed| place.write(&format!("{seed}/w.npy"), npy_file(&Random(seed).floats(1 << 20))));
    place.import("demo/read", &[&sources[0]], &[]);
    place.import("demo/unread", &[&sources[1]], &[]);
    place.import("other/damaged", &[&sources[1]], &[]);
    let mounted = mount_pushed(&place, &["demo/read", "demo/unread", "other/damaged"]);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let len = fs::read(mounted.path("demo/read/w.npy")).unwrap().len() as f64;
    let shown = metrics(&mounted);
    let of = |family: &str| by_collection(&shown, &format!("tierfs_collection_{family}"));
    let received = of("remote_received_bytes_total");
    assert!(received["demo/read"] >= len && received["demo/read"] < 1.5 * len, "{received:?}");
    assert!(received["demo/unread"] < len / 2.0, "its log alone was read: {received:?}");
    let all = sample(&shown, "tierfs_remote_received_bytes_total{}") as f64;
    assert!(received.values().sum::<f64>() <= all, "{received:?} {all}");
    let requests = of("remote_requests_total");
    assert!(requests["demo/read"] > requests["demo/unread"], "{requests:?}");
    for (family, total) in [("cache_hits", "hits"), ("cache_misses", "misses")] {
        let (each, all) =
            (of(&format!("remote_{family}_total")), format!("tierfs_remote_cache_{total}_total{{}}"));
        assert_eq!(each.values().sum::<f64>() as u64, sample(&shown, &all), "{each:?}");
    }
    assert!(of("remote_cache_misses_total")["demo/read"] > 0.0);
    assert!(of("remote_failures_total").values().all(|count| *count == 0.0));
    assert!(of("snapshot").values().all(|number| *number == 1.0) && of("snapshot").len() == 3);
    let created = of("snapshot_created_seconds");
    assert!(created.values().all(|at| (now() - 120.0..=now()).contains(at)), "{created:?}");
    mounted.unmount();

    // A newer snapshot, and one whose pieces have other bytes.
    place.import("demo/read", &[&sources[1]], &[]);
    push(&place, "demo/read");
    for piece in files_below(&bucket(&place)).iter().filter(|below| below.starts_with("piece")) {
        let path = bucket(&place).join(piece);
        let mut bytes = fs::read(&path).unwrap();
        if bytes.len() > 1 << 20 {
            bytes.iter_mut().for_each(|byte| *byte ^= 1);
            fs::write(path, bytes).unwrap();
        }
    }
    fs::remove_dir_all(place.path("cache")).unwrap();
    let mounted = mount(&place, &bucket(&place));
    assert!(fs::read(mounted.path("other/damaged/w.npy")).is_err());
    let shown = metrics(&mounted);
    let of = |family: &str| by_collection(&shown, &format!("tierfs_collection_{family}"));
    assert!(of("remote_failures_total")["other/damaged"] > 0.0, "{shown}");
    assert_eq!(of("remote_failures_total")["demo/unread"], 0.0);
    assert_eq!(of("snapshot")["demo/read"], 2.0);
    assert_eq!(of("snapshot")["demo/unread"], 1.0);
    mounted.unmount();
}

#[test]
fn a_remote_with_many_collections_has_a_bounded_number_of_series_and_is_not_opened_whole() {
    const COLLECTIONS: usize = 150;
    let place = Place::new();
    for number in 0..COLLECTIONS {
        place.write(&format!("models/{number:03}/w.npy"), npy_file(&Random(3).floats(1 << 10)));
    }
    // Directories that nobody pushed to are collections.
    let mounted = mount(&place, &place.path("models"));
    let shown = metrics(&mounted);
    assert_eq!(sample(&shown, "tierfs_unopened_collections{}"), (COLLECTIONS - 100) as u64);
    assert_eq!(by_collection(&shown, "tierfs_collection_snapshot").len(), 100);
    for number in 0..COLLECTIONS {
        fs::read(mounted.path(format!("models/{number:03}/w.npy"))).unwrap();
    }
    let shown = metrics(&mounted);
    assert_eq!(sample(&shown, "tierfs_unopened_collections{}"), 0);
    assert_eq!(sample(&shown, "tierfs_files{}"), COLLECTIONS as u64 * 2);
    for family in
        ["tierfs_collection_files", "tierfs_collection_problems", "tierfs_collection_remote_requests_total"]
    {
        let found = by_collection(&shown, family);
        assert!(found.len() == 101 && found.contains_key("others"), "{family}: {found:?}");
    }
    let files = by_collection(&shown, "tierfs_collection_files");
    assert_eq!(files["others"], ((COLLECTIONS - 100) * 2) as f64);
    assert_eq!(files.values().sum::<f64>(), (COLLECTIONS * 2) as f64);
    let requests = by_collection(&shown, "tierfs_collection_remote_requests_total");
    assert!(requests["others"] >= (COLLECTIONS - 100) as f64, "{requests:?}");
    assert!(!by_collection(&shown, "tierfs_collection_snapshot").contains_key("others"));
    mounted.unmount();
}
