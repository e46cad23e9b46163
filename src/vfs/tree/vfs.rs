//! The mounted tree: tenants, their collections, and the files in them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use foldhash::quality::RandomState;
use parking_lot::{Mutex, RwLock};

use crate::engine::Engine;
use crate::format::log::catalog::NodeEntry;
use crate::model::{EntryId, Error, ErrorKind, NAME_BYTES_MAX, OwnedCollectionName, Owner, Result};
use crate::store::Verify;
use crate::store::now_nanoseconds;
use crate::store::{Collection, Store};
use crate::store::{Node, NumberBefore, ROOT, State};
use crate::store::{version_in, version_name, version_number};
use crate::vfs::form::PinnedForms;
use crate::vfs::open::{OpenFile, OpenFiles};
use crate::vfs::tree::attr::{Attr, Unlogged};
use crate::vfs::tree::caches::CacheUse;
use crate::vfs::tree::form_numbers::{FormNumbers, no_number};
use crate::vfs::tree::ino::{Ino, Owner as ControlOwner, Place};
use crate::vfs::tree::invalidation::Invalidation;
use crate::vfs::tree::kept_adapters::KeptAdapters;
use crate::vfs::tree::list_mode::ListMode;
use crate::vfs::tree::location::{
    CONTROL_NAME, ControlView, Controls, FORMS_NAME, FileView, FormView, Located, Scope, no_name,
};
use crate::vfs::tree::opened_forms::OpenedForms;
use crate::vfs::tree::row_orders::RowOrders;
use crate::vfs::tree::tag_places::{TAGS_NAME, TAGS_PLACE, TagNumbers, TagsView, Viewer};
use crate::vfs::tree::tenant::Mounted;
use crate::vfs::tree::unlinked_files::Unlinked;

/// The mounted tree without the kernel: numbers and names to nodes, and the requests on them.
///
/// A request names an inode number. `Vfs::locate` turns it into a place: the root, a tenant, a node of a collection, a
/// control file, a file of a form. Lookups and listings go the other way and give each place a number that stays the
/// same (`ino.rs`). Opens share one `OpenFile` a node. Changes of names and attributes are batches of the collection,
/// and return an [`Invalidation`], the names and pages that the kernel must drop; the layer above carries it out.
///
/// The tree opens collections when they are looked up and lets the store close them while nobody uses them. It knows
/// nothing of FUSE, so tests drive it directly.
pub struct Vfs {
    store: Arc<Store>,
    engine: Engine,
    /// The list mode of directories without a setting of their own.
    pub(super) listed_by_default: ListMode,
    pub(super) verify: Verify,
    pub(super) open_files: OpenFiles,
    pub(super) unlinked: Unlinked,
    /// Files that differ from the log although they may be closed.
    pub(super) unflushed: Mutex<Vec<Arc<OpenFile>>>,
    /// Invalidations that jobs and slow requests have queued so far.
    pub(super) pending_invalidations: Mutex<Invalidation>,
    pub(super) mounted: Mounted,
    pub(super) controls: Controls,
    /// Files of forms of which the kernel may cache pages.
    pub(super) forms: OpenedForms,
    pub(super) looked_up: LookedUp,
}

/// The memory of a mount: the targets of inode numbers that were looked up by name, orders and names of forms, and the use
/// of caches.
#[derive(Default)]
pub(super) struct LookedUp {
    pub collections: RwLock<HashMap<u32, KnownCollection, RandomState>>,
    /// The collections of a remote that were opened.
    pub entered: RwLock<HashSet<OwnedCollectionName>>,
    /// Names of tenants by their numbers. Each may have changed, so the store is asked about one that is found here.
    tenants: RwLock<HashMap<u64, String>>,
    form_numbers: FormNumbers,
    adapters: KeptAdapters,
    rows: RowOrders,
    tags: TagNumbers,
    caches: CacheUse,
    /// Whether the kernel may know collections that were looked up by an earlier daemon only.
    takes_over: Mutex<bool>,
}

/// A collection that was looked up.
pub(super) struct KnownCollection {
    pub tenant: String,
    pub name: String,
    /// The store may close it while nobody uses it. Of a remote, nobody may have opened it yet.
    pub collection: Weak<Collection>,
    /// Of a remote, whose next opening could show another snapshot.
    pub kept: Option<Arc<Collection>>,
    /// Of a version, the number of its collection, which may have another name by now.
    pub of: Option<u32>,
    /// The mode and owner that the kernel has from a list, until it gets those of the collection if they differ.
    pub shown: Option<(u32, Owner)>,
}

impl KnownCollection {
    fn path(&self) -> String {
        format!("{}/{}", self.tenant, self.name)
    }

    /// Whether it is open and the kernel has other attributes of it.
    pub fn is_shown_otherwise(&self) -> bool {
        self.shown.is_some() && self.collection.strong_count() > 0
    }

    /// Fails with `Gone` if the kernel has let somebody in by the attributes of a list: it looks again then.
    fn check_shown(&self) -> Result<()> {
        if self.is_shown_otherwise() {
            let text = format!("{} has another mode or owner than its list says", self.path());
            return Err(Error::new(ErrorKind::Gone, text));
        }
        Ok(())
    }
}

impl Vfs {
    /// When stored bytes are verified.
    pub fn verify(&self) -> Verify {
        self.verify
    }

    /// The tree of a store. `owner` is the user and group of nodes that no log records.
    pub fn new(
        store: Arc<Store>,
        listed_by_default: ListMode,
        verify: Verify,
        owner: Owner,
        controls: Controls,
    ) -> Vfs {
        let engine = Engine::with_forms(store.clone(), Box::new(PinnedForms(store.clone())));
        let (open_files, unlinked) = (OpenFiles::default(), Unlinked::default());
        Vfs {
            store,
            engine,
            listed_by_default,
            verify,
            open_files,
            unlinked,
            unflushed: Mutex::default(),
            pending_invalidations: Mutex::default(),
            mounted: Mounted { by: owner, at: now_nanoseconds() },
            controls,
            forms: OpenedForms::default(),
            looked_up: LookedUp::default(),
        }
    }

    pub(super) fn kept_adapters(&self) -> &KeptAdapters {
        &self.looked_up.adapters
    }

    pub(super) fn row_orders(&self) -> &RowOrders {
        &self.looked_up.rows
    }

    /// The numbers of forms with parameters.
    pub(super) fn form_numbers(&self) -> &FormNumbers {
        &self.looked_up.form_numbers
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub(super) fn cache_use(&self) -> &CacheUse {
        &self.looked_up.caches
    }

    pub(super) fn tag_numbers(&self) -> &TagNumbers {
        &self.looked_up.tags
    }

    /// The engine that moves tensors between tiers.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The target of an inode number. Fails with `Gone` for one that was never looked up, or whose node
    /// is gone.
    pub fn locate(&self, ino: Ino) -> Result<Located> {
        match ino.place() {
            Place::Root => Ok(Located::Root),
            Place::Tenant(number) => {
                self.tenant_numbered(number).map(Located::Tenant).ok_or_else(|| gone(ino))
            }
            Place::Node { collection, node } => {
                let collection = self.numbered(collection)?.ok_or_else(|| gone(ino))?;
                let node = collection.state().shown(node).ok_or_else(|| gone(ino))?;
                Ok(Located::Node(FileView { collection, node }))
            }
            Place::Control { owner: ControlOwner::Tenant(number), place: TAGS_PLACE, .. } => {
                self.tags_at(number).map(Located::Tags).ok_or_else(|| gone(ino))
            }
            Place::Control { owner, place, node } => {
                self.control(owner, place, node).map(Located::Control).ok_or_else(|| gone(ino))
            }
            Place::FormControl { collection, place, form, node } => self
                .form_control(collection, place, form, node)
                .map(Located::Control)
                .ok_or_else(|| gone(ino)),
            Place::Form { collection, form, node } => {
                self.form(collection, form, node).map(Located::Form).ok_or_else(|| gone(ino))
            }
            Place::Numbered { form, node } => {
                self.numbered_form(form, node).map(Located::Form).ok_or_else(|| gone(ino))
            }
        }
    }

    /// [`locate`](Self::locate), also of directories and links that were removed and that the kernel still knows.
    pub fn locate_known(&self, ino: Ino) -> Result<Located> {
        self.locate(ino).or_else(|error| {
            let node = self.unlinked.nodes.lock().get(&ino).map(|removed| removed.node.clone());
            match (node, ino.place()) {
                (Some(node), Place::Node { collection, .. }) => {
                    let collection = self.numbered(collection)?.ok_or(error)?;
                    Ok(Located::Node(FileView { collection, node }))
                }
                _ => Err(error),
            }
        })
    }

    /// Looks up `name` in a directory. Fails with `NotFound` where it does not exist.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<(Ino, Located)> {
        let found = self.named_in(self.locate(parent)?, name)?;
        self.note_true_attributes(found.0);
        Ok(found)
    }

    /// The target of `name` in a directory.
    fn named_in(&self, directory: Located, name: &[u8]) -> Result<(Ino, Located)> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "a name of more than 255 bytes"));
        }
        let located = match directory {
            Located::Root if name == CONTROL_NAME.as_bytes() => {
                Located::Control(ControlView::top(Scope::Mount))
            }
            Located::Root if name == TAGS_NAME.as_bytes() => Located::Tags(TagsView::top()),
            Located::Root => Located::Tenant(self.tenant_named(text(name)?)?),
            Located::Tenant(tenant) if name == CONTROL_NAME.as_bytes() => {
                Located::Control(ControlView::top(Scope::Tenant(tenant)))
            }
            Located::Tenant(tenant) => {
                let label = text(name)?;
                if crate::model::check_label(label).is_err() {
                    return Err(no_name(name));
                }
                let collection = self.collection_named(&tenant, label)?;
                self.node_in(collection, ROOT)?
            }
            Located::Node(view)
                if view.node.entry.id == ROOT
                    && name == CONTROL_NAME.as_bytes()
                    && version_in(view.collection.name()).is_none() =>
            {
                Located::Control(ControlView::top(Scope::Collection(view.collection)))
            }
            Located::Node(view) if view.node.entry.id == ROOT && name == FORMS_NAME.as_bytes() => {
                Located::Form(FormView { collection: view.collection, of: None })
            }
            Located::Node(FileView { collection, node }) => {
                let found = self.named(&collection, node.entry.id, name)?;
                let is_plain = is_plain_name(&collection.state(), node.entry.id, &found);
                let located = Located::Node(FileView { collection, node: found });
                let ino = self.ino(&located)?;
                return Ok((ino.plain().filter(|_| is_plain).unwrap_or(ino), located));
            }
            Located::Control(view) => Located::Control(self.control_named(view, name)?),
            Located::Form(FormView { collection, of: None }) if name.starts_with(b"@") => {
                self.version_named(&collection, name)?
            }
            Located::Form(view) => Located::Form(self.form_named(&view, name)?),
            Located::Tags(view) => Located::Tags(self.tags_named(&view, name, Viewer::All)?),
        };
        Ok((self.ino(&located)?, located))
    }

    /// Resolves a path below the mount without following symbolic links.
    pub fn walk(&self, path: &[u8]) -> Result<(Ino, Located)> {
        let mut at = (Ino::ROOT, Located::Root);
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            // The kernel gets no attributes by this.
            at = self.named_in(at.1, name)?;
        }
        Ok(at)
    }

    /// The inode number of a target.
    pub fn ino(&self, located: &Located) -> Result<Ino> {
        let place = match located {
            Located::Root => Place::Root,
            Located::Tenant(name) => Place::Tenant(self.store.tenant_number(name)),
            Located::Node(FileView { collection, node }) => {
                Place::Node { collection: collection.state().number(), node: node.entry.id }
            }
            Located::Control(view) => view.number_in(&self.store),
            Located::Form(view) => match self.form_place(view) {
                Some(place) => place,
                None => return Err(no_number()),
            },
            Located::Tags(view) => view.place(),
        };
        Ino::of(place).ok_or_else(|| Error::unsupported("more than 2^23 collections, or 2^38 files in one"))
    }

    /// The attributes of a target.
    pub fn attr(&self, ino: Ino, located: &Located) -> Attr {
        match located {
            Located::Root => {
                let attr = Attr::directory(ino, 0o755, self.mounted.at, self.mounted.by);
                attr.with_directories(self.store.tenants().map_or(0, |tenants| tenants.len()))
            }
            Located::Tenant(name) => self.tenant_attr(ino, name),
            Located::Node(FileView { collection, node }) => {
                // Read before the log, so that the log's answer is at least as new.
                let written = self.open_file(ino).and_then(|open_file| written(&open_file));
                let state = collection.state();
                let node = state.node(node.entry.id).unwrap_or(node);
                Attr::node(ino, node, &state).with(written)
            }
            Located::Control(view) => self.control_attr(ino, view),
            Located::Form(view) => self.form_attr(ino, view),
            Located::Tags(view) => self.tags_attr(ino, view),
        }
    }

    /// The unflushed writes to the files of a collection. The caller holds no lock of the collection,
    /// because the lock of an open file comes before those.
    pub(super) fn written_in(&self, collection: &Arc<Collection>) -> HashMap<EntryId, Unlogged> {
        let open = self.open_files.all();
        let open = open.iter().filter(|open_file| Arc::ptr_eq(open_file.collection(), collection));
        open.filter_map(|open_file| Some((open_file.node(), written(open_file)?))).collect()
    }

    /// The attributes of an inode number, also of an open unlinked file and of a removed directory.
    pub fn stat(&self, ino: Ino) -> Result<Attr> {
        if let Some(attr) = self.stat_unopened(ino) {
            return Ok(attr);
        }
        self.note_true_attributes(ino);
        match self.locate(ino) {
            Ok(located) => Ok(self.attr(ino, &located)),
            Err(error) => match self.open_file(ino) {
                None if error.kind() == ErrorKind::Gone => {
                    let removed = self.unlinked.nodes.lock();
                    let removed = removed.get(&ino).ok_or(error)?;
                    Ok(Attr { links: 0, ..Attr::node(ino, &removed.node, &State::default()) })
                }
                Some(open_file) => {
                    let unlinked = self.unlinked.files.lock();
                    let entry = unlinked.get(&ino).map_or(open_file.entry(), |file| &file.entry);
                    Ok(Attr::of_unlinked(ino, &open_file, entry))
                }
                None => Err(error),
            },
        }
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.locate(ino)?.link_target()
    }

    /// Removes an empty tenant, and forgets its number.
    pub(super) fn remove_tenant(&self, name: &str) -> Result<()> {
        let number = self.store.tenant_number(name);
        self.store.remove_tenant(name)?;
        self.looked_up.tenants.write().remove(&number);
        Ok(())
    }

    /// Looks up a tenant by name and caches it under its number.
    pub(super) fn tenant_named(&self, name: &str) -> Result<String> {
        let tenants = self.store.tenants()?;
        if !tenants.iter().any(|tenant| tenant == name) {
            return Err(no_name(name.as_bytes()));
        }
        let number = self.store.tenant_number(name);
        let known = self.looked_up.tenants.read().get(&number).cloned();
        if let Some(known) = known.filter(|known| known != name && tenants.contains(known))
            && self.store.tenant_number(&known) == number
        {
            return Err(Error::unsupported(format!("the tenants {known} and {name} have the same number")));
        }
        self.looked_up.tenants.write().insert(number, name.to_owned());
        Ok(name.to_owned())
    }

    /// The directory of a version of a collection, by its name in the directory of forms.
    pub(super) fn version_named(&self, collection: &Collection, name: &[u8]) -> Result<Located> {
        let number = text(name)?.strip_prefix('@').and_then(version_number);
        let number =
            number.filter(|_| version_in(collection.name()).is_none()).ok_or_else(|| no_name(name))?;
        let name = version_name(collection.name(), number);
        self.node_in(self.collection_named(collection.tenant(), &name)?, ROOT)
    }

    /// Looks up a collection by name, or a version of one, and caches it under its number.
    pub(super) fn collection_named(&self, tenant: &str, name: &str) -> Result<Arc<Collection>> {
        if crate::model::check_label(name).is_err() && version_in(name).is_none() {
            return Err(no_name(name.as_bytes()));
        }
        let collection = self.store.collection(tenant, name)?;
        let number = collection.state().number();
        let is_known =
            |known: &KnownCollection| std::ptr::eq(known.collection.as_ptr(), Arc::as_ptr(&collection));
        if self.looked_up.collections.read().get(&number).is_some_and(is_known) {
            return Ok(collection);
        }
        if self.store.shows_snapshots() {
            self.looked_up.entered.write().insert(OwnedCollectionName::new(tenant, name));
        }
        let of = match version_in(name) {
            Some((of, _)) => Some(self.collection_named(tenant, of)?.state().number()),
            None => None,
        };
        let known = KnownCollection {
            of,
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            collection: Arc::downgrade(&collection),
            kept: self.store.shows_snapshots().then(|| collection.clone()),
            shown: None,
        };
        let path = known.path();
        let attributes = collection.state().node(ROOT).map(|node| {
            let NodeEntry { mode, uid, gid, .. } = node.entry;
            (mode, Owner { uid, gid })
        });
        {
            let mut collections = self.looked_up.collections.write();
            match collections.get(&number) {
                // Another thread was faster.
                Some(before) if is_known(before) => return Ok(collection),
                Some(before) if before.kept.is_some() || (before.path() != path && self.is_there(before)) => {
                    let before = before.path();
                    return Err(Error::corrupt(format!("{before} and {path} have the same number {number}")));
                }
                before => {
                    let shown = before.and_then(|before| before.shown);
                    let shown = shown.filter(|shown| Some(*shown) != attributes);
                    collections.insert(number, KnownCollection { shown, ..known });
                    if shown.is_some() {
                        let root = Ino::of(Place::Node { collection: number, node: ROOT });
                        self.queue_invalidation(Invalidation::default().and(root));
                    }
                }
            }
        }
        self.finish_renames(&collection);
        Ok(collection)
    }

    /// Whether there is a collection with the name of one that was looked up, which may have another name by now.
    fn is_there(&self, known: &KnownCollection) -> bool {
        self.store.collections(&known.tenant).is_ok_and(|names| names.contains(&known.name))
    }

    /// Whether the collection of an inode is open; otherwise nobody uses it, and nothing in it changes.
    pub fn is_open(&self, ino: Ino) -> bool {
        if self.adapter_sources(ino).into_iter().any(|source| self.is_open(source)) {
            return true;
        }
        let collection = match (ino.place(), self.shown_by(ino)) {
            (Place::Node { collection, .. }, _) => collection,
            (_, Some(shown)) => shown.collection,
            _ => return true,
        };
        let collections = self.looked_up.collections.read();
        collections.get(&collection).is_some_and(|known| known.collection.strong_count() > 0)
    }

    /// Goes on with a mount of another daemon: inode numbers that were never looked up here may be known to the kernel.
    pub fn takes_over(&self) {
        if !self.store.shows_snapshots() {
            *self.looked_up.takes_over.lock() = true;
            return;
        }
        for (number, OwnedCollectionName { tenant, name }, shown) in self.store.shown_before() {
            let known = KnownCollection {
                tenant,
                name,
                collection: Weak::new(),
                kept: None,
                of: None,
                shown: Some(shown),
            };
            self.looked_up.collections.write().insert(number, known);
        }
        // The remote may be away.
        let tenants = self.store.tenants_before().into_iter();
        let tenants: Vec<_> = tenants.map(|tenant| (self.store.tenant_number(&tenant), tenant)).collect();
        self.looked_up.tenants.write().extend(tenants);
    }

    /// Looks the collection of a remote up that had a number in an earlier daemon.
    fn look_up_before(&self, number: u32) -> Result<()> {
        let found = match self.store.number_before(number) {
            None => return Ok(()),
            Some(NumberBefore::Present(of)) => self.collection_named(&of.tenant, &of.name).map(drop),
            Some(NumberBefore::Version(of, version)) => {
                self.collection_named(&of.tenant, &version_name(&of.name, version)).map(drop)
            }
            Some(NumberBefore::Former(of)) => self.look_former_up(of, number),
        };
        match found {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            found => found,
        }
    }

    /// The same of one that shows another snapshot by now.
    fn look_former_up(&self, place: OwnedCollectionName, number: u32) -> Result<()> {
        let Some(former) = self.store.former(&place, number)? else { return Ok(()) };
        let known = KnownCollection {
            tenant: place.tenant,
            name: place.name,
            collection: Arc::downgrade(&former),
            kept: Some(former),
            of: None,
            shown: None,
        };
        let mut collections = self.looked_up.collections.write();
        // Another thread may have been faster.
        if collections.get(&number).is_none_or(|known| known.kept.is_none()) {
            collections.insert(number, known);
        }
        Ok(())
    }

    /// Looks collections up until one has a number, if that was not done since the mount was taken over: all of them, then
    /// their versions. The numbers are in their logs.
    fn look_all_up(&self, number: u32) -> Result<()> {
        let mut takes_over = self.looked_up.takes_over.lock();
        if !*takes_over {
            return Ok(());
        }
        let mut all = Vec::new();
        for tenant in self.store.tenants()? {
            let names = self.store.collections(&tenant)?;
            all.extend(names.into_iter().map(|name| OwnedCollectionName::new(&tenant, name)));
        }
        let mut is_complete = true;
        let mut look_up = |tenant: &str, name: &str| match self.collection_named(tenant, name) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                log::warn!("{tenant}/{name}: {error}");
                is_complete = false;
            }
            _ => {}
        };
        all.iter().for_each(|of| look_up(&of.tenant, &of.name));
        if self.looked_up.collections.read().contains_key(&number) {
            return Ok(());
        }
        for of in &all {
            for version in self.store.version_numbers(of.borrowed())? {
                look_up(&of.tenant, &version_name(&of.name, version));
            }
        }
        *takes_over = !is_complete;
        Ok(())
    }

    /// Drops a removed collection from the cache.
    pub(super) fn forget_collection(&self, number: u32) {
        self.looked_up.collections.write().remove(&number);
        self.forget_caches(number);
    }

    /// The tenant with a number.
    pub(super) fn tenant_numbered(&self, number: u64) -> Option<String> {
        let has_it = |name: &String| self.store.tenant_number(name) == number;
        let known = self.looked_up.tenants.read().get(&number).cloned();
        if let Some(name) = known.filter(has_it) {
            return Some(name);
        }
        // It was renamed, or the kernel knows it from an earlier daemon.
        let name = self.store.tenants().ok()?.into_iter().find(has_it)?;
        self.tenant_named(&name).ok()
    }

    /// The collection with a number that was looked up before, opened again if it was closed.
    pub(super) fn numbered(&self, number: u32) -> Result<Option<Arc<Collection>>> {
        let is_kept = |known: &KnownCollection| known.kept.is_some() || !self.store.shows_snapshots();
        if !self.looked_up.collections.read().get(&number).is_some_and(is_kept) {
            match self.store.shows_snapshots() {
                true => self.look_up_before(number)?,
                false => self.look_all_up(number)?,
            }
        }
        let (mut tenant, mut name, of) = {
            let collections = self.looked_up.collections.read();
            let Some(known) = collections.get(&number) else { return Ok(None) };
            known.check_shown()?;
            if let Some(collection) = known.collection.upgrade() {
                collection.note_lookup();
                return Ok(Some(collection));
            }
            (known.tenant.clone(), known.name.clone(), known.of)
        };
        if let Some(of) = of {
            let Some(present) = self.numbered(of)? else { return Ok(None) };
            if let Some((_, version)) = version_in(&name) {
                (tenant, name) = (present.tenant().to_owned(), version_name(present.name(), version));
            }
        }
        let found = self.collection_named(&tenant, &name)?;
        if let Some(known) = self.looked_up.collections.read().get(&number) {
            known.check_shown()?;
        }
        let is_it = found.state().number() == number;
        Ok(is_it.then_some(found))
    }

    fn node_in(&self, collection: Arc<Collection>, node: EntryId) -> Result<Located> {
        let found = self.found(&collection.state(), node)?;
        Ok(Located::Node(FileView { collection, node: found }))
    }

    /// The node of a name in a directory of a collection.
    pub(super) fn named(
        &self,
        collection: &Collection,
        directory: EntryId,
        name: &[u8],
    ) -> Result<Arc<Node>> {
        // Name and node come from one state, because names can change in between.
        let state = collection.state();
        if state.directory(directory).is_none() && !State::is_computed(directory) {
            return Err(Error::new(ErrorKind::NotDirectory, "not a directory"));
        }
        self.found(&state, state.find(directory, name).ok_or_else(|| no_name(name))?)
    }

    fn found(&self, state: &State, node: EntryId) -> Result<Arc<Node>> {
        state
            .shown(node)
            .ok_or_else(|| Error::corrupt(format!("a name leads to node {}, which is gone", node.0)))
    }
}

/// Whether the name of a node in a directory is the plain name of a tensor, by which it is only read.
pub(super) fn is_plain_name(state: &State, directory: EntryId, node: &Node) -> bool {
    let is_part = node.file().is_some_and(|file| file.container.is_some());
    is_part && (!State::is_computed(directory) || state.place_beside(directory).is_some())
}

/// Size and time of unflushed writes to an open file.
fn written(open_file: &OpenFile) -> Option<Unlogged> {
    if !open_file.is_changed() {
        return None;
    }
    let mtime = open_file.mtime()?;
    Some(Unlogged { bytes: open_file.bytes(), mtime })
}

fn text(name: &[u8]) -> Result<&str> {
    std::str::from_utf8(name).map_err(|_| no_name(name))
}

fn gone(ino: Ino) -> Error {
    Error::new(ErrorKind::Gone, format!("inode {:#x} is gone", ino.0))
}
