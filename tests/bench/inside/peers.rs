//! The codecs against those of ruvector-temporal-tensor and candle-core.

use std::hint::black_box;

use candle_core::quantized::k_quants::{
    BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4K, BlockQ5_0, BlockQ5K, BlockQ6K, BlockQ8_0, GgmlType,
};
use ruvector_temporal_tensor::{bitpack, quantizer};
use tierfs::codec::ggml;
use tierfs::model::{Dtype, Encoder, Tier};

use super::codec::{ELEMENTS, TIERS, checked_codes, codes, packing, payload, unpacking};
use super::seconds;
use crate::Result;
use crate::table::{Checked, Contest, Pass, Row, Target};
use crate::values::rounded;

const RUVECTOR: &str = "ruvector-temporal-tensor";
const GROUP: usize = 64;
const BYTES: f64 = (ELEMENTS * 4) as f64;

/// Prepares the comparison of a type of ggml.
type Prepare = fn(Dtype) -> Result<Contest>;

/// The rows.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let ahead = Target::RatioAtLeast(1.0);
    for (tier, bits) in TIERS {
        let what = format!("decode to f32, in L2: {}", tier.name());
        let name = format!("peer-decode.ruvector-{bits}");
        rows.push(Row::new(name, &*what, RUVECTOR, "GB/s", ahead, move |_| {
            decode(tier, dequantized_by_ruvector(tier, bits)?)
        }));
        // There is no type of 7 bits; the next smaller one serves.
        let (candle, prepare): (&str, fn(Tier) -> Result<Theirs>) = match bits {
            8 => ("Q8_0", dequantized_by_candle::<BlockQ8_0>),
            7 => ("Q6_K", dequantized_by_candle::<BlockQ6K>),
            5 => ("Q5_0", dequantized_by_candle::<BlockQ5_0>),
            _ => ("Q3_K", dequantized_by_candle::<BlockQ3K>),
        };
        let name = format!("peer-decode.candle-{bits}");
        let reference = format!("candle-core, {candle}");
        rows.push(Row::new(name, what, reference, "GB/s", ahead, move |_| decode(tier, prepare(tier)?)));
    }
    let types: [(Dtype, Prepare); 8] = [
        (Dtype::Q4_0, dequantize::<BlockQ4_0>),
        (Dtype::Q5_0, dequantize::<BlockQ5_0>),
        (Dtype::Q8_0, dequantize::<BlockQ8_0>),
        (Dtype::Q2_K, dequantize::<BlockQ2K>),
        (Dtype::Q3_K, dequantize::<BlockQ3K>),
        (Dtype::Q4_K, dequantize::<BlockQ4K>),
        (Dtype::Q5_K, dequantize::<BlockQ5K>),
        (Dtype::Q6_K, dequantize::<BlockQ6K>),
    ];
    for (dtype, run) in types {
        let name = format!("peer-ggml.{dtype}");
        let what = format!("dequantize {dtype} to f32, in L2");
        rows.push(Row::new(name, what, "candle-core", "GB/s", ahead, move |_| run(dtype)));
    }
    for (_, bits) in TIERS {
        let times = Target::RatioAtLeast(5.0);
        let what = format!("pack, {bits} bits, codes a second");
        rows.push(Row::new(format!("peer-pack.{bits}"), what, RUVECTOR, "GB/s", times, move |_| pack(bits)));
        let what = format!("unpack, {bits} bits, codes a second");
        rows.push(Row::new(format!("peer-unpack.{bits}"), what, RUVECTOR, "GB/s", times, move |_| {
            unpack(bits)
        }));
    }
    for (tier, bits) in TIERS {
        rows.push(Row::new(
            format!("peer-encode.{bits}"),
            format!("encode absmax, {}, f32 in", tier.name()),
            RUVECTOR,
            "GB/s",
            Target::RatioAtLeast(3.0),
            move |_| encode(tier, bits),
        ));
    }
    rows
}

fn values(raw: &[u8]) -> Vec<f32> {
    raw.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect()
}

/// A pass of another crate, and its answer.
struct Theirs {
    pass: Pass,
    answer: Vec<f32>,
}

/// Whether the other crate does the same work: its answer is about as near to the values as ours.
fn near(values: &[f32], answer: &[f32], tier: Tier) -> Result<Checked> {
    let error = |answer: &[f32]| -> f64 {
        values.iter().zip(answer).map(|(value, answer)| f64::from(value - answer).powi(2)).sum()
    };
    let mut ours = values.to_vec();
    crate::values::rounded_values(tier, &mut ours);
    // The others store scales in other ways, and have 6 bits in place of 7.
    let is_near = answer.len() == values.len() && error(answer) < 8.0 * error(&ours);
    Checked::holds("a peer's answer is near the values", is_near)
}

fn decode(tier: Tier, theirs: Theirs) -> Result<Contest> {
    let (raw, payload) = payload(tier)?;
    let mut out = vec![0; raw.len()];
    tierfs::codec::decode(tier, Dtype::F32, &payload, ELEMENTS, &mut out)?;
    let checked = Checked::bytes("what is decoded", &out, &rounded(tier, Dtype::F32, &raw))?;
    let checked = checked.and(near(&values(&raw), &theirs.answer, tier)?);
    let ours = move || {
        let call = || {
            Ok(tierfs::codec::decode(tier, Dtype::F32, black_box(&payload), ELEMENTS, black_box(&mut out))?)
        };
        Ok(BYTES / seconds(call)? / 1e9)
    };
    Contest::new(checked, ours, theirs.pass)
}

fn dequantized_by_ruvector(tier: Tier, bits: u8) -> Result<Theirs> {
    let values = values(&payload(tier)?.0);
    let scales = quantizer::scales_to_f32(&quantizer::compute_scales(&values, GROUP, bits));
    let mut data = Vec::new();
    quantizer::quantize_and_pack_f32(&values, &scales, GROUP, bits, &mut data);
    let mut out = Vec::with_capacity(ELEMENTS);
    let call = move |out: &mut Vec<f32>| {
        quantizer::dequantize_f32(black_box(&data), &scales, GROUP, bits, ELEMENTS, 1, out);
        Ok(())
    };
    call(&mut out)?;
    let answer = out.clone();
    Ok(Theirs { pass: Box::new(move || Ok(BYTES / seconds(|| call(&mut out))? / 1e9)), answer })
}

fn dequantized_by_candle<B: GgmlType + 'static>(tier: Tier) -> Result<Theirs> {
    let values = values(&payload(tier)?.0);
    let mut blocks = vec![B::zeros(); ELEMENTS / B::BLCK_SIZE];
    B::from_float(&values, &mut blocks);
    let mut out = vec![0.0; ELEMENTS];
    B::to_float(&blocks, &mut out);
    let answer = out.clone();
    let pass = move || {
        let call = || {
            B::to_float(black_box(&blocks), black_box(&mut out));
            Ok(())
        };
        Ok(BYTES / seconds(call)? / 1e9)
    };
    Ok(Theirs { pass: Box::new(pass), answer })
}

/// Dequantizes the blocks that candle makes of the values.
fn dequantize<B: GgmlType + 'static>(dtype: Dtype) -> Result<Contest> {
    let values = values(&payload(Tier::Q8)?.0);
    let mut blocks = vec![B::zeros(); ELEMENTS / B::BLCK_SIZE];
    B::from_float(&values, &mut blocks);
    // SAFETY: candle declares its blocks `repr(C)`, as ggml lays them out, and they have no padding.
    let raw =
        unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast::<u8>(), size_of_val(&*blocks)) }.to_vec();
    let mut theirs = vec![0.0_f32; ELEMENTS];
    B::to_float(&blocks, &mut theirs);
    let mut out = vec![0; ELEMENTS * 4];
    ggml::dequantize(dtype, &raw, &mut out)?;
    let wanted: Vec<u8> = theirs.iter().flat_map(|value| value.to_le_bytes()).collect();
    let checked = Checked::bytes("what is dequantized", &out, &wanted)?;
    let ours = move || {
        let call = || Ok(ggml::dequantize(dtype, black_box(&raw), black_box(&mut out))?);
        Ok(BYTES / seconds(call)? / 1e9)
    };
    Contest::new(checked, ours, move || {
        let call = || {
            B::to_float(black_box(&blocks), black_box(&mut theirs));
            Ok(())
        };
        Ok(BYTES / seconds(call)? / 1e9)
    })
}

/// Codes as ruvector has them, which begin at 0.
fn unsigned(codes: &[i8], bits: u8) -> Vec<u32> {
    let largest = (1_i32 << (bits - 1)) - 1;
    codes.iter().map(|code| (i32::from(*code) + largest) as u32).collect()
}

fn pack(bits: u8) -> Result<Contest> {
    let (codes, stream) = codes(bits);
    let checked = checked_codes(bits, &codes, &stream)?;
    let theirs = unsigned(&codes, bits);
    let mut out = Vec::with_capacity(ELEMENTS);
    bitpack::pack(&theirs, u32::from(bits), &mut out);
    let mut back = Vec::new();
    bitpack::unpack(&out, u32::from(bits), ELEMENTS, &mut back);
    let checked = checked.and(Checked::holds("codes of ruvector", back == theirs)?);
    Contest::new(checked, packing(bits, codes, stream), move || {
        let call = || {
            out.clear();
            bitpack::pack(black_box(&theirs), u32::from(bits), black_box(&mut out));
            Ok(())
        };
        Ok(ELEMENTS as f64 / seconds(call)? / 1e9)
    })
}

fn unpack(bits: u8) -> Result<Contest> {
    let (codes, stream) = codes(bits);
    let checked = checked_codes(bits, &codes, &stream)?;
    let theirs = unsigned(&codes, bits);
    let mut packed = Vec::new();
    bitpack::pack(&theirs, u32::from(bits), &mut packed);
    let mut out = Vec::with_capacity(ELEMENTS);
    bitpack::unpack(&packed, u32::from(bits), ELEMENTS, &mut out);
    let checked = checked.and(Checked::holds("codes of ruvector", out == theirs)?);
    Contest::new(checked, unpacking(bits, codes, stream), move || {
        let call = || {
            out.clear();
            bitpack::unpack(black_box(&packed), u32::from(bits), ELEMENTS, black_box(&mut out));
            Ok(())
        };
        Ok(ELEMENTS as f64 / seconds(call)? / 1e9)
    })
}

fn encode(tier: Tier, bits: u8) -> Result<Contest> {
    let (raw, ours) = payload(tier)?;
    let mut decoded = vec![0; raw.len()];
    tierfs::codec::decode(tier, Dtype::F32, &ours, ELEMENTS, &mut decoded)?;
    let checked = Checked::bytes("what is encoded", &decoded, &rounded(tier, Dtype::F32, &raw))?;
    let theirs = dequantized_by_ruvector(tier, bits)?;
    let values = values(&raw);
    let checked = checked.and(near(&values, &theirs.answer, tier)?);
    let (mut out, mut data) = (Vec::with_capacity(ours.len()), Vec::with_capacity(ours.len()));
    Contest::new(
        checked,
        move || {
            let call = || {
                out.clear();
                let encoded =
                    tierfs::codec::encode(tier, Encoder::Absmax, Dtype::F32, black_box(&raw), &mut out)?;
                encoded.map(|_| ()).map_err(|why| format!("not encodable: {why:?}").into())
            };
            Ok(BYTES / seconds(call)? / 1e9)
        },
        move || {
            let call = || {
                data.clear();
                let scales = quantizer::compute_scales(black_box(&values), GROUP, bits);
                let scales = quantizer::scales_to_f32(&scales);
                quantizer::quantize_and_pack_f32(&values, &scales, GROUP, bits, black_box(&mut data));
                Ok(())
            };
            Ok(BYTES / seconds(call)? / 1e9)
        },
    )
}
