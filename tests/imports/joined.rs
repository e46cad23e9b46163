//! Files that `tierfs join` makes of the bytes of others.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use support::{
    Answer, Mounted, Place, Random, container_of, files_below, fsck, get, npy_file, refused, refused_set,
    run, safetensors_file, set, tensors_of, truncate, try_get, usage, wait_until,
};

/// The cuts of a file of `len` bytes in `count` parts, at random places.
fn cuts(random: &mut Random, len: usize, count: usize) -> Vec<usize> {
    let mut at: Vec<usize> = (1..count).map(|_| 1 + random.below(len - 1)).collect();
    at.extend([0, len]);
    at.sort_unstable();
    at.dedup();
    at
}

/// The parts of bytes, as files that are named p0, p1 and so on.
fn parts(place: &Place, bytes: &[u8], at: &[usize]) -> Vec<PathBuf> {
    let ranges = at.windows(2).map(|two| two[0]..two[1]);
    ranges.enumerate().map(|(number, range)| place.write(&format!("in/p{number}"), &bytes[range])).collect()
}

fn join(target: &Path, sources: &[String], options: &[&str]) -> Answer {
    let words = [OsString::from("join"), target.into()];
    run(words.into_iter().chain(sources.iter().map(OsString::from)).chain(options.iter().map(OsString::from)))
}

fn import_all(place: &Place, sources: &[PathBuf], options: &[&str]) -> Vec<String> {
    let paths: Vec<&Path> = sources.iter().map(PathBuf::as_path).collect();
    place.import("t/c", &paths, options);
    sources.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

/// The payload files and data files of the collection, each with its length and allocated blocks.
fn on_disk(mounted: &Mounted) -> Vec<(PathBuf, u64, u64)> {
    let folder = mounted.store.join("t/c");
    let files = files_below(&folder);
    let is_payload = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.ends_with(".dat") || path.starts_with("data")
    };
    let mut found: Vec<_> = files
        .into_iter()
        .filter(is_payload)
        .map(|path| {
            let found = fs::metadata(folder.join(&path)).unwrap();
            (path, found.len(), found.blocks())
        })
        .collect();
    found.sort();
    found
}

fn read(mounted: &Mounted, name: &str) -> Vec<u8> {
    fs::read(mounted.path("t/c").join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A safetensors file of f32 tensors.
fn model(random: &mut Random, tensors: &[(&str, Vec<usize>)]) -> Vec<u8> {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let begin = end;
        end += 4 * shape.iter().product::<usize>();
        let entry = serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, end] });
        header.insert((*name).to_owned(), entry);
    }
    safetensors_file(&serde_json::Value::from(header).to_string(), &random.floats(end / 4))
}

#[test]
fn the_pieces_of_a_model_are_a_container_again_and_nothing_is_copied() {
    let mut random = Random(171);
    let tensors = [
        ("model.layers.0.mlp.gate_proj.weight", vec![300, 300]),
        ("model.layers.0.mlp.down_proj.weight", vec![200, 300]),
        ("model.norm.weight", vec![301]),
        ("empty", vec![0]),
    ];
    let model = model(&mut random, &tensors);
    for count in [2, 3, 7] {
        let place = Place::new();
        let whole = place.write("whole.safetensors", &model);
        place.import("t/w", &[&whole], &[]);
        let at = cuts(&mut random, model.len(), count);
        let names = import_all(&place, &parts(&place, &model, &at), &[]);
        let mut mounted = place.mount(&[]);
        let (before, used) = (on_disk(&mounted), usage(&mounted, "t/c"));
        let joined = mounted.path("t/c/m.safetensors");
        join(&joined, &names, &[]).ok();
        assert_eq!(on_disk(&mounted), before, "{at:?}");
        let now = usage(&mounted, "t/c");
        assert_eq!((now[1], now[2]), (used[1], used[2]), "no bytes are counted twice");
        for _ in 0..3 {
            assert!(read(&mounted, "m.safetensors") == model, "{at:?}");
            for (name, bytes) in tensors_of(&model) {
                let tensor = mounted.path("t/c/.tensors").join(&name);
                assert!(fs::read(&tensor).unwrap() == bytes, "{name} {at:?}");
                let wanted = mounted.path("t/w/.tensors").join(&name);
                for attribute in ["dtype", "shape", "tier"] {
                    assert_eq!(get(&tensor, attribute), get(&wanted, attribute), "{name} {attribute}");
                }
            }
            // Forms of the file and of its tensors are those of a file that was imported whole.
            for form in ["f32", "bf16", "q8", "safetensors", "npy", "tp/1-of-2"] {
                let [own, wanted] = ["t/c", "t/w"].map(|at| mounted.path(at).join(".as").join(form));
                if !["safetensors", "npy"].contains(&form) {
                    let found =
                        fs::read(own.join("m.safetensors")).unwrap_or_else(|error| panic!("{form}: {error}"));
                    let wanted = fs::read(wanted.join("whole.safetensors")).unwrap();
                    // Views stay as they are in a what-if form.
                    assert_eq!(found.len(), wanted.len(), "{form}");
                    assert!(form == "q8" || found == wanted, "{form} {at:?}");
                    continue;
                }
                for (name, _) in tensors.iter().filter(|(_, shape)| shape[0] > 0) {
                    let found = fs::read(own.join(".tensors").join(format!("{name}.{form}"))).unwrap();
                    let wanted = fs::read(wanted.join(".tensors").join(format!("{name}.{form}"))).unwrap();
                    assert!(found == wanted, "{form} {name} {at:?}");
                }
            }
            for (number, range) in at.windows(2).map(|two| two[0]..two[1]).enumerate() {
                assert!(read(&mounted, &format!("p{number}")) == model[range]);
            }
            mounted.job("t/c/.ctl/compact", "start");
            mounted.kill();
            drop(mounted);
            fsck(&place.store());
            mounted = place.mount(&[]);
        }
        // The bytes stay as long as a file has them.
        names.iter().for_each(|name| fs::remove_file(mounted.path("t/c").join(name)).unwrap());
        mounted.job("t/c/.ctl/compact", "start");
        assert!(read(&mounted, "m.safetensors") == model);
        mounted.unmount();
        fsck(&place.store());
        let mounted = place.mount(&[]);
        assert!(read(&mounted, "m.safetensors") == model);
        let (name, bytes) = tensors_of(&model).remove(0);
        assert!(fs::read(mounted.path("t/c/.tensors").join(name)).unwrap() == bytes);
        // By another name and back it is taken apart where its bytes lie, and its tensors have tiers of their own.
        fs::rename(mounted.path("t/c/m.safetensors"), mounted.path("t/c/m.tmp")).unwrap();
        fs::rename(mounted.path("t/c/m.tmp"), mounted.path("t/c/m.safetensors")).unwrap();
        assert!(read(&mounted, "m.safetensors") == model);
        run([
            "tier".as_ref(),
            "q8:all".as_ref(),
            "--lossy".as_ref(),
            mounted.path("t/c/m.safetensors").as_os_str(),
        ])
        .ok();
        assert_eq!(get(&mounted.path("t/c/.tensors/model.norm.weight"), "tier"), "q8");
        fs::remove_file(mounted.path("t/c/m.safetensors")).unwrap();
        fs::write(mounted.path(".ctl/sync"), "now").unwrap();
        assert_eq!(usage(&mounted, "t/c")[2], 0);
    }
}

#[test]
fn tensors_in_tiers_and_packed_ones_keep_their_blocks_in_the_joined_tensor() {
    let place = Place::new();
    let mut random = Random(172);
    let data: Vec<Vec<u8>> = (0..3).map(|number| random.floats((number + 1) * 64 * 256)).collect();
    let sources: Vec<PathBuf> =
        data.iter().enumerate().map(|(at, bytes)| place.write(&format!("in/p{at}"), bytes)).collect();
    let names = import_all(&place, &sources, &[]);
    let mounted = place.mount(&[]);
    let path = |name: &str| mounted.path("t/c").join(name);
    for (at, name) in names.iter().enumerate() {
        set(&path(name), "dtype", "f32").unwrap();
        set(&path(name), "shape", &format!("{}x256", (at + 1) * 64)).unwrap();
    }
    set(&path("p0"), "lossy", "allow").unwrap();
    run(["tier".as_ref(), "q8".as_ref(), path("p0").as_os_str()]).ok();
    run(["pack".as_ref(), path("p1").as_os_str()]).ok();
    let bytes: Vec<u8> = names.iter().flat_map(|name| read(&mounted, name)).collect();
    let blocks = |name: &str| fs::read_to_string(mounted.path("t/c/.ctl/blocks").join(name)).unwrap();
    let before: Vec<String> = names.iter().map(|name| blocks(name)).collect();
    let on_disk_before = on_disk(&mounted);
    join(&path("w"), &names, &[]).ok();
    assert_eq!(on_disk(&mounted), on_disk_before);
    assert_eq!([get(&path("w"), "dtype"), get(&path("w"), "shape")], ["f32", "384x256"]);
    assert!(read(&mounted, "w") == bytes);
    assert_eq!(names.iter().map(|name| blocks(name)).collect::<Vec<_>>(), before);
    let payloads = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    };
    assert_eq!(payloads(&blocks("w")), payloads(&before.concat()));
    let cast = fs::read(mounted.path("t/c/.as/npy/w.npy")).unwrap();
    assert!(cast.ends_with(&bytes));
    // As long as it shares its bytes, it stays in its tiers, and so do the others.
    for name in ["w", "p2"] {
        let why = refused_set(&path(name), "tier", "q5", Errno::BUSY);
        assert!(why.contains("has its bytes too"), "{why}");
    }
    for name in &names {
        fs::remove_file(path(name)).unwrap();
    }
    assert!(read(&mounted, "w") == bytes);
    set(&path("w"), "lossy", "allow").unwrap();
    run(["tier".as_ref(), "q5".as_ref(), path("w").as_os_str()]).ok();
    assert_eq!(get(&path("w"), "tier"), "q5");
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn shared_bytes_cannot_be_changed_and_go_with_the_last_file() {
    let place = Place::new();
    let bytes = Random(173).bytes(200_000);
    let names = import_all(&place, &parts(&place, &bytes, &[0, 70_001, 150_000, 200_000]), &[]);
    let mounted = place.mount(&[]);
    let path = |name: &str| mounted.path("t/c").join(name);
    fs::hard_link(path("p1"), path("other")).unwrap();
    let held = fs::File::open(path("p0")).unwrap();
    let paths: Vec<String> = names.iter().map(|name| path(name).to_str().unwrap().to_owned()).collect();
    join(&path("dir/w"), &paths, &[]).ok();
    for name in ["dir/w", "p0", "p1", "other"] {
        let opened = fs::File::options().write(true).open(path(name));
        assert_eq!(opened.unwrap_err().raw_os_error(), Some(Errno::BUSY.raw_os_error()), "{name}");
        assert!(get(&path(name), "why").contains("has its bytes too"), "{}", get(&path(name), "why"));
        assert!(fs::write(path(name), "x").is_err());
        refused(truncate(&path(name), 5), libc::EBUSY);
        assert!(fs::rename(path(name), path("x.safetensors")).is_err());
    }
    // Other names, modes and times.
    fs::rename(path("p2"), path("moved")).unwrap();
    fs::rename(path("dir/w"), path("w")).unwrap();
    assert!(read(&mounted, "w") == bytes);
    fs::remove_file(path("p0")).unwrap();
    let mut found = vec![0; 70_001];
    held.read_exact_at(&mut found, 0).unwrap();
    assert!(found == bytes[..70_001]);
    fs::remove_file(path("p1")).unwrap();
    assert!(read(&mounted, "other") == bytes[70_001..150_000]);
    // An import may take the name of a piece.
    let replaced = place.write("in/moved", "new");
    run(["import".as_ref(), place.store().as_os_str(), "t/c".as_ref(), replaced.as_os_str()]).ok();
    assert_eq!(read(&mounted, "moved"), b"new");
    assert!(read(&mounted, "w") == bytes);
    assert!(fs::File::options().write(true).open(path("w")).is_err());
    fs::remove_file(path("other")).unwrap();
    // A removed piece that is open keeps its bytes.
    let error = fs::File::options().write(true).open(path("w")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    drop(held);
    wait_until("the kernel tells of the close", || fs::File::options().write(true).open(path("w")).is_ok());
    // It is the only one now.
    let file = fs::File::options().write(true).open(path("w")).unwrap();
    file.write_all_at(b"changed", 70_000).unwrap();
    drop(file);
    let mut wanted = bytes.clone();
    wanted[70_000..70_007].copy_from_slice(b"changed");
    assert!(read(&mounted, "w") == wanted);
    // A joined file of a joined file.
    fs::write(path("more"), &bytes[..30_000]).unwrap();
    join(&path("all"), &["w".to_owned(), "more".to_owned()], &[]).ok();
    wanted.extend_from_slice(&bytes[..30_000]);
    mounted.unmount();
    let mounted = place.mount(&[]);
    let path = |name: &str| mounted.path("t/c").join(name);
    assert!(read(&mounted, "all") == wanted);
    assert!(fs::File::options().write(true).open(path("w")).is_err());
    fs::remove_file(path("all")).unwrap();
    assert!(read(&mounted, "w") == wanted[..200_000]);
    let file = fs::File::options().append(true).open(path("w")).unwrap();
    file.write_all_at(b"end", 200_000).unwrap();
    drop(file);
    wanted.truncate(200_000);
    wanted.extend_from_slice(b"end");
    assert!(read(&mounted, "w") == wanted);
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn files_that_cannot_be_joined_are_refused_by_name() {
    let place = Place::new();
    let bytes = Random(174).floats(30_000);
    let mut sources = parts(&place, &bytes, &[0, 40_002, 120_000]);
    sources.push(place.write("in/a.npy", npy_file(&bytes)));
    sources.push(place.write("in/none", ""));
    drop(import_all(&place, &sources, &[]));
    place.import("t/d", &[&sources[0]], &[]);
    let mounted = place.mount(&[]);
    let path = |name: &str| mounted.path("t/c").join(name);
    let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let other = mounted.path("t/d/p0").to_str().unwrap().to_owned();
    for (names, options, words) in [
        (of(&["p0", "nowhere"]), &[][..], "nowhere"),
        (of(&["p0", "none"]), &[], "none is empty"),
        (of(&["p0", "p1", "p0"]), &[], "p0 is there twice"),
        (of(&["p0", "a.npy"]), &[], "a.npy is a container"),
        (of(&["p0", ".tensors/a"]), &[], "belongs to a container"),
        (of(&["p0", "../c"]), &[], ""),
        (vec!["p0".to_owned(), other], &[], "is not in t/c"),
        (of(&["p0", "p1"]), &["--dtype", "f32"], "p0 has 40002 bytes"),
        (of(&["p1", "p0"]), &["--dtype", "f32", "--shape", "7x7"], "7x7"),
        (of(&["p0", "p1"]), &["--dtype", "f99"], "f99"),
    ] {
        let answer = join(&path("w"), &names, options);
        assert!(answer.code == Some(1) || answer.code == Some(2), "{names:?} {answer:?}");
        assert!(answer.err.contains(words), "{words}: {answer:?}");
        assert!(!path("w").exists(), "{names:?}");
    }
    assert!(join(&path("p0"), &of(&["p1"]), &[]).err.contains("p0 exists"));
    assert!(join(&place.path("w"), &of(&["p1"]), &[]).err.contains("not on a tierfs mount"));
    // A file that a program writes has no settled bytes.
    let writer = fs::File::options().write(true).open(path("p1")).unwrap();
    let answer = join(&path("w"), &of(&["p0", "p1"]), &[]);
    assert!(answer.err.contains("p1 is open for writing"), "{answer:?}");
    writer.write_all_at(b"written", 100).unwrap();
    drop(writer);
    join(&path("w"), &of(&["p0", "p1"]), &[]).ok();
    let mut wanted = bytes.clone();
    wanted[40_102..40_109].copy_from_slice(b"written");
    assert!(read(&mounted, "w") == wanted);
    // A name that the bytes do not fit.
    let answer = join(&path("x.safetensors"), &of(&["p0", "p1"]), &[]);
    assert!(answer.code == Some(0) && answer.err.contains("kept as a plain file"), "{answer:?}");
    assert!(get(&path("x.safetensors"), "why").starts_with("kept as a plain file"));
    assert_eq!(try_get(&path("w"), "why"), Err(Errno::NODATA));
    // Whole elements are a tensor.
    fs::write(path("f0"), &bytes[..40_000]).unwrap();
    fs::write(path("f1"), &bytes[40_000..]).unwrap();
    join(&path("f"), &of(&["f0", "f1"]), &["--dtype", "f32", "--shape", "300x100"]).ok();
    assert_eq!([get(&path("f"), "dtype"), get(&path("f"), "shape")], ["f32", "300x100"]);
    assert!(read(&mounted, "f") == bytes);
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn a_joined_file_is_pushed_and_cloned() {
    let place = Place::new();
    let mut random = Random(175);
    let model = container_of(&mut random, &[("a", 60_000), ("b", 50_000)]);
    let at = cuts(&mut random, model.len(), 3);
    let names = import_all(&place, &parts(&place, &model, &at), &[]);
    let mounted = place.mount(&[]);
    join(&mounted.path("t/c/m.safetensors"), &names, &[]).ok();
    mounted.unmount();
    let url = format!("file://{}", place.path("bucket").display());
    fs::create_dir(place.path("bucket")).unwrap();
    let store = place.store();
    run(["push", store.to_str().unwrap(), "t/c", &url, "--create"]).ok();
    run(["clone", &url, "t/c=t/again", store.to_str().unwrap()]).ok();
    let mounted = place.mount(&[]);
    let clone = mounted.path("t/again");
    assert!(fs::read(clone.join("m.safetensors")).unwrap() == model);
    let (name, bytes) = tensors_of(&model).remove(1);
    assert!(fs::read(clone.join(".tensors").join(name)).unwrap() == bytes);
    assert!(fs::File::options().write(true).open(clone.join("p1")).is_err());
    names.iter().for_each(|name| fs::remove_file(clone.join(name)).unwrap());
    assert!(fs::read(clone.join("m.safetensors")).unwrap() == model);
    mounted.unmount();
    fsck(&store);
}

#[test]
fn damage_of_shared_bytes_is_mended_for_all_files_by_an_import_of_the_piece() {
    let place = Place::new();
    let bytes = Random(176).bytes(200_000);
    let sources = parts(&place, &bytes, &[0, 100_000, 200_000]);
    let names = import_all(&place, &sources, &[]);
    let mounted = place.mount(&[]);
    let blocks = fs::read_to_string(mounted.path("t/c/.ctl/blocks/p1")).unwrap();
    let file = blocks.split(' ').find_map(|word| word.strip_prefix("file=")).unwrap().to_owned();
    join(&mounted.path("t/c/w"), &names, &[]).ok();
    mounted.unmount();
    let data = fs::File::options().write(true).open(place.store().join("t/c").join(file.trim())).unwrap();
    data.write_all_at(b"damage", 50_000).unwrap();
    let mounted = place.mount(&[]);
    for name in ["w", "p1"] {
        let error = fs::read(mounted.path("t/c").join(name)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}");
    }
    let store = place.store();
    let words = ["import".as_ref(), store.as_os_str(), "t/c".as_ref(), sources[1].as_os_str()];
    let text = run(words).ok();
    assert!(text.contains("mended 1 file"), "{text}");
    assert!(read(&mounted, "w") == bytes && read(&mounted, "p1") == bytes[100_000..]);
    mounted.unmount();
    fsck(&store);
}

#[test]
fn joined_files_without_their_common_source_still_share_its_bytes_after_a_mount() {
    let place = Place::new();
    let bytes = Random(177).bytes(200_000);
    let names = import_all(&place, &parts(&place, &bytes, &[0, 80_000, 140_000, 200_000]), &[]);
    let mounted = place.mount(&[]);
    let of = |at: &[usize]| at.iter().map(|at| names[*at].clone()).collect::<Vec<_>>();
    join(&mounted.path("t/c/one"), &of(&[0, 1]), &[]).ok();
    join(&mounted.path("t/c/two"), &of(&[0, 2]), &[]).ok();
    // The file in the middle of a chain goes.
    join(&mounted.path("t/c/middle"), &of(&[1, 2]), &[]).ok();
    join(&mounted.path("t/c/last"), &["middle".to_owned()], &[]).ok();
    for name in ["p0", "middle"] {
        fs::remove_file(mounted.path("t/c").join(name)).unwrap();
    }
    mounted.unmount();
    fsck(&place.store());
    let mounted = place.mount(&[]);
    let path = |name: &str| mounted.path("t/c").join(name);
    for name in ["one", "two", "last", "p1", "p2"] {
        let opened = fs::File::options().write(true).open(path(name));
        assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::EBUSY), "{name}");
    }
    for name in ["one", "p1", "p2"] {
        fs::remove_file(path(name)).unwrap();
    }
    mounted.job("t/c/.ctl/compact", "start");
    mounted.unmount();
    fsck(&place.store());
    let mounted = place.mount(&[]);
    assert!(read(&mounted, "two") == [&bytes[..80_000], &bytes[140_000..]].concat());
    assert!(read(&mounted, "last") == bytes[80_000..]);
    mounted.unmount();
}

#[test]
fn a_removed_source_that_is_open_keeps_its_bytes() {
    let place = Place::new();
    let bytes = Random(178).floats(200_000);
    let names = import_all(&place, &parts(&place, &bytes, &[0, 400_000, 800_000]), &[]);
    let mounted = place.mount(&[]);
    let path = |name: &str| mounted.path("t/c").join(name);
    join(&path("w"), &names, &["--dtype", "f32"]).ok();
    let held = fs::File::open(path("p0")).unwrap();
    let check = |what: &str| {
        let mut found = vec![0; 400_000];
        held.read_exact_at(&mut found, 0).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(found == bytes[..400_000], "{what}");
    };
    names.iter().for_each(|name| fs::remove_file(path(name)).unwrap());
    check("after the removal");
    refused(truncate(&path("w"), 4000), libc::EBUSY);
    check("after the cut");
    fs::remove_file(path("w")).unwrap();
    fs::write(mounted.path(".ctl/sync"), "now").unwrap();
    rustix::fs::fadvise(&held, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    check("after the removal of the joined file");
    drop(held);
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn a_replaced_source_does_not_give_back_the_quota_of_bytes_that_a_joined_file_has() {
    let place = Place::new();
    let bytes = Random(179).bytes(200_000);
    let names = import_all(&place, &parts(&place, &bytes, &[0, 100_000, 200_000])[..1], &[]);
    let mounted = place.mount(&[]);
    join(&mounted.path("t/c/w"), &names, &[]).ok();
    fs::write(mounted.path("t/.ctl/quota"), "bytes=150000").unwrap();
    let other = place.write("in/p0", &bytes[100_000..]);
    let words =
        ["import".as_ref(), place.store().as_os_str(), "t/c".as_ref(), other.as_os_str()].map(OsString::from);
    let answer = run(words.clone());
    assert!(answer.code != Some(0) && answer.err.contains("quota"), "{answer:?}");
    assert!(read(&mounted, "p0") == bytes[..100_000]);
    fs::write(mounted.path("t/.ctl/quota"), "bytes=200000").unwrap();
    run(words).ok();
    assert!(read(&mounted, "p0") == bytes[100_000..] && read(&mounted, "w") == bytes[..100_000]);
    mounted.unmount();
    fsck(&place.store());
}
