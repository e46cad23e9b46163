//! Evicts tensors to factors: products of matrices of low rank.
//!
//! The singular vectors of the shorter side are computed in f64, whose precision is more than twice that of
//! the f32 factors. Those of the larger side follow from one product.

use std::sync::Arc;

use nalgebra::DMatrix;

use crate::engine::evict::low_rank::Tall;
use crate::engine::evict::parent_factor;
use crate::engine::moves::touch;
use crate::engine::reconstruct::setting::Rank;
use crate::engine::refuse::{path_of, refuse_needed, refused, refused_for};
use crate::engine::results::Moved;
use crate::engine::select::Target;
use crate::engine::work::Engine;
use crate::format::checksum;
use crate::format::log::catalog::Measured;
use crate::format::payload::difference::measured;
use crate::format::payload::element::{put_values, value};
use crate::format::payload::factor::{DIFFERENCE, Factor, FactorShape, WHOLE_TENSOR};
use crate::model::{Cause, Dtype, ErrorKind, Result, Tier};
use crate::store::Collection;
use crate::store::Object;
use crate::store::Touched;
use crate::store::{OpenObject, Verify};

/// Maximal length of the shorter side of a matrix.
const SIDE_MAX: u64 = 8192;
/// Maximal number of elements of a matrix, which is in memory while it is decomposed.
const ELEMENTS_MAX: u64 = 1 << 27;

/// Stores a tensor as a product, or, where that is smaller, its difference from the lineage parent. Fails with `Invalid` where
/// it takes more than half of the tensor's bytes, and with `Denied` where loss of precision is not allowed and the tensor
/// has no parent. It then changes nothing.
pub(super) fn evict(
    engine: &Engine,
    collection: &Arc<Collection>,
    target: &Target,
    rank: Rank,
    moved: &mut Moved,
) -> Result<()> {
    let cannot = |why: &str| {
        let text = format!("it cannot be stored as factors: {why}");
        refused_for(collection, target, ErrorKind::Invalid, text)
    };
    let is_lossy = target.allows(&collection.state(), Tier::Absent);
    let has_parent = target.objects.iter().any(|object| object.entry.parent.is_some());
    if !is_lossy && !has_parent {
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
    if has_parent {
        match parent_factor::evict(engine, target, &open, Wanted { sides, rank }, moved)? {
            Ok(()) => return Ok(()),
            Err(why) if !is_lossy || object.has_products() => return Err(cannot(&why)),
            Err(why) => log::debug!("{}: no factors of the difference: {why}", path_of(collection, target)),
        }
    }
    let mut bytes = vec![0; object.bytes() as usize];
    open.read(0, &mut bytes)?;
    let matrix = matrix(sides, values(target.dtype, &bytes));
    let factor = decompose(object, WHOLE_TENSOR, matrix, rank).map_err(|why| cannot(&why))?;
    let measured = compare(&factor, target.dtype, &bytes)?;
    let migration = open.drop_blocks(0..layout.blocks(), &|_, _| Ok(true))?;
    check_unchanged(&open, target, &mut bytes)?;
    if !target.allows(&collection.state(), Tier::Absent) {
        return Err(refused(collection, target, Cause::Factors));
    }
    moved.blocks += migration.blocks() as u64;
    let mut touched = Touched::default();
    let (record, _) = collection.write_factor(&factor, &mut touched)?;
    let touched = collection.record(touched, |batch, state| {
        migration.add(batch);
        batch.record(record.clone());
        Ok(touch(batch, state, target.node, measured))
    })?;
    moved.nodes.extend(touched);
    Ok(())
}

/// Checks that nobody has written to a tensor since it was read into `bytes`. The caller keeps further writes away.
pub(super) fn check_unchanged(open: &OpenObject, target: &Target, bytes: &mut [u8]) -> Result<()> {
    let seen = checksum::of(bytes);
    open.read(0, bytes)?;
    if checksum::of(bytes) == seen && !open.object().is_dirty() {
        return Ok(());
    }
    let text = "a program is writing to it; close it first";
    Err(refused_for(open.collection(), target, ErrorKind::Busy, text))
}

/// The factors that are asked for.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub sides: Sides,
    pub rank: Rank,
}

/// The sides of a matrix, in elements.
#[derive(Clone, Copy)]
pub(super) struct Sides {
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

/// The elements as numbers.
pub(super) fn values(dtype: Dtype, bytes: &[u8]) -> impl Iterator<Item = f64> {
    let elements = bytes.chunks_exact(dtype.bytes() as usize);
    elements.map(move |element| f64::from(value(dtype, element).unwrap_or(f32::NAN)))
}

/// A matrix of elements in the order of rows.
pub(super) fn matrix(Sides { rows, columns }: Sides, elements: impl Iterator<Item = f64>) -> DMatrix<f64> {
    DMatrix::from_row_iterator(rows as usize, columns as usize, elements)
}

/// Computes the factors of an object's matrix with the requested rank, for a record with this block index. The inner
/// `Err` says why the matrix cannot be stored by them.
pub(super) fn decompose(
    object: &Object,
    block: u32,
    matrix: DMatrix<f64>,
    rank: Rank,
) -> Result<Factor, String> {
    if !matrix.iter().all(|value| value.is_finite()) {
        return Err("elements are infinite or NaN".to_owned());
    }
    let (rows, columns) = (matrix.nrows() as u32, matrix.ncols() as u32);
    // Transposed if needed, so that the columns are the shorter side.
    let is_wide = columns > rows;
    let tall = if is_wide { matrix.transpose() } else { matrix };
    let tall = Tall::new(tall);
    let bytes_max = u128::from(object.bytes()) / 2;
    let shape_of = |rank: usize| FactorShape { rows, columns, rank: rank as u32 };
    let fits = |shape: FactorShape| check_bytes(shape.record_bytes(block), shape.rank, bytes_max);
    let rank_max = (0..=tall.side()).rev().find(|rank| fits(shape_of(*rank)).is_ok());
    let leading = match rank {
        // Nothing to store.
        _ if tall.total == 0.0 => tall.leading(0),
        Rank::Count(rank) => {
            let rank = usize::try_from(rank).unwrap_or(usize::MAX);
            if rank > tall.side() {
                return Err(format!("the rank of a {rows}x{columns} matrix cannot be {rank}"));
            }
            fits(shape_of(rank))?;
            tall.leading(rank)
        }
        Rank::Energy(energy) => tall.with_energy(energy, rank_max.unwrap_or(0)),
    };
    let mut short = leading.vectors;
    let rank = short.ncols();
    let shape = shape_of(rank);
    fits(shape)?;
    // The other side, times the singular values.
    let mut long = tall.times(&short);
    let mut scales = Vec::with_capacity(rank);
    for (mut long, mut short) in long.column_iter_mut().zip(short.column_iter_mut()) {
        // A largest element of 1 leaves f16 all of its digits.
        let (of_long, of_short) = match block {
            DIFFERENCE => (long.amax(), short.amax()),
            _ => (long.norm(), 1.0),
        };
        if of_long > 0.0 && of_short > 0.0 {
            long /= of_long;
            short /= of_short;
        }
        scales.push((of_long * of_short) as f32);
    }
    let (left, right) = if is_wide { (short, long.transpose()) } else { (long, short.transpose()) };
    let row_major = |matrix: DMatrix<f64>| matrix.transpose().iter().map(|value| *value as f32).collect();
    let factor = Factor::new(object.entry.id, block, shape, row_major(left), scales, row_major(right));
    factor.map_err(|error| error.to_string())
}

fn check_bytes(found: u128, rank: u32, most: u128) -> Result<(), String> {
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
