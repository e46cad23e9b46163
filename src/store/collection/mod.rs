//! One collection: its log, its state in memory, its files.
//!
//! A `Collection` is made of parts, each a type of its own: `Identity`, `Files`, the state behind a `StateLock`, the
//! `Journal` (log and `Writer`), the `ReadGate`, `Reservations` (slots that no batch names yet), the `UsageFile`, the
//! `Footprint` (memory, last use), the `Services` that the collections of a store share, the `Meter` of its tenant, and
//! the `DigestCache`. `docs/LOCKS.md` has the order of their locks.
//!
//! A change is a batch: `Collection::record` (`commit.rs`) lets the caller fill it, checks it against the state,
//! appends it to the log and applies it, all under the lock of the writer, without a sync. `Collection::sync` makes
//! durable, in this order, the payload files that were written since the last sync, the directories, and the log.

pub(in crate::store) mod allocate;
pub(in crate::store) mod commit;
mod damage_file;
pub(in crate::store) mod digest_cache;
pub(in crate::store) mod footprint;
pub(in crate::store) mod identity;
mod idle;
pub(in crate::store) mod journal;
pub(in crate::store) mod lineage;
pub(in crate::store) mod open;
pub(in crate::store) mod open_object;
pub(in crate::store) mod pinned_copies;
pub(in crate::store) mod place;
pub(in crate::store) mod read_gate;
pub(in crate::store) mod reclaim;
pub(in crate::store) mod recover;
pub(in crate::store) mod state_lock;
mod unrecorded_files;
pub(in crate::store) mod usage_file;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use crate::format::files::onnx::DataFiles;
use crate::format::log::catalog::{Entry, OutsideFile};
use crate::format::log::record::Stored;
use crate::model::{CollectionName, EntryId, Error, ErrorKind, KeptBy, ObjectId, Result, Thresholds};
use crate::store::clock::Ticks;
use crate::store::collection::digest_cache::{DigestCache, Sums};
use crate::store::collection::footprint::Footprint;
use crate::store::collection::identity::Access;
use crate::store::collection::identity::Identity;
use crate::store::collection::journal::{Journal, Writer};
use crate::store::collection::lineage::Lineage;
use crate::store::collection::open_object::Rebuild;
use crate::store::collection::read_gate::ReadGate;
use crate::store::collection::state_lock::{StateGuard, StateLock};
use crate::store::collection::usage_file::{SaveUsage, UsageFile};
use crate::store::disk::{Disk, File};
use crate::store::events::{Events, Note};
use crate::store::link_candidates::Sharing;
use crate::store::log::checkpoint::Checkpoint;
use crate::store::log::replay::Damage;
use crate::store::object::Object;
use crate::store::object::failed_reads::Unreadable;
use crate::store::object::usage::FileUse;
use crate::store::quota::{Limits, Meter};
use crate::store::settings::{PACKS, kept_by};
use crate::store::space::external_file::is_untouched;
use crate::store::space::files::{Files, Touched};
use crate::store::space::reservations::Reservations;
use crate::store::state::assembly::Assembly;
use crate::store::state::node::Node;
use crate::store::state::node_settings::PACK;
use crate::store::state::{ROOT, State};

/// A collection of a store: a log, the state that follows from it, and the files with payloads.
///
/// Opening replays the log into a `State`. After that every change is a batch: `Collection::record` lets its caller
/// fill one while the state is locked, appends the batch to the log, and applies it to the state. So a change is in
/// memory exactly if it is in the log, and a failed append changes nothing. A batch is durable after
/// `Collection::sync`, which syncs payloads before the log; space that a batch has freed is used again only then.
///
/// Readers find nodes and objects in the state, open objects (`OpenObject`) and read blocks
/// from `files`. A failed sync, or a damaged log, ends writing until the collection is opened again. The store closes a
/// collection that nobody uses (`idle.rs`); its files have all that a later opening needs.
pub struct Collection {
    pub(in crate::store) identity: Identity,
    pub(in crate::store) files: Files,
    /// Held for lookups and changes in memory, never across I/O.
    pub(in crate::store) state: StateLock,
    pub(in crate::store) journal: Journal,
    pub(in crate::store) gate: ReadGate,
    /// Reserved slots that no batch names yet.
    pub(in crate::store) reservations: Arc<Reservations>,
    pub(in crate::store) usage: UsageFile,
    pub(in crate::store) services: Services,
    /// Counts the collection's use. Its lock is the last in the order.
    meter: Arc<Meter>,
    /// Cached values of its files.
    digest_cache: DigestCache,
    /// Objects that an interrupted import has left, to be removed once the log has room. Held briefly;
    /// no other lock is taken with it.
    orphans: Mutex<Vec<ObjectId>>,
    pub(in crate::store) footprint: Footprint,
}

/// The objects that the bytes of a file lie in, and how these are assembled from them; `None` where the file is their
/// concatenation.
pub type Parts = (Vec<Arc<Object>>, Option<Assembly>);

/// Setting of a collection's own directory that holds its limits.
pub(in crate::store) const LIMITS_SETTING: &str = "quota";

impl Collection {
    /// A collection with this state and log.
    fn of_parts(disk: &Arc<dyn Disk>, identity: Identity, state: State, journal: Journal) -> Collection {
        let path = format!("{}/{}", identity.tenant(), identity.name());
        let may_write = identity.access() == Access::Write;
        Collection {
            files: Files::new(disk, path, may_write),
            identity,
            state: StateLock::new(state),
            journal,
            gate: ReadGate::default(),
            reservations: Arc::default(),
            usage: UsageFile::default(),
            services: Services::default(),
            meter: Meter::new("", None, Limits::default()),
            digest_cache: DigestCache::default(),
            orphans: Mutex::default(),
            footprint: Footprint::default(),
        }
    }

    /// `tenant/name`.
    pub fn path(&self) -> String {
        self.files.path().to_owned()
    }

    /// Its tenant and its own name.
    pub fn place(&self) -> CollectionName<'_> {
        CollectionName::new(self.tenant(), self.name())
    }

    /// The access that it was opened for.
    pub fn access(&self) -> Access {
        self.identity.access()
    }

    /// Its tenant.
    pub fn tenant(&self) -> &str {
        self.identity.tenant()
    }

    /// Its own name.
    pub fn name(&self) -> &str {
        self.identity.name()
    }

    /// Its state. The guard must not be held across I/O, nor while the same thread asks for the state again.
    pub fn state(&self) -> StateGuard<'_> {
        self.state.read()
    }

    /// The forms in which a collection of a remote is published: the names of its variants, and an empty name
    /// for the collection itself. The one that this is comes first. Nothing for a collection of a store.
    pub fn published(&self) -> Result<Vec<String>> {
        let snapshots = self.files.upstream().and_then(|upstream| upstream.snapshots());
        let published = snapshots.map(|snapshots| snapshots.published(self.place())).transpose();
        published.map(Option::unwrap_or_default).map_err(|error| Error::io(self.path(), error))
    }

    /// The number of the snapshot that a collection of a remote is; `None` for a collection of a store.
    pub fn snapshot(&self) -> Result<Option<u64>> {
        let snapshots = self.files.upstream().and_then(|upstream| upstream.snapshots());
        let number = snapshots.map(|snapshots| snapshots.number(self.place())).transpose();
        number.map_err(|error| Error::io(self.path(), error))
    }

    /// Damage to its log, if any. The collection accepts no writes then.
    pub fn damage(&self) -> Option<&Damage> {
        self.journal.damage()
    }

    /// The objects with blocks that could not be read since it was opened and still cannot.
    pub fn unreadable(&self) -> Vec<(Arc<Object>, Unreadable)> {
        let mut found = Vec::new();
        for id in self.footprint.unreadable() {
            let object = self.state().object(id).cloned();
            match object.and_then(|object| object.unreadable().map(|unreadable| (object, unreadable))) {
                Some(one) => found.push(one),
                None => self.footprint.note_readable(id),
            }
        }
        found
    }

    /// Why blocks of a file cannot be read, if some could not.
    pub fn unreadable_in(&self, node: EntryId) -> Option<Unreadable> {
        if !self.footprint.has_unreadable() {
            return None;
        }
        let found = self.objects_of(node).ok()?.into_iter().filter_map(|object| object.unreadable());
        found.reduce(|one, other| Unreadable {
            corrupt: one.corrupt + other.corrupt,
            why: if one.corrupt > 0 { one.why } else { other.why },
        })
    }

    /// Problems found and corrected while it was opened.
    pub fn events(&self) -> &[Note] {
        self.journal.notes()
    }

    /// Length of its log in bytes when it was opened.
    pub fn log_bytes(&self) -> u64 {
        self.journal.bytes()
    }

    /// Why the collection refuses writes since a sync failed, if one did.
    pub fn poisoned(&self) -> Option<&str> {
        self.journal.poisoned()
    }

    /// Result of the last checkpoint since the collection was opened.
    pub fn last_checkpoint(&self) -> Option<Checkpoint> {
        self.journal.last_checkpoint()
    }

    /// The clock, and the ticks that accesses are counted in.
    pub fn ticks(&self) -> &Ticks {
        self.services.ticks()
    }

    /// The value of the setting `pack` for a node: its own, an inherited one, or that of the store.
    pub fn pack_of<'a>(&self, state: &'a State, node: EntryId) -> &'a str {
        let default = if self.services.defaults.packs { PACKS[1] } else { PACKS[0] };
        state.inherited(node, PACK).unwrap_or(default)
    }

    /// The thresholds of a node: its own, inherited ones, and those of the store.
    pub fn thresholds_of(&self, state: &State, node: EntryId) -> Thresholds {
        state.thresholds(node, &self.services.defaults.thresholds)
    }

    /// A use now of a file that was created at `created_at`, in seconds since 1970, and has the thresholds of `node`.
    pub fn use_of(&self, node: EntryId, created_at: u64) -> FileUse {
        let ticks = self.ticks();
        let share = self.thresholds_of(&self.state(), node).ema_share as f32;
        FileUse { created: ticks.of(created_at), now: ticks.now(), share }
    }

    /// Whether exact tensors that arrive at a node are packed.
    pub fn packs(&self, state: &State, node: EntryId) -> bool {
        self.pack_of(state, node) != PACKS[0]
    }

    /// Why a tensor of this name that arrives stays exact, if it does. `has_codes` says whether its file has codes.
    pub fn kept_by(&self, name: &str, has_codes: bool) -> Option<KeptBy> {
        kept_by(&self.services.defaults.keep, name, has_codes)
    }

    /// The log that receives its events.
    pub fn event_log(&self) -> &Arc<Events> {
        self.services.events()
    }

    /// Notifies that names lead elsewhere or nowhere.
    pub fn invalidate_all_names(&self) {
        self.services.invalidate_all_names();
    }

    /// The path in the store of a data file of its own.
    pub fn data_path(&self, id: u64) -> String {
        self.files.data_path(id)
    }

    /// The path in the store of a tier file.
    pub fn tier_path(&self, number: u8) -> String {
        self.files.tier_path(number)
    }

    /// The path of the file that contains a payload: relative to the store, or absolute for an outside
    /// file.
    pub fn path_of_payload(&self, object: &Object, stored: &Stored) -> String {
        self.files.path_of_payload(object, stored)
    }

    /// Opens a data file. Concurrent users share one open file.
    pub fn data_file(&self, id: u64) -> Result<Arc<dyn File>> {
        let outside = self.state.read().outside(id).cloned();
        self.files.data_file(id, outside.as_ref())
    }

    /// Bytes that its disk has free.
    pub fn free_bytes(&self) -> Result<u64> {
        let space = self.files.disk().space();
        space.map(|space| space.available).map_err(|error| Error::io("asking the disk for its space", error))
    }

    /// Opens an outside file by its name. Reads succeed while it has its recorded length.
    pub fn open_outside(&self, outside: &Arc<OutsideFile>) -> Result<Arc<dyn File>> {
        self.files.open_outside(outside)
    }

    /// Removes a data file without objects. If that fails, the file is found when the collection is
    /// opened again.
    pub fn remove_data_file(&self, id: u64) {
        self.files.remove_data_file(id);
        self.meter.data_file_gone();
    }

    /// The hash of a batch's present content. `compute` reads the whole batch and runs once a version.
    pub fn batch_hash(
        &self,
        node: EntryId,
        parts: &[Arc<Object>],
        compute: impl FnOnce() -> Result<u64>,
    ) -> Result<u64> {
        self.digest_cache.batch_hashes.cached(node, parts, || self.are_untouched(parts), compute)
    }

    /// The digests of the present content of a file with these parts. `compute` reads the whole file
    /// and runs once a version.
    pub fn sums(
        &self,
        node: EntryId,
        parts: &[Arc<Object>],
        compute: impl FnOnce() -> Result<Sums>,
    ) -> Result<Sums> {
        self.digest_cache.sums.cached(node, parts, || self.are_untouched(parts), compute)
    }

    /// The tensors that a model has in its data files. `read` reads the model and runs once a recognition.
    pub fn model_data(
        &self,
        node: EntryId,
        read: impl FnOnce() -> Result<DataFiles>,
    ) -> Result<Arc<DataFiles>> {
        let objects = {
            let state = self.state.read();
            let file = state.node(node).and_then(|node| node.file());
            file.map(|file| (file.objects.first().copied(), file.objects.len()))
        };
        self.digest_cache.models.cached(node, objects.unwrap_or_default(), read)
    }

    /// Whether the outside files of these parts have their recorded modification times.
    fn are_untouched(&self, parts: &[Arc<Object>]) -> bool {
        let origins = parts.iter().filter_map(|part| part.origin.as_ref());
        let mut files: Vec<&Arc<OutsideFile>> = origins.map(|origin| &origin.file).collect();
        files.dedup_by_key(|file| file.file);
        let is_untouched = |recorded: &&Arc<OutsideFile>| {
            let opened = self.files.data_file(recorded.file, Some(recorded));
            opened.is_ok_and(|file| is_untouched(&*file, recorded).unwrap_or(false))
        };
        files.iter().all(is_untouched)
    }

    fn restore_usage(&self) {
        self.footprint.damage_file.restore(&self.files);
        UsageFile::restore(&self.files, &self.state(), self.ticks());
    }

    /// Saves the usage of blocks if there was any since the last time. A failure is only logged,
    /// because nothing depends on the file.
    pub fn save_usage(&self, when: SaveUsage) {
        if self.access() == Access::Write && self.check_writable().is_ok() {
            let objects = || self.state().objects().cloned().collect();
            self.usage.save(when, &self.files, self.ticks(), objects);
        }
        self.save_damage();
    }

    /// Saves which objects have corrupt blocks, if that has changed since the last time.
    pub fn save_damage(&self) {
        if self.access() == Access::Write && self.check_writable().is_ok() {
            self.footprint.damage_file.retain(|object| self.state().object(object).is_some());
            let corrupt = self.unreadable().into_iter().filter(|(_, found)| found.corrupt > 0);
            self.footprint.damage_file.save(&self.files, corrupt.map(|(object, _)| object.entry.id));
        }
    }

    /// Whether corrupt blocks of a file were found, perhaps before the collection was opened.
    pub fn is_suspect(&self, node: EntryId) -> bool {
        let is_suspect = |object: &Arc<Object>| {
            self.footprint.damage_file.suspects(object.entry.id)
                || object.unreadable().is_some_and(|found| found.corrupt > 0)
        };
        self.objects_of(node).is_ok_and(|objects| objects.iter().any(is_suspect))
    }

    /// Notes that all blocks of an object were checked.
    pub fn note_checked(&self, object: &Object) {
        self.footprint.damage_file.note_checked(object.entry.id);
    }

    /// Notes that blocks were used.
    pub fn note_use(&self) {
        if self.usage.note_use() {
            self.footprint.note_growth();
        }
    }

    /// `ReadOnly`, with the reason, if the collection accepts no writes.
    pub fn check_writable(&self) -> Result<()> {
        match (self.poisoned(), self.damage(), self.access()) {
            (None, None, Access::Write) => Ok(()),
            // Reads ask too, and must not wait for the writer.
            (Some(reason), ..) => Err(self.read_only(reason)),
            _ => self.writer().map(drop),
        }
    }

    pub(in crate::store) fn read_only(&self, reason: &str) -> Error {
        Error::new(ErrorKind::ReadOnly, format!("{} takes no writes: {reason}", self.path()))
    }

    /// The writer, locked; `ReadOnly` if there is none, with the reason.
    pub(in crate::store) fn writer(&self) -> Result<MappedMutexGuard<'_, Writer>> {
        let writer = self.journal.lock();
        if let Some(reason) = self.poisoned() {
            return Err(self.read_only(reason));
        }
        MutexGuard::try_map(writer, Option::as_mut).map_err(|_| match self.damage() {
            Some(damage) => self.read_only(&format!("{}; run tierfs fsck", damage.reason)),
            None => Error::new(ErrorKind::ReadOnly, format!("{} was opened to be read only", self.path())),
        })
    }

    /// The objects that the bytes of a file lie in, in order; `Corrupt` if one does not exist.
    pub fn objects_of(&self, node: EntryId) -> Result<Vec<Arc<Object>>> {
        self.parts_of(node).map(|(objects, _)| objects)
    }

    /// The objects that the bytes of a file lie in, in order, and how it is assembled from them: an embedding batch from
    /// its parts, a view from objects of its container. `Corrupt` if an object does not exist.
    pub fn parts_of(&self, node: EntryId) -> Result<Parts> {
        self.parts_in(&self.state.read(), node)
    }

    /// [`parts_of`](Self::parts_of) with a state that is locked already.
    pub fn parts_in(&self, state: &State, node: EntryId) -> Result<Parts> {
        let Some(file) = state.node(node).and_then(|node| node.file()) else {
            return Err(Error::new(
                ErrorKind::Gone,
                format!("{}: no file has number {}", self.path(), node.0),
            ));
        };
        let parts = state.parts_of(file);
        parts.map_err(|error| {
            let path = String::from_utf8_lossy(&state.path(node)).into_owned();
            error.at(format_args!("{}/{path}", self.path()))
        })
    }

    /// The path of the file that contains an object, as far as names lead to it.
    pub fn path_of(&self, object: &Object) -> String {
        self.path_in(&self.state.read(), object)
    }

    /// [`path_of`](Self::path_of), in a state that is locked already.
    pub(in crate::store) fn path_in(&self, state: &State, object: &Object) -> String {
        let id = object.entry.id;
        let has = |node: &&Arc<Node>| node.file().is_some_and(|file| file.objects.contains(&id));
        let node = state.part_of(id).or_else(|| state.nodes().find(has).map(|node| node.entry.id));
        let below = node.map(|node| state.path(node)).filter(|below| !below.is_empty());
        below.map_or_else(
            || self.path(),
            |below| format!("{}/{}", self.path(), String::from_utf8_lossy(&below)),
        )
    }

    /// The meter of its use.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Counts its use for its tenant too: with the meter that it had before it was closed, if there is one.
    pub(in crate::store) fn metered(mut self, above: Arc<Meter>, before: Option<Arc<Meter>>) -> Collection {
        let path = self.path();
        let kept = self.state.get_mut();
        let limits = match kept.setting(ROOT, LIMITS_SETTING).map(|text| Limits::default().changed(text)) {
            Some(Ok(limits)) => limits,
            Some(Err(error)) => {
                log::warn!("{path}: ignoring unreadable quota: {error}");
                Limits::default()
            }
            None => Limits::default(),
        };
        let used = kept.used();
        self.meter = before.unwrap_or_else(|| Meter::new(&path, Some(above), limits));
        self.meter.set_limits(limits);
        self.meter.set_used(used);
        self
    }

    /// Sets the limits, durably.
    pub fn set_limits(&self, limits: Limits) -> Result<()> {
        self.commit(Touched::default(), |batch, _| {
            let value = (!limits.are_none()).then(|| limits.to_text());
            batch.entry(Entry::Setting { node: ROOT, key: LIMITS_SETTING.to_owned(), value });
            Ok(())
        })?;
        self.meter.set_limits(limits);
        Ok(())
    }
}

/// Called when names change. The writer's locks are held during the call.
type NameWatcher = Box<dyn Fn() + Send + Sync>;

/// Values for nodes without their own settings.
#[derive(Clone, Default)]
pub(in crate::store) struct Defaults {
    /// Whether exact tensors are packed.
    pub packs: bool,
    /// Tensors with one of these words in their names stay exact.
    pub keep: Arc<[String]>,
    pub thresholds: Thresholds,
}

/// The services that a store gives to each collection that it opens.
#[derive(Clone, Default)]
pub(in crate::store) struct Services {
    ticks: Ticks,
    /// Provides other sources of blocks, once it is set.
    rebuilder: Arc<OnceLock<Arc<dyn Rebuild>>>,
    lineage: Arc<Lineage>,
    name_watcher: Arc<OnceLock<NameWatcher>>,
    events: Arc<Events>,
    defaults: Defaults,
    sharing: Arc<Sharing>,
    /// Number of collections that were opened.
    opened: Arc<AtomicU64>,
}

impl Services {
    /// New services with this clock.
    pub fn new(ticks: Ticks, defaults: Defaults, sharing: Sharing) -> Services {
        Services { ticks, defaults, sharing: Arc::new(sharing), ..Services::default() }
    }

    /// These services, with the dependencies between objects that others have.
    pub fn with_lineage_of(self, others: &Services) -> Services {
        Services { lineage: others.lineage.clone(), ..self }
    }

    /// The number of collections that were opened.
    #[inline]
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Counts a collection that was opened.
    pub fn note_opening(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    /// The data files that new files may share.
    pub fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// The clock, and the ticks that accesses are counted in.
    pub fn ticks(&self) -> &Ticks {
        &self.ticks
    }

    /// Sets the clock for collections that are not open yet.
    pub fn set_ticks(&mut self, ticks: Ticks) {
        self.ticks = ticks;
    }

    /// The provider of other sources of blocks, if it is set.
    #[inline]
    pub fn rebuilder(&self) -> Option<&Arc<dyn Rebuild>> {
        self.rebuilder.get()
    }

    /// Sets the provider of other sources of blocks. Only the first call has an effect.
    pub fn set_rebuilder(&self, rebuilder: Arc<dyn Rebuild>) {
        self.rebuilder.get_or_init(|| rebuilder);
    }

    /// The dependencies between objects.
    pub fn lineage(&self) -> &Arc<Lineage> {
        &self.lineage
    }

    /// The event log.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Sets the function that is called when names change. Only the first call has an effect.
    pub fn watch_names(&self, tell: impl Fn() + Send + Sync + 'static) {
        self.name_watcher.get_or_init(|| Box::new(tell));
    }

    /// Notifies that names lead elsewhere or nowhere.
    pub fn invalidate_all_names(&self) {
        if let Some(tell) = self.name_watcher.get() {
            tell();
        }
    }
}
