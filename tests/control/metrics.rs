//! Metrics, as the official Prometheus client for Python parses them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use support::{
    Mounted, Place, Random, as_nobody, imported, npy_file, python, refused, repository, run, wait_until,
};

use crate::remotes::mount_pushed;

/// The samples by name and label, and the types of families.
pub fn metrics(mounted: &Mounted) -> Value {
    serde_json::from_str(&python("metrics.py", [mounted.path(".ctl/metrics")])).unwrap()
}

pub fn sample(metrics: &Value, name: &str) -> u64 {
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

/// A port without a listener.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The head and the body of an answer over HTTP.
fn ask(at: SocketAddr, request: &str) -> (String, String) {
    ask_with(at, request, "")
}

/// Like `ask`, with further header lines.
fn ask_with(at: SocketAddr, request: &str, lines: &str) -> (String, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: {at}\r\n{lines}Connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// The names of samples and of families that a text of metrics has.
fn names(shown: &Value) -> BTreeSet<String> {
    let samples = shown["samples"].as_object().unwrap().keys();
    let samples = samples.map(|sample| sample.split('{').next().unwrap().to_owned());
    samples.chain(shown["types"].as_object().unwrap().keys().cloned()).collect()
}

#[test]
fn metrics_are_served_over_http_with_labels_of_store_and_collection() {
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&Random(3).floats(64 << 10)));
    place.import("demo/c", &[&source], &["--tier", "q8:all"]);
    place.import("demo/a \"quoted\" name", &[&source], &[]);
    let address = free_address();
    let mounted = place.mount(&["--metrics", &address.to_string()]);
    assert_eq!(fs::read(mounted.path("demo/c/w.npy")).unwrap().len(), 128 + (256 << 10));
    let (head, body) = ask(address, "GET /metrics");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let media_type = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.lines().any(|line| line.eq_ignore_ascii_case(media_type)), "{head}");
    let file = place.write("metrics.txt", &body);
    let served: Value = serde_json::from_str(&python("metrics.py", [&file])).unwrap();
    assert_eq!(served["stores"], serde_json::json!([place.store()]));
    let stats = mounted.stats();
    assert_eq!(stats["shares"].as_array().unwrap().len(), 2);
    for share in stats["shares"].as_array().unwrap() {
        let path = share["path"].as_str().unwrap();
        assert_eq!(share["files"], sample(&served, &format!("tierfs_collection_files{{collection={path}}}")));
        for (tier, tally) in share["tiers"].as_object().unwrap() {
            for name in ["logical_bytes", "stored_bytes"] {
                let labels = format!("{{collection={path},tier={tier}}}");
                assert_eq!(tally[name], sample(&served, &format!("tierfs_collection_{name}{labels}")));
            }
        }
    }
    assert!(sample(&served, "tierfs_read_bytes_total{}") > 0);
    assert!(sample(&served, "process_resident_memory_bytes{}") > 1 << 20);
    assert_eq!(names(&served), names(&metrics(&mounted)));
    // As Prometheus asks.
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n";
    let (head, body) = ask_with(address, "GET /metrics", accept);
    assert!(head.contains("openmetrics-text") && body.ends_with("# EOF\n"), "{head}");
    // Connections that send nothing, or no end of a request, delay nobody.
    let mut idle: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    idle.iter_mut()
        .step_by(2)
        .for_each(|stream| stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap_or_default());
    let begun = Instant::now();
    assert!(ask(address, "GET /metrics").1.ends_with("# EOF\n"));
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    for (request, status) in [("GET /", "404"), ("GET /metrics/x", "404"), ("POST /metrics", "405")] {
        let (head, _) = ask(address, request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {head}");
    }
    // A second mount cannot have the same address, and is refused before it is mounted.
    let other = Place::new();
    run(["init".as_ref(), other.store().as_os_str()]).ok();
    fs::create_dir(other.path("mnt")).unwrap();
    let shown = address.to_string();
    let refused = run([
        "mount".as_ref(),
        other.store().as_os_str(),
        other.path("mnt").as_os_str(),
        "--metrics".as_ref(),
        shown.as_ref(),
    ]);
    refused.failed(1, &["serving metrics at", &shown]);
    mounted.unmount();
    // The process of the daemon ends shortly after the mount.
    wait_until("the address is free", || TcpListener::bind(address).is_ok());
}

#[test]
fn promtool_accepts_the_metrics_and_the_rules() {
    if Command::new("promtool").arg("--version").output().is_err() {
        println!("left out: promtool is not installed; Debian's package prometheus has it");
        return;
    }
    let rules = repository("scripts/prometheus-alerts.yml");
    let told = Command::new("promtool").args(["check", "rules"]).arg(rules).output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let (place, _) = imported(&["--tier", "q5"]);
    let address = free_address();
    let _mounted = place.mount(&["-o", &format!("metrics={address}")]);
    let (head, text) = ask_with(address, "GET /metrics", "Accept: text/plain\r\n");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    let mut check = Command::new("promtool");
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = check.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
}

#[test]
fn users_who_may_not_list_a_collection_do_not_find_its_name_in_metrics() {
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&Random(3).floats(1 << 10)));
    place.import("demo/secret", &[&source], &[]);
    let mounted = place.mount(&["--allow-other"]);
    fs::set_permissions(mounted.path("demo/secret"), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(fs::read(mounted.path("demo/secret/w.npy")).is_ok());
    for name in ["metrics", "stats.json", "hottest.json"] {
        let path = mounted.path(format!(".ctl/{name}"));
        let own = fs::read_to_string(&path).unwrap();
        assert!(own.contains("demo/secret"), "{name}: {own}");
        let other = as_nobody(std::path::Path::new("/"), &format!("cat {}", path.display()));
        assert!(!other.out.is_empty() && !other.out.contains("secret"), "{name}: {other:?}");
    }
}

#[test]
fn the_hottest_tensors_are_listed_in_the_order_of_their_scores() {
    let place = Place::new();
    let [often, once, never] = ["often", "once", "never"]
        .map(|name| place.write(&format!("{name}.npy"), npy_file(&Random(3).floats(4 << 10))));
    place.import("demo/c", &[&often, &once, &never], &["--tier", "q8:all"]);
    let mounted = place.mount(&["--passthrough", "off"]);
    for (name, reads) in [("once.npy", 1), ("often.npy", 5)] {
        for _ in 0..reads {
            fs::read(mounted.path(Path::new("demo/c").join(name))).unwrap();
            support::set(&mounted.path(Path::new("demo/c").join(name)), "evict", "cache").unwrap();
        }
    }
    let shown: Value = serde_json::from_slice(&fs::read(mounted.path(".ctl/hottest.json")).unwrap()).unwrap();
    let rows: Vec<&str> = shown.as_array().unwrap().iter().map(|row| row["path"].as_str().unwrap()).collect();
    assert_eq!(rows, ["demo/c/often", "demo/c/once"]);
    for row in shown.as_array().unwrap() {
        let path = mounted.path(row["path"].as_str().unwrap());
        let [tier, score, stored, access] =
            ["tier", "score", "bytes_stored", "access"].map(|name| support::get(&path, name));
        assert_eq!(row["tier"], tier);
        assert_eq!(row["score"].as_f64().unwrap(), score.parse::<f64>().unwrap());
        assert_eq!(row["bytes_stored"], stored.parse::<u64>().unwrap());
        assert_eq!(row["accesses"], access.split(' ').next().unwrap().parse::<u64>().unwrap());
    }
}

#[test]
fn quotas_are_shown_as_used_parts_to_those_who_own_them() {
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&Random(3).floats(25 << 10)));
    place.import("demo/c", &[&source], &[]);
    let mounted = place.mount(&["--allow-other"]);
    let shown = || metrics(&mounted);
    assert!(!names(&shown()).contains("tierfs_quota_used_ratio"), "no limits are set");
    fs::write(mounted.path("demo/.ctl/quota"), "files=4").unwrap();
    fs::write(mounted.path("demo/c/.ctl/quota"), "bytes=200K").unwrap();
    let text = fs::read_to_string(mounted.path(".ctl/metrics")).unwrap();
    assert!(text.contains("# TYPE tierfs_quota_used_ratio gauge"), "{text}");
    let shown = shown();
    let ratio = |of: &str, limit: &str| {
        let samples = shown["samples"].as_object().unwrap();
        let is_it = |name: &str| {
            let words = [format!("of={of},"), format!("limit={limit}")];
            let labels = name.strip_prefix("tierfs_quota_used_ratio").map(|rest| rest.replace('}', ","));
            labels.is_some_and(|labels| words.iter().all(|word| labels.contains(word)))
        };
        let found = samples.iter().find(|(name, _)| is_it(name));
        found.unwrap_or_else(|| panic!("no {of} {limit} in {shown}")).1.as_f64().unwrap()
    };
    // The file and its tensor.
    assert_eq!(ratio("demo", "files"), 0.5);
    let bytes = (128 + (25 << 12)) as f64;
    assert!((ratio("demo/c", "bytes") - bytes / f64::from(200 << 10)).abs() < 0.01);
    let other = as_nobody(Path::new("/"), &format!("cat {}", mounted.path(".ctl/metrics").display()));
    assert!(!other.out.is_empty() && !other.out.contains("tierfs_quota"), "{other:?}");
    mounted.unmount();
}

/// The names of metrics in a query.
fn named_in(query: &str) -> Vec<&str> {
    let words = query.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("tierfs_") || word.starts_with("process_")).collect()
}

/// The names of metrics that a mount of a store with a quota has, and a mount of a remote.
fn all_names() -> BTreeSet<String> {
    let (place, _) = imported(&["--tier", "q5"]);
    let remote = mount_pushed(&place, &["demo/model"]);
    let mounted = place.mount(&[]);
    fs::write(mounted.path("demo/.ctl/quota"), "files=1000").unwrap();
    let all = [&mounted, &remote].map(|mounted| names(&metrics(mounted)));
    mounted.unmount();
    remote.unmount();
    all.into_iter().flatten().collect()
}

#[test]
fn every_alert_rule_names_only_metrics_that_exist() {
    let known = all_names();
    let rules = fs::read_to_string(repository("scripts/prometheus-alerts.yml")).unwrap();
    let queries: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    assert!(queries.len() >= 7, "{queries:?}");
    assert_eq!(rules.matches("- alert: ").count(), queries.len());
    for query in queries {
        let named = named_in(query);
        assert!(!named.is_empty(), "{query}");
        // Those of the plugin for Kubernetes are compared in `tests/program/volumes/health.rs`.
        for name in named.into_iter().filter(|name| !name.starts_with("tierfs_csi_")) {
            assert!(known.contains(name), "{query} names {name}, and there is no such metric");
        }
    }
}

#[test]
fn every_query_of_the_dashboard_names_only_metrics_that_exist() {
    let known = all_names();
    let dashboard = fs::read(repository("scripts/grafana-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_slice(&dashboard).unwrap();
    let mut queries = Vec::new();
    collect_queries(&dashboard, &mut queries);
    assert!(queries.len() >= 10, "{queries:?}");
    for query in &queries {
        let named = named_in(query);
        assert!(!named.is_empty(), "{query}");
        for name in named {
            assert!(known.contains(name), "{query} names {name}, and no mount has such a metric");
        }
    }
}

/// The expressions of panels and variables.
fn collect_queries(value: &Value, queries: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str().filter(|_| key == "expr" || key == "definition") {
                    Some(query) => queries.push(query.to_owned()),
                    None => collect_queries(value, queries),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect_queries(value, queries)),
        _ => {}
    }
}
