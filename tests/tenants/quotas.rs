//! Quotas: the counted bytes and names, refusals, and that a refused change has no effect.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, chown, symlink};
use std::sync::Mutex;

use support::{Mounted, Place, as_user, imported, limits, put, python_line, read_at, refused, run, usage};

const OWNER: u32 = 65_534;

#[test]
fn bytes_over_a_quota_are_refused_and_existing_files_stay() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/a")).unwrap();
    fs::create_dir_all(mounted.path("t/b")).unwrap();
    put(&mounted.path("t/.ctl/quota"), "bytes=100K\n").unwrap();
    put(&mounted.path("t/b/.ctl/quota"), "bytes=10000").unwrap();
    assert_eq!(limits(&mounted, "t"), "bytes=102400 stored=none files=none");
    let file = File::create(mounted.path("t/a/f")).unwrap();
    file.write_all_at(&[1; 100_000], 0).unwrap();
    // Not closed yet, and counted.
    refused(file.set_len(102_401), libc::EDQUOT);
    refused(file.write_all_at(&[2; 1], 102_400), libc::EDQUOT);
    refused(fs::write(mounted.path("t/b/g"), [3; 2401]), libc::EDQUOT);
    assert_eq!(fs::metadata(mounted.path("t/b/g")).unwrap().len(), 0);
    assert_eq!(file.metadata().unwrap().len(), 100_000);
    file.write_all_at(&[2; 2400], 100_000).unwrap();
    // A write that adds nothing succeeds.
    file.write_all_at(&[4; 100_000], 0).unwrap();
    drop(file);
    assert_eq!(usage(&mounted, "t")[1], 102_400);
    refused(fs::write(mounted.path("t/b/g"), [3; 1]), libc::EDQUOT);
    File::options().write(true).open(mounted.path("t/a/f")).unwrap().set_len(50_000).unwrap();
    refused(fs::write(mounted.path("t/b/g"), [3; 10_001]), libc::EDQUOT);
    fs::write(mounted.path("t/b/g"), [3; 10_000]).unwrap();
    refused(File::options().append(true).open(mounted.path("t/b/g")).unwrap().write_all(b"x"), libc::EDQUOT);
    // A file over a file: truncated bytes are free at once.
    fs::write(mounted.path("t/b/g"), [5; 10_000]).unwrap();
    let before = (usage(&mounted, "t"), usage(&mounted, "t/a"), usage(&mounted, "t/b"));
    assert_eq!(before, ([2, 60_000, 60_000], [1, 50_000, 50_000], [1, 10_000, 10_000]));
    mounted.kill();
    drop(mounted);
    let mounted = place.mount(&[]);
    assert_eq!((usage(&mounted, "t"), usage(&mounted, "t/a"), usage(&mounted, "t/b")), before);
    assert_eq!(limits(&mounted, "t/b"), "bytes=10000 stored=none files=none");
    refused(fs::write(mounted.path("t/a/h"), [6; 42_401]), libc::EDQUOT);
    fs::remove_file(mounted.path("t/a/h")).unwrap();
    fs::remove_file(mounted.path("t/a/f")).unwrap();
    assert_eq!(usage(&mounted, "t"), [1, 10_000, 10_000]);
    fs::write(mounted.path("t/a/h"), [6; 92_400]).unwrap();
    let mut bytes = [0; 10_001];
    assert_eq!(read_at(&File::open(mounted.path("t/b/g")).unwrap(), &mut bytes, 0), 10_000);
    assert!(bytes[..10_000] == [5; 10_000]);
    // A limit below the present use removes nothing.
    put(&mounted.path("t/.ctl/quota"), "bytes=1").unwrap();
    fs::remove_file(mounted.path("t/b/g")).unwrap();
    refused(fs::write(mounted.path("t/b/g"), "x"), libc::EDQUOT);
    put(&mounted.path("t/.ctl/quota"), "bytes=none").unwrap();
    fs::write(mounted.path("t/b/g"), "x").unwrap();
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn a_quota_counts_files_directories_links_tensors_and_further_names() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    put(&mounted.path("t/c/.ctl/quota"), "files=12").unwrap();
    let source = place.path("m.safetensors");
    let line = "import sys, numpy, safetensors.numpy as s; \
                s.save_file({str(i): numpy.ones(3, 'f4') for i in range(9)}, sys.argv[1])";
    python_line(line, [&source]);
    fs::copy(&source, mounted.path("t/c/m.safetensors")).unwrap();
    assert_eq!(fs::read_dir(mounted.path("t/c/.tensors")).unwrap().count(), 9);
    fs::create_dir(mounted.path("t/c/d")).unwrap();
    symlink("x", mounted.path("t/c/l")).unwrap();
    assert_eq!(usage(&mounted, "t/c")[0], 12);
    refused(File::create(mounted.path("t/c/f")), libc::EDQUOT);
    refused(fs::create_dir(mounted.path("t/c/e")), libc::EDQUOT);
    refused(symlink("x", mounted.path("t/c/k")), libc::EDQUOT);
    refused(fs::hard_link(mounted.path("t/c/m.safetensors"), mounted.path("t/c/k")), libc::EDQUOT);
    assert_eq!(fs::read_dir(mounted.path("t/c")).unwrap().count(), 3);
    fs::rename(mounted.path("t/c/l"), mounted.path("t/c/d/l")).unwrap();
    fs::remove_file(mounted.path("t/c/d/l")).unwrap();
    File::create(mounted.path("t/c/f")).unwrap();
    fs::remove_file(mounted.path("t/c/m.safetensors")).unwrap();
    assert_eq!(usage(&mounted, "t/c"), [2, 0, 0]);
    for name in ["g", "h"] {
        fs::hard_link(mounted.path("t/c/f"), mounted.path("t/c/d").join(name)).unwrap();
    }
    assert_eq!(usage(&mounted, "t/c")[0], 4);
    mounted.kill();
    drop(mounted);
    let mounted = place.mount(&[]);
    assert_eq!(usage(&mounted, "t/c")[0], 4);
    fs::rename(mounted.path("t/c/d/g"), mounted.path("t/c/g")).unwrap();
    fs::remove_file(mounted.path("t/c/f")).unwrap();
    assert_eq!(usage(&mounted, "t/c")[0], 3);
    fs::remove_file(mounted.path("t/c/d/h")).unwrap();
    fs::remove_file(mounted.path("t/c/g")).unwrap();
    assert_eq!(usage(&mounted, "t/c")[0], 1);
}

fn why(path: &std::path::Path) -> String {
    let mut value = vec![0; 1 << 16];
    let len = rustix::fs::getxattr(path, "user.tierfs.why", &mut value[..]).unwrap();
    String::from_utf8(value[..len].to_vec()).unwrap()
}

#[test]
fn a_container_whose_tensors_exceed_the_quota_stays_a_plain_file_and_says_so() {
    let place = Place::new();
    let (small, large) = (place.path("small.safetensors"), place.path("large.safetensors"));
    let line = "import sys, numpy, safetensors.numpy as s; \
                s.save_file({f'{i}/w/x': numpy.ones(3, 'f4') for i in range(int(sys.argv[2]))}, sys.argv[1])";
    python_line(line, [small.as_os_str(), "2".as_ref()]);
    python_line(line, [large.as_os_str(), "9".as_ref()]);
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    // The small one counts as a file and two tensors.
    put(&mounted.path("t/.ctl/quota"), "files=3").unwrap();
    let tensors = |mounted: &Mounted| fs::read_dir(mounted.path("t/c/.tensors")).unwrap().count();
    let (stays, at) = (fs::read(&large).unwrap(), mounted.path("t/c/m.safetensors"));
    fs::copy(&large, &at).unwrap();
    assert_eq!((usage(&mounted, "t")[0], tensors(&mounted)), (1, 0));
    assert!(
        fs::read(&at).unwrap() == stays && why(&at).contains("the quota of t is 3 files"),
        "{}",
        why(&at)
    );
    fs::copy(&small, &at).unwrap();
    assert_eq!((usage(&mounted, "t")[0], tensors(&mounted)), (3, 2));
    // Overwritten by the large one, and replaced by a rename: its bytes are there, its tensors are not.
    fs::write(&at, &stays).unwrap();
    assert_eq!((usage(&mounted, "t")[0], tensors(&mounted)), (1, 0));
    fs::copy(&large, mounted.path("t/c/m.tmp")).unwrap();
    fs::rename(mounted.path("t/c/m.tmp"), &at).unwrap();
    assert_eq!((usage(&mounted, "t")[0], tensors(&mounted)), (1, 0));
    assert!(fs::read(&at).unwrap() == stays);
    place.try_import("t/c", &[&large], &[]).failed(1, &["the quota of t is 3 files"]);
    place.try_import("t/c", &[&small], &[]).failed(1, &["the quota of t is 3 files"]);
    assert_eq!((usage(&mounted, "t")[0], tensors(&mounted)), (1, 0));
    put(&mounted.path("t/.ctl/quota"), "files=4").unwrap();
    place.import("t/c", &[&small], &[]);
    assert_eq!((usage(&mounted, "t")[0], tensors(&mounted)), (4, 2));
    // Replacing a file frees its space for the new one.
    place.import("t/c", &[&small], &[]);
    fs::remove_file(&at).unwrap();
    // In another directory the tensors need no further names.
    fs::create_dir(mounted.path("t/c/d")).unwrap();
    let moved = mounted.path("t/c/d/small.safetensors");
    fs::rename(mounted.path("t/c/small.safetensors"), &moved).unwrap();
    assert_eq!(usage(&mounted, "t")[0], 4);
    assert!(fs::read(&moved).unwrap() == fs::read(&small).unwrap());
    put(&mounted.path("t/.ctl/quota"), "files=none").unwrap();
    fs::copy(&large, &at).unwrap();
    assert_eq!(fs::read(mounted.path("t/c/8/w/x")).unwrap().len(), 12);
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn copies_of_pinned_files_are_counted_and_a_pin_over_the_quota_is_refused() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    let pin = |mounted: &Mounted, name: &str, value: &str| {
        let path = mounted.path("t/c").join(name);
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(path, "user.tierfs.pin", value.as_bytes(), flags).map_err(std::io::Error::from)
    };
    fs::write(mounted.path("t/c/f"), [1; 50_000]).unwrap();
    fs::write(mounted.path("t/c/g"), [2; 30_000]).unwrap();
    put(&mounted.path("t/.ctl/quota"), "stored=129999").unwrap();
    refused(pin(&mounted, "f", "1"), libc::EDQUOT);
    assert_eq!(usage(&mounted, "t"), [2, 80_000, 80_000]);
    let copies = || fs::read_dir(place.store().join("t/c/pinned")).map_or(0, |names| names.count());
    assert_eq!(copies(), 0);
    pin(&mounted, "g", "1").unwrap();
    assert_eq!(usage(&mounted, "t"), [2, 80_000, 110_000]);
    refused(fs::write(mounted.path("t/c/h"), [3; 20_000]), libc::EDQUOT);
    fs::remove_file(mounted.path("t/c/h")).unwrap();
    mounted.kill();
    drop(mounted);
    let mounted = place.mount(&[]);
    assert_eq!((usage(&mounted, "t"), copies()), ([2, 80_000, 110_000], 1));
    pin(&mounted, "g", "0").unwrap();
    assert_eq!(usage(&mounted, "t"), [2, 80_000, 80_000]);
    put(&mounted.path("t/.ctl/quota"), "stored=130000").unwrap();
    pin(&mounted, "f", "1").unwrap();
    fs::remove_file(mounted.path("t/c/f")).unwrap();
    assert_eq!(usage(&mounted, "t"), [1, 30_000, 30_000]);
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn many_writers_to_one_file_and_to_others_reach_a_limit_of_stored_bytes_and_do_not_pass_it() {
    const LIMIT: u64 = 4 << 20;
    const PIECE: usize = 12_000;
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    fs::create_dir_all(mounted.path("t/d")).unwrap();
    put(&mounted.path("t/.ctl/quota"), &format!("stored={LIMIT}")).unwrap();
    let ends = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for writer in 0..8_u8 {
            let names = [format!("t/c/own-{writer}"), "t/c/one".to_owned(), format!("t/d/own-{writer}")];
            let path = mounted.path(&names[usize::from(writer % 3)]);
            let ends = &ends;
            scope.spawn(move || {
                let mut file = fs::File::options().append(true).create(true).open(path).unwrap();
                let piece = [writer + 1; PIECE];
                let end = loop {
                    match file.write(&piece) {
                        Ok(PIECE) => {}
                        // A write past a limit may be short.
                        end => break end.map_or_else(|error| error.raw_os_error(), |_| None),
                    }
                };
                ends.lock().unwrap().push(end);
            });
        }
    });
    assert!(ends.into_inner().unwrap().iter().all(|end| end.is_none_or(|end| end == libc::EDQUOT)));
    let [_, logical, stored] = usage(&mounted, "t");
    assert!(stored <= LIMIT && stored == logical, "{stored}");
    // Bytes count twice while they are recorded.
    assert!(stored > LIMIT / 4, "{stored}");
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn the_log_stays_short_under_many_changes_between_two_syncs() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    let source = place.path("m.safetensors");
    let line = "import sys, numpy, safetensors.numpy as s; \
                s.save_file({str(i): numpy.ones(1, 'u1') for i in range(3000)}, sys.argv[1])";
    python_line(line, [&source]);
    let at = mounted.path("t/c/m.safetensors");
    fs::copy(&source, &at).unwrap();
    let log = place.store().join("t/c/meta.log");
    let mut longest = 0;
    for round in 0..200 {
        // A record for the container, with a number for each tensor, and a record for each tensor.
        fs::set_permissions(&at, std::os::unix::fs::PermissionsExt::from_mode(0o600 + round % 8)).unwrap();
        longest = longest.max(fs::metadata(&log).unwrap().len());
    }
    assert!(longest < 40 << 20, "{longest} bytes");
    assert_eq!(fs::read(mounted.path("t/c/2999")).unwrap(), [1]);
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn moves_and_imports_over_the_quota_are_refused_before_anything_changes() {
    let (place, _) = imported(&["--in-place"]);
    let mounted = place.mount(&[]);
    let tier = |mounted: &Mounted, value: &str| {
        let path = mounted.path("demo/model/model.safetensors");
        let value = value.as_bytes();
        let set = rustix::fs::setxattr(path, "user.tierfs.tier", value, rustix::fs::XattrFlags::empty());
        set.map_err(std::io::Error::from)
    };
    tier(&mounted, "q8:all").unwrap();
    let [files, logical, stored] = usage(&mounted, "demo/model");
    assert!(stored > 0 && stored < logical);
    assert_eq!(usage(&mounted, "demo"), [files, logical, stored]);
    put(&mounted.path("demo/model/.ctl/quota"), &format!("stored={stored}")).unwrap();
    let digests = |mounted: &Mounted| {
        support::shell(&mounted.mountpoint, "find demo -type f -exec sha256sum {} + | sort").stdout
    };
    let before = digests(&mounted);
    refused(tier(&mounted, "exact:all"), libc::EDQUOT);
    assert_eq!((digests(&mounted), usage(&mounted, "demo/model")), (before, [files, logical, stored]));
    tier(&mounted, "q3:all").unwrap();
    let after = usage(&mounted, "demo/model");
    assert!(after[2] < stored && after[1] == logical, "{after:?}");
    mounted.unmount();
    let source = place.write("more.bin", vec![7; 1 << 20]);
    let answer = place.try_import("demo/model", &[&source], &[]);
    answer.failed(1, &["the quota of demo/model is"]);
    let mounted = place.mount(&[]);
    assert_eq!(usage(&mounted, "demo/model"), after);
    assert!(!mounted.path("demo/model/more.bin").exists());
}

#[test]
fn limits_are_raised_only_from_above_and_invalid_texts_change_nothing() {
    let place = Place::new();
    let mounted = place.mount(&["--create", "--allow-other"]);
    let root = mounted.mountpoint.clone();
    fs::create_dir(mounted.path("t")).unwrap();
    chown(mounted.path("t"), Some(OWNER), None).unwrap();
    as_user(OWNER, OWNER, &root, "mkdir t/c").ok();
    put(&mounted.path("t/.ctl/quota"), "bytes=1M stored=1M files=10").unwrap();
    for wrong in ["", "bytes", "bytes=1 bytes=2", "bytes=-1", "size=3", "bytes=1 x", "files=1.5"] {
        refused(put(&mounted.path("t/.ctl/quota"), &format!("{wrong}\n")), libc::EINVAL);
        refused(put(&mounted.path("t/c/.ctl/quota"), &format!("{wrong}\n")), libc::EINVAL);
    }
    for (line, is_allowed) in [
        ("cat t/.ctl/quota", true),
        ("echo bytes=2M > t/.ctl/quota", false),
        ("echo files=0 > t/.ctl/quota", false),
        ("echo bytes=512K > t/.ctl/quota", true),
        ("echo bytes=1M > t/.ctl/quota", false),
        ("echo files=5 > t/c/.ctl/quota", true),
        ("echo files=none > t/c/.ctl/quota", true),
    ] {
        assert_eq!(as_user(OWNER, OWNER, &root, line).code == Some(0), is_allowed, "{line}");
    }
    assert_eq!(limits(&mounted, "t"), "bytes=524288 stored=1048576 files=10");
    // The owner of a collection in another user's tenant can only lower its limits.
    put(&mounted.path("t/c/.ctl/quota"), "files=7").unwrap();
    chown(mounted.path("t/c"), Some(OWNER - 1), None).unwrap();
    let other = |line: &str| as_user(OWNER - 1, OWNER - 1, &root, line).code;
    assert_eq!(other("echo files=6 > t/c/.ctl/quota"), Some(0));
    assert_ne!(other("echo files=7 > t/c/.ctl/quota"), Some(0));
    assert_eq!(limits(&mounted, "t/c"), "bytes=none stored=none files=6");
    put(&mounted.path("t/.ctl/quota"), "bytes=none stored=0 files=none").unwrap();
    assert_eq!(limits(&mounted, "t"), "bytes=none stored=none files=none");
}
