//! The store as a whole: its lock, its settings, its tenants and collections.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::snapshot::keys;
use crate::model::{
    CollectionName, Error, ErrorKind, OwnedCollectionName, Owner, Result, StoreId, check_label,
};
use crate::store::clock::{Clock, HostClock, Ticks};
use crate::store::clones::{Clones, PieceSource};
use crate::store::collection::identity::Access;
use crate::store::collection::lineage::children_in;
use crate::store::collection::open::refuse_remains;
use crate::store::collection::open_object::Rebuild;
use crate::store::collection::{Collection, Defaults, Services};
use crate::store::disk::descriptors::Descriptors;
use crate::store::disk::remote::Traffic;
use crate::store::disk::{Disk, File, Lock, Open, Space, remove_if_present, replace_file};
use crate::store::events::{EventKind, Events};
use crate::store::io::link::Shared;
use crate::store::link_candidates::{Sharing, data_number};
use crate::store::many_at_once::{InFlight, at_once};
use crate::store::open_collections::OpenCollections;
use crate::store::quota::{Limits, Meter, Room, Use};
use crate::store::repair::set_aside::open_collection;
use crate::store::repair::{Repaired, repair};
use crate::store::settings::{PACKS, Settings};
use crate::store::tenant::{Tenant, TenantEntry, Tenants};
use crate::store::upstream::{Directories, Look, ShownSnapshot, UnopenedCollection, Upstream};
use crate::store::version_list::{Names, numbers};

/// Name of the file that makes a directory a store.
pub(in crate::store) const SETTINGS_NAME: &str = "tierfs.toml";
/// Name of the file with the highest number that a collection was given.
const NUMBER_NAME: &str = ".tierfs.number";
/// Files of the store, which no tenant's directory may be named after.
const TAKEN_NAMES: [&str; 2] = [SETTINGS_NAME, "lock"];
/// Default permission bits of a tenant or a collection.
const DIRECTORY_MODE: u32 = 0o755;
/// Variants of collections, by number and name; `None` for those that were not published.
type Variants = HashMap<(u32, String), Option<Arc<Collection>>>;
/// Maximum size of the settings file.
const SETTINGS_BYTES_MAX: u64 = 1 << 20;
/// A higher number in that file is not believed: inode numbers have no room for it.
const NUMBER_MAX: u32 = 1 << 23;
/// Maximum size of that file.
const NUMBER_BYTES_MAX: u64 = 11;

/// An open store: a disk with a lock, settings, tenants, and the collections that are open.
///
/// One process writes to a store; the lock says which. A collection is opened at its first use, under the lock of `open` so
/// that it is opened once, and closed again when it was not used for a while and memory or descriptors are needed. Tenants
/// are small files that are read when they are asked for. Collections get numbers of their own (`numbered`), which are never
/// used twice, since inode numbers contain them.
///
/// The disk may have a remote behind it (`Upstream`): of clones, whose missing pieces are fetched, or of snapshots, which
/// are only shown. All that collections share is in `services`: clock, lineage, events, the rebuilder of blocks.
pub struct Store {
    pub(in crate::store) disk: Arc<dyn Disk>,
    pub(in crate::store) upstream: Arc<dyn Upstream>,
    pub(in crate::store) access: Access,
    pub(in crate::store) settings: Settings,
    /// Open collections. Held while one of this machine is opened, so that no collection is opened twice.
    pub(in crate::store) open: Mutex<OpenCollections>,
    /// Collections of a remote that threads are opening.
    pub(in crate::store) opening: InFlight<OwnedCollectionName, Result<Arc<Collection>, Arc<Error>>>,
    variants: Mutex<Variants>,
    pub(in crate::store) versions: Versions,
    pub(in crate::store) tenants: Tenants,
    /// The highest number given to a collection since the store was opened.
    numbered: Mutex<u32>,
    pub(in crate::store) services: Services,
    lock: Box<dyn Any + Send + Sync>,
}

/// The versions of collections.
#[derive(Default)]
pub(in crate::store) struct Versions {
    /// Those that are open, by the names that `version_name` gives. Held while one is opened.
    pub open: Mutex<HashMap<OwnedCollectionName, Arc<Collection>>>,
    /// Held while versions are made, stored as differences, or removed. Comes before all other locks.
    pub making: Mutex<()>,
    /// The first version of a collection that stays. Earlier ones go when nobody uses them.
    pub surplus: Mutex<HashMap<OwnedCollectionName, u64>>,
}

/// The outcome of a look for newer snapshots.
pub struct Refreshed {
    /// The collections that show another snapshot now, as `TENANT/COLLECTION`, in order.
    pub paths: Vec<String>,
    /// Why others could not be looked for.
    pub failed: Option<Error>,
}

impl Store {
    /// Creates an empty store on a disk without one. `id` must be random.
    pub fn create(disk: &dyn Disk, id: StoreId) -> Result<()> {
        let failed = |error| Error::io(format!("making a store in {}", disk.place()), error);
        let listed = disk.list("").map_err(failed)?;
        if listed.iter().any(|entry| entry.name == SETTINGS_NAME) {
            return Err(Error::new(ErrorKind::Exists, format!("{} is a store already", disk.place())));
        }
        if listed.iter().any(|entry| !entry.name.starts_with(".tierfs")) {
            let place = disk.place();
            return Err(Error::new(
                ErrorKind::Exists,
                format!("{place} is not empty, and not a tierfs store; name an empty or new directory"),
            ));
        }
        // The settings file makes it a store, so it appears complete and last.
        let draft = ".tierfs.toml.new";
        replace_file(disk, draft, SETTINGS_NAME, Settings::new(id).to_text().as_bytes()).map_err(failed)
    }

    /// Whether there is a store on the disk that this user can open.
    pub fn exists(disk: &dyn Disk) -> bool {
        disk.open(SETTINGS_NAME, Open::Read).is_ok()
    }

    /// Whether there is a store on the disk. Fails if this user may not look.
    pub fn is_there(disk: &dyn Disk) -> Result<bool> {
        match open_settings(disk) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Fails as [`open`](Self::open) does where there is no store, and for settings that this program does not know.
    pub fn check(disk: &dyn Disk) -> Result<()> {
        read_settings(disk, &*open_settings(disk)?).map(drop)
    }

    /// Opens a store. `Busy` if another holder excludes this one. `note` identifies this holder to others.
    pub fn open(disk: Arc<dyn Disk>, access: Access, note: &str) -> Result<Store> {
        let descriptors = Arc::new(Descriptors::new(disk));
        let clones = Arc::new(Clones::new(descriptors.clone(), access == Access::Write));
        Store::open_on(clones.clone(), clones, &descriptors, access, note)
    }

    /// Opens a store on a disk with a remote behind it, which is only read.
    pub(in crate::store) fn open_shown(shown: ShownSnapshot) -> Result<Store> {
        let descriptors = Arc::new(Descriptors::new(shown.disk));
        Store::open_on(descriptors.clone(), shown.upstream, &descriptors, Access::Read, "")
    }

    fn open_on(
        disk: Arc<dyn Disk>,
        upstream: Arc<dyn Upstream>,
        descriptors: &Descriptors,
        access: Access,
        note: &str,
    ) -> Result<Store> {
        let place = disk.place();
        let file = open_settings(&*disk)?;
        let lock = if access == Access::Write { Lock::Exclusive } else { Lock::Shared };
        let lock = disk.lock(lock, note).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => {
                Error::new(ErrorKind::Busy, format!("{place} is in use by {}", error.to_string().trim_end()))
            }
            _ => Error::io(format!("locking {place}"), error),
        })?;
        let settings = read_settings(&*disk, &*file)?;
        descriptors.keep_to(settings.descriptors_max);
        let tenants = Tenants::new(disk.clone(), upstream.snapshots().is_none());
        let (open, numbered) = (Mutex::default(), Mutex::default());
        let ticks = Ticks::new(Arc::new(HostClock), settings.rules.tick_seconds);
        let sharing = Sharing::new(&disk, settings.share);
        let packs = settings.pack != PACKS[0];
        let defaults =
            Defaults { packs, keep: settings.keep.clone().into(), thresholds: settings.rules.thresholds };
        let services = Services::new(ticks, defaults, sharing);
        let (variants, versions) = (Mutex::default(), Versions::default());
        let store = Store {
            disk,
            upstream,
            access,
            settings,
            open,
            opening: InFlight::default(),
            variants,
            versions,
            tenants,
            numbered,
            services,
            lock,
        };
        if access == Access::Write
            && let Err(error) = store.finish_removals()
        {
            log::warn!("an interrupted removal still takes space: {error}");
        }
        Ok(store)
    }

    /// Its lock, as the disk has made it.
    pub fn lock(&self) -> &(dyn Any + Send + Sync) {
        &*self.lock
    }

    /// Its location, for messages.
    pub fn place(&self) -> String {
        self.disk.place()
    }

    /// Its uuid.
    pub fn id(&self) -> StoreId {
        self.settings.store
    }

    /// Sets the clock for collections that are not open yet.
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Store {
        self.services.set_ticks(Ticks::new(clock, self.settings.rules.tick_seconds));
        self
    }

    /// Sets the bound of memory that the settings have.
    #[cfg(test)]
    pub(in crate::store) fn set_idle_memory_max(&mut self, bytes: u64) {
        self.settings.idle_memory_max = bytes;
    }

    /// The clock, and the ticks that accesses are counted in.
    pub fn ticks(&self) -> &Ticks {
        self.services.ticks()
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether it was opened for writing.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Writes the events of the store to its trail from now on, unless its settings say no.
    pub fn keep_trail(&self) {
        if self.settings.audit {
            self.events().keep_on(self.disk.clone());
        }
    }

    /// Events since the store was opened.
    pub fn events(&self) -> &Arc<Events> {
        self.services.events()
    }

    /// Frees the space of all that was removed in open collections. Whether there was any; a request that found the
    /// disk full is then worth a retry.
    pub fn make_room(&self) -> bool {
        let open = self.open_collections();
        let writable = open.iter().filter(|open| open.access() == Access::Write);
        writable.filter(|open| open.make_room()).count() > 0
    }

    /// Whether a collection has space that was given up and is not free yet, because something uses it.
    pub fn has_freed(&self) -> bool {
        self.open_collections().iter().any(|open| open.has_freed())
    }

    /// Space left on its disk.
    pub fn space(&self) -> Result<Space> {
        self.disk.space().map_err(|error| Error::io(format!("asking {} for its space", self.place()), error))
    }

    /// The tenants' names, sorted.
    pub fn tenants(&self) -> Result<Vec<String>> {
        self.directories("")
    }

    /// The names of a tenant's collections, sorted. A collection whose creation never finished is
    /// included; opening it returns `NotFound`.
    pub fn collections(&self, tenant: &str) -> Result<Vec<String>> {
        check_tenant(tenant)?;
        self.directories(tenant)
    }

    /// All collections with their paths, in the order of the names. Each is opened when the iterator comes to it,
    /// which may fail. Skips collections that are removed meanwhile.
    pub fn all_collections(
        &self,
    ) -> Result<impl Iterator<Item = (String, Result<Arc<Collection>>)> + use<'_>> {
        let mut names = Vec::new();
        for tenant in self.tenants()? {
            names.extend(self.collections(&tenant)?.into_iter().map(|name| (tenant.clone(), name)));
        }
        Ok(names.into_iter().filter_map(|(tenant, name)| match self.collection(&tenant, &name) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            collection => Some((format!("{tenant}/{name}"), collection)),
        }))
    }

    /// A collection, opened if it is not open yet, or a version of one, by the name that [`version`](Self::version) has
    /// given it. If the tenant has limits, its other collections are opened too.
    pub fn collection(&self, tenant: &str, name: &str) -> Result<Arc<Collection>> {
        let collection = self.opened(tenant, name)?;
        self.count_if_limited(tenant)?;
        Ok(collection)
    }

    /// Closes collections that nobody uses while all take more memory than the setting `idle_memory_max` says.
    /// Called from time to time, because open ones grow and become unused. Returns the bytes of memory of all that were
    /// ever closed so.
    pub fn close_unused(&self) -> u64 {
        self.close_unused_versions();
        self.remove_surplus_versions();
        let mut open = self.open.lock();
        let closed = self.closed(&mut open);
        let bytes = open.closed_bytes();
        drop((open, closed));
        bytes
    }

    /// The collections that are closed because nobody uses them; none of a remote, whose next opening could show
    /// another snapshot.
    pub(in crate::store) fn closed(&self, open: &mut OpenCollections) -> Vec<Collection> {
        if self.shows_snapshots() {
            return Vec::new();
        }
        open.close_unused(self.settings.idle_memory_max)
    }

    /// The [summary](Collection::summarized) of a type that a collection had when it was closed because nobody used it.
    pub fn closed_summary<T: Send + Sync + 'static>(&self, tenant: &str, name: &str) -> Option<Arc<T>> {
        let open = self.open.lock();
        let closed = open.closed(&OwnedCollectionName::new(tenant, name))?;
        closed.summaries.iter().find_map(|summary| summary.clone().downcast().ok())
    }

    /// The disk of one collection of a remote, with as many descriptors as the setting says.
    pub(in crate::store) fn limited(&self, shown: ShownSnapshot) -> (Arc<dyn Disk>, Arc<dyn Upstream>) {
        let limited = Descriptors::new(shown.disk);
        limited.keep_to(self.settings.descriptors_max);
        (Arc::new(limited), shown.upstream)
    }

    /// Opens a collection read-only in its present state, for any access of the store; corrects nothing.
    /// `Corrupt` if its log is gone.
    pub fn look_at(&self, tenant: &str, name: &str) -> Result<Arc<Collection>> {
        let opened = open_collection(&self.disk, self.id(), CollectionName::new(tenant, name), Access::Read)
            .map(|opened| opened.with_upstream(Some(self.upstream.clone())));
        if opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            refuse_remains(&self.disk, &format!("{tenant}/{name}"))?;
        }
        opened.map(Arc::new)
    }

    /// The collections that may have had tensors stored as differences to this one, and that are not there.
    pub fn missing_children(&self, collection: &Collection) -> Vec<String> {
        let places = children_in(&collection.state()).into_iter();
        let missing = places.filter(|place| {
            let found = self.look_at(&place.tenant, &place.name);
            found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
        });
        missing.map(|place| place.to_string()).collect()
    }

    /// Forgets these, durably: what they had of a collection can change again.
    pub fn forget_missing_children(&self, tenant: &str, name: &str) -> Result<()> {
        let collection = self.opened(tenant, name)?;
        let missing = self.missing_children(&collection);
        collection.forget_children_in(|place| missing.contains(&place.to_string()))
    }

    /// Repairs a collection that is not open. `number` becomes its number if the log has lost it.
    pub fn repair(&self, tenant: &str, name: &str, number: u32) -> Result<Option<Repaired>> {
        if self.access != Access::Write {
            let text = format!("{} was opened to be read only", self.place());
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        let repaired = repair(&self.disk, self.id(), CollectionName::new(tenant, name), number)?;
        if repaired.is_some() {
            // Now the logs have a number that the file does not know.
            let removed = remove_if_present(&*self.disk, NUMBER_NAME);
            removed.map_err(|error| Error::io(format!("removing {}/{NUMBER_NAME}", self.place()), error))?;
        }
        Ok(repaired)
    }

    /// A collection, created with its tenant if it does not exist. `owner` is its user and group.
    pub fn collection_made(&self, tenant: &str, name: &str, owner: Owner) -> Result<Arc<Collection>> {
        self.collection_made_with(tenant, name, owner, DIRECTORY_MODE)
    }

    /// A collection, created with these permission bits, and its tenant, if it does not exist.
    pub fn collection_made_with(
        &self,
        tenant: &str,
        name: &str,
        owner: Owner,
        mode: u32,
    ) -> Result<Arc<Collection>> {
        match self.collection(tenant, name) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            found => return found,
        }
        match self.create_tenant(tenant, owner, DIRECTORY_MODE) {
            Err(error) if error.kind() != ErrorKind::Exists => return Err(error),
            _ => {}
        }
        self.count_if_limited(tenant)?;
        let number = self.free_number()?;
        let mut open = self.open.lock();
        // Another thread may have made it since.
        if let Some(made) = open.get(&OwnedCollectionName::new(tenant, name)) {
            return Ok(made.clone());
        }
        let collection = Collection::create(
            &self.disk,
            self.id(),
            CollectionName::new(tenant, name),
            number,
            owner,
            mode,
        )?;
        let collection = collection.with_upstream(Some(self.upstream.clone()));
        Ok(self.keep(&mut open, OwnedCollectionName::new(tenant, name), collection))
    }

    /// Forgets an open collection, so that its next use opens it again. Code that has the collection goes on with
    /// it. Only for a store that is only read.
    pub fn forget(&self, tenant: &str, name: &str) {
        if self.access == Access::Read {
            let place = OwnedCollectionName::new(tenant, name);
            let old = {
                let mut open = self.open.lock();
                open.take_closed(&place);
                open.remove(&place)
            };
            if let Some(old) = old {
                let number = old.state().number();
                self.variants.lock().retain(|(of, _), _| *of != number);
            }
            self.tenants.forget(tenant);
            self.services.invalidate_all_names();
        }
    }

    /// A variant of a collection of a remote, with the same nodes; `None` if it was not published.
    pub fn variant(&self, collection: &Arc<Collection>, name: &str) -> Result<Option<Arc<Collection>>> {
        let Some(upstream) = collection.files.upstream() else { return Ok(None) };
        let Some(snapshots) = upstream.snapshots() else { return Ok(None) };
        let key = (collection.state().number(), name.to_owned());
        if let Some(known) = self.variants.lock().get(&key) {
            return Ok(known.clone());
        }
        // Others go on while the remote does not answer.
        let path = collection.path();
        let found = snapshots.variant(collection.place(), name);
        let found = found.map_err(|error| Error::io(format!("opening {path} in {name}"), error))?;
        let opened = match found {
            Some(variant) => {
                let (disk, upstream) = self.limited(variant);
                let opened = open_collection(&disk, self.id(), collection.place(), Access::Read)?;
                let opened = opened.with_upstream(Some(upstream));
                // The tenant has the use of the collection itself.
                let meter = Meter::new("", None, Limits::default());
                Some(Arc::new(opened.joined(&self.services, &meter, None)))
            }
            None => None,
        };
        // Another thread may have been faster.
        Ok(self.variants.lock().entry(key).or_insert(opened).clone())
    }

    /// Whether it shows snapshots of a remote.
    pub fn shows_snapshots(&self) -> bool {
        self.upstream.snapshots().is_some()
    }

    /// The traffic with the remote whose snapshots it shows; `None` of another store.
    pub fn traffic(&self) -> Option<Traffic> {
        self.upstream.snapshots().map(|snapshots| snapshots.traffic())
    }

    /// Drops bytes of a remote that are kept in memory for readers.
    pub fn drop_buffers(&self) {
        if let Some(snapshots) = self.upstream.snapshots() {
            snapshots.drop_buffers();
        }
    }

    /// Records what the cache of a remote keeps, for the next mount. Requests to the remote that nobody waits for keep the
    /// store in memory until they end, so a mount that ends cannot leave this to its drop.
    pub fn save_cache(&self) {
        if let Some(snapshots) = self.upstream.snapshots() {
            snapshots.save_cache();
        }
        self.upstream.clones().into_iter().for_each(|clones| clones.save_cache());
    }

    /// Asks the remote for the directories of a tenant's collections, for [`unopened`](Self::unopened). `None` if it does not
    /// list them, and of other stores.
    pub fn list_directories(&self, tenant: &str) -> Result<Option<Arc<Directories>>> {
        let Some(snapshots) = self.upstream.snapshots() else { return Ok(None) };
        let failed = |error| Error::io(format!("listing {}/{tenant}", self.place()), error);
        snapshots.list_directories(tenant).map_err(failed)
    }

    /// A collection of a remote that nobody has opened, if the remote has said its directory.
    pub fn unopened(&self, tenant: &str, name: &str) -> Option<UnopenedCollection> {
        self.upstream.snapshots()?.unopened(CollectionName::new(tenant, name))
    }

    /// The results of `work` on each name: one when the iterator comes to it, or all of them, 64 at a time, where that waits
    /// for a remote.
    pub fn each<R: Send, Work: Fn(&str) -> R + Sync>(
        &self,
        names: Vec<String>,
        work: Work,
    ) -> impl Iterator<Item = (String, R)> + use<R, Work> {
        let most = if self.shows_snapshots() { usize::MAX } else { 1 };
        let mut names = names.into_iter();
        let some = move || {
            let some: Vec<String> = names.by_ref().take(most).collect();
            let results = at_once(&some, |name| work(name));
            (!some.is_empty()).then(|| some.into_iter().zip(results))
        };
        std::iter::from_fn(some).flatten()
    }

    /// Shows newer snapshots of a remote from now on, of the collections that `look` says. Open files stay those of the snapshot before. `NotSupported` for a
    /// store that is not a remote.
    pub fn refresh(&self, look: Look) -> Result<Refreshed> {
        let place = self.disk.place();
        let Some(snapshots) = self.upstream.snapshots() else {
            let text = format!("{place} is not a remote, so it has no newer snapshots");
            return Err(Error::new(ErrorKind::NotSupported, text));
        };
        let paths = Mutex::new(Vec::new());
        let renewed = |shown: &OwnedCollectionName| {
            self.forget(&shown.tenant, &shown.name);
            let text = match snapshots.number(shown.borrowed()) {
                Ok(number) => format!("shows snapshot {number}"),
                // It has none any more.
                Err(error) => format!("is not shown: {error}"),
            };
            log::info!("{shown}: {text}");
            self.events().tell(EventKind::Snapshot, &shown.to_string(), "", &text);
            paths.lock().push(shown.to_string());
        };
        let done = snapshots.renew_all(look, &renewed);
        let failed =
            done.err().map(|error| Error::io(format!("looking for newer snapshots in {place}"), error));
        let mut paths = paths.into_inner();
        paths.sort_unstable();
        Ok(Refreshed { paths, failed })
    }

    /// A text that differs after something was pushed to a remote that is shown; `None` if the remote does not say so.
    pub fn last_push(&self) -> Option<Vec<u8>> {
        self.upstream.snapshots().and_then(|snapshots| snapshots.last_push())
    }

    /// Sets the source of the pieces of clones. Only the first call has an effect.
    pub fn set_piece_source(&self, source: Arc<dyn PieceSource>) {
        if let Some(clones) = self.upstream.clones() {
            clones.set_source(source);
        }
    }

    /// Sets the provider of other sources of blocks. Only the first call has an effect.
    pub fn set_rebuilder(&self, rebuilder: Arc<dyn Rebuild>) {
        self.services.set_rebuilder(rebuilder);
    }

    /// Sets the function that is called, before a batch counts as recorded, when names lead elsewhere
    /// or nowhere. Only the first call has an effect. `tell` takes no lock of a store.
    pub fn tell_of_names(&self, tell: impl Fn() + Send + Sync + 'static) {
        self.services.watch_names(tell);
    }

    /// The data files of a collection that have further names, but those of its versions. A closed collection is not opened
    /// for that.
    pub fn shared_bytes(&self, tenant: &str, name: &str) -> Shared {
        // Held, so that the directory is not renamed meanwhile.
        let open = self.open.lock();
        if let Some(collection) = open.get(&OwnedCollectionName::new(tenant, name)).cloned() {
            drop(open);
            return collection.shared_bytes();
        }
        let mut shared = Shared::default();
        let versions = Names::of_versions(&*self.disk, CollectionName::new(tenant, name));
        let directory = format!("{tenant}/{name}/data");
        let listed = self.disk.list(&directory).unwrap_or_default();
        for file in listed.iter().filter(|file| data_number(&file.name).is_some()) {
            if let Ok(file) = self.disk.open(&format!("{directory}/{}", file.name), Open::Read) {
                shared.count(&*file, &versions);
            }
        }
        shared
    }

    /// Whether a collection is open.
    pub fn has_open(&self, tenant: &str, name: &str) -> bool {
        self.open.lock().get(&OwnedCollectionName::new(tenant, name)).is_some()
    }

    /// The open collections.
    pub fn open_collections(&self) -> Vec<Arc<Collection>> {
        self.open.lock().values().cloned().collect()
    }

    /// Creates a tenant. `owner` is its user and group, `mode` its permission bits. `Exists` if there is one.
    pub fn create_tenant(&self, name: &str, owner: Owner, mode: u32) -> Result<()> {
        check_tenant(name)?;
        if self.tenants()?.iter().any(|tenant| tenant == name) {
            return Err(Error::new(ErrorKind::Exists, format!("the tenant {name} exists already")));
        }
        let failed = |error| Error::io(format!("making the tenant {name}"), error);
        self.disk.create_directory(name).map_err(failed)?;
        self.tenants.write_new(name, owner, mode)?;
        self.disk.sync_directory("").map_err(failed)
    }

    /// Removes a tenant without collections.
    pub fn remove_tenant(&self, name: &str) -> Result<()> {
        if !self.tenants()?.iter().any(|tenant| tenant == name) {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no tenant {name}")));
        }
        if !self.collections(name)?.is_empty() {
            return Err(Error::new(ErrorKind::NotEmpty, format!("the tenant {name} has collections")));
        }
        let failed = |error| Error::io(format!("removing the tenant {name}"), error);
        self.tenants.remove_file(name)?;
        self.disk.remove_directory(name).map_err(failed)?;
        self.disk.sync_directory("").map_err(failed)
    }

    /// A tenant. One that does not exist has the defaults of a new one.
    pub fn tenant(&self, name: &str) -> Arc<Tenant> {
        self.tenants.get(name)
    }

    /// The number of a tenant, which inode numbers contain: in [`TENANT_NUMBERS`](crate::store::TENANT_NUMBERS). It keeps the
    /// number when it is renamed, and no later tenant of its name gets it.
    pub fn tenant_number(&self, name: &str) -> u64 {
        self.tenants.number(name)
    }

    /// Changes a tenant's file, durably.
    pub fn change_tenant(&self, name: &str, change: impl FnOnce(&mut TenantEntry)) -> Result<()> {
        self.tenants.change(name, change)?;
        self.count_if_limited(name)
    }

    /// The use of a tenant. Opens its collections; one that cannot be opened is not counted.
    pub fn tenant_use(&self, name: &str) -> Result<Use> {
        self.count_tenant(name)?;
        Ok(self.tenant(name).meter().used())
    }

    /// The room that the limits of a tenant leave.
    pub fn tenant_room(&self, name: &str) -> Result<Room> {
        self.count_if_limited(name)?;
        Ok(self.tenant(name).meter().room())
    }

    /// `Quota` if `more` exceeds a limit of the tenant.
    pub fn check_tenant_quota(&self, name: &str, more: Use) -> Result<()> {
        self.count_if_limited(name)?;
        self.tenant(name).meter().check(more)
    }

    /// Counts all collections of a tenant with limits.
    fn count_if_limited(&self, name: &str) -> Result<()> {
        // A remote has no limits, and may take long to say who owns the tenant.
        let is_free = self.shows_snapshots() || self.tenant(name).meter().limits().are_none();
        if is_free { Ok(()) } else { self.count_tenant(name) }
    }

    fn count_tenant(&self, name: &str) -> Result<()> {
        self.tenant(name).counted_by(|| {
            for collection in self.collections(name)? {
                match self.opened(name, &collection) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        log::warn!("{name}/{collection} is not counted for the quota: {error}");
                    }
                    _ => {}
                }
            }
            Ok(())
        })
    }

    /// A collection number that no other collection has; inode numbers contain it.
    pub(in crate::store) fn free_number(&self) -> Result<u32> {
        // Held until the number is given, so that two concurrent calls return different ones.
        let mut numbered = self.numbered.lock();
        let open = self.open_collections();
        let mut highest = open.iter().map(|open| open.state().number()).fold(*numbered, u32::max);
        match self.recorded_number() {
            Some(recorded) => highest = highest.max(recorded),
            None => {
                for (_, collection) in self.all_collections()? {
                    let collection = collection?;
                    highest = highest.max(collection.state().number());
                    for number in numbers(&*self.disk, collection.place())? {
                        // One that does not open is not shown.
                        let version = self.version(collection.place(), number);
                        highest = version.map_or(highest, |version| highest.max(version.state().number()));
                    }
                }
            }
        }
        let number =
            highest.checked_add(1).ok_or_else(|| Error::unsupported("more than 2^32 collections"))?;
        let draft = format!("{NUMBER_NAME}.new");
        let written = replace_file(&*self.disk, &draft, NUMBER_NAME, format!("{number}\n").as_bytes());
        written.map_err(|error| Error::io(format!("writing {}/{NUMBER_NAME}", self.place()), error))?;
        *numbered = number;
        Ok(number)
    }

    /// The highest number that a collection was given. `None` if no readable file says it: the logs do.
    fn recorded_number(&self) -> Option<u32> {
        let file = self.disk.open(NUMBER_NAME, Open::Read).ok()?;
        let len = file.len().ok().filter(|len| *len <= NUMBER_BYTES_MAX)?;
        let mut text = vec![0; len as usize];
        file.read_exact_at(&mut text, 0).ok()?;
        let number = std::str::from_utf8(&text).ok()?.strip_suffix('\n')?.parse().ok()?;
        (number <= NUMBER_MAX).then_some(number)
    }

    fn directories(&self, path: &str) -> Result<Vec<String>> {
        let listed = self.disk.list(path);
        let listed = listed.map_err(|error| Error::io(format!("listing {}/{path}", self.place()), error))?;
        let mut names: Vec<String> = listed
            .into_iter()
            .filter(|entry| entry.is_directory && check_label(&entry.name).is_ok())
            .map(|entry| entry.name)
            .collect();
        names.sort_unstable();
        Ok(names)
    }
}

/// The file with the settings of a store.
fn open_settings(disk: &dyn Disk) -> Result<Arc<dyn File>> {
    let place = disk.place();
    disk.open(SETTINGS_NAME, Open::Read).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
            if disk.open(keys::REMOTE, Open::Read).is_ok() {
                let url = std::path::absolute(&place).unwrap_or_else(|_| place.as_str().into());
                return Error::invalid(format!(
                    "{place} is the directory of a remote, not a store; its URL is file://{}",
                    url.display()
                ));
            }
            let text = format!("{place} is not a tierfs store; tierfs init makes one");
            Error::new(ErrorKind::NotFound, text)
        }
        _ => Error::io(format!("opening {place}/{SETTINGS_NAME}"), error),
    })
}

fn read_settings(disk: &dyn Disk, file: &dyn File) -> Result<Settings> {
    let place = disk.place();
    let failed = |error| Error::io(format!("reading {place}/{SETTINGS_NAME}"), error);
    let len = file.len().map_err(failed)?;
    if len > SETTINGS_BYTES_MAX {
        return Err(Error::invalid(format!("{place}/{SETTINGS_NAME} has {len} bytes")));
    }
    let mut text = vec![0; len as usize];
    file.read_exact_at(&mut text, 0).map_err(failed)?;
    Settings::parse(&String::from_utf8_lossy(&text)).map_err(|error| error.at(&place))
}

pub(in crate::store) fn check_tenant(name: &str) -> Result<()> {
    check_label(name).map_err(|wrong| Error::invalid(format!("the tenant {name:?} {wrong}")))?;
    if TAKEN_NAMES.contains(&name) {
        return Err(Error::invalid(format!(
            "the name {name:?} is reserved for a file of the store; choose another for the tenant"
        )));
    }
    Ok(())
}
