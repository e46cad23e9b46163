//! The options of an import, the attributes of its source, and its result.

use crate::format::log::catalog::OutsidePlace;
use crate::ingest::bytes::parents::Parents;
use crate::ingest::recognize::block_size::Blocking;
use crate::ingest::recognize::parts::WholeTensor;
use crate::model::{Encoder, Error, Kept, MoveTo, Owner, Result, hex};

/// Options of an import.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The tier of float tensors; exact if `None`.
    pub tier: Option<MoveTo>,
    /// Whether exact tensors are packed, independent of the setting `pack`.
    pub pack: bool,
    /// How scales are chosen.
    pub encoder: Encoder,
    /// How tensors are split into blocks.
    pub blocking: Blocking,
    /// Where the lineage parents of the tensors are.
    pub parents: Option<Parents>,
    /// For an import in place, where the source lies: its absolute path with symbolic links resolved, or its place at a URL.
    /// Nothing is copied, and the source must not change from then on.
    pub in_place: Option<OutsidePlace>,
    /// Whether to store bytes that a data file of the store has already.
    pub no_share: bool,
    /// Whether to refuse files that can only be plain files.
    pub strict: bool,
    /// The identity of the source, by which a later import recognizes it.
    pub places: Vec<String>,
    /// The tensor that a file is whose name and bytes say nothing of tensors.
    pub whole: Option<WholeTensor>,
}

/// Attributes of a source file.
#[derive(Clone, Debug)]
pub struct Origin {
    pub mode: u32,
    /// User and group of the new file.
    pub owner: Owner,
    /// Access time, in nanoseconds since 1970.
    pub atime: i64,
    /// Modification time, in nanoseconds since 1970.
    pub mtime: i64,
    /// The SHA-256 that the file must have, if known.
    pub sha256: Option<[u8; 32]>,
}

impl Origin {
    /// Fails with `Invalid` where the expected SHA-256 differs from `found`.
    pub(in crate::ingest) fn check(&self, found: Option<[u8; 32]>) -> Result<()> {
        let Some(expected) = self.sha256.filter(|expected| Some(*expected) != found) else { return Ok(()) };
        let found = found.map(|found| hex(&found)).unwrap_or_default();
        let expected = hex(&expected);
        Err(Error::invalid(format!(
            "its SHA-256 is {found}, the manifest says {expected}; download or copy it again, or, if it is right, \
             write the manifest anew: sha256sum FILES > MANIFEST"
        )))
    }
}

/// The result of the import of one file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Tensors that got names.
    pub tensors: u64,
    /// Tensors that have a lineage parent.
    pub children: u64,
    /// Tensors that went to the requested tier.
    pub encoded: u64,
    /// Tensors that did not, by reason.
    pub kept: Kept,
    /// Bytes of the source.
    pub bytes: u64,
    /// Bytes of the payloads.
    pub stored: u64,
    /// Bytes that the file shares with a data file that the store had before.
    pub shared: u64,
    /// Bytes that an import in place copied nevertheless.
    pub copied: u64,
    /// A remark about the file, or empty.
    pub note: String,
}
