//! Reads absent blocks of tensors that are stored as products of matrices of low rank.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::payload::element::put_values;
use crate::format::payload::factor::Factor;
use crate::model::{Error, ObjectId, Result, Tier};
use crate::store::{Block, OpenObject};

/// Size in bytes of the cache of factors. The factors of the last tensor are always cached.
const CACHE_BYTES_MAX: u64 = 256 << 20;

/// The verified factors of an object.
struct Cached {
    object: ObjectId,
    /// The epoch of the factorization.
    epoch: u64,
    factor: Arc<Factor>,
}

/// Verified factors, the most recently used last.
static CACHE: Mutex<Vec<Cached>> = Mutex::new(Vec::new());

/// The precision of a reconstructed block: it counts as 8 bits.
pub(super) fn precision(open: &OpenObject, _index: u32, block: &Block) -> Option<Tier> {
    open.object().factor_of(block).map(|_| Tier::Q8)
}

/// Whether an absent block is part of a product.
pub(super) fn is_there(open: &OpenObject, index: u32, block: &Block) -> bool {
    precision(open, index, block).is_some()
}

/// Reconstructs a block of a product into `out`, which has the size of the block. It computes only
/// the elements of the block. Returns `false` for other blocks. Fails with `Corrupt` where the
/// factors do not match the log.
pub(super) fn read(open: &OpenObject, index: u32, block: &Block, out: &mut [u8]) -> Result<bool> {
    let Some(link) = open.object().factor_of(block) else { return Ok(false) };
    let id = open.object().entry.id;
    let known = {
        let mut cache = CACHE.lock();
        let place = cache.iter().position(|cached| (cached.object, cached.epoch) == (id, link.epoch));
        place.map(|place| {
            let last = cache.remove(place);
            let factor = last.factor.clone();
            cache.push(last);
            factor
        })
    };
    let factor = match known {
        Some(factor) => factor,
        None => {
            let factor = Arc::new(open.read_factor(&link)?);
            keep(Cached { object: id, epoch: link.epoch, factor: factor.clone() });
            factor
        }
    };
    let dtype = open.object().dtype();
    if !dtype.is_quantizable() {
        return Err(Error::corrupt(format!("object {id}: factors of {dtype} elements")));
    }
    let width = dtype.bytes();
    let mut values = vec![0.0; out.len() / width as usize];
    let start = open.object().layout().start(index) / width;
    factor.elements(start, &mut values).map_err(|error| {
        Error::corrupt(format!("object {id}: its factors describe a smaller matrix: {error}"))
    })?;
    put_values(dtype, &values, out);
    Ok(true)
}

fn keep(new: Cached) {
    let mut cache = CACHE.lock();
    cache.retain(|cached| cached.object != new.object);
    cache.push(new);
    let bytes = |factor: &Factor| u64::try_from(factor.shape().record_bytes()).unwrap_or(u64::MAX);
    let mut sum: u64 = cache.iter().map(|cached| bytes(&cached.factor)).sum();
    while sum > CACHE_BYTES_MAX && cache.len() > 1 {
        sum -= bytes(&cache.remove(0).factor);
    }
}
