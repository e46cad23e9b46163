//! Mounts of a real server through an HTTP proxy: a server that never answers, mirrors that fail or lie, and a cache that
//! many machines share.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use support::{Mounted, Place, Random, assert_same, container_of, events, tierfs};

use crate::proxy::{Fault, Proxy};
use crate::server::{READER, Server, URL, WRITER};

const MIRROR: &str = "s3://mirror/demo";
const SMALL: &[u8] = b"{\"model_type\": \"small\"}";

/// A server with a pushed model, and a proxy in front of it.
struct Stand {
    place: Place,
    server: Server,
    proxy: Proxy,
    source: Vec<u8>,
}

impl Stand {
    /// `None` where SeaweedFS is not installed.
    fn new() -> Option<Stand> {
        let place = Place::new();
        let server = Server::start(&place)?;
        let source = container_of(&mut Random(21), &[("a", 3 << 20), ("b", 3 << 20), ("c", 1 << 20)]);
        place.write("in/large.safetensors", &source);
        place.write("in/config.json", SMALL);
        support::run([std::path::Path::new("init"), &place.store()]).ok();
        place.import("acme/m", &[&place.path("in")], &[]);
        let proxy = Proxy::to(server.port);
        let stand = Stand { place, server, proxy, source };
        stand.push(URL);
        Some(stand)
    }

    fn push(&self, url: &str) {
        let store = self.place.store();
        self.server.run(WRITER, &["push", store.to_str().unwrap(), "acme/m", url, "--create"]).ok();
    }

    /// A mount through the proxy with an empty cache.
    fn mount(&self, name: &str, options: &[&str]) -> Mounted {
        let (cache, mut command) = (self.place.path(format!("cache-{name}")), tierfs());
        self.server.credentials(&mut command, READER);
        command.env("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.proxy.port()));
        let options = [&["--cache", cache.to_str().unwrap()], options].concat();
        self.place.mount_store_by(&mut command, PathBuf::from(URL), name, &options)
    }
}

fn large(mounted: &Mounted) -> std::io::Result<Vec<u8>> {
    fs::read(mounted.path("acme/m/large.safetensors"))
}

#[test]
fn a_server_that_accepts_and_never_answers_fails_reads_in_time_with_one_event_and_is_read_again() {
    let Some(stand) = Stand::new() else { return };
    let mounted = stand.mount("hung", &["--timeout", "3"]);
    assert_eq!(fs::read(mounted.path("acme/m/config.json")).unwrap(), SMALL);
    stand.proxy.plan(|_, path| if path.contains("/piece/") { Fault::Hangs } else { Fault::None });
    let begun = Instant::now();
    let error = large(&mounted).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    // The last request may have begun shortly before the deadline.
    assert!((2..8).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    for tensor in ["a", "b", "c"] {
        fs::read(mounted.path("acme/m/.tensors/large.safetensors").join(tensor)).unwrap_err();
    }
    assert_eq!(fs::read(mounted.path("acme/m/config.json")).unwrap(), SMALL);
    let told = events(&mounted, "remote");
    assert_eq!(told.len(), 1, "{told:?}");
    let text = told[0]["text"].as_str().unwrap();
    assert!(
        text.contains("did not answer for 3 s") && text.contains(&format!("tierfs doctor {URL}")),
        "{text}"
    );
    let log = fs::read_to_string(stand.place.path("hung.log")).unwrap();
    assert!(!log.contains("fsck"), "{log}");
    let remote = mounted.stats()["remote"].clone();
    assert!(remote["failures"].as_u64().unwrap() > 0 && remote["requests"].as_u64().unwrap() > 0, "{remote}");
    stand.proxy.plan(|_, _| Fault::None);
    support::wait_until("the file is read again", || large(&mounted).is_ok());
    assert_same(&large(&mounted).unwrap(), &stand.source, "back again");
    // A mount that reaches nobody says so too.
    stand.proxy.plan(|_, _| Fault::Closed);
    let other = stand.mount_would_fail();
    assert!(other.contains("tierfs doctor"), "{other}");
    mounted.unmount();
}

impl Stand {
    /// The answer of a mount that cannot reach the server.
    fn mount_would_fail(&self) -> String {
        let mut command = tierfs();
        self.server.credentials(&mut command, READER);
        command.env("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.proxy.port()));
        let mountpoint = self.place.path("none");
        fs::create_dir_all(&mountpoint).unwrap();
        command.args(["mount", URL]).arg(&mountpoint).args(["--timeout", "1"]);
        support::answer(command.arg("--cache").arg(self.place.path("cache-none"))).failed(1, &[URL])
    }
}

#[test]
fn pieces_come_from_a_mirror_and_from_the_bucket_where_the_mirror_is_cut_lies_or_is_away() {
    let Some(stand) = Stand::new() else { return };
    stand.push(MIRROR);
    let of_mirror = |path: &str| path.starts_with("/mirror/");
    for (fault, name) in [
        (Fault::None, "sound"),
        (Fault::CutShort, "cut"),
        (Fault::WrongByte, "wrong"),
        (Fault::Refused, "refused"),
        (Fault::Closed, "away"),
        (Fault::Hangs, "hung"),
    ] {
        let asked = std::sync::Arc::new(parking_lot::Mutex::new((0, 0)));
        let counting = asked.clone();
        stand.proxy.plan(move |_, path| {
            if !path.contains("/piece/") {
                // A mirror has pieces only.
                assert!(!of_mirror(path), "{path}");
                return Fault::None;
            }
            let mut counts = counting.lock();
            if of_mirror(path) {
                counts.0 += 1;
                fault
            } else {
                counts.1 += 1;
                Fault::None
            }
        });
        let mounted = stand.mount(name, &["--mirror", MIRROR]);
        let begun = Instant::now();
        assert_same(&large(&mounted).unwrap(), &stand.source, name);
        assert_eq!(fs::read(mounted.path("acme/m/config.json")).unwrap(), SMALL, "{name}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{name}: {:?}", begun.elapsed());
        let (at_mirror, at_origin) = *asked.lock();
        assert!(at_mirror > 0, "{name}: the mirror was not asked");
        match fault {
            // The first bytes come from the remote.
            Fault::None => assert!(at_origin <= 2 && at_mirror >= 4, "{name}: {:?}", (at_mirror, at_origin)),
            Fault::CutShort => {}
            _ => assert!(at_origin >= 4, "{name}: {:?}", (at_mirror, at_origin)),
        }
        let told = events(&mounted, "remote");
        assert!(told.is_empty(), "{name}: {told:?}");
        mounted.unmount();
    }
}

mod heavy {
    use super::*;

    #[test]
    fn ten_readers_behind_an_http_cache_cost_the_bucket_what_one_costs() {
        let Some(stand) = Stand::new() else { return };
        stand.proxy.keep_answers();
        let read = |number: usize| {
            let mounted = stand.mount(&format!("reader{number}"), &[]);
            assert_same(&large(&mounted).unwrap(), &stand.source, "through the cache");
            assert_eq!(fs::read(mounted.path("acme/m/config.json")).unwrap(), SMALL);
            mounted.unmount();
        };
        read(0);
        let (one, at_origin) = stand.proxy.requests();
        assert_eq!(one, at_origin, "the first reader's requests reach the bucket");
        std::thread::scope(|scope| (1..10).for_each(|number| drop(scope.spawn(move || read(number)))));
        let (all, of_ten) = stand.proxy.requests();
        eprintln!("one reader: {one} requests; ten: {all}, of which {of_ten} reached the bucket");
        assert!(all >= 9 * one, "{all} requests of ten readers, {one} of one");
        assert!(of_ten as f64 <= 1.1 * one as f64, "{of_ten} requests to the bucket, {one} of one reader");
    }
}
