//! Packed blocks: exact, smaller, read in parts, changed, and damaged.

use std::sync::Arc;

use half::bf16;
use tierfs::codec;
use tierfs::ingest::Options;
use tierfs::model::{Aim, Dtype, Encoder, ErrorKind, Storing, Tier};
use tierfs::store::disk::{Disk, Open};
use tierfs::store::{Collection, Elements, OpenObject, Verify};

use crate::fixture::{Numbers, create, import, objects, on_each_disk, open, read, stream};

const ELEMENTS: usize = 200_000;

/// bf16 with the exponents of trained weights.
fn weights() -> Vec<u8> {
    let mut numbers = Numbers(11);
    let mut uniform = || (numbers.next() >> 40) as f32 / (1 << 24) as f32;
    let mut bell = || (0..6).map(|_| uniform()).sum::<f32>() - 3.0;
    (0..ELEMENTS).flat_map(|_| bf16::from_f32(bell() * 0.03).to_le_bytes()).collect()
}

fn container(data: &[u8]) -> Vec<u8> {
    let header = format!(
        r#"{{"w":{{"dtype":"BF16","shape":[{}],"data_offsets":[0,{}]}}}}"#,
        data.len() / 2,
        data.len()
    );
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// Moves all blocks of a container's tensors and returns their number.
fn migrate(collection: &Arc<Collection>, to: Tier) -> usize {
    let aim = match to {
        Tier::Packed => Aim::Pack,
        Tier::Exact => Aim::Unpack,
        tier => Aim::Tier(tier),
    };
    let storing = Storing { aim, packs: true, encoder: Encoder::Best };
    let mut moved = 0;
    for object in objects(collection, "m.safetensors").iter().skip(1) {
        let open = OpenObject::open_by_name(collection, object).unwrap();
        let source = |open: &OpenObject, index: u32, _: &_, out: &mut [u8]| {
            open.read(open.object().layout().start(index), out).map(|()| Elements::Other)
        };
        let all = 0..object.layout().blocks();
        let mut migration = open.migrate(all, storing, &source).unwrap();
        moved += migration.blocks();
        let touched = std::mem::take(&mut migration.touched);
        collection
            .record(touched, |batch, _| {
                migration.add(batch);
                Ok(())
            })
            .unwrap();
    }
    collection.sync().unwrap();
    moved
}

fn stored(collection: &Arc<Collection>) -> u64 {
    objects(collection, "m.safetensors").iter().map(|object| object.stored()).sum()
}

fn packed(disk: &Arc<dyn Disk>) -> (Arc<Collection>, Vec<u8>) {
    let collection = create(disk);
    let whole = container(&weights());
    import(&collection, "m.safetensors", &whole, &Options::default()).unwrap();
    let before = stored(&collection);
    let blocks = migrate(&collection, Tier::Packed);
    assert!(blocks > 1, "{blocks} blocks");
    assert!(stored(&collection) * 100 < before * 75, "{} of {before}", stored(&collection));
    (collection, whole)
}

#[test]
fn packed_blocks_read_as_the_bytes_that_came_whole_in_parts_and_after_a_restart() {
    on_each_disk(|disk| {
        let (collection, whole) = packed(&disk);
        assert!(read(&collection, "m.safetensors").unwrap() == whole);
        drop(collection);
        let collection = open(&disk).unwrap();
        let mut numbers = Numbers(5);
        // Parts of unverified blocks first, then of verified ones.
        for _ in 0..2 {
            let stream = stream(&collection, "m.safetensors", Verify::First);
            for _ in 0..300 {
                let begin = numbers.next() as usize % whole.len();
                let len = (numbers.next() as usize % 9000 + 1).min(whole.len() - begin);
                let mut out = vec![0; len];
                stream.read(begin as u64, &mut out).unwrap();
                assert!(out == whole[begin..begin + len], "{len} bytes at {begin}");
            }
        }
        collection.checkpoint_now().unwrap();
        drop(collection);
        let collection = open(&disk).unwrap();
        assert!(read(&collection, "m.safetensors").unwrap() == whole);
        for object in objects(&collection, "m.safetensors") {
            let open = OpenObject::open(&collection, &object, Verify::Always).unwrap();
            for index in 0..object.layout().blocks() {
                open.check(index).unwrap();
            }
        }
    });
}

#[test]
fn packed_blocks_unpack_to_the_same_bytes_and_quantize_as_exact_ones_do() {
    on_each_disk(|disk| {
        let (collection, whole) = packed(&disk);
        assert_eq!(migrate(&collection, Tier::Packed), 0, "what is packed stays");
        assert!(migrate(&collection, Tier::Exact) > 1);
        assert!(read(&collection, "m.safetensors").unwrap() == whole);
        migrate(&collection, Tier::Packed);
        migrate(&collection, Tier::Q8);
        let data = weights();
        let mut wanted = Vec::new();
        for block in data.chunks(128 << 10) {
            let mut payload = Vec::new();
            codec::encode(Tier::Q8, Encoder::Best, Dtype::Bf16, block, &mut payload).unwrap().unwrap();
            let mut out = vec![0; block.len()];
            codec::decode(Tier::Q8, Dtype::Bf16, &payload, block.len() / 2, &mut out).unwrap();
            wanted.extend(out);
        }
        let found = read(&collection, "m.safetensors").unwrap();
        assert!(found[whole.len() - data.len()..] == wanted);
    });
}

#[test]
fn blocks_that_packing_does_not_shrink_stay_as_they_are() {
    on_each_disk(|disk| {
        let collection = create(&disk);
        let mut numbers = Numbers(3);
        let noise: Vec<u8> = (0..ELEMENTS).flat_map(|_| (numbers.next() as u16).to_le_bytes()).collect();
        let whole = container(&noise);
        import(&collection, "m.safetensors", &whole, &Options::default()).unwrap();
        let before = stored(&collection);
        assert_eq!(migrate(&collection, Tier::Packed), 0);
        assert_eq!(stored(&collection), before);
        assert!(read(&collection, "m.safetensors").unwrap() == whole);
    });
}

#[test]
fn a_damaged_packed_payload_is_never_served() {
    on_each_disk(|disk| {
        let (collection, whole) = packed(&disk);
        let object = objects(&collection, "m.safetensors").pop().unwrap();
        let block = object.block(1, object.layout()).unwrap();
        assert_eq!(block.stored.tier, Tier::Packed);
        drop((collection, object));
        let file = disk.open("t/c/tier0.dat", Open::Write).unwrap();
        let mut numbers = Numbers(9);
        for _ in 0..40 {
            let at = block.stored.offset + numbers.next() % u64::from(block.stored.len);
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            let flipped = [byte[0] ^ 1 << (numbers.next() % 8)];
            file.write_at(&flipped, at).unwrap();
            let collection = open(&disk).unwrap();
            let error = read(&collection, "m.safetensors").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            // The neighbouring blocks read correctly.
            let mut out = vec![0; 1000];
            stream(&collection, "m.safetensors", Verify::First).read(0, &mut out).unwrap();
            assert!(out == whole[..1000]);
            file.write_at(&byte, at).unwrap();
        }
    });
}
