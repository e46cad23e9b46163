//! The power fails after each change of short histories, and again after each change of the recovery that follows.

use std::collections::BTreeMap;
use std::sync::Arc;

use tierfs::engine::compact;
use tierfs::model::{CollectionName, EntryId, Silent};
use tierfs::store::ROOT;
use tierfs::store::disk::{Disk, Open};
use tierfs::store::repair;

use crate::history::{History, Known, STORE};
use crate::power_cut_disk::CutDisk;
use crate::recorder::Recorder;
use crate::stores::grow_log;
use support::Random;

const SEEDS: u64 = 12;
const STEPS: usize = 8;

type Names = BTreeMap<String, Known>;

/// The versions that may be read during a step: the one before and the one that it makes.
fn either(before: &Names, after: &Names) -> Names {
    let mut all = after.clone();
    for (name, known) in before {
        let versions = &mut all.entry(name.clone()).or_default().versions;
        versions.splice(0..0, known.versions.iter().cloned());
    }
    for (name, known) in &mut all {
        if !before.contains_key(name) {
            known.versions.insert(0, None);
        }
        // The name may have gone in the step, and a sync may have made that durable.
        if !after.contains_key(name) {
            known.versions.push(None);
        }
    }
    all
}

fn dynamic(disk: CutDisk) -> Arc<dyn Disk> {
    Arc::new(disk)
}

/// Opens the disk after a power cut, and cuts the power again after every change of the opening.
fn check_recovery(image: &CutDisk, names: &Names, chance: &mut Random, context: &str) {
    let recorder = Recorder::new(image.cut(chance, 4));
    let opened: Arc<dyn Disk> = Arc::new(recorder.clone());
    History::check(names, &History::open(&opened), context);
    for count in 0..recorder.count() {
        let half = recorder.again(image.cut(chance, 4), count);
        let kept = chance.below(5);
        let again = half.cut(chance, kept);
        let context = format!("{context}, and again after change {count} of the opening");
        History::check(names, &History::open(&dynamic(again)), &context);
    }
}

#[test]
fn a_power_cut_after_any_change_and_again_in_the_recovery_keeps_what_was_synced() {
    let mut points = 0;
    for seed in 0..SEEDS {
        let recorder = Recorder::new(CutDisk::default());
        let disk: Arc<dyn Disk> = Arc::new(recorder.clone());
        let mut history = History::new(&disk, seed + 500);
        let mut chance = Random(seed);
        for step in 0..STEPS {
            let (before, from) = (history.names.clone(), recorder.count());
            if step == STEPS - 1 {
                history.sync();
            } else {
                history.step();
            }
            let names = either(&before, &history.names);
            for count in from..=recorder.count() {
                let now = recorder.again(CutDisk::default(), count);
                for kept in [0, chance.below(3) + 1, 4] {
                    let context = format!("seed {seed}, step {step}, change {count}, {kept} of 4 kept");
                    check_recovery(&now.cut(&mut chance, kept), &names, &mut chance, &context);
                }
                points += 1;
            }
        }
    }
    assert!(points > 500, "{points} points");
}

#[test]
fn a_power_cut_after_any_change_of_a_log_rewrite_loses_nothing() {
    let recorder = Recorder::new(CutDisk::default());
    let disk: Arc<dyn Disk> = Arc::new(recorder.clone());
    let mut history = History::new(&disk, 77);
    (0..6).for_each(|_| history.step());
    history.flush_all();
    history.sync();
    grow_log(&history.collection);
    let from = recorder.count();
    let log = disk.open("t/c/meta.log", Open::Read).unwrap();
    let bytes = log.len().unwrap();
    history.sync();
    let after = disk.open("t/c/meta.log", Open::Read).unwrap().len().unwrap();
    assert!(bytes > 4 << 20 && after < bytes / 4, "{bytes} bytes, then {after}");
    let mut chance = Random(5);
    for count in from..=recorder.count() {
        for kept in [0, 2, 4] {
            let image = recorder.again(CutDisk::default(), count).cut(&mut chance, kept);
            let context = format!("change {count}, {kept} of 4 kept");
            History::check(&history.names, &History::open(&dynamic(image)), &context);
        }
    }
}

#[test]
fn a_power_cut_after_any_change_of_a_compaction_loses_nothing() {
    let (mut extent, mut moved) = (0, 0);
    for seed in 0..SEEDS {
        let recorder = Recorder::new(CutDisk::default());
        let disk: Arc<dyn Disk> = Arc::new(recorder.clone());
        let mut history = History::new(&disk, seed + 900);
        (0..3 * STEPS).for_each(|_| history.step());
        history.flush_all();
        history.sync();
        let from = recorder.count();
        let done = compact(&history.collection, &Silent).unwrap();
        (extent, moved) = (extent + done.returned, moved + done.moved);
        // Later writes may take the space that was freed.
        let before = history.names.clone();
        history.step();
        let names = either(&before, &history.names);
        let mut chance = Random(seed);
        for count in (from..=recorder.count()).step_by(2) {
            let now = recorder.again(CutDisk::default(), count);
            for kept in [0, chance.below(3) + 1, 4] {
                let image = now.cut(&mut chance, kept);
                let context = format!("seed {seed}, change {count}, {kept} of 4 kept");
                check_recovery(&image, &names, &mut chance, &context);
            }
        }
    }
    assert!(extent > 0 && moved > 0, "{extent} blocks back in data files, {moved} moved");
}

#[test]
fn a_repair_can_be_repeated_after_a_power_cut_at_any_change() {
    let cut_disk = CutDisk::default();
    let disk = dynamic(cut_disk.clone());
    let mut history = History::new(&disk, 78);
    (0..12).for_each(|_| history.step());
    history.flush_all();
    history.sync();
    let names = history.names.clone();
    drop(history);
    // A slot in the middle, of a batch that was durable.
    let log = disk.open("t/c/meta.log", Open::Write).unwrap();
    let slots = log.len().unwrap() / 128;
    log.write_at(&[0x5a; 100], slots / 2 * 128).unwrap();
    log.sync_data().unwrap();
    let mut chance = Random(6);
    let recorder = Recorder::new(cut_disk.cut(&mut chance, 4));
    let repaired =
        repair(&(Arc::new(recorder.clone()) as Arc<dyn Disk>), STORE, CollectionName::new("t", "c"), 1)
            .unwrap();
    assert!(repaired.is_some());
    for count in 0..=recorder.count() {
        for kept in [0, 2, 4] {
            let image = dynamic(recorder.again(cut_disk.cut(&mut chance, 4), count).cut(&mut chance, kept));
            let context = format!("change {count}, {kept} of 4 kept");
            // It is repaired already, or still has to be.
            repair(&image, STORE, CollectionName::new("t", "c"), 1)
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            let collection = History::open(&image);
            let state = collection.state();
            let root = state.directory(ROOT).unwrap();
            let found: Vec<&[u8]> = root.after(EntryId(0)).map(|(_, name, _)| &**name).collect();
            let kept = names.keys().filter(|name| found.contains(&name.as_bytes())).count();
            assert!(kept + 2 >= names.len(), "{context}: {found:?} of {:?}", names.keys());
        }
    }
}
