//! The codecs against stored vectors, naive loops and each other.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its oracles too")]

mod bounds;
mod dequantize;
mod difference;
mod ggml;
mod ladder;
mod low_rank;
mod oracle;

use half::{bf16, f16};
use oracle::{DTYPES, Random, elements, golden, naive_decode, naive_nearest_error, raw_of};
use proptest::prelude::*;
use tierfs::codec::{self, InstructionSet, NotEncodable, group_offset, payload_len};
use tierfs::model::{Dtype, Encoder, ErrorKind, GROUP_LEN, Tier};

/// The tiers with one scale a group, and their largest codes.
const GROUPED: [(Tier, f32); 4] = [(Tier::Q8, 127.0), (Tier::Q7, 63.0), (Tier::Q5, 15.0), (Tier::Q3, 3.0)];

fn sets() -> Vec<InstructionSet> {
    InstructionSet::available().collect()
}

fn encoded(
    set: InstructionSet,
    tier: Tier,
    encoder: Encoder,
    dtype: Dtype,
    raw: &[u8],
) -> (Vec<u8>, codec::Encoded) {
    let mut payload = Vec::new();
    let encoded = set.encode(tier, encoder, dtype, raw, &mut payload).unwrap().unwrap();
    (payload, encoded)
}

fn decoded(set: InstructionSet, tier: Tier, dtype: Dtype, payload: &[u8], n: usize) -> Vec<u8> {
    let mut out = vec![0xa5; n * dtype.bytes() as usize];
    set.decode_groups(tier, dtype, payload, &mut out).unwrap();
    out
}

#[test]
fn scalar_is_always_available_and_the_widest_is_used() {
    let names: Vec<_> = sets().iter().map(|set| set.name()).collect();
    assert_eq!(names.last(), Some(&"scalar"));
    assert_eq!(names.first(), Some(&codec::instruction_set()));
    // Every 64-bit ARM processor has this set.
    assert_eq!(names.contains(&"neon"), cfg!(target_arch = "aarch64"));
}

#[test]
fn golden_payloads_decode_to_golden_bytes_on_every_set() {
    let mut seen = 0;
    for case in golden(&["absmax", "decode", "decode_two_level"]) {
        for set in sets() {
            let out = decoded(set, case.tier, case.dtype, &case.payload, case.n);
            assert_eq!(out, case.output, "{} on {}", case.name, set.name());
        }
        let mut out = vec![0; case.output.len()];
        codec::decode(case.tier, case.dtype, &case.payload, case.n, &mut out).unwrap();
        assert_eq!(out, case.output);
        seen += 1;
    }
    assert_eq!(seen, 48 + 9 + 3);
}

#[test]
fn every_scale_and_code_decodes_as_bit_by_bit_on_every_set() {
    let tiny = [1, 0x7f_ffff, 0x0080_0000, 0x0080_0001, 0x0100_0000].map(f32::from_bits);
    // Products with 1 and 2 lie between two values of bf16: the lower one is even, or the upper one.
    let ties = [0x3f80_8000, 0x3f81_8000].map(f32::from_bits);
    let scales = [&[0.0, 1e-40, 1e-4, 0.3, 3.0, 1e30, f32::MAX][..], &tiny, &ties].concat();
    let scales: Vec<f32> = scales.into_iter().flat_map(|scale| [scale, -scale]).collect();
    let mut random = Random::new(17);
    for tier in Tier::ENCODED {
        let heads = if tier == Tier::Q3x { 2 } else { 1 };
        let groups = scales.len() * 40;
        let n = groups * GROUP_LEN + 37;
        let mut payload: Vec<u8> = (0..payload_len(tier, n).unwrap()).map(|_| random.next() as u8).collect();
        for group in 0..=groups {
            let at = group_offset(tier, group).unwrap();
            for head in 0..heads {
                let scale = scales[(group + head * (group / scales.len())) % scales.len()];
                payload[at + 4 * head..][..4].copy_from_slice(&scale.to_le_bytes());
            }
        }
        for dtype in DTYPES {
            let wanted = naive_decode(tier, dtype, &payload, n);
            for set in sets() {
                let seen = decoded(set, tier, dtype, &payload, n);
                let place = seen.iter().zip(&wanted).position(|(seen, wanted)| seen != wanted);
                assert_eq!(place, None, "{tier} to {dtype} on {}", set.name());
            }
        }
    }
}

#[test]
fn absmax_writes_the_golden_payloads_on_every_set() {
    let mut seen = 0;
    for case in golden(&["absmax"]) {
        let input = case.input.unwrap();
        for set in sets() {
            let (payload, _) = encoded(set, case.tier, Encoder::Absmax, case.dtype, &input);
            assert_eq!(payload, case.payload, "{} on {}", case.name, set.name());
        }
        seen += 1;
    }
    assert_eq!(seen, 48);
}

#[test]
fn every_run_of_groups_decodes_as_in_the_whole_block() {
    let mut random = Random::new(5);
    let n = 3 * GROUP_LEN + 63;
    for tier in Tier::ENCODED {
        for dtype in DTYPES {
            let raw = raw_of(dtype, &random.normals(n));
            let (payload, _) = encoded(InstructionSet::detected(), tier, Encoder::Best, dtype, &raw);
            let whole = decoded(InstructionSet::detected(), tier, dtype, &payload, n);
            for first in 0..4 {
                for end in first + 1..=4 {
                    let to = if end == 4 { payload.len() } else { group_offset(tier, end).unwrap() };
                    let (from_element, to_element) = (first * GROUP_LEN, n.min(end * GROUP_LEN));
                    let part = &payload[group_offset(tier, first).unwrap()..to];
                    let size = dtype.bytes() as usize;
                    let mut out = vec![0; (to_element - from_element) * size];
                    codec::decode_groups(tier, dtype, part, &mut out).unwrap();
                    assert_eq!(out, whole[from_element * size..to_element * size]);
                }
            }
        }
    }
}

#[test]
fn payload_sizes_equal_the_layout_table() {
    for (tier, full) in [(Tier::Q8, 68), (Tier::Q7, 60), (Tier::Q5, 44), (Tier::Q3, 28), (Tier::Q3x, 40)] {
        assert_eq!(payload_len(tier, 64), Some(full));
        assert_eq!(payload_len(tier, 4096), Some(64 * full));
        assert_eq!(group_offset(tier, 3), Some(3 * full));
        assert_eq!(payload_len(tier, 0), Some(0));
    }
    assert_eq!(payload_len(Tier::Q7, 65), Some(60 + 4 + 1));
    assert_eq!(payload_len(Tier::Q3x, 100), Some(40 + 8 + 5 + 14));
    assert_eq!(payload_len(Tier::Q8, usize::MAX), None);
    assert_eq!(group_offset(Tier::Q3, usize::MAX), None);
    assert_eq!(payload_len(Tier::Exact, 64), None);
    assert_eq!(group_offset(Tier::Absent, 0), None);
}

#[test]
fn hostile_payloads_are_errors() {
    for set in sets() {
        for tier in Tier::ENCODED {
            let len = payload_len(tier, 100).unwrap();
            let mut out = [0; 400];
            for wrong in [0, 1, len - 1, len + 1, 2 * len] {
                let error = set.decode_groups(tier, Dtype::F32, &vec![0; wrong], &mut out).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt);
            }
            for (at, bad) in
                [(0, f32::NAN), (0, f32::INFINITY), (group_offset(tier, 1).unwrap(), f32::NEG_INFINITY)]
            {
                let mut payload = vec![0; len];
                payload[at..at + 4].copy_from_slice(&bad.to_le_bytes());
                let error = set.decode_groups(tier, Dtype::F32, &payload, &mut out).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt);
            }
        }
        let mut payload = vec![0; payload_len(Tier::Q3x, 64).unwrap()];
        payload[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
        let error = set.decode_groups(Tier::Q3x, Dtype::F32, &payload, &mut [0; 256]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn invalid_arguments_are_errors() {
    let kind = |result: tierfs::model::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(codec::decode_groups(Tier::Q8, Dtype::I8, &[0; 68], &mut [0; 64])), ErrorKind::Invalid);
    assert_eq!(
        kind(codec::decode_groups(Tier::Exact, Dtype::F32, &[0; 256], &mut [0; 256])),
        ErrorKind::Invalid
    );
    assert_eq!(kind(codec::decode_groups(Tier::Q8, Dtype::F32, &[0; 5], &mut [0; 5])), ErrorKind::Invalid);
    assert_eq!(kind(codec::decode(Tier::Q8, Dtype::F32, &[0; 68], 63, &mut [0; 256])), ErrorKind::Invalid);
    let mut out = vec![1, 2];
    for (tier, dtype, raw) in
        [(Tier::Q8, Dtype::F64, 8), (Tier::Exact, Dtype::F32, 8), (Tier::Q8, Dtype::F16, 7)]
    {
        let error = codec::encode(tier, Encoder::Best, dtype, &vec![0; raw], &mut out).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    assert_eq!(out, [1, 2]);
    assert_eq!(kind(codec::pack(4, &[0; 8], &mut [0; 4])), ErrorKind::Invalid);
    assert_eq!(kind(codec::pack(3, &[0; 8], &mut [0; 4])), ErrorKind::Invalid);
    assert_eq!(kind(codec::pack(3, &[5; 8], &mut [0; 3])), ErrorKind::Invalid);
    assert_eq!(kind(codec::pack(7, &[-64; 8], &mut [0; 7])), ErrorKind::Invalid);
    assert_eq!(kind(codec::unpack(5, &[0; 4], &mut [0; 8])), ErrorKind::Invalid);
}

#[test]
fn an_encoder_leaves_the_output_untouched_for_blocks_that_must_stay_exact() {
    for set in sets() {
        for tier in Tier::ENCODED {
            for encoder in Encoder::ALL {
                for (dtype, bad, reason) in [
                    (Dtype::F32, f32::NAN, NotEncodable::NotFinite),
                    (Dtype::F16, f32::INFINITY, NotEncodable::NotFinite),
                    (Dtype::Bf16, f32::NEG_INFINITY, NotEncodable::NotFinite),
                    (Dtype::F32, 1e-38, NotEncodable::SubnormalScale),
                    (Dtype::Bf16, 1e-40, NotEncodable::SubnormalScale),
                ] {
                    let mut values = vec![1.0; 64];
                    values.extend([0.0; 40]);
                    values[77] = bad;
                    let mut out = vec![7; 3];
                    let result = set.encode(tier, encoder, dtype, &raw_of(dtype, &values), &mut out).unwrap();
                    assert_eq!(result, Err(reason), "{tier} {dtype} {bad}");
                    assert_eq!(out, [7; 3]);
                }
            }
        }
    }
}

#[test]
fn an_all_zero_group_has_scale_zero_and_codes_zero() {
    for tier in Tier::ENCODED {
        for encoder in Encoder::ALL {
            let (payload, encoded) =
                encoded(InstructionSet::detected(), tier, encoder, Dtype::F32, &[0; 4 * 70]);
            assert_eq!(encoded, codec::Encoded::default());
            assert_eq!(payload[..4], [0; 4]);
            let bits = tier.code_bits().unwrap();
            let mut stream = vec![0; codec::stream_len(bits, 64).unwrap()];
            codec::pack(bits, &[0; 64], &mut stream).unwrap();
            let full = group_offset(tier, 1).unwrap();
            assert_eq!(payload[full - stream.len()..full], stream);
        }
    }
}

#[test]
fn no_scale_is_ever_subnormal() {
    let mut random = Random::new(8);
    for (tier, q) in [GROUPED.as_slice(), &[(Tier::Q3x, 3.0)]].concat() {
        for encoder in Encoder::ALL {
            for _ in 0..50 {
                // Just above the bound: larger codes would need a subnormal scale.
                let mut values = random.normals(64);
                let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                for value in &mut values {
                    *value *= q * 1.001 * f32::MIN_POSITIVE / largest;
                }
                let raw = raw_of(Dtype::F32, &values);
                let (payload, _) = encoded(InstructionSet::detected(), tier, encoder, Dtype::F32, &raw);
                let scales = if tier == Tier::Q3x { &payload[..8] } else { &payload[..4] };
                for scale in scales.as_chunks().0 {
                    assert!(f32::from_le_bytes(*scale).is_normal());
                }
            }
        }
    }
}

#[test]
fn the_largest_values_of_each_type_never_decode_as_infinite() {
    for (dtype, largest) in
        [(Dtype::F32, f32::MAX), (Dtype::F16, f16::MAX.to_f32()), (Dtype::Bf16, bf16::MAX.to_f32())]
    {
        for tier in Tier::ENCODED {
            for encoder in Encoder::ALL {
                for sign in [1.0, -1.0] {
                    let values: Vec<_> = (0..64).map(|i| sign * largest * (1.0 - i as f32 / 50.0)).collect();
                    let mut payload = Vec::new();
                    let set = InstructionSet::detected();
                    if set
                        .encode(tier, encoder, dtype, &raw_of(dtype, &values), &mut payload)
                        .unwrap()
                        .is_ok()
                    {
                        let out = decoded(set, tier, dtype, &payload, 64);
                        assert!(
                            elements(dtype, &out).iter().all(|value| value.is_finite()),
                            "{tier} {dtype}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_measured_loss_equals_that_of_a_naive_loop() {
    let mut random = Random::new(11);
    for tier in Tier::ENCODED {
        for dtype in DTYPES {
            let raw = raw_of(dtype, &random.normals(1000));
            for encoder in Encoder::ALL {
                let (payload, encoded) = encoded(InstructionSet::detected(), tier, encoder, dtype, &raw);
                let read = elements(dtype, &naive_decode(tier, dtype, &payload, 1000));
                let (mut largest, mut square_sum) = (0.0_f64, 0.0);
                for (value, read) in elements(dtype, &raw).iter().zip(&read) {
                    let difference = f64::from(*value) - f64::from(*read);
                    largest = largest.max(difference.abs());
                    square_sum += difference * difference;
                }
                assert_eq!(encoded.error_max, largest as f32);
                assert!((encoded.error_square_sum / square_sum - 1.0).abs() < 1e-12);
                let scales = (0..16).map(|group| {
                    let at = group_offset(tier, group).unwrap();
                    let read = |at: usize| f32::from_le_bytes(payload[at..at + 4].try_into().unwrap()).abs();
                    if tier == Tier::Q3x { read(at).max(read(at + 4)) } else { read(at) }
                });
                assert_eq!(encoded.scale, scales.fold(0.0, f32::max));
            }
        }
    }
}

/// The RMS error on normal values.
fn rms(tier: Tier, encoder: Encoder) -> f64 {
    let n = 256 * 1024;
    let raw = raw_of(Dtype::F32, &Random::new(1).normals(n));
    let (_, encoded) = encoded(InstructionSet::detected(), tier, encoder, Dtype::F32, &raw);
    (encoded.error_square_sum / n as f64).sqrt()
}

#[test]
fn the_encoders_meet_their_figures_on_normal_values() {
    for (tier, absmax, best, least) in [
        (Tier::Q3, 0.2525, 0.1822, 0.180),
        (Tier::Q5, 0.0505, 0.046, 0.046),
        (Tier::Q7, 0.0120, 0.0115, 0.0115),
    ] {
        let measured = rms(tier, Encoder::Absmax);
        assert!((measured / absmax - 1.0).abs() < 0.01, "{tier} absmax {measured}");
        for (encoder, most) in [(Encoder::Best, best), (Encoder::Least, least)] {
            let measured = rms(tier, encoder);
            assert!(measured <= most, "{tier} {} {measured}", encoder.name());
        }
    }
    assert!(rms(Tier::Q8, Encoder::Best) < 0.96 * rms(Tier::Q8, Encoder::Absmax));
    assert!(rms(Tier::Q3x, Encoder::Best) < 0.85 * rms(Tier::Q3, Encoder::Best));
}

#[test]
fn the_least_error_comes_close_to_an_exhaustive_search() {
    let mut random = Random::new(3);
    for (tier, least, most) in [(Tier::Q3, -3.0, 4.0), (Tier::Q5, -15.0, 16.0)] {
        let (mut found, mut exhaustive) = (0.0, 0.0);
        for _ in 0..40 {
            let values = random.normals(64);
            let (_, encoded) = encoded(
                InstructionSet::detected(),
                tier,
                Encoder::Least,
                Dtype::F32,
                &raw_of(Dtype::F32, &values),
            );
            found += encoded.error_square_sum;
            exhaustive += naive_nearest_error(&values, least, most);
        }
        assert!(found < 1.05 * exhaustive, "{tier}: {found} {exhaustive}");
    }
}

/// Values of many kinds: plain, tiny, huge, with outliers, sparse, constant.
fn any_values() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        8 => -1.0_f32..1.0,
        2 => Just(0.0_f32),
        1 => -40.0_f32..40.0,
        1 => -1e-3_f32..1e-3,
    ];
    let magnitude =
        prop_oneof![3 => Just(1.0_f32), 1 => Just(1e-4), 1 => Just(1e3), 1 => Just(1e30), 1 => Just(1e-30)];
    (prop::collection::vec(value, 0..200), magnitude)
        .prop_map(|(values, magnitude)| values.into_iter().map(|value| value * magnitude).collect())
}

fn any_tier() -> impl Strategy<Value = Tier> {
    prop::sample::select(Tier::ENCODED.to_vec())
}

fn any_encoder() -> impl Strategy<Value = Encoder> {
    prop::sample::select(Encoder::ALL.to_vec())
}

fn any_dtype() -> impl Strategy<Value = Dtype> {
    prop::sample::select(DTYPES.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn all_sets_encode_to_the_same_bytes(values in any_values(), tier in any_tier(), dtype in any_dtype(), encoder in any_encoder()) {
        let raw = raw_of(dtype, &values);
        let results: Vec<_> = sets().into_iter().map(|set| {
            let mut payload = Vec::new();
            let result = set.encode(tier, encoder, dtype, &raw, &mut payload).unwrap();
            (result.map(|encoded| (encoded.scale.to_bits(), encoded.error_max.to_bits(), encoded.error_square_sum.to_bits())), payload)
        }).collect();
        for result in &results {
            prop_assert_eq!(result, &results[0]);
        }
    }

    #[test]
    fn every_set_decodes_any_codes_as_a_naive_loop_does(
        tier in any_tier(), dtype in any_dtype(), n in 0_usize..200, seed: u64, subnormal: bool,
    ) {
        let mut random = Random::new(seed);
        let mut payload: Vec<u8> = (0..payload_len(tier, n).unwrap()).map(|_| random.next() as u8).collect();
        for group in 0..n.div_ceil(GROUP_LEN) {
            let at = group_offset(tier, group).unwrap();
            for at in if tier == Tier::Q3x { vec![at, at + 4] } else { vec![at] } {
                let exponent = if subnormal { -149 } else { (random.next() % 276) as i32 - 149 };
                let scale = (random.uniform() + 1.0) * 2_f64.powi(exponent.min(126));
                let scale = if random.next() >> 63 == 0 { scale } else { -scale };
                payload[at..at + 4].copy_from_slice(&(scale as f32).to_le_bytes());
            }
        }
        let expected = naive_decode(tier, dtype, &payload, n);
        for set in sets() {
            prop_assert_eq!(&decoded(set, tier, dtype, &payload, n), &expected, "{}", set.name());
        }
    }

    #[test]
    fn the_absmax_encoder_errs_by_at_most_half_a_scale(values in any_values(), (tier, q) in prop::sample::select(GROUPED.to_vec())) {
        let raw = raw_of(Dtype::F32, &values);
        let mut payload = Vec::new();
        let set = InstructionSet::detected();
        if set.encode(tier, Encoder::Absmax, Dtype::F32, &raw, &mut payload).unwrap().is_ok() {
            let read = elements(Dtype::F32, &decoded(set, tier, Dtype::F32, &payload, values.len()));
            for (values, read) in values.chunks(GROUP_LEN).zip(read.chunks(GROUP_LEN)) {
                let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                for (value, read) in values.iter().zip(read) {
                    prop_assert!((value - read).abs() <= largest / (2.0 * q) * 1.0001);
                }
            }
        }
    }

    #[test]
    fn best_and_two_levels_never_lose_more_than_absmax(values in any_values(), dtype in any_dtype()) {
        let set = InstructionSet::detected();
        for values in values.chunks(GROUP_LEN) {
            let raw = raw_of(dtype, values);
            let loss = |tier, encoder| {
                let mut payload = Vec::new();
                let encoded = set.encode(tier, encoder, dtype, &raw, &mut payload).unwrap();
                encoded.map(|_| {
                    let read = elements(dtype, &naive_decode(tier, dtype, &payload, values.len()));
                    elements(dtype, &raw).iter().zip(read).map(|(value, read)| (f64::from(*value) - f64::from(read)).powi(2)).sum::<f64>()
                })
            };
            for (tier, _) in GROUPED {
                match (loss(tier, Encoder::Absmax), loss(tier, Encoder::Best)) {
                    // The orders of summation differ, so the last bits may differ.
                    (Ok(absmax), Ok(best)) => prop_assert!(best <= absmax * (1.0 + 1e-12)),
                    (absmax, best) => prop_assert_eq!(absmax.is_ok(), best.is_ok()),
                }
            }
            if let (Ok(one), Ok(two)) = (loss(Tier::Q3, Encoder::Best), loss(Tier::Q3x, Encoder::Best)) {
                prop_assert!(two <= one * (1.0 + 1e-12));
            }
        }
    }

    #[test]
    fn bit_streams_equal_naive_ones_and_unpack_to_the_codes(
        bits in prop::sample::select(vec![3_u8, 5, 7, 8]), n in 0_usize..200, seed: u64,
    ) {
        let mut random = Random::new(seed);
        let offset = if bits == 8 { 128 } else { (1 << (bits - 1)) - 1 };
        let codes: Vec<i8> = (0..n).map(|_| ((random.next() % (1 << bits)) as i32 - offset) as i8).collect();
        let mut expected = vec![0_u8; (n * usize::from(bits)).div_ceil(8)];
        for (i, code) in codes.iter().enumerate() {
            let stored = if bits == 8 { *code as u8 } else { (i32::from(*code) + offset) as u8 };
            for bit in 0..usize::from(bits) {
                let at = i * usize::from(bits) + bit;
                expected[at / 8] |= (stored >> bit & 1) << (at % 8);
            }
        }
        for set in sets() {
            let mut stream = vec![0xff; expected.len()];
            set.pack(bits, &codes, &mut stream).unwrap();
            prop_assert_eq!(&stream, &expected, "{}", set.name());
            let mut back = vec![99; n];
            set.unpack(bits, &stream, &mut back).unwrap();
            prop_assert_eq!(&back, &codes, "{}", set.name());
        }
    }

    #[test]
    fn the_largest_magnitude_equals_that_of_a_naive_loop(values in prop::collection::vec(-1e9_f32..1e9, 0..700), bad in prop::option::of(0_usize..700)) {
        let expected = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let mut values = values;
        for set in sets() {
            prop_assert_eq!(set.max_abs(&values), expected);
        }
        if let Some(value) = bad.and_then(|bad| values.get_mut(bad)) {
            *value = -f32::NAN;
            for set in sets() {
                prop_assert!(set.max_abs(&values).is_nan());
            }
        }
    }
}
