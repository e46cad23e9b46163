//! Records of blocks of several objects in any order: replay applies consecutive records of one object together, with
//! the same result as one by one.

use std::collections::BTreeMap;

use tierfs::format::log::record::{Record, Stored};
use tierfs::model::{Dtype, ObjectId, Tier};
use tierfs::store::Access;

use super::fixture::open;
use super::hostile::{Said, create, exact, file, name, object, root, world_of};

/// Objects of four blocks of 4096 bytes and a short one.
const OBJECTS: u128 = 5;
const BLOCKS: u32 = 5;
const BYTES: u64 = 4 * 4096 + 40;
/// No record creates this object.
const UNKNOWN: u128 = 77;

/// The result of a loop over the records: the last record of each block, with its epoch.
type Picture = BTreeMap<(u128, u32), (u64, Stored)>;

struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// A record of a block at a possible or an impossible place.
fn change(dice: &mut Dice, id: u128, is_good: bool) -> Record {
    let block = dice.throw(u64::from(BLOCKS)) as u32;
    let len = if block == 4 { 40 } else { 4096 };
    let offset = dice.throw(4) * 4096;
    let stored = match dice.throw(4) {
        _ if !is_good => exact(offset, len + 1),
        0 => Stored::ABSENT,
        1 => Stored { in_data: true, ..exact(u64::from(block) * 4096, len) },
        // Elements of one byte cannot be encoded, so exact blocks stay.
        _ => Stored { checksum: dice.throw(2) as u32, ..exact(offset, len) },
    };
    if dice.throw(2) == 0 {
        return create(id, block, stored);
    }
    let bits = if stored.tier == Tier::Absent { 0 } else { 8 };
    Record::Migrate { object: ObjectId(id), block, old_tier: 0, bits, stored, migrated_at: 7 }
}

/// The effect of one record by itself.
fn take(picture: &mut Picture, record: &Record, sequence: u64) {
    match *record {
        Record::Create { object, block, stored, .. } => {
            picture.insert((object.0, block), (sequence, stored));
        }
        Record::Migrate { object, block, stored, .. } => {
            let before = picture.get(&(object.0, block)).copied();
            // The same payload at another place is still the same block.
            let kept = before.filter(|(_, before)| {
                before.len > 0
                    && (before.tier, before.len, before.checksum)
                        == (stored.tier, stored.len, stored.checksum)
                    && (before.in_data, before.offset) != (stored.in_data, stored.offset)
            });
            let epoch = kept.map_or(sequence, |(epoch, _)| epoch);
            picture.insert((object.0, block), (epoch, stored));
        }
        _ => unreachable!(),
    }
}

/// `next` chooses the object of a record by its number; `is_good` says whether the record is valid.
fn check(next: impl Fn(&mut Dice, u64) -> u128, is_good: impl Fn(u64) -> bool) {
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let mut batches = vec![root()];
        let made = (0..OBJECTS).map(|id| Said::Entry(object(id, Dtype::U8, BYTES, 4096)));
        batches.push(made.collect());
        // The header is 0; each batch has a Commit.
        let mut sequence = 1 + batches.iter().map(|said| said.len() as u64 + 1).sum::<u64>();
        let mut picture = Picture::new();
        let mut first_bad = None;
        for _ in 0..3 {
            let mut said = Vec::new();
            for number in 0..60 {
                if dice.throw(10) == 0 {
                    // An unrelated record between them.
                    let id = dice.throw(OBJECTS as u64);
                    said.extend([Said::Entry(file(2 + id, u128::from(id))), Said::Entry(name(2 + id))]);
                    sequence += 2;
                }
                let id = next(&mut dice, number);
                let record = change(&mut dice, id, is_good(number));
                if is_good(number) && id != UNKNOWN {
                    take(&mut picture, &record, sequence);
                } else {
                    first_bad = first_bad.or(Some(sequence));
                }
                said.push(Said::Record(record));
                sequence += 1;
            }
            sequence += 1;
            batches.push(said);
        }
        let world = world_of(&batches);
        let collection = open(&world.disk(world.log()), Access::Read).unwrap();
        assert_eq!(collection.damage().map(|damage| damage.sequence), first_bad, "seed {seed}");
        let state = collection.state();
        for id in 0..OBJECTS {
            let object = state.object(ObjectId(id)).unwrap();
            let mut bytes = 0;
            let mut has_absent = false;
            for block in 0..BLOCKS {
                let found = object.block(block, object.layout()).map(|found| (found.epoch, found.stored));
                let right = picture.get(&(id, block)).copied();
                assert_eq!(found, right, "seed {seed}: block {block} of object {id}");
                bytes += right.map_or(0, |(_, stored)| u64::from(stored.len));
                has_absent |= right.is_some_and(|(_, stored)| stored.tier == Tier::Absent);
            }
            assert_eq!((object.stored(), object.has_absent()), (bytes, has_absent), "seed {seed}: {id}");
        }
    }
}

#[test]
fn objects_with_consecutive_records_have_the_recorded_blocks() {
    check(|_, number| u128::from(number / 20) % OBJECTS, |_| true);
}

#[test]
fn objects_with_alternating_records_have_the_recorded_blocks() {
    check(|_, number| u128::from(number) % OBJECTS, |_| true);
}

#[test]
fn objects_with_shuffled_records_have_the_recorded_blocks() {
    check(|dice, _| u128::from(dice.throw(2) + dice.throw(4)) % OBJECTS, |_| true);
}

#[test]
fn an_impossible_record_is_damage_and_its_neighbours_count() {
    check(|_, number| u128::from(number / 20) % OBJECTS, |number| number % 20 != 7);
}

#[test]
fn records_of_an_unknown_object_are_damage_and_their_neighbours_count() {
    check(|_, number| if number / 4 % 5 == 2 { UNKNOWN } else { u128::from(number / 20) }, |_| true);
}
