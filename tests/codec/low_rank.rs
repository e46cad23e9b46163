//! Products of narrow matrices that are added to elements, against a loop over single elements, on every instruction set.

use half::{bf16, f16};
use tierfs::codec::low_rank::{Panels, Product};
use tierfs::model::{Dtype, ErrorKind};

use crate::oracle::Random;
use crate::sets;

/// Edges of f32 and of the narrow types.
const EDGES: [f32; 12] = [
    0.0,
    -0.0,
    1e-40,
    -6e-8,
    65504.0,
    -65520.0,
    3.0e38,
    -3.4e38,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    1.0,
];

fn bytes_of(dtype: Dtype, value: f32) -> Vec<u8> {
    match dtype {
        Dtype::F32 if value.is_nan() => 0x7fc0_0000_u32.to_le_bytes().to_vec(),
        Dtype::F32 => value.to_le_bytes().to_vec(),
        Dtype::F16 if value.is_nan() => 0x7e00_u16.to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        _ if value.is_nan() => 0x7fc0_u16.to_le_bytes().to_vec(),
        _ => bf16::from_f32(value).to_le_bytes().to_vec(),
    }
}

fn value_of(dtype: Dtype, bytes: &[u8]) -> f32 {
    match dtype {
        Dtype::F32 => f32::from_le_bytes(bytes.try_into().unwrap()),
        Dtype::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        _ => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
    }
}

/// The definition, one element after the other.
fn naive(element: f32, left: &[f32], column: impl Iterator<Item = f32>, scale: f32) -> f32 {
    let mut sum = 0.0_f32;
    for (left, right) in left.iter().zip(column) {
        sum = left.mul_add(right, sum);
    }
    sum.mul_add(scale, element)
}

#[test]
fn a_product_is_added_as_the_loop_adds_it_on_every_instruction_set() {
    let mut random = Random::new(12);
    let shapes = [
        // Rows, columns, rank, the first column.
        (1, 1, 1, 0),
        (4, 16, 16, 0),
        (5, 48, 16, 0),
        (3, 40, 3, 0),
        (9, 37, 5, 11),
        (2, 5, 1, 14),
        (2, 5, 2, 17),
        (6, 700, 64, 3),
        (1, 31, 300, 1),
        (8, 17, 1030, 0),
    ];
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let each = dtype.bytes() as usize;
        for (rows, columns, rank, first_column) in shapes {
            let width = first_column + columns + rank % 3;
            let mut numbers = |count: usize, has_edges: bool| -> Vec<f32> {
                let number = |_| match random.next() {
                    bits if has_edges && bits % 29 == 0 => EDGES[(bits >> 32) as usize % EDGES.len()],
                    bits => (bits >> 40) as f32 / (1 << 23) as f32 - 1.0,
                };
                (0..count).map(number).collect()
            };
            let left = numbers(rows * rank, rank < 8);
            let right = numbers(rank * width, rank < 8);
            let elements = numbers(rows * columns, true);
            let scale = 32.0 / rank as f32;
            let mut panels = Panels::zeros(rank, width);
            for (k, row) in right.chunks(width).enumerate() {
                panels.set_row(k, 0, row.iter().copied());
            }
            let stored: Vec<u8> = elements.iter().flat_map(|value| bytes_of(dtype, *value)).collect();
            let of_column = |column: usize| {
                let right = &right;
                (0..rank).map(move |k| right[k * width + column])
            };
            let wanted: Vec<u8> = (0..rows * columns)
                .flat_map(|i| {
                    let (row, column) = (i / columns, i % columns);
                    let left = &left[row * rank..][..rank];
                    let element = value_of(dtype, &stored[i * each..][..each]);
                    bytes_of(dtype, naive(element, left, of_column(first_column + column), scale))
                })
                .collect();
            for set in sets() {
                let mut found = stored.clone();
                let mut lines: Vec<&mut [u8]> = found.chunks_mut(columns * each).collect();
                let product = Product { left: &left, right: &panels, first_column, scale };
                product.add_with(set, dtype, &mut lines).unwrap();
                let case = format!("{} {dtype} {rows}x{columns} rank {rank}", set.name());
                for (i, (found, wanted)) in found.chunks(each).zip(wanted.chunks(each)).enumerate() {
                    assert_eq!(found, wanted, "{case}: element {i}");
                }
            }
        }
    }
}

#[test]
fn rows_and_columns_without_numbers_are_refused() {
    let panels = Panels::zeros(2, 10);
    let (mut ten, mut three) = ([0; 40], [0; 12]);
    let add = |left: &[f32], first_column, rows: &mut [&mut [u8]]| {
        let product = Product { left, right: &panels, first_column, scale: 1.0 };
        product.add_to(Dtype::F32, rows).map_err(|error| error.kind())
    };
    assert_eq!(add(&[1.0; 2], 0, &mut [&mut ten]), Ok(()));
    assert_eq!(add(&[], 0, &mut []), Ok(()));
    for (left, first_column) in [(1, 0), (3, 0), (2, 1)] {
        assert_eq!(add(&vec![1.0; left], first_column, &mut [&mut ten]), Err(ErrorKind::Invalid));
    }
    assert_eq!(add(&[1.0; 4], 0, &mut [&mut ten, &mut three]), Err(ErrorKind::Invalid));
    let product = Product { left: &[1.0; 2], right: &panels, first_column: 0, scale: 1.0 };
    let kind = product.add_to(Dtype::I8, &mut [&mut [0; 10]]).unwrap_err().kind();
    assert_eq!(kind, ErrorKind::Invalid);
}
