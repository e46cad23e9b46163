//! Versions, after a power cut at any change and a kill before any call of the steps that make, shrink and remove them:
//! each version that is listed reads as the state that it is, and the next step removes the remains.

use std::path::Path;
use std::sync::Arc;

use tierfs::ingest::{Options, Origin, Target, import_file};
use tierfs::model::{CollectionName, Owner, Silent, StoreId};
use tierfs::store::disk::files::FileDisk;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, File, Open};
use tierfs::store::{Access, Collection, ROOT, Store, Verify};
use tierfs::vfs::open::OpenFiles;

use crate::power_cut_disk::CutDisk;
use crate::recorder::Recorder;
use crate::stores::{copied, fsck};
use crate::trace::{Fault, Point, points, spread, traced};
use support::{Place, Random, answer, container_of, ended, files_below, tierfs};

const PLACE: CollectionName<'static> = CollectionName { tenant: "demo", name: "c" };
const NAME: &str = "m.safetensors";
/// Calls before which a short run kills an import.
const TRIED: usize = 40;

/// Checkpoints that follow one another: a few elements differ.
fn checkpoints(count: usize) -> Vec<Vec<u8>> {
    let bytes = container_of(&mut Random(9), &[("w", 30_000), ("v", 12_000)]);
    let mut all = vec![bytes];
    for step in 1..count {
        let mut next = all.last().unwrap().clone();
        for at in 0..20 {
            let place = next.len() - 150_000 + at * 7001 + step;
            next[place] = next[place].wrapping_add(1);
        }
        all.push(next);
    }
    all
}

fn read(collection: &Arc<Collection>) -> Vec<u8> {
    let node = collection.state().directory(ROOT).unwrap().get(NAME.as_bytes()).unwrap();
    let file = OpenFiles::default().open(collection, node, Verify::Always).unwrap();
    let mut bytes = vec![0; file.bytes() as usize];
    assert_eq!(file.read(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// The numbers of the versions of a store, each with the place of its state. The descriptions can be read.
fn checked(store: &Store, states: &[Vec<u8>], context: &str) -> Vec<(u64, usize)> {
    let numbers = store.version_numbers(PLACE).unwrap();
    let mut found = Vec::new();
    for number in &numbers {
        let version = store.version(PLACE, *number);
        let version = version.unwrap_or_else(|error| panic!("{context}: version {number}: {error}"));
        let bytes = read(&version);
        let state = states.iter().position(|state| *state == bytes);
        found.push((*number, state.unwrap_or_else(|| panic!("{context}: version {number} has other bytes"))));
        store.check_version(PLACE, *number).unwrap_or_else(|error| panic!("{context}: {error}"));
    }
    found
}

struct Steps<'a> {
    store: &'a Store,
    states: &'a [Vec<u8>],
}

impl Steps<'_> {
    /// Imports a checkpoint and keeps it, as `tierfs import --previous --keep 3` does.
    fn keep(&self, step: usize) {
        let collection = self.store.collection_made("demo", "c", Owner { uid: 0, gid: 0 }).unwrap();
        let source: Arc<dyn File> = MemoryDisk::new().open("source", Open::Create).unwrap();
        source.write_at(&self.states[step], 0).unwrap();
        let origin = Origin {
            mode: 0o644,
            owner: Owner { uid: 0, gid: 0 },
            atime: 0,
            mtime: step as i64,
            sha256: None,
        };
        let target = Target { directories: Vec::new(), name: NAME.into() };
        let (settings, options) = (self.store.settings(), Options::default());
        import_file(&collection, settings, &target, &source, &origin, &options, &Silent).unwrap();
        self.store.keep_version(&collection).unwrap();
        assert!(self.store.keep_last_versions(PLACE, 3).unwrap().is_none());
        self.store.shrink_versions(PLACE, &Silent).unwrap();
    }
}

#[test]
fn a_power_cut_after_any_change_of_a_step_leaves_each_listed_version_whole() {
    let states = checkpoints(6);
    let recorder = Recorder::new(CutDisk::default());
    let disk: Arc<dyn Disk> = Arc::new(recorder.clone());
    let open = |disk: &Arc<dyn Disk>| Store::open(disk.clone(), Access::Write, "a test").unwrap();
    Store::create(&*disk, StoreId(7)).unwrap();
    let store = open(&disk);
    store.create_tenant("demo", Owner { uid: 0, gid: 0 }, 0o755).unwrap();
    let steps = Steps { store: &store, states: &states };
    (0..3).for_each(|step| steps.keep(step));
    drop(store);
    let opening = recorder.count();
    let store = open(&disk);
    store.collection(PLACE.tenant, PLACE.name).unwrap();
    assert_eq!(recorder.opened("/versions/", opening), 0, "an opening looks at no file of a version");
    let steps = Steps { store: &store, states: &states };
    let mut chance = Random(3);
    let (mut points, mut seen) = (0, Vec::new());
    // A version is made, the next to last becomes a difference, the oldest goes; then one from the middle.
    for step in 3..=5 {
        let (before, from) = (store.version_numbers(PLACE).unwrap(), recorder.count());
        if step < 5 {
            steps.keep(step);
        } else {
            store.remove_version(PLACE, before[1]).unwrap();
        }
        let after = store.version_numbers(PLACE).unwrap();
        assert_ne!(before, after);
        for count in from..=recorder.count() {
            let kept = if count % 3 == 0 { 4 } else { chance.below(4) };
            let context = format!("step {step}, change {count}, {kept} of 4 kept");
            let image: Arc<dyn Disk> =
                Arc::new(recorder.again(CutDisk::default(), count).cut(&mut chance, kept));
            let again = open(&image);
            let found = checked(&again, &states, &context);
            assert!(found.iter().all(|(number, state)| *number == *state as u64 + 1), "{context}: {found:?}");
            let numbers: Vec<u64> = found.iter().map(|(number, _)| *number).collect();
            // None that no step of this one removes is gone.
            let is_there = |number: &&u64| before.contains(number);
            assert!(
                after.iter().filter(is_there).all(|number| numbers.contains(number)),
                "{context}: {numbers:?}"
            );
            if !seen.contains(&numbers) {
                seen.push(numbers);
            }
            if count % 5 == 0 {
                again.shrink_versions(PLACE, &Silent).unwrap();
                let after = checked(&again, &states, &format!("{context}, and the next step"));
                assert_eq!(after, found, "{context}");
                for (number, _) in after {
                    let listed = image.list(&format!("demo/c/versions/{number}")).unwrap();
                    let left = listed.iter().find(|entry| entry.name.ends_with(".new"));
                    assert!(left.is_none(), "{context}: {left:?} stays");
                }
            }
            points += 1;
        }
    }
    assert!(points > 100 && seen.len() > 4, "{points} points, {seen:?}");
}

#[test]
fn an_import_that_keeps_versions_killed_before_any_call_leaves_each_whole() {
    let states = checkpoints(5);
    let (place, notes) = (Place::new(), Place::new());
    let notes = notes.path("notes");
    let from = |step: usize| place.write(&format!("step{step}/{NAME}"), &states[step]);
    let import = |store: &Path, step: usize, fault: Option<(&Point, Fault)>| {
        let (source, keep) = (from(step), ["--previous", "--keep", "2"].map(Path::new));
        let arguments =
            [&[Path::new("import"), store, Path::new("demo/c"), source.as_path()], &keep[..]].concat();
        ended(&mut traced(&arguments, &notes, fault).spawn().unwrap(), "a traced import")
    };
    let checked_in = |store: &Path, context: &str| {
        let store = Store::open(Arc::new(FileDisk::new(store)), Access::Write, "a test").unwrap();
        let numbers = checked(&store, &states, context);
        drop(store);
        numbers
    };
    for step in 0..3 {
        let mut command = tierfs();
        command.arg("import").arg(place.store()).arg("demo/c").arg(from(step)).arg("--previous");
        answer(&mut command).ok();
    }
    let store = copied(&place, &place.store());
    assert_eq!(import(&store, 3, None), Some(0));
    assert_eq!(checked_in(&store, "nothing was killed"), [(3, 2), (4, 3)]);
    let all = points(&notes);
    assert!(all.len() > 40, "{all:?}");
    let (mut hits, mut seen) = (0, Vec::new());
    for point in spread(all, TRIED) {
        let context = format!("killed before {point}");
        let store = copied(&place, &place.store());
        hits += usize::from(import(&store, 3, Some((&point, Fault::Kill))).is_none());
        fsck(&store, &context);
        let numbers = checked_in(&store, &context);
        assert!(numbers.contains(&(3, 2)), "{context}: {numbers:?}");
        if !seen.contains(&numbers) {
            seen.push(numbers);
        }
        // The next import finishes it.
        let mut command = tierfs();
        command.arg("import").arg(&store).arg("demo/c").arg(from(3)).args(["--previous", "--keep", "2"]);
        answer(&mut command).ok();
        // The state that the kill left may be a version between.
        let after = checked_in(&store, &context);
        assert!(after.len() == 2 && after[1].1 == 3 && after[0].1 >= 2, "{context}: {after:?}");
        fsck(&store, &context);
        let left = files_below(&store.join("demo/c/versions"));
        assert!(
            !left.iter().any(|path| path.extension().is_some_and(|end| end == "new")),
            "{context}: {left:?}"
        );
    }
    assert!(hits > TRIED / 2 && seen.len() > 2, "{hits} imports were killed, {seen:?}");
}
