//! The quantized types of ggml against the values of the Python package `gguf` (`tests/golden/ggml.py`).

use tierfs::codec::InstructionSet;
use tierfs::codec::ggml::{TYPES, dequantize, dequantize_on, quantize_on};
use tierfs::model::{Dtype, ErrorKind};

/// The blocks and the values of each type.
fn vectors() -> Vec<(Dtype, &'static [u8], &'static [u8])> {
    let mut rest: &[u8] = include_bytes!("../golden/ggml.bin");
    let mut take = |len: usize| {
        let (first, after) = rest.split_at(len);
        rest = after;
        first
    };
    TYPES
        .into_iter()
        .map(|quantized| {
            let len = usize::from(take(1)[0]);
            assert_eq!(take(len), quantized.name().to_uppercase().as_bytes());
            let count = u32::from_le_bytes(take(4).try_into().unwrap()) as usize;
            let (elements, bytes) = quantized.block();
            (quantized, take(count * bytes as usize), take(count * elements as usize * 4))
        })
        .collect()
}

#[test]
fn every_type_decodes_to_the_values_of_the_gguf_package_on_every_set() {
    for (quantized, blocks, wanted) in vectors() {
        for set in InstructionSet::available() {
            let mut out = vec![0xa5; wanted.len()];
            dequantize_on(set, quantized, blocks, &mut out).unwrap();
            for (i, (value, wanted)) in out.as_chunks().0.iter().zip(wanted.as_chunks().0).enumerate() {
                let (value, wanted) = (f32::from_le_bytes(*value), f32::from_le_bytes(*wanted));
                let is_same = value.to_bits() == wanted.to_bits() || (value.is_nan() && wanted.is_nan());
                assert!(is_same, "{} value {i} on {}: {value} {wanted}", quantized.name(), set.name());
            }
        }
    }
}

#[test]
fn a_part_of_a_block_and_other_room_are_refused() {
    for (quantized, blocks, wanted) in vectors() {
        let mut out = vec![0; wanted.len()];
        for (blocks, room) in [(&blocks[1..], wanted.len()), (blocks, wanted.len() - 4), (&blocks[..0], 4)] {
            let error = dequantize(quantized, blocks, &mut out[..room]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
        dequantize(quantized, &[], &mut []).unwrap();
    }
    let error = dequantize(Dtype::Q8_K, &[0; 292], &mut [0; 1024]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn blocks_with_nan_infinities_and_tiny_values_are_those_of_the_gguf_package_on_every_set() {
    // `tests/golden/quantize.py`.
    let golden: &[u8] = include_bytes!("../golden/quantize.bin");
    let (count, rest) = golden.split_at(4);
    let count = u32::from_le_bytes(count.try_into().unwrap()) as usize;
    let (values, rest) = rest.split_at(count * 128);
    let (eight, four) = rest.split_at(count * 34);
    for (quantized, wanted) in [(Dtype::Q8_0, eight), (Dtype::Q4_0, four)] {
        let each = quantized.block().1 as usize;
        for set in InstructionSet::available() {
            let mut out = vec![0xa5; wanted.len()];
            quantize_on(set, quantized, values, &mut out).unwrap();
            let pairs = out.chunks(each).zip(wanted.chunks(each)).zip(values.chunks(128));
            for (i, ((block, wanted), values)) in pairs.enumerate() {
                assert!(
                    block == wanted,
                    "{quantized} block {i} on {}: {block:x?} {wanted:x?} {values:x?}",
                    set.name()
                );
            }
        }
    }
}
