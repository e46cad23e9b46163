//! Blocks in adjacent slots: few bytes of log each, the same blocks after a restart and a checkpoint.

use std::sync::Arc;

use tierfs::ingest::Options;
use tierfs::model::{Aim, Encoder, MoveTo, Storing, Tier};
use tierfs::store::disk::{Disk, Open};
use tierfs::store::{Block, Collection, Elements, OpenObject};

use crate::fixture::{Numbers, create, import, objects, on_each_disk, open, read};

const NAME: &str = "m.safetensors";
const BLOCKS: u64 = 1000;

fn container(elements: usize) -> Vec<u8> {
    let values = Numbers(3).floats(elements);
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let header =
        format!(r#"{{"w":{{"dtype":"F32","shape":[{elements}],"data_offsets":[0,{}]}}}}"#, data.len());
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// A container with 1,000 blocks in this tier, and its content.
fn collection_in(disk: &Arc<dyn Disk>, tier: Option<Tier>) -> (Arc<Collection>, Vec<u8>) {
    let collection = create(disk);
    let blocking = tierfs::ingest::Blocking::Bytes(4096);
    let options =
        Options { tier: tier.map(|tier| MoveTo::all(Aim::Tier(tier))), blocking, ..Options::default() };
    import(&collection, NAME, &container(BLOCKS as usize * 1024), &options).unwrap();
    let bytes = read(&collection, NAME).unwrap();
    (collection, bytes)
}

fn log_bytes(disk: &Arc<dyn Disk>) -> u64 {
    disk.open("t/c/meta.log", Open::Read).unwrap().len().unwrap()
}

/// The blocks of the tensor, in order.
fn blocks(collection: &Collection) -> Vec<Block> {
    let object = objects(collection, NAME).pop().unwrap();
    let found: Vec<Block> = (0..BLOCKS as u32)
        .map(|index| object.blocks.read().get(index, object.logged_layout()).unwrap())
        .collect();
    found
}

#[test]
fn an_encoded_import_takes_few_bytes_of_log_a_block_and_reads_the_same_after_a_restart() {
    for tier in [Tier::Q8, Tier::Q5, Tier::Q3x] {
        on_each_disk(|disk| {
            let (collection, bytes) = collection_in(&disk, Some(tier));
            assert!(log_bytes(&disk) < BLOCKS * 12, "{} bytes of log", log_bytes(&disk));
            let before = blocks(&collection);
            assert!(before.iter().all(|block| block.stored.tier == tier));
            drop(collection);
            let collection = open(&disk).unwrap();
            assert_eq!(blocks(&collection), before);
            assert!(read(&collection, NAME).unwrap() == bytes);
        });
    }
}

fn migrate(collection: &Arc<Collection>, blocks: std::ops::Range<u32>, to: Tier) {
    let object = objects(collection, NAME).pop().unwrap();
    let open = OpenObject::open_by_name(collection, &object).unwrap();
    let source = |open: &OpenObject, index: u32, _: &_, out: &mut [u8]| {
        open.read(open.object().layout().start(index), out).map(|()| Elements::Other)
    };
    let storing = Storing { aim: Aim::Tier(to), packs: false, encoder: Encoder::Absmax };
    let mut migration = open.migrate(blocks, storing, &source).unwrap();
    let touched = std::mem::take(&mut migration.touched);
    let fill = |batch: &mut tierfs::store::Batch, _: &_| {
        migration.add(batch);
        Ok(())
    };
    collection.record(touched, fill).unwrap();
}

#[test]
fn a_checkpoint_keeps_every_block_and_epoch_of_runs_and_of_single_moves() {
    on_each_disk(|disk| {
        let (collection, _) = collection_in(&disk, None);
        // Two runs, then single blocks inside one.
        migrate(&collection, 0..100, Tier::Q8);
        migrate(&collection, 100..BLOCKS as u32, Tier::Q7);
        for index in [200, 201, 202, 700] {
            migrate(&collection, index..index + 1, Tier::Q5);
        }
        let bytes = read(&collection, NAME).unwrap();
        let before = blocks(&collection);
        collection.checkpoint_now().unwrap();
        assert!(log_bytes(&disk) < BLOCKS * 14, "{} bytes of log", log_bytes(&disk));
        drop(collection);
        let collection = open(&disk).unwrap();
        assert_eq!(blocks(&collection), before);
        assert!(read(&collection, NAME).unwrap() == bytes);
        assert!(collection.damage().is_none());
        // Epochs continue after those of the runs.
        let last = before.iter().map(|block| block.epoch).max().unwrap();
        migrate(&collection, 0..1, Tier::Q3);
        assert!(blocks(&collection)[0].epoch > last);
    });
}

#[test]
fn slots_of_a_run_are_free_again_once_its_blocks_have_left() {
    on_each_disk(|disk| {
        let (collection, bytes) = collection_in(&disk, Some(Tier::Q8));
        let tier_bytes = |path: &str| disk.open(path, Open::Read).unwrap().len().unwrap();
        let before = tier_bytes("t/c/tier1.dat");
        for _ in 0..3 {
            migrate(&collection, 0..BLOCKS as u32, Tier::Q7);
            collection.commit(Default::default(), |_, _| Ok(())).unwrap();
            migrate(&collection, 0..BLOCKS as u32, Tier::Q8);
            collection.commit(Default::default(), |_, _| Ok(())).unwrap();
        }
        assert!(tier_bytes("t/c/tier1.dat") <= before * 2, "{} of {before}", tier_bytes("t/c/tier1.dat"));
        assert_eq!(read(&collection, NAME).unwrap().len(), bytes.len());
    });
}
