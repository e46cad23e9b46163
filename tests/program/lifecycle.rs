//! Start and end of mounts, the lock of a store, and commands beside a mount.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use support::{
    Mounted, PATIENCE, Place, answer, assert_same, imported, names, run, shell, text, tierfs, wait_until,
};

#[test]
fn a_terminated_daemon_ends_in_five_seconds_with_a_file_open() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let file = fs::File::open(mounted.path("demo/model/x")).unwrap();
    let since = Instant::now();
    mounted.signal(libc::SIGTERM);
    wait_until("the end of the mount", || !mounted.is_mounted());
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    // A program that has the file open can still read for a while.
    assert_eq!(file.read_at(&mut [0; 100], 0).unwrap(), 100);
    drop(file);
    wait_until("the end of the daemon", || mounted.daemon().is_none());
    assert!(since.elapsed() < Duration::from_secs(6), "{:?}", since.elapsed());
    place.mount(&[]).unmount();
}

/// Number of voluntary context switches of the threads of a process.
fn sleeps(process: i32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let statuses = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap());
    statuses
        .map(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.unwrap().trim().parse::<u64>().unwrap()
        })
        .sum()
}

#[test]
fn an_unused_mount_sleeps() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    fs::read(mounted.path("demo/model/x")).unwrap();
    let daemon = mounted.daemon().unwrap();
    // Work that the end of a request still has to do.
    std::thread::sleep(Duration::from_secs(1));
    let before = sleeps(daemon);
    std::thread::sleep(Duration::from_secs(4));
    let slept = sleeps(daemon) - before;
    assert!(slept <= 40, "{slept} times in four seconds");
    mounted.unmount();
}

#[test]
fn umount_refuses_a_busy_mount_and_detaches_it_lazily() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let file = fs::File::open(mounted.path("demo/model/x")).unwrap();
    let shown = mounted.mountpoint.display().to_string();
    run(["umount", &shown]).failed(1, &[&shown, "in use", "--lazy"]);
    assert!(mounted.is_mounted());
    run(["umount", &shown, "--lazy"]).ok();
    assert!(!mounted.is_mounted());
    assert_eq!(file.read_at(&mut [0; 100], 0).unwrap(), 100);
    drop(file);
    wait_until("the end of the daemon", || mounted.daemon().is_none());
    run(["umount", &shown]).failed(1, &["no tierfs is mounted on", &shown]);
}

#[test]
fn umount_waits_for_a_passing_use_of_the_mount() {
    let place = Place::new();
    place.import("demo/model", &[&place.write("x.bin", [7; 100])], &[]);
    let mounted = place.mount(&[]);
    let file = fs::File::open(mounted.path("demo/model/x.bin")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            drop(file);
        });
        run(["umount".as_ref(), mounted.mountpoint.as_os_str()]).ok();
    });
}

#[test]
fn a_command_waits_for_the_daemon_that_umount_8_has_left_closing_its_store() {
    let (place, _) = imported(&[]);
    for round in 0..5 {
        let mounted = place.mount(&[]);
        fs::write(mounted.path("demo/model/new"), vec![round; 16 << 20]).unwrap();
        let status =
            std::process::Command::new("umount").arg("-i").arg(&mounted.mountpoint).status().unwrap();
        assert!(status.success());
        answer(tierfs().arg("fsck").arg(place.store())).ok();
    }
}

#[test]
fn umount_by_the_helper_waits_for_a_passing_use_of_the_mount() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    // An unprivileged user asks for the unmount, and the helper finds the mount in use at first.
    let helper = place
        .write("fusermount3", "#!/bin/sh\ncd \"${0%/*}\"\necho x >>asked\ntest \"$(wc -l <asked)\" -ge 3\n");
    fs::set_permissions(&helper, PermissionsExt::from_mode(0o755)).unwrap();
    let paths = format!("{}:{}", helper.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let asked = place.path("asked");
    let times = || fs::read(&asked).map_or(0, |asked| asked.len() / 2);
    let mut umount = std::process::Command::new("setpriv");
    umount.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]).env("PATH", paths);
    umount.arg(tierfs().get_program()).arg("umount").arg(&mounted.mountpoint);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_until("three tries", || times() >= 3);
            rustix::mount::unmount(&mounted.mountpoint, rustix::mount::UnmountFlags::empty()).unwrap();
        });
        answer(&mut umount).ok();
    });
    assert_eq!(times(), 3);
}

#[test]
fn umount_waits_for_its_read_only_daemon_while_another_goes_on() {
    let (place, source) = imported(&[]);
    let other = place.mount_on("other", &["--read-only"]);
    for round in 0..5 {
        let mounted = place.mount_on(&format!("mnt{round}"), &["--read-only"]);
        let daemon = mounted.daemon().unwrap();
        assert!(
            fs::read(mounted.path("demo/model/x.npy")).unwrap() == fs::read(source.join("x.npy")).unwrap()
        );
        run(["umount".as_ref(), mounted.mountpoint.as_os_str()]).ok();
        let stat = fs::read_to_string(format!("/proc/{daemon}/stat"));
        assert!(stat.as_ref().map_or(true, |stat| stat.contains(") Z ")), "{stat:?}");
    }
    assert!(other.is_mounted());
    other.unmount();
}

#[test]
fn a_second_daemon_is_refused_and_the_error_names_the_first() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let other = place.path("other");
    fs::create_dir(&other).unwrap();
    let process = mounted.daemon().unwrap().to_string();
    let shown = mounted.mountpoint.to_str().unwrap();
    let mount = |options: &[&str]| {
        let mut command = support::tierfs();
        answer(command.arg("mount").arg(place.store()).arg(&other).args(options))
    };
    mount(&[]).failed(1, &[&process, shown]);
    mount(&["--read-only"]).failed(1, &[&process, shown]);
    // An import goes through the daemon.
    place.import("demo/more", &[&place.path("model")], &[]);
    assert_eq!(names(&mounted.path("demo")), ["model", "more"]);
    // Another store cannot be mounted over this one either.
    let second = place.path("second");
    run([OsStr::new("init"), second.as_ref()]).ok();
    run([OsStr::new("mount"), second.as_ref(), mounted.mountpoint.as_ref()]).failed(1, &[shown, "already"]);
    run(["fsck".as_ref(), place.store().as_os_str()]).failed(1, &[&process, shown]);
}

#[test]
fn a_directory_that_is_no_store_is_not_mounted() {
    let place = Place::new();
    let other = place.path("mnt");
    fs::create_dir(&other).unwrap();
    let mount = |store: &Path, options: &[&str]| {
        let mut command = support::tierfs();
        answer(command.arg("mount").arg(store).arg(&other).args(options))
    };
    let nowhere = place.path("nowhere");
    mount(&nowhere, &[]).failed(1, &[nowhere.to_str().unwrap()]);
    assert!(!nowhere.exists());
    let folder = place.path("folder");
    fs::create_dir(&folder).unwrap();
    let text = mount(&folder, &[]).failed(1, &[folder.to_str().unwrap()]);
    assert!(text.contains("--create") || text.contains("init"), "{text}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(other.to_str().unwrap()));
    // A mount point that is missing, or is a file.
    run(["init".as_ref(), place.store().as_os_str()]).ok();
    let file = place.write("file", b"");
    for bad in [place.path("no mount point"), file] {
        let store = place.store();
        run([OsStr::new("mount"), store.as_ref(), bad.as_ref()]).failed(1, &[bad.to_str().unwrap()]);
    }
    place.mount(&["--create"]).unmount();
}

#[test]
fn a_store_is_neither_mounted_on_itself_nor_created_on_tierfs() {
    let (place, _) = imported(&[]);
    let store = place.store();
    for mountpoint in [store.clone(), store.join("demo"), place.path("")] {
        run([OsStr::new("mount"), store.as_ref(), mountpoint.as_ref()]).failed(1, &["itself"]);
    }
    let mounted = place.mount(&[]);
    let inside = mounted.path("demo/model/store");
    run([OsStr::new("init"), inside.as_ref()]).failed(1, &["lies on the tierfs"]);
    run([OsStr::new("import"), inside.as_ref(), "a/b".as_ref(), place.path("model").as_ref()])
        .failed(1, &["lies on the tierfs"]);
    // With a source on its own mount the daemon would wait for itself.
    let own = mounted.path("demo/model/x.npy");
    run([OsStr::new("import"), place.path("second").as_ref(), "a/b".as_ref(), own.as_ref()])
        .failed(1, &["lies on the tierfs"]);
    assert!(mounted.is_mounted());
}

#[test]
fn paths_with_spaces_backslashes_and_tabs_work() {
    let place = Place::new();
    place.write("my model/a \\ file\twith all", b"content");
    place.import("my tenant/my collection", &[&place.path("my model")], &[]);
    for name in ["a mount point", "a\\b\tc\nd"] {
        let mounted = place.mount_on(name, &[]);
        let there = mounted.path("my tenant/my collection/a \\ file\twith all");
        assert_eq!(fs::read(&there).unwrap(), b"content");
        let device = fs::metadata(&there).unwrap().dev();
        let read_ahead =
            format!("/sys/class/bdi/{}:{}/read_ahead_kb", libc::major(device), libc::minor(device));
        assert_eq!(fs::read_to_string(read_ahead).unwrap(), "4096\n", "on {name:?}");
        let rows = run([OsStr::new("ls"), there.parent().unwrap().as_ref(), "--json".as_ref()]).json();
        assert_eq!(rows[0]["name"], "a \\ file\twith all");
        assert_eq!(rows[0]["tier"], "exact");
        run([OsStr::new("umount"), mounted.mountpoint.as_ref()]).ok();
        wait_until("the end of the daemon", || mounted.daemon().is_none());
    }
}

fn both_ways(mounted: &Mounted, below: &str, command: &str) {
    let from_store =
        run([OsStr::new(command), mounted.store.as_ref(), below.as_ref(), "--json".as_ref()]).json();
    let path = mounted.mountpoint.join(below);
    let mut from_mount = run([OsStr::new(command), path.as_ref(), "--json".as_ref()]).json();
    if let Some(rows) = from_mount.as_array_mut().filter(|_| command == "du") {
        // Paths are shown as the user wrote them.
        for row in rows {
            let shown = row["path"].as_str().unwrap();
            row["path"] = shown
                .replacen(mounted.mountpoint.to_str().unwrap(), mounted.store.to_str().unwrap(), 1)
                .into();
        }
    }
    assert_eq!(from_store, from_mount, "{command} {below}");
}

#[test]
fn commands_read_a_store_that_is_mounted_read_only_and_agree_with_the_mount() {
    let (place, _) = imported(&["--tier", "q5:all"]);
    let mounted = place.mount(&["--read-only"]);
    for below in ["demo", "demo/model", "demo/model/deep", "demo/model/x", "demo/model/model.safetensors"] {
        both_ways(&mounted, below, "ls");
        both_ways(&mounted, below, "du");
    }
    for below in [
        "demo/model/x",
        "demo/model/model.safetensors",
        "demo/model/config.json",
        "demo/model/deep/er/b",
        "demo/model/sub",
    ] {
        both_ways(&mounted, below, "stat");
    }
    assert!(fs::read_to_string(mounted.path(".ctl/status")).unwrap().contains("read-only"));
    let listed = run([OsStr::new("ls"), place.store().as_ref(), "demo/model/x".as_ref()]).ok();
    assert!(listed.contains("q5") && listed.contains("[9000]"), "{listed}");
    // Two read-only mounts can share a store.
    let second = place.mount_on("second", &["--read-only"]);
    let [one, other] = [&mounted, &second].map(|mounted| fs::read(mounted.path("demo/model/x")).unwrap());
    assert_same(&one, &other, "the same tensor through two mounts");
    run([OsStr::new("fsck"), place.store().as_ref()]).ok();
    place.try_import("demo/more", &[&place.path("model")], &[]).failed(
        1,
        &["read-only processes", mounted.mountpoint.to_str().unwrap(), second.mountpoint.to_str().unwrap()],
    );
}

#[test]
fn commands_on_a_mounted_store_ask_its_daemon() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    for below in ["demo/model", "demo/model/x"] {
        let of_store =
            run([OsStr::new("ls"), place.store().as_ref(), below.as_ref(), "--json".as_ref()]).json();
        let of_mount =
            run([OsStr::new("ls"), mounted.mountpoint.join(below).as_ref(), "--json".as_ref()]).json();
        assert_eq!(of_store, of_mount);
    }
    let export = |to: &str| {
        run([OsStr::new("export"), place.store().as_ref(), "demo/model".as_ref(), place.path(to).as_ref()])
    };
    export("out").ok();
    mounted.unmount();
    export("out").ok();
    shell(&place.path(""), "diff -r model out");
}

#[test]
fn a_directory_with_the_name_of_a_container_is_no_container() {
    let place = Place::new();
    place.write("folder/ab/b", b"12345");
    place.import("demo/ends", &[&place.path("folder")], &[]);
    let rows =
        run([OsStr::new("ls"), place.store().as_ref(), "demo/ends/ab".as_ref(), "--json".as_ref()]).json();
    assert_eq!((rows[0]["name"].as_str(), rows[0]["tier"].as_str()), (Some("b"), Some("exact")));
    let mounted = place.mount(&[]);
    both_ways(&mounted, "demo/ends/ab", "ls");
}

#[test]
fn a_file_with_a_name_that_is_not_utf_8_is_listed_and_read() {
    let (place, name) = (Place::new(), OsStr::from_bytes(b"odd-\xff-name"));
    place.write("folder/plain", b"text");
    fs::write(place.path("folder").join(name), b"12345").unwrap();
    place.import("demo/odd", &[&place.path("folder")], &[]);
    let rows = run([OsStr::new("ls"), place.store().as_ref(), "demo/odd".as_ref(), "--json".as_ref()]).json();
    assert_eq!(rows.as_array().unwrap().len(), 2);
    let mounted = place.mount(&[]);
    both_ways(&mounted, "demo/odd", "ls");
    assert_eq!(fs::read(mounted.path(Path::new("demo/odd").join(name))).unwrap(), b"12345");
}

#[test]
fn a_foreground_mount_notifies_systemd_and_ends_with_its_mount() {
    let (place, _) = imported(&[]);
    let mountpoint = place.path("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let socket = place.path("notify");
    let listener = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    listener.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = support::tierfs();
    command.arg("mount").arg(place.store()).arg(&mountpoint).arg("-f").env("NOTIFY_SOCKET", &socket);
    let mut daemon = command.spawn().unwrap();
    let mut message = [0; 100];
    let len = listener.recv(&mut message);
    let read = fs::read(mountpoint.join("demo/model/config.json"));
    let unmounted = run([OsStr::new("umount"), mountpoint.as_ref()]);
    let code = support::ended(&mut daemon, "the daemon");
    assert_eq!(text(&message[..len.unwrap()]).trim(), "READY=1");
    assert_eq!(read.unwrap(), b"{\"hidden\": 8}\n");
    unmounted.ok();
    assert_eq!(code, Some(0));
}
