//! Repeated imports of directories of users, with the same result for an unmounted and a mounted store.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use support::{
    Answer, Mounted, Place, Random, assert_same, container_of, files_below, npy_file, run, safetensors_file,
    shell,
};

/// A store with or without a mount.
pub struct Way {
    pub place: Place,
    pub mounted: Option<Mounted>,
}

/// Runs a test with an unmounted store and with a mounted one.
pub fn each_way(test: impl Fn(&Way)) {
    test(&Way { place: Place::new(), mounted: None });
    let place = Place::new();
    let mounted = Some(place.mount(&["--create"]));
    test(&Way { place, mounted });
}

impl Way {
    pub fn import(&self, collection: &str, source: &Path, options: &[&str]) -> Answer {
        self.place.try_import(collection, &[source], options)
    }

    /// Counts of an import: new files, unchanged files, removed names.
    pub fn counts(&self, collection: &str, source: &Path, options: &[&str]) -> [u64; 3] {
        let options = [options, &["--json"]].concat();
        let sum = self.import(collection, source, &options).json();
        ["files", "unchanged", "removed"].map(|key| sum[key].as_u64().unwrap())
    }

    /// A mount of the store; without one, a mount for this call only.
    pub fn with_mount<T>(&self, look: impl FnOnce(&Mounted) -> T) -> T {
        match &self.mounted {
            Some(mounted) => look(mounted),
            None => {
                let mounted = self.place.mount_on("once", &[]);
                let seen = look(&mounted);
                mounted.unmount();
                seen
            }
        }
    }

    pub fn content(&self, path: &str) -> Option<Vec<u8>> {
        self.with_mount(|mounted| fs::read(mounted.path(path)).ok())
    }

    #[track_caller]
    pub fn check(&self, path: &str, wanted: Option<&[u8]>) {
        let found = self.content(path);
        assert_eq!(found.is_some(), wanted.is_some(), "{path}");
        assert_same(&found.unwrap_or_default(), wanted.unwrap_or_default(), path);
    }
}

fn set_time(path: &Path, nanoseconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds);
    File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
}

/// A time in 2020.
const THEN: u64 = 1_600_000_000_123_456_789;

/// A model directory whose files all have one time.
fn model(place: &Place) -> PathBuf {
    let mut random = Random(11);
    place.write("model/model.safetensors", container_of(&mut random, &[("w", 100_000), ("norm", 8)]));
    place.write("model/x.npy", npy_file(&random.floats(900)));
    place.write("model/config.json", b"{\"hidden\": 8}\n");
    place.write("model/sub/vocab.txt", random.bytes(100_003));
    place.write("model/empty", b"");
    let folder = place.path("model");
    for file in files_below(&folder) {
        set_time(&folder.join(file), THEN);
    }
    folder
}

/// Every file of a store but its lock.
pub fn stored(place: &Place) -> BTreeMap<PathBuf, (Vec<u8>, i64)> {
    let files = files_below(&place.store()).into_iter().filter(|path| path != Path::new("lock"));
    let read = |path: PathBuf| {
        let file = place.store().join(&path);
        let changed = fs::metadata(&file).unwrap();
        (path, (fs::read(&file).unwrap(), changed.mtime() * 1_000_000_000 + changed.mtime_nsec()))
    };
    files.map(read).collect()
}

#[test]
fn entries_that_cannot_be_imported_are_named_and_the_rest_comes_in() {
    each_way(|way| {
        let folder = way.place.path("folder");
        way.place.write("folder/config.json", b"{}");
        way.place.write("folder/sub/vocab.txt", b"words");
        let _socket = UnixListener::bind(folder.join("socket")).unwrap();
        shell(&folder, "mkfifo sub/fifo");
        symlink("/dev/null", folder.join("device")).unwrap();
        let answer = way.import("t/c", &folder, &[]);
        let shown = folder.display();
        let mut lines: Vec<&str> =
            answer.err.lines().filter(|line| !line.contains("created store at")).collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                format!("tierfs: {shown}/device: a device, left out"),
                format!("tierfs: {shown}/socket: a socket, left out"),
                format!("tierfs: {shown}/sub/fifo: a fifo, left out"),
            ]
        );
        assert_eq!(answer.code, Some(0), "{answer:?}");
        way.check("t/c/config.json", Some(b"{}"));
        way.check("t/c/sub/vocab.txt", Some(b"words"));

        fs::remove_file(folder.join("device")).unwrap();
        symlink("gone/file", folder.join("sub/link")).unwrap();
        symlink("loop", folder.join("loop")).unwrap();
        way.place.write("folder/new.txt", b"new");
        let said = way.import("t/c", &folder, &[]).failed(1, &[]);
        for line in [
            format!(
                "tierfs: {shown}/sub/link: it is a dangling link to gone/file; restore the file that it leads to, \
                 or remove the link: rm {shown}/sub/link\n"
            ),
            format!("tierfs: {shown}/loop: reading it: Too many levels of symbolic links\n"),
            format!("tierfs: {shown}/socket: a socket, left out\n"),
        ] {
            assert!(said.contains(&line), "{line:?} is not in {said:?}");
        }
        way.check("t/c/new.txt", Some(b"new"));
        let sum = way.import("t/c", &folder, &["--json"]);
        assert_eq!(sum.code, Some(1));
        let sum: serde_json::Value = serde_json::from_str(&sum.out).unwrap();
        assert_eq!(sum["unchanged"], 3);
        assert_eq!(sum["failed"].as_array().unwrap().len(), 2);
        assert_eq!(sum["skipped"].as_array().unwrap().len(), 2);
    });
}

#[test]
fn the_same_import_again_reads_nothing_and_writes_nothing() {
    each_way(|way| {
        let folder = model(&way.place);
        assert_eq!(way.counts("t/c", &folder, &[]), [5, 0, 0]);
        way.with_mount(|mounted| {
            let found = fs::metadata(mounted.path("t/c/config.json")).unwrap();
            let time = found.mtime() as u64 * 1_000_000_000 + found.mtime_nsec() as u64;
            assert_eq!(time, THEN, "the time of the source, to the nanosecond");
        });
        // Only reading finds other bytes with the same size and time.
        let before = fs::read(folder.join("sub/vocab.txt")).unwrap();
        fs::write(folder.join("sub/vocab.txt"), vec![7; before.len()]).unwrap();
        set_time(&folder.join("sub/vocab.txt"), THEN);
        let files = stored(&way.place);
        let answer = way.import("t/c", &folder, &[]);
        assert_eq!(answer.ok(), "t/c: nothing new; 5 files unchanged\n");
        if way.mounted.is_none() {
            assert!(stored(&way.place) == files, "an import of what is there wrote to the store");
        }
        way.check("t/c/sub/vocab.txt", Some(&before));
        // Another path to it is still the same source.
        assert_eq!(way.counts("t/c", &folder.join("sub/.."), &[]), [0, 5, 0]);
        assert_eq!(way.counts("t/c", &folder.join("config.json"), &[]), [0, 1, 0]);
        assert_eq!(way.counts("t/c", &folder, &["--checksum"]), [1, 4, 0]);
        way.check("t/c/sub/vocab.txt", Some(&vec![7; before.len()]));
        // A file with another time is read, unless the digests are compared.
        set_time(&folder.join("model.safetensors"), THEN + 1);
        assert_eq!(way.counts("t/c", &folder, &["--checksum"]), [0, 5, 0]);
        assert_eq!(way.counts("t/c", &folder, &[]), [0, 5, 0], "the time was recorded");
        set_time(&folder.join("model.safetensors"), THEN + 2);
        assert_eq!(way.counts("t/c", &folder, &[]), [1, 4, 0]);
        fs::write(folder.join("config.json"), b"{}").unwrap();
        assert_eq!(way.counts("t/c", &folder, &[]), [1, 4, 0]);
        way.check("t/c/config.json", Some(b"{}"));
    });
}

#[test]
fn files_that_were_moved_to_a_tier_are_unchanged_until_another_is_asked_for() {
    let way = Way { place: Place::new(), mounted: None };
    let folder = model(&way.place);
    let container = folder.join("model.safetensors");
    way.counts("t/c", &folder, &[]);
    let tier = |way: &Way| {
        way.with_mount(|mounted| {
            let mut value = [0; 64];
            let path = mounted.path("t/c/w");
            let len = rustix::fs::getxattr(path, "user.tierfs.tier", &mut value[..]).unwrap();
            String::from_utf8(value[..len].to_vec()).unwrap()
        })
    };
    way.with_mount(|mounted| {
        let flags = rustix::fs::XattrFlags::empty();
        let path = mounted.path("t/c/w");
        rustix::fs::setxattr(&path, "user.tierfs.lossy", b"allow", flags).unwrap();
        rustix::fs::setxattr(&path, "user.tierfs.tier", b"q5", flags).unwrap();
    });
    assert_eq!(way.counts("t/c", &folder, &[]), [0, 5, 0]);
    assert_eq!(way.counts("t/c", &folder, &["--checksum"]), [0, 5, 0]);
    assert_eq!(tier(&way), "q5");
    let options = ["--tier", "q8:all"];
    // The container and the array.
    assert_eq!(way.counts("t/c", &folder, &options), [2, 3, 0]);
    assert_eq!(tier(&way), "q8");
    assert_eq!(way.counts("t/c", &folder, &options), [0, 5, 0]);
    assert_eq!(way.counts("t/c", &folder, &["--tier", "exact:all"]), [2, 3, 0]);
    assert_eq!(tier(&way), "exact");
    way.check("t/c/model.safetensors", Some(&fs::read(container).unwrap()));
    for options in [&["--block-bytes", "8192"][..], &["--in-place"]] {
        let [came, ..] = way.counts("t/c", &folder, options);
        assert!(came > 0, "{options:?} changes how files are stored");
        assert_eq!(way.counts("t/c", &folder, options), [0, 5, 0], "{options:?}");
    }
    assert!(way.counts("t/c", &folder, &[])[0] > 0, "files in place are copied when that is asked for");
}

#[test]
fn children_of_a_parent_that_are_absent_are_unchanged() {
    let way = Way { place: Place::new(), mounted: None };
    let folder = model(&way.place);
    way.counts("t/base", &folder, &[]);
    let container = folder.join("model.safetensors");
    let mut bytes = fs::read(&container).unwrap();
    let len = bytes.len();
    bytes[len - 1] ^= 1;
    fs::write(&container, bytes).unwrap();
    let options = ["--parent", "t/base", "--reconstruct", "delta"];
    let container = folder.join("model.safetensors");
    assert_eq!(way.counts("t/c", &container, &options), [1, 0, 0]);
    assert_eq!(way.counts("t/c", &container, &options), [0, 1, 0]);
    assert_eq!(way.counts("t/c", &container, &["--parent", "t/base"]), [0, 1, 0]);
    way.check("t/c/model.safetensors", Some(&fs::read(container).unwrap()));
}

#[test]
fn a_file_whose_tensor_has_an_escaped_name_is_evicted_and_replaced_like_others() {
    each_way(|way| {
        let source = way.place.write("odd\nname.npy", npy_file(&Random(5).floats(50_000)));
        way.counts("t/c", &source, &["--in-place", "--reconstruct", "origin"]);
        way.with_mount(|mounted| {
            assert_eq!(support::get(&mounted.path("t/c/odd%0Aname"), "tier"), "absent");
            // Quota for this file and its tensor, and for no other.
            fs::write(mounted.path("t/.ctl/quota"), "files=2").unwrap();
        });
        let other = npy_file(&Random(6).floats(50_000));
        fs::write(&source, &other).unwrap();
        way.counts("t/c", &source, &["--checksum"]);
        way.check("t/c/odd\nname.npy", Some(&other));
    });
}

#[test]
fn files_that_are_newer_in_the_collection_are_replaced_with_a_note_or_left() {
    each_way(|way| {
        let folder = model(&way.place);
        way.counts("t/c", &folder, &[]);
        way.with_mount(|mounted| fs::write(mounted.path("t/c/config.json"), b"my own").unwrap());
        let note = "it was changed in the collection after the source was changed";
        let answer = way.import("t/c", &folder, &["--update"]);
        assert_eq!(answer.err, format!("tierfs: config.json: left as it is: {note}\n"));
        assert_eq!(answer.code, Some(0));
        way.check("t/c/config.json", Some(b"my own"));
        let preview = way.import("t/c", &folder, &["--dry-run"]);
        assert!(preview.err.starts_with(&format!("tierfs: config.json: would be replaced, although {note}")));
        let answer = way.import("t/c", &folder, &[]);
        let wanted = format!("tierfs: config.json: replaced, although {note}; --update leaves such files\n");
        assert_eq!((answer.err.as_str(), answer.code), (wanted.as_str(), Some(0)));
        way.check("t/c/config.json", Some(&fs::read(folder.join("config.json")).unwrap()));
        // A source that was changed later replaces it without a note.
        way.with_mount(|mounted| fs::write(mounted.path("t/c/config.json"), b"my own").unwrap());
        fs::write(folder.join("config.json"), b"later").unwrap();
        let later = SystemTime::now() + Duration::from_secs(60);
        File::options().append(true).open(folder.join("config.json")).unwrap().set_modified(later).unwrap();
        let answer = way.import("t/c", &folder, &["--update"]);
        assert_eq!((answer.err.as_str(), answer.code), ("", Some(0)));
        way.check("t/c/config.json", Some(b"later"));
    });
}

#[test]
fn delete_removes_only_what_the_same_directory_brought_and_no_longer_has() {
    each_way(|way| {
        let folder = model(&way.place);
        let other = way.place.write("other/extra.safetensors", container_of(&mut Random(3), &[("e", 50)]));
        way.counts("t/c", &folder, &[]);
        way.counts("t/c", &other, &[]);
        let part = way.place.write("part", [5; 2000]);
        way.import("t/c", &part, &["--shard-of", "sharded"]).ok();
        way.with_mount(|mounted| {
            fs::write(mounted.path("t/c/mine.txt"), b"mine").unwrap();
            fs::write(mounted.path("t/c/sub/mine.txt"), b"mine").unwrap();
            // The file no longer equals the imported one.
            fs::write(mounted.path("t/c/config.json"), b"changed").unwrap();
            fs::rename(mounted.path("t/c/x.npy"), mounted.path("t/c/y.npy")).unwrap();
        });
        for gone in ["model.safetensors", "config.json", "sub/vocab.txt", "x.npy"] {
            fs::remove_file(folder.join(gone)).unwrap();
        }
        way.place.write("model/deep/er/new.txt", b"new");
        let bytes = fs::metadata(folder.join("empty")).unwrap().len();
        assert_eq!(bytes, 0);
        let preview = way.import("t/c", &folder, &["--delete", "--dry-run"]).ok();
        assert_eq!(
            preview,
            "would import deep/er/new.txt  3 B\n\
             would remove model.safetensors  390.8 KiB\n\
             would remove sub/vocab.txt  97.7 KiB\n\
             t/c: would import 1 file, 3 B; 1 file unchanged; would remove 2 files\n"
        );
        let answer = way.import("t/c", &folder, &["--delete"]);
        assert_eq!(
            answer.err,
            "tierfs: config.json: not removed, because it may have been changed since it was imported\n"
        );
        let said = answer.ok();
        assert!(said.ends_with("; 1 file unchanged; removed 2 files\n"), "{said}");
        for (path, is_there) in [
            ("model.safetensors", false),
            ("w", false),
            ("sub/vocab.txt", false),
            ("sub/mine.txt", true),
            ("mine.txt", true),
            ("config.json", true),
            ("y.npy", true),
            ("empty", true),
            ("extra.safetensors", true),
            ("e", true),
            ("sharded", true),
            ("deep/er/new.txt", true),
        ] {
            assert_eq!(way.content(&format!("t/c/{path}")).is_some(), is_there, "{path}");
        }
        // Directories that become empty are removed too.
        fs::remove_dir_all(folder.join("deep")).unwrap();
        assert_eq!(way.counts("t/c", &folder, &["--delete"]), [0, 1, 1]);
        way.with_mount(|mounted| assert!(!mounted.path("t/c/deep").exists()));
        // Nothing is removed while a part of the source is unreadable.
        fs::remove_file(folder.join("empty")).unwrap();
        symlink("nowhere", folder.join("link")).unwrap();
        let answer = way.import("t/c", &folder, &["--delete"]);
        let wanted = "tierfs: t/c: nothing was removed, because a part of the source could not be read\n";
        assert!(answer.err.contains(wanted), "{answer:?}");
        assert_eq!(answer.code, Some(1));
        way.check("t/c/empty", Some(b""));
        way.import("t/c", &other, &["--delete"])
            .failed(1, &["--delete needs a directory as source; files that it no longer has are removed from the collection"]);
        way.with_mount(|_| ());
        if way.mounted.is_none() {
            run(["fsck".as_ref(), way.place.store().as_os_str()]).ok();
        }
    });
}

#[test]
fn a_dry_run_lists_what_an_import_does_and_changes_nothing() {
    let place = Place::new();
    let folder = model(&place);
    let lines = "would import config.json  14 B\n\
                 would import empty  0 B\n\
                 would import model.safetensors  390.8 KiB\n\
                 would import x.npy  3.6 KiB\n\
                 would import sub/vocab.txt  97.7 KiB\n\
                 t/c: would import 5 files, 492.1 KiB\n";
    assert_eq!(place.try_import("t/c", &[&folder], &["--dry-run"]).ok(), lines);
    assert!(!place.store().exists(), "a dry run makes no store");
    run(["init".as_ref(), place.store().as_os_str()]).ok();
    let before = stored(&place);
    assert_eq!(place.try_import("t/c", &[&folder], &["-n"]).ok(), lines);
    assert!(stored(&place) == before);
    let mounted = place.mount(&[]);
    assert_eq!(place.try_import("t/c", &[&folder], &["-n"]).ok(), lines);
    assert!(!mounted.path("t").exists());
    place.import("t/c", &[&folder], &[]);
    fs::write(folder.join("config.json"), b"{}").unwrap();
    let sum = place.try_import("t/c", &[&folder], &["-n", "--json"]).json();
    assert_eq!((&sum["files"], &sum["unchanged"], &sum["bytes"]), (&1.into(), &4.into(), &2.into()));
    let listed = serde_json::json!([{ "action": "replace", "path": "config.json", "bytes": 2 }]);
    assert_eq!(sum["listed"], listed);
    assert_eq!(fs::read(mounted.path("t/c/config.json")).unwrap(), b"{\"hidden\": 8}\n");
}

/// A file of 900 numbers in Fortran order, or big-endian.
fn array(from: &str, to: &str) -> Vec<u8> {
    let good = npy_file(&Random(4).floats(900));
    let text = String::from_utf8_lossy(&good[10..128]).replacen(from, to, 1);
    let text = format!("{:<117}\n", text.trim_end());
    [&good[..10], text.as_bytes(), &good[128..]].concat()
}

#[test]
fn files_that_are_not_what_their_names_promise_are_refused_and_say_what_to_do() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 90868376\n".to_vec();
    let good = container_of(&mut Random(3), &[("w", 50)]);
    let cases: [(&str, Vec<u8>, &str); 9] = [
        (
            "pointer.safetensors",
            pointer.clone(),
            "it is a git-lfs pointer to a file of 90868376 bytes, not that file; \
             run git lfs pull in its repository, and import it again",
        ),
        (
            "cut.safetensors",
            good[..good.len() - 10].to_vec(),
            "the tensors end at byte 272 of a file of 262 bytes: it is cut off; download or copy it again",
        ),
        (
            "short.safetensors",
            good[..20].to_vec(),
            "safetensors header of 64 bytes in a file of 20: it is cut off; download or copy it again",
        ),
        (
            "cut.npy",
            npy_file(&Random(1).floats(9))[..150].to_vec(),
            "npy header: shape (9) of f32 ends at byte 164 of a file of 150 bytes: it is cut off; \
             download or copy it again",
        ),
        (
            "zip.safetensors",
            b"PK\x03\x04and so on".to_vec(),
            "it is a zip archive; give it the suffix .pt if torch.save wrote it, .npz if numpy.savez did",
        ),
        (
            "page.gguf",
            b"<!DOCTYPE html>\n<html><body>Please log in</body></html>".to_vec(),
            "it is an HTML page, perhaps the answer of a site that wants you to log in or to accept a licence; \
             do so, and download the file again",
        ),
        (
            "packed.npy",
            b"\x1f\x8b\x08 and so on".to_vec(),
            "it is compressed with gzip; unpack it with gunzip",
        ),
        ("other.safetensors", b"GGUF\x03\0\0\0".to_vec(), "it is a GGUF file; give it the suffix .gguf"),
        ("none.safetensors", Vec::new(), "it has 0 bytes, too few for a safetensors file"),
    ];
    let folder_name = "wrong";
    each_way(|way| {
        let folder = way.place.path(folder_name);
        way.place.write("wrong/fine.txt", b"fine");
        for (name, bytes, _) in &cases {
            way.place.write(&format!("wrong/{name}"), bytes);
        }
        let answer = way.import("t/c", &folder, &[]);
        let lines = answer.err.lines().filter(|line| !line.contains("created store at"));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        let mut wanted: Vec<String> = cases
            .iter()
            .map(|(name, _, text)| format!("tierfs: {}/{name}: {text}", folder.display()))
            .collect();
        lines.sort();
        wanted.sort();
        assert_eq!(lines, wanted);
        assert_eq!(answer.code, Some(1));
        way.check("t/c/fine.txt", Some(b"fine"));
        way.check("t/c/zip.safetensors", None);
        // Written through a mount it stays a plain file, with the same reason.
        way.with_mount(|mounted| {
            let path = mounted.path("t/c/page.gguf");
            fs::write(&path, &cases[5].1).unwrap();
            let mut why = vec![0; 4096];
            let len = rustix::fs::getxattr(&path, "user.tierfs.why", &mut why[..]).unwrap();
            let why = String::from_utf8(why[..len].to_vec()).unwrap();
            assert_eq!(why, format!("kept as a plain file: {}", cases[5].2));
        });
    });
}

#[test]
fn files_that_cannot_be_taken_apart_are_kept_as_they_are_with_a_note() {
    let order = "its array is in Fortran order or big-endian, which tierfs does not read as a tensor; save it with \
                 numpy.save(path, numpy.ascontiguousarray(array).astype(array.dtype.newbyteorder('<')))";
    let mut old = b"GGUF\x01\0\0\0".to_vec();
    old.resize(64, 0);
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n".to_vec();
    let pointed = "it is a git-lfs pointer to a file of 12 bytes, not that file; \
                   run git lfs pull in its repository, and import it again";
    let one = npy_file(&Random(4).floats(900));
    let more = "npy header: shape (900) of f32 ends at byte 3728 of a file of 7456 bytes: more arrays may follow; \
                save each array in a separate file";
    let gap = safetensors_file(r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#, &[0; 2]);
    let leaves =
        "tensor \"a\": begins at byte 65 of the file instead of 64: leaves a gap after the tensor before it";
    let cases = [
        ("pair.npy", [&one[..], &one].concat(), more, true),
        ("gap.safetensors", gap, leaves, true),
        ("fortran.npy", array("False, 'shape': (900,)", "True, 'shape': (30,30)"), order, true),
        ("big.npy", array("<f4", ">f4"), order, true),
        ("old.gguf", old, "gguf header: version 1; 2 and 3 are read", true),
        ("pytorch_model.bin", pointer, pointed, false),
    ];
    each_way(|way| {
        let folder = way.place.path("kept");
        for (name, bytes, ..) in &cases {
            way.place.write(&format!("kept/{name}"), bytes);
        }
        let line = |(name, _, text, is_container): &(&str, Vec<u8>, &str, bool)| {
            let kept = if *is_container { "kept as a plain file: " } else { "" };
            format!("tierfs: {name}: {kept}{text}")
        };
        let strict = way.import("t/c", &folder, &["--strict"]);
        for (name, _, text, _) in &cases {
            let line = format!("tierfs: {}/{name}: {text}\n", folder.display());
            assert!(strict.err.contains(&line), "{line:?} is not in {strict:?}");
        }
        assert_eq!(strict.code, Some(1));
        way.check("t/c/big.npy", None);
        let answer = way.import("t/c", &folder, &[]);
        let mut lines: Vec<&str> =
            answer.err.lines().filter(|line| !line.contains("created store at")).collect();
        let mut wanted: Vec<String> = cases.iter().map(line).collect();
        lines.sort_unstable();
        wanted.sort();
        assert_eq!(lines, wanted);
        assert_eq!(answer.code, Some(0), "{answer:?}");
        for (name, bytes, ..) in &cases {
            way.check(&format!("t/c/{name}"), Some(bytes));
        }
        way.with_mount(|mounted| {
            let mut why = vec![0; 4096];
            let path = mounted.path("t/c/pytorch_model.bin");
            let len = rustix::fs::getxattr(path, "user.tierfs.why", &mut why[..]).unwrap();
            assert_eq!(why[..len], *pointed.as_bytes());
        });
        assert_eq!(way.counts("t/c", &folder, &[]), [0, cases.len() as u64, 0]);
    });
}
