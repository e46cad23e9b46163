//! The periodic work of a mount: moves between tiers by policy, and cache directories.
//!
//! A cache directory (`policy=cache:SIZE`) holds at most its limit, and one file a program that writes: the creation of a
//! file first unlinks the least recently used files where the cache is over its limit, and a job does so where it comes
//! close, so that programs rarely wait. A look at a directory takes time by the number of its files. Until the next look
//! the bytes that the collection has stored since bound what the directory can have grown by.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::engine::{CacheLimit, Heat, POLICY};
use crate::format::log::catalog::NodeType;
use crate::model::{EntryId, FREE_MIN, Instant, NameIn, Progress, Result};
use crate::store::Collection;
use crate::store::EventKind;
use crate::store::now_nanoseconds;
use crate::store::{Node, State};
use crate::vfs::open::OpenFile;
use crate::vfs::tree::invalidation::Invalidation;
use crate::vfs::tree::vfs::Vfs;

/// Names that are looked at while the state is locked.
const LOOKED_AT_ONCE: usize = 512;
/// A cache is emptied to this part below its limit, if that removes whole files, so that the next look is far.
const SLACK_PART: u64 = 64;

/// Files that one request removes at most, and one pass of the job.
const FILES_A_REQUEST: u64 = 64;
const FILES_A_JOB: u64 = 4096;
/// How long a request waits for another thread that removes files.
const REMOVING_WAIT: Duration = Duration::from_millis(50);
/// How long a cache is left alone after a look that found nothing to remove.
const FUTILE_FOR: Duration = Duration::from_secs(2);

/// The work of a pass.
#[derive(Clone, Copy)]
struct Amount {
    /// Bytes to free beyond the limit.
    short: u64,
    /// The most files to remove.
    files: u64,
}

/// The memory of a mount of its cache directories, by the numbers of their collections and nodes.
#[derive(Default)]
pub(super) struct CacheUse {
    /// When files were last opened to be read, in nanoseconds since 1970. The log only has the tick.
    opened: Mutex<HashMap<(u32, EntryId), u64>>,
    looks: Mutex<HashMap<(u32, EntryId), Arc<Look>>>,
}

/// The last look at a cache directory.
#[derive(Default)]
struct Look {
    /// Held by the one thread that removes files.
    removing: Mutex<()>,
    found: Mutex<Option<Found>>,
}

/// The stored bytes of a cache directory at a moment.
#[derive(Clone, Copy)]
struct Found {
    held: u64,
    at: Moment,
    /// Until when another look would find nothing to remove: files are open, pinned, or needed by others.
    futile_until: Option<Instant>,
}

/// A moment in the history of a collection.
#[derive(Clone, Copy, PartialEq)]
struct Moment {
    /// The stored bytes that were added so far.
    grown: u64,
    /// The stored bytes that are left.
    stored: u64,
    /// The nodes with policies of their own, as a sum: a cache ends at such directories.
    policies: u64,
}

impl Moment {
    fn now(state: &State) -> Moment {
        let nodes = state.set_nodes(POLICY.name);
        let policies = nodes
            .fold(0, |sum: u64, (node, _)| sum.wrapping_add(node.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
        Moment { grown: state.grown(), stored: state.used().stored, policies }
    }
}

impl Found {
    fn most(&self, now: Moment) -> u64 {
        let grown = now.grown.saturating_sub(self.at.grown);
        if self.at.policies == now.policies { self.held.saturating_add(grown) } else { u64::MAX }
    }

    fn is_futile(&self) -> bool {
        self.futile_until.is_some_and(|until| Instant::now() < until)
    }
}

impl Look {
    /// Whether the directory can have more bytes than these, and a look may find files to remove.
    fn is_over(&self, bytes: u64, now: Moment) -> bool {
        self.found.lock().is_none_or(|found| found.most(now) > bytes && !found.is_futile())
    }
}

/// A cache directory of a collection.
#[derive(Clone, Copy)]
struct CacheDirectory {
    node: EntryId,
    limit: u64,
    /// Bytes of the disk that stay free.
    free_min: u64,
}

impl CacheDirectory {
    fn slack(&self) -> u64 {
        self.limit / SLACK_PART
    }

    /// With more bytes a job removes files.
    fn comes_close_at(&self) -> u64 {
        self.limit - self.slack() / 2
    }
}

/// A file in a cache.
struct Cached {
    parent: EntryId,
    name: Arc<[u8]>,
    node: EntryId,
    bytes: u64,
    /// Time of the last open or change, in nanoseconds since 1970.
    used: u64,
    is_pinned: bool,
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
        let open = self.store().open_collections();
        open.iter().any(|collection| limits_of(&collection.state()).next().is_some())
    }

    /// The cache directories of a collection.
    fn caches_of(&self, collection: &Collection) -> Vec<CacheDirectory> {
        let found: Vec<(EntryId, CacheLimit, u64)> = {
            let state = collection.state();
            let free_min = |node| collection.thresholds_of(&state, node).free_min as u64;
            limits_of(&state).map(|(node, limit)| (node, limit, free_min(node))).collect()
        };
        let mut total = None;
        // The disk is asked once, with no lock held.
        let mut size =
            || *total.get_or_insert_with(|| self.store().space().map_or(u64::MAX, |space| space.total));
        let directory = |(node, limit, free_min): (EntryId, CacheLimit, u64)| {
            let bytes = limit.bytes(if matches!(limit, CacheLimit::Percent(_)) { size() } else { 0 });
            CacheDirectory { node, limit: bytes, free_min }
        };
        found.into_iter().map(directory).collect()
    }

    fn look_at(&self, collection: &Collection, cache: CacheDirectory) -> Arc<Look> {
        let key = (collection.state().number(), cache.node);
        self.cache_use().looks.lock().entry(key).or_default().clone()
    }

    /// Notes the open of a file to be read. The kernel's own reads are invisible.
    pub fn opened_to_read(&self, open_file: &OpenFile) {
        open_file.opened_to_read();
        let state = open_file.collection().state();
        let policy = || state.inherited(open_file.node(), POLICY.name);
        if limits_of(&state).next().is_some() && policy().and_then(CacheLimit::from_policy).is_some() {
            let now = u64::try_from(now_nanoseconds()).unwrap_or(0);
            self.cache_use().opened.lock().insert((state.number(), open_file.node()), now);
        }
    }

    /// Forgets the looks at the caches of a collection, to which bytes may have come that were there already.
    pub(super) fn forget_looks_at_caches(&self, collection: &Collection) {
        let number = collection.state().number();
        self.cache_use().looks.lock().retain(|(collection, _), _| *collection != number);
    }

    /// Forgets all that is known of a collection, which is removed.
    pub(super) fn forget_caches(&self, number: u32) {
        self.cache_use().looks.lock().retain(|(collection, _), _| *collection != number);
        self.cache_use().opened.lock().retain(|(collection, _), _| *collection != number);
    }

    /// Forgets the looks at the caches of a collection, where a rename moves bytes from one directory to another.
    pub(super) fn moved_between(&self, collection: &Collection, from: EntryId, to: EntryId) {
        let has_moved = {
            let state = collection.state();
            let cache_of = |node| state.inherited_from(node, POLICY.name).map(|(cache, _)| cache);
            from != to && limits_of(&state).next().is_some() && cache_of(from) != cache_of(to)
        };
        if has_moved {
            self.forget_looks_at_caches(collection);
        }
    }

    /// Whether a cache comes close to its limit, or is over it.
    pub fn has_full_caches(&self) -> bool {
        let open = self.store().open_collections();
        open.iter().filter(|collection| collection.check_writable().is_ok()).any(|collection| {
            let now = Moment::now(&collection.state());
            let is_full =
                |cache: CacheDirectory| self.look_at(collection, cache).is_over(cache.comes_close_at(), now);
            self.caches_of(collection).into_iter().any(is_full)
        })
    }

    /// Removes the least recently used files of caches that come close to their limits. Returns a summary for people.
    pub fn empty_full_caches(&self, forget: &mut dyn FnMut(Invalidation)) -> String {
        match self.empty_caches(u64::MAX, forget) {
            (0, _) => String::new(),
            (gone, bytes) => format!("{gone} files of caches unlinked, {bytes} bytes"),
        }
    }

    /// Makes room for a new file in the caches of a collection that are over their limits. A request waits a moment for
    /// another thread that removes files, and removes a few: after a limit was lowered, a job does the rest.
    pub(super) fn make_room_in_caches(&self, collection: &Arc<Collection>) {
        for cache in self.caches_of(collection) {
            let look = self.look_at(collection, cache);
            if !look.is_over(cache.limit, Moment::now(&collection.state())) {
                continue;
            }
            let Some(_removing) = look.removing.try_lock_for(REMOVING_WAIT) else { continue };
            if !look.is_over(cache.limit, Moment::now(&collection.state())) {
                continue;
            }
            let amount = Amount { short: 0, files: FILES_A_REQUEST };
            let (gone, _) =
                self.empty_cache(collection, cache, amount, &mut |forget| self.queue_invalidation(forget));
            if gone > 0 {
                self.release_unlinked();
            }
        }
    }

    /// Unlinks the least recently used files of each cache that comes close to its limit until it is below, and more where
    /// fewer bytes than its `free_min` are `free`. It skips open files, and containers with an open tensor. Returns how
    /// many files it unlinked and their bytes.
    pub(super) fn empty_caches(&self, free: u64, forget: &mut dyn FnMut(Invalidation)) -> (u64, u64) {
        let (mut gone, mut freed) = (0, 0);
        for collection in self.store().open_collections() {
            if collection.check_writable().is_err() {
                continue;
            }
            for cache in self.caches_of(&collection) {
                let short = cache.free_min.saturating_sub(free.saturating_add(freed));
                let look = self.look_at(&collection, cache);
                if short > 0 || look.is_over(cache.comes_close_at(), Moment::now(&collection.state())) {
                    let _removing = look.removing.lock();
                    let amount = Amount { short, files: FILES_A_JOB };
                    let (files, bytes) = self.empty_cache(&collection, cache, amount, forget);
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

    /// Unlinks files of a cache until it is below its limit, and `short` bytes more. The caller holds [`Look::removing`].
    fn empty_cache(
        &self,
        collection: &Arc<Collection>,
        cache: CacheDirectory,
        Amount { short, files: most_files }: Amount,
        forget: &mut dyn FnMut(Invalidation),
    ) -> (u64, u64) {
        let look = self.look_at(collection, cache);
        let (number, at) = {
            let state = collection.state();
            (state.number(), Moment::now(&state))
        };
        let mut files = self.cached(collection, cache.node);
        files.sort_by_key(|file| (file.used, file.node, file.parent));
        let mut names: HashMap<EntryId, u32> = HashMap::new();
        files.iter().for_each(|file| *names.entry(file.node).or_default() += 1);
        let mut held = held_by(&files);
        let (mut gone, begun) = (0, held);
        let limit = if short > 0 { cache.limit.min(held.saturating_sub(short)) } else { cache.limit };
        let is_close = short == 0 && held > cache.comes_close_at();
        let least = if is_close { limit - cache.slack() } else { limit };
        // Whole files go, so that small ones go together.
        let is_enough = |held: u64, file: &Cached| held <= limit && held.saturating_sub(file.bytes) < least;
        let may_go = |file: &Cached, state: &State, node: &Node| {
            let cache_now = state.inherited_from(file.parent, POLICY.name).map(|(cache, _)| cache);
            node.entry.id == file.node && cache_now == Some(cache.node) && !is_pinned(state, node)
        };
        let mut has_stopped = false;
        for file in files.iter().filter(|file| !file.is_pinned) {
            if is_enough(held, file) || gone >= most_files {
                has_stopped = true;
                break;
            }
            let related: Vec<EntryId> = {
                let state = collection.state();
                let entry = state.node(file.node).and_then(|node| node.file());
                let parts = entry.into_iter().flat_map(|entry| state.parts(entry));
                parts.map(|part| part.entry.id).chain([file.node]).collect()
            };
            if related.iter().any(|node| self.open_files.get(number, *node).is_some()) {
                continue;
            }
            let below = collection.state().path_of_name(file.parent, &file.name);
            let path = format!("{}/{}", collection.path(), String::from_utf8_lossy(&below));
            let name = NameIn { directory: file.parent, name: &file.name };
            match self.unlink_cached(collection, name, &|state, node| may_go(file, state, node)) {
                Ok(Some(changed)) => {
                    gone += 1;
                    let left = names.entry(file.node).or_default();
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        held = held.saturating_sub(file.bytes);
                    }
                    let text = format!("unlinked: {held} bytes are left of a limit of {}", cache.limit);
                    collection.event_log().tell(EventKind::Migration, &path, "policy=cache", &text);
                    forget(changed);
                }
                Ok(None) => {}
                Err(error) => log::debug!("{path} stays in its cache: {error}"),
            }
        }
        self.forget_removed(collection);
        let futile_until = (held > limit && !has_stopped).then(|| Instant::now() + FUTILE_FOR);
        *look.found.lock() = Some(Found { held, at, futile_until });
        (gone, begun - held)
    }

    /// Forgets opens of files that are gone.
    fn forget_removed(&self, collection: &Collection) {
        let state = collection.state();
        let number = state.number();
        let mut opened = self.cache_use().opened.lock();
        opened.retain(|(collection, node), _| *collection != number || state.node(*node).is_some());
    }

    /// The files below a directory, except below directories that have a policy of their own. The state is locked for
    /// some names at a time.
    fn cached(&self, collection: &Collection, directory: EntryId) -> Vec<Cached> {
        let mut found = Vec::new();
        let tick = u64::from(self.store().ticks().length()).saturating_mul(1_000_000_000);
        let (mut waiting, mut seen) = (vec![directory], HashSet::from([directory]));
        while let Some(directory) = waiting.pop() {
            let names: Vec<(Arc<[u8]>, EntryId)> = {
                let state = collection.state();
                let names = state.directory(directory).into_iter().flat_map(|names| names.after(EntryId(0)));
                names.map(|(_, name, id)| (name.clone(), id)).collect()
            };
            for names in names.chunks(LOOKED_AT_ONCE) {
                let state = collection.state();
                let opened = self.cache_use().opened.lock();
                let opened = |id: EntryId| opened.get(&(state.number(), id)).copied();
                for (name, id) in names {
                    let Some(node) = state.node(*id) else { continue };
                    match &node.entry.node_type {
                        NodeType::Directory if state.setting(*id, POLICY.name).is_none() => {
                            waiting.extend(Some(*id).filter(|id| seen.insert(*id)));
                        }
                        // A tensor of a container is removed with the container.
                        NodeType::File(file) if file.container.is_none() => {
                            let related: Vec<EntryId> =
                                state.parts(file).map(|part| part.entry.id).chain([*id]).collect();
                            let objects =
                                file.objects.iter().filter_map(|object| state.object(*object).cloned());
                            let objects: Vec<_> = objects.collect();
                            let changed = u64::try_from(node.entry.ctime).unwrap_or(0);
                            let last_opened = related.iter().filter_map(|id| opened(*id)).max().unwrap_or(0);
                            // The last use may have been at any time of its tick.
                            let heat = Heat::of(collection, &state, node, &objects).last_access;
                            let begin = heat.saturating_mul(1_000_000_000);
                            let is_later = heat > 0 && begin > last_opened;
                            let used = if is_later { begin.saturating_add(tick) } else { last_opened };
                            found.push(Cached {
                                parent: directory,
                                name: name.clone(),
                                node: *id,
                                bytes: objects.iter().map(|object| object.stored()).sum(),
                                used: used.max(changed),
                                is_pinned: is_pinned(&state, node),
                            });
                        }
                        _ => {}
                    }
                }
            }
        }
        found
    }

    /// The room that the cache of a node leaves, if it is in one: the bytes until its limit, and those that it holds.
    pub(super) fn room_of_cache(&self, view: &crate::vfs::tree::location::FileView) -> Option<(u64, u64)> {
        let collection = &view.collection;
        let cache = {
            let state = collection.state();
            state.inherited_from(view.node.entry.id, POLICY.name)?.0
        };
        let cache = self.caches_of(collection).into_iter().find(|found| found.node == cache)?;
        let look = self.look_at(collection, cache);
        let at = Moment::now(&collection.state());
        let known = (*look.found.lock()).filter(|found| found.at == at);
        let held = known.map_or_else(
            || {
                let held = held_by(&self.cached(collection, cache.node));
                *look.found.lock() = Some(Found { held, at, futile_until: None });
                held
            },
            |found| found.held,
        );
        let held = held.min(cache.limit);
        Some((cache.limit - held, held))
    }
}

/// Whether a file, a tensor of it, or a form of one of them is pinned.
fn is_pinned(state: &State, node: &Node) -> bool {
    let Some(file) = node.file() else { return false };
    let mut related = state.parts(file).map(|part| part.entry.id).chain([node.entry.id]);
    related.any(|id| state.pins_of(id).next().is_some())
}

/// The stored bytes of files, of which some may have several names.
fn held_by(files: &[Cached]) -> u64 {
    let mut seen = HashSet::new();
    files.iter().filter(|file| seen.insert(file.node)).map(|file| file.bytes).sum()
}

/// The cache directories of a state, with their limits.
fn limits_of(state: &State) -> impl Iterator<Item = (EntryId, CacheLimit)> {
    let set = state.set_nodes(POLICY.name);
    set.filter_map(|(node, value)| Some((node, CacheLimit::from_policy(value)?)))
}
