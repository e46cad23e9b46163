//! The periodic work of a mount: moves between tiers by policy, and cache directories. When one of these
//! exceeds its quota, its least recently used files are removed.

use std::collections::HashSet;
use std::sync::Arc;

use crate::engine::{Heat, POLICY, cache_bytes};
use crate::format::log::catalog::NodeType;
use crate::model::{EntryId, FREE_MIN, Progress, Result};
use crate::store::Collection;
use crate::store::EventKind;
use crate::store::{State, Walk};
use crate::vfs::tree::ino::{Ino, Place};
use crate::vfs::tree::invalidation::Invalidation;
use crate::vfs::tree::vfs::Vfs;

/// A file in a cache.
struct Cached {
    parent: EntryId,
    name: Arc<[u8]>,
    node: EntryId,
    bytes: u64,
    /// Time of the last access or write, in seconds since 1970.
    used: u64,
}

/// The bytes that a cache may hold, and those that are missing on its disk.
#[derive(Clone, Copy)]
struct Room {
    quota: u64,
    short: u64,
}

impl Vfs {
    /// Whether there may be work to do.
    pub fn has_automatic(&self) -> bool {
        self.engine().has_automatic() || self.has_caches()
    }

    /// Does the work of one tick. Passes to `forget` what the kernel must invalidate. Returns a
    /// summary for people; it is empty where nothing was done.
    pub fn follow_policy(
        &self,
        progress: &dyn Progress,
        forget: &mut dyn FnMut(Invalidation),
    ) -> Result<String> {
        let free = self.free_bytes();
        let (gone, freed) = self.empty_caches(free, forget);
        let free = free.saturating_add(freed);
        let moved = self.engine().move_automatically(free, progress, &mut |collection, moved| {
            forget(self.invalidate_nodes(collection, moved.nodes));
        })?;
        Ok(match (moved, gone) {
            (0, 0) => String::new(),
            (moved, 0) => format!("{moved} tensors moved"),
            (moved, gone) => format!("{moved} tensors moved, {gone} files of caches unlinked"),
        })
    }

    /// The bytes that are free on the disk of the store. Where it does not say, as many as there can be.
    pub fn free_bytes(&self) -> u64 {
        self.store().space().map_or(u64::MAX, |space| space.available)
    }

    /// Whether fewer bytes are free than some `free_min` asks for. A mount asks often, so only the values count, not whether
    /// something can be freed.
    pub fn is_short_of_space(&self) -> bool {
        let of_store = self.store().settings().rules.thresholds.free_min as u64;
        let of_collection = |collection: &Arc<Collection>| {
            let state = collection.state();
            let values = state.set_nodes(FREE_MIN.name).filter_map(|(_, value)| FREE_MIN.parse(value).ok());
            values.fold(0, |most, value| most.max(value as u64))
        };
        let wanted = self.store().open_collections().iter().map(of_collection).fold(of_store, u64::max);
        wanted > 0 && self.free_bytes() < wanted
    }

    /// Whether any open collection has caches.
    pub(super) fn has_caches(&self) -> bool {
        let is_cache = |collection: &Arc<Collection>| {
            collection.state().set_nodes(POLICY.name).any(|(_, value)| cache_bytes(value).is_some())
        };
        self.store().open_collections().iter().any(is_cache)
    }

    /// Unlinks the least recently used files of each cache until it is within its quota, and more where fewer bytes than
    /// its `free_min` are `free`. It skips open files, and containers with an open tensor. Returns how many files it
    /// unlinked and their bytes, and reports errors in the program log. It syncs nothing.
    pub(super) fn empty_caches(&self, free: u64, forget: &mut dyn FnMut(Invalidation)) -> (u64, u64) {
        let (mut gone, mut freed) = (0, 0);
        for collection in self.store().open_collections() {
            let caches: Vec<(EntryId, u64, u64)> = {
                let state = collection.state();
                let caches = state.set_nodes(POLICY.name);
                let free_min = |node| collection.thresholds_of(&state, node).free_min as u64;
                caches.filter_map(|(node, value)| Some((node, cache_bytes(value)?, free_min(node)))).collect()
            };
            if collection.check_writable().is_ok() {
                for (directory, quota, free_min) in caches {
                    let short = free_min.saturating_sub(free.saturating_add(freed));
                    let (files, bytes) =
                        self.empty_cache(&collection, directory, Room { quota, short }, forget);
                    gone += files;
                    freed += bytes;
                }
            }
        }
        if gone > 0 {
            // The kernel may still know these files, and they would use space until it forgets them.
            self.release_unlinked();
        }
        (gone, freed)
    }

    fn empty_cache(
        &self,
        collection: &Arc<Collection>,
        directory: EntryId,
        Room { quota, short }: Room,
        forget: &mut dyn FnMut(Invalidation),
    ) -> (u64, u64) {
        let number = collection.state().number();
        let mut files = cached(collection, &collection.state(), directory);
        files.sort_by_key(|file| (file.used, file.node, file.parent));
        let mut seen = HashSet::new();
        let mut held: u64 = files.iter().filter(|file| seen.insert(file.node)).map(|file| file.bytes).sum();
        let (mut gone, begun) = (0, held);
        let quota = quota.min(held.saturating_sub(short));
        for file in files {
            if held <= quota {
                break;
            }
            let (is_there, related) = {
                let state = collection.state();
                let names = state.directory(file.parent);
                let entry = state.node(file.node).and_then(|node| node.file());
                let parts = entry.into_iter().flat_map(|entry| state.parts(entry));
                let related: Vec<EntryId> = parts.map(|part| part.entry.id).chain([file.node]).collect();
                (names.and_then(|names| names.get(&file.name)) == Some(file.node), related)
            };
            let is_open = related.iter().any(|node| self.open_files.get(number, *node).is_some());
            let parent = Ino::of(Place::Node { collection: number, node: file.parent });
            let Some(parent) = parent.filter(|_| is_there && !is_open) else { continue };
            let below = collection.state().path_of_name(file.parent, &file.name);
            let path = format!("{}/{}", collection.path(), String::from_utf8_lossy(&below));
            match self.unlink(parent, &file.name) {
                Ok(changed) => {
                    gone += 1;
                    // A file with another name still uses its space.
                    if collection.state().node(file.node).is_none() {
                        held = held.saturating_sub(file.bytes);
                    }
                    let text = format!("unlinked: {held} bytes are left of a quota of {quota}");
                    collection.event_log().tell(EventKind::Migration, &path, "policy=cache", &text);
                    forget(changed);
                }
                Err(error) => log::warn!("{path} stays in its cache: {error}"),
            }
        }
        (gone, begun - held)
    }
}

/// The files below a directory, except below directories that have a policy of their own.
fn cached(collection: &Collection, state: &State, directory: EntryId) -> Vec<Cached> {
    let mut found = Vec::new();
    state.walk(directory, &mut |visited| {
        let id = visited.node.entry.id;
        match &visited.node.entry.node_type {
            NodeType::Directory if state.setting(id, POLICY.name).is_none() => return Walk::Enter,
            // A tensor of a container is removed with the container.
            NodeType::File(file) if file.container.is_none() => {
                let mut related = state.parts(file).map(|part| part.entry.id).chain([id]);
                if related.any(|id| state.is_pinned(id)) {
                    return Walk::Pass;
                }
                let objects = file.objects.iter().filter_map(|object| state.object(*object).cloned());
                let objects: Vec<_> = objects.collect();
                let heat = Heat::of(collection, state, visited.node, &objects);
                let written = u64::try_from(visited.node.entry.mtime / 1_000_000_000).unwrap_or(0);
                found.push(Cached {
                    parent: visited.directory,
                    name: visited.name.clone(),
                    node: id,
                    bytes: objects.iter().map(|object| object.stored()).sum(),
                    used: heat.last_access.max(written),
                });
            }
            _ => {}
        }
        Walk::Pass
    });
    found
}
