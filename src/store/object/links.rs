//! The places of the records of deltas in `delta.dat`.

use crate::format::log::record::{Record, Stored};
use crate::format::payload::delta::{DeltaKind, HEAD_BYTES, ON_PRODUCT};
use crate::model::{Dtype, ObjectId};

/// Maximum number of links in a chain.
pub const LINKS_MAX: usize = 8;
/// Number of `delta.dat` among the payload files.
pub(in crate::store) const DELTA_FILE: u8 = 4;

/// A delta on a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeltaLink {
    /// Byte offset of its record in `delta.dat`.
    pub offset: u64,
    /// Bytes of the record.
    pub len: u32,
    /// CRC32C of the record.
    pub checksum: u32,
    /// How the delta changes elements.
    pub kind: DeltaKind,
    /// Epoch of the block that the delta applies to: the block itself or, if that is absent, the
    /// lineage parent's block.
    pub base_epoch: u64,
    /// Whether the delta applies to the lineage parent's block.
    pub is_on_parent: bool,
    /// The CRC32C of the factorization whose product is added to the parent's block first.
    pub product: Option<u32>,
}

impl DeltaLink {
    /// The kind byte of its record in the log.
    pub(in crate::store) fn kind_byte(&self) -> u8 {
        self.kind.byte() | if self.product.is_some() { ON_PRODUCT } else { 0 }
    }

    /// Number of elements that the delta lists.
    pub(in crate::store) fn changes(&self, dtype: Dtype) -> u32 {
        let value_bytes = match self.kind {
            DeltaKind::Scaled => 2,
            DeltaKind::Patch => dtype.bytes() as u32,
            DeltaKind::Exact => return 0,
        };
        self.len.saturating_sub(HEAD_BYTES as u32) / (2 + value_bytes)
    }
}

/// The link of a Delta record; `None` for other records and unknown kinds.
pub(in crate::store) fn link_of(record: &Record) -> Option<(ObjectId, u32, u64, u16, DeltaLink)> {
    let Record::Delta { object, block, base_epoch, offset, len, chain_len, checksum, kind, product, .. } =
        *record
    else {
        return None;
    };
    let product = (kind & ON_PRODUCT != 0).then_some(product);
    let kind = DeltaKind::from_byte(kind & !ON_PRODUCT)?;
    Some((
        object,
        block,
        base_epoch,
        chain_len,
        DeltaLink { offset, len, checksum, kind, base_epoch, is_on_parent: false, product },
    ))
}

/// The place of a payload, or of the record of a delta or of a factorization, in a payload file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::store) struct PayloadPlace {
    /// Number of the file.
    pub file: u8,
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// The place of a delta.
pub(in crate::store) fn place_of(link: &DeltaLink) -> PayloadPlace {
    PayloadPlace { file: DELTA_FILE, offset: link.offset, len: u64::from(link.len) }
}

/// The place of a payload in a tier file.
pub(in crate::store) fn place_of_stored(stored: &Stored) -> PayloadPlace {
    PayloadPlace { file: stored.tier.byte(), offset: stored.offset, len: u64::from(stored.len) }
}
