//! Damage before the last batch, and flipped bits anywhere.

use rayon::prelude::*;
use tierfs::model::{CollectionName, ErrorKind};
use tierfs::store::Access;
use tierfs::store::repair;

use crate::fixture::{Picture, SLOT, STORE, World, batches, import, noise, open, picture, world};

/// Every path of `found` reads as in `right`, or fails; it never has other bytes.
fn assert_right_or_refused(found: &Picture, pictures: &[(usize, Picture)], context: &str) {
    for (path, (_, bytes)) in found {
        let Ok(bytes) = bytes else { continue };
        let known = pictures.iter().any(|(_, right)| {
            right.get(path).is_some_and(|(_, right)| right.as_ref().is_ok_and(|right| right == bytes))
        });
        assert!(known, "{context}: {path} has bytes that nobody wrote");
    }
}

#[test]
fn every_single_flipped_bit_is_corrected_and_reported() {
    let world = world();
    let bits = world.log().len() * 8;
    assert!((1000..12_000).contains(&world.log().len()), "{} bytes", world.log().len());
    (0..bits).into_par_iter().for_each(|bit| {
        let mut log = world.log().to_vec();
        log[bit / 8] ^= 1 << (bit % 8);
        flipped(&world, &log, bit);
    });
}

fn flipped(world: &World, log: &[u8], bit: usize) {
    let place = format!("bit {} of byte {}", bit % 8, bit / 8);
    let collection = open(&world.disk(log), Access::Read).unwrap_or_else(|error| panic!("{place}: {error}"));
    assert_eq!(collection.damage(), None, "{place}");
    assert!(!collection.events().is_empty(), "{place}: no event");
    assert!(picture(&collection) == *world.last(), "{place}: another state");
}

#[test]
fn a_lost_sector_before_the_last_batch_leaves_a_correct_read_only_collection() {
    let world = world();
    let batches = batches(world.log());
    let (last, _) = *batches.last().unwrap();
    for begin in (512..last).step_by(512) {
        let end = (begin + 512).min(last);
        for fill in [0_u8, 0xa5] {
            let mut log = world.log().to_vec();
            log[begin..end].fill(fill);
            let place = format!("bytes {begin}..{end} of {fill:#x}");
            let disk = world.disk(&log);
            let collection = open(&disk, Access::Write).unwrap_or_else(|error| panic!("{place}: {error}"));
            let damage = collection.damage().unwrap_or_else(|| panic!("{place}: no damage"));
            assert!(damage.reason.contains("meta.log at byte"), "{place}: {}", damage.reason);
            let found = picture(&collection);
            assert_right_or_refused(&found, &world.steps, &place);
            let error = import(&collection, "new", &noise(10), &Default::default()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ReadOnly, "{place}: {error}");
            drop(collection);
            assert!(
                crate::fixture::files(&disk) == crate::fixture::files(&world.disk(&log)),
                "{place}: a change"
            );
        }
    }
}

#[test]
fn a_batch_after_a_lost_one_still_counts() {
    let world = world();
    let batches = batches(world.log());
    // The last file's objects and its names are the last two batches.
    let last_file = batches[batches.len() - 2].0;
    for &(begin, end) in batches.iter().skip(1).filter(|(_, end)| *end <= last_file) {
        let whole_batch = begin..end;
        let its_commit = end - SLOT..end;
        for lost in [whole_batch, its_commit] {
            let mut log = world.log().to_vec();
            log[lost.clone()].fill(0);
            let collection = open(&world.disk(&log), Access::Read).unwrap();
            assert!(collection.damage().is_some(), "{lost:?}");
            let found = picture(&collection);
            let right = &world.last()["/last"];
            // The first batch made the directory of its name.
            assert_eq!(found.get("/last"), Some(right), "{lost:?}");
            assert_right_or_refused(&found, &world.steps, &format!("{lost:?}"));
        }
    }
}

#[test]
fn blocks_recorded_before_the_damage_are_not_trusted() {
    let world = world();
    let batches = batches(world.log());
    let lost = batches[batches.len() - 3];
    let mut log = world.log().to_vec();
    log[lost.0..lost.1].fill(0);
    let found = picture(&open(&world.disk(&log), Access::Read).unwrap());
    assert_eq!(found["/config.json"].1, Err(ErrorKind::Corrupt));
}

#[test]
fn a_repair_of_any_lost_sector_keeps_every_other_file() {
    let world = world();
    let batches = batches(world.log());
    let (last, _) = *batches.last().unwrap();
    for begin in (0..last).step_by(512) {
        let end = (begin + 512).min(last);
        let place = format!("bytes {begin}..{end}");
        let mut log = world.log().to_vec();
        log[begin..end].fill(0xa5);
        let disk = world.disk(&log);
        let repaired = repair(&disk, STORE, CollectionName::new("t", "c"), 7)
            .unwrap_or_else(|error| panic!("{place}: {error}"));
        let repaired = repaired.unwrap_or_else(|| panic!("{place}: nothing was wrong"));
        assert_eq!(crate::fixture::files(&disk)[&repaired.kept_log], log, "{place}");
        let collection = open(&disk, Access::Write).unwrap_or_else(|error| panic!("{place}: {error}"));
        assert!(collection.damage().is_none() && collection.events().is_empty(), "{place}");
        let found = picture(&collection);
        // Each import's batches lie between two steps: the sector does not damage the others.
        for pair in world.steps.windows(2) {
            let (from, until) = (pair[0].0, pair[1].0);
            let made = pair[1].1.iter().filter(|(path, _)| !pair[0].1.contains_key(*path));
            for (path, (_, right)) in made.filter(|_| end <= from || until <= begin) {
                if !world.last().contains_key(path) {
                    // A later step removes it.
                    continue;
                }
                let right = right.as_ref().unwrap();
                let versions: Vec<_> = world.steps.iter().filter_map(|(_, step)| step.get(path)).collect();
                let is_there = found
                    .get(path)
                    .is_some_and(|(_, bytes)| versions.iter().any(|(_, right)| right == bytes));
                let is_elsewhere = || found.values().any(|(_, bytes)| bytes.as_ref() == Ok(right));
                assert!(is_there || begin < from && is_elsewhere(), "{place}: {path} of {from}..{until}");
            }
        }
        for (path, (_, bytes)) in &found {
            let Ok(bytes) = bytes else { continue };
            let known = world.last().values().any(|(_, right)| right.as_ref() == Ok(bytes));
            // An object alone is a part of a file.
            let is_part = || {
                let mut all = world.last().values().filter_map(|(_, right)| right.as_ref().ok());
                all.any(|right| right.windows(bytes.len()).any(|part| part == bytes))
            };
            assert!(known || is_part(), "{place}: {path} has bytes that nobody wrote");
        }
        import(&collection, "new", &noise(10_000), &Default::default()).unwrap();
        let before = picture(&collection);
        drop(collection);
        assert!(picture(&open(&disk, Access::Write).unwrap()) == before, "{place}");
        assert_eq!(
            repair(&disk, STORE, CollectionName::new("t", "c"), 7).unwrap(),
            None,
            "{place}: a second repair"
        );
    }
}
