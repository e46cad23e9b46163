//! Evicts tensors to factors: products of matrices of low rank.
//!
//! The singular vectors of the shorter side are computed in f64, whose precision is more than twice that of
//! the f32 factors. Those of the larger side follow from one product.

use std::sync::Arc;

use nalgebra::DMatrix;

use crate::engine::evict::low_rank::Tall;
use crate::engine::moves::touch;
use crate::engine::reconstruct::setting::Rank;
use crate::engine::refuse::{refuse_needed, refused, refused_for};
use crate::engine::results::Moved;
use crate::engine::select::Target;
use crate::format::checksum;
use crate::format::log::catalog::Measured;
use crate::format::payload::difference::measured;
use crate::format::payload::element::{put_values, value};
use crate::format::payload::factor::{Factor, FactorShape, WHOLE_TENSOR};
use crate::model::{Cause, Dtype, ErrorKind, Result, Tier};
use crate::store::Collection;
use crate::store::Object;
use crate::store::Touched;
use crate::store::{OpenObject, Verify};

/// Maximal length of the shorter side of a matrix.
const SIDE_MAX: u64 = 8192;
/// Maximal number of elements of a matrix, which is in memory while it is decomposed.
const ELEMENTS_MAX: u64 = 1 << 27;

/// Stores a tensor as a product. Fails with `Invalid` where it takes more than half of the tensor's
/// bytes, and with `Denied` where loss of precision is not allowed. It then changes nothing.
pub(super) fn evict(
    collection: &Arc<Collection>,
    target: &Target,
    rank: Rank,
    moved: &mut Moved,
) -> Result<()> {
    let cannot = |why: &str| {
        let text = format!("it cannot be stored as factors: {why}");
        refused_for(collection, target, ErrorKind::Invalid, text)
    };
    if !target.allows(&collection.state(), Tier::Absent) {
        return Err(refused(collection, target, Cause::Factors));
    }
    refuse_needed(collection, target)?;
    let [object] = target.objects.as_slice() else { return Err(cannot("it has shards, or no elements")) };
    let sides = sides(target, object).map_err(|why| cannot(&why))?;
    let open = OpenObject::open(collection, object, Verify::First)?;
    let layout = object.layout();
    if object.stored_blocks(0..layout.blocks(), layout).all(|(_, block)| block.stored.tier == Tier::Absent) {
        return Ok(());
    }
    let mut bytes = vec![0; object.bytes() as usize];
    open.read(0, &mut bytes)?;
    let factor = decompose(object, sides, &bytes, rank).map_err(|why| cannot(&why))?;
    let measured = compare(&factor, target.dtype, &bytes)?;
    let seen = checksum::of(&bytes);
    let migration = open.drop_blocks(0..layout.blocks(), &|_, _| Ok(true))?;
    // Detects writes since the tensor was read; nobody writes to it now.
    open.read(0, &mut bytes)?;
    let is_allowed = target.allows(&collection.state(), Tier::Absent);
    if checksum::of(&bytes) != seen || object.is_dirty() || !is_allowed {
        let text = "a program is writing to it; close it first";
        return Err(refused_for(collection, target, ErrorKind::Busy, text));
    }
    moved.blocks += migration.blocks() as u64;
    let mut touched = Touched::default();
    let record = collection.write_factor(&factor, factor.shape().rank, &mut touched)?;
    let touched = collection.record(touched, |batch, state| {
        migration.add(batch);
        batch.record(record.clone());
        Ok(touch(batch, state, target.node, measured))
    })?;
    moved.nodes.extend(touched);
    Ok(())
}

/// The sides of a matrix, in elements.
#[derive(Clone, Copy)]
struct Sides {
    rows: u32,
    columns: u32,
}

/// The rows and columns of a tensor. The error states why it cannot be decomposed.
fn sides(target: &Target, object: &Object) -> Result<Sides, String> {
    if target.is_view {
        return Err("its elements are those of other tensors, or lie apart".to_owned());
    }
    if !target.dtype.is_quantizable() || object.dtype() != target.dtype {
        return Err(format!("elements of type {} cannot be quantized", target.dtype));
    }
    let columns = target.shape.dimensions().last().copied().unwrap_or(0);
    let elements = target.shape.elements();
    let rows = elements.checked_div(columns).unwrap_or(0);
    if elements == 0 || elements > ELEMENTS_MAX || rows.min(columns) > SIDE_MAX {
        return Err(format!(
            "a matrix of {rows}x{columns}; at most {ELEMENTS_MAX} elements and a shorter side of {SIDE_MAX}"
        ));
    }
    let side = |side: u64| u32::try_from(side).map_err(|_| "a matrix of more than 2^32 rows".to_owned());
    Ok(Sides { rows: side(rows)?, columns: side(columns)? })
}

/// The factors of a matrix with the requested rank. The error states why there are none.
fn decompose(
    object: &Object,
    Sides { rows, columns }: Sides,
    bytes: &[u8],
    rank: Rank,
) -> Result<Factor, String> {
    let dtype = object.dtype();
    let elements = bytes
        .chunks_exact(dtype.bytes() as usize)
        .map(|element| f64::from(value(dtype, element).unwrap_or(f32::NAN)));
    let matrix = DMatrix::from_row_iterator(rows as usize, columns as usize, elements);
    if !matrix.iter().all(|value| value.is_finite()) {
        return Err("elements are infinite or NaN".to_owned());
    }
    // Transposed if needed, so that the columns are the shorter side.
    let is_wide = columns > rows;
    let tall = if is_wide { matrix.transpose() } else { matrix };
    let tall = Tall::new(tall);
    let bytes_max = bytes.len() as u128 / 2;
    let shape_of = |rank: usize| FactorShape { rows, columns, rank: rank as u32 };
    let rank_max = (0..=tall.side()).rev().find(|rank| shape_of(*rank).record_bytes() <= bytes_max);
    let leading = match rank {
        Rank::Count(rank) => {
            let rank = usize::try_from(rank).unwrap_or(usize::MAX);
            if rank > tall.side() {
                return Err(format!("the rank of a {rows}x{columns} matrix cannot be {rank}"));
            }
            check_bytes(shape_of(rank), bytes_max)?;
            tall.leading(rank)
        }
        Rank::Energy(energy) => tall.with_energy(energy, rank_max.unwrap_or(0)),
    };
    let short = leading.vectors;
    let rank = short.ncols();
    let shape = shape_of(rank);
    check_bytes(shape, bytes_max)?;
    // The other side, times the singular values.
    let mut long = tall.times(&short);
    let mut scales = Vec::with_capacity(rank);
    for mut column in long.column_iter_mut() {
        let norm = column.norm();
        if norm > 0.0 {
            column /= norm;
        }
        scales.push(norm as f32);
    }
    let (left, right) = if is_wide { (short, long.transpose()) } else { (long, short.transpose()) };
    let row_major = |matrix: DMatrix<f64>| matrix.transpose().iter().map(|value| *value as f32).collect();
    let factor = Factor::new(object.entry.id, WHOLE_TENSOR, shape, row_major(left), scales, row_major(right));
    factor.map_err(|error| error.to_string())
}

fn check_bytes(shape: FactorShape, most: u128) -> Result<(), String> {
    let (rank, found) = (shape.rank, shape.record_bytes());
    if found > most {
        return Err(format!("factors of rank {rank} take {found} bytes; at most {most} are allowed"));
    }
    Ok(())
}

/// The error of the product against the current bytes.
fn compare(factor: &Factor, dtype: Dtype, bytes: &[u8]) -> Result<Measured> {
    let shape = factor.shape();
    let row_bytes = shape.columns as usize * dtype.bytes() as usize;
    let (mut values, mut row) = (vec![0.0; shape.columns as usize], vec![0; row_bytes]);
    let mut sum = Measured::default();
    for (place, wanted) in (0..shape.rows).zip(bytes.chunks_exact(row_bytes)) {
        factor.rows(place..place + 1, &mut values)?;
        put_values(dtype, &values, &mut row);
        sum.add(measured(dtype, &row, wanted));
    }
    Ok(sum)
}
