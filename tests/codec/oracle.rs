//! References for the codecs: stored vectors, plain loops, a seeded generator.

use std::fs;
use std::path::Path;

use half::{bf16, f16};
use tierfs::model::{Dtype, GROUP_LEN, Tier};

pub const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// One case of `tests/golden/cases.json`.
pub struct Case {
    pub name: String,
    pub tier: Tier,
    pub dtype: Dtype,
    pub n: usize,
    pub input: Option<Vec<u8>>,
    pub payload: Vec<u8>,
    pub output: Vec<u8>,
}

/// The codec cases of the given kinds.
pub fn golden(kinds: &[&str]) -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let text = fs::read_to_string(folder.join("cases.json")).unwrap();
    let cases: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let chosen = cases.iter().filter(|case| kinds.contains(&case["kind"].as_str().unwrap()));
    chosen
        .map(|case| {
            let read = |field: &str| case[field].as_str().map(|name| fs::read(folder.join(name)).unwrap());
            let tier = match (case["kind"].as_str().unwrap(), case["bits"].as_u64().unwrap()) {
                ("decode_two_level", _) => Tier::Q3x,
                (_, 8) => Tier::Q8,
                (_, 7) => Tier::Q7,
                (_, 5) => Tier::Q5,
                (_, 3) => Tier::Q3,
                other => panic!("unknown case {other:?}"),
            };
            Case {
                name: case["payload"].as_str().unwrap().to_owned(),
                tier,
                dtype: Dtype::from_name(case["dtype"].as_str().unwrap()).unwrap(),
                n: case["n"].as_u64().unwrap() as usize,
                input: read("input"),
                payload: read("payload").unwrap(),
                output: read("output").unwrap(),
            }
        })
        .collect()
}

/// Values as little-endian elements.
pub fn raw_of(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        Dtype::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        _ => panic!("{dtype} is never quantized"),
    }
}

/// Little-endian elements as values.
pub fn elements(dtype: Dtype, raw: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => raw.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect(),
        Dtype::F16 => raw.as_chunks().0.iter().map(|raw| f16::from_le_bytes(*raw).to_f32()).collect(),
        Dtype::Bf16 => raw.as_chunks().0.iter().map(|raw| bf16::from_le_bytes(*raw).to_f32()).collect(),
        _ => panic!("{dtype} is never quantized"),
    }
}

/// A payload decoded bit by bit.
pub fn naive_decode(tier: Tier, dtype: Dtype, payload: &[u8], n: usize) -> Vec<u8> {
    let bits = usize::from(tier.code_bits().unwrap());
    let mut values = Vec::new();
    let mut at = 0;
    for start in (0..n).step_by(GROUP_LEN) {
        let count = GROUP_LEN.min(n - start);
        let scale = |at: usize| f32::from_le_bytes(payload[at..at + 4].try_into().unwrap());
        let (head, flags) = if tier == Tier::Q3x { (8, count.div_ceil(8)) } else { (4, 0) };
        for i in 0..count {
            let mut stored = 0;
            for bit in 0..bits {
                let index = i * bits + bit;
                stored |= i32::from(payload[at + head + flags + index / 8] >> (index % 8) & 1) << bit;
            }
            let code =
                if bits == 8 { i32::from(stored as u8 as i8) } else { stored - ((1 << (bits - 1)) - 1) };
            let secondary = flags > 0 && payload[at + 8 + i / 8] >> (i % 8) & 1 == 1;
            values.push(code as f32 * scale(if secondary { at + 4 } else { at }));
        }
        at += head + flags + (count * bits).div_ceil(8);
    }
    assert_eq!(at, payload.len());
    raw_of(dtype, &values)
}

/// The least squared error of a group over twenty thousand scales of either sign.
pub fn naive_nearest_error(values: &[f32], least: f64, most: f64) -> f64 {
    let largest = values.iter().fold(0.0_f64, |largest, value| largest.max(f64::from(value.abs())));
    let errors = (1..=10_000).flat_map(|i| {
        let scale = largest * f64::from(i) / (5000.0 * most);
        [scale, -scale]
    });
    errors
        .map(|scale| {
            let error = |value: &f32| {
                let value = f64::from(*value);
                (value - (value / scale).round().clamp(least, most) * scale).powi(2)
            };
            values.iter().map(error).sum::<f64>()
        })
        .fold(f64::INFINITY, f64::min)
}

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Above 0, at most 1.
    pub fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Normal values, by Box and Muller.
    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| {
                let radius = (-2.0 * self.uniform().ln()).sqrt();
                (radius * (std::f64::consts::TAU * self.uniform()).cos()) as f32
            })
            .collect()
    }
}
