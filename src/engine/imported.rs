//! What an import asks the engine for once its files are there: packing, and eviction.

use std::sync::Arc;

use crate::engine::evict::Evict;
use crate::engine::reconstruct::setting::{Reconstruct, set_reconstruct};
use crate::engine::results::Moved;
use crate::engine::settings::{Consent, allow_loss_until_written};
use crate::engine::work::Engine;
use crate::ingest;
use crate::model::{Aim, EntryId, Error, ErrorKind, MoveTo, Result, Silent};
use crate::store::{Collection, ROOT};

/// What is done with each imported file.
#[derive(Clone, Copy, Debug)]
pub struct Finish {
    /// Pack its tensors, which were imported in place.
    packs: bool,
    /// Evict its tensors.
    evicts: Option<Reconstruct>,
}

impl Finish {
    /// Parses what a request says. Fails with `Invalid` for an impossible way to reconstruct tensors.
    pub fn of(request: &ingest::Request) -> Result<Finish> {
        let evicts = request.reconstruct.as_deref().map(Reconstruct::parse).transpose()?;
        Ok(Finish { packs: request.pack && request.in_place, evicts })
    }

    /// Finishes an imported file. Returns why some of it was left, if so.
    pub fn finish(
        self,
        engine: &Engine,
        collection: &Arc<Collection>,
        target: &ingest::Target,
    ) -> Result<Option<String>> {
        let packed = if self.packs { pack_imported(engine, collection, target)? } else { None };
        let evicted = match self.evicts {
            Some(how) => evict_imported(engine, collection, target, how)?,
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
    target: &ingest::Target,
    how: Reconstruct,
) -> Result<Option<String>> {
    let node = match imported_tensors(collection, target) {
        Ok(Some(node)) => node,
        Ok(None) => return Ok(None),
        Err(why) => return Ok(Some(format!("{why}; evict it in a mount"))),
    };
    if matches!(how, Reconstruct::Factor(_)) {
        allow_loss_until_written(collection, node)?;
    }
    let mut moved = Moved::default();
    let evicted = set_reconstruct(collection, node, how)
        .and_then(|()| engine.evict(collection, node, (Evict::Stored, Consent::AsSet), &Silent, &mut moved));
    match evicted {
        Ok(()) => {
            let why = (!moved.left.is_empty()).then(|| Error::refused(moved.left).to_string());
            Ok(why.map(|why| format!("not evicted: {why}")))
        }
        Err(error) if error.kind() == ErrorKind::Invalid => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}

/// The node of an imported file with tensors, if it has any. Fails with the reason why it is not found.
fn imported_tensors(
    collection: &Collection,
    target: &ingest::Target,
) -> std::result::Result<Option<EntryId>, &'static str> {
    let state = collection.state();
    let mut at = ROOT;
    for name in target.directories.iter().chain([&target.name]) {
        at = state.directory(at).and_then(|directory| directory.get(name)).ok_or("its name was escaped")?;
    }
    let file = state.node(at).and_then(|node| node.file());
    Ok(file.filter(|file| file.tensor.is_some() || file.content.is_container()).map(|_| at))
}

/// Packs the tensors of a file that was imported in place, so that the store has all of its bytes. Returns
/// why some of them were not packed, if so.
fn pack_imported(
    engine: &Engine,
    collection: &Arc<Collection>,
    target: &ingest::Target,
) -> Result<Option<String>> {
    let node = match imported_tensors(collection, target) {
        Ok(Some(node)) => node,
        Ok(None) => return Ok(None),
        Err(why) => return Ok(Some(format!("{why}; pack it in a mount"))),
    };
    let (to, mut moved) = (MoveTo { aim: Aim::Pack, all: false }, Moved::default());
    engine.set_tier(collection, node, (to, Consent::AsSet), &Silent, &mut moved)?;
    let why = (!moved.left.is_empty()).then(|| Error::refused(moved.left).to_string());
    Ok(why.map(|why| format!("not packed: {why}")))
}
