//! Versions that `tierfs import --previous` keeps: their space, their bytes, and all that happens to the present state.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde_json::Value;
use support::{
    Answer, Mounted, Place, Random, answer, container_of, fsck, limits, put, python, refused, run, set,
    tierfs, usage, wait_until,
};

const STEPS: u64 = 20;
pub const NAME: &str = "model.safetensors";

/// A store with the checkpoints of a run in the directory `run`.
pub struct Run {
    pub place: Place,
}

impl Run {
    /// Random checkpoints of these numbers. In each, some elements of the first tensor differ from the first checkpoint.
    pub fn random(steps: u64) -> Run {
        let place = Place::new();
        let mut random = Random(5);
        let bytes = container_of(&mut random, &[("w", 300_000), ("v", 40_000)]);
        for step in 1..=steps {
            let mut bytes = bytes.clone();
            let begin = bytes.len() - 1_000_000;
            for at in 0..200 {
                let at = begin + (at * 4999 + step as usize * 397) % 900_000;
                bytes[at] = bytes[at].wrapping_add(step as u8);
            }
            place.write(&format!("run/{step}.safetensors"), bytes);
        }
        Run { place }
    }

    /// The checkpoint of a step.
    pub fn step(&self, step: u64) -> PathBuf {
        self.place.path(format!("run/{step}.safetensors"))
    }

    /// Makes the directory that is imported that of a step.
    pub fn prepare(&self, step: u64) -> PathBuf {
        self.place.write(&format!("checkpoint/{NAME}"), fs::read(self.step(step)).unwrap());
        self.place.write("checkpoint/config.json", format!("{{\"step\": {step}}}"));
        self.place.write("checkpoint/same.json", "{\"same\": true}");
        self.place.path("checkpoint")
    }

    pub fn try_keep(&self, step: u64, options: &[&str]) -> Answer {
        let from = self.prepare(step);
        let options = [&["--previous"], options].concat();
        self.place.try_import("run/policy", &[&from], &options)
    }

    /// Imports a step. Returns the number of its version.
    pub fn keep(&self, step: u64, options: &[&str]) -> u64 {
        let imported = self.try_keep(step, &[options, &["--json"]].concat()).json();
        imported["version"].as_u64().unwrap()
    }

    pub fn log(&self) -> Vec<Value> {
        let listed =
            run([Path::new("log"), &self.place.store(), Path::new("run/policy"), Path::new("--json")]);
        listed.json().as_array().unwrap().clone()
    }

    pub fn numbers(&self) -> Vec<u64> {
        self.log().iter().map(|row| row["version"].as_u64().unwrap()).collect()
    }

    /// Compares a version with the checkpoint of a step, as files, as tensors and in part.
    pub fn compare(&self, mounted: &Mounted, version: u64, step: u64) {
        let root = mounted.path(format!("run/policy/.as/@{version}"));
        let wanted = fs::read(self.step(step)).unwrap();
        let found = fs::read(root.join(NAME)).unwrap();
        assert!(found == wanted, "version {version} is not step {step}");
        assert_eq!(fs::read_to_string(root.join("config.json")).unwrap(), format!("{{\"step\": {step}}}"));
        assert_eq!(fs::read_to_string(root.join("same.json")).unwrap(), "{\"same\": true}");
        for (name, bytes) in support::tensors_of(&wanted) {
            assert!(
                fs::read(root.join(".tensors").join(&name)).unwrap() == bytes,
                "{name} of version {version}"
            );
        }
        let file = fs::File::open(root.join(NAME)).unwrap();
        let mut part = [0; 1000];
        for at in (0..wanted.len() - 1000).step_by(wanted.len() / 7 - 5) {
            file.read_exact_at(&mut part, at as u64).unwrap();
            assert_eq!(part, wanted[at..at + 1000]);
        }
    }
}

/// Bytes that the files below a directory take on the disk, each counted once whatever its names are.
pub fn allocated(directory: &Path) -> u64 {
    let mut found = BTreeMap::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                waiting.push(entry.path());
            }
            found.insert(metadata.ino(), metadata.blocks() * 512);
        }
    }
    found.values().sum()
}

fn checkpoints_of(dtype: &str) {
    let run = Run { place: Place::new() };
    fs::create_dir(run.place.path("run")).unwrap();
    let trained = run.place.path("run");
    let arguments = [trained.to_str().unwrap(), dtype, &STEPS.to_string(), "1024"];
    let trained: Value = serde_json::from_str(&python("checkpoints.py", arguments)).unwrap();
    fs::create_dir(run.place.path("bucket")).unwrap();
    let url = format!("file://{}", run.place.path("bucket").display());
    let mut one = 0;
    for step in 1..=STEPS {
        assert_eq!(run.keep(step, &[]), step);
        if step == 1 {
            one = allocated(&run.place.store());
        }
        let mut push = tierfs();
        push.arg("push").arg(run.place.store()).args(["run/policy", &url, "--create", "--json"]);
        assert_eq!(answer(&mut push).json()["snapshot"], step);
    }
    let all = allocated(&run.place.store());
    println!("{dtype}: {STEPS} checkpoints take {:.3} of one, {all} bytes", all as f64 / one as f64);
    assert!(all * 2 <= one * 3, "{all} bytes, and {one} of one");
    fsck(&run.place.store());
    // The newest comes first.
    let log = run.log();
    let numbers: Vec<u64> = log.iter().map(|row| row["version"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=STEPS).rev().collect::<Vec<_>>());
    for (row, changed) in log.iter().rev().skip(1).zip(trained["changed"].as_array().unwrap()) {
        let header = row["changed"].as_u64().unwrap() - changed.as_u64().unwrap();
        assert!(header <= 512, "{row}: the elements and the header, not {changed}");
        let bytes: u64 = [NAME, "config.json", "same.json"]
            .map(|name| fs::metadata(run.place.path("checkpoint").join(name)).unwrap().len())
            .iter()
            .sum();
        assert!(row["bytes"].as_u64().unwrap().abs_diff(bytes) < 8, "{row}");
        assert!(row["created"].as_u64().unwrap() > 1_600_000_000);
    }
    assert!(log[0]["bytes_stored"].as_u64().unwrap() < 20_000, "the newest is the present state: {}", log[0]);
    let mounted = run.place.mount(&[]);
    for step in 1..=STEPS {
        run.compare(&mounted, step, step);
    }
    let newest = mounted.path("run/policy/.as").join(format!("@{STEPS}"));
    let first = mounted.path("run/policy/.as/@1");
    let compared = answer(tierfs().args(["diff", "--json"]).args([&first, &newest]));
    assert_eq!(compared.code, Some(1), "they differ");
    let compared: Value = serde_json::from_str(&compared.out).unwrap();
    let rows = compared["rows"].as_array().unwrap();
    let named: BTreeMap<&str, &Value> = rows.iter().map(|row| (row["name"].as_str().unwrap(), row)).collect();
    for (name, elements) in trained["elements"].as_object().unwrap() {
        assert_eq!(named[name.as_str()]["elements"], *elements, "{name}");
    }
    assert_eq!(named["same.json"]["state"], "same");
    let text = answer(tierfs().arg("diff").args([&first, &newest]));
    assert!(text.out.contains(&format!("elements={}", trained["elements"]["first.bias"])), "{text:?}");
    mounted.unmount();
    let far = run.place.mount_store_by(
        &mut tierfs(),
        url.into(),
        "far",
        &["--cache", run.place.path("cache").to_str().unwrap()],
    );
    for step in 1..=STEPS {
        run.compare(&far, step, step);
    }
    refused(fs::metadata(far.path("run/policy/.as/@21")), libc::ENOENT);
    far.unmount();
}

#[test]
fn twenty_checkpoints_in_bf16_take_half_more_than_one_at_most_and_each_reads_back() {
    checkpoints_of("bf16");
}

#[test]
fn twenty_checkpoints_in_f32_take_half_more_than_one_at_most_and_each_reads_back() {
    checkpoints_of("f32");
}

#[test]
fn writes_to_the_present_state_change_no_version_and_become_one_with_the_next_import() {
    let run = Run::random(4);
    assert_eq!(run.keep(1, &[]), 1);
    let mounted = run.place.mount(&[]);
    let path = mounted.path("run/policy").join(NAME);
    let before = fs::read(&path).unwrap();
    let mut kept = fs::File::open(&path).unwrap();
    // SAFETY: the test writes to the file through another descriptor only after the name leads to another file.
    let mapping = unsafe { Mmap::map(&kept).unwrap() };
    // The daemon imports.
    assert_eq!(run.keep(2, &[]), 2);
    let mut bytes = Vec::new();
    kept.seek(SeekFrom::Start(0)).unwrap();
    kept.read_to_end(&mut bytes).unwrap();
    assert!(bytes == before && mapping[..] == before[..], "open files and mappings keep their bytes");
    drop((kept, mapping));
    run.compare(&mounted, 1, 1);
    run.compare(&mounted, 2, 2);
    // Nothing was written since, so nothing is kept twice.
    let mut again = tierfs();
    again.arg("import").arg(run.place.store()).arg("run/policy").arg(run.place.path("checkpoint"));
    assert_eq!(answer(again.args(["--previous", "--json"])).json()["version"], 2);
    assert_eq!(run.numbers(), [2, 1]);

    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let middle = fs::metadata(&path).unwrap().len() / 2;
    file.write_all_at(&[0xa5; 5000], middle).unwrap();
    file.sync_all().unwrap();
    let mut written = fs::read(run.step(2)).unwrap();
    written[middle as usize..middle as usize + 5000].fill(0xa5);
    assert!(fs::read(&path).unwrap() == written);
    run.compare(&mounted, 2, 2);
    // Unflushed bytes of an open file belong to the state before the next import.
    file.write_all_at(&[0x5a; 3], middle + 9000).unwrap();
    written[middle as usize + 9000..middle as usize + 9003].fill(0x5a);
    assert_eq!(run.keep(3, &[]), 4, "the written state is version 3");
    drop(file);
    assert!(fs::read(mounted.path("run/policy/.as/@3").join(NAME)).unwrap() == written);
    for (version, step) in [(1, 1), (2, 2), (4, 3)] {
        run.compare(&mounted, version, step);
    }

    // All else that happens to the present state.
    set(&mounted.path("run/policy"), "lossy", "allow").unwrap();
    set(&mounted.path("run/policy/w"), "tier", "q3").unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(mounted.path("run/policy/config.json"))
        .unwrap()
        .set_len(3)
        .unwrap();
    fs::rename(mounted.path("run/policy/same.json"), mounted.path("run/policy/other.json")).unwrap();
    put(&mounted.path("run/policy/.ctl/compact"), "start").unwrap();
    wait_until("the compaction has ended", || {
        fs::read_to_string(mounted.path(".ctl/jobs")).unwrap().lines().last().unwrap().contains("done")
    });
    fs::remove_file(&path).unwrap();
    for (version, step) in [(1, 1), (2, 2), (4, 3)] {
        run.compare(&mounted, version, step);
    }

    // A version is only read, by each way in.
    let version = mounted.path("run/policy/.as/@2");
    refused(fs::File::options().write(true).open(version.join(NAME)), libc::EROFS);
    refused(fs::remove_file(version.join(NAME)), libc::EROFS);
    refused(fs::write(version.join("new"), "x"), libc::EROFS);
    refused(fs::create_dir(version.join("new")), libc::EROFS);
    refused(fs::rename(version.join(NAME), version.join("renamed")), libc::EROFS);
    for (attribute, value) in
        [("tier", "q8"), ("pin", "1"), ("evict", "1"), ("tags", "x"), ("pack", "ladder")]
    {
        assert!(set(&version.join(NAME), attribute, value).is_err(), "{attribute}={value}");
    }
    assert!(fs::metadata(version.join(".ctl")).is_err());
    assert!(fs::metadata(version.join(".as/@1")).is_err());
    assert!(fs::metadata(mounted.path("run/policy/.as/@02")).is_err());
    refused(fs::metadata(mounted.path("run/policy/.as/@5")), libc::ENOENT);
    // Its own forms are those of its tensors.
    let cast = fs::read(version.join(".as/npy/v.npy")).unwrap();
    let tensors = support::tensors_of(&fs::read(run.step(2)).unwrap());
    assert!(cast.ends_with(&tensors.iter().find(|(name, _)| name == "v").unwrap().1));
    let listed: Vec<String> = support::names(&mounted.path("run/policy/.as"));
    assert_eq!(listed.iter().filter(|name| name.starts_with('@')).count(), 4, "{listed:?}");
    run.compare(&mounted, 2, 2);
    mounted.unmount();
    fsck(&run.place.store());
    assert_eq!(run.numbers(), [4, 3, 2, 1]);
}

#[test]
fn a_removed_version_leaves_the_others_as_they_are() {
    let run = Run::random(6);
    for step in 1..=5 {
        run.keep(step, &[]);
    }
    let store = run.place.store();
    let remove = |number: &str| answer(tierfs().arg("rm").arg(&store).args(["run/policy", "--at", number]));
    remove("5").failed(1, &["newest"]);
    remove("9").failed(1, &["has no version 9"]);
    assert_eq!(remove("3").ok(), "run/policy: version 3 removed\n");
    fsck(&store);
    let mounted = run.place.mount(&[]);
    for kept in [1, 2, 4, 5] {
        run.compare(&mounted, kept, kept);
    }
    // By the daemon, while a file of a version is open.
    let open = fs::File::open(mounted.path("run/policy/.as/@1").join(NAME)).unwrap();
    remove("2").failed(1, &["in use"]);
    drop(open);
    wait_until("the daemon has closed the file", || remove("2").code == Some(0));
    for kept in [1, 4, 5] {
        run.compare(&mounted, kept, kept);
    }
    refused(fs::metadata(mounted.path("run/policy/.as/@2")), libc::ENOENT);
    // The oldest go with an import, and numbers are not given twice.
    assert_eq!(run.keep(6, &["--keep", "2"]), 6);
    assert_eq!(run.numbers(), [6, 5]);
    for kept in [5, 6] {
        run.compare(&mounted, kept, kept);
    }
    // Versions go with their collection.
    let policy = mounted.path("run/policy");
    fs::rename(&policy, mounted.path("run/renamed")).unwrap();
    assert!(
        fs::read(mounted.path("run/renamed/.as/@5").join(NAME)).unwrap() == fs::read(run.step(5)).unwrap()
    );
    fs::rename(mounted.path("run/renamed"), &policy).unwrap();
    run.compare(&mounted, 5, 5);
    fs::remove_dir_all(&policy).unwrap();
    assert!(!run.place.path("store/run/policy").exists());
    mounted.unmount();
    fsck(&store);
}

#[test]
fn a_version_that_an_interrupted_removal_left_is_kept_by_the_next_one() {
    let run = Run::random(5);
    for step in 1..=5 {
        run.keep(step, &[]);
    }
    let (store, versions) = (run.place.store(), run.place.path("store/run/policy/versions"));
    let copy = run.place.path("second");
    let remove =
        |number: &str| answer(tierfs().arg("rm").arg(&store).args(["run/policy", "--at", number])).ok();
    support::script(&run.place.path(""), &format!("cp -a {}/2 {}", versions.display(), copy.display())).ok();
    remove("2");
    // As a kill leaves it: version 1 is a difference from version 3 already, and version 2 is still there.
    fs::rename(&copy, versions.join("2")).unwrap();
    remove("3");
    fsck(&store);
    let mounted = run.place.mount(&[]);
    for kept in [1, 2, 4, 5] {
        run.compare(&mounted, kept, kept);
    }
    mounted.unmount();
}

#[test]
fn versions_of_a_model_that_changes_everywhere_stay_whole_and_files_that_stay_are_stored_once() {
    let place = Place::new();
    let mut random = Random(11);
    let same = container_of(&mut random, &[("embedding", 250_000)]);
    let mut files = Vec::new();
    for step in 1..=4 {
        files.push(container_of(&mut random, &[("w", 100_000)]));
        place.write("checkpoint/a.safetensors", &same);
        place.write("checkpoint/b.safetensors", &files[step - 1]);
        place.import("run/policy", &[&place.path("checkpoint")], &["--previous"]);
    }
    let total = allocated(&place.store());
    let wanted = (same.len() + files.iter().map(Vec::len).sum::<usize>()) as u64;
    assert!(total > wanted && total < wanted + 350_000, "{total} bytes on the disk, {wanted} of files");
    fsck(&place.store());
    let mounted = place.mount(&[]);
    for (number, file) in (1..).zip(&files) {
        let root = mounted.path(format!("run/policy/.as/@{number}"));
        assert!(fs::read(root.join("a.safetensors")).unwrap() == same);
        assert!(fs::read(root.join("b.safetensors")).unwrap() == *file, "version {number}");
    }
    // Once the shared file goes from the present state too, its last bytes are still there.
    place.write("checkpoint/a.safetensors", container_of(&mut random, &[("embedding", 250_000)]));
    place.import("run/policy", &[&place.path("checkpoint")], &["--previous"]);
    for number in 1..=4 {
        let root = mounted.path(format!("run/policy/.as/@{number}"));
        assert!(fs::read(root.join("a.safetensors")).unwrap() == same, "version {number}");
    }
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn versions_keep_the_bytes_of_encoded_packed_and_written_tensors() {
    let run = Run::random(3);
    run.keep(1, &["--tier", "q8:all"]);
    run.keep(2, &["--pack"]);
    let mounted = run.place.mount(&[]);
    let read =
        |version: u64| fs::read(mounted.path(format!("run/policy/.as/@{version}")).join(NAME)).unwrap();
    let rounded = read(1);
    assert!(
        rounded != fs::read(run.step(1)).unwrap()
            && rounded.len() as u64 == fs::metadata(run.step(1)).unwrap().len()
    );
    assert!(read(2) == fs::read(run.step(2)).unwrap());
    // A write to a tensor of lower precision is a patch.
    run.keep(3, &["--tier", "q8:all"]);
    let tensor = mounted.path("run/policy/.tensors/w");
    let file = fs::File::options().write(true).open(&tensor).unwrap();
    file.write_all_at(&1.5_f32.to_le_bytes(), 4000).unwrap();
    drop(file);
    let patched = fs::read(mounted.path("run/policy").join(NAME)).unwrap();
    run.keep(1, &[]);
    assert!(read(1) == rounded && read(2) == fs::read(run.step(2)).unwrap());
    assert!(read(4) == patched && read(3) != patched, "the patch is a version of its own");
    assert!(read(5) == fs::read(run.step(1)).unwrap());
    mounted.unmount();
    fsck(&run.place.store());
}

#[test]
fn a_collection_whose_bytes_others_have_gets_no_version() {
    let run = Run::random(2);
    let in_place = run.place.write(&format!("in-place/{NAME}"), fs::read(run.step(1)).unwrap());
    run.place.import("run/policy", &[&in_place], &["--in-place"]);
    let from = run.prepare(1);
    run.try_keep(2, &[]).failed(1, &["run/policy cannot have versions", "in place"]);
    assert!(!run.place.path("store/run/policy/versions").exists());
    run.place.import("run/base", &[&from], &[]);
    let mut command = tierfs();
    command.arg("import").arg(run.place.store()).arg("run/child").arg(&from);
    answer(command.args(["--previous", "--parent", "run/base"])).failed(2, &["--previous"]);
    // Tensors that are differences from another collection.
    run.place.import("run/child", &[&from], &["--parent", "run/base", "--reconstruct", "delta"]);
    let mut command = tierfs();
    command.arg("import").arg(run.place.store()).arg("run/child").arg(run.prepare(2)).arg("--previous");
    answer(&mut command).failed(1, &["run/child cannot have versions", "differences from run/base"]);
    // A clone.
    fs::create_dir(run.place.path("bucket")).unwrap();
    let url = format!("file://{}", run.place.path("bucket").display());
    answer(tierfs().arg("push").arg(run.place.store()).args(["run/base", &url, "--create"])).ok();
    answer(tierfs().args(["clone", &url, "run/base=run/cloned"]).arg(run.place.store())).ok();
    let mut command = tierfs();
    command.arg("import").arg(run.place.store()).arg("run/cloned").arg(&from).arg("--previous");
    answer(&mut command).failed(1, &["run/cloned cannot have versions", "clone"]);
    fsck(&run.place.store());
}

#[test]
fn versions_count_in_the_quota_of_stored_bytes() {
    let run = Run::random(3);
    run.keep(1, &[]);
    let mounted = run.place.mount(&[]);
    let [_, bytes, stored] = usage(&mounted, "run/policy");
    assert!(stored < bytes + 20_000, "the newest version is the present state: {stored} of {bytes}");
    run.keep(2, &[]);
    let [_, after, stored] = usage(&mounted, "run/policy");
    assert!(after == bytes && stored > bytes && stored < bytes * 5 / 4, "{stored} of {bytes}");
    assert_eq!(usage(&mounted, "run")[2], stored, "the tenant counts them too");
    put(&mounted.path("run/policy/.ctl/quota"), &format!("stored={}", stored + 1000)).unwrap();
    assert!(limits(&mounted, "run/policy").contains("stored="));
    refused(fs::write(mounted.path("run/policy/more"), vec![1; 5000]), libc::EDQUOT);
    mounted.unmount();
    let mounted = run.place.mount(&[]);
    assert_eq!(usage(&mounted, "run/policy")[2], stored, "they are counted after a mount");
    mounted.unmount();
}

#[test]
fn a_killed_import_leaves_whole_versions_and_the_next_one_goes_on() {
    let run = Run::random(3);
    run.keep(1, &[]);
    let mut kills = 0;
    for round in 0..25_u64 {
        let step = 2 + round % 2;
        let from = run.prepare(step);
        let mut command = tierfs();
        command.arg("import").arg(run.place.store()).arg("run/policy").arg(&from).arg("--previous");
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5 + round * 9 % 220));
        kills += u32::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        fsck(&run.place.store());
    }
    assert!(kills > 0, "{kills} kills");
    let last = run.keep(2, &[]);
    assert_eq!(run.numbers(), (1..=last).rev().collect::<Vec<_>>());
    let mounted = run.place.mount(&[]);
    let steps: Vec<Vec<u8>> = (1..=3).map(|step| fs::read(run.step(step)).unwrap()).collect();
    for version in 1..=last {
        let found = fs::read(mounted.path(format!("run/policy/.as/@{version}")).join(NAME)).unwrap();
        assert!(steps.contains(&found), "version {version} is no state that there was");
    }
    run.compare(&mounted, 1, 1);
    run.compare(&mounted, last, 2);
    mounted.unmount();
    let left: Vec<String> = support::names(&run.place.path("store/run/policy/versions"));
    assert!(left.iter().all(|name| !name.starts_with("unfinished")), "{left:?}");
    let whole = support::files_below(&run.place.path("store/run/policy/versions")).into_iter();
    let both = whole.filter(|path| {
        path.extension().is_some_and(|extension| extension == "difference")
            && path.with_extension("").exists()
    });
    assert_eq!(both.count(), 0, "no file is there whole and as a difference");
}

#[test]
fn a_damaged_difference_is_an_error_and_never_other_bytes() {
    let run = Run::random(3);
    for step in 1..=3 {
        run.keep(step, &[]);
    }
    let directory = run.place.path("store/run/policy/versions/1");
    let name = support::names(&directory).into_iter().find(|name| name.ends_with(".difference"));
    let path = &directory.join(name.unwrap());
    let sound = fs::read(path).unwrap();
    let wanted = fs::read(run.step(1)).unwrap();
    for at in (0..sound.len()).step_by(sound.len() / 40 + 1) {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x40;
        fs::write(path, &damaged).unwrap();
        let answered = run_fsck(&run.place.store());
        let mounted = run.place.mount(&[]);
        let found = fs::read(mounted.path("run/policy/.as/@1").join(NAME));
        let is_sound = found.as_ref().is_ok_and(|found| *found == wanted);
        assert!(is_sound || found.is_err(), "byte {at}: other bytes");
        assert!(is_sound || answered == Some(3), "byte {at}: fsck finds nothing");
        run.compare(&mounted, 2, 2);
        mounted.unmount();
    }
    fs::write(path, &sound[..sound.len() - 1]).unwrap();
    assert_eq!(run_fsck(&run.place.store()), Some(3));
    fs::remove_file(path).unwrap();
    assert_eq!(run_fsck(&run.place.store()), Some(3));
}

fn run_fsck(store: &Path) -> Option<i32> {
    answer(tierfs().arg("fsck").arg(store)).code
}

#[test]
fn a_file_that_grows_in_the_present_state_leaves_the_file_of_its_version() {
    let run = Run::random(2);
    run.keep(1, &[]);
    let mounted = run.place.mount(&[]);
    let plain = mounted.path("run/policy/notes.bin");
    fs::write(&plain, vec![7; 100_000]).unwrap();
    assert_eq!(run.keep(2, &[]), 3, "the state with the notes is version 2");
    let mut file = fs::File::options().append(true).open(&plain).unwrap();
    file.write_all(&[8; 70_000]).unwrap();
    drop(file);
    assert_eq!(fs::read(&plain).unwrap().len(), 170_000);
    for version in [2, 3] {
        let path = mounted.path(format!("run/policy/.as/@{version}/notes.bin"));
        assert_eq!(fs::read(path).unwrap(), vec![7; 100_000], "version {version}");
    }
    fs::File::options().write(true).open(&plain).unwrap().set_len(10).unwrap();
    put(&mounted.path(".ctl/sync"), "now").unwrap();
    assert_eq!(fs::read(mounted.path("run/policy/.as/@3/notes.bin")).unwrap(), vec![7; 100_000]);
    mounted.unmount();
    fsck(&run.place.store());
}
