//! The commands on a remote that is a directory: push, mount, list, check, export.

use std::fs;
use std::path::{Path, PathBuf};

use support::{Mounted, Place, Random, answer, assert_same, container_of, run, tierfs, wait_until};

pub struct Remote {
    pub place: Place,
    pub url: String,
}

/// A store with a container, a small file and an encoded container, pushed to a directory.
pub fn pushed() -> Remote {
    let place = Place::new();
    let random = &mut Random(16);
    place.write(
        "in/large.safetensors",
        container_of(random, &[("a", 3 << 18), ("b", 5 << 20), ("c", 6 << 18)]),
    );
    place.write("in/sub/config.json", b"{\"model_type\": \"small\"}");
    place.write("q8.safetensors", container_of(random, &[("w", 1 << 19)]));
    support::run([Path::new("init"), &place.store()]).ok();
    place.import("acme/m", &[&place.path("in")], &[]);
    place.import("acme/m", &[&place.path("q8.safetensors")], &["--tier", "q8:all"]);
    fs::create_dir(place.path("bucket")).unwrap();
    let url = format!("file://{}", place.path("bucket").display());
    let remote = Remote { place, url };
    let text = remote.push(&["--create"]);
    assert!(text.starts_with("pushed snapshot 1 of acme/m"), "{text}");
    remote
}

impl Remote {
    pub fn push(&self, options: &[&str]) -> String {
        let mut command = tierfs();
        answer(command.arg("push").arg(self.place.store()).args(["acme/m", &self.url]).args(options)).ok()
    }

    pub fn mount(&self, options: &[&str]) -> Mounted {
        let cache = self.place.path("cache");
        let mut command = tierfs();
        let options = [&["--cache", cache.to_str().unwrap()], options].concat();
        self.place.mount_store_by(&mut command, PathBuf::from(&self.url), "remote", &options)
    }

    /// The files in the cache.
    fn blobs(&self) -> Vec<PathBuf> {
        let folder = self.place.path("cache/blob");
        support::files_below(&folder).iter().map(|below| folder.join(below)).collect()
    }

    fn run(&self, command: &str, options: &[&str]) -> String {
        answer(tierfs().arg(command).arg(&self.url).args(options)).ok()
    }
}

fn same_files(mounted: &Mounted, remote: &Remote) {
    let local = remote.place.mount(&["--read-only"]);
    let mut compared = 0;
    for below in support::files_below(&local.path("acme/m")) {
        let found = fs::read(mounted.path("acme/m").join(&below)).unwrap();
        let wanted = fs::read(local.path("acme/m").join(&below)).unwrap();
        assert_same(&found, &wanted, &below.display().to_string());
        compared += 1;
    }
    assert!(compared >= 3, "{compared} files");
    local.unmount();
}

#[test]
fn a_mounted_remote_reads_as_the_local_store_and_writes_are_refused() {
    let remote = pushed();
    let mounted = remote.mount(&[]);
    assert_eq!(support::names(&mounted.path("acme")), ["m"]);
    same_files(&mounted, &remote);
    let tensor = fs::read(mounted.path("acme/m/.tensors/large.safetensors/b")).unwrap();
    assert_eq!(tensor.len(), 20 << 20);
    let error = fs::write(mounted.path("acme/m/new"), b"1").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    mounted.unmount();
}

#[test]
fn a_file_that_was_read_is_read_again_without_the_remote_and_after_another_mount() {
    let remote = pushed();
    let mounted = remote.mount(&[]);
    let source = fs::read(remote.place.path("in/large.safetensors")).unwrap();
    assert_same(&fs::read(mounted.path("acme/m/large.safetensors")).unwrap(), &source, "cold");
    mounted.unmount();
    // The pieces are gone; the manifest is there, so that the collection can be opened.
    let mounted = remote.mount(&[]);
    assert_eq!(fs::read(mounted.path("acme/m/sub/config.json")).unwrap(), b"{\"model_type\": \"small\"}");
    fs::remove_dir_all(remote.place.path("bucket/piece")).unwrap();
    assert_same(&fs::read(mounted.path("acme/m/large.safetensors")).unwrap(), &source, "again");
    mounted.unmount();
}

#[test]
fn a_piece_that_is_gone_fails_its_reads_only_and_says_so() {
    let remote = pushed();
    let mounted = remote.mount(&[]);
    assert_eq!(fs::read(mounted.path("acme/m/sub/config.json")).unwrap(), b"{\"model_type\": \"small\"}");
    fs::remove_dir_all(remote.place.path("bucket/piece")).unwrap();
    let error = fs::read(mounted.path("acme/m/large.safetensors")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    assert_eq!(fs::read(mounted.path("acme/m/sub/config.json")).unwrap(), b"{\"model_type\": \"small\"}");
    let events = fs::read_to_string(mounted.path(".ctl/events")).unwrap();
    assert!(events.contains("\"kind\":\"remote\"") && events.contains("has lost"), "{events}");
    mounted.unmount();
}

#[test]
fn a_snapshot_that_was_collected_fails_its_reads_with_estale() {
    let remote = pushed();
    let mounted = remote.mount(&[]);
    assert_eq!(fs::read(mounted.path("acme/m/sub/config.json")).unwrap().len(), 23);
    for gone in ["bucket/piece", "bucket/snap/acme"] {
        fs::remove_dir_all(remote.place.path(gone)).unwrap();
    }
    let error = fs::read(mounted.path("acme/m/large.safetensors")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
    for tensor in ["a", "b", "c"] {
        fs::read(mounted.path("acme/m/.tensors/large.safetensors").join(tensor)).unwrap_err();
    }
    let told = support::events(&mounted, "remote");
    assert_eq!(told.len(), 1, "one event, not one for each piece: {told:?}");
    assert!(told[0]["text"].as_str().unwrap().contains("snapshot 1 was collected"), "{told:?}");
    let log = fs::read_to_string(remote.place.path("remote.log")).unwrap();
    assert!(!log.contains("fsck"), "{log}");
    mounted.unmount();
}

#[test]
fn the_traffic_with_a_remote_is_counted_and_a_store_has_none() {
    let remote = pushed();
    let mounted = remote.mount(&[]);
    let counted = || mounted.stats()["remote"].clone();
    let of = |name: &str| counted()[name].as_u64().unwrap_or_else(|| panic!("no {name}: {}", counted()));
    let large = fs::read(mounted.path("acme/m/large.safetensors")).unwrap();
    wait_until("the cache has the file", || of("cached_bytes") >= large.len() as u64);
    assert!(of("received_bytes") >= large.len() as u64 && of("cache_misses") > 0, "{}", counted());
    assert!(of("requests") >= 4 && of("retries") == 0 && of("failures") == 0, "{}", counted());
    wait_until("nothing is in flight", || of("in_flight") == 0 && of("in_flight_bytes") == 0);
    // A tensor is read by the daemon, from the cache.
    let hits = of("cache_hits");
    fs::read(mounted.path("acme/m/.tensors/large.safetensors/b")).unwrap();
    assert!(of("cache_hits") > hits, "{}", counted());
    wait_until("a second has passed", || of("bytes_per_second") > 0);
    let status = fs::read_to_string(mounted.path(".ctl/status")).unwrap();
    for line in ["cached       ", "in flight    0 requests of 0 bytes", "received     ", "requests     "] {
        assert!(status.contains(&format!("\n{line}")), "{line}: {status}");
    }
    let metrics = fs::read_to_string(mounted.path(".ctl/metrics")).unwrap();
    for name in ["cached_bytes{", "cache_hits_total{", "in_flight{", "bytes_per_second{", "failures_total{"] {
        assert!(metrics.contains(&format!("\ntierfs_remote_{name}")), "{name}: {metrics}");
    }
    mounted.unmount();
    let local = remote.place.mount(&[]);
    assert!(local.stats()["remote"].is_null());
    assert!(!fs::read_to_string(local.path(".ctl/metrics")).unwrap().contains("tierfs_remote_"));
    local.unmount();
}

#[test]
fn a_piece_with_other_bytes_is_never_served() {
    let remote = pushed();
    let pieces = remote.place.path("bucket/piece");
    for path in support::files_below(&pieces).iter().map(|below| pieces.join(below)) {
        let mut bytes = fs::read(&path).unwrap();
        if bytes.len() > 1 << 20 {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&path, bytes).unwrap();
        }
    }
    let mounted = remote.mount(&[]);
    assert_eq!(fs::read(mounted.path("acme/m/large.safetensors")).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(fs::read(mounted.path("acme/m/sub/config.json")).unwrap(), b"{\"model_type\": \"small\"}");
    mounted.unmount();
}

#[test]
fn a_damaged_cache_is_fetched_again() {
    let remote = pushed();
    let source = fs::read(remote.place.path("in/large.safetensors")).unwrap();
    let mounted = remote.mount(&[]);
    assert_same(&fs::read(mounted.path("acme/m/large.safetensors")).unwrap(), &source, "cold");
    mounted.unmount();
    let blobs = remote.blobs();
    let large = blobs.iter().find(|path| fs::metadata(path).unwrap().len() == source.len() as u64).unwrap();
    let mut bytes = fs::read(large).unwrap();
    bytes[10 << 20] ^= 1;
    fs::write(large, bytes).unwrap();
    let mounted = remote.mount(&[]);
    assert_same(&fs::read(mounted.path("acme/m/large.safetensors")).unwrap(), &source, "damaged bytes");
    mounted.unmount();
    let map = large.with_extension("map");
    let mut bytes = fs::read(&map).unwrap();
    bytes[20] ^= 1;
    fs::write(&map, bytes).unwrap();
    let mounted = remote.mount(&[]);
    assert_same(&fs::read(mounted.path("acme/m/large.safetensors")).unwrap(), &source, "damaged map");
    mounted.unmount();
}

#[test]
fn a_cache_that_is_too_small_for_a_file_still_reads_it_and_keeps_its_limit() {
    let remote = pushed();
    let source = fs::read(remote.place.path("in/large.safetensors")).unwrap();
    let mounted = remote.mount(&["--cache-size", "10M"]);
    for _ in 0..2 {
        assert_same(&fs::read(mounted.path("acme/m/large.safetensors")).unwrap(), &source, "small cache");
    }
    let blobs = remote.blobs();
    let taken: u64 = blobs
        .iter()
        .map(|path| std::os::unix::fs::MetadataExt::blocks(&fs::metadata(path).unwrap()) * 512)
        .sum();
    assert!(taken <= 11 << 20, "{taken} bytes");
    mounted.unmount();
}

#[test]
fn another_snapshot_is_shown_by_the_next_mount_and_an_old_one_on_request() {
    let remote = pushed();
    let mounted = remote.mount(&[]);
    assert!(!mounted.path("acme/m/added.json").exists());
    let added = remote.place.write("added.json", b"{}");
    remote.place.import("acme/m", &[&added], &[]);
    assert!(remote.push(&[]).starts_with("pushed snapshot 2 of acme/m"));
    assert!(remote.push(&[]).starts_with("nothing new, still snapshot 2 of acme/m"));
    assert!(!mounted.path("acme/m/added.json").exists(), "one mount shows one snapshot");
    mounted.unmount();
    let mounted = remote.mount(&[]);
    assert!(mounted.path("acme/m/added.json").exists());
    mounted.unmount();
    for options in [["--at", "acme/m=1"], ["-o", "at=acme/m=1,uid=1234"]] {
        let mounted = remote.mount(&options);
        assert!(!mounted.path("acme/m/added.json").exists());
        same_size(&mounted);
        mounted.unmount();
    }
    let point = remote.place.path("absent");
    fs::create_dir(&point).unwrap();
    for (at, text) in [
        ("acme/m=9", "acme/m has no snapshot 9; there is 2, 1\n"),
        ("acme/m=v9", "acme/m has no tag \"v9\"; there is 2, 1\n"),
        ("acme/none=1", "acme/none has no snapshot 1; there is acme/m\n"),
        ("none/none=1", "none/none has no snapshot 1; there is acme\n"),
    ] {
        run(["mount", "--at", at, &remote.url, point.to_str().unwrap()]).failed(1, &[text]);
    }
}

fn same_size(mounted: &Mounted) {
    wait_until("the container has its size", || {
        fs::metadata(mounted.path("acme/m/large.safetensors")).is_ok_and(|found| found.len() > 29 << 20)
    });
}

#[test]
fn a_running_mount_shows_a_newer_snapshot_when_it_is_told_and_open_files_stay() {
    use std::os::unix::fs::FileExt;

    let remote = pushed();
    let mounted = remote.mount(&[]);
    let refresh = || fs::read_to_string(mounted.path(".ctl/refresh")).unwrap();
    assert_eq!(fs::read(mounted.path("acme/m/sub/config.json")).unwrap(), b"{\"model_type\": \"small\"}");
    let open = fs::File::open(mounted.path("acme/m/sub/config.json")).unwrap();
    assert_eq!(refresh(), "nothing new\n");
    let changed = remote.place.write("changed/sub/config.json", b"{}");
    remote.place.import("acme/m", &[changed.parent().unwrap().parent().unwrap()], &[]);
    remote.push(&["--tag", "v2"]);
    assert_eq!(fs::read(mounted.path("acme/m/sub/config.json")).unwrap().len(), 23);
    assert_eq!(refresh(), "acme/m\n");
    assert_eq!(fs::read(mounted.path("acme/m/sub/config.json")).unwrap(), b"{}");
    let mut old = [0; 23];
    open.read_exact_at(&mut old, 0).unwrap();
    assert_eq!(old, *b"{\"model_type\": \"small\"}");
    assert_eq!(refresh(), "nothing new\n");
    drop(open);
    mounted.unmount();
    let mounted = remote.mount(&["--at", "acme/m=v2"]);
    assert_eq!(fs::read(mounted.path("acme/m/sub/config.json")).unwrap(), b"{}");
    mounted.unmount();
}

#[test]
fn a_mount_that_follows_shows_newer_snapshots_by_itself() {
    let remote = pushed();
    let mounted = remote.mount(&["-o", "follow=1"]);
    assert!(!mounted.path("acme/m/added.json").exists());
    let added = remote.place.write("added.json", b"{}");
    remote.place.import("acme/m", &[&added], &[]);
    remote.push(&[]);
    wait_until("the newer snapshot is shown", || mounted.path("acme/m/added.json").exists());
    mounted.unmount();
}

#[test]
fn the_daemon_of_a_mounted_store_pushes_with_the_bytes_that_were_just_written() {
    let remote = pushed();
    let local = remote.place.mount(&[]);
    let mut written = fs::File::create(local.path("acme/m/new.txt")).unwrap();
    std::io::Write::write_all(&mut written, b"not closed yet").unwrap();
    let mut command = tierfs();
    let options = ["acme/m", &remote.url, "--json", "--tag", "kept"];
    let found = answer(command.arg("push").arg(remote.place.store()).args(options)).json();
    assert_eq!((&found["snapshot"], &found["unchanged"]), (&2.into(), &false.into()));
    drop(written);
    let mounted = remote.mount(&[]);
    assert_eq!(fs::read(mounted.path("acme/m/new.txt")).unwrap(), b"not closed yet");
    mounted.unmount();
    assert!(remote.push(&[]).starts_with("nothing new, still snapshot 2 of acme/m"));
    let wrong = format!("file://{}/absent", remote.place.path("bucket").display());
    answer(tierfs().arg("push").arg(remote.place.store()).args(["acme/m", &wrong])).failed(1, &["absent"]);
    answer(tierfs().arg("push").arg(remote.place.store()).args(["acme/none", &remote.url]))
        .failed(1, &["acme/none"]);
    local.unmount();
}

#[test]
fn snapshots_are_tagged_listed_and_collected_by_commands() {
    let remote = pushed();
    let tag = |arguments: &[&str]| answer(tierfs().args(["tag", &remote.url]).args(arguments));
    assert_eq!(tag(&["acme/m", "v1"]).ok(), "v1 is snapshot 1 of acme/m\n");
    assert_eq!(tag(&["acme/m"]).ok(), "     1 v1\n");
    tag(&["acme/m=7", "v7"]).failed(1, &["has no snapshot 7"]);
    tag(&["acme/m", "12"]).failed(1, &["cannot be a tag"]);
    let added = remote.place.write("added.json", b"{}");
    remote.place.import("acme/m", &[&added], &[]);
    remote.push(&["--message", "with more"]);
    let rows = answer(tierfs().args(["log", &remote.url, "acme/m", "--json"])).json();
    assert_eq!((&rows[1]["tags"][0], &rows[0]["message"]), (&"v1".into(), &"with more".into()));
    assert!(remote.run("log", &["acme/m"]).contains("with more"));
    assert_eq!(
        remote.run("gc", &["--keep-last", "1", "--keep-days", "0", "--dry-run"]),
        "nothing to collect\n"
    );
    assert_eq!(tag(&["acme/m", "v1", "--remove"]).ok(), "removed the tag v1 of acme/m\n");
    let planned = remote.run("gc", &["--keep-last", "1", "--keep-days", "0"]);
    assert!(planned.starts_with("planned 1 snapshots and 0 pieces"), "{planned}");
    let waits = remote.run("gc", &["--keep-last", "1", "--keep-days", "0"]);
    assert!(waits.starts_with("a plan waits for 24.0 more hours"), "{waits}");
    tag(&["acme/m=1", "late"]).failed(1, &["is being collected"]);
    answer(tierfs().args(["gc", &remote.url, "--grace", "1h"])).failed(1, &["at least 24 h"]);
}

#[test]
fn a_prefetched_file_is_in_the_cache_which_can_be_listed_and_trimmed() {
    let remote = pushed();
    let mounted = remote.mount(&[]);
    let found = answer(tierfs().arg("prefetch").arg(mounted.path("acme/m")).arg("--json")).json();
    assert_eq!((&found["files"], &found["failed"]), (&3.into(), &0.into()));
    fs::remove_dir_all(remote.place.path("bucket/piece")).unwrap();
    let source = fs::read(remote.place.path("in/large.safetensors")).unwrap();
    assert_same(&fs::read(mounted.path("acme/m/large.safetensors")).unwrap(), &source, "prefetched");
    let cache = |options: &[&str]| {
        let mut command = tierfs();
        answer(command.arg("cache").arg(remote.place.path("cache")).args(options))
    };
    cache(&["--verify"]).failed(1, &["in use by a mount"]);
    let text = cache(&[]).ok();
    assert!(text.contains(" files, ") && !text.starts_with("0 files"), "{text}");
    mounted.unmount();
    let listed = cache(&["--list", "--json"]).json();
    assert!(listed["bytes"].as_u64().unwrap() > 29 << 20, "{listed}");
    let text = cache(&["--list"]).ok();
    assert!(text.lines().count() > 3 && text.contains(" files, "), "{text}");
    assert_eq!(cache(&["--trim", "0"]).ok(), "0 files, 0 B\n");
    let none = remote.place.path("in");
    answer(tierfs().arg("cache").arg(&none)).failed(1, &["is not the cache of a remote"]);
    answer(tierfs().arg("prefetch").arg(&none)).failed(1, &["is not on a tierfs mount"]);
}

#[test]
fn doctor_examines_a_remote() {
    let remote = pushed();
    let cache = remote.place.path("no/cache");
    let rows = answer(tierfs().args(["doctor", &remote.url, "--json", "--cache"]).arg(&cache)).json();
    let found: Vec<(&str, &str)> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["what"].as_str().unwrap(), row["verdict"].as_str().unwrap()))
        .collect();
    assert_eq!(
        found,
        [
            ("remote", "ok"),
            ("ranges", "ok"),
            ("listing", "ok"),
            ("push", "ok"),
            ("If-Match", "ok"),
            ("clock", "ok"),
            ("bandwidth", "ok"),
            ("cache", "ok")
        ]
    );
    assert!(rows[6]["found"].as_str().unwrap().contains(" MB/s by 32"), "{rows}");
    assert!(rows[7]["found"].as_str().unwrap().contains("/cache takes "), "{rows}");
    let device = answer(tierfs().args(["doctor", &remote.url, "--cache", "/proc/none"])).ok();
    assert!(device.contains("warn  cache"), "{device}");
    let absent = format!("file://{}", remote.place.path("in").display());
    let text = answer(tierfs().args(["doctor", &absent]));
    assert_eq!(text.code, Some(1), "{text:?}");
    assert!(text.out.starts_with("bad   remote") && text.out.contains("is not a remote"), "{text:?}");
}

#[test]
fn names_and_other_files_answer_while_the_remote_sends_nothing() {
    let remote = pushed();
    let pieces = remote.place.path("bucket/piece");
    let large = support::files_below(&pieces).into_iter().map(|below| pieces.join(below));
    let large: Vec<PathBuf> = large.filter(|path| fs::metadata(path).unwrap().len() > 3 << 20).collect();
    assert!(large.len() >= 3, "{large:?}");
    let mounted = remote.mount(&[]);
    assert!(mounted.path("acme/m/sub/config.json").exists());
    // An open of a pipe waits for a writer.
    for piece in &large {
        fs::rename(piece, piece.with_extension("kept")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, piece, rustix::fs::Mode::RWXU).unwrap();
    }
    let source = fs::read(remote.place.path("in/large.safetensors")).unwrap();
    let path = mounted.path("acme/m/large.safetensors");
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..20).map(|_| scope.spawn(|| fs::read(&path))).collect();
        std::thread::sleep(std::time::Duration::from_millis(500));
        for _ in 0..5 {
            let begun = std::time::Instant::now();
            assert_eq!(support::names(&mounted.path("acme")), ["m"]);
            assert!(fs::metadata(&path).unwrap().len() > 29 << 20);
            assert_eq!(fs::read(mounted.path("acme/m/sub/config.json")).unwrap().len(), 23);
            assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{:?}", begun.elapsed());
        }
        assert!(readers.iter().all(|reader| !reader.is_finished()), "the pipes answered");
        for piece in &large {
            fs::rename(piece.with_extension("kept"), piece).unwrap();
        }
        for reader in readers {
            assert_same(&reader.join().unwrap().unwrap(), &source, "after the pause");
        }
    });
    mounted.unmount();
}

#[test]
fn a_remote_is_listed_checked_and_exported_as_a_store_is() {
    let remote = pushed();
    let local = answer(tierfs().arg("ls").arg(remote.place.store()).arg("acme/m")).ok();
    assert_eq!(remote.run("ls", &["acme/m"]), local);
    let of_tensor = ["acme/m/.tensors/large.safetensors/b", "--json"];
    let local = answer(tierfs().arg("stat").arg(remote.place.store()).args(of_tensor)).json();
    let found = answer(tierfs().arg("stat").arg(&remote.url).args(of_tensor)).json();
    assert_eq!(
        (&found["shape"], &found["tier"], &found["dtype"]),
        (&local["shape"], &local["tier"], &local["dtype"])
    );
    remote.run("fsck", &[]);
    remote.run("du", &[]);
    let out = remote.place.path("out");
    remote.run("export", &["acme/m", out.to_str().unwrap()]);
    assert_same(
        &fs::read(out.join("large.safetensors")).unwrap(),
        &fs::read(remote.place.path("in/large.safetensors")).unwrap(),
        "exported",
    );
    answer(tierfs().args(["fsck", &remote.url, "--repair"])).failed(1, &["is a remote"]);
}
