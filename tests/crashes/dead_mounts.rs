//! Mounts whose daemon was killed: every command says how to recover, and `tierfs umount` is enough.

use std::fs;
use std::path::Path;

use support::{Answer, answer, imported, run, tierfs};

fn on(path: &Path, arguments: &[&str]) -> Answer {
    let mut command = tierfs();
    for argument in arguments {
        command.arg(if *argument == "PATH" { path.as_os_str() } else { argument.as_ref() });
    }
    answer(&mut command)
}

#[test]
fn every_command_on_the_mount_of_a_killed_daemon_says_how_to_recover() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    mounted.kill();
    let error = fs::read_dir(&mounted.mountpoint).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)), "{error}");
    let shown = mounted.mountpoint.to_str().unwrap();
    let out = place.path("out");
    let remedy = format!("tierfs umount {shown}`");
    let again = format!("tierfs mount {} {shown}`", place.store().display());
    let words = [remedy.as_str(), again.as_str()];
    for path in [mounted.mountpoint.clone(), mounted.path("demo/model/x.npy")] {
        for arguments in [
            &["ls", "PATH"][..],
            &["stat", "PATH"],
            &["du", "PATH"],
            &["tier", "q8", "PATH"],
            &["pin", "PATH"],
            &["unpin", "PATH"],
            &["evict", "PATH"],
            &["verify", "PATH"],
            &["scrub", "PATH"],
            &["compact", "PATH"],
            &["fsck", "PATH"],
            &["init", "PATH"],
            &["import", "PATH", "a/b", "Cargo.toml"],
            &["export", "PATH", "demo/model", out.to_str().unwrap()],
        ] {
            on(&path, arguments).failed(1, &words);
        }
    }
    // A program that only reads a file meets the kernel's error.
    on(&mounted.path("demo/model/x.npy"), &["cgeb", "show", "PATH"]).failed(1, &words);
    on(&mounted.mountpoint, &["mount", place.store().to_str().unwrap(), "PATH"]).failed(1, &words);
    on(&mounted.mountpoint, &["status", "PATH"]).failed(1, &words);
}

#[test]
fn the_store_of_a_dead_mount_is_free_and_umount_removes_the_mount_though_a_file_is_open() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let file = fs::File::open(mounted.path("demo/model/x.npy")).unwrap();
    mounted.kill();
    for command in ["scrub", "compact", "fsck", "ls"] {
        run([command.as_ref(), place.store().as_os_str()]).ok();
    }
    run(["umount".as_ref(), mounted.mountpoint.as_os_str()]).ok();
    assert!(!mounted.is_mounted());
    drop(file);
    place.mount(&[]).unmount();
}
