//! The ladder encoding against the payloads of `tests/golden/ladder.py`, and all sets against each other.

use half::f16;
use tierfs::codec::InstructionSet;
use tierfs::codec::ladder::{self, Block, Scratch, Split};
use tierfs::model::{Dtype, ErrorKind};

fn sets() -> Vec<InstructionSet> {
    InstructionSet::available().collect()
}

/// Number `i` of SplitMix64, as `tests/golden/ladder_cases.py` has it.
pub fn splitmix(seed: u64, i: usize) -> u64 {
    let mut z = seed.wrapping_add((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn bell(seed: u64, i: usize) -> i64 {
    let r = splitmix(seed, i);
    (0..4).map(|part| (r >> (16 * part) & 0xffff) as i64).sum::<i64>() - 131_070
}

pub fn float(seed: u64, i: usize) -> f32 {
    let low = (splitmix(seed + 1, i) & 63) as i64;
    (bell(seed, i) * 64 + low) as f32 * 2_f32.powi(-28)
}

pub fn bf16_bits(seed: u64, i: usize) -> u16 {
    (float(seed, i).to_bits() >> 16) as u16
}

fn float8(seed: u64, i: usize, mantissa: u32) -> u8 {
    let r = splitmix(seed, i);
    let exponent = (r & 3) + (r >> 2 & 3) + 3;
    ((r >> 8 & 1) << 7 | exponent << mantissa | (r >> 16 & ((1 << mantissa) - 1))) as u8
}

pub fn special(i: usize) -> u16 {
    const ODD: [u16; 10] = [0, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0x0001, 0x8001, 0x007f];
    if splitmix(15, i).is_multiple_of(7) { ODD[(splitmix(16, i) % 10) as usize] } else { bf16_bits(14, i) }
}

fn rare(i: usize) -> u16 {
    if splitmix(12, i).is_multiple_of(200) { bf16_bits(13, i) } else { 0x3f80 }
}

/// Element `i` of the blocks named `name`, little-endian.
fn element(name: &str, i: usize) -> Vec<u8> {
    match name {
        "bf16" => bf16_bits(1, i).to_le_bytes().to_vec(),
        "f16" => f16::from_f32(float(2, i)).to_le_bytes().to_vec(),
        "f32" => float(3, i).to_le_bytes().to_vec(),
        "f32 of bf16" => (float(4, i).to_bits() & 0xffff_0000).to_le_bytes().to_vec(),
        "f64" => {
            let low = (splitmix(6, i) & 0xff_ffff) as i64;
            (((bell(5, i) << 24) + low) as f64 * 2_f64.powi(-46)).to_le_bytes().to_vec()
        }
        "f64 of f32" => f64::from(float(6, i)).to_le_bytes().to_vec(),
        "i8" => vec![(bell(7, i) >> 11) as u8],
        "f8_e4m3" => vec![float8(8, i, 3)],
        "f8_e5m2" => vec![float8(9, i, 2)],
        "noise" => (splitmix(10, i) as u16).to_le_bytes().to_vec(),
        "constant" => 0xbf80_u16.to_le_bytes().to_vec(),
        "rare" => rare(i).to_le_bytes().to_vec(),
        "each bf16" => ((i as u64 * 40503) as u16).to_le_bytes().to_vec(),
        "special" => special(i).to_le_bytes().to_vec(),
        other => panic!("no blocks named {other}"),
    }
}

struct Case {
    name: String,
    width: usize,
    split: Split,
    elements: usize,
    payload_len: usize,
    digest: String,
}

fn cases() -> Vec<Case> {
    let text = include_str!("../golden/ladder.txt");
    let case = |line: &str| {
        let fields: Vec<&str> = line.split("; ").collect();
        let low: Vec<Option<u8>> = fields[3].split(',').map(|low| low.parse().ok()).collect();
        Case {
            name: fields[0].to_owned(),
            width: fields[1].parse().unwrap(),
            split: Split::with_low_bits(fields[2] == "1", &low).unwrap(),
            elements: fields[4].parse().unwrap(),
            payload_len: fields[5].parse().unwrap(),
            digest: fields[6].to_owned(),
        }
    };
    text.lines().filter(|line| !line.starts_with('#')).map(case).collect()
}

impl Case {
    fn raw(&self) -> Vec<u8> {
        (0..self.elements).flat_map(|i| element(&self.name, i)).collect()
    }
}

fn encoded(set: InstructionSet, split: &Split, raw: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    ladder::encode_on(set, split, raw, &mut payload, &mut Scratch::new()).unwrap();
    payload
}

#[test]
fn every_set_writes_the_payloads_of_the_reference_and_reads_them() {
    let cases = cases();
    assert_eq!(cases.len(), 126);
    for case in cases {
        let raw = case.raw();
        for set in sets() {
            let payload = encoded(set, &case.split, &raw);
            let found = (payload.len(), blake3::hash(&payload).to_hex().to_string());
            let wanted = (case.payload_len, case.digest.clone());
            assert_eq!(found, wanted, "{} elements of {} on {}", case.elements, case.name, set.name());
            let mut out = vec![0xa5; raw.len()];
            ladder::decode_on(set, case.width, &payload, &mut out, &mut Scratch::new()).unwrap();
            assert!(out == raw, "{} elements of {} on {}", case.elements, case.name, set.name());
        }
    }
}

#[test]
fn every_part_of_a_block_is_that_part_of_the_whole() {
    for case in cases() {
        let raw = case.raw();
        let payload = encoded(InstructionSet::detected(), &case.split, &raw);
        for set in sets() {
            let block = Block::parse(case.width, case.elements, &payload).unwrap();
            // Earlier contents of the memory must not matter.
            let mut memory = vec![0xa5; block.scratch_len()];
            for round in 0..20 {
                let (a, b) = (splitmix(20, 2 * round), splitmix(20, 2 * round + 1));
                let begin = a as usize % case.elements;
                let most = if round % 2 == 0 { 200 } else { case.elements };
                let end = begin + b as usize % (case.elements - begin).min(most) + 1;
                let mut out = vec![0xa5; (end - begin) * case.width];
                block.decode(set, begin..end, &mut out, &mut memory).unwrap();
                let wanted = &raw[begin * case.width..end * case.width];
                // Decoding reads only the bytes that the header names.
                let mut sparse = vec![0x5a; payload.len()];
                let head = 0..payload.len().min(ladder::HEAD_MAX);
                for range in std::iter::once(head).chain(block.bytes_of(begin..end)) {
                    sparse[range.clone()].copy_from_slice(&payload[range]);
                }
                let mut again = vec![0xa5; out.len()];
                let fetched = Block::parse(case.width, case.elements, &sparse).unwrap();
                fetched.decode(set, begin..end, &mut again, &mut memory).unwrap();
                assert!(again == wanted, "{begin}..{end} of {}, fetched, on {}", case.name, set.name());
                assert!(out == wanted, "{begin}..{end} of {} {} on {}", case.elements, case.name, set.name());
            }
        }
    }
}

#[test]
fn every_pattern_of_sixteen_bits_survives() {
    let raw: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for low in [[None, Some(0)], [None, Some(3)], [Some(0), Some(0)], [Some(7), Some(1)]] {
        let split = Split::with_low_bits(true, &low).unwrap();
        for set in sets() {
            let payload = encoded(set, &split, &raw);
            let mut out = vec![0; raw.len()];
            ladder::decode_on(set, 2, &payload, &mut out, &mut Scratch::new()).unwrap();
            assert!(out == raw, "{low:?} on {}", set.name());
        }
    }
}

#[test]
fn only_types_that_pack_well_are_packed_and_only_where_it_pays() {
    let mut scratch = Scratch::new();
    let weights: Vec<u8> = (0..8192).flat_map(|i| bf16_bits(1, i).to_le_bytes()).collect();
    let mut payload = vec![7];
    assert!(ladder::encode(Dtype::Bf16, &weights, &mut payload, &mut scratch).unwrap());
    assert_eq!(payload[0], 7);
    assert!((payload.len() - 1) * 100 <= weights.len() * 75, "{} bytes", payload.len());
    let mut out = vec![0; weights.len()];
    ladder::decode(2, &payload[1..], &mut out, &mut scratch).unwrap();
    assert!(out == weights);

    let noise: Vec<u8> = (0..8192).flat_map(|i| (splitmix(30, i) as u16).to_le_bytes()).collect();
    for dtype in Dtype::ALL {
        let length = payload.len();
        assert!(!ladder::encode(*dtype, &noise, &mut payload, &mut scratch).unwrap(), "{dtype}");
        assert_eq!(payload.len(), length);
    }
    let odd = &weights[..weights.len() - 1];
    let error = ladder::encode(Dtype::Bf16, odd, &mut payload, &mut scratch).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let too_many = vec![0; 2 * ladder::ELEMENTS_MAX + 2];
    assert!(!ladder::encode(Dtype::Bf16, &too_many, &mut payload, &mut scratch).unwrap());
    assert!(!ladder::encode(Dtype::Bf16, &[], &mut payload, &mut scratch).unwrap());
}

/// Checks that all sets treat a payload alike: the same bytes, or a refusal.
fn check_alike(width: usize, elements: usize, payload: &[u8], number: usize) -> bool {
    let mut outcomes = sets().into_iter().map(|set| {
        let mut out = vec![0; elements * width];
        let mut scratch = Scratch::new();
        match ladder::decode_on(set, width, payload, &mut out, &mut scratch) {
            Ok(()) => {
                let begin = splitmix(40, number) as usize % elements;
                let end = begin + splitmix(41, number) as usize % (elements - begin) + 1;
                let mut part = vec![0; (end - begin) * width];
                let block = Block::parse(width, elements, payload).unwrap();
                let mut memory = vec![0x5a; block.scratch_len()];
                block.decode(set, begin..end, &mut part, &mut memory).unwrap();
                assert!(part == out[begin * width..end * width], "part {begin}..{end} on {}", set.name());
                Some(out)
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                None
            }
        }
    });
    let first = outcomes.next().unwrap();
    assert!(outcomes.all(|other| other == first), "payload {number}");
    first.is_some()
}

#[test]
fn damaged_payloads_give_the_same_bytes_or_the_same_refusal_on_every_set() {
    let scale: usize =
        std::env::var("TIERFS_TEST_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(1);
    let mut decoded = 0;
    let mut number = 0;
    for case in cases().iter().filter(|case| case.elements <= 513) {
        let sound = encoded(InstructionSet::detected(), &case.split, &case.raw());
        for _ in 0..200 * scale {
            number += 1;
            let r = splitmix(50, number);
            let mut payload = sound.clone();
            let at = (r >> 8) as usize % payload.len();
            match r % 8 {
                0..3 => payload[at] ^= 1 << (r >> 40 & 7),
                3 => payload[at % 128.min(sound.len())] = (r >> 40) as u8,
                4 => payload[at % 32] ^= 1 << (r >> 40 & 7),
                5 => payload.truncate(at),
                6 => payload.extend_from_slice(&r.to_le_bytes()),
                _ => payload[at] = 0xff,
            }
            decoded += usize::from(check_alike(case.width, case.elements, &payload, number));
        }
    }
    // Changed codes and raw bytes still decode; the checksum of the log finds them.
    assert!(decoded > number / 20 && decoded < number, "{decoded} of {number}");
}

/// A sound payload with a ladder, and the offset of its descriptor.
fn with_ladder() -> (Vec<u8>, usize) {
    let raw: Vec<u8> = (0..513).flat_map(|i| bf16_bits(1, i).to_le_bytes()).collect();
    let split = Split::with_low_bits(true, &[None, Some(0)]).unwrap();
    let payload = encoded(InstructionSet::detected(), &split, &raw);
    assert_eq!(payload[8..10], [0, 2], "a raw plane, then a ladder");
    (payload, 24)
}

#[test]
fn every_reserved_or_unused_field_must_be_zero() {
    let (sound, ladder) = with_ladder();
    let levels = usize::from(sound[ladder + 1]);
    assert!(levels < 4);
    let mut reserved = vec![3, 10, 15, 16, 17, 18, 23, ladder + 6, ladder + 7, ladder + 2 + levels];
    reserved.extend([ladder + 8 + 4 * levels, ladder + 23].iter().filter(|at| **at < ladder + 24));
    for at in reserved {
        for value in [1, 0x80] {
            let mut payload = sound.clone();
            payload[at] |= value;
            let mut out = vec![0; 513 * 2];
            let error = ladder::decode(2, &payload, &mut out, &mut Scratch::new()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
        }
    }
}

#[test]
fn a_header_that_the_record_or_the_length_contradicts_is_refused() {
    let (sound, ladder) = with_ladder();
    let refused = |payload: &[u8], width: usize, elements: usize| {
        let mut out = vec![0; elements * width];
        let decoded = ladder::decode(width, payload, &mut out, &mut Scratch::new());
        assert_eq!(decoded.unwrap_err().kind(), ErrorKind::Corrupt);
    };
    refused(&sound, 2, 512);
    refused(&sound, 4, 513);
    refused(&sound, 2, 0);
    refused(&sound[..sound.len() - 1], 2, 513);
    refused(&[], 2, 513);
    let with = |at: usize, value: u8| {
        let mut payload = sound.clone();
        payload[at] = value;
        payload
    };
    for (at, value) in [(0, 2), (1, 4), (2, 2), (8, 4), (9, 9), (ladder, 8), (ladder + 1, 0), (ladder + 1, 5)]
    {
        refused(&with(at, value), 2, 513);
    }
    refused(&with(ladder + 2, 0), 2, 513);
    refused(&with(ladder + 2, 5), 2, 513);
    refused(&with(ladder + 8, sound[ladder + 8].wrapping_add(1)), 2, 513);
    for len in 0..sound.len() {
        refused(&sound[..len], 2, 513);
    }
}
