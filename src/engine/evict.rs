//! Tensors that give their bytes up.

use std::sync::Arc;

use crate::engine::moves::{Moved, touch};
use crate::engine::select::{Target, targets};
use crate::engine::settings::is_lossy_allowed;
use crate::engine::work::Engine;
use crate::format::catalog::Measured;
use crate::ingest::Progress;
use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::Collection;
use crate::store::read::{OpenObject, Verify};

/// What is given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evict {
    /// Decoded copies.
    Cache,
    /// Stored bytes, of what can be made again.
    Stored,
    /// Stored bytes, for good.
    Discard,
}

impl Evict {
    /// The value of the attribute `evict`.
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
    /// Gives up the bytes of a tensor, or of all tensors of a container or below a directory.
    /// Durable when it returns. `Cache` changes nothing here: what is returned says whose
    /// pages the kernel is to forget. `Invalid` where `Stored` is asked for and there is no
    /// way to make a tensor again; `Denied` where `Discard` is, and `lossy` does not allow it.
    /// Nothing is changed then.
    pub fn evict(
        &self,
        collection: &Arc<Collection>,
        node: EntryId,
        what: Evict,
        progress: &dyn Progress,
    ) -> Result<Moved> {
        let _alone = self.at_work.lock();
        let mut moved = Moved::default();
        if what == Evict::Cache {
            moved.nodes.insert(node);
            // Plain files have pages too.
            moved
                .nodes
                .extend(targets(collection, node).unwrap_or_default().iter().map(|target| target.node));
            return Ok(moved);
        }
        collection.check_writable()?;
        let targets = targets(collection, node)?;
        for target in &targets {
            check(collection, target, what)?;
        }
        for target in &targets {
            drop_target(collection, target, &mut moved)?;
            progress.advance(target.bytes());
            if progress.is_cancelled() {
                return Err(Error::new(ErrorKind::Interrupted, "it was told to stop"));
            }
        }
        collection.sync()?;
        Ok(moved)
    }
}

fn check(collection: &Collection, target: &Target, what: Evict) -> Result<()> {
    let path = || format!("{}/{}", collection.path(), target.path);
    let state = collection.state();
    if what == Evict::Stored {
        return Err(Error::invalid(format!(
            "{}: it cannot be made again; set user.tierfs.reconstruct, or evict with discard",
            path()
        )));
    }
    if !is_lossy_allowed(&state, target.node) {
        let text = format!("{}: it would be gone for good; set user.tierfs.lossy to allow first", path());
        return Err(Error::new(ErrorKind::Denied, text));
    }
    Ok(())
}

fn drop_target(collection: &Arc<Collection>, target: &Target, moved: &mut Moved) -> Result<()> {
    for object in &target.objects {
        let open = OpenObject::open(collection, object, Verify::First)?;
        let migration = open.drop_blocks(0..object.cut().blocks());
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
