//! Unfinished ends of logs, and commits after them.

use std::collections::BTreeSet;

use tierfs::format::log::record::Record;
use tierfs::model::{ErrorKind, ObjectId};
use tierfs::store::Access;
use tierfs::store::disk::Open;

use crate::fixture::{LOG, SLOT, World, batches, import, noise, open, picture, world};

#[test]
fn every_prefix_of_a_log_is_the_state_after_its_last_whole_batch() {
    let world = world();
    let ends: BTreeSet<usize> = batches(world.log()).iter().map(|(_, end)| *end).collect();
    for len in 0..=world.log().len() {
        let opened = open(&world.disk(&world.log()[..len]), Access::Read);
        let Some(right) = world.picture_at(len) else {
            assert_eq!(opened.err().map(|error| error.kind()), Some(ErrorKind::NotFound), "{len} bytes");
            continue;
        };
        let collection = opened.unwrap_or_else(|error| panic!("{len} bytes: {error}"));
        assert_eq!(collection.damage(), None, "{len} bytes");
        assert!(picture(&collection) == *right, "{len} bytes");
        assert_eq!(collection.events().is_empty(), ends.contains(&len), "{len} bytes: an event if torn");
    }
}

/// An intact slot of another generation of the log.
fn stale(place: usize) -> [u8; SLOT] {
    let record = match place % 3 {
        0 => Record::Delete { object: ObjectId(place as u128) },
        1 => Record::Commit { batch: 3 + place as u64, slots: 2, checksum: 5, unsynced: 0 },
        _ => Record::Catalog { len: 100, checksum: 7, kind: 1, version: 1 },
    };
    let mut slot = record.to_slot();
    slot.seal(9, 1000 + place as u64);
    slot.0
}

/// A commit after a torn end works, and dropped records do not return.
fn goes_on(world: &World, log: &[u8], dropped: &str, context: &str) {
    let disk = world.disk(log);
    let collection = open(&disk, Access::Write).unwrap();
    let bytes = noise(77);
    import(&collection, "after", &bytes, &Default::default()).unwrap();
    let open_file = picture(&collection);
    drop(collection);
    let again = open(&disk, Access::Write).unwrap();
    let found = picture(&again);
    assert!(found == open_file, "{context}: another state after reopening");
    assert!(again.events().is_empty() && again.damage().is_none(), "{context}: {:?}", again.events());
    assert_eq!(found["/after"].1, Ok(bytes), "{context}");
    assert!(!found.contains_key(dropped), "{context}: {dropped} came back");
}

#[test]
fn every_set_of_lost_sectors_of_the_last_batch_drops_all_of_it() {
    let world = world();
    let (begin, end) = *batches(world.log()).last().unwrap();
    let before = world.picture_at(begin).unwrap();
    let sectors: Vec<(usize, usize)> = (begin / 512..end.div_ceil(512))
        .map(|sector| ((sector * 512).max(begin), ((sector + 1) * 512).min(end)))
        .collect();
    assert!((2..=6).contains(&sectors.len()), "{sectors:?}");
    for set in 1..3_usize.pow(sectors.len() as u32) {
        let mut log = world.log().to_vec();
        for (place, &(from, to)) in sectors.iter().enumerate() {
            match set / 3_usize.pow(place as u32) % 3 {
                0 => {}
                1 => log[from..to].fill(0),
                _ => {
                    for at in (from..to).step_by(SLOT) {
                        log[at..at + SLOT].copy_from_slice(&stale(at / SLOT));
                    }
                }
            }
        }
        let collection = open(&world.disk(&log), Access::Read).unwrap();
        assert_eq!(collection.damage(), None, "set {set}");
        assert!(picture(&collection) == *before, "set {set}");
        let nothing_left = log[begin..].iter().all(|byte| *byte == 0);
        assert_eq!(collection.events().is_empty(), nothing_left, "set {set}: {:?}", collection.events());
        goes_on(&world, &log, "/last", &format!("set {set}"));
    }
}

#[test]
fn zeros_and_slots_of_another_generation_after_the_end_change_nothing() {
    let world = world();
    for slots in [1, 2, 3, 40] {
        let zeros = vec![0; slots * SLOT];
        let old: Vec<u8> = (0..slots).flat_map(stale).collect();
        for tail in [zeros.clone(), old.clone(), [zeros, old].concat()] {
            let log = [world.log(), &tail].concat();
            let collection = open(&world.disk(&log), Access::Read).unwrap();
            assert_eq!(collection.damage(), None);
            assert!(picture(&collection) == *world.last());
            drop(collection);
            goes_on(&world, &log, "/never", "a tail");
        }
    }
}

#[test]
fn a_read_only_open_leaves_a_torn_end_unchanged() {
    let world = world();
    let torn = &world.log()[..world.log().len() - 1];
    let disk = world.disk(torn);
    drop(open(&disk, Access::Read).unwrap());
    assert_eq!(disk.open(LOG, Open::Read).unwrap().len().unwrap(), torn.len() as u64);
}
