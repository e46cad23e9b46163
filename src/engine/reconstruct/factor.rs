//! Reads absent blocks of tensors that are stored as products of matrices of low rank, and the factors of differences from
//! lineage parents, which `delta.rs` adds to the parent's blocks.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::payload::factor::{Factor, WHOLE_TENSOR};
use crate::model::{Error, ObjectId, Result, Tier};
use crate::store::{Block, FactorLink, OpenObject};

/// Size in bytes of the cache of factors. The factors of the last tensor are always cached.
const CACHE_BYTES_MAX: u64 = 256 << 20;

/// The verified factors of an object.
struct Cached {
    object: ObjectId,
    /// The factorization, whose place may differ in a clone with the same object.
    link: FactorLink,
    factor: Arc<Factor>,
}

/// Verified factors, the most recently used last.
static CACHE: Mutex<Vec<Cached>> = Mutex::new(Vec::new());

/// The precision of a reconstructed block: it counts as 8 bits.
pub(super) fn precision(open: &OpenObject, _index: u32, block: &Block) -> Option<Tier> {
    link_of(open, block).map(|_| Tier::Q8)
}

/// The product that a block is a part of, without its parent's block.
fn link_of(open: &OpenObject, block: &Block) -> Option<FactorLink> {
    open.object().factor_of(block).filter(|link| !link.is_difference)
}

/// Whether an absent block is part of a product.
pub(super) fn is_there(open: &OpenObject, index: u32, block: &Block) -> bool {
    precision(open, index, block).is_some()
}

/// Reconstructs a block of a product into `out`, which has the size of the block. It computes only
/// the elements of the block. Returns `false` for other blocks. Fails with `Corrupt` where the
/// factors do not match the log.
pub(super) fn read(open: &OpenObject, index: u32, block: &Block, out: &mut [u8]) -> Result<bool> {
    let Some(link) = link_of(open, block) else { return Ok(false) };
    out.fill(0);
    let factor = factors(open, link)?;
    add(open, &factor, index, out)?;
    Ok(true)
}

/// The present factorization of an object, which is the difference from the parent. `None` if it has another checksum.
pub(super) fn difference(open: &OpenObject, checksum: u32) -> Option<FactorLink> {
    open.object().factor().filter(|link| link.is_difference && link.checksum == checksum)
}

/// Adds the product's elements of a block to those in `out`.
pub(super) fn add(open: &OpenObject, factor: &Factor, index: u32, out: &mut [u8]) -> Result<()> {
    let (id, dtype) = (open.object().entry.id, open.object().dtype());
    if !dtype.is_quantizable() {
        return Err(Error::corrupt(format!("object {id}: factors of {dtype} elements")));
    }
    let start = open.object().layout().start(index) / dtype.bytes();
    factor.add_to(dtype, start, out).map_err(|error| {
        Error::corrupt(format!("object {id}: its factors describe a smaller matrix: {error}"))
    })
}

/// The factors of a factorization, verified.
pub(super) fn factors(open: &OpenObject, link: FactorLink) -> Result<Arc<Factor>> {
    let id = open.object().entry.id;
    let known = {
        let mut cache = CACHE.lock();
        let place = cache.iter().position(|cached| (cached.object, cached.link) == (id, link));
        place.map(|place| {
            let last = cache.remove(place);
            let factor = last.factor.clone();
            cache.push(last);
            factor
        })
    };
    if let Some(factor) = known {
        return Ok(factor);
    }
    let factor = Arc::new(open.read_factor(&link)?);
    keep(Cached { object: id, link, factor: factor.clone() });
    Ok(factor)
}

fn keep(new: Cached) {
    let mut cache = CACHE.lock();
    cache.retain(|cached| cached.object != new.object);
    cache.push(new);
    let bytes =
        |factor: &Factor| u64::try_from(factor.shape().record_bytes(WHOLE_TENSOR)).unwrap_or(u64::MAX);
    let mut sum: u64 = cache.iter().map(|cached| bytes(&cached.factor)).sum();
    while sum > CACHE_BYTES_MAX && cache.len() > 1 {
        sum -= bytes(&cache.remove(0).factor);
    }
}
