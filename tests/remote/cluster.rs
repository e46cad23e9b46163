//! A mount of a cluster whose servers fail: no wrong byte, no error that is not due, no hang, and no new mount needed.
//!
//! These tests take minutes, so that only `make test-long` runs them.

mod heavy {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    use support::{Mounted, Place, Random, assert_same, container_of, run, tierfs};

    use crate::proxy::{Fault, Proxy};
    use crate::server::{Cluster, GATEWAY, READER, URL, VOLUMES, WRITER};

    /// A read ends within this time after a failure has ended: a pause between tries, and the read itself.
    const SOON: Duration = Duration::from_secs(40);
    /// A reader gets 128 KiB in this time by each connection, so that a read lasts for some seconds.
    const SLOW: Duration = Duration::from_millis(60);
    const SMALL: &[u8] = b"{\"model_type\": \"small\"}";

    /// A cluster with a pushed model, and a proxy in front of its gateway.
    struct Stand<'a> {
        place: &'a Place,
        cluster: Cluster<'a>,
        proxy: Proxy,
        source: Vec<u8>,
    }

    impl Stand<'_> {
        fn new(place: &Place) -> Option<Stand<'_>> {
            let cluster = Cluster::start(place)?;
            let source = container_of(&mut Random(15), &[("a", 12 << 20), ("b", 8 << 20), ("c", 4 << 20)]);
            place.write("in/large.safetensors", &source);
            place.write("in/config.json", SMALL);
            run([Path::new("init"), &place.store()]).ok();
            place.import("acme/m", &[&place.path("in")], &[]);
            let store = place.store();
            cluster.run(WRITER, &["push", store.to_str().unwrap(), "acme/m", URL, "--create"]).ok();
            let proxy = Proxy::to(cluster.port());
            Some(Stand { place, cluster, proxy, source })
        }

        /// A mount with an empty cache.
        fn mount(&self, name: &str) -> Mounted {
            let (cache, mut command) = (self.place.path(format!("cache-{name}")), tierfs());
            self.cluster.credentials(&mut command, READER, self.proxy.port());
            let options = ["--cache", cache.to_str().unwrap()];
            self.place.mount_store_by(&mut command, PathBuf::from(URL), name, &options)
        }

        /// Reads the model while `meanwhile` happens, which begins after a second. The bytes must be right, and the
        /// read must end soon after it.
        fn read_while(&mut self, mounted: &Mounted, what: &str, meanwhile: impl FnOnce(&mut Cluster)) {
            let path = mounted.path("acme/m/large.safetensors");
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| fs::read(&path));
                std::thread::sleep(Duration::from_secs(1));
                assert!(!reader.is_finished(), "{what}: the read was too fast to meet the failure");
                meanwhile(&mut self.cluster);
                let begun = Instant::now();
                let found = reader.join().unwrap().unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(begun.elapsed() < SOON, "{what}: {:?}", begun.elapsed());
                assert_same(&found, &self.source, what);
            });
        }
    }

    fn large(mounted: &Mounted) -> std::io::Result<Vec<u8>> {
        fs::read(mounted.path("acme/m/large.safetensors"))
    }

    #[test]
    fn volume_servers_that_are_killed_or_hang_cost_no_byte() {
        let place = Place::new();
        let Some(mut stand) = Stand::new(&place) else { return };
        stand.proxy.slow_down(SLOW);
        let mounted = stand.mount("killed");
        stand.read_while(&mounted, "killed", |cluster| cluster.kill(VOLUMES[0]));
        mounted.unmount();
        stand.cluster.restart(VOLUMES[0]);
        let mounted = stand.mount("hung");
        stand.read_while(&mounted, "hung for 12 s", |cluster| {
            cluster.pause(VOLUMES[1]);
            std::thread::sleep(Duration::from_secs(12));
            cluster.resume(VOLUMES[1]);
        });
        mounted.unmount();
    }

    #[test]
    fn a_gateway_that_is_away_fails_reads_after_a_minute_and_serves_them_when_it_is_back() {
        let place = Place::new();
        let Some(mut stand) = Stand::new(&place) else { return };
        stand.proxy.slow_down(SLOW);
        let mounted = stand.mount("restarted");
        stand.read_while(&mounted, "restarted after 4 s", |cluster| {
            cluster.kill(GATEWAY);
            std::thread::sleep(Duration::from_secs(4));
            cluster.restart(GATEWAY);
        });
        mounted.unmount();
        let mounted = stand.mount("away");
        assert_eq!(fs::read(mounted.path("acme/m/config.json")).unwrap(), SMALL);
        stand.cluster.kill(GATEWAY);
        let begun = Instant::now();
        let error = large(&mounted).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
        let took = begun.elapsed();
        assert!((Duration::from_secs(55)..Duration::from_secs(100)).contains(&took), "{took:?}");
        // Cached files and listed names need no remote.
        assert_eq!(fs::read(mounted.path("acme/m/config.json")).unwrap(), SMALL);
        assert!(fs::metadata(mounted.path("acme/m/large.safetensors")).unwrap().len() > 1 << 20);
        let events = fs::read_to_string(mounted.path(".ctl/events")).unwrap();
        assert!(events.contains("did not answer for 60 s"), "{events}");
        stand.cluster.restart(GATEWAY);
        stand.proxy.slow_down(Duration::ZERO);
        assert_same(&large(&mounted).unwrap(), &stand.source, "back again");
        mounted.unmount();
    }

    #[test]
    fn refused_requests_and_bodies_cut_short_are_repeated() {
        let place = Place::new();
        let Some(stand) = Stand::new(&place) else { return };
        let faults = |number: u64, _: &str| match number % 10 {
            0 | 5 => Fault::Refused,
            2 | 7 => Fault::CutShort,
            _ => Fault::None,
        };
        stand.proxy.plan(faults);
        let mounted = stand.mount("refused");
        let begun = Instant::now();
        assert_same(&large(&mounted).unwrap(), &stand.source, "refused and cut short");
        assert_eq!(fs::read(mounted.path("acme/m/config.json")).unwrap(), SMALL);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        assert!(stand.proxy.faults() >= 8, "{} faults", stand.proxy.faults());
        mounted.unmount();
        stand.proxy.plan(|number, path| {
            if path.contains("/piece/") && number % 8 == 3 { Fault::Hangs } else { Fault::None }
        });
        let mounted = stand.mount("silent");
        let begun = Instant::now();
        assert_same(&large(&mounted).unwrap(), &stand.source, "silent");
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        mounted.unmount();
    }

    #[test]
    fn a_piece_with_other_bytes_is_never_served_and_read_again_once_it_is_right() {
        let place = Place::new();
        let Some(stand) = Stand::new(&place) else { return };
        let pieces = stand.cluster.pieces();
        let (path, len) = pieces.iter().max_by_key(|(_, len)| *len).unwrap();
        assert!(*len >= 4 << 20, "{pieces:?}");
        let right = stand.cluster.object(path);
        assert_eq!(right.len() as u64, *len);
        let mut wrong = right.clone();
        wrong[3 << 20] ^= 1;
        stand.cluster.overwrite(path, &wrong);
        let mounted = stand.mount("mnt");
        let error = large(&mounted).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
        assert_eq!(fs::read(mounted.path("acme/m/config.json")).unwrap(), SMALL);
        let readable: usize = ["a", "b", "c"]
            .iter()
            .filter(|name| fs::read(mounted.path("acme/m/.tensors/large.safetensors").join(name)).is_ok())
            .count();
        assert_eq!(readable, 2, "one tensor has the wrong piece");
        let events = fs::read_to_string(mounted.path(".ctl/events")).unwrap();
        assert!(events.contains("its bytes do not match the digest in its name"), "{events}");
        stand.cluster.overwrite(path, &right);
        assert_same(&large(&mounted).unwrap(), &stand.source, "right again");
        mounted.unmount();
    }
}
