//! Rows of codes with scales against the definition in f64, on every instruction set.

use half::{bf16, f16};
use tierfs::codec::InstructionSet;
use tierfs::codec::dequantize::{Alphabet, KnownProducts, Row, Spread};
use tierfs::model::{Dtype, ErrorKind};

/// The values of eight-bit floats by their definition.
fn eight_bits(code: u8, mantissa: i32, bias: i32, has_infinity: bool) -> f64 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, rest) = (i32::from(code & 0x7f) >> mantissa, i32::from(code) & ((1 << mantissa) - 1));
    let last = (1 << (7 - mantissa)) - 1;
    match (exponent, rest) {
        (exponent, 0) if has_infinity && exponent == last => sign * f64::INFINITY,
        (exponent, _) if has_infinity && exponent == last => f64::NAN,
        (15, 7) if mantissa == 3 => f64::NAN,
        (0, rest) => sign * f64::from(rest) * 2_f64.powi(1 - bias - mantissa),
        _ => sign * (1.0 + f64::from(rest) / f64::from(1 << mantissa)) * 2_f64.powi(exponent - bias),
    }
}

fn numbers(alphabet: &Alphabet, codes: &[u8]) -> Vec<f64> {
    const TABLE: [f64; 16] =
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
    let words = codes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
    match alphabet {
        Alphabet::E4m3 => codes.iter().map(|code| eight_bits(*code, 3, 7, false)).collect(),
        Alphabet::E5m2 => codes.iter().map(|code| eight_bits(*code, 2, 15, true)).collect(),
        Alphabet::I8 => codes.iter().map(|code| f64::from(*code as i8)).collect(),
        Alphabet::Byte { shift, mask } => codes.iter().map(|code| f64::from(code >> shift & mask)).collect(),
        Alphabet::Word { shift, mask } => words.map(|word| f64::from(word >> shift & mask)).collect(),
        Alphabet::Pairs(_) if *alphabet == Alphabet::e2m1() => codes
            .iter()
            .flat_map(|code| [code & 15, code >> 4])
            .map(|code| TABLE[usize::from(code)])
            .collect(),
        Alphabet::Pairs(_) if *alphabet == Alphabet::int4() => {
            codes.iter().flat_map(|code| [code & 15, code >> 4]).map(|code| f64::from(code) - 8.0).collect()
        }
        Alphabet::Pairs(_) => codes
            .iter()
            .flat_map(|code| [code >> 4, code & 15])
            .map(|code| f64::from(code as f32 * 0.1))
            .collect(),
        Alphabet::Awq => words
            .flat_map(|word| [0, 4, 1, 5, 2, 6, 3, 7].map(|nibble| f64::from(word >> (4 * nibble) & 15)))
            .collect(),
    }
}

/// A double rounded once. The crate `half` ignores the last bits of doubles, so they are made multiples of the last unit first.
fn rounded(value: f64, to: Dtype) -> Vec<u8> {
    let exponent = (value.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    let to_unit = |bits: i32, least: i32| {
        let unit = 2_f64.powi((exponent - bits).max(least));
        if value.is_finite() { (value / unit).round_ties_even() * unit } else { value }
    };
    match to {
        Dtype::F32 => (value as f32).to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f64(to_unit(10, -24)).to_le_bytes().to_vec(),
        _ => bf16::from_f64(to_unit(7, -133)).to_le_bytes().to_vec(),
    }
}

fn is_nan(bytes: &[u8], to: Dtype) -> bool {
    match to {
        Dtype::F32 => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        Dtype::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        _ => bf16::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
    }
}

#[test]
fn rows_of_every_alphabet_are_products_that_are_rounded_once() {
    let mut table = [0.0; 16];
    for (number, code) in table.iter_mut().zip(0_u8..) {
        *number = f32::from(code) * 0.1;
    }
    let alphabets = [
        Alphabet::E4m3,
        Alphabet::E5m2,
        Alphabet::I8,
        Alphabet::Byte { shift: 2, mask: 15 },
        Alphabet::Word { shift: 24, mask: 255 },
        Alphabet::e2m1(),
        Alphabet::int4(),
        Alphabet::high_first(&table),
        Alphabet::Awq,
    ];
    let mut seed = 9_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 40) as u32
    };
    let codes: Vec<u8> = (0..4096_u32).map(|i| if i < 256 { i as u8 } else { random() as u8 }).collect();
    let full: Vec<f32> = (0..4096).map(|i| f32::from_bits(0x3a00_0000 + random() + i)).collect();
    let mut short: Vec<f32> =
        full.iter().map(|scale| f32::from_bits(scale.to_bits() & 0xffff_0000)).collect();
    let clean = short.clone();
    let of_exponents =
        |first: u32, count: u32, bits: u32| f32::from_bits(bits & 0x7f_ffff | (first + bits % count) << 23);
    let tiny: Vec<f32> = (0..4096).map(|_| of_exponents(0, 40, random())).collect();
    let huge: Vec<f32> = (0..4096).map(|_| of_exponents(220, 35, random())).collect();
    let parts: Vec<f32> =
        full.iter().map(|number| f32::from((number.to_bits() % 4099) as u16) / 16_384.0 + 7.0).collect();
    short[..5].copy_from_slice(&[0.0, -0.0, f32::INFINITY, f32::NAN, 1e-40]);
    let whole: Vec<f32> = (0..4096).map(|i| f32::from((i % 19) as u8) - 4.0).collect();
    let broken: Vec<f32> = (0..4096).map(|i| f32::from((i % 23) as u8) * 0.37).collect();
    for alphabet in &alphabets {
        let (bytes, values) = alphabet.unit();
        for (skip, count) in [(0, 1), (0, 1000), (values - 1, 777)] {
            let all = numbers(alphabet, &codes[..(skip + count).div_ceil(values) * bytes]);
            for (scales, zeros, factor, divisor) in [
                (&short, None, 1.0, 1.0),
                (&full, None, 1.0, 1.0),
                (&short, Some(&whole), 1.0, 1.0),
                (&full, Some(&broken), 1.0, 1.0),
                (&short, None, 0.123_456_f32, 1.0),
                (&full, None, 1.0, 127.0),
                (&clean, None, 0.123_456, 1.0),
                (&clean, Some(&whole), 0.7, 1.0),
                (&clean, Some(&parts), 1.0, 1.0),
                (&full, Some(&parts), 1.0, 1.0),
                (&full, Some(&whole), 1.0, 1.0),
                (&tiny, None, 1.0, 1.0),
                (&tiny, Some(&whole), 1.0, 1.0),
                (&huge, None, 1.0, 1.0),
                (&huge, Some(&parts), 1.0, 1.0),
            ] {
                for groups in [None, Some((64, 64)), Some((24, 5)), Some((96, 31))] {
                    let spread = |numbers| match groups {
                        None => Spread::Each(numbers),
                        Some((len, first)) => Spread::Groups { len, first, numbers },
                    };
                    let at = |i: usize| match groups {
                        None => i,
                        Some((_, first)) if i < first => 0,
                        Some((len, first)) => 1 + (i - first) / len,
                    };
                    let row = Row {
                        alphabet,
                        codes: &codes,
                        skip,
                        scales: spread(scales),
                        zeros: zeros.map(|zeros| spread(zeros)),
                        factor,
                        divisor,
                    };
                    for to in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                        let each = to.bytes() as usize;
                        for set in InstructionSet::available() {
                            let mut out = vec![0xa5; count * each];
                            row.decode_with(set, to, &mut out).unwrap();
                            for (i, found) in out.chunks(each).enumerate() {
                                let zero = zeros.map_or(0.0, |zeros: &Vec<f32>| f64::from(zeros[at(i)]));
                                let value = (all[skip + i] - zero) * f64::from(scales[at(i)]);
                                let value = value * f64::from(factor) / f64::from(divisor);
                                let wanted = rounded(value, to);
                                let is_same = found == wanted || (is_nan(found, to) && is_nan(&wanted, to));
                                assert!(is_same, "{alphabet:?} {to} {} value {i}: {value:e}", set.name());
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn products_that_are_known_give_the_same_elements() {
    let codes: Vec<u8> = (0..3000_u32).map(|i| (i * 37 + i / 256) as u8).collect();
    let scales = [0.013, -1.7, 1e-40, 3e38, 0.0, 1e-9, -2.5, 0.37, 1.0, 7.0];
    let mut known_by = Vec::new();
    for (set, alphabet, to, (len, left)) in InstructionSet::available().flat_map(|set| {
        let alphabets = [Alphabet::E4m3, Alphabet::E5m2];
        let groups = [(128, 128), (300, 7), (1, 1), (5000, 5000), (64, 63)];
        alphabets.into_iter().flat_map(move |alphabet| {
            [Dtype::F16, Dtype::Bf16].into_iter().flat_map(move |to| {
                let alphabet = alphabet.clone();
                groups.into_iter().map(move |groups| (set, alphabet.clone(), to, groups))
            })
        })
    }) {
        for factor in [1.0, 0.37] {
            let known = KnownProducts::new(set, &alphabet, &scales, factor, to).unwrap();
            let Some(known) = known else { continue };
            known_by.push(set.name());
            let count = (left + 7 * len).min(2000);
            let scales = Spread::Groups { len, first: left, numbers: &scales[2..] };
            let row = Row {
                alphabet: &alphabet,
                codes: &codes,
                skip: 0,
                scales,
                zeros: None,
                factor,
                divisor: 1.0,
            };
            let mut wanted = vec![0; count * 2];
            row.decode_with(set, to, &mut wanted).unwrap();
            let mut found = vec![0xa5; count * 2];
            known.decode(set, &codes, 2, len, left, &mut found).unwrap();
            assert!(found == wanted, "{alphabet:?} {to} {} {len} {left} {factor}", set.name());
            // More values than codes, or than groups.
            assert!(known.decode(set, &codes[..count - 1], 2, len, left, &mut found).is_err());
            let mut more = vec![0; (left + 8 * len) * 2];
            assert!(known.decode(set, &vec![0; more.len()], 3, len, left, &mut more).is_err());
        }
    }
    let has_tables = |set: &InstructionSet| set.name().starts_with("avx512");
    assert!(InstructionSet::available().filter(has_tables).all(|set| known_by.contains(&set.name())));
    // The signs of some products of these are not those of the codes.
    for (set, scale) in InstructionSet::available().flat_map(|set| [(set, f32::NAN), (set, f32::INFINITY)]) {
        let products = KnownProducts::new(set, &Alphabet::E4m3, &[scale], 1.0, Dtype::Bf16).unwrap();
        assert!(products.is_none());
    }
}

#[test]
fn too_few_codes_or_scales_are_refused() {
    let alphabet = Alphabet::int4();
    let row = |codes, scales| Row {
        alphabet: &alphabet,
        codes,
        skip: 0,
        scales: Spread::Groups { len: 4, first: 4, numbers: scales },
        zeros: None,
        factor: 1.0,
        divisor: 1.0,
    };
    row(&[0; 4], &[1.0, 1.0]).decode(Dtype::F32, &mut [0; 32]).unwrap();
    for (codes, scales, bytes) in
        [(&[0; 3][..], &[1.0, 1.0][..], 32), (&[0; 4], &[1.0], 32), (&[0; 4], &[1.0, 1.0], 31)]
    {
        let error = row(codes, scales).decode(Dtype::F32, &mut vec![0; bytes]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    assert!(row(&[0; 4], &[1.0, 1.0]).decode(Dtype::F64, &mut [0; 32]).is_err());
}
