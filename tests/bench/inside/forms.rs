//! The codes of quantized weights by themselves, in the second-level cache.

use std::hint::black_box;

use tierfs::codec::InstructionSet;
use tierfs::codec::dequantize::{Alphabet, Row as Codes, Spread};
use tierfs::model::Dtype;

use super::seconds;
use crate::Result;
use crate::table::{Checked, Contest, Row, Target};
use crate::values::Random;

/// Values of a pass: 128 KiB of f32.
const VALUES: usize = 32 << 10;

/// A layout of codes and scales.
#[derive(Clone, Copy)]
struct Scheme {
    name: &'static str,
    alphabet: fn() -> Alphabet,
    /// Values with one scale.
    group: usize,
    /// Bits of a scale's mantissa.
    scale_bits: u32,
    /// Whether there are zero points, one for each scale.
    has_zeros: bool,
    /// Multiplies all values.
    factor: f32,
}

const PLAIN: Scheme = Scheme {
    name: "fp8",
    alphabet: || Alphabet::E4m3,
    group: VALUES,
    scale_bits: 23,
    has_zeros: false,
    factor: 1.0,
};

/// The schemes, with the scales that their models have.
fn schemes() -> [Scheme; 9] {
    let word = || Alphabet::Word { shift: 4, mask: 15 };
    let nf4 = || Alphabet::high_first(&std::array::from_fn(|code| code as f32 * 0.137 - 1.0));
    [
        PLAIN,
        Scheme { name: "fp8-blocks", group: 128, ..PLAIN },
        Scheme { name: "int8", alphabet: || Alphabet::I8, ..PLAIN },
        Scheme { name: "int4", alphabet: Alphabet::int4, group: 128, scale_bits: 7, ..PLAIN },
        Scheme { name: "gptq", alphabet: word, group: 1, scale_bits: 10, has_zeros: true, ..PLAIN },
        Scheme {
            name: "awq",
            alphabet: || Alphabet::Awq,
            group: 1,
            scale_bits: 10,
            has_zeros: true,
            ..PLAIN
        },
        Scheme { name: "nf4", alphabet: nf4, group: 64, ..PLAIN },
        Scheme { name: "nvfp4", alphabet: Alphabet::e2m1, group: 16, scale_bits: 3, factor: 0.37, ..PLAIN },
        Scheme { name: "mxfp4", alphabet: Alphabet::e2m1, group: 32, scale_bits: 0, ..PLAIN },
    ]
}

/// The rows.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for set in InstructionSet::available().filter(|set| set.name() != "avx512-bf16") {
        let target = match set.name() {
            "avx512" => Target::AtLeast(10.0),
            "avx2" => Target::AtLeast(4.0),
            _ => Target::Nothing,
        };
        for scheme in schemes() {
            let name = format!("form-decode.{}-{}", set.name(), scheme.name);
            let what = format!("decode codes to f32, in L2: {}, {}", scheme.name, set.name());
            rows.push(Row::new(name, what, "memcpy of the output", "GB/s", target, move |_| {
                decode(set, scheme)
            }));
        }
    }
    rows
}

fn decode(set: InstructionSet, scheme: Scheme) -> Result<Contest> {
    let mut random = Random::new(7);
    let alphabet = (scheme.alphabet)();
    let mut codes = vec![0; VALUES * 4];
    random.fill(&mut codes);
    let groups = VALUES.div_ceil(scheme.group);
    let kept = !((1_u32 << (23 - scheme.scale_bits)) - 1);
    let scales: Vec<f32> =
        (0..groups).map(|_| f32::from_bits(f32::to_bits(0.01 + random.weight().abs()) & kept)).collect();
    let zeros: Vec<f32> = (0..groups).map(|_| (random.next() % 16) as f32).collect();
    // By the definition, in f64.
    let mut numbers = vec![0.0; VALUES];
    alphabet.numbers(&codes, &mut numbers);
    let value = |(place, number): (usize, &f32)| {
        let zero = if scheme.has_zeros { f64::from(zeros[place / scheme.group]) } else { 0.0 };
        let scale = f64::from(scales[place / scheme.group]) * f64::from(scheme.factor);
        ((f64::from(*number) - zero) * scale) as f32
    };
    let right: Vec<u8> = numbers.iter().enumerate().map(value).flat_map(f32::to_le_bytes).collect();
    let call = move |out: &mut [u8]| -> Result<()> {
        let spread = |numbers| match scheme.group {
            1 => Spread::Each(numbers),
            len => Spread::Groups { len, first: len, numbers },
        };
        let codes = Codes {
            alphabet: &alphabet,
            codes: black_box(&codes),
            skip: 0,
            scales: spread(&scales),
            zeros: scheme.has_zeros.then(|| spread(&zeros)),
            factor: scheme.factor,
            divisor: 1.0,
        };
        Ok(codes.decode_with(set, Dtype::F32, out)?)
    };
    let mut out = vec![0; right.len()];
    call(&mut out)?;
    let is_same = |(ours, right): (&[u8; 4], &[u8; 4])| {
        let (ours, right) = (f32::from_le_bytes(*ours), f32::from_le_bytes(*right));
        ours.to_bits() == right.to_bits() || ours.is_nan() && right.is_nan()
    };
    let pairs = || out.as_chunks().0.iter().zip(right.as_chunks().0);
    let checked = Checked::holds("the values of codes", pairs().all(is_same))?;
    let bytes = out.len() as f64;
    let mut copy = vec![0; out.len()];
    Contest::new(
        checked,
        move || Ok(bytes / seconds(|| call(black_box(&mut out)))? / 1e9),
        move || {
            let call = || {
                black_box(&mut copy).copy_from_slice(black_box(&right));
                Ok(())
            };
            Ok(bytes / seconds(call)? / 1e9)
        },
    )
}
