//! The setting `reconstruct`, which names the way to reconstruct absent blocks of a tensor.

use std::sync::Arc;

use crate::engine::reconstruct::{WAYS, Way};
use crate::engine::refuse::{Refused, refused_for};
use crate::engine::select::{Target, targets};
use crate::format::log::catalog::{Entry, NodeEntry};
use crate::model::{EntryId, Error, ErrorKind, Result, Tier};
use crate::store::Collection;
use crate::store::Object;
use crate::store::State;
use crate::store::{OpenObject, Verify};
use crate::store::{Touched, now_nanoseconds};

/// The name of the setting.
const RECONSTRUCT: &str = "reconstruct";

/// How absent blocks of a tensor are reconstructed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reconstruct {
    None,
    /// As differences to the lineage parent.
    Delta,
    /// As a product of matrices.
    Factor(Rank),
    /// From the external file that it was imported from.
    Origin,
    /// From the remote that the collection is a clone of. The blocks are evicted without being absent.
    Remote,
}

/// The rank of the matrices in a product.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rank {
    Count(u32),
    /// The smallest rank whose squared singular values reach this share of those of the matrix.
    Energy(f64),
}

const ENERGY: Rank = Rank::Energy(0.99);

impl Reconstruct {
    /// Parses a value of the attribute `reconstruct`.
    pub fn parse(text: &str) -> Result<Reconstruct> {
        let wrong = || {
            Error::invalid(format!(
                "invalid value {text:?} of reconstruct; expected none, delta, origin, remote, factor, factor:rank=K and \
                 factor:energy=E, K at least 1, E over 0 and at most 1"
            ))
        };
        let (name, detail) = text.split_once(':').map_or((text, None), |(name, detail)| (name, Some(detail)));
        match (name, detail.map(|detail| detail.split_once('='))) {
            ("none", None) => Ok(Reconstruct::None),
            ("delta", None) => Ok(Reconstruct::Delta),
            ("origin", None) => Ok(Reconstruct::Origin),
            ("remote", None) => Ok(Reconstruct::Remote),
            ("factor", None) => Ok(Reconstruct::Factor(ENERGY)),
            ("factor", Some(Some(("rank", rank)))) => {
                let rank = rank.parse().ok().filter(|rank| *rank > 0);
                Ok(Reconstruct::Factor(Rank::Count(rank.ok_or_else(wrong)?)))
            }
            ("factor", Some(Some(("energy", energy)))) => {
                let energy = energy.parse().ok().filter(|energy| *energy > 0.0 && *energy <= 1.0);
                Ok(Reconstruct::Factor(Rank::Energy(energy.ok_or_else(wrong)?)))
            }
            _ => Err(wrong()),
        }
    }

    /// Its name, without a rank.
    pub fn name(self) -> &'static str {
        match self {
            Reconstruct::None => "none",
            Reconstruct::Delta => "delta",
            Reconstruct::Factor(_) => "factor",
            Reconstruct::Origin => "origin",
            Reconstruct::Remote => "remote",
        }
    }

    /// The value as it is stored.
    fn value(self) -> String {
        match self {
            Reconstruct::Factor(Rank::Count(rank)) => format!("factor:rank={rank}"),
            Reconstruct::Factor(Rank::Energy(energy)) => format!("factor:energy={energy}"),
            other => other.name().to_owned(),
        }
    }

    /// The value for a node, possibly inherited.
    pub fn of(state: &State, node: EntryId) -> Reconstruct {
        let set = state.inherited(node, RECONSTRUCT);
        set.and_then(|name| Reconstruct::parse(name).ok()).unwrap_or(Reconstruct::None)
    }

    /// The way that reconstructs the blocks.
    pub(in crate::engine) fn way(self) -> Option<&'static Way> {
        WAYS.iter().find(|way| way.name == self.name())
    }
}

/// Sets how absent blocks of a tensor are reconstructed, or those of all tensors of a container or
/// below a directory. Fails with `Invalid` where the way is available for no block of a tensor, and
/// with `Busy` for `none` where absent blocks need the current way.
pub fn set_reconstruct(collection: &Arc<Collection>, node: EntryId, to: Reconstruct) -> Result<()> {
    let mut refused = Refused::default();
    let mut refuse = |target: &Target, kind, text: String| {
        refused.take(Err::<(), _>(refused_for(collection, target, kind, text))).map(|_| ())
    };
    for target in targets(collection, node)? {
        match to.way() {
            None if target.objects.iter().any(|object| is_absent(object)) => {
                let text = "it is absent, and its source reconstructs it; move it to a tier first";
                refuse(&target, ErrorKind::Busy, text.to_owned())?;
            }
            None => {}
            // Whether these are possible is known only at the eviction.
            Some(_) if matches!(to, Reconstruct::Delta | Reconstruct::Factor(_)) => {}
            Some(way) => {
                let is_there = target.objects.iter().any(|object| {
                    let layout = object.layout();
                    let open = OpenObject::open(collection, object, Verify::First);
                    let has = |(index, block)| Some((way.is_there)(open.as_ref().ok()?, index, &block));
                    object.stored_blocks(0..layout.blocks(), layout).any(|block| has(block) == Some(true))
                });
                if !is_there && target.bytes() > 0 {
                    let text = match to {
                        Reconstruct::Remote => "it lies in no clone of a remote".to_owned(),
                        _ => format!("it has no {}: it was not imported in place", to.name()),
                    };
                    refuse(&target, ErrorKind::Invalid, text)?;
                }
            }
        }
    }
    refused.check()?;
    collection.record(Touched::default(), |batch, state| {
        let found = state.node(node).ok_or_else(|| Error::new(ErrorKind::Gone, "the file is gone"))?;
        let (key, value) = (RECONSTRUCT.to_owned(), Some(to.value()));
        batch.entry(Entry::Setting { node, key, value });
        let entry = NodeEntry { ctime: now_nanoseconds(), ..found.entry.clone() };
        batch.node(entry);
        Ok(())
    })
}

/// Whether an object has absent blocks that can be reconstructed from their origin.
fn is_absent(object: &Object) -> bool {
    let layout = object.logged_layout();
    let blocks = object.blocks.read();
    object.has_absent()
        && blocks.pieces(layout).any(|(piece, block)| {
            block.stored.tier == Tier::Absent && object.origin_place(piece.start).is_some()
        })
}
