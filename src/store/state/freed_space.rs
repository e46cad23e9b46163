//! Space that batches have given up.

use std::sync::Arc;

use crate::format::log::record::Stored;
use crate::store::object::Object;
use crate::store::object::factors::FactorLink;
use crate::store::object::links::DeltaLink;
use crate::store::state::pinned_copy::PinnedCopy;

/// Space freed by a batch.
#[derive(Debug)]
pub(in crate::store) enum Freed {
    /// A payload in a tier file.
    Payload(Stored),
    /// A block's stretch in the object's data file.
    Stretch { object: Arc<Object>, stored: Stored },
    /// Deltas in `delta.dat`.
    Links(Vec<DeltaLink>),
    /// The deltas of a rewritten block, still reachable under the old epoch.
    Deltas { object: Arc<Object>, index: u32, epoch: u64, links: Arc<[DeltaLink]> },
    /// A factorization that was replaced.
    Factor(FactorLink),
    /// The factorization of an object without absent blocks.
    EndedFactor { object: Arc<Object>, link: FactorLink },
    /// Everything of a deleted object.
    Object(Arc<Object>),
    /// The copy of a pinned file.
    Copy(Arc<PinnedCopy>),
}

impl Freed {
    /// Removes it from memory. Only valid without readers.
    pub fn forget(self) {
        match self {
            Freed::Deltas { object, index, epoch, .. } => object.forget_deltas(index, epoch),
            Freed::EndedFactor { object, link } => object.forget_factor(&link),
            _ => {}
        }
    }

    /// Whether reclaiming this may end the need for a lineage parent.
    pub(in crate::store) fn frees_parent(&self) -> bool {
        match self {
            Freed::Deltas { links, .. } => links.iter().any(|link| link.is_on_parent),
            Freed::Object(object) => object.needs_parent(),
            _ => false,
        }
    }
}
