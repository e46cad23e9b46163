//! Random operations on a mount, compared with a naive file system in memory.
//!
//! `TIERFS_MODEL_OPERATIONS` and `TIERFS_MODEL_SEED` change the number and the seed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use support::{Fixture, Random, assert_same, scale};

const OPERATIONS: u64 = 3000;
const REMOUNTS: u64 = 6;
const BYTES_MAX: usize = 200_000;

/// Files by number, directories and names by path. The model is simple on purpose.
#[derive(Default)]
pub struct Model {
    files: Vec<Vec<u8>>,
    /// A file's number; `None` for a directory.
    names: BTreeMap<String, Option<usize>>,
}

impl Model {
    fn file(&self, path: &str) -> Option<usize> {
        self.names.get(path).copied().flatten()
    }

    fn is_directory(&self, path: &str) -> bool {
        path.is_empty() || self.names.get(path) == Some(&None)
    }

    fn below<'a>(&'a self, path: &str) -> impl Iterator<Item = &'a String> + use<'a> {
        let prefix = format!("{path}/");
        self.names.keys().filter(move |name| name.starts_with(&prefix))
    }

    fn links(&self, file: usize) -> u64 {
        self.names.values().filter(|node| **node == Some(file)).count() as u64
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn some_path(random: &mut Random) -> String {
    let names = ["a", "b", "c", "x.npy", "y.safetensors", "d", "e"];
    let depth = 1 + random.below(3);
    let parts: Vec<&str> =
        (0..depth).map(|level| names[random.below(names.len()).max(level.min(1))]).collect();
    parts.join("/")
}

pub struct Test {
    pub fixture: Fixture,
    pub model: Model,
    pub random: Random,
}

impl Test {
    pub fn at(&self, path: &str) -> std::path::PathBuf {
        self.fixture.path(path)
    }

    fn write(&mut self, path: &str) {
        let is_new = !self.model.names.contains_key(path);
        let can = self.model.is_directory(parent(path)) && (is_new || self.model.file(path).is_some());
        let how = self.random.below(4);
        let len = self.random.below(if how == 0 { BYTES_MAX } else { 9000 });
        let bytes = self.random.bytes(len);
        let mut options = OpenOptions::new();
        let opened = match how {
            0 => options.write(true).create(true).truncate(true),
            1 => options.append(true).create(true),
            _ => options.write(true).create(true),
        }
        .open(self.at(path));
        assert_eq!(opened.is_ok(), can, "opening {path} to write: {opened:?}");
        let Ok(file) = opened else { return };
        if is_new {
            self.model.files.push(Vec::new());
            self.model.names.insert(path.to_owned(), Some(self.model.files.len() - 1));
        }
        let number = self.model.file(path).unwrap();
        let offset = self.random.below(BYTES_MAX);
        let known = &mut self.model.files[number];
        let at = match how {
            0 => 0,
            1 => known.len(),
            _ => offset,
        };
        if how == 0 {
            known.clear();
        }
        file.write_all_at(&bytes, at as u64).unwrap();
        if !bytes.is_empty() {
            known.resize(known.len().max(at + bytes.len()), 0);
            known[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        if self.random.below(4) == 0 {
            file.sync_all().unwrap();
        }
        if self.random.below(3) == 0 {
            let known = &self.model.files[number];
            let mut found = vec![0; known.len()];
            File::open(self.at(path)).unwrap().read_exact_at(&mut found, 0).unwrap();
            assert_same(&found, known, &format!("{path} before it is closed"));
        }
    }

    fn truncate(&mut self, path: &str) {
        let to = self.random.below(BYTES_MAX);
        let opened = OpenOptions::new().write(true).open(self.at(path));
        assert_eq!(opened.is_ok(), self.model.file(path).is_some(), "opening {path}: {opened:?}");
        if let (Ok(file), Some(number)) = (opened, self.model.file(path)) {
            file.set_len(to as u64).unwrap();
            self.model.files[number].resize(to, 0);
        }
    }

    /// Copies a range of a file into another, or to another place of the same.
    fn copy(&mut self, from: &str, to: &str) {
        let (Some(source), Some(target)) = (self.model.file(from), self.model.file(to)) else { return };
        let known = self.model.files[source].clone();
        let at =
            [0, self.random.below(known.len() + 1) / 16_384 * 16_384, self.random.below(known.len() + 1)]
                [self.random.below(3)];
        let bytes = if self.random.below(2) == 0 {
            known.len() - at
        } else {
            self.random.below(known.len() - at + 1)
        };
        let len = self.model.files[target].len();
        let place = [0, len, self.random.below(len + 5000)][self.random.below(3)];
        if source == target && at < place + bytes && place < at + bytes || place + bytes > 2 * BYTES_MAX {
            return;
        }
        let (file, into) =
            (File::open(self.at(from)).unwrap(), OpenOptions::new().write(true).open(self.at(to)).unwrap());
        let (mut read, mut written) = (at as u64, place as u64);
        while read < (at + bytes) as u64 {
            let left = at + bytes - read as usize;
            let copied = rustix::fs::copy_file_range(&file, Some(&mut read), &into, Some(&mut written), left);
            assert!(copied.unwrap() > 0, "{from} to {to}");
        }
        if bytes > 0 {
            let known_target = &mut self.model.files[target];
            known_target.resize(len.max(place + bytes), 0);
            known_target[place..place + bytes].copy_from_slice(&known[at..at + bytes]);
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        let node = self.model.names.get(from).copied();
        let into_itself = to.starts_with(&format!("{from}/"));
        let fits = match (node, self.model.names.get(to)) {
            (None, _) => false,
            (_, None) => true,
            (Some(None), Some(None)) => from == to || self.model.below(to).next().is_none(),
            (Some(Some(_)), Some(Some(_))) => true,
            _ => false,
        };
        let can = fits && !into_itself && self.model.is_directory(parent(to));
        let renamed = fs::rename(self.at(from), self.at(to));
        assert_eq!(renamed.is_ok(), can, "{from} to {to}: {renamed:?}");
        let is_same =
            node.is_some_and(|node| node.is_some() && node == self.model.names.get(to).copied().flatten());
        if !can || from == to || is_same {
            return;
        }
        let moved: Vec<String> = self.model.below(from).cloned().collect();
        for name in moved {
            let node = self.model.names.remove(&name).unwrap();
            self.model.names.insert(format!("{to}{}", &name[from.len()..]), node);
        }
        self.model.names.remove(from);
        self.model.names.insert(to.to_owned(), node.unwrap());
    }

    fn link(&mut self, from: &str, to: &str) {
        let file = self.model.file(from);
        let can = file.is_some() && !self.model.names.contains_key(to) && self.model.is_directory(parent(to));
        let linked = fs::hard_link(self.at(from), self.at(to));
        assert_eq!(linked.is_ok(), can, "{from} also as {to}: {linked:?}");
        if can {
            self.model.names.insert(to.to_owned(), file);
        }
    }

    fn remove(&mut self, path: &str) {
        let is_file = self.model.file(path).is_some();
        let is_empty = self.model.names.get(path) == Some(&None) && self.model.below(path).next().is_none();
        let (removed, can) = match self.random.below(2) {
            0 => (fs::remove_file(self.at(path)), is_file),
            _ => (fs::remove_dir(self.at(path)), is_empty),
        };
        assert_eq!(removed.is_ok(), can, "removing {path}: {removed:?}");
        if can {
            self.model.names.remove(path);
        }
    }

    fn make_directory(&mut self, path: &str) {
        let can = !self.model.names.contains_key(path) && self.model.is_directory(parent(path));
        let made = fs::create_dir(self.at(path));
        assert_eq!(made.is_ok(), can, "making {path}: {made:?}");
        if can {
            self.model.names.insert(path.to_owned(), None);
        }
    }

    fn look(&mut self, path: &str) {
        let seen = fs::metadata(self.at(path)).ok();
        let known = self.model.names.get(path).copied();
        assert_eq!(seen.is_some(), known.is_some(), "{path} is there");
        if let (Some(seen), Some(Some(number))) = (seen, known) {
            let known = &self.model.files[number];
            assert_eq!((seen.len(), seen.nlink()), (known.len() as u64, self.model.links(number)), "{path}");
            assert_same(&fs::read(self.at(path)).unwrap(), known, path);
        }
    }

    pub fn step(&mut self) {
        let (path, other) = (some_path(&mut self.random), some_path(&mut self.random));
        match self.random.below(14) {
            0..=3 => self.write(&path),
            4 => self.truncate(&path),
            5 | 6 => self.rename(&path, &other),
            7 => self.link(&path, &other),
            8 => self.remove(&path),
            9 => self.make_directory(&path),
            10 | 11 => self.copy(&path, &other),
            _ => self.look(&path),
        }
    }

    /// Names, kinds, sizes and contents of the whole tree.
    pub fn compare(&self, when: &str) {
        let mut found = BTreeMap::new();
        walk(&self.at(""), "", &mut found);
        let known: BTreeMap<String, bool> =
            self.model.names.iter().map(|(name, node)| (name.clone(), node.is_none())).collect();
        assert_eq!(found, known, "{when}");
        for (name, node) in &self.model.names {
            if let Some(number) = node {
                let what = format!("{name} {when}");
                assert_same(&fs::read(self.at(name)).unwrap(), &self.model.files[*number], &what);
                let links = fs::metadata(self.at(name)).unwrap().nlink();
                assert_eq!(links, self.model.links(*number), "{what}");
            }
        }
    }
}

/// Whether each path is a directory.
fn walk(folder: &Path, below: &str, found: &mut BTreeMap<String, bool>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        let is_directory = entry.file_type().unwrap().is_dir();
        found.insert(path.clone(), is_directory);
        if is_directory {
            walk(&entry.path(), &path, found);
        }
    }
}

pub fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn random_operations_agree_with_a_naive_file_system() {
    let seed = number("TIERFS_MODEL_SEED", u64::from(std::process::id()));
    let operations = number("TIERFS_MODEL_OPERATIONS", OPERATIONS * u64::from(scale()));
    println!("TIERFS_MODEL_SEED={seed} makes the same operations");
    let mut test = Test { fixture: Fixture::new(), model: Model::default(), random: Random(seed) };
    for done in 1..=operations {
        test.step();
        if done % (operations / REMOUNTS).max(1) == 0 {
            test.compare(&format!("after {done} operations"));
            test.fixture.remount();
            test.compare(&format!("after {done} operations and a remount"));
        }
    }
    test.fixture.check();
}
