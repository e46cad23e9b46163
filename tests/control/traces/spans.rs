//! Spans with their attributes, and mounts whose collector does not answer.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::{Duration, Instant};

use support::{Mounted, Place, Random, container_of, get, npy_file, refused_set, set, tierfs, wait_until};

use super::collector::Collector;
use super::protobuf::Span;

/// A program whose mounts send spans at once.
fn quick() -> Command {
    let mut command = tierfs();
    command.env("OTEL_BSP_SCHEDULE_DELAY", "50");
    for name in ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] {
        command.env_remove(name);
    }
    command
}

fn store() -> Place {
    let place = Place::new();
    let npy = place.write("w.npy", npy_file(&Random(1).floats(200_000)));
    let model = place.write("m.safetensors", container_of(&mut Random(2), &[("a", 300_000), ("b", 300_000)]));
    place.import("t/c", &[&npy, &model], &[]);
    place
}

fn mounted(place: &Place, collector: &Collector) -> Mounted {
    place.mount_by(&mut quick(), "mnt", &["--traces", &collector.url])
}

/// The spans of a name with these attributes.
fn found(spans: &[Span], name: &str, wanted: &[(&str, &str)]) -> Vec<Span> {
    let has =
        |span: &Span, (key, value): &(&str, &str)| span.attributes.get(*key).is_some_and(|is| is == value);
    let all = spans.iter().filter(|span| span.name == name);
    all.filter(|span| wanted.iter().all(|one| has(span, one))).cloned().collect()
}

#[track_caller]
fn only(spans: &[Span], name: &str, wanted: &[(&str, &str)]) -> Span {
    match found(spans, name, wanted).as_slice() {
        [span] => span.clone(),
        others => panic!("{name} with {wanted:?}: {others:#?}; all: {:#?}", found(spans, name, &[])),
    }
}

#[test]
fn a_read_a_move_a_job_and_a_sync_have_spans_with_their_attributes() {
    let (place, collector) = (store(), Collector::new());
    let mounted = mounted(&place, &collector);
    let file = mounted.path("t/c/w.npy");
    let ino = fs::metadata(&file).unwrap().ino().to_string();
    set(&file, "lossy", "allow").unwrap();
    set(&file, "tier", "q8:all").unwrap();
    assert_eq!(get(&file, "tier"), "q8");
    let bytes = fs::read(&file).unwrap().len();
    fs::write(mounted.path("t/c/new"), vec![1; 5000]).unwrap();
    let refused = fs::write(mounted.path("t/c/.tensors/x"), "x").unwrap_err();
    let mut command = tierfs();
    command.args(["tier", "q5:all", "--lossy"]).arg(mounted.path("t/c/m.safetensors"));
    support::answer(&mut command).ok();
    fs::write(mounted.path(".ctl/sync"), "now").unwrap();
    mounted.unmount();
    let spans = collector.spans();
    assert!(collector.requests().iter().all(|head| head == "POST /v1/traces HTTP/1.1"));

    let lookup = found(&spans, "lookup", &[("tierfs.name", "w.npy")]);
    assert!(!lookup.is_empty() && lookup.iter().all(|span| span.status.0 == 0), "{lookup:?}");
    let of_file = [("tierfs.inode", ino.as_str())];
    let reads: Vec<Span> = found(&spans, "read", &of_file);
    let read_bytes = |span: &Span| span.attributes["tierfs.bytes"].parse::<usize>().unwrap();
    assert_eq!(reads.iter().map(read_bytes).sum::<usize>(), bytes, "{reads:#?}");
    let of_q8: Vec<&Span> = reads.iter().filter(|span| span.attributes["tierfs.tier"] != "exact").collect();
    assert!(!of_q8.is_empty(), "{reads:#?}");
    // The header of an npy file is exact.
    assert!(of_q8.iter().all(|span| ["q8", "mixed"].contains(&span.attributes["tierfs.tier"].as_str())));
    let decodes = found(&spans, "decode", &[("tierfs.tier", "q8")]);
    for decode in decodes.iter().filter(|decode| of_q8.iter().any(|read| read.id == decode.parent)) {
        let read = of_q8.iter().find(|read| read.id == decode.parent).unwrap();
        assert_eq!(decode.trace, read.trace);
        assert!(read.start <= decode.start && decode.end <= read.end, "{decode:?} and {read:?}");
        assert!(read_bytes(decode) <= read_bytes(read));
    }
    assert!(decodes.iter().any(|decode| of_q8.iter().any(|read| read.id == decode.parent)), "{decodes:#?}");

    let moved = only(&spans, "setxattr", &[("tierfs.name", "user.tierfs.tier"), ("tierfs.inode", &ino)]);
    assert_eq!((moved.attributes["tierfs.value"].as_str(), moved.status.0), ("q8:all", 0));
    let job = only(&spans, "job", &[("tierfs.request", "tier=q5:all:lossy")]);
    assert_eq!(
        (&*job.attributes["tierfs.path"], &*job.attributes["tierfs.state"]),
        ("t/c/m.safetensors", "done")
    );
    assert!(job.attributes["tierfs.bytes"].parse::<u64>().unwrap() >= 2_400_000 && job.parent.is_empty());
    assert!(!found(&spans, "sync", &[("tierfs.collection", "t/c")]).is_empty());
    let written = found(&spans, "write", &[("tierfs.bytes", "5000")]);
    assert_eq!(written.len(), 1);

    let failed =
        spans.iter().filter(|span| span.attributes.get("tierfs.name").is_some_and(|name| name == "x"));
    let failed: Vec<&Span> = failed.filter(|span| span.name != "lookup").collect();
    let number = refused.raw_os_error().unwrap().to_string();
    assert!(!failed.is_empty());
    for span in failed {
        assert_eq!((&span.attributes["tierfs.errno"], span.status.0), (&number, 2), "{span:?}");
        assert!(!span.status.1.is_empty());
    }
    for span in &spans {
        assert_eq!(span.resource["service.name"], "tierfs");
        assert_eq!(span.resource["tierfs.store"], fs::canonicalize(place.store()).unwrap().to_str().unwrap());
        assert!(span.start <= span.end && span.id.len() == 8 && span.trace.len() == 16);
    }
}

#[test]
fn a_file_that_is_decoded_as_a_whole_and_a_refused_move_have_spans() {
    let (place, collector) = (store(), Collector::new());
    let options = ["--traces", &collector.url, "-o", "decoded_cache=64M"];
    let mounted = place.mount_by(&mut quick(), "mnt", &options);
    let file = mounted.path("t/c/m.safetensors");
    set(&file, "lossy", "allow").unwrap();
    set(&file, "tier", "q8:all").unwrap();
    set(&file, "cache", "decoded").unwrap();
    let ino = fs::metadata(&file).unwrap().ino().to_string();
    let bytes = fs::read(&file).unwrap().len().to_string();
    wait_until("the span of the decode", || {
        !found(&collector.spans(), "decode file", &[("tierfs.inode", &ino), ("tierfs.bytes", &bytes)])
            .is_empty()
    });
    refused_set(&mounted.path("t/c/w.npy"), "tier", "q8:all", rustix::io::Errno::PERM);
    wait_until("the span of the refusal", || {
        let spans = found(&collector.spans(), "setxattr", &[("tierfs.value", "q8:all")]);
        spans.iter().any(|span| span.status.0 == 2 && span.status.1.contains("last exact copy"))
    });
    mounted.unmount();
}

#[test]
fn a_collector_named_by_the_environment_gets_the_spans() {
    let (place, collector) = (store(), Collector::new());
    let mut command = quick();
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url).env("OTEL_RESOURCE_ATTRIBUTES", "rack=7");
    let mounted = place.mount_by(&mut command, "mnt", &[]);
    fs::read(mounted.path("t/c/w.npy")).unwrap();
    mounted.unmount();
    let spans = collector.spans();
    assert!(!found(&spans, "lookup", &[]).is_empty());
    assert!(spans.iter().all(|span| span.resource["rack"] == "7"), "{:?}", spans.first());
}

#[test]
fn collectors_that_do_not_answer_delay_no_request_and_no_unmount() {
    // Connections are accepted by the kernel, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for address in [silent.local_addr().unwrap(), closed] {
        let place = store();
        let mounted = place.mount_by(&mut quick(), "mnt", &["--traces", &format!("http://{address}")]);
        let began = Instant::now();
        for number in 0..500 {
            let path = mounted.path(format!("t/c/{number}"));
            fs::write(&path, "x").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"x");
            fs::remove_file(&path).unwrap();
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        let began = Instant::now();
        let daemon = mounted.daemon().unwrap();
        mounted.unmount();
        wait_until("the end of the daemon", || !fs::exists(format!("/proc/{daemon}/task")).unwrap());
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        support::run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    }
}
