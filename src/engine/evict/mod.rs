//! Evicts tensors: drops their stored bytes.

mod delta;
mod factor;

use std::sync::Arc;

use crate::engine::moves::{refuse_pinned, touch};
use crate::engine::reconstruct::setting::{Reconstruct, set_reconstruct};
use crate::engine::reconstruct::{Gives, Way};
use crate::engine::results::Moved;
use crate::engine::select::{Target, targets};
use crate::engine::settings::{allow_loss_until_written, is_lossy_allowed};
use crate::engine::work::Engine;
use crate::format::log::catalog::Measured;
use crate::ingest;
use crate::model::{EntryId, Error, ErrorKind, Progress, Result, Silent, Tier};
use crate::store::Collection;
use crate::store::{OpenObject, ROOT};

/// The bytes to evict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evict {
    /// Cached decoded bytes.
    Cache,
    /// Stored bytes that can be reconstructed.
    Stored,
    /// Stored bytes, permanently.
    Discard,
}

impl Evict {
    /// Parses a value of the attribute `evict`.
    pub fn from_name(name: &str) -> Option<Evict> {
        match name {
            "cache" => Some(Evict::Cache),
            "1" => Some(Evict::Stored),
            "discard" => Some(Evict::Discard),
            _ => None,
        }
    }
}

impl Engine {
    /// Evicts a tensor, or all tensors of a container or below a directory. Durable when it returns.
    /// `moved` receives the changes, also on an error; with `Cache` it receives only the nodes that
    /// the kernel must invalidate. Fails with `Invalid` for `Stored` where a tensor cannot be
    /// reconstructed, and with `Denied` for `Discard` where `lossy` does not allow it. It then
    /// changes nothing.
    pub fn evict(
        &self,
        collection: &Arc<Collection>,
        node: EntryId,
        what: Evict,
        progress: &dyn Progress,
        moved: &mut Moved,
    ) -> Result<()> {
        let _alone = self.at_work.lock();
        if what == Evict::Cache {
            moved.nodes.insert(node);
            // Plain files have cached pages too.
            moved
                .nodes
                .extend(targets(collection, node).unwrap_or_default().iter().map(|target| target.node));
            return Ok(());
        }
        collection.check_writable()?;
        let is_one = {
            let state = collection.state();
            state.node(node).and_then(|node| node.file()).is_some_and(|file| file.tensor.is_some())
        };
        let targets = targets(collection, node)?;
        for target in &targets {
            check(collection, target, what)?;
        }
        let mut left = Ok(());
        for target in &targets {
            match self.drop_target(collection, target, what, moved) {
                // One of many tensors does not stop the others.
                Err(error) if !is_one && error.kind() == ErrorKind::Invalid => {
                    moved.left.push((target.node, error.to_string()));
                    left = Err(error);
                }
                dropped => dropped?,
            }
            progress.advance(target.bytes());
            if progress.is_cancelled() {
                return Err(Error::new(ErrorKind::Interrupted, "cancelled by request"));
            }
        }
        collection.sync()?;
        if moved.left.len() == targets.len() {
            left?;
        }
        Ok(())
    }

    fn drop_target(
        &self,
        collection: &Arc<Collection>,
        target: &Target,
        what: Evict,
        moved: &mut Moved,
    ) -> Result<()> {
        let how = Reconstruct::of(&collection.state(), target.node);
        match (what, how) {
            (Evict::Stored, Reconstruct::Delta) => delta::evict(self, collection, target, moved),
            (Evict::Stored, Reconstruct::Factor(rank)) => factor::evict(collection, target, rank, moved),
            (Evict::Stored, _) => drop_blocks(collection, target, how.way(), moved),
            _ => drop_blocks(collection, target, None, moved),
        }
    }
}

fn check(collection: &Arc<Collection>, target: &Target, what: Evict) -> Result<()> {
    let path = || format!("{}/{}", collection.path(), target.path);
    refuse_pinned(collection, target)?;
    for object in &target.objects {
        collection.check_not_needed(object.entry.id)?;
    }
    if what == Evict::Stored {
        let how = Reconstruct::of(&collection.state(), target.node);
        let cannot = |why: &str| {
            Error::invalid(format!(
                "{}: it cannot be reconstructed: {why}; set user.tierfs.reconstruct, or evict with discard",
                path()
            ))
        };
        let way = how.way().ok_or_else(|| cannot("user.tierfs.reconstruct is none"))?;
        if matches!(how, Reconstruct::Factor(_)) && !is_lossy_allowed(&collection.state(), target.node) {
            let text = format!("{}: factors are not exact; set user.tierfs.lossy to allow first", path());
            return Err(Error::new(ErrorKind::Denied, text));
        }
        if way.gives == Gives::Absent {
            // The eviction itself creates the record.
            return Ok(());
        }
        for object in &target.objects {
            let open = OpenObject::open_by_name(collection, object)?;
            let layout = object.layout();
            for (index, block) in object.stored_blocks(0..layout.blocks(), layout) {
                let is_due = open.is_due(index, &block, Tier::Absent);
                match if is_due { (way.is_sound)(&open, index, &block) } else { Ok(true) } {
                    Ok(true) => {}
                    Ok(false) => {
                        return Err(cannot(&format!("block {index} differs from its {}", way.name)));
                    }
                    Err(error) => return Err(cannot(&error.to_string())),
                }
            }
        }
        return Ok(());
    }
    check_discard(collection, target)
}

/// Fails with `Denied` where a tensor must not be discarded.
fn check_discard(collection: &Collection, target: &Target) -> Result<()> {
    if is_lossy_allowed(&collection.state(), target.node) {
        return Ok(());
    }
    let path = format!("{}/{}", collection.path(), target.path);
    let text = format!("{path}: this would discard it permanently; set user.tierfs.lossy to allow first");
    Err(Error::new(ErrorKind::Denied, text))
}

/// Makes blocks absent: those that a way can reconstruct, or without one all of them, permanently.
fn drop_blocks(
    collection: &Arc<Collection>,
    target: &Target,
    way: Option<&Way>,
    moved: &mut Moved,
) -> Result<()> {
    for object in &target.objects {
        let open = OpenObject::open_by_name(collection, object)?;
        let migration = match way {
            Some(way) => open.drop_blocks(0..object.layout().blocks(), &|index, block| {
                // The block may have been written to since the check.
                (way.is_sound)(&open, index, block)
            })?,
            None => {
                let migration = open.discard_blocks(0..object.layout().blocks());
                // An earlier write has ended the consent of an import, and there are no writes now.
                check_discard(collection, target)?;
                migration
            }
        };
        if migration.is_empty() {
            continue;
        }
        moved.blocks += migration.blocks() as u64;
        let touched = collection.record(Default::default(), |batch, state| {
            migration.add(batch);
            Ok(touch(batch, state, target.node, Measured::default()))
        })?;
        moved.nodes.extend(touched);
    }
    Ok(())
}

/// Sets how the tensors of an imported file are reconstructed, and evicts them. Loss of precision is
/// allowed, because the user still has the source. Returns why some of them were not evicted, if so.
pub fn evict_imported(
    engine: &Engine,
    collection: &Arc<Collection>,
    target: &ingest::Target,
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
            Ok(first.map(|why| format!("{} tensors were not evicted; the first: {why}", moved.left.len())))
        }
        Err(error) if error.kind() == ErrorKind::Invalid => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}
