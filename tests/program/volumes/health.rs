//! The plugin as its liveness probe and a collector of metrics see it, and daemons that die at the same time.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Acceptor, Bucket, Manners, python, repository, wait_until};

use super::plugin::{MULTI_NODE_READER_ONLY, Node};
use super::wire::{FAILED_PRECONDITION, INVALID_ARGUMENT};

/// Daemons whose remotes are silent. One after another they would take minutes.
const SILENT: usize = 4;

fn signal(process: u32, number: i32) {
    // SAFETY: kill takes two numbers and touches no memory of this process.
    assert_eq!(unsafe { libc::kill(process as i32, number) }, 0);
}

/// A way to a server, which takes connections and passes nothing on once it is silent.
fn way_to(port: u16, is_silent: &Arc<AtomicBool>) -> Acceptor {
    let is_silent = is_silent.clone();
    Acceptor::start(move |mut client| {
        if is_silent.load(Ordering::Relaxed) {
            return drop(client.read_to_end(&mut Vec::new()));
        }
        let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)) else { return };
        let (mut back, mut forth) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || {
            drop(std::io::copy(&mut server, &mut back));
            drop(back.shutdown(Shutdown::Both));
        });
        drop(std::io::copy(&mut client, &mut forth));
        drop(forth.shutdown(Shutdown::Both));
    })
}

#[test]
fn a_daemon_that_has_died_does_not_wait_for_others_whose_remotes_are_silent() {
    let node = Node::new();
    fs::create_dir(node.place.path("served")).unwrap();
    support::shell(&node.place.path(""), "cp -r bucket served/models");
    let bucket = Bucket::with(&node.place.path("served"), 3, Manners::default());
    let is_silent = Arc::new(AtomicBool::new(false));
    let way = way_to(bucket.port(), &is_silent);
    let endpoint = format!("http://127.0.0.1:{}", way.port());
    for number in 0..SILENT {
        let key = format!("key-{number}");
        let secrets = [
            ("AWS_ENDPOINT", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ACCESS_KEY_ID", &key),
            ("AWS_SECRET_ACCESS_KEY", "hush"),
            ("AWS_REGION", "r"),
        ];
        let id = format!("silent-{number}");
        let volume = [("remote", "s3://models"), ("collection", "t/c")];
        let message = node.stage_message(&id, &volume, MULTI_NODE_READER_ONLY, &secrets);
        node.call("Node/NodeStageVolume", &message).unwrap();
    }
    let url = node.url();
    let volume = [("remote", url.as_str()), ("collection", "t/c")];
    node.stage("v", &volume).unwrap();
    node.publish("v", "a", &volume).unwrap();
    let daemons = node.daemons();
    assert_eq!(daemons.len(), SILENT + 1);
    is_silent.store(true, Ordering::Relaxed);
    // Without its cache a daemon can only wait for its remote.
    for cache in fs::read_dir(node.state().join("cache")).unwrap().flatten() {
        if cache.file_name() != "shared" {
            fs::remove_dir_all(cache.path()).unwrap();
        }
    }
    let begun = Instant::now();
    daemons.iter().for_each(|daemon| signal(*daemon, libc::SIGKILL));
    let file = node.pod("a").join("m.safetensors");
    wait_until("the volume is read again", || fs::read(&file).is_ok_and(|bytes| bytes == node.model));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn a_probe_fails_while_the_state_directory_is_another_one() {
    let node = Node::new();
    let probe = || node.call("Identity/Probe", &[]).map_err(|refused| refused.code);
    assert_eq!(probe(), Ok(vec![10, 2, 8, 1]));
    let elsewhere = node.place.path("elsewhere");
    fs::rename(node.state(), &elsewhere).unwrap();
    wait_until("the probe fails", || probe() == Err(FAILED_PRECONDITION));
    // One of the same name is not that of the plugin.
    fs::create_dir(node.state()).unwrap();
    fs::write(node.state().join("lock"), b"").unwrap();
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(probe(), Err(FAILED_PRECONDITION));
    fs::remove_dir_all(node.state()).unwrap();
    fs::rename(&elsewhere, node.state()).unwrap();
    wait_until("the probe succeeds", || probe().is_ok());
    node.is_clean();
}

#[test]
fn attributes_and_secrets_without_end_are_refused_and_leave_nothing() {
    let node = Node::new();
    let url = node.url();
    let long = "x".repeat(100_000);
    let key = format!("-----BEGIN PUBLIC KEY-----{long}");
    for (attributes, secrets) in [
        (&[("remote", url.as_str()), ("trust", &key)][..], &[][..]),
        (&[("remote", url.as_str()), ("collection", &long)], &[]),
        (&[("remote", url.as_str()), (&long, "x")], &[]),
        (&[("remote", url.as_str())], &[("HF_TOKEN", long.as_str())]),
    ] {
        let message = node.stage_message("v", attributes, MULTI_NODE_READER_ONLY, secrets);
        let failure = node.call("Node/NodeStageVolume", &message).unwrap_err();
        assert_eq!(failure.code, INVALID_ARGUMENT, "{failure:?}");
        assert!(failure.text.len() < 1000, "{}", failure.text);
    }
    node.is_clean();
}

fn ask(at: SocketAddr) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {at}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    body.to_owned()
}

#[test]
fn one_port_has_the_metrics_of_all_daemons_also_while_one_hangs() {
    let mut node = Node::without_plugin();
    let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    node.arguments = vec!["--metrics".to_owned(), at.to_string()];
    node.start();
    assert!(ask(at).ends_with("# EOF\n"));
    let (url, store) = (node.url(), node.place.store().display().to_string());
    node.stage("v", &[("remote", url.as_str()), ("collection", "t/c")]).unwrap();
    node.stage("w", &[("remote", url.as_str())]).unwrap();
    node.stage("x", &[("remote", url.as_str()), ("follow", "true")]).unwrap();
    node.stage("y", &[("store", store.as_str())]).unwrap();
    let shown = || {
        let file = node.place.write("metrics.txt", ask(at));
        let shown: Value = serde_json::from_str(&python("metrics.py", [&file])).unwrap();
        shown
    };
    // By the parser of the Prometheus project, which refuses a sample or a family that is there twice.
    let found = shown();
    assert_eq!(found["stores"], serde_json::json!([store, url]));
    let samples = found["samples"].as_object().unwrap();
    let of = |name: &str| {
        let named = samples.iter().filter(|(sample, _)| sample.split('{').next() == Some(name));
        named.map(|(sample, value)| (sample.as_str(), value.as_f64().unwrap())).collect::<Vec<_>>()
    };
    let values = |name: &str| {
        let mut values: Vec<_> = of(name).into_iter().map(|(_, value)| value as u64).collect();
        values.sort_unstable();
        values
    };
    assert_eq!((values("tierfs_csi_daemon_up"), values("tierfs_csi_volumes")), (vec![1; 3], vec![1, 1, 2]));
    let rules = fs::read_to_string(repository("scripts/prometheus-alerts.yml")).unwrap();
    let words = rules.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let named: Vec<&str> = words.filter(|word| word.starts_with("tierfs_csi_")).collect();
    assert!(named.contains(&"tierfs_csi_daemon_up"), "{named:?}");
    named
        .iter()
        .for_each(|name| assert!(!of(name).is_empty(), "a rule names {name}, and there is no such metric"));
    let daemon = |sample: &str| sample.split("daemon=").nth(1).unwrap()[..32].to_owned();
    let daemons: BTreeSet<String> =
        of("tierfs_uptime_seconds").into_iter().map(|(sample, _)| daemon(sample)).collect();
    let folders: BTreeSet<String> = fs::read_dir(node.state().join("mounts"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(daemons, folders);

    let hanging = node.daemons()[0];
    signal(hanging, libc::SIGSTOP);
    let begun = Instant::now();
    let found = shown();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let samples = found["samples"].as_object().unwrap();
    let up = samples.iter().filter(|(sample, _)| sample.starts_with("tierfs_csi_daemon_up"));
    assert_eq!(up.filter_map(|(_, value)| value.as_f64()).sum::<f64>(), 2.0);
    signal(hanging, libc::SIGCONT);
    ["v", "w", "x", "y"].iter().for_each(|id| drop(node.unstage(id).unwrap()));
    node.is_clean();
}
