//! Files that act: sync, policy, compact; and the settings in effect.

use std::fs;
use std::os::unix::fs::{FileExt, chown};

use support::{Place, as_nobody, events, get, imported, put, python_line, refused};

#[test]
fn writes_to_an_open_file_survive_a_crash_after_a_sync() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    let file = fs::File::create(mounted.path("t/c/f")).unwrap();
    for round in 0..3_u8 {
        file.write_all_at(&[round + 1; 100_000], u64::from(round) * 100_000).unwrap();
        put(&mounted.path(".ctl/sync"), "1\n").unwrap();
    }
    mounted.kill();
    drop(mounted);
    let mounted = place.mount(&[]);
    let wanted: Vec<u8> = (0..300_000).map(|at| (at / 100_000 + 1) as u8).collect();
    assert!(fs::read(mounted.path("t/c/f")).unwrap() == wanted);
}

#[test]
fn a_policy_is_set_stored_and_refused_as_a_whole() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&["--allow-other"]);
    let path = mounted.path("demo/model/.ctl/policy");
    assert_eq!(fs::read_to_string(&path).unwrap(), "manual\n");
    put(&path, "auto\n").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "auto\n");
    assert_eq!(get(&mounted.path("demo/model/a"), "policy"), "auto", "inherited");
    for wrong in ["hot", "AUTO", "auto manual", "auto\nmanual", "aut\u{0}o"] {
        refused(put(&path, wrong), libc::EINVAL);
        assert_eq!(fs::read_to_string(&path).unwrap(), "auto\n");
    }
    let bytes = fs::OpenOptions::new().write(true).open(&path).unwrap();
    refused(bytes.write_all_at(b"\xff\xfe", 0), libc::EINVAL);
    // Not at offset 0: each write is one command, whatever its offset.
    bytes.write_all_at(b"cache:50%", 1 << 40).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "cache:50%\n");
    drop(bytes);
    as_nobody(&mounted.mountpoint, "echo auto > demo/model/.ctl/policy").failed(2, &["Permission denied"]);
    chown(mounted.path("demo/model"), Some(65534), None).unwrap();
    as_nobody(&mounted.mountpoint, "echo manual > demo/model/.ctl/policy").ok();
    as_nobody(&mounted.mountpoint, "echo no > demo/model/.ctl/policy").failed(1, &["error"]);
    let told = events(&mounted, "control");
    assert_eq!(told.last().unwrap()["cause"], ".ctl/policy, user 65534");
    mounted.unmount();
    let mounted = place.mount(&["--read-only"]);
    let path = mounted.path("demo/model/.ctl/policy");
    assert_eq!(fs::read_to_string(&path).unwrap(), "manual\n");
    refused(put(&path, "auto"), libc::EROFS);
}

#[test]
fn a_log_rewritten_on_demand_has_the_same_content() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let log = place.store().join("demo/model/meta.log");
    let digests = |mounted: &support::Mounted| {
        support::shell(&mounted.mountpoint, "find demo -type f -exec sha256sum {} + | sort").stdout
    };
    let before = digests(&mounted);
    for control in ["demo/model/.ctl/compact", ".ctl/compact"] {
        for round in 0..200 {
            fs::write(mounted.path("demo/model/f"), [round; 10]).unwrap();
            fs::remove_file(mounted.path("demo/model/f")).unwrap();
        }
        let grown = fs::metadata(&log).unwrap().len();
        let compact = mounted.path(control);
        assert!(fs::read_to_string(&compact).unwrap().contains("demo/model: "));
        for wrong in ["stop", "start now", "1"] {
            refused(put(&compact, wrong), libc::EINVAL);
        }
        assert_eq!(fs::metadata(&log).unwrap().len(), grown);
        mounted.job(control, "start\n");
        let small = fs::metadata(&log).unwrap().len();
        assert!(small < grown / 2, "from {grown} to {small}");
        let text = fs::read_to_string(&compact).unwrap();
        // A periodic sync adds a record that marks everything as durable.
        let numbers: Vec<u64> = text.split([' ', ':']).filter_map(|word| word.parse().ok()).collect();
        let is_one =
            |from: u64, to: u64| (grown..=grown + 8192).contains(&from) && (to..=to + 512).contains(&small);
        assert!(numbers.windows(2).any(|two| is_one(two[0], two[1])), "from {grown} to {small}: {text}");
    }
    assert_eq!(events(&mounted, "compaction").len(), 2);
    assert_eq!(digests(&mounted), before);
    mounted.kill();
    drop(mounted);
    let mounted = place.mount(&[]);
    assert_eq!(digests(&mounted), before);
    mounted.unmount();
    support::run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&["--read-only"]);
    refused(put(&mounted.path(".ctl/compact"), "start"), libc::EROFS);
}

#[test]
fn the_settings_in_effect_are_toml() {
    let (place, _) = imported(&[]);
    let text = fs::read_to_string(place.store().join("tierfs.toml")).unwrap();
    let kept = text.lines().map(|line| if line.starts_with("keep") { "keep = [\"a \\\"b\"]" } else { line });
    fs::write(place.store().join("tierfs.toml"), kept.collect::<Vec<_>>().join("\n") + "\n").unwrap();
    let mounted =
        place.mount(&["--verify", "always", "--list", "both", "--threads", "3", "-o", "transport=auto"]);
    let line = "import json, sys, tomllib; print(json.dumps(tomllib.load(open(sys.argv[1], 'rb'))))";
    let config: serde_json::Value =
        serde_json::from_str(&python_line(line, [mounted.path(".ctl/config")])).unwrap();
    assert_eq!(config["keep"], serde_json::json!(["a \"b"]));
    assert_eq!(config["format"], 1);
    let mount = &config["mount"];
    let wanted = serde_json::json!({
        "store": place.store(), "mountpoint": mounted.mountpoint, "read_only": false, "verify": "always",
        "list": "both", "threads": 3, "allow_other": false, "zero_fill": false, "passthrough": true, "opens": "daemon", "keep_names": true, "decoded_cache": "10%",
        "transport": "auto",
        "kernel": mount["kernel"], "process": mounted.daemon().unwrap(),
    });
    assert_eq!(*mount, wanted);
}
