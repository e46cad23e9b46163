//! A mount as programs see it: names, sizes, attributes and reads.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use support::{
    Aligned, Place, Random, assert_same, container_of, files_below, imported, names, open_direct,
    python_line, read_at, shell, text, try_get, try_get_any,
};

#[test]
fn files_are_listed_with_the_source_s_sizes_modes_and_times_and_tensors_beside_them() {
    let (place, source) = imported(&[]);
    let mounted = place.mount(&[]);
    let folder = mounted.path("demo/model");
    assert_eq!(names(&folder), ["config.json", "empty", "model.safetensors", "sub", "x.npy"]);
    assert_eq!(names(&folder.join(".tensors")), ["a", "deep", "norm", "nothing", "x"]);
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
fn find_du_df_and_ls_agree_with_the_store() {
    let (place, _) = imported(&["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    let found = shell(&mounted.mountpoint, "find . -type f | wc -l; find . -name '*.npy'; ls -lR >/dev/null");
    assert_eq!(text(&found.stdout), "5\n./demo/model/x.npy\n");
    let stats = mounted.stats();
    let stored: u64 =
        stats["tiers"].as_object().unwrap().values().map(|tier| tier["stored_bytes"].as_u64().unwrap()).sum();
    let du = text(&shell(&mounted.mountpoint, "du -s --block-size=512 demo | cut -f1").stdout);
    let du: u64 = du.trim().parse().unwrap();
    // Each of the 5 files is rounded up to 512.
    assert!((stored / 512..=stored / 512 + 5).contains(&du), "du {du}, stored {stored}");
    let of = |path: &Path| {
        let out = shell(path, "df --output=size,fstype . | tail -n1; stat -f -c %c .").stdout;
        text(&out).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let (ours, below) = (of(&mounted.mountpoint), of(&place.path("")));
    assert_eq!(ours[0], below[0], "df's size is that of the disk of the store");
    assert_eq!(ours[1], "fuse.tierfs");
}

#[test]
fn control_files_are_not_listed_but_open_by_name() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    for folder in ["", "demo", "demo/model"] {
        assert!(names(&mounted.path(folder)).iter().all(|name| !name.starts_with('.')), "{folder:?}");
    }
    let status = fs::read_to_string(mounted.path(".ctl/status")).unwrap();
    assert!(status.contains(mounted.mountpoint.to_str().unwrap()), "{status}");
    let status = fs::read_to_string(mounted.path("demo/model/.ctl/status")).unwrap();
    assert!(status.contains("demo/model"), "{status}");
    assert!(names(&mounted.path(".ctl")).contains(&"stats.json".to_owned()));
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
fn a_listing_is_of_what_was_put_there_or_has_the_tensors_too() {
    let (place, source) = imported(&[]);
    let files = &["config.json", "empty", "model.safetensors", "sub/vocab.txt", "x.npy"][..];
    let both = &[
        "a",
        "config.json",
        "deep/er/b",
        "empty",
        "model.safetensors",
        "norm",
        "nothing",
        "sub/vocab.txt",
        "x",
        "x.npy",
    ];
    for (options, wanted) in [
        (&[][..], files),
        (&["--list", "files"], files),
        (&["--list", "both"], both),
        (&["-o", "list=both"], both),
        (&["--read-only", "-o", "list=both"], both),
    ] {
        let mounted = place.mount(options);
        let folder = mounted.path("demo/model");
        let found: Vec<String> =
            files_below(&folder).iter().map(|path| path.to_str().unwrap().to_owned()).collect();
        assert_eq!(found, wanted);
        let tensors: Vec<_> = files_below(&folder.join(".tensors"));
        assert_eq!(tensors, ["a", "deep/er/b", "norm", "nothing", "x"].map(std::path::PathBuf::from));
        // Names that are not listed can still be opened.
        assert_eq!(fs::metadata(folder.join("a")).unwrap().len(), 4000);
        let container = fs::read(folder.join("model.safetensors")).unwrap();
        assert_same(&container, &fs::read(source.join("model.safetensors")).unwrap(), "container");
        mounted.unmount();
    }
}

#[test]
fn every_attribute_of_a_tensor_agrees_with_the_store() {
    let (place, _) = imported(&["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    let path = mounted.path("demo/model/a");
    for (name, wanted) in [
        ("dtype", "f32"),
        ("shape", "1000"),
        ("tier", "q8"),
        ("lossy", "allow:q8"),
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
        assert_eq!(try_get(&path, name).as_deref(), Ok(wanted), "{name}");
    }
    let id = try_get(&path, "id").unwrap();
    assert!(id.len() == 32 && id.bytes().all(|digit| digit.is_ascii_hexdigit()), "{id}");
    assert!(try_get(&path, "checksum").unwrap().starts_with("crc32c:"));
    assert!(try_get(&path, "error").unwrap().starts_with("max="));
    // A file that is not exact any more has no digest of its imported bytes.
    for name in ["sha256", "blake3", "parent", "why"] {
        assert_eq!(try_get(&path, name), Err(Errno::NODATA), "{name}");
    }
    let container = mounted.path("demo/model/model.safetensors");
    assert_eq!(try_get(&container, "tier").as_deref(), Ok("q8"));
    assert_eq!(try_get(&container, "dtype"), Err(Errno::NODATA));
    assert_eq!(try_get(&mounted.path("demo/model/config.json"), "tier").as_deref(), Ok("exact"));
    let listed = text(&shell(&mounted.mountpoint, "getfattr -d demo/model/a").stdout);
    assert_eq!(listed, "# file: demo/model/a\nuser.tierfs.dtype=\"f32\"\nuser.tierfs.shape=\"1000\"\n\n");
}

#[test]
fn digests_equal_those_of_the_imported_bytes() {
    let (place, source) = imported(&[]);
    let mounted = place.mount(&[]);
    for name in files_below(&mounted.path("demo/model")) {
        let path = mounted.path(Path::new("demo/model").join(&name));
        let sha256 = text(&Command::new("sha256sum").arg(&path).output().unwrap().stdout);
        assert_eq!(try_get(&path, "sha256").as_deref(), Ok(&sha256[..64]), "{name:?}");
        // Exact payloads are the bytes themselves.
        let checksum = format!("crc32c:{:08x}", crc32c::crc32c(&fs::read(&path).unwrap()));
        assert_eq!(try_get(&path, "checksum"), Ok(checksum), "{name:?}");
        let line = "import sys, blake3; print(blake3.blake3(open(sys.argv[1], 'rb').read()).hexdigest())";
        let known = if source.join(&name).exists() { source.join(&name) } else { path.clone() };
        assert_eq!(try_get(&path, "blake3").unwrap(), python_line(line, [&known]).trim(), "{name:?}");
    }
}

#[test]
fn unknown_attributes_have_no_value_and_those_of_other_kinds_are_not_supported() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    for path in ["demo/model/a", "demo/model"] {
        let path = mounted.path(path);
        assert_eq!(try_get(&path, "colour"), Err(Errno::NODATA));
        assert_eq!(try_get_any(&path, "user.mime_type"), Err(Errno::NODATA));
        for foreign in ["security.selinux", "trusted.x"] {
            assert_eq!(try_get_any(&path, foreign), Err(Errno::OPNOTSUPP), "{foreign}");
        }
    }
    for path in ["", "demo", ".ctl/status"] {
        assert_eq!(try_get(&mounted.path(path), "tier"), Err(Errno::NODATA), "{path:?}");
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
    // The whole file is data, without holes.
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(5)).unwrap(), 5);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(5)).unwrap(), wanted.len() as u64);
}

#[test]
fn copies_by_cp_and_tar_equal_the_source() {
    let (place, source) = imported(&[]);
    let mounted = place.mount(&[]);
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
    assert_eq!(before.values().map(|(number, _)| number).collect::<HashSet<_>>().len(), before.len());
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

/// The names in a directory, by calls that have room for a few each.
fn names_in_small_steps(folder: &Path) -> HashSet<Vec<u8>> {
    let folder = fs::File::open(folder).unwrap();
    let mut seen = HashSet::new();
    let mut calls = 0;
    loop {
        let mut buffer = [0_u64; 64];
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
    assert!(calls > 30, "{calls}");
    seen
}

#[test]
fn a_thousand_names_are_listed_once_each_through_small_buffers() {
    let place = Place::new();
    let tensors: Vec<(String, usize)> = (0..1000).map(|number| (format!("tensor {number}"), 1)).collect();
    let tensors: Vec<(&str, usize)> = tensors.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    place.write("many/model.safetensors", container_of(&mut Random(13), &tensors));
    for number in 0..1000 {
        place.write(&format!("many/files/one with a rather long name, number {number}"), format!("{number}"));
    }
    place.import("demo/many", &[&place.path("many")], &[]);
    let mounted = place.mount(&[]);
    let folder = mounted.path("demo/many");
    // With . and ..
    assert_eq!(names_in_small_steps(&folder.join(".tensors")).len(), 1002);
    assert_eq!(names_in_small_steps(&folder.join("files")).len(), 1002);
    let text = fs::read_to_string(folder.join("files/one with a rather long name, number 777")).unwrap();
    assert_eq!(text, "777");
    mounted.unmount();
    // The container, and the directory of files, too.
    let mounted = place.mount(&["--list", "both"]);
    assert_eq!(names_in_small_steps(&mounted.path("demo/many")).len(), 1004);
}

#[test]
fn a_snapshot_of_a_hub_cache_is_imported_through_its_links() {
    let place = Place::new();
    let mut random = Random(12);
    let blobs = [
        (
            "blobs/0a",
            container_of(&mut random, &[("layer.0.weight", 5000)]),
            "model-00001-of-00002.safetensors",
        ),
        (
            "blobs/0b",
            container_of(&mut random, &[("layer.1.weight", 6000)]),
            "model-00002-of-00002.safetensors",
        ),
        ("blobs/0c", b"{\"weight_map\": {}}".to_vec(), "model.safetensors.index.json"),
    ];
    let snapshot = place.path("hub/models--demo/snapshots/0123abcd");
    fs::create_dir_all(&snapshot).unwrap();
    for (blob, bytes, name) in &blobs {
        place.write(&format!("hub/models--demo/{blob}"), bytes);
        std::os::unix::fs::symlink(format!("../../{blob}"), snapshot.join(name)).unwrap();
    }
    place.import("demo/hub", &[&snapshot], &[]);
    let mounted = place.mount(&[]);
    let folder = mounted.path("demo/hub");
    assert_eq!(names(&folder).len(), 3);
    assert_eq!(names(&folder.join(".tensors")), ["layer.0.weight", "layer.1.weight"]);
    for (_, bytes, name) in &blobs {
        assert!(fs::symlink_metadata(folder.join(name)).unwrap().is_file());
        assert_same(&fs::read(folder.join(name)).unwrap(), bytes, name);
    }
    assert_eq!(fs::metadata(folder.join("layer.1.weight")).unwrap().len(), 24_000);
}
