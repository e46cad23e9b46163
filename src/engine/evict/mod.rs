//! Evicts tensors: drops their stored bytes.

mod delta;
mod factor;
mod low_rank;
mod parent_factor;

use std::collections::HashSet;
use std::sync::Arc;

use crate::engine::moves::touch;
use crate::engine::pins::files_of;
use crate::engine::reconstruct::setting::Reconstruct;
use crate::engine::reconstruct::{Gives, Way};
use crate::engine::refuse::{Refused, refuse_needed, refuse_pinned, refused, refused_for};
use crate::engine::results::Moved;
use crate::engine::select::{Target, is_tensor, targets};
use crate::engine::settings::Consent;
use crate::engine::summary::Summary;
use crate::engine::work::Engine;
use crate::format::log::catalog::{Measured, NodeEntry, NodeType};
use crate::model::{Aim, Cause, EntryId, Error, ErrorKind, Progress, Refusal, Result, Silent, Tier, utc};
use crate::store::{Batch, Collection, Object, OpenObject, State, Verify, now_nanoseconds, now_seconds};

/// The bytes to evict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evict {
    Cache,
    /// Stored bytes that can be reconstructed.
    Stored,
    Discard,
}

/// An eviction that is requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EvictRequest {
    /// The bytes to evict.
    pub what: Evict,
    /// Whether the last exact copy may be lost.
    pub consent: Consent,
    /// The user who asks, if one does. A discarded tensor names him.
    pub user: Option<u32>,
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
        EvictRequest { what, consent, user }: EvictRequest,
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
        let how = Reconstruct::of(&collection.state(), node);
        if (what, how) == (Evict::Stored, Reconstruct::Remote) {
            return evict_to_remote(collection, node, progress, moved);
        }
        let is_one = is_tensor(collection, node);
        let mut targets = targets(collection, node)?;
        targets.iter_mut().for_each(|target| target.consent = consent);
        let mut refused = Refused::default();
        for target in &targets {
            refused.take(check(collection, target, what))?;
        }
        refused.check()?;
        moved.summary = Summary { aim: Some(Aim::Tier(Tier::Absent)), ..Summary::default() };
        let is_there = |target: &Target| target.objects.iter().all(|object| is_absent(object));
        for target in &targets {
            moved.summary.count(target);
            moved.summary.there += u64::from(is_there(target));
        }
        moved.summary.planned = moved.summary.tensors - moved.summary.there;
        let mut left = Refused::default();
        for target in &targets {
            let was_there = is_there(target);
            match self.drop_target(collection, target, what, user, moved) {
                // One of many tensors does not stop the others.
                Err(error) if !is_one && error.kind() == ErrorKind::Invalid => {
                    left.take(Err::<(), _>(error))?;
                    moved.summary.refused += 1;
                    moved.summary.planned -= u64::from(!was_there);
                }
                dropped => {
                    dropped?;
                    moved.summary.moved += u64::from(!was_there);
                }
            }
            progress.advance(target.bytes());
            if let Err(cancelled) = progress.check() {
                moved.summary.measure(collection, &targets);
                return Err(cancelled);
            }
        }
        collection.sync()?;
        if moved.summary.refused > 0 && moved.summary.refused == targets.len() as u64 {
            return left.check();
        }
        moved.left = left.into_vec();
        moved.summary.measure(collection, &targets);
        Ok(())
    }

    fn drop_target(
        &self,
        collection: &Arc<Collection>,
        target: &Target,
        what: Evict,
        user: Option<u32>,
        moved: &mut Moved,
    ) -> Result<()> {
        let how = Reconstruct::of(&collection.state(), target.node);
        match (what, how) {
            (Evict::Stored, Reconstruct::Delta) => delta::evict(self, collection, target, moved),
            (Evict::Stored, Reconstruct::Factor(rank)) => {
                factor::evict(self, collection, target, rank, moved)
            }
            (Evict::Stored, Reconstruct::Remote) => evict_to_remote(collection, target.node, &Silent, moved),
            (Evict::Stored, _) => drop_blocks(collection, target, Dropping::With(how.way()), moved),
            _ => drop_blocks(collection, target, Dropping::ForGood(user), moved),
        }
    }
}

fn check(collection: &Arc<Collection>, target: &Target, what: Evict) -> Result<()> {
    refuse_pinned(collection, target)?;
    refuse_needed(collection, target)?;
    if what == Evict::Stored {
        let how = Reconstruct::of(&collection.state(), target.node);
        let cannot = |why: &str| {
            let text = format!("it cannot be reconstructed by {}: {why}", how.name());
            refused_for(collection, target, ErrorKind::Invalid, text)
        };
        let way = how.way().ok_or_else(|| refused(collection, target, Cause::NoReconstruct))?;
        let has_parent = target.objects.iter().any(|object| object.entry.parent.is_some());
        let is_rounded = matches!(how, Reconstruct::Factor(_)) && !has_parent;
        if is_rounded && !target.allows(&collection.state(), Tier::Absent) {
            return Err(refused(collection, target, Cause::Factors));
        }
        if matches!(way.gives, Gives::Absent | Gives::Stored) {
            // The eviction itself creates the record, or drops only what the remote has.
            return Ok(());
        }
        for object in &target.objects {
            let open = OpenObject::open_by_name(collection, object)?;
            let layout = object.layout();
            for (index, block) in object.stored_blocks(0..layout.blocks(), layout) {
                let is_due = open.is_due(index, &block, Aim::Tier(Tier::Absent));
                match if is_due { (way.is_sound)(&open, index, &block) } else { Ok(true) } {
                    Ok(true) => {}
                    Ok(false) => {
                        return Err(cannot(&format!("its {} differs from block {index}", way.name)));
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
    if target.allows(&collection.state(), Tier::Absent) {
        return Ok(());
    }
    Err(refused(collection, target, Cause::LastBytes))
}

/// Whether every block of an object is absent, and there is one.
fn is_absent(object: &Object) -> bool {
    let layout = object.layout();
    let mut blocks = object.stored_blocks(0..layout.blocks(), layout).peekable();
    blocks.peek().is_some() && blocks.all(|(_, block)| block.stored.tier == Tier::Absent)
}

/// How blocks become absent.
#[derive(Clone, Copy)]
enum Dropping<'a> {
    /// Those that the way can reconstruct; without one all.
    With(Option<&'a Way>),
    /// All of them, for a user.
    ForGood(Option<u32>),
}

/// Makes blocks absent.
fn drop_blocks(
    collection: &Arc<Collection>,
    target: &Target,
    dropping: Dropping<'_>,
    moved: &mut Moved,
) -> Result<()> {
    for object in &target.objects {
        let open = OpenObject::open_by_name(collection, object)?;
        let migration = match dropping {
            Dropping::With(Some(way)) => open.drop_blocks(0..object.layout().blocks(), &|index, block| {
                // The block may have been written to since the check.
                (way.is_sound)(&open, index, block)
            })?,
            _ => {
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
            let touched = touch(batch, state, target.node, Measured::default());
            if let Dropping::ForGood(user) = dropping {
                note_discard(batch, state, target.node, user);
            }
            Ok(touched)
        })?;
        moved.nodes.extend(touched);
    }
    Ok(())
}

/// Says in the node of a tensor when its bytes were discarded, and by whom.
fn note_discard(batch: &mut Batch, state: &State, node: EntryId, user: Option<u32>) {
    let Some(found) = state.node(node) else { return };
    let now = now_nanoseconds();
    let mut entry = NodeEntry { mtime: now, ctime: now, ..found.entry.clone() };
    if let NodeType::File(file) = &mut entry.node_type {
        let by = user.map(|user| format!(" by user {user}")).unwrap_or_default();
        file.error = None;
        file.why = format!("its bytes were discarded at {}{by}", utc(now_seconds())).into();
        batch.node(entry);
    }
}

/// Gives back the space of a file, or of all files of a container or below a directory, plain files and headers
/// included, as far as the remote has their bytes. Fails with `Busy` for one pinned file; of several, those that
/// are pinned keep theirs.
fn evict_to_remote(
    collection: &Arc<Collection>,
    node: EntryId,
    progress: &dyn Progress,
    moved: &mut Moved,
) -> Result<()> {
    let objects: Vec<Arc<Object>> = {
        let state = collection.state();
        if state.pinned_with(node).is_some() {
            let path = format!("{}/{}", collection.path(), String::from_utf8_lossy(&state.path(node)));
            return Err(Error::refused(vec![Refusal { path, cause: Cause::Pinned }]));
        }
        let files = files_of(&state, node)?;
        let free = files.iter().filter(|file| state.pinned_with(**file).is_none());
        let mut seen = HashSet::new();
        let ids = free.filter_map(|file| state.node(*file)?.file()).flat_map(|file| file.objects.iter());
        let ids = ids.filter(|id| seen.insert(**id));
        ids.filter_map(|id| state.object(*id).cloned()).collect()
    };
    let evicted = moved.to_remote.get_or_insert(0);
    for object in &objects {
        *evicted += OpenObject::open(collection, object, Verify::First)?.evict_to_remote()?;
        progress.advance(object.bytes());
        progress.check()?;
    }
    Ok(())
}
