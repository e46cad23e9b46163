//! Shards: files that were cut become one file again.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use support::{Answer, Mounted, Place, Random, container_of, files_below, fsck, get, run, set, tensors_of};

/// The parts of bytes that are cut at these places.
fn cut(place: &Place, bytes: &[u8], at: &[usize], names: &[&str]) -> Vec<PathBuf> {
    let ends = at.iter().copied().chain([bytes.len()]);
    let begins = [0].into_iter().chain(at.iter().copied());
    begins
        .zip(ends)
        .zip(names)
        .map(|((begin, end), name)| place.write(&format!("parts/{name}"), &bytes[begin..end]))
        .collect()
}

fn import(place: &Place, name: &str, shards: &[PathBuf], options: &[&str]) -> Answer {
    let store = place.store();
    let words: [OsString; 4] = ["import".into(), "--shard-of".into(), name.into(), store.into()];
    let words = words.into_iter().chain(["t/c".into()]).chain(shards.iter().map(|path| path.clone().into()));
    run(words.chain(options.iter().map(OsString::from)))
}

const NAMES: [&str; 4] = ["p0", "p1", "p2", "p3"];

#[test]
fn a_model_that_was_cut_anywhere_is_a_container_in_every_tier() {
    let mut random = Random(71);
    let tensors = [("layer.a", 90_000), ("layer.b", 70_001), ("norm", 300)];
    let model = container_of(&mut random, &tensors);
    for options in
        [&[][..], &["--tier", "q8:all"], &["--tier", "q3"], &["--pack"], &["--block-bytes", "8192"]]
    {
        let place = Place::new();
        let whole = place.write("whole.safetensors", &model);
        place.import("t/w", &[&whole], options);
        let mut at: Vec<usize> = (0..3).map(|_| 1 + random.below(model.len() - 1)).collect();
        at.sort_unstable();
        at.dedup();
        let shards = cut(&place, &model, &at, &NAMES);
        import(&place, "m.safetensors", &shards, options).ok();
        let mounted = place.mount(&[]);
        let (one, other) = (mounted.path("t/c"), mounted.path("t/w"));
        let same = |name: &str, wanted: &str| {
            assert_eq!(
                fs::read(one.join(name)).unwrap(),
                fs::read(other.join(wanted)).unwrap(),
                "{name} {at:?}"
            );
        };
        same("m.safetensors", "whole.safetensors");
        for (name, _) in tensors {
            let (here, there) = (one.join(name), other.join(name));
            same(name, name);
            for attribute in ["tier", "dtype", "shape", "bytes_stored", "shards"] {
                assert_eq!(get(&here, attribute), get(&there, attribute), "{name} {attribute}");
            }
        }
        mounted.unmount();
        run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    }
}

#[test]
fn shards_with_a_type_are_one_tensor_wherever_they_were_cut() {
    let place = Place::new();
    let bytes = Random(72).floats(300_000);
    let shards = cut(&place, &bytes, &[1, 123_457, 999_999], &NAMES);
    let wrong = import(&place, "w", &shards, &["--dtype", "f32", "--shape", "300x1001"]);
    wrong.failed(1, &["1200000 bytes", "300x1001 of f32"]);
    import(&place, "w", &shards, &["--dtype", "f99"]).failed(2, &["\"f99\" is not a type"]);
    import(&place, "w", &shards, &["--dtype", "f32", "--shape", "300x1000", "--tier", "q8"]).ok();
    import(&place, "exact", &shards, &["--dtype", "f32"]).ok();
    // Without a type each shard stays an object, and there is no tensor that could have a tier.
    import(&place, "plain", &shards, &[]).ok();
    for options in [&["--tier", "q8"][..], &["--pack"]] {
        import(&place, "refused", &shards, options).failed(1, &["tier and pack", "--dtype"]);
    }
    let mounted = place.mount(&[]);
    let path = |name: &str| mounted.path(Path::new("t/c").join(name));
    for (name, values) in [("w", ["f32", "300x1000", "q8", "1"]), ("exact", ["f32", "300000", "exact", "1"])]
    {
        let found = ["dtype", "shape", "tier", "shards"].map(|attribute| get(&path(name), attribute));
        assert_eq!(found, values, "{name}");
    }
    assert_eq!((get(&path("plain"), "dtype"), get(&path("plain"), "shards")), ("u8".into(), "4".into()));
    assert_eq!(fs::read(path("exact")).unwrap(), bytes);
    assert_eq!(fs::read(path("plain")).unwrap(), bytes);
    let read = fs::read(path("w")).unwrap();
    let value = |bytes: &[u8], at: usize| f32::from_le_bytes(bytes[at * 4..at * 4 + 4].try_into().unwrap());
    assert!((0..300_000).all(|at| (value(&read, at) - value(&bytes, at)).abs() < 0.05));
    // A daemon joins them too.
    import(&place, "again", &shards, &["--dtype", "f32", "--shape", "1000x300"]).ok();
    assert_eq!(get(&path("again"), "shape"), "1000x300");
    assert_eq!(fs::read(path("again")).unwrap(), bytes);
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn shards_are_joined_in_the_order_of_their_numbers_or_as_they_are_named() {
    let place = Place::new();
    let bytes = Random(73).bytes(50_000);
    let numbers = [3_u128, 17, 1 << 100, u128::MAX].map(|number| format!("ctx-{number:032x}.bin"));
    let names: Vec<&str> = numbers.iter().map(String::as_str).collect();
    let mut shards = cut(&place, &bytes, &[10_000, 20_001, 30_000], &names);
    shards.swap(0, 3);
    shards.swap(1, 2);
    import(&place, "numbered", &shards, &[]).ok();
    let plain = cut(&place, &bytes, &[10_000, 20_001, 30_000], &NAMES);
    let turned: Vec<PathBuf> = plain.iter().rev().cloned().collect();
    import(&place, "turned", &turned, &[]).ok();
    let same = place.write(&format!("parts/other-{:032X}", u128::MAX), b"x");
    let repeated: Vec<PathBuf> = shards.iter().cloned().chain([same]).collect();
    import(&place, "repeated", &repeated, &[]).failed(1, &["have the same number", "ctx-", "other-"]);
    let twice = [&plain[..2], &plain[..1]].concat();
    import(&place, "twice", &twice, &[]).failed(1, &["the shard", "p0 is there twice"]);
    let empty = place.write("parts/empty", b"");
    import(&place, "empty", &[plain[0].clone(), empty], &[]).failed(1, &["parts/empty is empty"]);
    let missing = import(&place, "missing", &[plain[0].clone(), place.path("parts/none")], &[]);
    missing.failed(1, &["parts/none", "No such file"]);
    let mounted = place.mount(&[]);
    assert_eq!(fs::read(mounted.path("t/c/numbered")).unwrap(), bytes);
    let wanted = turned.iter().flat_map(|path| fs::read(path).unwrap()).collect::<Vec<u8>>();
    assert_eq!(fs::read(mounted.path("t/c/turned")).unwrap(), wanted);
    let names: Vec<_> =
        fs::read_dir(mounted.path("t/c")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

/// The files in which the blocks of a tensor lie, and the number of its blocks in each.
fn places(mounted: &Mounted, name: &str) -> BTreeMap<String, usize> {
    let text = fs::read_to_string(mounted.path("t/c/.ctl/blocks").join(name)).unwrap();
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let file = line.split(' ').find_map(|word| word.strip_prefix("file=")).unwrap_or_default();
        *found.entry(file.to_owned()).or_default() += 1;
    }
    found
}

/// The bytes in the payload files and data files of the collection.
fn stored(place: &Place) -> u64 {
    let folder = place.store().join("t/c");
    let is_payload =
        |path: &&PathBuf| path.starts_with("data") || path.extension().is_some_and(|end| end == "dat");
    let files = files_below(&folder);
    files.iter().filter(is_payload).map(|path| fs::metadata(folder.join(path)).unwrap().len()).sum()
}

#[test]
fn the_shards_of_a_model_stay_in_place_and_only_tensors_across_them_are_copied() {
    let mut random = Random(74);
    let tensors = [("a", 90_000), ("b", 70_001), ("c", 50_000), ("d", 20_000), ("empty", 0), ("e", 40_000)];
    let model = container_of(&mut random, &tensors);
    let header = model.len() - 4 * tensors.iter().map(|(_, len)| len).sum::<usize>();
    for round in 0..4 {
        let place = Place::new();
        let mut at: Vec<usize> = (0..3).map(|_| 1 + random.below(model.len() - 1)).collect();
        if round == 0 {
            // In the header, at the end of a tensor, and inside of one.
            at = vec![20, header + 4 * 90_000, header + 4 * 165_000 + 1];
        }
        at.sort_unstable();
        at.dedup();
        let shards = cut(&place, &model, &at, &NAMES);
        let answer = import(&place, "m.safetensors", &shards, &["--in-place"]);
        let crossing = |begin: usize, end: usize| at.iter().any(|at| begin < *at && *at < end);
        let (mut begin, mut copied) = (header, if crossing(0, header) { header } else { 0 });
        let mut ranges = BTreeMap::new();
        for (name, len) in tensors {
            let range = begin..begin + 4 * len;
            begin = range.end;
            copied += if crossing(range.start, range.end) { 4 * len } else { 0 };
            ranges.insert(name, range);
        }
        assert_eq!(
            answer.err.contains("were copied") || answer.out.contains("were copied"),
            copied > 0,
            "{answer:?}"
        );
        answer.ok();
        // Each small object has a slot of whole kilobytes at most.
        assert!(stored(&place) as usize <= copied + 64 * 1024, "{at:?}: {} of {copied}", stored(&place));
        let mut mounted = place.mount(&[]);
        let check = |mounted: &Mounted| {
            assert!(fs::read(mounted.path("t/c/m.safetensors")).unwrap() == model, "{at:?}");
            for (name, bytes) in tensors_of(&model) {
                let tensor = mounted.path("t/c/.tensors").join(&name);
                assert!(fs::read(&tensor).unwrap() == bytes, "{name} {at:?}");
            }
        };
        check(&mounted);
        for (name, range) in &ranges {
            let found = places(&mounted, name);
            if range.is_empty() {
                continue;
            }
            let wanted = match crossing(range.start, range.end) {
                true => "tier0.dat".to_owned(),
                false => "outside".to_owned(),
            };
            assert_eq!(found.keys().collect::<Vec<_>>(), [&wanted], "{name} {at:?}");
        }
        // A tier and back: the shards are the exact source.
        let all = mounted.path("t/c/m.safetensors");
        set(&all, "lossy", "allow").unwrap();
        run(["tier".as_ref(), "q8:all".as_ref(), all.as_os_str()]).ok();
        assert_eq!(get(&mounted.path("t/c/.tensors/d"), "tier"), "q8");
        for (name, range) in &ranges {
            if !range.is_empty() && !crossing(range.start, range.end) {
                set(&mounted.path("t/c/.tensors").join(name), "tier", "exact").unwrap();
                let found = fs::read(mounted.path("t/c/.tensors").join(name)).unwrap();
                assert!(found == model[range.clone()], "{name}");
            }
        }
        mounted.kill();
        drop(mounted);
        fsck(&place.store());
        import(&place, "m.safetensors", &shards, &["--in-place", "--pack"]).ok();
        mounted = place.mount(&[]);
        check(&mounted);
        mounted.unmount();
        import(&place, "m.safetensors", &shards, &["--in-place", "--reconstruct", "origin"]).ok();
        mounted = place.mount(&[]);
        check(&mounted);
        // A shard that was changed takes its tensors with it, and no others.
        let last = shards.last().unwrap();
        fs::write(last, "changed").unwrap();
        mounted.unmount();
        mounted = place.mount(&[]);
        for (name, range) in &ranges {
            let tensor = fs::read(mounted.path("t/c/.tensors").join(name));
            let is_lost = range.start >= *at.last().unwrap() && !range.is_empty();
            match tensor {
                Ok(bytes) => assert!(!is_lost && bytes == model[range.clone()], "{name} {at:?}"),
                Err(error) => assert!(is_lost, "{name} {at:?}: {error}"),
            }
        }
        mounted.unmount();
    }
}

#[test]
fn the_shards_of_a_tensor_stay_in_place_wherever_they_were_cut() {
    let place = Place::new();
    let bytes = Random(75).floats(300_000);
    let shards = cut(&place, &bytes, &[3, 123_457, 800_000], &NAMES);
    import(&place, "f", &shards, &["--in-place", "--dtype", "f32", "--shape", "300x1000"]).ok();
    import(&place, "plain", &shards, &["--in-place"]).ok();
    let wrong = import(&place, "x", &shards, &["--in-place", "--dtype", "f32", "--shape", "7x7"]);
    wrong.failed(1, &["7x7"]);
    import(&place, "x", &shards, &["--in-place", "--dtype", "f32", "--tier", "q8"]).failed(2, &["--tier"]);
    assert!(stored(&place) <= 64 * 1024, "{}", stored(&place));
    let mounted = place.mount(&[]);
    let path = |name: &str| mounted.path(Path::new("t/c").join(name));
    assert!(fs::read(path("f")).unwrap() == bytes && fs::read(path("plain")).unwrap() == bytes);
    let found = ["dtype", "shape", "shards"].map(|attribute| get(&path("f"), attribute));
    // The elements that lie in two shards are pieces of their own.
    assert_eq!(found, ["f32", "300x1000", "5"]);
    assert_eq!(get(&path("plain"), "shards"), "4");
    assert!(fs::read(path(".as/npy/f.npy")).unwrap().ends_with(&bytes));
    set(&path("f"), "lossy", "allow").unwrap();
    run(["tier".as_ref(), "q5".as_ref(), path("f").as_os_str()]).ok();
    let read = fs::read(path("f")).unwrap();
    let value = |bytes: &[u8], at: usize| f32::from_le_bytes(bytes[at * 4..at * 4 + 4].try_into().unwrap());
    assert!((0..300_000).all(|at| (value(&read, at) - value(&bytes, at)).abs() < 0.5));
    // A daemon takes shards in place too, but none of its own files.
    import(&place, "again", &shards, &["--in-place"]).ok();
    assert!(fs::read(path("again")).unwrap() == bytes);
    let own = import(&place, "own", &[path("f"), path("plain")], &["--in-place"]);
    assert!(own.code == Some(1), "{own:?}");
    mounted.unmount();
    fsck(&place.store());
}
