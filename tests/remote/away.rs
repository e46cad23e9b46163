//! Mounts whose remote is away, with a cache that another mount has filled.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use support::{Bucket, Mounted, Place, Random, assert_same, container_of, events, tierfs, wait_until};

use crate::proxy::{Fault, Proxy};

const URL: &str = "s3://models/demo";
const SMALL: &[u8] = b"{\"model_type\": \"small\"}";

/// A bucket behind a proxy, and a home for caches.
struct Stand {
    place: Place,
    bucket: Bucket,
    proxy: Proxy,
    source: Vec<u8>,
}

impl Stand {
    fn new() -> Stand {
        let place = Place::new();
        let source = container_of(&mut Random(23), &[("a", 3 << 20), ("b", 3 << 20)]);
        place.write("in/large.safetensors", &source);
        place.write("in/config.json", SMALL);
        place.write("in/unread.safetensors", container_of(&mut Random(24), &[("c", 1 << 20)]));
        support::run([std::path::Path::new("init"), &place.store()]).ok();
        place.import("acme/m", &[&place.path("in")], &[]);
        place.import("acme/other", &[&place.path("in/config.json")], &[]);
        let directory = place.path("buckets/models/demo");
        fs::create_dir_all(&directory).unwrap();
        let bucket = Bucket::of(&place.path("buckets"), 0);
        let proxy = Proxy::to(bucket.port());
        let stand = Stand { place, bucket, proxy, source };
        stand.push("acme/m");
        stand.push("acme/other");
        stand
    }

    fn push(&self, collection: &str) {
        let url = format!("file://{}", self.place.path("buckets/models/demo").display());
        let store = self.place.store();
        support::run(["push", store.to_str().unwrap(), collection, &url, "--create"]).ok();
    }

    fn mount(&self, name: &str, options: &[&str]) -> Mounted {
        let mut command = tierfs();
        command.envs(self.bucket.environment()).env("HOME", self.place.path("home"));
        command.env_remove("XDG_CACHE_HOME");
        command.env("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.proxy.port()));
        self.place.mount_store_by(&mut command, PathBuf::from(URL), name, options)
    }
}

#[test]
fn a_warm_cache_is_mounted_while_the_remote_is_away_and_the_rest_fails_in_time() {
    let stand = Stand::new();
    let mounted = stand.mount("warm", &[]);
    assert_eq!(fs::read(mounted.path("acme/m/config.json")).unwrap(), SMALL);
    let first = fs::read(mounted.path("acme/m/.tensors/large.safetensors/a")).unwrap();
    mounted.unmount();
    stand.proxy.plan(|_, _| Fault::Closed);
    let begun = Instant::now();
    let mounted = stand.mount("away", &["--timeout", "3"]);
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    // Manifests of both were read together.
    assert_eq!(support::names(&mounted.path("acme")), ["m", "other"]);
    assert_eq!(fs::read(mounted.path("acme/m/config.json")).unwrap(), SMALL);
    let begun = Instant::now();
    assert_same(&fs::read(mounted.path("acme/m/.tensors/large.safetensors/a")).unwrap(), &first, "a");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(events(&mounted, "remote").iter().any(|event| {
        event["text"].as_str().unwrap().starts_with("snapshot 1 is shown as it was last seen")
    }));
    // Another file was never read.
    let begun = Instant::now();
    let unread = fs::read(mounted.path("acme/m/unread.safetensors")).map(|bytes| bytes.len());
    let error = unread.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    fs::read(mounted.path("acme/other/config.json")).unwrap_err();
    assert_eq!(fs::read(mounted.path("acme/m/config.json")).unwrap(), SMALL);
    // It comes back, and everything is there.
    stand.proxy.plan(|_, _| Fault::None);
    wait_until("the rest is read", || fs::read(mounted.path("acme/m/large.safetensors")).is_ok());
    assert_same(&fs::read(mounted.path("acme/m/large.safetensors")).unwrap(), &stand.source, "all");
    wait_until("the other is read", || fs::read(mounted.path("acme/other/config.json")).is_ok());
    mounted.unmount();
}

#[test]
fn a_number_that_was_mounted_before_is_mounted_while_the_remote_is_away() {
    let stand = Stand::new();
    stand.place.write("more/new.txt", "new");
    stand.place.import("acme/m", &[&stand.place.path("more/new.txt")], &[]);
    stand.push("acme/m");
    for at in ["acme/m=1", "acme/m=2"] {
        let mounted = stand.mount("warm", &["--at", at]);
        assert_eq!(fs::read(mounted.path("acme/m/config.json")).unwrap(), SMALL);
        mounted.unmount();
    }
    stand.proxy.plan(|_, _| Fault::Closed);
    for (at, is_there) in [("acme/m=1", false), ("acme/m=2", true)] {
        let mounted = stand.mount("away", &["--timeout", "1", "--at", at]);
        assert_eq!(mounted.path("acme/m/new.txt").exists(), is_there, "{at}");
        assert_eq!(fs::read(mounted.path("acme/m/config.json")).unwrap(), SMALL);
        mounted.unmount();
    }
    let mounted = stand.mount("away", &["--timeout", "1"]);
    assert_eq!(support::get(&mounted.path("acme/m"), "snapshot"), "2");
    mounted.unmount();
}
