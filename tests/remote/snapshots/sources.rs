//! Blocks that other bytes give: differences from parents, and files outside the store.

use std::sync::Arc;

use tierfs::engine::{
    Consent, Engine, Evict, EvictRequest, MoveRequest, Moved, Reconstruct, set_reconstruct, variant,
};
use tierfs::format::log::catalog::OutsidePlace;
use tierfs::ingest::{Options, Parents};
use tierfs::model::{CollectionName, MoveTo, Owner, Silent};
use tierfs::store::disk::Disk;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::{Access, Collection, Frozen, Store};

use super::memory::{REMOTE, Remote, assert_same, seen};
use crate::fixture::{Numbers, STORE, find, import, read, safetensors_file, tensor};

fn store(disk: Arc<dyn Disk>) -> Arc<Store> {
    Store::create(&*disk, STORE).unwrap();
    Arc::new(Store::open(disk, Access::Write, "").unwrap())
}

/// The tensor that `tuned` makes of floats.
fn weights(tuned: impl Fn(usize, f32) -> f32) -> Vec<u8> {
    let floats = Numbers(8).floats(120_000);
    let values = floats.into_iter().enumerate().map(|(place, value)| tuned(place, value));
    let bytes: Vec<u8> = values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect();
    safetensors_file(&[tensor("w", safetensors::Dtype::BF16, &[300, 400], bytes)])
}

fn evict(engine: &Engine, collection: &Arc<Collection>, path: &str, way: &str) {
    let node = find(collection, path).unwrap().entry.id;
    set_reconstruct(collection, node, Reconstruct::parse(way).unwrap()).unwrap();
    let what = EvictRequest { what: Evict::Stored, consent: Consent::Given, user: None };
    engine.evict(collection, node, what, &Silent, &mut Moved::default()).unwrap();
}

#[test]
fn a_fine_tune_kept_as_differences_needs_its_base_and_reads_with_it() {
    let store = store(Arc::new(MemoryDisk::new()));
    let engine = Engine::new(store.clone());
    let base = store.collection_made("t", "base", Owner { uid: 0, gid: 0 }).unwrap();
    import(&base, "m.safetensors", &weights(|_, value| value), &Options::default()).unwrap();
    let tuned = store.collection_made("t", "tuned", Owner { uid: 0, gid: 0 }).unwrap();
    let parents = Parents::new(&base, None).unwrap();
    let options = Options { parents: Some(parents), ..Options::default() };
    let bytes = weights(|place, value| if place % 50 == 0 { value * 1.01 } else { value });
    import(&tuned, "m.safetensors", &bytes, &options).unwrap();
    store.collection("t", "tuned").unwrap();
    evict(&engine, &tuned, "w", "delta");
    assert_eq!(read(&tuned, "m.safetensors").unwrap(), bytes);
    let remote = Remote::default();
    let pushed = remote.push(&Frozen::of(&tuned).unwrap(), CollectionName::new("t", "tuned"));
    assert_eq!(pushed.manifest.needs.len(), 1);
    assert_eq!(pushed.manifest.needs[0].collection, "base");
    // Without the base, no byte of the differences is read.
    let alone = Arc::new(remote.store());
    let _engine = Engine::new(alone.clone());
    assert!(read(&alone.collection("t", "tuned").unwrap(), "m.safetensors").is_err());
    remote.push(&Frozen::of(&base).unwrap(), CollectionName::new("t", "base"));
    let shown = Arc::new(remote.store());
    let _engine = Engine::new(shown.clone());
    assert_eq!(read(&shown.collection("t", "tuned").unwrap(), "m.safetensors").unwrap(), bytes);
    assert_same(&seen(&shown.collection("t", "tuned").unwrap()), &seen(&tuned), "with its base");
}

#[test]
fn a_variant_of_a_fine_tune_kept_as_differences_needs_no_base() {
    let store = store(Arc::new(MemoryDisk::new()));
    let engine = Engine::new(store.clone());
    // The smaller tensor stays exact in a variant.
    let model = |tuned: &dyn Fn(usize, f32) -> f32| {
        let tensors = [("w", 300, Numbers(8).floats(120_000)), ("v", 100, Numbers(9).floats(40_000))];
        let tensors = tensors.map(|(name, rows, floats)| {
            let values = floats.into_iter().enumerate().map(|(place, value)| tuned(place, value));
            let bytes: Vec<u8> = values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect();
            tensor(name, safetensors::Dtype::BF16, &[rows, 400], bytes)
        });
        safetensors_file(&tensors)
    };
    let base = store.collection_made("t", "base", Owner { uid: 0, gid: 0 }).unwrap();
    import(&base, "m.safetensors", &model(&|_, value| value), &Options::default()).unwrap();
    let tuned = store.collection_made("t", "tuned", Owner { uid: 0, gid: 0 }).unwrap();
    let options = Options { parents: Some(Parents::new(&base, None).unwrap()), ..Options::default() };
    let bytes = model(&|place, value| if place % 50 == 0 { value * 1.01 } else { value });
    import(&tuned, "m.safetensors", &bytes, &options).unwrap();
    store.collection("t", "tuned").unwrap();
    evict(&engine, &tuned, "w", "delta");
    evict(&engine, &tuned, "v", "delta");
    let to = MoveTo::parse_variant("q5").unwrap();
    let pushed = |collection: &Arc<Collection>, remote: &Remote| {
        let canonical = Frozen::of(collection).unwrap().canonical(REMOTE).unwrap();
        let choice = canonical.choose(&variant(to, store.settings()));
        let made = canonical.variant(choice, REMOTE, &Silent).unwrap();
        remote.push_with(&canonical, &[made], CollectionName::new("t", collection.name())).manifest
    };
    let shown = |remote: &Remote, name: &str| {
        let store = Arc::new(remote.store());
        let exact = store.collection("t", name).unwrap();
        let found = store.variant(&exact, "q5").unwrap().unwrap();
        (store, found)
    };
    let remote = Remote::default();
    assert_eq!(pushed(&tuned, &remote).needs.len(), 1);
    // The base is not in this remote.
    let (_store, found) = shown(&remote, "tuned");
    let found = read(&found, "m.safetensors").unwrap();
    // The base keeps the blocks that the differences need, as a move would.
    let bases = Remote::default();
    pushed(&base, &bases);
    let (_store, kept) = shown(&bases, "base");
    assert_eq!(read(&kept, "m.safetensors").unwrap(), model(&|_, value| value));
    let to = MoveRequest { to, consent: Consent::Given, rows: None };
    engine.set_tier(&tuned, tierfs::store::ROOT, to, &Silent, &mut Moved::default()).unwrap();
    let moved = read(&tuned, "m.safetensors").unwrap();
    assert!(moved != bytes);
    assert!(found == moved);
}

#[cfg(feature = "mount")]
#[test]
fn a_file_outside_the_store_becomes_a_data_file_and_gives_its_absent_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("m.safetensors");
    let bytes = weights(|_, value| value);
    std::fs::write(&source, &bytes).unwrap();
    std::fs::create_dir(directory.path().join("store")).unwrap();
    let disk = tierfs::store::disk::files::FileDisk::new(&directory.path().join("store"));
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let store = store(disk.clone());
    let engine = Engine::new(store.clone());
    let collection = store.collection_made("t", "c", Owner { uid: 0, gid: 0 }).unwrap();
    let opened = disk.open_outside(source.as_os_str().as_encoded_bytes()).unwrap();
    let mtime = opened.attributes().unwrap().modified.unwrap();
    let options = Options {
        in_place: Some(OutsidePlace::Path(source.as_os_str().as_encoded_bytes().to_vec())),
        ..Options::default()
    };
    let origin = tierfs::ingest::Origin { mtime, ..crate::fixture::origin() };
    for name in ["a.safetensors", "b.safetensors", "c.safetensors"] {
        let target = crate::fixture::target(name);
        let settings = store.settings();
        tierfs::ingest::import_file(&collection, settings, &target, &opened, &origin, &options, &Silent)
            .unwrap();
    }
    let tensor = |name: &str| {
        let file = find(&collection, name).unwrap();
        let state = collection.state();
        state.parts(file.file().unwrap()).next().unwrap().entry.id
    };
    let (absent, encoded) = (tensor("b.safetensors"), tensor("c.safetensors"));
    let consent = Consent::Given;
    let to = MoveRequest { to: MoveTo::parse_tier("q8").unwrap(), consent, rows: None };
    engine.set_tier(&collection, absent, to, &Silent, &mut Moved::default()).unwrap();
    set_reconstruct(&collection, absent, Reconstruct::Origin).unwrap();
    engine
        .evict(
            &collection,
            absent,
            EvictRequest { what: Evict::Stored, consent, user: None },
            &Silent,
            &mut Moved::default(),
        )
        .unwrap();
    let to = MoveRequest { to: MoveTo::parse_tier("q5").unwrap(), consent, rows: None };
    engine.set_tier(&collection, encoded, to, &Silent, &mut Moved::default()).unwrap();
    let expected = read(&collection, "c.safetensors").unwrap();
    assert!(expected != bytes);
    let remote = Remote::default();
    let pushed = remote.push(&Frozen::of(&collection).unwrap(), CollectionName::new("t", "c"));
    // The three are the same source, of which the third gives only the header.
    assert!(pushed.new > bytes.len() as u64, "{pushed:?}");
    drop((engine, collection, store));
    std::fs::remove_file(&source).unwrap();
    let shown = remote.store().collection("t", "c").unwrap();
    assert_eq!(shown.state().outside_files().count(), 0);
    for (name, expected) in
        [("a.safetensors", &bytes), ("b.safetensors", &bytes), ("c.safetensors", &expected)]
    {
        assert!(read(&shown, name).unwrap() == *expected, "{name}");
    }
}
