//! Stores for fault injection, and checks of them afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::journal::{BLOCK, Journal};
use crate::trace::Daemon;
use support::{Place, Random, assert_same, container_of, files_below, npy_file, run, shell};

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
