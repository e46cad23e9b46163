//! Exact differences against the payloads of `tests/golden/ladder.py`, and all sets against each other.

use half::f16;
use tierfs::codec::InstructionSet;
use tierfs::codec::difference::{add_difference_on, encode_difference_on};
use tierfs::codec::ladder::{Scratch, Split, encode_on};
use tierfs::model::{Dtype, ErrorKind};

use super::ladder::{bf16_bits, float, special, splitmix};
use super::sets;

/// Element `i` of the base and of the block named `name`, of `elements` elements.
fn element(name: &str, i: usize, elements: usize) -> [Vec<u8>; 2] {
    let tuned = |seed: u64, shift: i32| {
        let base = float(seed, i);
        [base, base + float(seed + 2, i) * 2_f32.powi(-shift)]
    };
    let bf16 = |value: f32| ((value.to_bits() >> 16) as u16).to_le_bytes().to_vec();
    let two = |pair: [u16; 2]| pair.map(|bits| bits.to_le_bytes().to_vec());
    let each = |i: usize| (i as u64 * 40503) as u16;
    match name {
        "bf16 near" => tuned(30, 10).map(bf16),
        "bf16 farther" => tuned(34, 6).map(bf16),
        "f16 near" => tuned(38, 10).map(|value| f16::from_f32(value).to_le_bytes().to_vec()),
        "f32 near" => tuned(42, 10).map(|value| value.to_le_bytes().to_vec()),
        "f32 of bf16" => tuned(46, 10).map(|value| (value.to_bits() & 0xffff_0000).to_le_bytes().to_vec()),
        "the same" => two([bf16_bits(50, i); 2]),
        "rarely" => {
            let base = bf16_bits(60, i);
            two([base, if splitmix(61, i).is_multiple_of(100) { bf16_bits(62, i) } else { base }])
        }
        "each" => two([each(i), each(elements - 1 - i)]),
        "special" => two([special(i), bf16_bits(52, i)]),
        other => panic!("no blocks named {other}"),
    }
}

fn versions(name: &str, elements: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut base, mut block) = (Vec::new(), Vec::new());
    for i in 0..elements {
        let [from, to] = element(name, i, elements);
        base.extend(from);
        block.extend(to);
    }
    (base, block)
}

fn encoded(set: InstructionSet, dtype: Dtype, base: &[u8], block: &[u8]) -> Option<Vec<u8>> {
    let mut payload = vec![7];
    let mut scratch = Scratch::new();
    let is_encoded = encode_difference_on(set, dtype, base, block, &mut payload, &mut scratch).unwrap();
    assert_eq!(payload[0], 7);
    is_encoded.then(|| payload.split_off(1))
}

#[test]
fn every_set_writes_the_differences_of_the_reference_and_adds_them() {
    let mut cases = 0;
    for line in include_str!("../golden/difference.txt").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split("; ").collect();
        let dtype = Dtype::ALL
            .iter()
            .find(|dtype| dtype.to_string().eq_ignore_ascii_case(fields[1]))
            .copied()
            .unwrap();
        let (base, block) = versions(fields[0], fields[2].parse().unwrap());
        for set in sets() {
            let payload = encoded(set, dtype, &base, &block).unwrap();
            let digest = blake3::hash(&payload).to_hex().to_string();
            assert_eq!(
                (&*payload.len().to_string(), &*digest),
                (fields[3], fields[4]),
                "{line}, {}",
                set.name()
            );
            let mut found = base.clone();
            add_difference_on(set, dtype, &payload, &mut found, &mut Scratch::new()).unwrap();
            assert!(found == block, "{line}, {}", set.name());
        }
        cases += 1;
    }
    assert_eq!(cases, 81);
}

#[test]
fn other_types_and_empty_blocks_have_no_difference_and_unequal_lengths_are_refused() {
    let set = InstructionSet::detected();
    let zeros = [0; 64];
    for dtype in Dtype::ALL {
        let has = matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16);
        assert_eq!(encoded(set, *dtype, &zeros, &zeros).is_some(), has, "{dtype}");
        assert_eq!(encoded(set, *dtype, &[], &[]), None, "{dtype}");
    }
    for (base, block) in [(&zeros[..], &zeros[..62]), (&zeros[..63], &zeros[..63])] {
        let (mut out, mut scratch) = (Vec::new(), Scratch::new());
        let refused = encode_difference_on(set, Dtype::Bf16, base, block, &mut out, &mut scratch);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn a_payload_that_is_no_difference_of_the_block_leaves_it_as_it_is() {
    let (base, block) = versions("bf16 near", 513);
    for set in sets() {
        let sound = encoded(set, Dtype::Bf16, &base, &block).unwrap();
        let mut rotated = Vec::new();
        let split = Split::with_low_bits(true, &[Some(0), Some(0)]).unwrap();
        encode_on(set, &split, &base, &mut rotated, &mut Scratch::new()).unwrap();
        // More escapes than the header says.
        let mut torn = sound.clone();
        let at = torn.len() - 60;
        torn[at..at + 16].fill(0xff);
        for (payload, len, dtype) in [
            (&rotated, 1026, Dtype::Bf16),
            (&torn, 1026, Dtype::Bf16),
            (&sound, 1024, Dtype::Bf16),
            (&sound, 1025, Dtype::Bf16),
            (&sound, 2052, Dtype::F32),
            (&sound, 1026, Dtype::I16),
        ] {
            let mut found = base.repeat(2)[..len].to_vec();
            let before = found.clone();
            let refused = add_difference_on(set, dtype, payload, &mut found, &mut Scratch::new());
            assert_eq!(
                refused.unwrap_err().kind(),
                ErrorKind::Corrupt,
                "{} as {len} of {dtype}",
                payload.len()
            );
            assert!(found == before);
        }
    }
}
