//! Imports into a mounted store.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use support::{Mounted, Place, as_user, imported, put, python_line, refused, run, shell, usage, wait_until};

fn digests(mounted: &Mounted, collection: &str) -> String {
    let line = "find . \\( -type f -o -type d \\) -printf '%P %m %U %s %T@\\n' | sort; \
                find . -type f -exec sha256sum {} + | sort";
    String::from_utf8(shell(&mounted.path(collection), line).stdout).unwrap()
}

fn jobs(mounted: &Mounted) -> String {
    fs::read_to_string(mounted.path(".ctl/jobs")).unwrap()
}

fn request(paths: &[&Path], more: &str) -> String {
    format!(r#"{{"collection":"t/c","paths":{}{more}}}"#, serde_json::json!(paths))
}

/// A file that takes long to read and no space, which leaves time to end its import.
fn endless(place: &Place) -> std::path::PathBuf {
    let path = place.path("endless.bin");
    File::create(&path).unwrap().set_len(16 << 30).unwrap();
    path
}

#[test]
fn an_import_into_a_mounted_store_equals_an_offline_import_while_readers_continue() {
    let (place, source) = imported(&[]);
    for (round, options) in
        [&["--json"][..], &["--json", "--tier", "q5:all", "--block-bytes", "8192"]].iter().enumerate()
    {
        let offline = format!("demo/offline{round}");
        let before = place.try_import(&offline, &[&source], options).json();
        let mounted = place.mount(&[]);
        let (online, wanted) =
            (format!("demo/online{round}"), fs::read(source.join("model.safetensors")).unwrap());
        let (ended, path) = (AtomicBool::new(false), mounted.path("demo/model/model.safetensors"));
        let mut after = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut rounds = 0;
                while !ended.load(Ordering::Relaxed) || rounds == 0 {
                    assert!(fs::read(&path).unwrap() == wanted);
                    rounds += 1;
                }
            });
            let after = place.try_import(&online, &[&source], options).json();
            ended.store(true, Ordering::Relaxed);
            reader.join().unwrap();
            after
        });
        assert_eq!(after["collection"], online.as_str());
        after["collection"] = offline.as_str().into();
        assert_eq!(after, before);
        let strip =
            |text: String| text.lines().filter(|line| !line.contains(" d")).collect::<Vec<_>>().join("\n");
        assert_eq!(files_of(strip(digests(&mounted, &online))), files_of(strip(digests(&mounted, &offline))));
        assert_eq!(usage(&mounted, &online), usage(&mounted, &offline));
        mounted.unmount();
        run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    }
}

/// Without directories, which have the time of their creation.
fn files_of(text: String) -> Vec<String> {
    let is_directory = |line: &&str| line.split(' ').nth(1).is_some_and(|mode| mode == "755");
    text.lines().filter(|line| !is_directory(line)).map(str::to_owned).collect()
}

#[test]
fn an_import_replaces_files_at_once_and_reports_each_file() {
    let (place, source) = imported(&[]);
    let mounted = place.mount(&[]);
    let (container, tensor) =
        (mounted.path("demo/model/model.safetensors"), mounted.path("demo/model/new/w"));
    assert!(fs::metadata(&container).unwrap().len() > 0 && fs::metadata(&tensor).is_err());
    let other = place.path("other/model.safetensors");
    fs::create_dir(place.path("other")).unwrap();
    let line = "import sys, numpy, safetensors.numpy as s; \
                s.save_file({'new/w': numpy.arange(5000, dtype='f4')}, sys.argv[1])";
    python_line(line, [&other]);
    fs::write(place.path("other/bad.npy"), "no array").unwrap();
    let answer = place.try_import("demo/model", &[&place.path("other")], &[]);
    assert!(
        answer.out.contains("model.safetensors  ") && answer.out.contains("1 file with 1 tensor"),
        "{answer:?}"
    );
    answer.failed(1, &["bad.npy: "]);
    assert_eq!(fs::metadata(&container).unwrap().len(), fs::metadata(&other).unwrap().len());
    assert_eq!(fs::metadata(&tensor).unwrap().len(), 20_000);
    assert!(fs::read(&container).unwrap() == fs::read(&other).unwrap());
    // A program that has the old file open keeps reading it; a new open gets the new file.
    let wanted = [fs::read(&other).unwrap(), fs::read(source.join("model.safetensors")).unwrap()];
    let open = File::open(&container).unwrap();
    place.import("demo/model", &[&source.join("model.safetensors")], &[]);
    assert!(fs::read(&container).unwrap() == wanted[1]);
    let mut bytes = vec![0; wanted[0].len()];
    std::os::unix::fs::FileExt::read_exact_at(&open, &mut bytes, 0).unwrap();
    assert!(bytes == wanted[0] && fs::metadata(&tensor).is_err());
    // The store itself allows only read-only mounts meanwhile, and no import.
    drop(open);
    mounted.unmount();
    let mounted = place.mount(&["--read-only"]);
    place.try_import("demo/model", &[&other], &[]).failed(1, &["in use", "mounted on"]);
    refused(put(&mounted.path(".ctl/import"), &request(&[&other], "")), libc::EROFS);
}

#[test]
fn invalid_requests_are_refused_and_change_nothing() {
    let place = Place::new();
    let mounted = place.mount(&["--create", "--allow-other"]);
    let (path, source) = (mounted.path(".ctl/import"), place.write("f", [1; 1000]));
    fs::create_dir_all(mounted.path("x/y")).unwrap();
    fs::write(mounted.path("x/y/f"), "here").unwrap();
    std::os::unix::fs::symlink(mounted.path("x/y/f"), place.path("link")).unwrap();
    let inside = place.store().join("tierfs.toml");
    let requests = [
        " ".to_owned(),
        "{".to_owned(),
        "[1]".to_owned(),
        request(&[], ""),
        request(&[Path::new("f")], ""),
        request(&[&source], r#","wrong":1"#),
        request(&[&source], r#","tier":"q4""#),
        request(&[&source], r#","tier":"q5","in_place":true"#),
        request(&[&source], r#","manifest":"sums""#),
        request(&[&source, &mounted.path("x/y/f")], ""),
        request(&[&mounted.mountpoint], ""),
        request(&[&place.path("link")], ""),
        request(&[&inside], r#","in_place":true"#),
        request(&[&source], r#","shard_of":"../x","manifest":"/m""#),
        format!("{} more", request(&[&source], "")),
    ];
    for wrong in requests {
        refused(put(&path, &wrong), libc::EINVAL);
    }
    refused(put(&path, &request(&[&place.path("none")], "")), libc::ENOENT);
    refused(fs::read(&path), libc::EPERM);
    let line = format!("echo '{}' > .ctl/import", request(&[&source], ""));
    as_user(65_534, 65_534, &mounted.mountpoint, &line).failed(2, &["Permission denied"]);
    assert_eq!((jobs(&mounted).as_str(), mounted.path("t").exists()), ("", false));
    // The command refuses sources on the mount too, and the mount as a store.
    place.try_import("t/c", &[&place.path("link")], &[]).failed(1, &["lies on the tierfs"]);
    fs::create_dir(mounted.path("t")).unwrap();
    put(&mounted.path("t/.ctl/quota"), "bytes=999").unwrap();
    refused(put(&path, &request(&[&source], "")), libc::EDQUOT);
    assert!(!mounted.path("t/c").exists());
    put(&mounted.path("t/.ctl/quota"), "bytes=1000").unwrap();
    put(&path, &format!("{}\n", request(&[&source], ""))).unwrap();
    wait_until("the import", || jobs(&mounted).contains("import t/c done in"));
    assert!(fs::read(mounted.path("t/c/f")).unwrap() == [1; 1000]);
}

#[test]
fn an_import_that_is_cancelled_or_killed_leaves_whole_files_only() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    let (small, endless) = (place.write("a", [1; 100_000]), endless(&place));
    let runs = |mounted: &Mounted| {
        wait_until("bytes of the import", || {
            let text = jobs(mounted);
            text.lines().last().is_some_and(|line| line.contains("running") && !line.contains(" 0 of "))
                && mounted.path("t/c/a").exists()
        });
    };
    let start =
        |mounted: &Mounted| put(&mounted.path(".ctl/import"), &request(&[&small, &endless], "")).unwrap();
    start(&mounted);
    runs(&mounted);
    put(&mounted.path(".ctl/jobs"), "cancel 1").unwrap();
    wait_until("the end of the import", || jobs(&mounted).contains("1 import t/c cancelled"));
    let whole = |mounted: &Mounted| {
        let names = fs::read_dir(mounted.path("t/c")).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["a"]);
        assert!(fs::read(mounted.path("t/c/a")).unwrap() == [1; 100_000]);
        assert_eq!(usage(mounted, "t"), [1, 100_000, 100_000]);
        assert_eq!(fs::read_dir(place.store().join("t/c/data")).unwrap().count(), 1);
    };
    whole(&mounted);
    fs::remove_file(mounted.path("t/c/a")).unwrap();
    // The data file of a removed file stays until a sync: a damaged end of the log may restore the file.
    wait_until("the removal of the data file", || {
        put(&mounted.path(".ctl/sync"), "now").unwrap();
        fs::read_dir(place.store().join("t/c/data")).unwrap().count() == 0
    });
    start(&mounted);
    runs(&mounted);
    mounted.kill();
    drop(mounted);
    let mounted = place.mount(&[]);
    whole(&mounted);
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}
