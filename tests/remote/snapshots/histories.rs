//! Random histories: frozen at any moment, written on meanwhile, read again from the pieces.

use std::sync::Arc;

use tierfs::engine::{
    Consent, Engine, Evict, EvictRequest, LOSSY, MoveRequest, Moved, Reconstruct, compact, set_reconstruct,
    set_setting, variant,
};
use tierfs::ingest::{Options, Parents};
use tierfs::model::{CollectionName, EntryId, ErrorKind, MoveTo, Owner, Result, Silent};
use tierfs::store::disk::Disk;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::{Access, Collection, Frozen, Limits, ROOT, Store, Verify};
use tierfs::vfs::open::{self, OpenFiles};

use super::memory::{REMOTE, Remote, assert_same, assert_same_bytes, seen};
use crate::fixture::{Numbers, STORE, f32s, find, import, npy_file, safetensors_file};
use support::{Random, scale};

const FILES: [&str; 6] = ["m.safetensors", "d/n.safetensors", "x.npy", "f", "d/g", "h"];
const BYTES_MAX: usize = 300_000;

struct History {
    store: Arc<Store>,
    engine: Engine,
    collection: Arc<Collection>,
    random: Random,
    pins: bool,
}

impl History {
    fn new(disk: &Arc<dyn Disk>, seed: u64) -> History {
        Store::create(&**disk, STORE).unwrap();
        let store = Arc::new(Store::open(disk.clone(), Access::Write, "").unwrap());
        let engine = Engine::new(store.clone());
        let collection = store.collection_made("t", "c", Owner { uid: 3, gid: 4 }).unwrap();
        set_setting(&collection, ROOT, &LOSSY, "allow").unwrap();
        History { store, engine, collection, random: Random(seed), pins: true }
    }

    fn content(&mut self, name: &str) -> Vec<u8> {
        let mut numbers = Numbers(self.random.below(usize::MAX) as u64);
        let rows = 1 + self.random.below(300);
        match name.rsplit_once('.') {
            Some((_, "safetensors")) => safetensors_file(&[
                f32s("w", &[rows, 256], &mut numbers),
                f32s("b/v", &[1 + rows / 2, 64], &mut numbers),
                f32s("norm", &[7], &mut numbers),
            ]),
            Some((_, "npy")) => {
                let values = numbers.floats(rows * 64);
                let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                npy_file("<f4", &format!("({rows}, 64)"), &data)
            }
            _ => {
                let len = [0, 100, 16_384, 20_000, BYTES_MAX][self.random.below(5)];
                self.random.bytes(len)
            }
        }
    }

    fn node(&self, name: &str) -> Option<EntryId> {
        find(&self.collection, name).map(|node| node.entry.id)
    }

    /// Something happens to a file.
    fn step(&mut self) {
        let name = FILES[self.random.below(FILES.len())];
        let Some(node) = self.node(name) else {
            let bytes = self.content(name);
            import(&self.collection, name, &bytes, &Options::default()).unwrap();
            return;
        };
        let silent = &Silent;
        match self.random.below(14) {
            0 => self.unlink(name),
            1 | 2 => {
                let bytes = self.content(name);
                done_or_busy(import(&self.collection, name, &bytes, &Options::default()));
            }
            3..=5 => {
                let tier = ["exact", "q8", "q7", "q5", "q3", "q3x"][self.random.below(6)];
                let to = MoveRequest {
                    to: MoveTo::parse_tier(tier).unwrap(),
                    consent: Consent::Given,
                    rows: None,
                };
                // More precise than any source, or no tensor.
                self.engine.set_tier(&self.collection, node, to, silent, &mut Moved::default()).ok();
            }
            6 => {
                let to = MoveTo::all(tierfs::model::Aim::Pack);
                let to = MoveRequest { to, consent: Consent::AsSet, rows: None };
                self.engine.set_tier(&self.collection, node, to, silent, &mut Moved::default()).ok();
            }
            7 => {
                let to = Reconstruct::parse("factor:rank=3").unwrap();
                if set_reconstruct(&self.collection, node, to).is_ok() {
                    let what = EvictRequest { what: Evict::Stored, consent: Consent::Given, user: None };
                    self.engine.evict(&self.collection, node, what, silent, &mut Moved::default()).ok();
                }
            }
            8 => drop(compact(&self.collection, silent).unwrap()),
            9 => {
                // The name may be taken.
                open::link(&self.collection, node, ROOT, b"linked").ok();
            }
            10 if self.pins => {
                self.engine.pin(&self.collection, node, silent).ok();
            }
            _ => self.write(node),
        }
    }

    fn unlink(&mut self, name: &str) {
        let (directory, name) = match name.rsplit_once('/') {
            Some((directory, name)) => (self.node(directory).unwrap(), name),
            None => (ROOT, name),
        };
        done_or_busy(open::unlink(&self.collection, directory, name.as_bytes()));
    }

    /// An array becomes the parent of another, which is stored as differences to it.
    fn child(&mut self) {
        let Some(parent) = self.node("x.npy") else { return };
        let file = OpenFiles::default().open(&self.collection, parent, Verify::First).unwrap();
        let mut bytes = vec![0; file.bytes() as usize];
        if file.read(0, &mut bytes).is_err() || bytes.len() < 1000 {
            return;
        }
        let end = bytes.len();
        (200..end).step_by(4000).for_each(|at| bytes[at / 4 * 4] ^= 1);
        // An array that was written to may be none any more.
        let Ok(parents) = Parents::new(&self.collection, Some("x")) else { return };
        let options = Options { parents: Some(parents), ..Options::default() };
        if import(&self.collection, "d/y.npy", &bytes, &options).is_err() {
            return;
        }
        let Some(child) = self.node("d/y.npy") else { return };
        if set_reconstruct(&self.collection, child, Reconstruct::parse("delta").unwrap()).is_ok() {
            let what = EvictRequest { what: Evict::Stored, consent: Consent::Given, user: None };
            self.engine.evict(&self.collection, child, what, &Silent, &mut Moved::default()).ok();
        }
    }

    /// Writes into a file, or cuts it, and records that.
    fn write(&mut self, node: EntryId) {
        let table = OpenFiles::default();
        let file = table.open(&self.collection, node, Verify::First).unwrap();
        let at = self.random.below(file.bytes() as usize + 1000);
        if self.random.below(4) == 0 {
            file.truncate(at as u64).ok();
        } else {
            // Short ones become patches of encoded blocks.
            let most = [40, 60_000][self.random.below(2)];
            let len = 1 + self.random.below(most);
            let bytes = self.random.bytes(len);
            // A pinned file refuses.
            file.write(at as u64, &bytes).ok();
        }
        file.flush().unwrap();
    }
}

/// A file that others need stays: it is busy.
fn done_or_busy<T>(result: Result<T>) {
    if let Err(error) = result {
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    }
}

/// All of a state that its log has: nodes, names, settings (quotas, pins and lineage are among them), objects,
/// blocks with their epochs, deltas and factorizations.
fn state_of(collection: &Collection) -> Vec<String> {
    let state = collection.state();
    let mut out = vec![format!("{} {} {}", state.number(), state.created_at(), state.last_entry())];
    let mut nodes: Vec<_> = state.nodes().collect();
    nodes.sort_by_key(|node| node.entry.id);
    for node in nodes {
        let id = node.entry.id;
        out.push(format!("{:?} {:?}", node.entry, state.settings_of(id).collect::<Vec<_>>()));
        out.push(format!("{id:?} at {:?} with {:?}", state.path(id), state.taken_names(id)));
        let names = state.directory(id).into_iter().flat_map(|directory| directory.after(EntryId(0)));
        out.extend(names.map(|(entry, name, node)| format!("{id:?}: {entry:?} {name:?} {node:?}")));
    }
    let mut objects: Vec<_> = state.objects().collect();
    objects.sort_by_key(|object| object.entry.id);
    for object in objects {
        out.push(format!("{:?}", object.entry_now()));
        let layout = object.layout();
        for (index, block) in object.blocks.read().described(layout) {
            let (deltas, factor) = (object.deltas(index, block.epoch), object.factor_of(&block));
            out.push(format!("{} {index}: {block:?} {deltas:?} {factor:?}", object.entry.id));
        }
    }
    out
}

#[test]
fn a_replay_gives_the_state_that_was_in_memory_after_every_step() {
    let (mut children, mut epochs) = (0, 0);
    for seed in 300..300 + 12 * u64::from(scale()) {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        let mut history = History::new(&disk, seed);
        for step in 0..40 {
            let what = history.random.below(24);
            match what {
                0..=2 => history.child(),
                3 | 4 => drop(history.collection.checkpoint_now().unwrap()),
                5 => {
                    let limits = Limits { bytes: Some(1 << 30 | step), ..Limits::default() };
                    history.collection.set_limits(limits).unwrap();
                }
                6 => drop(compact(&history.collection, &Silent).unwrap()),
                _ => history.step(),
            }
            let context = format!("seed {seed}, step {step} of kind {what}");
            let replayed =
                tierfs::store::open_collection(&disk, STORE, CollectionName::new("t", "c"), Access::Read)
                    .unwrap();
            let (memory, replayed) = (state_of(&history.collection), state_of(&replayed));
            for (memory, replayed) in memory.iter().zip(&replayed) {
                assert_eq!(memory, replayed, "{context}");
            }
            assert_eq!(memory.len(), replayed.len(), "{context}");
            children += usize::from(memory.iter().any(|line| line.contains("is_on_parent: true")));
            epochs += memory.len();
        }
    }
    assert!(children > 20, "{children} states with children");
    assert!(epochs > 1000, "{epochs} lines");
}

#[test]
fn a_snapshot_reads_as_the_collection_did_when_it_was_frozen_whatever_happened_since() {
    let (mut kinds, mut pushed) = (std::collections::BTreeSet::new(), 0);
    for seed in 0..24 * u64::from(scale()) {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        let mut history = History::new(&disk, seed);
        for round in 0..4 {
            for _ in 0..1 + history.random.below(14) {
                history.step();
            }
            let context = format!("seed {seed}, round {round}");
            let expected = seen(&history.collection);
            let frozen = Frozen::of(&history.collection).unwrap();
            // Writers go on, and so do compactions and syncs, which give space back.
            for _ in 0..history.random.below(12) {
                history.step();
            }
            history.collection.sync().unwrap();
            compact(&history.collection, &Silent).unwrap();
            let remote = Remote::default();
            let canonical = frozen.canonical(REMOTE).unwrap_or_else(|error| panic!("{context}: {error}"));
            let done = remote.push_canonical(&canonical, CollectionName::new("t", "c"));
            kinds.extend(done.manifest.files.iter().map(|file| file.kind));
            pushed += done.bytes;
            let shown = remote.store().collection("t", "c").unwrap();
            assert_eq!(shown.damage(), None, "{context}");
            // Blocks from factors need an engine.
            let reader = Arc::new(remote.store());
            let _engine = Engine::new(reader.clone());
            assert_same(&seen(&reader.collection("t", "c").unwrap()), &expected, &context);
            let again = frozen.canonical(REMOTE).unwrap();
            assert!(again.log() == canonical.log(), "{context}: another log");
            drop((frozen, canonical, again));
            history.collection.sync().unwrap();
        }
    }
    assert!(pushed > 10 << 20, "{pushed} bytes");
    assert_eq!(kinds.len(), 5, "{kinds:?}");
}

#[test]
fn a_state_gives_the_same_files_after_a_restart_a_checkpoint_and_a_compaction() {
    for seed in 100..112 * u64::from(scale()).min(2) {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        let mut history = History::new(&disk, seed);
        for _ in 0..40 {
            history.step();
        }
        history.collection.sync().unwrap();
        let canonical = |collection: &Arc<Collection>| {
            let canonical = Frozen::of(collection).unwrap().canonical(REMOTE).unwrap();
            let remote = Remote::default();
            let manifest = remote.push_canonical(&canonical, CollectionName::new("t", "c")).manifest;
            (canonical.log().to_vec(), manifest)
        };
        let first = canonical(&history.collection);
        history.collection.checkpoint_now().unwrap();
        let second = canonical(&history.collection);
        assert!(first == second, "seed {seed}: a checkpoint changed it");
        let History { store, engine, collection, .. } = history;
        drop((engine, collection));
        drop(Arc::into_inner(store));
        let store = Arc::new(Store::open(disk.clone(), Access::Write, "").unwrap());
        let third = canonical(&store.collection("t", "c").unwrap());
        assert!(first.0 == third.0, "seed {seed}: a restart changed the log");
        assert!(first.1 == third.1, "seed {seed}: a restart changed the manifest");
        // Opened to be read only.
        drop(store);
        let store = Arc::new(Store::open(disk, Access::Read, "").unwrap());
        assert!(first == canonical(&store.collection("t", "c").unwrap()), "seed {seed}: a reader differs");
    }
}

#[test]
fn a_variant_reads_as_the_collection_after_a_move_to_its_tier_whatever_its_history() {
    let mut encoded = 0;
    for seed in 200..200 + 24 * u64::from(scale()) {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        // A move refuses pinned files, which a variant encodes.
        let mut history = History { pins: false, ..History::new(&disk, seed) };
        for _ in 0..1 + history.random.below(30) {
            history.step();
        }
        let name = ["q8", "q5", "q5:all", "q3x:all"][history.random.below(4)];
        let (context, to) = (format!("seed {seed}, {name}"), MoveTo::parse_variant(name).unwrap());
        let frozen = Frozen::of(&history.collection).unwrap();
        let canonical = frozen.canonical(REMOTE).unwrap_or_else(|error| panic!("{context}: {error}"));
        let recode = variant(to, history.store.settings());
        let made = || canonical.variant(canonical.choose(&recode), REMOTE, &Silent).unwrap();
        let (remote, first) = (Remote::default(), made());
        let pushed = remote.push_with(&canonical, &[first], CollectionName::new("t", "c"));
        assert!(made().log() == made().log(), "{context}: another log");
        let reader = Arc::new(remote.store());
        let _engine = Engine::new(reader.clone());
        let exact = reader.collection("t", "c").unwrap();
        assert_same(&seen(&exact), &seen(&history.collection), &context);
        let shown = reader.variant(&exact, name).unwrap().unwrap();
        assert_eq!(shown.damage(), None, "{context}");
        assert!(reader.variant(&exact, "q7").unwrap().is_none(), "{context}");
        drop((canonical, frozen));
        // Refused tensors stay, and the others move.
        let to = MoveRequest { to, consent: Consent::Given, rows: None };
        history.engine.set_tier(&history.collection, ROOT, to, &Silent, &mut Moved::default()).ok();
        assert_same_bytes(&seen(&shown), &seen(&history.collection), &context);
        encoded += pushed.manifest.variants.iter().map(|variant| variant.files.len()).sum::<usize>();
    }
    assert!(encoded > 10, "{encoded} tier files");
}
