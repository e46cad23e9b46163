//! The bounds of the tiers, the encoders that keep them, and the figures of all encoders.

use half::{bf16, f16};
use proptest::prelude::*;
use tierfs::codec::InstructionSet;
use tierfs::model::{Dtype, Encoder, GROUP_LEN, Tier};

use crate::oracle::{DTYPES, Random, elements, golden, naive_decode, raw_of};
use crate::{any_dtype, any_tier, any_values, decoded, encoded, sets};

/// Of the largest magnitude of a group: the largest error before the rounding to the element type.
const BOUNDS: [(Tier, f64); 5] = [
    (Tier::Q8, 1.0 / 254.0),
    (Tier::Q7, 1.0 / 126.0),
    (Tier::Q5, 1.0 / 30.0),
    (Tier::Q3, 1.0 / 6.0),
    (Tier::Q3x, 1.0 / 6.0),
];
const BOUNDED: [Encoder; 2] = [Encoder::Best, Encoder::Absmax];
/// The rounding of f32, relative to the bound.
const ROUNDING: f64 = 1.0 / 16_384.0;

/// The largest error of a group's products of codes and scales, relative to the bound of the tier.
fn worst(tier: Tier, dtype: Dtype, values: &[f32], payload: &[u8]) -> f64 {
    let (_, bound) = BOUNDS.into_iter().find(|(of, _)| *of == tier).unwrap();
    let products = elements(Dtype::F32, &naive_decode(tier, Dtype::F32, payload, values.len()));
    let values = elements(dtype, &raw_of(dtype, values));
    let groups = values.chunks(GROUP_LEN).zip(products.chunks(GROUP_LEN));
    let shares = groups.map(|(values, products)| {
        let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let errors =
            values.iter().zip(products).map(|(value, read)| (f64::from(*value) - f64::from(*read)).abs());
        let error = errors.fold(0.0, f64::max);
        if error == 0.0 { 0.0 } else { error / (f64::from(largest) * bound) }
    });
    shares.fold(0.0, f64::max)
}

/// Values with one outlier, values just below half a step, steps, subnormal and large ones.
fn hostile_values() -> impl Strategy<Value = Vec<f32>> {
    let outlier =
        (0_usize..64, 1.0_f32..1e4, any::<bool>(), any::<u64>()).prop_map(|(at, size, down, seed)| {
            let mut values = Random::new(seed).normals(64);
            values[at] = if down { -size } else { size };
            values
        });
    let halves = (prop::sample::select(vec![127.0_f32, 63.0, 15.0, 3.0, 4.0, 16.0]), any::<u64>()).prop_map(
        |(steps, seed)| {
            let mut random = Random::new(seed);
            let mut value = || (random.next() % (2 * steps as u64)) as f32 - steps + 0.499_99;
            (0..64).map(|_| value()).chain([steps]).collect()
        },
    );
    let alike = (-1.0_f32..1.0, 1_usize..130).prop_map(|(value, count)| vec![value; count]);
    let few = prop::collection::vec(prop::sample::select(vec![1.0_f32, -1.0, 0.75, -0.51, 0.49, 0.0]), 1..70);
    let values = prop_oneof![outlier, halves, alike, few, any_values()];
    // Times 2^-126 to 2^115: the smallest values are subnormal.
    (values, -126_i32..116).prop_map(|(values, exponent)| {
        values.into_iter().map(|value| (f64::from(value) * 2_f64.powi(exponent)) as f32).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn every_group_keeps_the_bound_of_its_tier(values in hostile_values(), tier in any_tier(), dtype in any_dtype()) {
        let raw = raw_of(dtype, &values);
        for encoder in BOUNDED {
            let mut payload = Vec::new();
            let set = InstructionSet::detected();
            if set.encode(tier, encoder, dtype, &raw, &mut payload).unwrap().is_ok() {
                let share = worst(tier, dtype, &values, &payload);
                prop_assert!(share <= 1.0 + ROUNDING, "{tier} {encoder:?} {dtype}: {share} of the bound");
            }
        }
    }

    #[test]
    fn the_least_error_is_no_larger_than_the_best_one(values in hostile_values(), tier in any_tier()) {
        let raw = raw_of(Dtype::F32, &values);
        let sum = |encoder| {
            let encoded = InstructionSet::detected().encode(tier, encoder, Dtype::F32, &raw, &mut Vec::new());
            encoded.unwrap().map(|encoded| encoded.error_square_sum)
        };
        if let (Ok(absmax), Ok(best)) = (sum(Encoder::Absmax), sum(Encoder::Best)) {
            prop_assert!(best <= absmax * (1.0 + 1e-12));
        }
        prop_assert_eq!(sum(Encoder::Least).is_ok(), sum(Encoder::Best).is_ok());
    }

    #[test]
    fn rounding_at_most_doubles_an_error(values in hostile_values(), tier in any_tier(), dtype in any_dtype()) {
        let raw = raw_of(dtype, &values);
        let mut payload = Vec::new();
        let set = InstructionSet::detected();
        if set.encode(tier, Encoder::Best, dtype, &raw, &mut payload).unwrap().is_ok() {
            let read = elements(dtype, &decoded(set, tier, dtype, &payload, values.len()));
            let product = elements(Dtype::F32, &naive_decode(tier, Dtype::F32, &payload, values.len()));
            for ((value, read), product) in elements(dtype, &raw).iter().zip(read).zip(product) {
                let error = |read: f32| (f64::from(*value) - f64::from(read)).abs();
                prop_assert!(error(read) <= 2.0 * error(product));
            }
        }
    }
}

#[test]
fn golden_payloads_of_best_and_least_equal_the_reference() {
    let mut seen = 0;
    for (kind, encoder) in [("best", Encoder::Best), ("least", Encoder::Least)] {
        for case in golden(&[kind]) {
            let input = case.input.unwrap();
            for set in sets() {
                let (payload, _) = encoded(set, case.tier, encoder, case.dtype, &input);
                assert!(payload == case.payload, "{} on {}", case.name, set.name());
                assert!(decoded(set, case.tier, case.dtype, &payload, case.n) == case.output);
            }
            seen += 1;
        }
    }
    assert_eq!(seen, 2 * 12);
}

#[test]
fn values_that_are_not_finite_are_refused_by_every_encoder() {
    for (tier, _) in BOUNDS {
        for encoder in Encoder::ALL {
            for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                for dtype in DTYPES {
                    let mut values = Random::new(1).normals(64);
                    values[63] = bad;
                    let (set, mut out) = (InstructionSet::detected(), Vec::new());
                    assert!(
                        set.encode(tier, encoder, dtype, &raw_of(dtype, &values), &mut out).unwrap().is_err()
                    );
                }
            }
        }
    }
    assert!(f16::from_f32(70_000.0).is_infinite() && bf16::from_f32(f32::MAX).is_infinite());
}

/// The RMS errors of `absmax`, `best` and `least`, relative to the values.
fn errors(tier: Tier, values: &[f32]) -> [f64; 3] {
    let raw = raw_of(Dtype::F32, values);
    let squares: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
    [Encoder::Absmax, Encoder::Best, Encoder::Least].map(|encoder| {
        let (_, encoded) = encoded(InstructionSet::detected(), tier, encoder, Dtype::F32, &raw);
        (encoded.error_square_sum / squares).sqrt()
    })
}

#[test]
fn the_errors_of_all_encoders_are_those_of_the_table() {
    let mut random = Random::new(21);
    let n = 20_000 * GROUP_LEN;
    let normal = random.normals(n);
    let laplace: Vec<f32> = (0..n)
        .map(|_| {
            let size = -random.uniform().ln();
            (if random.next() >> 63 == 0 { size } else { -size }) as f32
        })
        .collect();
    // Student's distribution with four degrees of freedom.
    let student: Vec<f32> = (0..n)
        .map(|_| {
            let parts = random.normals(5);
            let squares: f32 = parts[1..].iter().map(|part| part * part).sum();
            parts[0] / (squares / 4.0).sqrt()
        })
        .collect();
    for (tier, _) in BOUNDS {
        let (payload, _) = encoded(
            InstructionSet::detected(),
            tier,
            Encoder::Least,
            Dtype::F32,
            &raw_of(Dtype::F32, &normal),
        );
        println!("{tier}: least reaches {:.2} times the bound", worst(tier, Dtype::F32, &normal, &payload));
    }
    // The figures of an independent simulation.
    let table = [
        ("normal", &normal, Tier::Q8, [0.005_95, 0.005_58, 0.005_57]),
        ("normal", &normal, Tier::Q5, [0.0504, 0.0455, 0.0452]),
        ("normal", &normal, Tier::Q3, [0.2519, 0.1822, 0.1765]),
        ("laplace", &laplace, Tier::Q8, [0.007_87, 0.007_49, 0.007_48]),
        ("laplace", &laplace, Tier::Q5, [0.0665, 0.0608, 0.0605]),
        ("laplace", &laplace, Tier::Q3, [0.3175, 0.2278, 0.2220]),
        ("student", &student, Tier::Q8, [0.009_29, 0.008_93, 0.008_93]),
        ("student", &student, Tier::Q5, [0.0750, 0.0688, 0.0686]),
        ("student", &student, Tier::Q3, [0.3479, 0.2493, 0.2429]),
    ];
    for (name, values, tier, wanted) in table {
        let found = errors(tier, values);
        println!("{name} {tier}: {found:.5?}");
        // The largest values of this distribution differ from sample to sample: only ratios are comparable.
        let unit = if name == "student" { found[0] / wanted[0] } else { 1.0 };
        for (found, wanted) in found.into_iter().zip(wanted) {
            let ratio = found / (wanted * unit);
            assert!((ratio - 1.0).abs() < 0.01, "{name} {tier}: {found} where {wanted} was expected");
        }
    }
}
