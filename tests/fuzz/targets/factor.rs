//! Factor records. Computes a small product by rows, by elements, and by a loop.

use tierfs::format::payload::factor::{DIFFERENCE, Factor, FactorShape};

pub fn check(bytes: &[u8]) {
    let Ok(factor) = Factor::parse(bytes) else { return };
    assert_eq!(factor.write(), bytes);
    let shape = factor.shape();
    let FactorShape { rows, columns, rank } = shape;
    assert_eq!(shape.record_bytes(factor.block), bytes.len() as u128);
    assert!(rank <= rows.min(columns));
    let all = u64::from(rows) * u64::from(columns);
    assert!(factor.elements(all, &mut [0.0]).is_err(), "an element past the last");
    assert!(factor.elements(u64::MAX, &mut [0.0]).is_err());
    for start in [0, all / 2, all.saturating_sub(1)] {
        let mut out = [f32::NAN];
        let found = factor.elements(start, &mut out);
        assert_eq!(found.is_ok(), all > 0);
    }
    if all > 4096 {
        return;
    }
    let mut whole = vec![f32::NAN; all as usize];
    factor.rows(0..rows, &mut whole).unwrap_or_else(|error| panic!("{error}"));
    let (rank, rows, columns) = (rank as usize, rows as usize, columns as usize);
    let is_half = factor.block == DIFFERENCE;
    let width = if is_half { 2 } else { 4 };
    let singles =
        |bytes: &[u8]| bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect::<Vec<f32>>();
    let sides = |bytes: &[u8]| match is_half {
        true => bytes.as_chunks().0.iter().map(|two| half::f16::from_le_bytes(*two).to_f32()).collect(),
        false => singles(bytes),
    };
    let (left, rest) = bytes[32..].split_at(rows * rank * width);
    let (scales, right) = rest.split_at(rank * 4);
    let (left, scales, right) = (sides(left), singles(scales), sides(right));
    for (place, value) in whole.iter().enumerate() {
        let mut one = [f32::NAN];
        factor.elements(place as u64, &mut one).unwrap_or_else(|error| panic!("{error}"));
        assert!(one[0].to_bits() == value.to_bits() || one[0].is_nan() && value.is_nan());
        let terms = (0..rank).map(|r| {
            let (u, v) = (left[place / columns * rank + r], right[r * columns + place % columns]);
            f64::from(u) * f64::from(scales[r]) * f64::from(v)
        });
        let (sum, sizes) = terms.fold((0.0, 0.0), |(sum, sizes), term| (sum + term, sizes + term.abs()));
        let tolerance = sizes * (rank as f64 + 3.0) * f64::from(f32::EPSILON) + f64::from(f32::MIN_POSITIVE);
        // Results above the largest f32, or intermediate values below the smallest, have no bound.
        let is_tame =
            left.iter().chain(&scales).chain(&right).all(|v| *v == 0.0 || (1e-9..1e9).contains(&v.abs()));
        assert!(!is_tame || (f64::from(*value) - sum).abs() <= tolerance, "{value} instead of {sum}");
    }
}
