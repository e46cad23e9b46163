//! Stores for fault injection, and checks of them afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tierfs::format::log::catalog::Entry;
use tierfs::store::{Collection, ROOT, Touched};

use crate::journal::{BLOCK, Journal};
use crate::trace::{Daemon, Fault, Point, points, traced};
use support::{Place, Random, assert_same, container_of, ended, files_below, npy_file, run, shell};

/// Exports a store's collection.
pub fn exported(place: &Place, store: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let to = place.path("exported");
    if to.exists() {
        fs::remove_dir_all(&to).unwrap();
    }
    run(["export".as_ref(), store.as_os_str(), "demo/c".as_ref(), to.as_os_str()]).ok();
    files_below(&to).into_iter().map(|name| (name.clone(), fs::read(to.join(&name)).unwrap())).collect()
}

pub fn fsck(store: &Path, context: &str) {
    let answer = run(["fsck".as_ref(), store.as_os_str()]);
    assert_eq!(answer.code, Some(0), "{context}: {answer:?}");
}

pub fn copied(place: &Place, from: &Path) -> PathBuf {
    let to = place.path("try");
    if to.exists() {
        fs::remove_dir_all(&to).unwrap();
    }
    shell(&place.path(""), &format!("cp -a {} {}", from.display(), to.display()));
    to
}

/// Files to import: containers, an array, a plain file, small ones.
pub fn sources(place: &Place, name: &str, seed: u64) -> PathBuf {
    let mut random = Random(seed);
    let container = container_of(&mut random, &[("first", 40_000), ("second", 9001), ("third", 7)]);
    place.write(&format!("{name}/model.safetensors"), container);
    place.write(&format!("{name}/x.npy"), npy_file(&random.floats(20_000)));
    place.write(&format!("{name}/plain.bin"), random.bytes(150_000));
    place.write(&format!("{name}/sub/small.json"), random.bytes(900));
    place.path(name)
}

/// A store with the collection `demo/c`, a large file and an encoded tensor in it.
pub fn store_with_files(place: &Place) -> Journal {
    let mut random = Random(3);
    let kept = place.write("kept", random.bytes(200_000));
    let array = place.write("w.npy", npy_file(&random.floats(20_000)));
    place.import("demo/c", &[&kept, &array], &["--tier", "q8:all"]);
    let mut journal = Journal::by(BLOCK);
    let mounted = place.mount(&[]);
    for name in ["kept", ".tensors/w"] {
        journal.note(&mounted.path("demo/c"), name);
    }
    mounted.unmount();
    journal
}

/// Checks after the daemon was killed: acknowledged changes are there, and the store takes further work.
pub fn check_after(place: &Place, store: &Path, journal: &Journal, context: &str) {
    fsck(store, context);
    let notes = place.path("notes-after");
    let daemon = Daemon::mount(place, store, &notes, None).unwrap_or_else(|| panic!("{context}: no mount"));
    journal.check(&daemon.path(""), context);
    let bytes = Random(9).bytes(70_000);
    fs::write(daemon.path("further"), &bytes).unwrap();
    daemon.end();
    fsck(store, context);
    let daemon = Daemon::mount(place, store, &notes, None).unwrap_or_else(|| panic!("{context}: no mount"));
    assert_same(&fs::read(daemon.path("further")).unwrap(), &bytes, context);
    journal.check(&daemon.path(""), context);
    daemon.end();
}

/// A collection that was imported, and an import of another version of its files over it.
pub struct SecondImport {
    pub place: Place,
    pub source: PathBuf,
    pub old: BTreeMap<PathBuf, Vec<u8>>,
    pub new: BTreeMap<PathBuf, Vec<u8>>,
    /// The calls of the import.
    pub points: Vec<Point>,
}

impl SecondImport {
    pub const OPTIONS: [&str; 2] = ["--tier", "q8:all"];

    pub fn new() -> SecondImport {
        let place = Place::new();
        let [first, source] = [sources(&place, "one", 1), sources(&place, "two", 2)];
        place.import("demo/c", &[&first], &SecondImport::OPTIONS);
        let old = exported(&place, &place.store());
        let mut import = SecondImport { place, source, old, new: BTreeMap::new(), points: Vec::new() };
        let store = copied(&import.place, &import.place.store());
        assert_eq!(import.run(&store, None), Some(0));
        import.new = exported(&import.place, &store);
        import.points = points(&import.place.path("notes"));
        import
    }

    /// Imports into a copy of the store, with a fault. The exit code; `None` of a killed program.
    pub fn run(&self, store: &Path, fault: Option<(&Point, Fault)>) -> Option<i32> {
        let arguments = [Path::new("import"), store, Path::new("demo/c"), &self.source];
        let mut command = traced(&arguments, &self.place.path("notes"), fault);
        ended(&mut command.args(SecondImport::OPTIONS).spawn().unwrap(), "a traced import")
    }
}

/// Lets a log grow until the next sync checkpoints it.
pub fn grow_log(collection: &Collection) {
    for round in 0..20_u32 {
        let filled = collection.record(Touched::default(), |batch, _| {
            for number in 0..1000 {
                let value = Some(format!("{round} {number}"));
                batch.entry(Entry::Setting { node: ROOT, key: format!("k{}", number % 50), value });
            }
            Ok(())
        });
        filled.unwrap();
    }
}
