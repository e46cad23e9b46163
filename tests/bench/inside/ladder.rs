//! The ladder encoding of bf16 weights, in blocks of 128 KiB.

use std::hint::black_box;

use tierfs::codec::InstructionSet;
use tierfs::codec::ladder::{Scratch, Split, decode_on, encode_on};
use tierfs::model::Dtype;

use super::seconds;
use crate::Result;
use crate::table::{Checked, Contest, Row, Target};
use crate::values::Random;

/// Elements of a block: 128 KiB of bf16.
const ELEMENTS: usize = 64 << 10;
/// Blocks of a pass that reads from memory only: more than any cache holds.
const COLD_BLOCKS: usize = 2048;

/// The rows.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for set in InstructionSet::available().filter(|set| set.name() != "avx512-bf16") {
        let (hot, cold, least) = match set.name() {
            "avx512" => (Target::RatioAtLeast(0.6), Target::RatioAtLeast(0.65), Target::AtLeast(2.5)),
            "avx2" => (Target::RatioAtLeast(0.2), Target::Nothing, Target::AtLeast(2.0)),
            _ => (Target::Nothing, Target::Nothing, Target::Nothing),
        };
        let what = |text: &str| format!("ladder, bf16, {text}: {}", set.name());
        let name = |row: &str| format!("ladder-{row}.{}", set.name());
        rows.push(Row::new(
            name("decode"),
            what("decode in L2"),
            "memcpy of the output",
            "GB/s",
            hot,
            move |_| decode(set, 1),
        ));
        rows.push(Row::new(
            name("cold"),
            what("decode from memory"),
            "memcpy of the output from memory",
            "GB/s",
            cold,
            move |_| decode(set, COLD_BLOCKS),
        ));
        rows.push(Row::new(name("encode"), what("encode"), "", "GB/s", least, move |_| encode(set)));
    }
    rows
}

fn decode(set: InstructionSet, blocks: usize) -> Result<Contest> {
    let raw = Random::new(3).elements(Dtype::Bf16, ELEMENTS);
    let split = Split::of(Dtype::Bf16).ok_or("bf16 is not packed")?;
    let (mut payload, mut scratch) = (Vec::new(), Scratch::new());
    encode_on(set, &split, &raw, &mut payload, &mut scratch)?;
    let mut out = vec![0; raw.len()];
    decode_on(set, 2, &payload, &mut out, &mut scratch)?;
    let checked = Checked::bytes("what is decoded", &out, &raw)?;
    let bytes = out.len() as f64;
    let (step, len) = (payload.len().next_multiple_of(64), payload.len());
    payload.resize(step, 0);
    let (payloads, sources) = (payload.repeat(blocks), raw.repeat(blocks));
    let (mut copy, mut at, mut from) = (vec![0; raw.len()], 0, 0);
    Contest::new(
        checked,
        move || {
            let call = || {
                at = (at + 1) % blocks;
                let payload = &payloads[at * step..at * step + len];
                Ok(decode_on(set, 2, black_box(payload), black_box(&mut out), &mut scratch)?)
            };
            Ok(bytes / seconds(call)? / 1e9)
        },
        move || {
            let call = || {
                from = (from + 1) % blocks;
                let source = &sources[from * raw.len()..(from + 1) * raw.len()];
                black_box(&mut copy).copy_from_slice(black_box(source));
                Ok(())
            };
            Ok(bytes / seconds(call)? / 1e9)
        },
    )
}

fn encode(set: InstructionSet) -> Result<Contest> {
    let raw = Random::new(3).elements(Dtype::Bf16, ELEMENTS);
    let split = Split::of(Dtype::Bf16).ok_or("bf16 is not packed")?;
    let (mut payload, mut scratch) = (Vec::new(), Scratch::new());
    encode_on(set, &split, &raw, &mut payload, &mut scratch)?;
    let mut out = vec![0; raw.len()];
    decode_on(set, 2, &payload, &mut out, &mut scratch)?;
    let checked = Checked::bytes("what is encoded", &out, &raw)?;
    let bytes = raw.len() as f64;
    Contest::alone(checked, move || {
        let call = || {
            payload.clear();
            Ok(encode_on(set, &split, black_box(&raw), black_box(&mut payload), &mut scratch)?)
        };
        Ok(bytes / seconds(call)? / 1e9)
    })
}
