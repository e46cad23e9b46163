//! Events as lines of JSON.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};

use support::{Place, as_nobody, events, imported, put, refused};

#[test]
fn events_name_the_user_of_each_granted_and_each_refused_request() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&["--allow-other"]);
    let path = mounted.path(".ctl/events");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o400);
    as_nobody(&mounted.mountpoint, "cat .ctl/events").failed(1, &["Permission denied"]);
    assert_eq!(events(&mounted, ""), Vec::<serde_json::Value>::new());
    put(&mounted.path(".ctl/sync"), "now\n").unwrap();
    refused(put(&mounted.path("demo/model/.ctl/policy"), "hot\n"), libc::EINVAL);
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(mounted.path("demo/model/a"), "user.tierfs.sha256", b"0", flags).unwrap_err();
    rustix::fs::setxattr(mounted.path("demo/model/config.json"), "user.tierfs.dtype", b"i8", flags).unwrap();
    let told = events(&mounted, "");
    let line = |event: &serde_json::Value| {
        ["kind", "path", "cause"].map(|key| event[key].as_str().unwrap().to_owned())
    };
    let wanted = [
        ["control", "", ".ctl/sync, user 0"],
        ["refusal", "demo/model", ".ctl/policy, user 0"],
        ["refusal", "demo/model/a", "sha256, user 0"],
        ["control", "demo/model/config.json", "dtype, user 0"],
    ];
    assert_eq!(told.iter().map(line).collect::<Vec<_>>(), wanted);
    assert_eq!((&told[0]["text"], &told[3]["text"]), (&"now".into(), &"i8".into()));
    assert!(told[1]["text"].as_str().unwrap().contains("hot"), "{told:?}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    for event in &told {
        let time = event["time"].as_f64().unwrap();
        assert!((now - 60.0..=now).contains(&time), "{event}");
    }
}

#[test]
fn the_events_file_has_a_true_size_and_grows_for_followers() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let path = mounted.path(".ctl/events");
    let mut follower = fs::File::open(&path).unwrap();
    let mut seen = String::new();
    for round in 0..3 {
        assert_eq!(fs::metadata(&path).unwrap().len(), seen.len() as u64);
        put(&mounted.path(".ctl/sync"), &format!("round {round}")).unwrap();
        follower.read_to_string(&mut seen).unwrap();
        assert_eq!(seen.lines().count(), round + 1, "{seen}");
        assert!(seen.contains(&format!("round {round}")));
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), seen);
    let mut middle = [0; 10];
    follower.read_exact_at(&mut middle, 30).unwrap();
    assert_eq!(middle, seen.as_bytes()[30..40]);
    refused(put(&path, "x"), libc::EPERM);
}

#[test]
fn the_events_file_keeps_the_last_events_and_begins_with_a_whole_line() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let mut policy = fs::OpenOptions::new().write(true).open(mounted.path("demo/model/.ctl/policy")).unwrap();
    for round in 0..10_001 {
        refused(policy.write_all(format!("no policy {round}").as_bytes()), libc::EINVAL);
    }
    let told = events(&mounted, "refusal");
    assert_eq!(told.len(), 9_001);
    assert!(told[0]["text"].as_str().unwrap().contains("no policy 1000"), "{}", told[0]);
    assert!(told[9_000]["text"].as_str().unwrap().contains("no policy 10000"), "{}", told[9_000]);
    let path = mounted.path(".ctl/events");
    assert_eq!(fs::metadata(&path).unwrap().len(), fs::read(&path).unwrap().len() as u64);
}

#[test]
fn events_report_damage_found_when_a_log_is_opened() {
    let place = Place::new();
    place.write("one", b"one");
    for name in ["torn", "flipped", "fine"] {
        place.import(&format!("demo/{name}"), &[&place.path("one")], &[]);
    }
    let log = |name: &str| place.store().join("demo").join(name).join("meta.log");
    // Half a batch: an earlier slot with a flipped bit, and no Commit.
    let mut bytes = fs::read(log("torn")).unwrap();
    bytes.extend([0x5a; 64]);
    fs::write(log("torn"), &bytes).unwrap();
    let mut bytes = fs::read(log("flipped")).unwrap();
    bytes[64 + 20] ^= 1;
    fs::write(log("flipped"), &bytes).unwrap();
    let mounted = place.mount(&[]);
    for name in ["torn", "flipped", "fine"] {
        assert_eq!(fs::read(mounted.path("demo").join(name).join("one")).unwrap(), b"one");
    }
    let of = |kind: &str| {
        let paths = events(&mounted, kind).iter().map(|event| event["path"].clone()).collect::<Vec<_>>();
        assert!(events(&mounted, kind).iter().all(|event| event["cause"] == "open"));
        paths
    };
    assert_eq!(of("dropped"), ["demo/torn"]);
    assert_eq!(of("repair"), ["demo/flipped"]);
    assert_eq!(events(&mounted, "").len(), 2);
}
