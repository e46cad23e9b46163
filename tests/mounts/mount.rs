//! What programs see of a mount: names, sizes, attributes, reads, and how it begins and ends.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{
    Aligned, Mounted, PATIENCE, Place, Random, answer, assert_same, container_of, files_below, npy_file,
    open_direct, python_line, read_at, run, shell, wait_until,
};

const TENSORS: [(&str, usize); 4] = [("a", 1000), ("deep/er/b", 5001), ("norm", 8), ("nothing", 0)];

/// A folder as a model has one, and the store with it.
fn imported(options: &[&str]) -> (Place, PathBuf) {
    let place = Place::new();
    let mut random = Random(11);
    place.write("model/model.safetensors", container_of(&mut random, &TENSORS));
    place.write("model/x.npy", npy_file(&random.floats(9000)));
    place.write("model/config.json", b"{\"hidden\": 8}\n");
    place.write("model/sub/vocab.txt", random.bytes(100_003));
    place.write("model/empty", b"");
    fs::set_permissions(place.path("model/config.json"), fs::Permissions::from_mode(0o640)).unwrap();
    let source = place.path("model");
    place.import("demo/model", &[&source], options);
    (place, source)
}

fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn files_and_tensors_stand_beside_each_other_with_the_source_s_sizes_modes_and_times() {
    let (place, source) = imported(&[]);
    let mounted = place.mount(&[]);
    let folder = mounted.path("demo/model");
    let mut wanted =
        ["a", "config.json", "deep", "empty", "model.safetensors", "norm", "nothing", "sub", "x", "x.npy"];
    wanted.sort_unstable();
    assert_eq!(names(&folder), wanted);
    for name in files_below(&source) {
        let (there, here) =
            (fs::metadata(folder.join(&name)).unwrap(), fs::metadata(source.join(&name)).unwrap());
        assert_eq!(there.len(), here.len(), "{name:?}");
        assert_eq!(there.mode(), here.mode(), "{name:?}");
        assert_eq!((there.mtime(), there.mtime_nsec()), (here.mtime(), here.mtime_nsec()), "{name:?}");
        assert_eq!((there.uid(), there.gid(), there.nlink()), (here.uid(), here.gid(), 1), "{name:?}");
        assert_eq!(there.blksize(), 4096);
        assert_eq!(there.blocks() == 0, there.len() == 0, "{name:?}: tar would archive zeros");
        assert_same(
            &fs::read(folder.join(&name)).unwrap(),
            &fs::read(source.join(&name)).unwrap(),
            "content",
        );
    }
    assert_eq!(fs::metadata(folder.join("deep/er/b")).unwrap().len(), 5001 * 4);
    mounted.unmount();
}

#[test]
fn find_du_df_and_ls_agree_with_what_is_stored() {
    let (place, _) = imported(&["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    let found = shell(&mounted.mountpoint, "find . -type f | wc -l; find . -name '*.npy'; ls -lR >/dev/null");
    assert_eq!(text(&found.stdout), "10\n./demo/model/x.npy\n");
    let stats = mounted.stats();
    let stored: u64 =
        stats["tiers"].as_object().unwrap().values().map(|tier| tier["stored_bytes"].as_u64().unwrap()).sum();
    let du = text(&shell(&mounted.mountpoint, "du -s --block-size=512 demo | cut -f1").stdout);
    let du: u64 = du.trim().parse().unwrap();
    // Each of the 10 files is rounded up to 512.
    assert!((stored / 512..=stored / 512 + 10).contains(&du), "du {du}, stored {stored}");
    let of = |path: &Path| {
        let out = shell(path, "df --output=size,fstype . | tail -n1; stat -f -c %c .").stdout;
        text(&out).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let (ours, below) = (of(&mounted.mountpoint), of(&place.path("")));
    assert_eq!(ours[0], below[0], "df's size is that of the disk of the store");
    assert_eq!(ours[1], "fuse.tierfs");
}

#[test]
fn listings_leave_out_the_controls_but_they_open_by_name() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    for folder in ["", "demo", "demo/model"] {
        assert!(names(&mounted.path(folder)).iter().all(|name| !name.starts_with('.')), "{folder:?}");
    }
    let status = fs::read_to_string(mounted.path(".ctl/status")).unwrap();
    assert!(status.contains(mounted.mountpoint.to_str().unwrap()), "{status}");
    let status = fs::read_to_string(mounted.path("demo/model/.ctl/status")).unwrap();
    assert!(status.contains("demo/model"), "{status}");
    assert_eq!(names(&mounted.path(".ctl")), ["stats.json", "status"]);
    assert_eq!(fs::metadata(mounted.path(".ctl/status")).unwrap().permissions().mode() & 0o7777, 0o444);
    let before = mounted.stats();
    drop(fs::read(mounted.path("demo/model/x")).unwrap());
    let after = mounted.stats();
    let count = |stats: &serde_json::Value, name: &str| stats[name].as_u64().unwrap();
    assert!(count(&after, "read_bytes") >= count(&before, "read_bytes") + 36_000);
    assert!(count(&after, "opens") > count(&before, "opens"));
    assert_eq!(count(&after, "errors"), 0);
}

#[test]
fn a_listing_can_be_of_tensors_or_containers_alone_and_takes_each_byte_once() {
    let (place, source) = imported(&[]);
    for (option, wanted) in [
        (
            ["--list", "containers"],
            &["config.json", "empty", "model.safetensors", "sub/vocab.txt", "x.npy"][..],
        ),
        (
            ["-o", "list=tensors"],
            &["a", "config.json", "deep/er/b", "empty", "norm", "nothing", "sub/vocab.txt", "x"],
        ),
    ] {
        let mounted = place.mount(&option);
        let folder = mounted.path("demo/model");
        let found: Vec<String> =
            files_below(&folder).iter().map(|path| path.to_str().unwrap().to_owned()).collect();
        assert_eq!(found, wanted);
        // What is not listed opens all the same.
        assert_eq!(fs::metadata(folder.join("a")).unwrap().len(), 4000);
        let container = fs::read(folder.join("model.safetensors")).unwrap();
        assert_same(&container, &fs::read(source.join("model.safetensors")).unwrap(), "container");
        mounted.unmount();
    }
}

fn attribute(path: &Path, name: &str) -> Result<String, i32> {
    let mut value = vec![0; 4096];
    let len = rustix::fs::getxattr(path, name, &mut value[..]).map_err(|error| error.raw_os_error())?;
    value.truncate(len);
    Ok(String::from_utf8(value).unwrap())
}

fn own(path: &Path, name: &str) -> Result<String, i32> {
    attribute(path, &format!("user.tierfs.{name}"))
}

#[test]
fn every_attribute_of_a_tensor_says_what_is_stored() {
    let (place, _) = imported(&["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    let path = mounted.path("demo/model/a");
    for (name, wanted) in [
        ("dtype", "f32"),
        ("shape", "1000"),
        ("tier", "q8"),
        ("lossy", "allow"),
        ("pin", "0"),
        ("reconstruct", "none"),
        ("policy", "manual"),
        ("encoder", "best"),
        ("writes", "exact"),
        ("shards", "1"),
        ("blocks", "1"),
        ("bits", "8.512"),
        ("bytes_stored", "1064"),
        ("chain", "0"),
    ] {
        assert_eq!(own(&path, name).as_deref(), Ok(wanted), "{name}");
    }
    let id = own(&path, "id").unwrap();
    assert!(id.len() == 32 && id.bytes().all(|digit| digit.is_ascii_hexdigit()), "{id}");
    assert!(own(&path, "checksum").unwrap().starts_with("crc32c:"));
    assert!(own(&path, "error").unwrap().starts_with("max="));
    // What is no longer exact has no digest of what came in.
    for name in ["sha256", "blake3", "parent", "why"] {
        assert_eq!(own(&path, name), Err(libc::ENODATA), "{name}");
    }
    let container = mounted.path("demo/model/model.safetensors");
    assert_eq!(own(&container, "tier").as_deref(), Ok("q8"));
    assert_eq!(own(&container, "dtype"), Err(libc::ENODATA));
    assert_eq!(own(&mounted.path("demo/model/config.json"), "tier").as_deref(), Ok("exact"));
    let listed = text(&shell(&mounted.mountpoint, "getfattr -d demo/model/a").stdout);
    assert_eq!(listed, "# file: demo/model/a\nuser.tierfs.dtype=\"f32\"\nuser.tierfs.shape=\"1000\"\n\n");
}

#[test]
fn digests_are_those_of_the_bytes_that_came_in() {
    let (place, source) = imported(&[]);
    let mounted = place.mount(&[]);
    for name in files_below(&mounted.path("demo/model")) {
        let path = mounted.path("demo/model").join(&name);
        let sha256 = text(&Command::new("sha256sum").arg(&path).output().unwrap().stdout);
        assert_eq!(own(&path, "sha256").as_deref(), Ok(&sha256[..64]), "{name:?}");
        // Exact payloads are the bytes themselves.
        let checksum = format!("crc32c:{:08x}", crc32c::crc32c(&fs::read(&path).unwrap()));
        assert_eq!(own(&path, "checksum"), Ok(checksum), "{name:?}");
        let line = "import sys, blake3; print(blake3.blake3(open(sys.argv[1], 'rb').read()).hexdigest())";
        let known = if source.join(&name).exists() { source.join(&name) } else { path.clone() };
        assert_eq!(own(&path, "blake3").unwrap(), python_line(line, [&known]).trim(), "{name:?}");
    }
}

#[test]
fn unknown_attributes_have_no_value_and_foreign_ones_are_not_supported() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    for path in ["demo/model/a", "demo/model"] {
        let path = mounted.path(path);
        assert_eq!(own(&path, "colour"), Err(libc::ENODATA));
        for foreign in ["user.mime_type", "security.selinux", "trusted.x"] {
            assert_eq!(attribute(&path, foreign), Err(libc::EOPNOTSUPP), "{foreign}");
        }
    }
    for path in ["", "demo", ".ctl/status"] {
        assert_eq!(own(&mounted.path(path), "tier"), Err(libc::ENODATA), "{path:?}");
    }
    let mut short = [0; 2];
    let error = rustix::fs::getxattr(mounted.path("demo/model/a"), "user.tierfs.dtype", &mut short[..]);
    assert_eq!(error.unwrap_err().raw_os_error(), libc::ERANGE);
}

#[test]
fn reads_end_where_the_file_ends() {
    let (place, source) = imported(&[]);
    let mounted = place.mount(&[]);
    let path = mounted.path("demo/model/sub/vocab.txt");
    let wanted = fs::read(source.join("sub/vocab.txt")).unwrap();
    let file = fs::File::open(&path).unwrap();
    let mut out = vec![1; 300_000];
    assert_eq!(read_at(&file, &mut out, 0), wanted.len());
    for past in [wanted.len() as u64, wanted.len() as u64 + 1, 1 << 40, i64::MAX as u64 - (1 << 20)] {
        assert_eq!(read_at(&file, &mut out, past), 0, "at {past}");
    }
    let direct = open_direct(&path);
    let mut memory = Aligned::new(1 << 18);
    let got = read_at(&direct, memory.pages(1 << 18), 4096);
    assert_same(&memory.pages(1 << 18)[..got], &wanted[4096..], "O_DIRECT over the end");
    assert_eq!(read_at(&direct, memory.pages(4096), 1 << 30), 0);
    // Everything is data.
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(5)).unwrap(), 5);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(5)).unwrap(), wanted.len() as u64);
}

#[test]
fn copies_by_cp_tar_rsync_like_tools_equal_the_source() {
    let (place, source) = imported(&[]);
    let mounted = place.mount(&["--list", "containers"]);
    let script = format!(
        "cp -a {mount}/demo/model copied && diff -r {source} copied
         cp --reflink=auto {mount}/demo/model/x.npy x.npy && cmp x.npy {source}/x.npy
         mkdir tarred && tar -C {mount}/demo -cf - model | tar -C tarred -xf - && diff -r {source} tarred/model
         dd if={mount}/demo/model/sub/vocab.txt of=direct iflag=direct bs=1M status=none && cmp direct {source}/sub/vocab.txt
         cat {mount}/demo/model/x.npy | cmp - {source}/x.npy",
        mount = mounted.mountpoint.display(),
        source = source.display()
    );
    shell(&place.path(""), &script);
    // cp -a kept times and modes.
    let (here, there) = (
        fs::metadata(source.join("config.json")).unwrap(),
        fs::metadata(place.path("copied/config.json")).unwrap(),
    );
    assert_eq!((here.mtime_nsec(), here.mode()), (there.mtime_nsec(), there.mode()));
    let from = fs::File::open(mounted.path("demo/model/sub/vocab.txt")).unwrap();
    let to = fs::File::create(place.path("sent")).unwrap();
    let mut sent = 0;
    while sent < 100_003 {
        let more = rustix::fs::sendfile(&to, &from, None, 1 << 20).unwrap();
        assert!(more > 0);
        sent += more;
    }
    assert_same(
        &fs::read(place.path("sent")).unwrap(),
        &fs::read(source.join("sub/vocab.txt")).unwrap(),
        "sendfile",
    );
}

/// An inode number, and the offsets and names in a directory.
type Numbers = (u64, Vec<(u64, Vec<u8>)>);

/// Inode numbers and directory offsets, by path.
fn numbers(folder: &Path) -> BTreeMap<PathBuf, Numbers> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(path) = waiting.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let mut offsets = Vec::new();
        if metadata.is_dir() {
            for entry in rustix::fs::Dir::new(fs::File::open(&path).unwrap()).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().to_bytes().to_vec();
                offsets.push((entry.offset() as u64, name.clone()));
                if !matches!(name.as_slice(), b"." | b"..") {
                    let below = path.join(OsStr::from_bytes(&name));
                    assert_eq!(fs::symlink_metadata(&below).unwrap().ino(), entry.ino(), "{below:?}");
                    waiting.push(below);
                }
            }
        }
        found.insert(path, (metadata.ino(), offsets));
    }
    found
}

#[test]
fn inode_numbers_and_directory_offsets_are_the_same_after_a_remount_and_an_import() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let before = numbers(&mounted.mountpoint);
    assert_eq!(
        before.values().map(|(number, _)| number).collect::<std::collections::HashSet<_>>().len(),
        before.len()
    );
    mounted.unmount();
    let more = place.write("more.bin", b"more");
    place.import("demo/model", &[&more], &[]);
    let mounted = place.mount(&[]);
    let mut after = numbers(&mounted.mountpoint);
    let folder = mounted.path("demo/model");
    assert!(after.remove(&folder.join("more.bin")).is_some());
    after.get_mut(&folder).unwrap().1.retain(|(_, name)| name != b"more.bin");
    assert_eq!(after, before);
}

#[test]
fn a_thousand_names_are_listed_once_each_through_small_buffers() {
    let place = Place::new();
    for number in 0..1000 {
        place.write(&format!("many/a file with a rather long name, number {number}"), format!("{number}"));
    }
    place.import("demo/many", &[&place.path("many")], &[]);
    let mounted = place.mount(&[]);
    let folder = fs::File::open(mounted.path("demo/many")).unwrap();
    let mut seen = std::collections::HashSet::new();
    let mut calls = 0;
    loop {
        let mut buffer = [0_u64; 64];
        use std::os::fd::AsRawFd;
        // SAFETY: the buffer is as long as said, and aligned for the kernel's records.
        let got =
            unsafe { libc::syscall(libc::SYS_getdents64, folder.as_raw_fd(), buffer.as_mut_ptr(), 512) };
        assert!(got >= 0, "{}", std::io::Error::last_os_error());
        if got == 0 {
            break;
        }
        calls += 1;
        let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).take(got as usize).collect();
        let mut at = 0;
        while at < bytes.len() {
            // struct linux_dirent64: inode 8, offset 8, length 2, type 1, name with a zero.
            let len = usize::from(u16::from_ne_bytes([bytes[at + 16], bytes[at + 17]]));
            let name = bytes[at + 19..at + len].split(|byte| *byte == 0).next().unwrap();
            assert!(seen.insert(name.to_vec()), "{:?} twice", String::from_utf8_lossy(name));
            at += len;
        }
    }
    assert_eq!(seen.len(), 1002, "with . and ..");
    assert!(calls > 100, "{calls}");
    let text =
        fs::read_to_string(mounted.path("demo/many/a file with a rather long name, number 777")).unwrap();
    assert_eq!(text, "777");
}

#[test]
fn a_mount_that_is_told_to_end_is_gone_in_five_seconds_though_a_file_is_open() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let file = fs::File::open(mounted.path("demo/model/x")).unwrap();
    let since = Instant::now();
    mounted.signal(libc::SIGTERM);
    wait_until("the end of the mount", || !mounted.is_mounted());
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    // Who has it open may still read, for a while.
    assert_eq!(file.read_at(&mut [0; 100], 0).unwrap(), 100);
    drop(file);
    wait_until("the end of the daemon", || mounted.daemon().is_none());
    assert!(since.elapsed() < Duration::from_secs(6), "{:?}", since.elapsed());
    place.mount(&[]).unmount();
}

#[test]
fn a_busy_mount_stays_and_says_so_and_goes_lazily() {
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
fn a_second_daemon_is_refused_and_told_who_has_the_store() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let other = place.path("other");
    fs::create_dir(&other).unwrap();
    let process = mounted.daemon().unwrap().to_string();
    let shown = mounted.mountpoint.to_str().unwrap();
    let mount = |options: &[&str]| {
        let mut command = crate::support::tierfs();
        answer(command.arg("mount").arg(place.store()).arg(&other).args(options))
    };
    mount(&[]).failed(1, &[&process, shown]);
    mount(&["--read-only"]).failed(1, &[&process, shown]);
    let text = place.try_import("demo/more", &[&place.path("model")], &[]).failed(1, &[&process, shown]);
    assert!(text.contains(place.store().to_str().unwrap()), "{text}");
    assert_eq!(names(&mounted.path("demo")), ["model"]);
    // Nor does another store come on top of this one.
    let second = place.path("second");
    run([OsStr::new("init"), second.as_ref()]).ok();
    run([OsStr::new("mount"), second.as_ref(), mounted.mountpoint.as_ref()]).failed(1, &[shown, "already"]);
    run(["fsck".as_ref(), place.store().as_os_str()]).failed(1, &[&process, shown]);
}

#[test]
fn mounting_what_is_no_store_fails_and_mounts_nothing() {
    let place = Place::new();
    let other = place.path("mnt");
    fs::create_dir(&other).unwrap();
    let mount = |store: &Path, options: &[&str]| {
        let mut command = crate::support::tierfs();
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
    // A mount point that is not there, or is a file.
    run(["init".as_ref(), place.store().as_os_str()]).ok();
    let file = place.write("file", b"");
    for bad in [place.path("no mount point"), file] {
        let store = place.store();
        run([OsStr::new("mount"), store.as_ref(), bad.as_ref()]).failed(1, &[bad.to_str().unwrap()]);
    }
    place.mount(&["--create"]).unmount();
}

#[test]
fn a_store_is_not_mounted_on_itself_nor_made_on_a_tierfs() {
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
    // A source on its own mount would have the daemon wait for itself.
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
        // A control character cannot stand in a name.
        let there = mounted.path("my tenant/my collection/a \\ file%09with all");
        assert_eq!(fs::read(&there).unwrap(), b"content");
        let device = fs::metadata(&there).unwrap().dev();
        let read_ahead =
            format!("/sys/class/bdi/{}:{}/read_ahead_kb", libc::major(device), libc::minor(device));
        assert_eq!(fs::read_to_string(read_ahead).unwrap(), "4096\n", "on {name:?}");
        let rows = run([OsStr::new("ls"), there.parent().unwrap().as_ref(), "--json".as_ref()]).json();
        assert_eq!(rows[0]["name"], "a \\ file%09with all");
        assert_eq!(rows[0]["tier"], "exact");
        run([OsStr::new("umount"), mounted.mountpoint.as_ref()]).ok();
        wait_until("the end of the daemon", || mounted.daemon().is_none());
    }
}

fn both_ways(mounted: &Mounted, below: &str, command: &str) {
    let from_store =
        run([OsStr::new(command), mounted.store.as_ref(), below.as_ref(), "--json".as_ref()]).json();
    let path = mounted.path(below);
    let mut from_mount = run([OsStr::new(command), path.as_ref(), "--json".as_ref()]).json();
    if let Some(rows) = from_mount.as_array_mut().filter(|_| command == "du") {
        // Paths are shown as they were asked for.
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
fn a_store_that_is_mounted_read_only_can_be_read_and_both_ways_agree() {
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
    // Two mounts may read one store.
    let second = place.mount_on("second", &["--read-only"]);
    let [one, other] = [&mounted, &second].map(|mounted| fs::read(mounted.path("demo/model/x")).unwrap());
    assert_same(&one, &other, "the same tensor through two mounts");
    run([OsStr::new("fsck"), place.store().as_ref()]).ok();
    place.try_import("demo/more", &[&place.path("model")], &[]).failed(
        1,
        &["those who read it", mounted.mountpoint.to_str().unwrap(), second.mountpoint.to_str().unwrap()],
    );
}

#[test]
fn commands_on_a_mounted_store_ask_its_daemon() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    for below in ["demo/model", "demo/model/x"] {
        let of_store =
            run([OsStr::new("ls"), place.store().as_ref(), below.as_ref(), "--json".as_ref()]).json();
        let of_mount = run([OsStr::new("ls"), mounted.path(below).as_ref(), "--json".as_ref()]).json();
        assert_eq!(of_store, of_mount);
    }
    let export = |to: &str| {
        run([OsStr::new("export"), place.store().as_ref(), "demo/model".as_ref(), place.path(to).as_ref()])
    };
    export("out").failed(1, &["cp", mounted.mountpoint.to_str().unwrap()]);
    mounted.unmount();
    export("out").ok();
    shell(&place.path(""), "diff -r model out");
}

#[test]
fn a_directory_is_no_file_of_its_own_name_s_end() {
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
fn a_file_whose_name_is_no_text_is_listed_and_read() {
    let (place, name) = (Place::new(), OsStr::from_bytes(b"odd-\xff-name"));
    place.write("folder/plain", b"text");
    fs::write(place.path("folder").join(name), b"12345").unwrap();
    place.import("demo/odd", &[&place.path("folder")], &[]);
    let rows = run([OsStr::new("ls"), place.store().as_ref(), "demo/odd".as_ref(), "--json".as_ref()]).json();
    assert_eq!(rows.as_array().unwrap().len(), 2);
    let mounted = place.mount(&[]);
    both_ways(&mounted, "demo/odd", "ls");
    assert_eq!(fs::read(mounted.path("demo/odd").join(name)).unwrap(), b"12345");
}

#[test]
fn a_foreground_mount_says_to_systemd_that_it_is_ready_and_ends_with_its_mount() {
    let (place, _) = imported(&[]);
    let mountpoint = place.path("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let socket = place.path("notify");
    let listener = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    listener.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = crate::support::tierfs();
    command.arg("mount").arg(place.store()).arg(&mountpoint).arg("-f").env("NOTIFY_SOCKET", &socket);
    let mut daemon = command.spawn().unwrap();
    let mut message = [0; 100];
    let len = listener.recv(&mut message);
    let read = fs::read(mountpoint.join("demo/model/config.json"));
    let unmounted = run([OsStr::new("umount"), mountpoint.as_ref()]);
    let code = crate::support::ended(&mut daemon, "the daemon");
    assert_eq!(text(&message[..len.unwrap()]).trim(), "READY=1");
    assert_eq!(read.unwrap(), b"{\"hidden\": 8}\n");
    unmounted.ok();
    assert_eq!(code, Some(0));
}
