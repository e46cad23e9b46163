//! The codecs by themselves, in the second-level cache.

use std::hint::black_box;

use tierfs::codec::{InstructionSet, pack, payload_len, stream_len, unpack};
use tierfs::format::checksum;
use tierfs::model::{Dtype, Encoder, Tier};

use super::seconds;
use crate::Result;
use crate::table::{Checked, Contest, Row, Target};
use crate::values::{Random, rounded};

/// Elements of a pass: 128 KiB of f32.
pub const ELEMENTS: usize = 32 << 10;
/// The tiers, with the bits of their codes.
pub const TIERS: [(Tier, u8); 4] = [(Tier::Q8, 8), (Tier::Q7, 7), (Tier::Q5, 5), (Tier::Q3, 3)];

/// The rows.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for set in InstructionSet::available() {
        let target = match set.name() {
            "avx512-bf16" | "avx512" => Target::RatioAtLeast(0.5),
            "scalar" => Target::AtLeast(1.5),
            _ => Target::RatioAtLeast(0.3),
        };
        // For f32 both sets of AVX-512 make the same bytes; bf16 has no target.
        let types = [(Dtype::F32, target), (Dtype::Bf16, Target::Nothing)];
        let types =
            types.into_iter().filter(|(dtype, _)| *dtype == Dtype::Bf16 || set.name() != "avx512-bf16");
        for ((dtype, target), (tier, _)) in types.flat_map(|of| TIERS.map(|tier| (of, tier))) {
            let name = match dtype {
                Dtype::Bf16 => format!("codec-decode-bf16.{}-{}", set.name(), tier.name()),
                _ => format!("codec-decode.{}-{}", set.name(), tier.name()),
            };
            let what = format!("decode to {dtype}, in L2: {}, {}", tier.name(), set.name());
            rows.push(Row::new(name, what, "memcpy of the output", "GB/s", target, move |_| {
                decode(set, tier, dtype)
            }));
        }
    }
    for (_, bits) in TIERS {
        let rates: [(&str, Rate); 2] = [("pack", packing), ("unpack", unpacking)];
        for (verb, rate) in rates {
            let name = format!("codec-{verb}.{bits}");
            let what = format!("{verb}, {bits} bits, codes a second");
            rows.push(Row::new(name, what, "", "GB/s", Target::AtLeast(4.0), move |_| coded(bits, rate)));
        }
    }
    for elements in [512, 4096] {
        rows.push(Row::new(
            format!("codec-max.{elements}"),
            format!("max_abs of {elements} elements"),
            "scalar",
            "GB/s",
            Target::RatioAtLeast(3.0),
            move |_| max_abs(elements),
        ));
    }
    for (encoder, least) in [(Encoder::Absmax, 2.0), (Encoder::Best, 0.25)] {
        for (tier, _) in TIERS {
            let name = format!("codec-{}.{}", encoder.name(), tier.name());
            let what = format!("encode {}, {}, f32 in", encoder.name(), tier.name());
            rows.push(Row::new(name, what, "", "GB/s", Target::AtLeast(least), move |_| {
                encode(tier, encoder)
            }));
        }
    }
    rows.push(Row::new("codec-crc.16k", "CRC32C of 16 KiB", "", "us", Target::AtMost(1.5), |_| crc()));
    rows
}

/// Elements of f32, and their values in a tier by `absmax`.
pub fn payload(tier: Tier) -> Result<(Vec<u8>, Vec<u8>)> {
    payload_of(tier, Dtype::F32)
}

fn payload_of(tier: Tier, dtype: Dtype) -> Result<(Vec<u8>, Vec<u8>)> {
    let raw = Random::new(3).elements(dtype, ELEMENTS);
    let mut payload = Vec::new();
    tierfs::codec::encode(tier, Encoder::Absmax, dtype, &raw, &mut payload)?
        .map_err(|why| format!("not encodable: {why:?}"))?;
    Ok((raw, payload))
}

fn decode(set: InstructionSet, tier: Tier, dtype: Dtype) -> Result<Contest> {
    let (raw, payload) = payload_of(tier, dtype)?;
    let mut out = vec![0; raw.len()];
    set.decode_groups(tier, dtype, &payload, &mut out)?;
    let right = rounded(tier, dtype, &raw);
    let checked = Checked::bytes("what is decoded", &out, &right)?;
    let bytes = out.len() as f64;
    let mut copy = vec![0; out.len()];
    Contest::new(
        checked,
        move || {
            let call = || Ok(set.decode_groups(tier, dtype, black_box(&payload), black_box(&mut out))?);
            Ok(bytes / seconds(call)? / 1e9)
        },
        move || {
            let call = || {
                black_box(&mut copy).copy_from_slice(black_box(&right));
                Ok(())
            };
            Ok(bytes / seconds(call)? / 1e9)
        },
    )
}

/// Random codes of this many bits, and their stream, made bit by bit.
pub fn codes(bits: u8) -> (Vec<i8>, Vec<u8>) {
    let largest = (1_i16 << (bits - 1)) - 1;
    let mut random = Random::new(5);
    let codes: Vec<i8> =
        (0..ELEMENTS).map(|_| ((random.next() % (2 * largest as u64 + 1)) as i16 - largest) as i8).collect();
    let mut stream = vec![0_u8; (ELEMENTS * usize::from(bits)).div_ceil(8)];
    for (place, code) in codes.iter().enumerate() {
        let stored = if bits == 8 { *code as u8 } else { (i16::from(*code) + largest) as u8 };
        for bit in 0..usize::from(bits) {
            let at = place * usize::from(bits) + bit;
            stream[at / 8] |= (stored >> bit & 1) << (at % 8);
        }
    }
    (codes, stream)
}

type Rate = fn(u8, Vec<i8>, Vec<u8>) -> Box<dyn FnMut() -> Result<f64>>;

/// Codes packed in a second, in thousands of millions.
pub fn packing(bits: u8, codes: Vec<i8>, mut stream: Vec<u8>) -> Box<dyn FnMut() -> Result<f64>> {
    Box::new(move || {
        let call = || Ok(pack(bits, black_box(&codes), black_box(&mut stream))?);
        Ok(ELEMENTS as f64 / seconds(call)? / 1e9)
    })
}

/// Codes unpacked in a second, in thousands of millions.
pub fn unpacking(bits: u8, mut codes: Vec<i8>, stream: Vec<u8>) -> Box<dyn FnMut() -> Result<f64>> {
    Box::new(move || {
        let call = || Ok(unpack(bits, black_box(&stream), black_box(&mut codes))?);
        Ok(ELEMENTS as f64 / seconds(call)? / 1e9)
    })
}

/// Whether packing agrees with a loop over bits, and unpacking returns the codes.
pub fn checked_codes(bits: u8, codes: &[i8], stream: &[u8]) -> Result<Checked> {
    let mut packed = vec![0; stream_len(bits, codes.len())?];
    pack(bits, codes, &mut packed)?;
    let mut back = vec![0; codes.len()];
    unpack(bits, stream, &mut back)?;
    Ok(Checked::bytes("packed codes", &packed, stream)?.and(Checked::holds("unpacked codes", back == codes)?))
}

fn coded(bits: u8, rate: Rate) -> Result<Contest> {
    let (codes, stream) = codes(bits);
    let checked = checked_codes(bits, &codes, &stream)?;
    Contest::alone(checked, rate(bits, codes, stream))
}

fn max_abs(elements: usize) -> Result<Contest> {
    let mut random = Random::new(9);
    let values: Vec<f32> = (0..elements).map(|_| random.weight()).collect();
    let most = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let scalar = InstructionSet::available().find(|set| set.name() == "scalar").ok_or("no scalar set")?;
    let is_right = tierfs::codec::max_abs(&values) == most && scalar.max_abs(&values) == most;
    let checked = Checked::holds("the largest magnitude", is_right)?;
    let bytes = (elements * 4) as f64;
    let rate = move |set: InstructionSet, values: &[f32]| {
        let call = || {
            black_box(set.max_abs(black_box(values)));
            Ok(())
        };
        Ok(bytes / seconds(call)? / 1e9)
    };
    let also = values.clone();
    Contest::new(checked, move || rate(InstructionSet::detected(), &values), move || rate(scalar, &also))
}

fn encode(tier: Tier, encoder: Encoder) -> Result<Contest> {
    let (raw, by_absmax) = payload(tier)?;
    let mut out = Vec::with_capacity(payload_len(tier, ELEMENTS).ok_or("a tier without codes")?);
    let encoded = tierfs::codec::encode(tier, encoder, Dtype::F32, &raw, &mut out)?;
    encoded.map_err(|why| format!("not encodable: {why:?}"))?;
    let decoded = |payload: &[u8]| -> Result<Vec<u8>> {
        let mut decoded = vec![0; raw.len()];
        tierfs::codec::decode(tier, Dtype::F32, payload, ELEMENTS, &mut decoded)?;
        Ok(decoded)
    };
    let error = |decoded: &[u8]| -> f64 {
        let value = |raw: &[u8; 4]| f64::from(f32::from_le_bytes(*raw));
        let pairs = decoded.as_chunks().0.iter().zip(raw.as_chunks().0);
        pairs.map(|(decoded, raw)| (value(decoded) - value(raw)).powi(2)).sum()
    };
    let right = rounded(tier, Dtype::F32, &raw);
    let checked = Checked::bytes("what is encoded by absmax", &decoded(&by_absmax)?, &right)?;
    let is_no_worse = error(&decoded(&out)?) <= error(&right);
    let checked = checked.and(Checked::holds("no larger error than that of absmax", is_no_worse)?);
    Contest::alone(checked, move || {
        let call = || {
            out.clear();
            let encoded = tierfs::codec::encode(tier, encoder, Dtype::F32, black_box(&raw), &mut out)?;
            encoded.map(|_| ()).map_err(|why| format!("not encodable: {why:?}").into())
        };
        Ok((ELEMENTS * 4) as f64 / seconds(call)? / 1e9)
    })
}

fn crc() -> Result<Contest> {
    // The check value of CRC-32/ISCSI.
    let checked = Checked::holds("the CRC32C of \"123456789\"", checksum::of(b"123456789") == 0xe306_9283)?;
    let mut bytes = vec![0; 16 << 10];
    Random::new(1).fill(&mut bytes);
    Contest::alone(checked, move || {
        let call = || {
            black_box(checksum::of(black_box(&bytes)));
            Ok(())
        };
        Ok(seconds(call)? * 1e6)
    })
}
