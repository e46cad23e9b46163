//! Evicts the tensors of an import.

use std::sync::Arc;

use crate::engine::settings::allow_loss_until_written;
use crate::engine::{Engine, Evict, Moved, Reconstruct, set_reconstruct};
use crate::ingest::Target;
use crate::model::{ErrorKind, Result, Silent};
use crate::store::Collection;
use crate::store::ROOT;

/// Sets how the tensors of an imported file are reconstructed, and evicts them. Loss of precision is
/// allowed, because the user still has the source. Returns why some of them were not evicted, if so.
pub fn evict_imported(
    engine: &Engine,
    collection: &Arc<Collection>,
    target: &Target,
    how: Reconstruct,
) -> Result<Option<String>> {
    let node = {
        let state = collection.state();
        let mut at = ROOT;
        for name in target.directories.iter().chain([&target.name]) {
            let Some(found) = state.directory(at).and_then(|directory| directory.get(name)) else {
                return Ok(Some("its name was escaped; evict it in a mount".to_owned()));
            };
            at = found;
        }
        let file = state.node(at).and_then(|node| node.file());
        if file.is_none_or(|file| file.tensor.is_none() && !file.content.is_container()) {
            return Ok(None);
        }
        at
    };
    if matches!(how, Reconstruct::Factor(_)) {
        allow_loss_until_written(collection, node)?;
    }
    let mut moved = Moved::default();
    let evicted = set_reconstruct(collection, node, how)
        .and_then(|()| engine.evict(collection, node, Evict::Stored, &Silent, &mut moved));
    match evicted {
        Ok(()) => {
            let first = moved.left.first().map(|(_, why)| why.clone());
            Ok(first.map(|why| format!("{} tensors keep their bytes, the first: {why}", moved.left.len())))
        }
        Err(error) if error.kind() == ErrorKind::Invalid => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}
