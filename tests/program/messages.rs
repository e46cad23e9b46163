//! The destination of the daemon's messages: the system log, or else a file that the command names once.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use support::{Answer, PATIENCE, Place, answer, imported, run, tierfs};

/// A mount with a system log at `socket`, a home of its own, and a daemon that logs an error.
fn mount(place: &Place, socket: &Path) -> Answer {
    let mountpoint = place.path("mnt");
    fs::create_dir_all(&mountpoint).unwrap();
    let mut mount = tierfs();
    mount.env("TIERFS_SYSLOG", socket).env("TIERFS_LOG", "debug").env("XDG_STATE_HOME", place.path("state"));
    answer(mount.arg("mount").arg(place.store()).arg(mountpoint))
}

fn unmount(place: &Place) {
    run(["umount".as_ref(), place.path("mnt").as_os_str()]).ok();
}

/// Makes the daemon report a failure.
fn fail(place: &Place) {
    let path = place.store().join("demo/model/meta.log");
    let log = fs::read(&path).unwrap();
    let mut wrong = log.clone();
    wrong[..512].fill(0xaa);
    fs::write(&path, wrong).unwrap();
    fs::read_dir(place.path("mnt/demo/model")).unwrap_err();
    fs::write(&path, log).unwrap();
}

#[test]
fn a_daemon_logs_to_the_system_log_with_priorities() {
    let (place, _) = imported(&[]);
    let path = place.path("log.socket");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let answer = mount(&place, &path);
    assert_eq!((answer.code, answer.err.contains("system log")), (Some(0), false), "{answer:?}");
    fail(&place);
    let mut line = vec![0; 64 << 10];
    let found = loop {
        let len = socket.recv(&mut line).unwrap();
        let text = String::from_utf8(line[..len].to_vec()).unwrap();
        // Facility daemon: 24, with an error's severity, 3.
        if text.starts_with("<27>") {
            break text;
        }
    };
    let (tag, text) = found.split_once(": ").unwrap();
    assert!(tag.starts_with("<27>tierfs[") && tag.ends_with(']'), "{found}");
    assert!(text.contains("demo/model"), "{found}");
    // A system log that stops reading does not stop the daemon.
    for _ in 0..1000 {
        fs::metadata(place.path("mnt/demo/nothing")).unwrap_err();
    }
    unmount(&place);
    assert!(!place.path("state").exists());
}

#[test]
fn without_a_system_log_the_file_is_named_once_and_has_the_messages() {
    let (place, _) = imported(&[]);
    let file = place.path("state/tierfs/log");
    let nowhere = place.path("no socket");
    mount(&place, &nowhere).ok();
    unmount(&place);
    fs::remove_file(&file).unwrap();
    let first = mount(&place, &nowhere);
    assert!(first.err.contains(file.to_str().unwrap()), "{first:?}");
    assert_eq!(first.code, Some(0));
    fail(&place);
    unmount(&place);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.lines().any(|line| line.contains("ERROR") && line.contains("demo/model")), "{text}");
    let second = mount(&place, &nowhere);
    assert!(!second.err.contains("log"), "{second:?}");
    unmount(&place);
    // If the state directory cannot be created, the mount works and says that it keeps no messages.
    fs::remove_dir_all(place.path("state")).unwrap();
    place.write("state", b"a file");
    let third = mount(&place, &nowhere);
    assert!(third.err.contains("dropped") && third.err.contains("--log"), "{third:?}");
    assert_eq!(third.code, Some(0));
    unmount(&place);
}
