//! Mounts whose remote is away, with a cache that another mount has filled.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
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
        self.push_to("buckets", collection);
    }

    fn push_to(&self, buckets: &str, collection: &str) {
        let url = format!("file://{}/models/demo", self.place.path(buckets).display());
        let store = self.place.store();
        support::run(["push", store.to_str().unwrap(), collection, &url, "--create"]).ok();
    }

    fn mount(&self, name: &str, options: &[&str]) -> Mounted {
        self.mount_from(self.proxy.port(), name, options)
    }

    fn mount_from(&self, port: u16, name: &str, options: &[&str]) -> Mounted {
        self.place.mount_store_by(&mut self.program(port), PathBuf::from(URL), name, options)
    }

    /// The program, with a server at this port.
    fn program(&self, port: u16) -> Command {
        let mut command = tierfs();
        command.envs(self.bucket.environment()).env("HOME", self.place.path("home"));
        command.env_remove("XDG_CACHE_HOME").env("AWS_ENDPOINT", format!("http://127.0.0.1:{port}"));
        command
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

#[test]
fn two_servers_with_the_same_url_are_two_remotes_in_a_cache() {
    let stand = Stand::new();
    stand.place.import("acme/second", &[&stand.place.path("in/config.json")], &[]);
    fs::create_dir_all(stand.place.path("others/models/demo")).unwrap();
    stand.push_to("others", "acme/second");
    let others = Bucket::of(&stand.place.path("others"), 0);
    let second = Proxy::to(others.port());
    let names = |mounted: &Mounted| support::names(&mounted.path("acme"));
    for (port, name, file) in
        [(stand.proxy.port(), "first", "acme/m"), (second.port(), "second", "acme/second")]
    {
        let mounted = stand.mount_from(port, name, &[]);
        assert_eq!(fs::read(mounted.path(file).join("config.json")).unwrap(), SMALL);
        mounted.unmount();
    }
    stand.proxy.plan(|_, _| Fault::Closed);
    second.plan(|_, _| Fault::Closed);
    let mounted = stand.mount("first", &["--timeout", "1"]);
    assert_eq!(names(&mounted), ["m", "other"]);
    assert_eq!(fs::read(mounted.path("acme/m/config.json")).unwrap(), SMALL);
    mounted.unmount();
    let mounted = stand.mount_from(second.port(), "second", &["--timeout", "1"]);
    assert_eq!(names(&mounted), ["second"]);
    mounted.unmount();
    // Nothing is known of a third one, of another region, or of another account.
    let third = Proxy::to(others.port());
    third.plan(|_, _| Fault::Closed);
    for (port, variable, value) in [
        (third.port(), "AWS_REGION", ""),
        (second.port(), "AWS_REGION", "elsewhere"),
        (second.port(), "AWS_ACCESS_KEY_ID", "another"),
    ] {
        let mountpoint = stand.place.path("none");
        fs::create_dir_all(&mountpoint).unwrap();
        let mut command = stand.program(port);
        if !value.is_empty() {
            command.env(variable, value);
        }
        let answer = support::answer(command.args(["mount", "--timeout", "1", URL]).arg(&mountpoint));
        assert!(answer.code.is_some_and(|code| code != 0), "{variable}: {answer:?}");
    }
}
