//! The space that versions take, and the remains of steps on them that were interrupted.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use serde_json::Value;
use support::{
    Mounted, Place, Random, answer, container_of, fsck, put, refused, run as run_tierfs, tierfs, usage,
    wait_until,
};

use crate::versions::{NAME, Run, allocated};

#[test]
fn versions_that_are_gone_do_not_count_in_the_chain_of_differences() {
    let run = Run::random(3);
    for step in 1..=36 {
        run.keep(1 + step % 3, &["--keep", "2"]);
        let log = run.log();
        let Some(older) = log.get(1) else { continue };
        let (bytes, stored) = (older["bytes"].as_u64().unwrap(), older["bytes_stored"].as_u64().unwrap());
        assert!(log.len() == 2 && stored * 8 < bytes, "after {step} imports: {older}");
    }
    let mounted = run.place.mount(&[]);
    run.compare(&mounted, 35, 1 + 35 % 3);
    mounted.unmount();
    fsck(&run.place.store());
}

#[test]
fn a_version_that_is_open_stays_with_a_note_until_it_is_closed() {
    let run = Run::random(4);
    run.keep(1, &[]);
    run.keep(2, &[]);
    let mounted = run.place.mount(&[]);
    let open = fs::File::open(mounted.path("run/policy/.as/@1").join(NAME)).unwrap();
    let kept = run.try_keep(3, &["--keep", "1"]);
    assert!(kept.err.contains("versions/1 is in use"), "{kept:?}");
    assert_eq!(run.numbers(), [3, 2, 1], "those behind it stay too");
    let mut bytes = Vec::new();
    (&open).read_to_end(&mut bytes).unwrap();
    assert!(bytes == fs::read(run.step(1)).unwrap());
    drop(open);
    wait_until("the daemon has removed both", || run.numbers() == [3]);
    run.compare(&mounted, 3, 3);
    // A later version that is open keeps no earlier one.
    run.keep(4, &[]);
    let open = fs::File::open(mounted.path("run/policy/.as/@4").join(NAME)).unwrap();
    let kept = run.try_keep(1, &["--keep", "2", "--json"]).json();
    assert_eq!((&kept["version"], kept["notes"].as_array().unwrap().len()), (&5.into(), 0), "{kept}");
    assert_eq!(run.numbers(), [5, 4]);
    drop(open);
    mounted.unmount();
    fsck(&run.place.store());
}

/// Removes a large file, and waits until the present state has given up its data file.
fn remove_present(place: &Place, mounted: &Mounted, collection: &str, name: &str) {
    fs::remove_file(mounted.path(collection).join(name)).unwrap();
    let data = place.store().join(collection).join("data");
    wait_until("the present state has given up the file", || {
        put(&mounted.path(".ctl/sync"), "now").unwrap();
        let mut files = data.read_dir().unwrap();
        !files.any(|entry| entry.unwrap().metadata().unwrap().len() > 1_000_000)
    });
}

#[test]
fn holes_of_a_file_take_no_space_of_a_version() {
    let place = Place::new();
    let bytes = Random(6).bytes(300_000);
    let sparse = fs::File::create(place.write("in/sparse.bin", [])).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(&bytes, 32 << 20).unwrap();
    place.import("run/policy", &[&place.path("in")], &["--previous"]);
    let mounted = place.mount(&[]);
    remove_present(&place, &mounted, "run/policy", "sparse.bin");
    let stored = usage(&mounted, "run/policy")[2];
    assert!((300_000..700_000).contains(&stored), "{stored}");
    let log = run_tierfs([Path::new("log"), &place.store(), Path::new("run/policy"), Path::new("--json")]);
    let row = &log.json()[0];
    let (logical, space) = (row["bytes"].as_u64().unwrap(), row["bytes_stored"].as_u64().unwrap());
    assert!(logical == 64 << 20 && space == stored, "{row}, and {stored} in the quota");
    let found = fs::read(mounted.path("run/policy/.as/@1/sparse.bin")).unwrap();
    assert!(found == fs::read(place.path("in/sparse.bin")).unwrap());
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn a_file_that_two_collections_have_counts_in_each_until_that_one_has_it_no_more() {
    let run = Run::random(1);
    let bytes = fs::metadata(run.step(1)).unwrap().len();
    for collection in ["run/policy", "run/other"] {
        run.place.import(collection, &[&run.prepare(1)], &["--previous"]);
    }
    let number = |place: &Path| {
        let data = fs::read_dir(place.join("data")).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
        data.filter(|file| file.len() > 1_000_000).map(|file| file.ino()).collect::<Vec<_>>()
    };
    let store = run.place.store();
    assert_eq!(number(&store.join("run/policy")), number(&store.join("run/other")), "they share it");
    let mounted = run.place.mount(&[]);
    let has = |collection: &str| usage(&mounted, collection)[2] >= bytes;
    let counts = || (has("run/policy"), has("run/other"), usage(&mounted, "run")[2] / bytes);
    assert_eq!(counts(), (true, true, 2));
    // Only its version has it, and the other's present state and version.
    remove_present(&run.place, &mounted, "run/policy", NAME);
    assert_eq!(counts(), (true, true, 2));
    // Only versions have it.
    remove_present(&run.place, &mounted, "run/other", NAME);
    assert_eq!(counts(), (true, true, 2));
    fs::remove_dir_all(mounted.path("run/policy")).unwrap();
    assert_eq!((has("run/other"), usage(&mounted, "run")[2] / bytes), (true, 1));
    fs::remove_dir_all(mounted.path("run/other")).unwrap();
    assert_eq!(usage(&mounted, "run")[2], 0);
    mounted.unmount();
}

/// The bytes of the differences that a read of a file of a version goes through.
fn chain(versions: &Path, number: u64, name: &str) -> u64 {
    let path = versions.join(number.to_string()).join(name);
    let Ok(difference) = fs::read(path.with_extension("difference")) else { return 0 };
    let next = u64::from_le_bytes(difference[8..16].try_into().unwrap());
    let mut bases = &difference[44..];
    let longest = (0..u16::from_le_bytes([difference[6], difference[7]])).map(|_| {
        let (base, rest) = bases[1..].split_at(usize::from(bases[0]));
        bases = rest;
        chain(versions, next, std::str::from_utf8(base).unwrap())
    });
    longest.max().unwrap_or(0) + difference.len() as u64
}

#[test]
fn a_read_goes_through_differences_of_half_the_bytes_at_most_whatever_versions_went() {
    let run = Run { place: Place::new() };
    let mut random = Random(8);
    let bytes = container_of(&mut random, &[("w", 300_000), ("v", 40_000)]);
    for step in 1..=13 {
        let mut bytes = bytes.clone();
        let begin = bytes.len() - 1_360_000;
        bytes[begin..].chunks_mut(4).step_by(12).for_each(|one| one.copy_from_slice(&random.bytes(4)));
        run.place.write(&format!("run/{step}.safetensors"), bytes);
    }
    (1..=12).for_each(|step| assert_eq!(run.keep(step, &[]), step));
    let (store, versions) = (run.place.store(), run.place.path("store/run/policy/versions"));
    // The file with the tensors, and whether it is there whole.
    let stored = |number: u64| {
        let names = support::names(&versions.join(number.to_string())).into_iter();
        let files = names.filter(|name| name.trim_end_matches(".difference").len() == 16);
        files
            .max_by_key(|name| fs::metadata(versions.join(format!("{number}/{name}"))).unwrap().len())
            .unwrap()
    };
    let is_whole = |number: u64| !stored(number).ends_with(".difference");
    let check = || {
        for number in run.numbers() {
            let bytes = chain(&versions, number, stored(number).trim_end_matches(".difference"));
            assert!(bytes <= 680_500, "version {number} is read through {bytes} bytes of differences");
        }
    };
    check();
    let keyframe = (1..12).find(|number| is_whole(*number)).unwrap();
    assert!((3..=8).contains(&keyframe), "version {keyframe} is whole");
    let remove = |number: u64| {
        let number = number.to_string();
        answer(tierfs().arg("rm").arg(&store).args(["run/policy", "--at", &number])).ok();
        check();
    };
    remove(keyframe);
    let last = keyframe - 1;
    assert!(is_whole(last), "the version before it is a keyframe now");
    (1..last).for_each(remove);
    // Shorter chains on both sides.
    (keyframe + 2..11).for_each(remove);
    run.keep(13, &[]);
    check();
    assert!(!is_whole(last), "the oldest version is whole, although few differences lead from it");
    let mounted = run.place.mount(&[]);
    for number in run.numbers() {
        run.compare(&mounted, number, number);
    }
    mounted.unmount();
    fsck(&store);
}

#[test]
fn bytes_that_only_versions_have_count_at_once_and_copies_before_they_are_made() {
    let run = Run::random(2);
    run.keep(1, &[]);
    let mounted = run.place.mount(&[]);
    let policy = mounted.path("run/policy");
    let [_, bytes, _] = usage(&mounted, "run/policy");
    put(&policy.join(".ctl/quota"), &format!("stored={}", bytes + 100_000)).unwrap();
    remove_present(&run.place, &mounted, "run/policy", NAME);
    assert_eq!(usage(&mounted, "run/policy")[1], bytes - fs::metadata(run.step(1)).unwrap().len());
    assert!(
        usage(&mounted, "run/policy")[2] >= bytes,
        "the version has them: {:?}",
        usage(&mounted, "run/policy")
    );
    assert!(usage(&mounted, "run")[2] >= bytes, "the tenant counts them too");
    refused(fs::write(policy.join("more"), vec![1; 200_000]), libc::EDQUOT);
    put(&policy.join(".ctl/quota"), "stored=none").unwrap();
    mounted.unmount();

    // The copy of encoded tensors.
    run.place.import("run/encoded", &[&run.prepare(2)], &["--tier", "q8:all"]);
    let mounted = run.place.mount(&[]);
    let [_, _, stored] = usage(&mounted, "run/encoded");
    put(&mounted.path("run/encoded/.ctl/quota"), &format!("stored={}", stored + 50_000)).unwrap();
    let mut import = tierfs();
    import.arg("import").arg(run.place.store()).arg("run/encoded").arg(run.place.path("checkpoint"));
    answer(import.arg("--previous")).failed(1, &["quota"]);
    assert_eq!(usage(&mounted, "run/encoded")[2], stored);
    assert_eq!(support::names(&run.place.path("store/run/encoded/versions")), Vec::<String>::new());
    mounted.unmount();
    fsck(&run.place.store());
}

#[test]
fn equal_encoded_tensors_are_stored_once_in_all_earlier_versions() {
    for options in [["--tier", "q8:all"].as_slice(), &["--pack"]] {
        let place = Place::new();
        let mut random = Random(3);
        let tensors = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| (name, 60_000));
        let mut bytes = container_of(&mut random, &tensors);
        let mut read = Vec::new();
        let (mut one, versions) = (0, place.path("store/run/policy/versions"));
        for step in 0..4 {
            if step > 0 {
                // One of eight tensors is another one.
                let end = bytes.len() - step * 240_000;
                let new = random.floats(60_000);
                bytes[end..end + new.len()].copy_from_slice(&new);
            }
            place.write("checkpoint/m.safetensors", &bytes);
            place.write("checkpoint/step", format!("{step}"));
            let options = [options, &["--previous"]].concat();
            place.import("run/policy", &[&place.path("checkpoint")], &options);
            let mounted = place.mount(&[]);
            read.push(fs::read(mounted.path("run/policy/m.safetensors")).unwrap());
            mounted.unmount();
            if step == 0 {
                one = allocated(&versions);
            }
        }
        // The newest is a copy of the present tier file, and each version before takes an eighth of that.
        let all = allocated(&versions);
        assert!(all < one * 7 / 4, "{options:?}: {all} bytes, {one} for one");
        // The tier file is that of the version before.
        place.write("checkpoint/step", "other");
        place.import("run/policy", &[&place.path("checkpoint")], &[options, &["--previous"]].concat());
        assert!(allocated(&versions) < all + 60_000, "{options:?}: the tensors are copied");
        read.push(read.last().unwrap().clone());
        fsck(&place.store());
        let mounted = place.mount(&[]);
        for (number, wanted) in (1..).zip(&read) {
            let path = mounted.path(format!("run/policy/.as/@{number}/m.safetensors"));
            assert!(fs::read(path).unwrap() == *wanted, "{options:?}: version {number}");
        }
        mounted.unmount();
    }
}

#[test]
fn names_of_versions_are_no_shared_bytes() {
    let run = Run::random(2);
    run.keep(1, &[]);
    run.keep(2, &[]);
    let mounted = run.place.mount(&[]);
    let shared = || {
        let status = fs::read_to_string(mounted.path(".ctl/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("shared bytes ")).unwrap().to_owned();
        line.trim().parse::<u64>().unwrap()
    };
    assert_eq!(shared(), 0, "before the collection is opened");
    let bytes = fs::read(mounted.path("run/policy").join(NAME)).unwrap();
    assert_eq!(shared(), 0);
    mounted.unmount();
    run.place.import("run/other", &[&run.step(2)], &[]);
    let mounted = run.place.mount(&[]);
    let status = fs::read_to_string(mounted.path("run/policy/.ctl/status")).unwrap();
    let line = format!("shared bytes {}", bytes.len() - bytes.len() / 2);
    assert!(status.contains(&line), "two collections have the file: {line} is not in\n{status}");
    mounted.unmount();
}

#[test]
fn drafts_in_versions_go_with_the_next_import() {
    let run = Run::random(3);
    run.keep(1, &[]);
    run.keep(2, &[]);
    let version = run.place.path("store/run/policy/versions/1");
    let difference = support::names(&version).into_iter().find(|name| name.ends_with(".difference")).unwrap();
    // As kills leave them: during a write of each file, and between the file that is whole and its difference.
    let drafts =
        ["version.toml.new", "meta.log.zst.new", &format!("{difference}.new"), "0123456789abcdef.new"];
    drafts.iter().for_each(|name| fs::write(version.join(name), "draft").unwrap());
    let mounted = run.place.mount(&[]);
    let whole = difference.strip_suffix(".difference").unwrap();
    let data = fs::read(run.step(1)).unwrap();
    run.compare(&mounted, 1, 1);
    mounted.unmount();
    let kept = run.place.path("store/run/policy/versions/2").join(whole);
    assert!(!kept.exists() || fs::metadata(&kept).unwrap().len() as usize >= data.len());
    fsck(&run.place.store());
    run.keep(3, &[]);
    let left = support::names(&version);
    assert!(!left.iter().any(|name| name.ends_with(".new")), "{left:?}");
    let mounted = run.place.mount(&[]);
    (1..=3).for_each(|version| run.compare(&mounted, version, version));
    mounted.unmount();
}

#[test]
fn fsck_names_the_description_of_a_version_that_cannot_be_read() {
    let run = Run::random(2);
    run.keep(1, &[]);
    run.keep(2, &[]);
    let path = run.place.path("store/run/policy/versions/1/version.toml");
    let sound = fs::read(&path).unwrap();
    for wrong in [Some(&b"created = -1\n"[..]), Some(b"\xff\xfe"), None] {
        match wrong {
            Some(wrong) => fs::write(&path, wrong).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let checked = answer(tierfs().arg("fsck").arg(run.place.store()));
        let is_named = checked.out.contains("run/policy/versions/1/version.toml");
        assert!(checked.code == Some(3) && is_named, "{checked:?}");
        let mounted = run.place.mount(&[]);
        run.compare(&mounted, 1, 1);
        mounted.unmount();
    }
    fs::write(&path, sound).unwrap();
    fsck(&run.place.store());
}

#[test]
fn versions_that_were_pushed_name_their_snapshots() {
    let run = Run::random(3);
    fs::create_dir(run.place.path("bucket")).unwrap();
    let url = format!("file://{}", run.place.path("bucket").display());
    let push = |named: &str| {
        let mut push = tierfs();
        push.arg("push").arg(run.place.store()).args([named, &url, "--create"]);
        answer(&mut push).ok();
    };
    run.keep(1, &[]);
    push("run/policy");
    run.keep(2, &[]);
    run.keep(3, &[]);
    push("run/policy");
    push("run/policy=run/elsewhere");
    let pushed: Vec<Vec<(String, u64)>> = run
        .log()
        .iter()
        .map(|row| {
            let pushed = row["pushed"].as_array().unwrap().iter();
            let one = |it: &Value| {
                (it["collection"].as_str().unwrap().to_owned(), it["snapshot"].as_u64().unwrap())
            };
            pushed.map(one).collect()
        })
        .collect();
    let policy = |number| ("run/policy".to_owned(), number);
    assert_eq!(pushed[1..], [vec![], vec![policy(1)]]);
    assert!(pushed[0].len() == 2 && pushed[0].contains(&policy(2)), "{pushed:?}");
    let text = run_tierfs([Path::new("log"), &run.place.store(), Path::new("run/policy")]).ok();
    assert!(text.lines().last().unwrap().ends_with("  pushed as 1"), "{text}");
    assert!(!text.lines().nth(1).unwrap().contains("pushed"), "{text}");
}
