//! The last step of an import, which needs the engine: packs or evicts the tensors of the new files.

use std::sync::Arc;

use crate::engine::evict::Evict;
use crate::engine::reconstruct::setting::{Reconstruct, set_reconstruct};
use crate::engine::results::Moved;
use crate::engine::settings::{Consent, allow_loss_until_written};
use crate::engine::work::Engine;
use crate::engine::{EvictRequest, MoveRequest};
use crate::model::{Aim, EntryId, Error, ErrorKind, MoveTo, Result, Silent};
use crate::store::Collection;

/// The last step for each imported file.
#[derive(Clone, Copy, Debug)]
pub struct Finish {
    /// Pack its tensors, which were imported in place.
    packs: bool,
    evicts: Option<Reconstruct>,
}

impl Finish {
    /// A step that packs the tensors, evicts them to be reconstructed in this way, or both. `Invalid` for an impossible
    /// way.
    pub fn new(packs: bool, reconstruct: Option<&str>) -> Result<Finish> {
        Ok(Finish { packs, evicts: reconstruct.map(Reconstruct::parse).transpose()? })
    }

    /// Finishes an imported file. Returns why some of it was left, if so.
    pub fn finish(
        self,
        engine: &Engine,
        collection: &Arc<Collection>,
        node: EntryId,
    ) -> Result<Option<String>> {
        let Some(node) = with_tensors(collection, node) else { return Ok(None) };
        let packed = if self.packs { pack_imported(engine, collection, node)? } else { None };
        let evicted = match self.evicts {
            Some(how) => evict_imported(engine, collection, node, how)?,
            None => None,
        };
        let notes: Vec<String> = packed.into_iter().chain(evicted).collect();
        Ok((!notes.is_empty()).then(|| notes.join("; ")))
    }
}

/// Sets how the tensors of an imported file are reconstructed, and evicts them. Loss of precision is
/// allowed, because the user still has the source. Returns why some of them were not evicted, if so.
fn evict_imported(
    engine: &Engine,
    collection: &Arc<Collection>,
    node: EntryId,
    how: Reconstruct,
) -> Result<Option<String>> {
    if matches!(how, Reconstruct::Factor(_)) {
        allow_loss_until_written(collection, node)?;
    }
    let mut moved = Moved::default();
    let evicted = set_reconstruct(collection, node, how).and_then(|()| {
        engine.evict(
            collection,
            node,
            EvictRequest { what: Evict::Stored, consent: Consent::AsSet, user: None },
            &Silent,
            &mut moved,
        )
    });
    match evicted {
        Ok(()) => {
            let why = (!moved.left.is_empty()).then(|| Error::refused(moved.left).to_string());
            Ok(why.map(|why| format!("not evicted: {why}")))
        }
        Err(error) if error.kind() == ErrorKind::Invalid => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}

/// The node, if it has tensors.
fn with_tensors(collection: &Collection, node: EntryId) -> Option<EntryId> {
    let state = collection.state();
    let file = state.node(node)?.file()?;
    (file.tensor.is_some() || file.content.is_container()).then_some(node)
}

/// Packs the tensors of a file that was imported in place, so that the store has all of its bytes. Returns
/// why some of them were not packed, if so.
fn pack_imported(engine: &Engine, collection: &Arc<Collection>, node: EntryId) -> Result<Option<String>> {
    let (to, mut moved) = (MoveTo { aim: Aim::Pack, all: false }, Moved::default());
    engine.set_tier(
        collection,
        node,
        MoveRequest { to, consent: Consent::AsSet, rows: None },
        &Silent,
        &mut moved,
    )?;
    let why = (!moved.left.is_empty()).then(|| Error::refused(moved.left).to_string());
    Ok(why.map(|why| format!("not packed: {why}")))
}
