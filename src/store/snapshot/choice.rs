//! The tensors that a variant stores otherwise, and their payloads.

use std::sync::Arc;

use crate::codec;
use crate::format::checksum;
use crate::format::log::catalog::Measured;
use crate::format::log::record::Stored;
use crate::model::{Aim, Encoder, EntryId, Error, Result, Tier};
use crate::store::collection::Collection;
use crate::store::collection::open_object::OpenObject;
use crate::store::object::blocks::{Block, IndexedBlock};

/// Chooses and reads what a variant stores otherwise. The engine implements it.
pub trait Recode: Send + Sync {
    /// The name of the variant.
    fn name(&self) -> String;
    /// The tier of the tensors that it stores otherwise.
    fn tier(&self) -> Tier;
    /// How scales of a tensor are chosen. `None` for a tensor that stays as it is.
    fn takes(&self, collection: &Arc<Collection>, tensor: EntryId) -> Option<Encoder>;
    /// Reads the source of a block of a taken tensor into `out`. `false` for a block that stays as readers
    /// see it; `out` has these bytes.
    fn source(&self, open: &OpenObject, index: u32, block: &Block, out: &mut [u8]) -> Result<bool>;
    /// Reads a block as readers see it into `out`.
    fn seen(&self, open: &OpenObject, index: u32, block: &Block, out: &mut [u8]) -> Result<()>;
}

/// The tensors that a variant stores otherwise.
#[derive(Clone)]
pub struct Choice {
    pub(super) recode: Arc<dyn Recode>,
    /// The encoder of each object that is taken, in the order of the canonical objects.
    pub(super) encoders: Vec<Option<Encoder>>,
    /// The taken tensors, each with the places of its objects.
    pub(super) tensors: Vec<(EntryId, Vec<usize>)>,
    pub(super) recipe: [u8; 32],
}

impl Choice {
    /// The name of the variant.
    pub fn name(&self) -> String {
        self.recode.name()
    }

    /// A digest of everything that determines the variant beside the collection's own files: the program, the
    /// tier, and the tensors that it takes.
    pub fn recipe(&self) -> [u8; 32] {
        self.recipe
    }
}

impl Choice {
    /// Replaces `out` by the payload of a block, if the variant stores the block otherwise: in the tier, or
    /// exactly.
    pub(super) fn payload(
        &self,
        open: &OpenObject,
        IndexedBlock { index, block }: IndexedBlock<'_>,
        encoder: Option<Encoder>,
        out: &mut Vec<u8>,
    ) -> Result<Option<(Stored, Measured)>> {
        let (object, tier) = (open.object(), self.recode.tier());
        let links = object.deltas(index, block.epoch);
        // A file outside the store becomes a data file, which has its absent blocks.
        let has_origin = block.stored.is_absent() && object.origin_place(index).is_some();
        let is_on_parent =
            !has_origin && links.iter().flat_map(|links| links.iter()).any(|link| link.is_on_parent);
        let encoder = encoder.filter(|_| open.is_due(index, block, Aim::Tier(tier)));
        if encoder.is_none() && !is_on_parent {
            return Ok(None);
        }
        let mut elements = vec![0; object.layout().len(index)];
        let mut stays = true;
        if let Some(encoder) = encoder {
            if self.recode.source(open, index, block, &mut elements)? {
                out.clear();
                if let Ok(encoded) = codec::encode(tier, encoder, object.dtype(), &elements, out)? {
                    let measured = Measured {
                        maximum: encoded.error_max,
                        squares: encoded.error_square_sum,
                        elements: elements.len() as u64 / object.dtype().bytes(),
                    };
                    let stored = Stored { scale: encoded.scale, ..Stored::in_slot(tier, 0) };
                    return Ok(Some((described(stored, out), measured)));
                }
                // It cannot be encoded. An exact block stays where it is.
                stays = links.is_none() && (block.stored.tier.is_exact() || has_origin);
            }
        } else {
            self.recode.seen(open, index, block, &mut elements)?;
        }
        if stays && !is_on_parent {
            return Ok(None);
        }
        *out = elements;
        Ok(Some((described(Stored::in_slot(Tier::Exact, 0), out), Measured::default())))
    }

    /// Replaces `out` by the payload of a block that the variant stores otherwise. `Corrupt` if it differs from
    /// the one that the variant's log has.
    pub(super) fn payload_again(
        &self,
        open: &OpenObject,
        place: u32,
        index: u32,
        checksum: u32,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let changed =
            || Error::corrupt("the encoded bytes of a block changed while it was pushed; push again");
        let encoder = self.encoders.get(place as usize).copied().flatten();
        let block = open.object().block(index, open.object().logged_layout()).ok_or_else(changed)?;
        let (stored, _) =
            self.payload(open, IndexedBlock { index, block: &block }, encoder, out)?.ok_or_else(changed)?;
        if stored.checksum == checksum { Ok(()) } else { Err(changed()) }
    }
}

fn described(stored: Stored, payload: &[u8]) -> Stored {
    // A payload is at most a block long.
    Stored { checksum: checksum::of(payload), len: payload.len() as u32, ..stored }
}
