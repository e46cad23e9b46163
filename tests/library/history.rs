//! Random histories of a collection at the level of the library, compared with a model of the versions that a reader
//! may see.

use std::collections::BTreeMap;
use std::sync::Arc;

use tierfs::model::{CollectionName, EntryId, ErrorKind, NameIn, Owner, StoreId};
use tierfs::store::ROOT;
use tierfs::store::Verify;
use tierfs::store::disk::Disk;
use tierfs::store::{Access, Collection};
use tierfs::vfs::open::{self, Changes, OpenFile, OpenFiles};

use support::{Random, npy_file};

pub const STORE: StoreId = StoreId(0x5707e);
const BYTES_MAX: usize = 200_000;

/// The versions of a name.
#[derive(Clone, Default)]
pub struct Known {
    /// The version that the last sync made durable, and the later ones in the log; `None`: no such name.
    pub versions: Vec<Option<Vec<u8>>>,
}

/// A collection, and the versions of its names.
pub struct History {
    pub collection: Arc<Collection>,
    pub random: Random,
    pub names: BTreeMap<String, Known>,
    table: OpenFiles,
    /// Open files with writes that are not in the log, and their present bytes.
    held: BTreeMap<String, (Arc<OpenFile>, Vec<u8>)>,
}

impl History {
    pub fn new(disk: &Arc<dyn Disk>, seed: u64) -> History {
        disk.create_directory("t").unwrap();
        let collection = Arc::new(
            Collection::create(
                disk,
                STORE,
                CollectionName::new("t", "c"),
                1,
                Owner { uid: 0, gid: 0 },
                0o755,
            )
            .unwrap(),
        );
        History {
            collection,
            random: Random(seed),
            names: BTreeMap::new(),
            table: OpenFiles::default(),
            held: BTreeMap::new(),
        }
    }

    pub fn open(disk: &Arc<dyn Disk>) -> Arc<Collection> {
        let collection =
            tierfs::store::open_collection(disk, STORE, CollectionName::new("t", "c"), Access::Write)
                .unwrap();
        assert_eq!(collection.damage(), None);
        Arc::new(collection)
    }

    fn node(collection: &Collection, name: &str) -> Option<EntryId> {
        collection.state().directory(ROOT).unwrap().get(name.as_bytes())
    }

    fn open_file(&self, name: &str) -> Arc<OpenFile> {
        let node = Self::node(&self.collection, name).unwrap();
        self.table.open(&self.collection, node, Verify::First).unwrap()
    }

    fn log(&mut self, name: &str, bytes: Option<Vec<u8>>) {
        self.names
            .entry(name.to_owned())
            .or_insert_with(|| Known { versions: vec![None] })
            .versions
            .push(bytes);
    }

    fn last(&self, name: &str) -> Option<Vec<u8>> {
        self.names.get(name)?.versions.last()?.clone()
    }

    fn flush(&mut self, name: &str, open_file: &OpenFile, bytes: Vec<u8>) {
        open_file.flush().unwrap();
        self.log(name, Some(bytes));
    }

    /// Makes everything durable that is in the log.
    pub fn sync(&mut self) {
        self.collection.sync().unwrap();
        for known in self.names.values_mut() {
            known.versions.drain(..known.versions.len() - 1);
        }
        self.names.retain(|_, known| known.versions != [None]);
    }

    /// Flushes the open files.
    pub fn flush_all(&mut self) {
        for (name, (open_file, bytes)) in std::mem::take(&mut self.held) {
            self.flush(&name, &open_file, bytes);
        }
    }

    /// Writes inside a new file and flushes each write.
    pub fn write_often(&mut self, name: &str, times: usize) {
        open::create(&self.collection, ROOT, name.as_bytes(), 0o644, Owner { uid: 0, gid: 0 }).unwrap();
        let open_file = self.open_file(name);
        let mut bytes = self.random.bytes(100_000);
        open_file.write(0, &bytes).unwrap();
        for place in 0..times {
            open_file.write(place as u64, b"z").unwrap();
            open_file.flush().unwrap();
        }
        bytes[..times].fill(b'z');
        self.log(name, Some(bytes));
    }

    /// One random operation.
    pub fn step(&mut self) {
        let name = match self.random.below(5) {
            0 => "x.npy".to_owned(),
            number => format!("f{number}"),
        };
        if let Some((open_file, bytes)) = self.held.remove(&name) {
            return self.flush(&name, &open_file, bytes);
        }
        let Some(bytes) = self.last(&name) else { return self.create(&name) };
        match self.random.below(12) {
            0 => {
                open::unlink(&self.collection, ROOT, name.as_bytes()).unwrap();
                self.log(&name, None);
            }
            1 | 2 => self.replace(&name),
            3 => self.sync(),
            4 if name != "x.npy" => {
                let open_file = self.open_file(&name);
                let len = self.random.below(BYTES_MAX);
                let mut bytes = bytes;
                open_file.truncate(len as u64).unwrap();
                bytes.resize(len, 0);
                self.log(&name, Some(bytes.clone()));
                self.write(&name, open_file, bytes);
            }
            _ => {
                let open_file = self.open_file(&name);
                self.write(&name, open_file, bytes);
            }
        }
    }

    fn fresh(&mut self, name: &str) -> Vec<u8> {
        let len = match self.random.below(3) {
            0 => self.random.below(3000),
            _ => self.random.below(BYTES_MAX),
        };
        let bytes = self.random.bytes(len / 4 * 4);
        if name == "x.npy" { npy_file(&bytes) } else { bytes }
    }

    fn create(&mut self, name: &str) {
        let bytes = self.fresh(name);
        open::create(&self.collection, ROOT, name.as_bytes(), 0o644, Owner { uid: 0, gid: 0 }).unwrap();
        self.log(name, Some(Vec::new()));
        let open_file = self.open_file(name);
        open_file.write(0, &bytes).unwrap();
        self.flush(name, &open_file, bytes);
    }

    /// A new file under another name, which then replaces this one.
    fn replace(&mut self, name: &str) {
        let bytes = self.fresh(name);
        open::create(&self.collection, ROOT, b".new", 0o644, Owner { uid: 0, gid: 0 }).unwrap();
        self.log(".new", Some(Vec::new()));
        let open_file = self.open_file(".new");
        open_file.write(0, &bytes).unwrap();
        self.flush(".new", &open_file, bytes.clone());
        open::rename(
            &self.collection,
            NameIn { directory: ROOT, name: b".new" },
            NameIn { directory: ROOT, name: name.as_bytes() },
            false,
        )
        .unwrap();
        open_file.recognize_again(&mut Changes::default()).unwrap();
        self.log(".new", None);
        self.log(name, Some(bytes));
    }

    /// Writes inside the file and at its end, sometimes without a flush.
    fn write(&mut self, name: &str, open_file: Arc<OpenFile>, mut bytes: Vec<u8>) {
        // Writes only elements of an array, sometimes through its tensor.
        let (from, end) = if name == "x.npy" { (128, bytes.len()) } else { (0, bytes.len() + 40_000) };
        for _ in 0..=self.random.below(3) {
            if from >= end {
                break;
            }
            let at = from + self.random.below(end - from);
            let len = 1 + self.random.below((end - at).min(50_000));
            let new = self.random.bytes(len);
            let before = bytes.clone();
            if bytes.len() < at + len {
                bytes.resize(at + len, 0);
            }
            bytes[at..at + len].copy_from_slice(&new);
            let part = (name == "x.npy" && self.random.below(2) == 0)
                .then(|| Self::node(&self.collection, "x"))
                .flatten();
            match part {
                Some(part) => {
                    let tensor = self.table.open(&self.collection, part, Verify::First).unwrap();
                    self.flush(name, &open_file, before);
                    tensor.write(at as u64 - 128, &new).unwrap();
                    tensor.flush().unwrap();
                    self.log(name, Some(bytes.clone()));
                }
                None => open_file.write(at as u64, &new).unwrap(),
            }
        }
        let mut found = vec![0; bytes.len() + 1];
        assert_eq!(open_file.read(0, &mut found).unwrap(), bytes.len(), "{name}");
        assert!(found[..bytes.len()] == bytes, "{name}: not what was written");
        if name != "x.npy" && self.random.below(3) == 0 {
            self.held.insert(name.to_owned(), (open_file, bytes));
        } else {
            self.flush(name, &open_file, bytes);
        }
    }

    /// Each name reads as one of its versions.
    pub fn check(names: &BTreeMap<String, Known>, collection: &Arc<Collection>, context: &str) {
        let table = OpenFiles::default();
        for (name, known) in names {
            let context = format!("{context}, {name} of {} versions", known.versions.len());
            let Some(node) = Self::node(collection, name) else {
                assert!(known.versions.contains(&None), "{context}: gone");
                continue;
            };
            let open_file = table.open(collection, node, Verify::First).unwrap();
            let mut found = vec![0; open_file.bytes() as usize];
            match open_file.read(0, &mut found) {
                Ok(_) => {
                    let right = known.versions.iter().flatten().any(|version| *version == found);
                    assert!(right, "{context}: {} bytes that nobody wrote", found.len());
                }
                Err(error) => {
                    assert!(known.versions.len() > 1, "{context}: {error}");
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{context}");
                    for (place, piece) in found.chunks_mut(1000).enumerate() {
                        let at = place * 1000;
                        let right =
                            open_file.read(at as u64, piece).is_err()
                                || known.versions.iter().flatten().any(|version| {
                                    version.get(at..).is_some_and(|rest| rest.starts_with(piece))
                                });
                        assert!(right, "{context}: bytes at {at} that nobody wrote");
                    }
                }
            }
        }
    }

    /// No byte of a data file belongs to two blocks, and no block lies past its end.
    pub fn check_owners(collection: &Collection, len: impl Fn(&str) -> u64) {
        let mut owned: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
        for object in collection.state().objects() {
            for (_, block) in object.blocks.read().described(object.layout()) {
                let path = match (block.stored.in_data, object.extent()) {
                    (true, Some(extent)) => collection.data_path(extent.file),
                    _ => collection.tier_path(block.stored.tier.byte()),
                };
                let end = block.stored.offset + u64::from(block.stored.len);
                owned.entry(path).or_default().push((block.stored.offset, end));
            }
        }
        for (path, mut places) in owned {
            places.sort_unstable();
            for pair in places.windows(2) {
                assert!(pair[0].1 <= pair[1].0, "{path}: {pair:?} overlap");
            }
            let end = places.last().unwrap().1;
            assert!(end <= len(&path), "{path} ends at {} before {end}", len(&path));
        }
    }
}
