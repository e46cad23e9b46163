//! Imports into a tier.

use std::sync::Arc;

use half::{bf16, f16};
use safetensors::Dtype;
use tierfs::codec;
use tierfs::ingest::{Blocking, Options};
use tierfs::model::{self, Encoder, MoveTo, Tier};
use tierfs::store::Verify;
use tierfs::store::disk::Disk;
use tierfs::store::disk::memory::MemoryDisk;

use crate::fixture::{
    Numbers, Tensor, create, f32s, find, import, npy_file, objects, on_each_disk, open, read,
    safetensors_file, stream, tensor,
};

const DTYPES: [(Dtype, model::Dtype); 3] =
    [(Dtype::F32, model::Dtype::F32), (Dtype::F16, model::Dtype::F16), (Dtype::BF16, model::Dtype::Bf16)];

fn floats(name: &str, dtype: Dtype, count: usize, numbers: &mut Numbers) -> Tensor {
    let values = numbers.floats(count);
    let bytes = match dtype {
        Dtype::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        Dtype::BF16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    tensor(name, dtype, &[count], bytes)
}

/// The result of the codec for each block: encoded, or left exact.
fn expected(tier: Tier, encoder: Encoder, dtype: model::Dtype, raw: &[u8], block_bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for block in raw.chunks(block_bytes) {
        let mut payload = Vec::new();
        match codec::encode(tier, encoder, dtype, block, &mut payload).unwrap() {
            Ok(_) => {
                let mut decoded = vec![0; block.len()];
                let elements = block.len() / dtype.bytes() as usize;
                codec::decode(tier, dtype, &payload, elements, &mut decoded).unwrap();
                out.extend(decoded);
            }
            Err(_) => out.extend(block),
        }
    }
    out
}

fn options(text: &str, encoder: Encoder) -> Options {
    Options { tier: Some(MoveTo::parse(text).unwrap()), encoder, ..Options::default() }
}

#[test]
fn encoded_tensors_and_their_container_read_as_the_codec_decodes() {
    on_each_disk(|disk| {
        let collection = create(&disk);
        let mut numbers = Numbers(3);
        let tensors: Vec<Tensor> = DTYPES
            .iter()
            .enumerate()
            .map(|(place, (dtype, _))| floats(&format!("t{place}"), *dtype, 9000 + place * 7, &mut numbers))
            .chain([tensor("ints", Dtype::I32, &[10], vec![7; 40])])
            .collect();
        let container = safetensors_file(&tensors);
        for (text, tier) in
            [("q8:all", Tier::Q8), ("q5:all", Tier::Q5), ("q3:all", Tier::Q3), ("q3x:all", Tier::Q3x)]
        {
            for encoder in [Encoder::Absmax, Encoder::Best] {
                let path = format!("{}-{tier}/m.safetensors", encoder.name());
                let directory = path.trim_end_matches("m.safetensors");
                import(&collection, &path, &container, &options(text, encoder)).unwrap();
                let mut whole = container.clone();
                for (source, (_, dtype)) in tensors.iter().zip(DTYPES) {
                    let right = expected(tier, encoder, dtype, &source.bytes, 16 << 10);
                    let name = format!("{directory}{}", source.name);
                    assert!(read(&collection, &name).unwrap() == right, "{name}");
                    let at = container.windows(64).position(|part| part == &source.bytes[..64]).unwrap();
                    whole[at..at + right.len()].copy_from_slice(&right);
                    let node = find(&collection, &name).unwrap();
                    let state = collection.state();
                    let allowed = format!("allow:{tier}");
                    assert_eq!(state.setting(node.entry.id, "lossy"), Some(&*allowed), "{name}");
                }
                assert!(read(&collection, &path).unwrap() == whole, "{path}");
                let stream = stream(&collection, &path, Verify::First);
                for _ in 0..100 {
                    let from = numbers.below(whole.len() as u64) as usize;
                    let len = (numbers.below(20_000) as usize).min(whole.len() - from);
                    let mut out = vec![0; len];
                    assert_eq!(stream.read(from as u64, &mut out).unwrap(), len);
                    assert!(out == whole[from..from + len], "{path}, {len} bytes from {from}");
                }
            }
        }
        let open_file = read(&collection, "best-q5/m.safetensors").unwrap();
        drop(collection);
        assert!(read(&open(&disk).unwrap(), "best-q5/m.safetensors").unwrap() == open_file);
    });
}

#[test]
fn long_reads_equal_short_reads_under_concurrency() {
    on_each_disk(|disk| {
        let collection = create(&disk);
        let mut numbers = Numbers(5);
        let raw: Vec<u8> = numbers.floats(900_001).iter().flat_map(|value| value.to_le_bytes()).collect();
        let file = npy_file("<f4", "(900001,)", &raw);
        import(&collection, "exact.npy", &file, &Options::default()).unwrap();
        let mut wanted = vec![("exact", raw.clone())];
        for (text, name, tier) in [("q8:all", "eight", Tier::Q8), ("q3:all", "three", Tier::Q3)] {
            import(&collection, &format!("{name}.npy"), &file, &options(text, Encoder::Absmax)).unwrap();
            let block_bytes = objects(&collection, name)[0].layout().block_bytes as usize;
            let right = expected(tier, Encoder::Absmax, model::Dtype::F32, &raw, block_bytes);
            wanted.push((name, right));
        }
        let reads = |seed: u64, rounds: usize| {
            let mut numbers = Numbers(seed);
            for (name, right) in &wanted {
                let stream = stream(&collection, name, Verify::First);
                for round in 0..rounds {
                    let from = numbers.below(right.len() as u64 / 2) as usize & !usize::from(round % 2 == 0);
                    let len = (numbers.below(3 << 20) as usize).min(right.len() - from);
                    let mut out = vec![0; len];
                    assert_eq!(stream.read(from as u64, &mut out).unwrap(), len);
                    assert!(out == right[from..from + len], "{name}, {len} bytes from {from}");
                }
            }
        };
        // A single reader uses several cores; among others it mostly does not.
        reads(6, 20);
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let reads = &reads;
                scope.spawn(move || reads(seed, 10));
            }
        });
    });
}

fn tiers(collection: &tierfs::store::Collection, path: &str) -> Vec<Tier> {
    let object = objects(collection, path).remove(0);
    let (blocks, cut) = (object.blocks.read(), object.layout());
    (0..cut.blocks()).map(|index| blocks.get(index, cut).unwrap().stored.tier).collect()
}

#[test]
fn only_blocks_with_a_nan_or_an_infinity_stay_exact() {
    on_each_disk(|disk| {
        let collection = create(&disk);
        let mut values = Numbers(4).floats(4096 * 5);
        values[4096] = f32::NAN;
        values[4096 * 4 - 1] = f32::NEG_INFINITY;
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let file = npy_file("<f4", "(20480,)", &raw);
        import(&collection, "x.npy", &file, &options("q8:all", Encoder::Absmax)).unwrap();
        let (q8, exact) = (Tier::Q8, Tier::Exact);
        assert_eq!(tiers(&collection, "x"), [q8, exact, q8, exact, q8]);
        let right = expected(Tier::Q8, Encoder::Absmax, model::Dtype::F32, &raw, 16 << 10);
        assert!(read(&collection, "x").unwrap() == right);
        drop(collection);
        let collection = open(&disk).unwrap();
        assert!(read(&collection, "x").unwrap() == right);
        assert_eq!(tiers(&collection, "x"), [q8, exact, q8, exact, q8]);
    });
}

#[test]
fn an_import_encodes_only_quantizable_tensors_unless_all_is_given() {
    on_each_disk(|disk| {
        let collection = create(&disk);
        let mut numbers = Numbers(6);
        let tensors = [
            f32s("q_proj.weight", &[256, 256], &mut numbers),
            f32s("small.weight", &[255, 256], &mut numbers),
            f32s("flat", &[65_536], &mut numbers),
            f32s("input_LayerNorm.weight", &[256, 256], &mut numbers),
            f32s("model.embed_tokens.weight", &[256, 256], &mut numbers),
            tensor("ints", Dtype::I32, &[256, 256], numbers.bytes(262_144)),
        ];
        let file = safetensors_file(&tensors);
        import(&collection, "some/m.safetensors", &file, &options("q5", Encoder::Absmax)).unwrap();
        import(&collection, "all/m.safetensors", &file, &options("q5:all", Encoder::Absmax)).unwrap();
        let moved = |directory: &str| -> Vec<&str> {
            let is_moved = |tensor: &&Tensor| {
                let tiers = tiers(&collection, &format!("{directory}/{}", tensor.name));
                assert!(tiers.iter().all(|tier| *tier == tiers[0]));
                tiers[0] == Tier::Q5
            };
            tensors.iter().filter(is_moved).map(|tensor| tensor.name.as_str()).collect()
        };
        assert_eq!(moved("some"), ["q_proj.weight"]);
        assert_eq!(
            moved("all"),
            ["q_proj.weight", "small.weight", "flat", "input_LayerNorm.weight", "model.embed_tokens.weight"]
        );
        let read = |name: &str| read(&collection, &format!("some/{name}")).unwrap();
        assert!(tensors[1..].iter().all(|tensor| read(&tensor.name) == tensor.bytes));
    });
}

#[test]
fn blocks_have_the_requested_size() {
    on_each_disk(|disk| {
        let collection = create(&disk);
        let file = npy_file("<f2", "(20000,)", &vec![0; 40_000]);
        for (path, blocking, bytes) in [
            ("a", Blocking::BySize, 16_384),
            ("b", Blocking::bytes(4096).unwrap(), 4096),
            ("c", Blocking::head_dim(128).unwrap(), 32_768),
            ("d", Blocking::head_dim(96).unwrap(), 170 * 96 * 2),
        ] {
            let options = Options { blocking, ..options("q8:all", Encoder::Best) };
            import(&collection, &format!("{path}/x.npy"), &file, &options).unwrap();
            let object = objects(&collection, &format!("{path}/x")).remove(0);
            assert_eq!(object.entry.block_bytes, bytes, "{path}");
            let report = object.stored();
            assert!(report > 40_000 / 2 && report < 40_000 * 55 / 100, "{path}: {report}");
        }
    });
}

#[test]
fn floats_beside_codes_stay_exact_unless_all_are_moved() {
    let collection = create(&(Arc::new(MemoryDisk::new()) as Arc<dyn Disk>));
    let mut numbers = Numbers(9);
    let weights = |numbers: &mut Numbers| f32s("l.other", &[256, 256], numbers);
    let codes = || tensor("l.B", Dtype::I32, &[4, 4], vec![3; 64]);
    let positions = || tensor("position_ids", Dtype::I64, &[2, 4], vec![3; 64]);
    let quantized =
        safetensors_file(&[codes(), f32s("l.s", &[256, 256], &mut numbers), weights(&mut numbers)]);
    let ordinary = safetensors_file(&[positions(), weights(&mut numbers)]);
    let q8 = |text: &str| options(text, Encoder::default());
    let report = import(&collection, "codes.safetensors", &quantized, &q8("q8")).unwrap();
    assert_eq!((report.encoded, report.kept.beside_codes, report.kept.not_float), (0, 2, 1));
    assert_eq!(read(&collection, "codes.safetensors").unwrap(), quantized);
    let report = import(&collection, "all.safetensors", &quantized, &q8("q8:all")).unwrap();
    assert_eq!((report.encoded, report.kept.beside_codes), (2, 0));
    let report = import(&collection, "model.safetensors", &ordinary, &q8("q8")).unwrap();
    assert_eq!((report.encoded, report.kept.beside_codes), (1, 0));
    let has_codes = |path| {
        let node = find(&collection, path).unwrap().entry.id;
        collection.state().has_codes(node)
    };
    assert!(has_codes("codes.safetensors") && !has_codes("model.safetensors"));
}
