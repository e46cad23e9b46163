//! Random series of imports, writes, pushes, reverts, removals, collections of garbage, clones and mounts, compared with
//! copies of the directories that were imported.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use support::{Mounted, Place, Random, answer, assert_same, container_of, files_below, fsck, scale, tierfs};

const SERIES: u64 = 2;
const STEPS: usize = 24;
const COLLECTIONS: [&str; 2] = ["run/a", "run/b"];
const CONTAINERS: [&str; 3] = ["model.safetensors", "other.safetensors", "deep/more.safetensors"];
const NAMES: [&str; 6] =
    [CONTAINERS[0], CONTAINERS[1], CONTAINERS[2], "config.json", "deep/notes.bin", "empty"];

/// The files of a directory. One that is missing is not there.
type Files = BTreeMap<&'static str, Vec<u8>>;

/// A collection of the store.
#[derive(Default)]
struct Kept {
    present: Files,
    /// Whether it was written to since the last import.
    is_written: bool,
    /// The files that were written since they were imported, which stay when the source lacks them.
    written: BTreeSet<&'static str>,
    versions: BTreeMap<u64, Files>,
}

/// A store, a bucket, and what they have to show.
struct Series {
    place: Place,
    url: String,
    random: Random,
    /// Containers of both collections, which may be equal.
    pool: Vec<Vec<u8>>,
    kept: BTreeMap<&'static str, Kept>,
    /// Of each collection that was pushed, its snapshots; `None` says that it was removed.
    snapshots: BTreeMap<&'static str, BTreeMap<u64, Option<Files>>>,
    mounted: Option<Mounted>,
}

impl Series {
    fn new(seed: u64) -> Series {
        let place = Place::new();
        fs::create_dir(place.path("bucket")).unwrap();
        let url = format!("file://{}", place.path("bucket").display());
        let mut random = Random(seed);
        let tensors = [("w", 30_000), ("v", 3000), ("norm", 64)];
        let pool = (0..3).map(|_| container_of(&mut random, &tensors)).collect();
        for store in ["store", "second"] {
            answer(tierfs().arg("init").arg(place.path(store))).ok();
        }
        let (kept, snapshots) = (BTreeMap::new(), BTreeMap::new());
        Series { place, url, random, pool, kept, snapshots, mounted: None }
    }

    fn step(&mut self) {
        let name = COLLECTIONS[self.random.below(COLLECTIONS.len())];
        if !self.kept.contains_key(name) {
            return self.import(name);
        }
        match self.random.below(20) {
            0..=6 => self.import(name),
            7..=10 => self.push(name),
            11 => self.revert(name),
            12 => self.remove_version(name),
            13 => self.remove_published(name),
            14 => self.collect(),
            15 => self.clone_elsewhere(name),
            16 => self.look_at(name),
            17 => self.write(name),
            18 => self.mount_or_unmount(),
            _ => self.remove(name),
        }
    }

    /// The files of a collection with a few changes.
    fn edited(&mut self, files: &Files) -> Files {
        let mut files = files.clone();
        for _ in 0..=self.random.below(3) {
            let name = NAMES[self.random.below(NAMES.len())];
            let choice = self.random.below(12);
            let random = &mut self.random;
            let is_large = files.get(name).is_some_and(|bytes| bytes.len() > 100_000);
            if choice < 2 && files.len() > 1 {
                files.remove(name);
            } else if choice < 9 && is_large {
                let bytes = files.get_mut(name).unwrap();
                for _ in 0..=random.below(60) {
                    let at = bytes.len() - 1 - random.below(bytes.len() - 4096);
                    bytes[at] ^= 1 + random.below(255) as u8;
                }
            } else if CONTAINERS.contains(&name) {
                files.insert(name, self.pool[random.below(self.pool.len())].clone());
            } else {
                let count = if name == "empty" { 0 } else { 1 + random.below(40_000) };
                files.insert(name, random.bytes(count));
            }
        }
        files
    }

    fn import(&mut self, name: &'static str) {
        let before = self.kept.remove(name).unwrap_or_default();
        let files = self.edited(&before.present);
        let from = self.place.path("in");
        fs::remove_dir_all(&from).or_else(|error| missing(&error)).unwrap();
        fs::create_dir(&from).unwrap();
        for (name, bytes) in &files {
            self.place.write(&format!("in/{name}"), bytes);
        }
        let keep = 1 + self.random.below(4);
        let (limit, packs) = (self.random.below(4) == 0, self.random.below(4) == 0);
        let kept_max = keep.to_string();
        let mut options = vec!["--previous", "--delete", "--json"];
        options.extend(if limit { vec!["--keep", &kept_max] } else { vec![] });
        options.extend(packs.then_some("--pack"));
        println!("import {name} {options:?}");
        let imported = self.place.try_import(name, &[&from], &options).json();
        let numbers = self.numbers(name);
        let known = before.versions.keys().last().copied().unwrap_or(0);
        let new: Vec<u64> = numbers.iter().copied().filter(|number| *number > known).collect();
        let (mut versions, mut written, mut present) = (before.versions, before.written, files);
        written.retain(|name| !present.contains_key(name));
        present.extend(written.iter().map(|name| (*name, before.present[name].clone())));
        match new[..] {
            [] => assert!(versions[&known] == present, "version {known} is another state"),
            [one] => {
                let is_ambiguous = before.is_written && before.present != present;
                assert!(!is_ambiguous || limit && keep == 1, "the written state is no version");
                versions.insert(one, present.clone());
            }
            [earlier, one] => {
                assert!(before.is_written, "two versions of one import");
                versions.insert(earlier, before.present);
                versions.insert(one, present.clone());
            }
            _ => panic!("{new:?} are new"),
        }
        assert_eq!(imported["version"].as_u64(), numbers.last().copied());
        assert!(!limit || numbers.len() <= keep, "{numbers:?}");
        versions.retain(|number, _| numbers.contains(number));
        self.kept.insert(name, Kept { present, is_written: false, written, versions });
    }

    /// The numbers of the versions, ascending.
    fn numbers(&self, name: &str) -> Vec<u64> {
        self.log(&self.place.store(), name, "version")
    }

    /// The numbers that `tierfs log` prints, ascending.
    fn log(&self, of: &Path, name: &str, field: &str) -> Vec<u64> {
        let listed = answer(tierfs().arg("log").arg(of).args([name, "--json"])).json();
        listed.as_array().unwrap().iter().rev().map(|row| row[field].as_u64().unwrap()).collect()
    }

    fn published(&self, name: &str) -> Vec<u64> {
        self.log(Path::new(&self.url), name, "snapshot")
    }

    /// Writes into a file of the present state, through a mount.
    fn write(&mut self, name: &'static str) {
        if self.mounted.is_none() {
            self.mount_or_unmount();
        }
        let kept = self.kept.get_mut(name).unwrap();
        let large: Vec<_> = kept.present.iter_mut().filter(|(_, bytes)| bytes.len() > 100_000).collect();
        let Some((file, bytes)) = large.into_iter().next_back() else { return };
        let file = *file;
        let at = bytes.len() - 4000;
        let new = self.random.bytes(1 + at % 3000);
        println!("write {name}/{file}");
        bytes[at..at + new.len()].copy_from_slice(&new);
        let path = self.mounted.as_ref().unwrap().path(name).join(file);
        File::options().write(true).open(path).unwrap().write_all_at(&new, at as u64).unwrap();
        kept.is_written = true;
        kept.written.insert(file);
    }

    fn push(&mut self, name: &'static str) {
        println!("push {name}");
        let after = ["1", "3", "16"][self.random.below(3)];
        let mut push = tierfs();
        push.arg("push").arg(self.place.store()).args([name, &self.url, "--create", "--force", "--json"]);
        let pushed = answer(push.args(["--keyframe-after", after])).json();
        self.has_published(name, &pushed, self.kept[name].present.clone());
    }

    /// Notes a snapshot, or that the newest one has these files already.
    fn has_published(&mut self, name: &'static str, pushed: &Value, files: Files) {
        let known = self.snapshots.entry(name).or_default();
        let number = pushed["snapshot"].as_u64().unwrap();
        match known.last_key_value() {
            Some((last, newest)) if *last == number => {
                assert!(newest.as_ref() == Some(&files), "snapshot {number} is another state");
            }
            last => {
                assert_eq!(number, last.map_or(0, |(last, _)| *last) + 1);
                known.insert(number, Some(files));
            }
        }
    }

    /// A snapshot that is not a removal.
    fn some_snapshot(&mut self, name: &str) -> Option<(u64, Files)> {
        let all = self.snapshots.get(name)?.iter();
        let shown: Vec<_> = all.filter_map(|(number, files)| Some((*number, files.clone()?))).collect();
        if shown.is_empty() { None } else { Some(shown[self.random.below(shown.len())].clone()) }
    }

    fn revert(&mut self, name: &'static str) {
        let Some((number, files)) = self.some_snapshot(name) else { return };
        println!("revert {name} to {number}");
        let mut push = tierfs();
        push.args(["push", &self.url, name, "--revert", &number.to_string(), "--json"]);
        let pushed = answer(&mut push).json();
        self.has_published(name, &pushed, files);
    }

    fn remove_version(&mut self, name: &'static str) {
        let numbers = self.numbers(name);
        let Some((_, earlier)) = numbers.split_last().filter(|(_, earlier)| !earlier.is_empty()) else {
            return;
        };
        let number = earlier[self.random.below(earlier.len())];
        println!("rm {name} --at {number}");
        self.run(&["rm"], &["--at", &number.to_string()], name);
        self.kept.get_mut(name).unwrap().versions.remove(&number);
    }

    fn remove(&mut self, name: &'static str) {
        println!("rm {name}");
        self.run(&["rm"], &[], name);
        self.kept.remove(name);
    }

    fn run(&self, command: &[&str], options: &[&str], name: &str) {
        answer(tierfs().args(command).arg(self.place.store()).arg(name).args(options)).ok();
    }

    fn remove_published(&mut self, name: &'static str) {
        let newest = self.snapshots.get(name).and_then(|all| all.last_key_value());
        let Some((number, Some(_))) = newest else { return };
        let number = number + 1;
        println!("rm {name} of the remote");
        answer(tierfs().args(["rm", &self.url, name])).ok();
        self.snapshots.get_mut(name).unwrap().insert(number, None);
    }

    /// Collects garbage as if months had passed before each run.
    fn collect(&mut self) {
        if self.snapshots.is_empty() {
            return;
        }
        let last = 1 + self.random.below(3);
        println!("gc --keep-last {last}");
        for _ in 0..2 {
            let past = SystemTime::now() - Duration::from_secs(100 * 24 * 3600);
            for file in files_below(&self.place.path("bucket")) {
                let file = File::options().write(true).open(self.place.path("bucket").join(file)).unwrap();
                file.set_modified(past).unwrap();
            }
            let last = last.to_string();
            answer(tierfs().args(["gc", &self.url, "--keep-last", &last, "--keep-days", "0"])).ok();
        }
        for all in self.snapshots.values_mut() {
            let removal = all.iter().rev().take(last).find(|(_, files)| files.is_none());
            let first = *all.keys().rev().take(last).min().unwrap();
            let first = removal.map_or(first, |(number, _)| *number);
            all.retain(|number, _| *number >= first);
        }
        for name in self.snapshots.keys() {
            assert_eq!(self.published(name), self.snapshots[name].keys().copied().collect::<Vec<_>>());
        }
    }

    /// Clones a snapshot into another store, and perhaps brings the clone to the newest one.
    fn clone_elsewhere(&mut self, name: &'static str) {
        let Some((number, files)) = self.some_snapshot(name) else { return };
        println!("clone {name} at {number}");
        let second = self.place.path("second");
        let mut clone = tierfs();
        clone.args(["clone", &self.url, &format!("{name}=clone/c")]).arg(&second);
        answer(clone.args(["--at", &number.to_string()])).ok();
        self.compare_clone(&files);
        if let Some((_, Some(newest))) = self.snapshots[name].last_key_value() {
            answer(tierfs().arg("pull").arg(&second).arg("clone/c")).ok();
            self.compare_clone(newest);
        }
        answer(tierfs().arg("rm").arg(&second).arg("clone/c")).ok();
    }

    fn compare_clone(&self, files: &Files) {
        let second = self.place.path("second");
        let mounted = self.place.mount_store_by(&mut tierfs(), second, "clone", &[]);
        compare(&mounted.path("clone/c"), files);
        mounted.unmount();
    }

    /// Mounts the remote, with one snapshot in the place of the newest.
    fn look_at(&mut self, name: &'static str) {
        let Some((number, files)) = self.some_snapshot(name) else { return };
        println!("mount --at {name}={number}");
        let mounted = self.mount_remote(&["--at", &format!("{name}={number}")]);
        compare(&mounted.path(name), &files);
        mounted.unmount();
    }

    fn mount_remote(&self, options: &[&str]) -> Mounted {
        let cache = self.place.path("cache");
        let options = [&["--cache", cache.to_str().unwrap()], options].concat();
        self.place.mount_store_by(&mut tierfs(), (&self.url).into(), "remote", &options)
    }

    fn mount_or_unmount(&mut self) {
        println!("{}", if self.mounted.is_some() { "unmount" } else { "mount" });
        match self.mounted.take() {
            Some(mounted) => mounted.unmount(),
            None => self.mounted = Some(self.place.mount(&[])),
        }
    }

    /// Compares all that the store and the bucket have to show.
    fn check(&mut self) {
        println!("check");
        let mounted = self.mounted.take().unwrap_or_else(|| self.place.mount(&[]));
        for (name, kept) in &self.kept {
            let root = mounted.path(name);
            compare(&root, &kept.present);
            for (number, files) in &kept.versions {
                compare(&root.join(format!(".as/@{number}")), files);
            }
        }
        mounted.unmount();
        if !self.snapshots.is_empty() {
            let mounted = self.mount_remote(&[]);
            for (name, all) in &self.snapshots {
                let root = mounted.path(name);
                match all.last_key_value() {
                    Some((_, Some(newest))) => {
                        compare(&root, newest);
                        for (number, files) in all {
                            let Some(files) = files else { continue };
                            compare(&root.join(format!(".as/@{number}")), files);
                        }
                    }
                    _ => assert!(fs::metadata(&root).is_err(), "{name} was removed"),
                }
            }
            mounted.unmount();
        }
        fsck(&self.place.store());
    }
}

fn missing(error: &std::io::Error) -> std::io::Result<()> {
    if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error.kind().into()) }
}

/// Compares a directory of a mount with the files that it has to show.
fn compare(root: &Path, files: &Files) {
    for name in NAMES {
        let path = root.join(name);
        match (fs::read(&path), files.get(name)) {
            (Ok(found), Some(wanted)) => assert_same(&found, wanted, &path.display().to_string()),
            (Err(error), None) if error.kind() == ErrorKind::NotFound => {}
            (found, wanted) => panic!(
                "{}: {:?}, and is it there: {}",
                path.display(),
                found.map(|bytes| bytes.len()),
                wanted.is_some()
            ),
        }
    }
}

#[test]
fn random_series_show_the_directories_that_were_imported() {
    for seed in 0..SERIES * u64::from(scale()) {
        println!("series {seed}");
        let mut series = Series::new(seed);
        for _ in 0..STEPS {
            series.step();
        }
        series.check();
    }
}
