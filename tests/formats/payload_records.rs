//! Delta and factor records.

use proptest::prelude::*;
use tierfs::format::checksum;
use tierfs::format::payload::delta::{Changes, Delta, DeltaKind};
use tierfs::format::payload::factor::{DIFFERENCE, Factor, FactorShape, WHOLE_TENSOR};
use tierfs::model::{Dtype, ErrorKind, ObjectId};

use crate::{cases, damaged, file, floats};

const OBJECT: ObjectId = ObjectId(0x3069_c9a8_ad7d_70e3_7e3c_3aed_c056_a6dd);

fn scaled(scale: f32, pairs: &[(u16, i16)]) -> Delta {
    Delta {
        object: OBJECT,
        block: 3,
        base_epoch: 42,
        result: 0,
        changes: Changes::Scaled { scale, pairs: pairs.to_vec() },
    }
}

#[test]
fn golden_deltas_are_read_applied_and_written() {
    for (name, kind) in [("delta", DeltaKind::Scaled), ("patch", DeltaKind::Patch)] {
        for case in cases(name) {
            let dtype = Dtype::from_name(case["dtype"].as_str().unwrap()).unwrap();
            let record = file(&case, "record");
            let delta = Delta::parse(&record, kind, dtype, 4096).unwrap();
            assert_eq!((delta.object, delta.block), (OBJECT, 3));
            assert_eq!((delta.base_epoch, delta.changes.kind()), (42, kind));
            if kind == DeltaKind::Scaled {
                let wanted = scaled(0.001, &[(0, -32767), (17, 1), (4095, 32767)]);
                assert_eq!(delta, Delta { result: delta.result, ..wanted });
            }
            let mut block = file(&case, "input");
            delta.apply(dtype, &mut block).unwrap();
            assert!(block == file(&case, "output"), "{case}");
            assert_eq!(delta.result, checksum::of(&block));
            assert_eq!(delta.write(dtype).unwrap(), record);
        }
    }
}

#[test]
fn a_delta_is_rounded_after_the_multiplication_and_after_the_addition() {
    // With one rounding less, as in a fused multiply-add, the sum is not 0.
    let (value, scale) = (3_i16, 0.1_f32);
    let product = f32::from(value) * scale;
    let mut block = (-product).to_le_bytes();
    scaled(scale, &[(0, value)]).apply(Dtype::F32, &mut block).unwrap();
    assert_eq!(f32::from_le_bytes(block), 0.0);
    assert_ne!(f32::from(value).mul_add(scale, -product), 0.0);
}

#[test]
fn a_delta_that_does_not_fit_its_block_is_refused_and_changes_nothing() {
    let mut block = vec![0; 16];
    for wrong in [
        scaled(1.0, &[(0, 1), (4, 1)]),
        scaled(1.0, &[(1, 1), (1, 1)]),
        scaled(1.0, &[(2, 1), (1, 1)]),
        scaled(f32::NAN, &[(0, 1)]),
        scaled(f32::INFINITY, &[]),
    ] {
        let error = wrong.apply(Dtype::F32, &mut block).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{wrong:?}");
    }
    let whole_numbers = scaled(1.0, &[(0, 1)]).apply(Dtype::I32, &mut block);
    assert_eq!(whole_numbers.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(block, [0; 16]);
}

#[test]
fn a_delta_record_of_the_wrong_length_scale_or_order_is_corrupt() {
    let parse = |bytes: &[u8], kind| Delta::parse(bytes, kind, Dtype::F32, 4096);
    let record = scaled(0.5, &[(1, 2), (3, 4)]).write(Dtype::F32).unwrap();
    assert!(parse(&record, DeltaKind::Scaled).is_ok());
    assert!(parse(&[&record[..], &[0]].concat(), DeltaKind::Scaled).is_err());
    let patch_with_scale = [&record[..38], &[0; 12]].concat();
    assert!(parse(&patch_with_scale, DeltaKind::Patch).is_err());
    let mut unordered = record.clone();
    unordered[38] = 3;
    assert!(parse(&unordered, DeltaKind::Scaled).is_err());
    assert!(Delta::parse(&record, DeltaKind::Scaled, Dtype::F32, 3).is_err());
    assert!(Delta::parse(&record, DeltaKind::Scaled, Dtype::U8, 4096).is_err());
}

#[test]
fn a_delta_holds_the_largest_number_of_changes_and_refuses_one_more() {
    let pairs: Vec<(u16, i16)> = (0..=u16::MAX).map(|index| (index, 1)).collect();
    assert!(scaled(1.0, &pairs[1..]).write(Dtype::F32).is_ok());
    let error = scaled(1.0, &pairs).write(Dtype::F32).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn the_golden_factors_are_read_multiplied_and_written() {
    for case in cases("factor_record") {
        let record = file(&case, "record");
        let factor = Factor::parse(&record).unwrap();
        let FactorShape { rows, columns, rank } = factor.shape();
        assert_eq!((rows, columns, rank), (6, 5, 2));
        assert_eq!(factor.block, WHOLE_TENSOR);
        assert_eq!(factor.write(), record);

        let expected = floats(&file(&case, "output"));
        let mut whole = vec![f32::NAN; 30];
        factor.rows(0..6, &mut whole).unwrap();
        for (line, expected) in whole.chunks(5).zip(expected.chunks(5)) {
            let sum: f32 = expected.iter().map(|value| value.abs()).sum();
            let tolerance = rank as f32 * 2_f32.powi(-22) * sum;
            for (value, expected) in line.iter().zip(expected) {
                assert!((value - expected).abs() <= tolerance);
            }
        }
        for (start, count) in [(0, 1), (3, 4), (4, 1), (7, 20), (29, 1), (30, 0)] {
            let mut part = vec![f32::NAN; count];
            factor.elements(start as u64, &mut part).unwrap();
            assert_eq!(part, whole[start..start + count]);
        }
        assert!(factor.elements(29, &mut [0.0; 2]).is_err());
        assert!(factor.elements(u64::MAX, &mut [0.0; 2]).is_err());
        assert!(factor.rows(5..7, &mut [0.0; 10]).is_err());
        assert!(factor.rows(0..1, &mut [0.0; 4]).is_err());
    }
}

#[test]
fn the_golden_factors_of_a_difference_are_added_to_the_parent() {
    let record = crate::golden("parent_factor.rec");
    let factor = Factor::parse(&record).unwrap();
    let shape = FactorShape { rows: 48, columns: 40, rank: 2 };
    assert_eq!((factor.block, factor.shape()), (DIFFERENCE, shape));
    assert_eq!(factor.object, ObjectId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10));
    assert_eq!(factor.write(), record);
    assert_eq!(shape.record_bytes(DIFFERENCE), record.len() as u128);
    let (parent, sums) = (crate::golden("parent_factor.parent"), crate::golden("parent_factor.sums"));
    let mut found = parent.clone();
    factor.add_to(Dtype::Bf16, 0, &mut found).unwrap();
    assert!(found == sums);
    for (start, count) in [(0, 1), (39, 2), (41, 700), (1919, 1), (1920, 0)] {
        let range = 2 * start..2 * (start + count);
        let mut part = parent[range.clone()].to_vec();
        factor.add_to(Dtype::Bf16, start as u64, &mut part).unwrap();
        assert!(part == sums[range]);
    }
    assert!(factor.add_to(Dtype::Bf16, 1, &mut parent.clone()).is_err());
    for bytes in damaged(&record, record.len()) {
        assert!(bytes.len() == record.len() || Factor::parse(&bytes).is_err());
    }
    // Sides are rounded when they are made, so that they are multiplied as they are stored.
    let shape = FactorShape { rows: 1, columns: 1, rank: 1 };
    let made = Factor::new(OBJECT, DIFFERENCE, shape, vec![0.1], vec![1.0], vec![1.0]).unwrap();
    assert_eq!(Factor::parse(&made.write()).unwrap(), made);
}

fn factor_head(rows: u32, columns: u32, rank: u32) -> Vec<u8> {
    let mut head = vec![0; 20];
    for size in [rows, columns, rank] {
        head.extend(size.to_le_bytes());
    }
    head
}

#[test]
fn factors_larger_than_their_record_are_refused_before_anything_is_allocated() {
    for (rows, columns, rank) in [
        (u32::MAX, u32::MAX, u32::MAX),
        (u32::MAX, u32::MAX, 1),
        (1 << 31, 1 << 31, 1 << 31),
        (2, 2, 3),
        (0, 0, 1),
    ] {
        let error = Factor::parse(&factor_head(rows, columns, rank)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    let zeros = Factor::parse(&factor_head(3, 3, 0)).unwrap();
    let mut out = [1.0; 9];
    zeros.rows(0..3, &mut out).unwrap();
    assert_eq!(out, [0.0; 9]);
}

#[test]
fn factors_that_are_not_finite_are_refused() {
    let shape = FactorShape { rows: 1, columns: 1, rank: 1 };
    let make = |scale| Factor::new(OBJECT, 0, shape, vec![1.0], vec![scale], vec![1.0]);
    assert!(make(2.0).is_ok());
    assert!(make(f32::INFINITY).is_err());
    let mut record = make(2.0).unwrap().write();
    record[36..40].copy_from_slice(&f32::NAN.to_le_bytes());
    assert_eq!(Factor::parse(&record).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(Factor::new(OBJECT, 0, shape, vec![1.0; 2], vec![1.0], vec![1.0]).is_err());
}

#[test]
fn damaged_records_are_refused_or_read_and_truncation_is_always_detected() {
    let delta = crate::golden("delta_bf16.rec");
    let factor = crate::golden("factor.rec");
    for bytes in damaged(&delta, delta.len()) {
        let kind = DeltaKind::Scaled;
        let outcome = Delta::parse(&bytes, kind, Dtype::Bf16, 4096);
        assert!(bytes.len() == delta.len() || outcome.is_err());
        let patch = Delta::parse(&bytes, DeltaKind::Patch, Dtype::F64, 4096);
        assert!(patch.is_err());
    }
    for bytes in damaged(&factor, factor.len()) {
        let outcome = Factor::parse(&bytes);
        assert!(bytes.len() == factor.len() || outcome.is_err());
    }
}

proptest! {
    #[test]
    fn records_read_from_random_bytes_are_written_back_unchanged(
        bytes in prop::collection::vec(0..4_u8, 30..90),
        patch in any::<bool>(),
    ) {
        let kind = if patch { DeltaKind::Patch } else { DeltaKind::Scaled };
        for dtype in [Dtype::F32, Dtype::F16, Dtype::F4] {
            if let Ok(delta) = Delta::parse(&bytes, kind, dtype, 65536) {
                prop_assert_eq!(delta.write(dtype).unwrap(), &bytes[..]);
            }
        }
        if let Ok(factor) = Factor::parse(&bytes) {
            prop_assert_eq!(factor.write(), bytes);
        }
    }
}
