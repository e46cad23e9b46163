//! Hostile files on the command line: refused with a clear text, or with escaped names; the store stays as it was.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use support::{
    Answer, Place, Random, answer, assert_same, container_of, files_below, header_of, npy_file, read_at, run,
    safetensors_file, tierfs,
};

const GOOD: [(&str, usize); 3] = [("a", 5000), ("b", 6000), ("c", 10)];

/// A store with some content.
fn stored() -> Place {
    let place = Place::new();
    place.write("good/model.safetensors", container_of(&mut Random(1), &GOOD));
    place.write("good/config.json", b"{}");
    place.import("demo/good", &[&place.path("good")], &[]);
    place
}

fn listing(place: &Place, below: &str) -> serde_json::Value {
    run([OsStr::new("du"), place.store().as_ref(), below.as_ref(), "--json".as_ref()]).json()
}

/// Importing the file fails with a text that names it and says each of `words`; the store stays as it was.
fn refused(place: &Place, file: &Path, words: &[&str]) {
    let before =
        (listing(place, ""), run([OsStr::new("ls"), place.store().as_ref(), "demo/good".as_ref()]).ok());
    let error = place.try_import("demo/good", &[file], &["--strict"]).failed(1, &[file.to_str().unwrap()]);
    for word in words {
        assert!(error.contains(word), "{}: nothing of {word:?} in {error:?}", file.display());
    }
    assert!(!error.contains("panicked"), "{error}");
    let after =
        (listing(place, ""), run([OsStr::new("ls"), place.store().as_ref(), "demo/good".as_ref()]).ok());
    assert_eq!(before, after, "{}", file.display());
    run([OsStr::new("fsck"), place.store().as_ref()]).ok();
}

#[test]
fn hostile_safetensors_headers_are_refused_and_say_why() {
    let place = stored();
    let entry = |dtype: &str, shape: &str, begin: u64, end: u64| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let data = [0; 64];
    for (name, header, words) in [
        (
            "overflow",
            format!(r#"{{"huge":{}}}"#, entry("F32", "[4294967296,4294967296,4294967296]", 0, 64)),
            &["huge"][..],
        ),
        ("wrapping", format!(r#"{{"huge":{}}}"#, entry("F32", "[4611686018427387920]", 0, 64)), &["huge"]),
        ("negative", format!(r#"{{"minus":{}}}"#, entry("F32", "[-16]", 0, 64)), &[]),
        (
            "overlap",
            format!(r#"{{"one":{},"two":{}}}"#, entry("F32", "[12]", 0, 48), entry("F32", "[8]", 32, 64)),
            &[],
        ),
        (
            "gap",
            format!(r#"{{"one":{},"two":{}}}"#, entry("F32", "[4]", 0, 16), entry("F32", "[8]", 32, 64)),
            &[],
        ),
        ("backwards", format!(r#"{{"one":{}}}"#, entry("F32", "[16]", 64, 0)), &["one"]),
        ("past", format!(r#"{{"one":{}}}"#, entry("F32", "[17]", 0, 68)), &[]),
        (
            "far",
            format!(r#"{{"one":{}}}"#, entry("F32", "[16]", 18446744073709551552, 18446744073709551615)),
            &["one"],
        ),
        ("size", format!(r#"{{"one":{}}}"#, entry("F32", "[15]", 0, 64)), &["one"]),
        ("short", r#"{"one":{"dtype":"F32","shape":[16]}}"#.to_owned(), &["data_offsets"]),
        ("array", "[1,2,3]".to_owned(), &[]),
        ("open", r#"{"one":{"dtype":"F32""#.to_owned(), &[]),
        ("deep", "[".repeat(100_000), &[]),
        ("nested", format!(r#"{{"one":{}}}"#, r#"{"a":"#.repeat(50_000)), &[]),
    ] {
        let file = place.write(&format!("{name}.safetensors"), safetensors_file(&header, &data));
        refused(&place, &file, words);
    }
    // The stated length of the header is false, or above the limit.
    for (name, len, file_len) in
        [("long", 200 << 20, 300_u64 << 20), ("endless", u64::MAX, 4096), ("beyond", 5000, 4096)]
    {
        let file = place.write(&format!("{name}.safetensors"), len.to_le_bytes());
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(file_len).unwrap();
        refused(&place, &file, &["header"]);
    }
    for len in [0, 1, 7, 8] {
        let file = place.write("few.safetensors", vec![0; len]);
        refused(&place, &file, &[]);
    }
    let text = "\u{feff}{}".to_owned();
    refused(&place, &place.write("mark.safetensors", safetensors_file(&text, b"")), &[]);
    let mut bytes = safetensors_file(&header_of(&[("a", 16)]), &data);
    bytes[12] = 0xff;
    refused(&place, &place.write("letters.safetensors", bytes), &[]);
}

#[test]
fn a_container_cut_off_anywhere_is_refused() {
    let place = stored();
    let whole = container_of(&mut Random(2), &[("a", 100), ("b", 300)]);
    for len in [9, 40, whole.len() - 1600, whole.len() - 1200, whole.len() - 1] {
        refused(&place, &place.write("cut.safetensors", &whole[..len]), &[]);
    }
    let mut longer = whole;
    longer.push(0);
    refused(&place, &place.write("cut.safetensors", longer), &[]);
}

#[test]
fn a_container_with_flipped_bits_is_refused_or_reads_as_imported() {
    let place = stored();
    let mut random = Random(3);
    let whole = container_of(&mut random, &[("a", 100), ("b/c", 300)]);
    let header = whole.len() - 1600;
    let mut taken = 0;
    for round in 0..60 {
        let mut bytes = whole.clone();
        for _ in 0..=round % 3 {
            bytes[random.below(header)] ^= 1 << random.below(8);
        }
        let name = format!("flipped-{round}.safetensors");
        let file = place.write(&name, &bytes);
        let answer = place.try_import(&format!("demo/round-{round}"), &[&file], &[]);
        if answer.code == Some(0) {
            taken += 1;
            let out = place.path(format!("out-{round}"));
            run([
                OsStr::new("export"),
                place.store().as_ref(),
                format!("demo/round-{round}/{name}").as_ref(),
                out.as_ref(),
            ])
            .ok();
            assert_same(&fs::read(out).unwrap(), &bytes, &name);
        } else {
            answer.failed(1, &[&name]);
        }
    }
    assert!(taken < 60, "a header with flipped bits was never noticed");
    run([OsStr::new("fsck"), place.store().as_ref()]).ok();
}

#[test]
fn bad_npy_files_are_refused_and_say_why() {
    let place = stored();
    let good = npy_file(&Random(4).floats(100));
    let with = |from: &str, to: &str| {
        let text = String::from_utf8_lossy(&good[10..128]).replacen(from, to, 1);
        let text = format!("{:<117}\n", text.trim_end());
        let mut bytes = good[..10].to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(&good[128..]);
        bytes
    };
    for (name, bytes, words) in [
        ("cut", good[..500].to_vec(), &[][..]),
        ("magic", [b"\x93NUMPZ", &good[6..]].concat(), &[]),
        ("version", [b"\x93NUMPY\x09\x00", &good[8..]].concat(), &["version"]),
        ("objects", with("<f4", "|O"), &[]),
        ("fortran", with("False, 'shape': (100,)", "True, 'shape': (10,10)"), &["Fortran"]),
        ("big", with("<f4", ">f4"), &["big-endian"]),
        ("overflow", with("(100,)", "(4294967296,4294967296,4294967296)"), &[]),
        ("more", with("(100,)", "(101,)"), &[]),
        ("code", with("(100,)", "__import__('os')"), &[]),
        ("nesting", with("(100,)", "((((((((((((((((((((1"), &[]),
        ("empty", Vec::new(), &[]),
    ] {
        refused(&place, &place.write(&format!("{name}.npy"), bytes), words);
    }
}

#[test]
fn invalid_names_are_escaped_and_stay_below_their_collection() {
    let place = stored();
    let long = "n".repeat(300);
    let names = [
        ("..", 1),
        ("../../../etc/passwd", 2),
        ("/absolute", 3),
        ("a/../b", 4),
        ("dot/.", 5),
        (".ctl", 6),
        (".as", 7),
        (".ctl/status", 8),
        ("line\nfeed", 9),
        ("zero\u{0}byte", 10),
        ("", 11),
        ("a//b", 12),
        ("t", 13),
        ("t/u", 14),
        (&long, 15),
        ("100%", 16),
        ("umläut", 17),
        ("model.safetensors", 18),
        ("trailing/", 19),
        ("\u{7f}", 20),
    ];
    let mut random = Random(5);
    let bytes = container_of(&mut random, &names);
    let file = place.write("evil/model.safetensors", &bytes);
    place.import("demo/evil", &[&file], &[]);
    let mounted = place.mount(&[]);
    let folder = mounted.path("demo/evil");
    assert_same(&fs::read(folder.join("model.safetensors")).unwrap(), &bytes, "the container");
    // The size identifies each tensor; each has a name below that of the container and no other.
    assert_eq!(files_below(&folder), [Path::new("model.safetensors")]);
    let folder = folder.join(".tensors/model.safetensors");
    let found = files_below(&folder);
    let mut sizes: Vec<u64> =
        found.iter().map(|path| fs::metadata(folder.join(path)).unwrap().len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, (1..=20).map(|count| count * 4).collect::<Vec<u64>>(), "{found:?}");
    for path in &found {
        let shown = path.to_str().unwrap();
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
        assert!(path.components().all(|part| part.as_os_str().len() <= 255), "{shown:?}");
    }
    let size =
        |name: &str| fs::metadata(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}")).len();
    assert_eq!(size("t"), 13 * 4);
    assert_eq!(size("umläut"), 17 * 4);
    assert_eq!(size("line%0Afeed"), 9 * 4);
    assert_eq!(size("%2E%2E"), 4);
    assert_eq!(size("t%2Fu"), 14 * 4);
    assert_eq!(size("100%"), 16 * 4);
    // The container has its own name, so the tensor of that name is only below it.
    let folder = mounted.path("demo/evil");
    assert_eq!(fs::metadata(folder.join("model.safetensors")).unwrap().len(), bytes.len() as u64);
    assert_eq!(files_below(&folder.join(".tensors")).len(), 19 + 20);
    // The names of controls belong to the mount.
    assert!(fs::read_to_string(folder.join(".ctl/status")).unwrap().contains("demo/evil"));
    let cut = found.iter().find(|path| path.to_str().unwrap().starts_with("nnnn")).unwrap().to_str().unwrap();
    assert!(cut.len() == 200 + 2 + 32 && cut[200..].starts_with("%~"), "{cut}");
    assert_eq!(fs::read_dir(mounted.path("demo")).unwrap().count(), 2);
    mounted.unmount();
    run([OsStr::new("fsck"), place.store().as_ref()]).ok();
    let out = place.path("out");
    run([OsStr::new("export"), place.store().as_ref(), "demo/evil".as_ref(), out.as_ref()]).ok();
    assert_eq!(files_below(&out), [Path::new("model.safetensors")]);
}

/// A safetensors file of one tensor for each of these names, without bytes.
fn empty_tensors(names: impl Iterator<Item = String>) -> Vec<u8> {
    let entry = |name: String| {
        format!(r#"{}:{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#, serde_json::json!(name))
    };
    safetensors_file(&format!("{{{}}}", names.map(entry).collect::<Vec<_>>().join(",")), b"")
}

/// A GGUF file of one tensor of one byte with this name.
fn gguf_of(name: &str) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend([1_u64, 0, name.len() as u64].iter().flat_map(|number| number.to_le_bytes()));
    bytes.extend(name.as_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(1_u64.to_le_bytes());
    bytes.extend(24_u32.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.push(7);
    bytes
}

fn why(path: &Path) -> String {
    let mut value = vec![0; 1 << 16];
    let len = rustix::fs::getxattr(path, "user.tierfs.why", &mut value[..]).unwrap();
    String::from_utf8(value[..len].to_vec()).unwrap()
}

#[test]
fn containers_with_very_long_names_cost_no_more_than_their_bytes() {
    let slashes = "/".repeat(600_000);
    let entry = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let fan = (0..65_000).map(|number| format!("{number}{}", "/x".repeat(60)));
    // The first byte of each name differs from the others, and each name is a prefix of the next path.
    let files_in_the_way = (1..2000).map(|count| vec!["a"; count].join("/"));
    let mut files = vec![
        ("slashes.safetensors", empty_tensors([slashes.clone()].into_iter())),
        ("long.safetensors", empty_tensors(["n".repeat(8 << 20)].into_iter())),
        ("both.safetensors", empty_tensors((0..20).map(|count| "a/".repeat(100_000) + &count.to_string()))),
        ("fan.safetensors", empty_tensors(fan)),
        ("way.safetensors", empty_tensors(files_in_the_way)),
        ("type.safetensors", safetensors_file(&format!(r#"{{"w":{}}}"#, entry.replace("U8", &slashes)), b"")),
        ("slashes.gguf", gguf_of(&slashes)),
        ("long.gguf", gguf_of(&"n".repeat(8 << 20))),
    ];
    let many = empty_tensors((0..190_000).map(|number| format!("{number:x}")));
    assert!(many.len() > 10_000_000);
    files.push(("many.safetensors", many));
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    let folder = mounted.path("t/c");
    fs::create_dir_all(&folder).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let longest = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut longest = std::time::Duration::ZERO;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let since = std::time::Instant::now();
                fs::write(folder.join("other"), b"of somebody else").unwrap();
                longest = longest.max(since.elapsed());
            }
            longest
        });
        for (name, bytes) in &files {
            fs::write(folder.join(name), bytes).unwrap();
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert!(longest.as_secs() < 5, "a writer has waited for {longest:?}");
    for (name, bytes) in &files {
        assert!(fs::read(folder.join(name)).unwrap() == *bytes, "{name}");
        let why = why(&folder.join(name));
        let says_so = why.contains("plain file") || why.contains("not shown");
        assert!(says_so && why.len() < 10_000, "{name}: {} bytes of why", why.len());
    }
    let listed = fs::read_dir(&folder).unwrap().count();
    assert_eq!(listed, files.len() + 1);
    let log = fs::metadata(place.store().join("t/c/meta.log")).unwrap().len();
    assert!(log < 6 << 20, "a log of {log} bytes");
    let status = fs::read_to_string(format!("/proc/{}/status", mounted.daemon().unwrap())).unwrap();
    let kilobytes = |field: &str| {
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    assert!(kilobytes("VmHWM:") < 256 << 10, "{status}");
    mounted.unmount();
    for (name, bytes) in files {
        let file = place.write(name, bytes);
        let imported = place.try_import("t/d", &[&file], &["--strict"]);
        // Names that are too long hide only their tensors.
        assert!(imported.code == Some(1) || imported.err.contains("not shown"), "{imported:?}");
        assert!(imported.err.contains(name), "{imported:?}");
    }
    run([OsStr::new("fsck"), place.store().as_ref()]).ok();
}

#[test]
fn names_of_control_files_are_refused_for_files_and_collections() {
    let place = stored();
    place.write("folder/.ctl", b"mine");
    place.write("folder/.hidden", b"hidden");
    let answer = place.try_import("demo/names", &[&place.path("folder")], &[]);
    // Refused or escaped: the names of controls stay those of the mount.
    assert!(matches!(answer.code, Some(0 | 1)), "{answer:?}");
    for bad in ["demo/.ctl", ".ctl/x", "demo/..", "../x", "demo/a\nb", "demo/", "/x"] {
        let answer = place.try_import(bad, &[&place.path("good")], &[]);
        assert!(matches!(answer.code, Some(1 | 2)), "{bad:?}: {answer:?}");
    }
    let mounted = place.mount(&[]);
    assert!(fs::read_to_string(mounted.path("demo/names/.ctl/status")).unwrap().contains("demo/names"));
    assert_eq!(fs::read(mounted.path("demo/names/.hidden")).unwrap(), b"hidden");
    assert_eq!(fs::read_dir(&mounted.mountpoint).unwrap().count(), 1);
}

#[test]
fn names_of_trees_are_escaped_and_no_file_takes_the_place_of_another() {
    let place = stored();
    place.write("folder/.as/f32/x", b"mine");
    place.write("folder/e/.tensors/y", b"yours");
    place.write("folder/a\nb", b"a line");
    place.write("folder/a%0Ab", b"no line");
    place.import("demo/trees", &[&place.path("folder")], &[]);
    let mounted = place.mount(&[]);
    for (path, bytes) in [
        ("%2Eas/f32/x", &b"mine"[..]),
        ("e/%2Etensors/y", b"yours"),
        ("a\nb", b"a line"),
        ("a%0Ab", b"no line"),
    ] {
        assert_eq!(fs::read(mounted.path("demo/trees").join(path)).unwrap(), bytes, "{path:?}");
    }
    answered(&["verify".as_ref(), mounted.path("demo/trees").as_ref()]).ok();
    drop(mounted);
    place.write("folder/e/%2Etensors/y", b"theirs");
    let answer = place.try_import("demo/both", &[&place.path("folder")], &[]);
    answer.failed(1, &["would have the same path in the collection"]);
}

fn answered(arguments: &[&OsStr]) -> Answer {
    answer(tierfs().args(arguments))
}

#[test]
fn an_import_refuses_bad_and_special_files_and_imports_the_others() {
    let place = stored();
    place.write("folder/fine.txt", b"fine");
    place.write("folder/bad.safetensors", b"not at all");
    let answer = place.try_import("demo/mixed", &[&place.path("folder")], &[]);
    answer.failed(1, &["bad.safetensors"]);
    let rows =
        run([OsStr::new("ls"), place.store().as_ref(), "demo/mixed".as_ref(), "--json".as_ref()]).json();
    assert_eq!(rows.as_array().unwrap().len(), 1);
    assert_eq!(rows[0]["name"], "fine.txt");
    let fifo = place.path("fifo");
    answer_of_mkfifo(&fifo);
    refused(&place, &fifo, &["neither a file nor a directory"]);
    refused(&place, &place.path("not there"), &[]);
    for shards in [&fifo, &place.path("folder"), &place.path("not there")] {
        place
            .try_import("demo/shards", &[shards], &["--shard-of", "x"])
            .failed(1, &[shards.to_str().unwrap()]);
    }
    fs::remove_file(&fifo).unwrap();
    std::os::unix::fs::symlink(".", place.path("folder/around")).unwrap();
    place.try_import("demo/around", &[&place.path("folder")], &[]).failed(1, &["leads back"]);
}

fn answer_of_mkfifo(path: &Path) {
    let status = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_manifest_refuses_files_that_it_does_not_list_or_lists_differently() {
    let place = stored();
    let (one, two) = (place.write("sums/one.txt", b"one"), place.write("sums/two.txt", b"two"));
    let sums = support::shell(&place.path("sums"), "sha256sum one.txt two.txt > ../SHA256SUMS");
    drop(sums);
    let manifest = place.path("SHA256SUMS");
    let options = ["--manifest", manifest.to_str().unwrap()];
    place.import("demo/sums", &[&one, &two], &options);
    fs::write(&two, b"twp").unwrap();
    let more = place.write("sums/three.txt", b"three");
    place.try_import("demo/sums", &[&two, &more], &options).failed(1, &["two.txt", "SHA-256", "three.txt"]);
    let out = place.path("out");
    run([OsStr::new("export"), place.store().as_ref(), "demo/sums".as_ref(), out.as_ref()]).ok();
    assert_eq!(fs::read(out.join("two.txt")).unwrap(), b"two");
    assert_eq!(files_below(&out).len(), 2);
}

#[test]
fn a_usage_error_exits_with_2() {
    let place = stored();
    let store = place.store();
    let store: &OsStr = store.as_ref();
    let good = place.path("good");
    for arguments in [
        &[][..],
        &[OsStr::new("fly")],
        &["mount".as_ref(), store],
        &["import".as_ref(), store, "demo/x".as_ref()],
        &["import".as_ref(), store, "demo/x".as_ref(), good.as_ref(), "--tier".as_ref(), "q9".as_ref()],
        &["import".as_ref(), store, "demo/x".as_ref(), good.as_ref(), "--tier".as_ref(), "q8:some".as_ref()],
        &["import".as_ref(), store, "demo/x".as_ref(), good.as_ref(), "--block-bytes".as_ref(), "5".as_ref()],
        &["import".as_ref(), store, "collection".as_ref(), good.as_ref()],
        &["import".as_ref(), store, "a/b/c".as_ref(), good.as_ref()],
        &[
            "import".as_ref(),
            store,
            "demo/x".as_ref(),
            good.as_ref(),
            "--shard-of".as_ref(),
            "x".as_ref(),
            "--update".as_ref(),
        ],
        &["mount".as_ref(), store, good.as_ref(), "--list".as_ref(), "nothing".as_ref()],
        &["mount".as_ref(), store, good.as_ref(), "-o".as_ref(), "colour=blue".as_ref()],
        &["mount".as_ref(), store, good.as_ref(), "-o".as_ref(), "list=nothing".as_ref()],
    ] {
        let answer = answered(arguments);
        assert_eq!(answer.code, Some(2), "{arguments:?}: {answer:?}");
        assert!(!answer.err.is_empty());
    }
    for help in [
        "init", "import", "export", "mount", "umount", "ls", "stat", "du", "verify", "scrub", "fsck",
        "doctor",
    ] {
        let text = run([help, "--help"]).ok();
        assert!(text.contains(&format!("Example: tierfs {help}")), "{help}: {text}");
    }
    run(["--version"]).ok();
    run(["doctor"]).ok();
}

/// The data file that holds these bytes, and their offset.
fn extent_of(place: &Place, bytes: &[u8]) -> (PathBuf, u64) {
    let store = place.store();
    for name in files_below(&store) {
        let held = fs::read(store.join(&name)).unwrap();
        if let Some(at) = held.windows(bytes.len()).position(|window| window == bytes) {
            return (store.join(name), at as u64);
        }
    }
    panic!("no file of the store holds the bytes");
}

#[test]
fn a_flipped_byte_is_found_by_fsck_and_never_read() {
    let place = Place::new();
    let whole = container_of(&mut Random(8), &[("first", 20_000), ("second", 20_000)]);
    place.import("demo/model", &[&place.write("model.safetensors", &whole)], &[]);
    let second = &whole[whole.len() - 80_000..];
    let (path, at) = extent_of(&place, &second[30_000..30_064]);
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&[second[30_000] ^ 0x40], at).unwrap();

    let answer = run([OsStr::new("fsck"), place.store().as_ref()]);
    assert_eq!(answer.code, Some(3), "{answer:?}");
    assert!(answer.out.contains("demo/model/second") && !answer.out.contains("first"), "{answer:?}");
    let found = run([OsStr::new("fsck"), place.store().as_ref(), "--json".as_ref()]);
    assert_eq!(found.code, Some(3));
    let out = place.path("out");
    let export =
        run([OsStr::new("export"), place.store().as_ref(), "demo/model/second".as_ref(), out.as_ref()]);
    assert_eq!(export.code, Some(3), "{export:?}");
    assert!(!out.exists(), "half a file must not look like one");
    let left = fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains("partial")).collect();
    assert_eq!(left, [""; 0], "nor stay");

    let mounted = place.mount(&[]);
    for name in ["second", "model.safetensors"] {
        let error = fs::read(mounted.path(Path::new("demo/model").join(name))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}");
    }
    // Other blocks are still readable.
    let first = fs::read(mounted.path("demo/model/first")).unwrap();
    assert_same(&first, &whole[whole.len() - 160_000..whole.len() - 80_000], "first");
    let open = fs::File::open(mounted.path("demo/model/second")).unwrap();
    let mut out = vec![0; 4096];
    assert_eq!(read_at(&open, &mut out, 70_000), 4096);
    assert_same(&out, &second[70_000..74_096], "another block of the same tensor");
    assert!(mounted.stats()["corrupt"].as_u64().unwrap() >= 2, "{}", mounted.stats());
    drop(open);
    let log = mounted.log();
    assert!(log.contains("demo/model") && log.contains("fsck"), "{log}");
    mounted.unmount();

    // With its bit restored it is readable again.
    file.write_all_at(&second[30_000..30_001], at).unwrap();
    run([OsStr::new("fsck"), place.store().as_ref()]).ok();
    let mounted = place.mount(&["--verify", "always"]);
    assert_same(&fs::read(mounted.path("demo/model/second")).unwrap(), second, "second");
    // Each use verifies the block, so a mounted store notices the damage too.
    file.write_all_at(&[second[30_000] ^ 1], at).unwrap();
    let direct = support::open_direct(&mounted.path("demo/model/second"));
    let mut memory = support::Aligned::new(1 << 17);
    let error = direct.read_at(memory.pages(1 << 17), 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
}

#[test]
fn a_damaged_log_is_reported_and_other_collections_stay_readable() {
    let place = stored();
    place.import("demo/other", &[&place.path("good")], &[]);
    let log = place.store().join("demo/good/meta.log");
    let mut bytes = fs::read(&log).unwrap();
    // A slot of the first batch, which other batches follow.
    bytes[256..300].iter_mut().for_each(|byte| *byte ^= 0xff);
    fs::write(&log, &bytes).unwrap();
    let answer = run([OsStr::new("fsck"), place.store().as_ref()]);
    assert_eq!(answer.code, Some(3), "{answer:?}");
    assert!(answer.out.contains("demo/good") && !answer.out.contains("demo/other"), "{answer:?}");
    let mounted = place.mount(&[]);
    let other = fs::read(mounted.path("demo/other/model.safetensors")).unwrap();
    assert_same(&other, &fs::read(place.path("good/model.safetensors")).unwrap(), "the other collection");
    let status = fs::read_to_string(mounted.path(".ctl/status")).unwrap();
    assert!(status.contains("demo/good"), "{status}");
}
