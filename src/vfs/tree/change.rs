//! Changes of the tree, and where programs may make them.

use std::sync::Arc;
use std::time::Duration;

use crate::format::log::catalog::Content;
use crate::ingest::has_models;
use crate::model::{CollectionName, EntryId, Error, ErrorKind, Instant, NameIn, OWNER_WRITES, Owner, Result};
use crate::store::SaveUsage;
use crate::store::{Access, Collection, Node, ROOT, State, TENSORS_NAME};
use crate::vfs::form::forget_closed;
use crate::vfs::open::{self, Changes, OpenFile, SetAttr};
use crate::vfs::tree::ino::{ChildName, Ino, Place};
use crate::vfs::tree::invalidation::Invalidation;
use crate::vfs::tree::list_mode::ListMode;
use crate::vfs::tree::location::{CONTROL_NAME, FORMS_NAME};
use crate::vfs::tree::location::{ControlView, FileView, Located};
use crate::vfs::tree::relocation::label;
use crate::vfs::tree::unlinked_files::{RemovedNode, UnlinkedFile};
use crate::vfs::tree::vfs::Vfs;

/// After this time the open or stat that follows a lookup has arrived, even if the lookup was
/// answered before its file was forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1);

/// A file whose name a request is about to remove. It counts as unlinked until the request has ended,
/// so that an open finds it at every moment.
struct Unlinking<'a> {
    vfs: &'a Vfs,
    ino: Ino,
    open_file: Arc<OpenFile>,
    node: EntryId,
}

impl Drop for Unlinking<'_> {
    fn drop(&mut self) {
        let mut unlinked = self.vfs.unlinked.files.lock();
        let is_there = self.open_file.collection().state().node(self.node).is_some();
        let Some(file) = unlinked.get_mut(&self.ino) else { return };
        file.unlinking -= 1;
        // `self.open_file` is dropped after the lock is released.
        if is_there && file.unlinking == 0 {
            unlinked.remove(&self.ino);
        }
    }
}

/// A directory of a collection.
struct Directory {
    collection: Arc<Collection>,
    node: EntryId,
}

impl Vfs {
    /// Opens a file. It keeps its content while it is open.
    pub fn open(&self, view: &FileView) -> Result<Arc<OpenFile>> {
        if view.node.file().is_none() {
            return Err(Error::new(ErrorKind::IsDirectory, format!("{} is not a file", view.path())));
        }
        self.open_files.open(&view.collection, view.node.entry.id, self.verify)
    }

    /// The file of an inode number, if it is open.
    pub fn open_file(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        match ino.place() {
            Place::Node { collection, node } => self.open_files.get(collection, node),
            _ => None,
        }
    }

    /// The open file of an inode number whose last name a program removed. There is none for a file
    /// that an import replaced: an open by its name gets the new file.
    pub fn unlinked_open_file(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        self.unlinked.files.lock().get(&ino).map(|file| file.open_file.clone())
    }

    /// Fails with `Gone` for a file that an import has replaced: its name leads to the new file.
    pub fn check_named(&self, ino: Ino) -> Result<()> {
        match (self.locate(ino), self.unlinked_open_file(ino)) {
            (Err(error), None) => Err(error),
            _ => Ok(()),
        }
    }

    /// Counts a reply that lists an inode, as [`name_in_reply`](Self::name_in_reply) does. The number was asked for just before.
    pub fn note_listed(&self, number: Ino) {
        if let Place::Numbered { form, .. } = number.place() {
            self.form_numbers().note_named(form);
        }
    }

    /// Handles a forget of the kernel, for so many replies that named the inode. An unlinked file stays for a while: the
    /// kernel may know it by its other inode number, or have just looked it up again.
    pub fn forget_inode(&self, number: Ino, replies: u64) {
        if !number.is_backed() {
            // Under the passthrough number the kernel caches no pages.
            self.forget_adapter(number);
            self.forms.forget(number, self.shown_by(number));
        }
        if let Place::Numbered { form, .. } = number.place() {
            self.form_numbers().note_forgotten(form, replies);
        }
        let ino = number.own();
        if let Some(file) = self.unlinked.files.lock().get_mut(&ino) {
            file.forgotten = Some(Instant::now());
        }
        if let Some(removed) = self.unlinked.nodes.lock().get_mut(&ino) {
            removed.forgotten = Some(Instant::now());
        }
    }

    /// Releases the unlinked files that the kernel forgot long enough ago that no earlier lookup is
    /// in progress. It skips open files, which the kernel still knows. Also releases the memory of what nobody uses any more.
    pub fn release_forgotten(&self) {
        let is_over = |_: &Ino, file: &mut UnlinkedFile| {
            let is_due = file.forgotten.is_some_and(|since| since.elapsed() >= FORGOTTEN_AFTER);
            is_due && file.unlinking == 0 && Arc::strong_count(&file.open_file) == 1
        };
        let gone: Vec<_> = self.unlinked.files.lock().extract_if(is_over).collect();
        // Closing files may take a while, so the lock is released first.
        drop(gone);
        let is_known = |_: &Ino, removed: &mut RemovedNode| {
            removed.forgotten.is_none_or(|since| since.elapsed() < FORGOTTEN_AFTER)
        };
        self.unlinked.nodes.lock().retain(is_known);
        self.form_numbers().free_unknown();
        forget_closed();
    }

    /// Keeps the directory or link of a name, which `remove` removes, until the kernel forgets it.
    fn removing<T>(
        &self,
        collection: &Collection,
        NameIn { directory, name }: NameIn<'_>,
        remove: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let found = {
            let state = collection.state();
            let node = state.directory(directory).and_then(|names| state.node(names.get(name)?));
            node.filter(|node| node.file().is_none()).cloned().and_then(|node| {
                let place = Place::Node { collection: state.number(), node: node.entry.id };
                Some((Ino::of(place)?, node))
            })
        };
        let Some((ino, node)) = found else { return remove() };
        // Before it is gone, so that a request finds it at every moment.
        self.unlinked.nodes.lock().insert(ino, RemovedNode { node, forgotten: None });
        remove().inspect_err(|_| drop(self.unlinked.nodes.lock().remove(&ino)))
    }

    /// The file that may lose its last name with this one. The kernel may still open it, because it
    /// has looked it up. Its other names may be removed meanwhile, so this is only a possibility.
    fn file_to_unlink(
        &self,
        collection: &Arc<Collection>,
        parent: EntryId,
        name: &[u8],
    ) -> Option<Unlinking<'_>> {
        let (number, entry) = {
            let state = collection.state();
            let node = state.node(state.directory(parent)?.get(name)?)?;
            node.file().filter(|file| file.container.is_none())?;
            (state.number(), node.entry.clone())
        };
        // A file that cannot be opened now cannot be opened later.
        let open_file = self.open_files.open(collection, entry.id, self.verify).ok()?;
        let node = entry.id;
        let ino = Ino::of(Place::Node { collection: number, node })?;
        let mut unlinked = self.unlinked.files.lock();
        let unused = || UnlinkedFile { open_file: open_file.clone(), entry, unlinking: 0, forgotten: None };
        unlinked.entry(ino).or_insert_with(unused).unlinking += 1;
        drop(unlinked);
        Some(Unlinking { vfs: self, ino, open_file, node })
    }

    /// Handles the removal of a file's name. A file with other names may have other content by the
    /// first. An unlinked file stays until the kernel forgets it.
    fn keep(&self, file: Option<Unlinking<'_>>) -> Changes {
        let Some(file) = file else { return Changes::default() };
        let has_moved = file.open_file.collection().state().must_be_recognized_again(file.node);
        if has_moved {
            // The name is removed even on an error here.
            self.look_at_renamed(&file.open_file).unwrap_or_default()
        } else {
            Changes::default()
        }
    }

    /// Flushes all open files and syncs the logs; the logs record that. Passes to `forget` what the
    /// kernel must invalidate. `forget` queues that or tells the kernel before it returns.
    pub fn sync(&self, forget: &mut dyn FnMut(Invalidation)) -> Result<()> {
        self.sync_with(forget, Collection::sync)
    }

    /// Does as [`sync`](Self::sync), every few seconds. A log records the sync once it is idle.
    pub fn sync_now_and_then(&self, forget: &mut dyn FnMut(Invalidation)) -> Result<()> {
        self.sync_with(forget, Collection::sync_or_mark)
    }

    fn sync_with(
        &self,
        forget: &mut dyn FnMut(Invalidation),
        sync: impl Fn(&Collection) -> Result<()>,
    ) -> Result<()> {
        // Of a remote there is nothing to sync, and a lookup that waits for it may hold the list of its collections.
        if self.store().shows_snapshots() {
            return Ok(());
        }
        let mut first = Ok(());
        for open_file in self.open_files.all().iter().filter(|open_file| !self.is_given_up(open_file)) {
            let _invalidation_order = open_file.invalidation_order();
            first = first.and(self.flush(open_file).map(&mut *forget));
        }
        first = first.and(self.flush_kept(forget));
        for collection in self.store().open_collections() {
            if collection.check_writable().is_ok() {
                collection.save_usage(SaveUsage::NowAndThen);
                first = first.and(match sync(&collection) {
                    // The collection was removed meanwhile.
                    Err(error) if error.kind() == ErrorKind::ReadOnly && collection.poisoned().is_none() => {
                        Ok(())
                    }
                    synced => synced,
                });
            }
        }
        self.store().events().sync();
        first
    }

    /// Syncs all logs. Released space is free after that.
    fn sync_all(&self) -> Result<()> {
        let open = self.store().open_collections();
        open.iter().filter(|open| open.check_writable().is_ok()).try_for_each(|open| open.sync())
    }

    /// Flushes all open files and queues the invalidations.
    pub fn flush_everything(&self) -> Result<()> {
        let all = self.open_files.all();
        // Read-only collections are skipped, so that their open files do not block the others.
        let mut writable = all.iter().filter(|open_file| open_file.collection().check_writable().is_ok());
        writable.try_for_each(|open_file| self.flush_and_queue(open_file))
    }

    /// Creates an empty file.
    pub fn create(&self, parent: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<(Ino, Located)> {
        let directory = self.directory_to_add(parent, name)?;
        self.make_room_in_caches(&directory.collection);
        self.with_room(|| open::create(&directory.collection, directory.node, name, mode, owner))?;
        self.found_in(&directory, name)
    }

    /// Creates an empty file without a name, which has its place in a directory. It lasts while it is open, unless a link
    /// gives it a name.
    pub fn create_nameless(&self, parent: Ino, mode: u32, owner: Owner) -> Result<Ino> {
        let Directory { collection, node } = self.directory_to_add(parent, b"")?;
        let entry = self.with_room(|| open::create_nameless(&collection, node, mode, owner))?;
        let ino = Ino::of(Place::Node { collection: collection.state().number(), node: entry.id });
        let ino = ino.ok_or_else(|| Error::unsupported("more than 2^38 files in a collection"))?;
        let open_file = self.open_files.open_nameless(&collection, entry.clone(), self.verify)?;
        let nameless = UnlinkedFile { open_file, entry, unlinking: 0, forgotten: None };
        self.unlinked.files.lock().insert(ino, nameless);
        Ok(ino)
    }

    /// Gives a file that was made without a name one, durably: programs do so with a file that they have synced. Fails with
    /// `error` for another.
    fn link_nameless(
        &self,
        ino: Ino,
        directory: &Directory,
        name: &[u8],
        error: Error,
    ) -> Result<(Ino, Located)> {
        let found =
            self.unlinked.files.lock().get(&ino).map(|file| (file.open_file.clone(), file.entry.clone()));
        let Some((open_file, entry)) = found else { return Err(error) };
        if !Arc::ptr_eq(open_file.collection(), &directory.collection) {
            return Err(other_collection());
        }
        let to = NameIn { directory: directory.node, name };
        let changes = self.with_room(|| open_file.give_name(to, &entry))?;
        let unlinked = self.unlinked.files.lock().remove(&ino);
        drop(unlinked);
        self.queue_invalidation(self.forget(&directory.collection, changes, None));
        directory.collection.sync_unmarked()?;
        self.found_in(directory, name)
    }

    /// Creates a directory: a tenant at the root, a collection in a tenant.
    pub fn make_directory(
        &self,
        parent: Ino,
        name: &[u8],
        mode: u32,
        owner: Owner,
    ) -> Result<(Ino, Located)> {
        let label = || {
            let label =
                std::str::from_utf8(name).ok().filter(|label| crate::model::check_label(label).is_ok());
            label.ok_or_else(|| {
                Error::invalid("tenants and collections have names of text without a leading dot")
            })
        };
        self.check_access()?;
        match self.locate(parent)? {
            _ if name == CONTROL_NAME.as_bytes() => return Err(not_here()),
            Located::Root | Located::Tenant(_) if !self.store().settings().makes_directories => {
                let text = "the store's tierfs.toml has mkdir = \"explicit\": commands make tenants and collections, such as \
                            tierfs import";
                return Err(Error::new(ErrorKind::Denied, text));
            }
            Located::Root => self.store().create_tenant(label()?, owner, mode)?,
            Located::Tenant(tenant) => self.make_collection(&tenant, label()?, mode, owner)?,
            _ => {
                let directory = self.directory_to_add(parent, name)?;
                let Directory { collection, node } = &directory;
                self.with_room(|| open::make_directory(collection, *node, name, mode, owner))?;
                return self.found_in(&directory, name);
            }
        }
        self.lookup(parent, name)
    }

    /// Creates a symbolic link.
    pub fn symlink(&self, parent: Ino, name: &[u8], target: &[u8], owner: Owner) -> Result<(Ino, Located)> {
        let directory = self.directory_to_add(parent, name)?;
        let collection = &directory.collection;
        let link = self.with_room(|| open::symlink(collection, directory.node, name, target, owner))?;
        self.queue_invalidation(self.forget(collection, self.look_at_blob(collection, link)?, None));
        self.found_in(&directory, name)
    }

    /// Creates a hard link.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<(Ino, Located)> {
        let directory = self.directory_to_add(parent, name)?;
        let view = match self.locate(ino) {
            Ok(Located::Node(view)) => view,
            Ok(_) => return Err(not_here()),
            // The kernel links no other file without a name than one that was made without.
            Err(error) => return self.link_nameless(ino, &directory, name, error),
        };
        if !Arc::ptr_eq(&view.collection, &directory.collection) {
            return Err(other_collection());
        }
        self.with_room(|| open::link(&directory.collection, view.node.entry.id, directory.node, name))?;
        self.forget_looks_at_caches(&directory.collection);
        self.found_in(&directory, name)
    }

    /// Removes a name of a file that a cache has given up, if `may_go` still holds when it goes. `None` if it does not.
    pub(super) fn unlink_cached(
        &self,
        collection: &Arc<Collection>,
        name: NameIn<'_>,
        may_go: &dyn Fn(&State, &Node) -> bool,
    ) -> Result<Option<Invalidation>> {
        let last = self.file_to_unlink(collection, name.directory, name.name);
        let is_written = last.as_ref().is_some_and(|last| last.open_file.has_writers());
        if is_written {
            return Ok(None);
        }
        let Some(mut changes) = open::unlink_if(collection, name, may_go)? else { return Ok(None) };
        changes.merge(self.keep(last));
        let mut forget = self.forget(collection, changes, None);
        forget.nodes.extend(self.forget_name(collection, name).nodes);
        Ok(Some(forget))
    }

    /// Removes a name of a file.
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<Invalidation> {
        let directory = self.directory_for(parent, name)?;
        if self.keeps_tensor(&directory, name)? {
            return Ok(Invalidation::default());
        }
        let last = self.file_to_unlink(&directory.collection, directory.node, name);
        let unlink = || open::unlink(&directory.collection, directory.node, name);
        let unlinked =
            self.removing(&directory.collection, NameIn { directory: directory.node, name }, || {
                self.with_room(unlink)
            });
        let mut changes = match unlinked {
            // Dependent tensors may have been removed since the last sync.
            Err(error) if error.kind() == ErrorKind::Busy && self.sync_all().is_ok() => {
                self.with_room(unlink)?
            }
            unlinked => unlinked?,
        };
        changes.merge(self.keep(last));
        let mut forget = self.forget(&directory.collection, changes, None);
        forget.nodes.extend(
            self.forget_name(&directory.collection, NameIn { directory: directory.node, name }).nodes,
        );
        Ok(forget)
    }

    /// Removes an empty directory, or an empty collection or tenant, for a user.
    pub fn remove_directory(&self, parent: Ino, name: &[u8], user: u32) -> Result<()> {
        self.check_access()?;
        let label =
            || std::str::from_utf8(name).map_err(|_| Error::new(ErrorKind::NotFound, "no such directory"));
        match self.locate(parent)? {
            _ if name == CONTROL_NAME.as_bytes() => Err(not_here()),
            Located::Root => {
                self.remove_tenant(label()?)?;
                self.store().events().removed(label()?, user);
                Ok(())
            }
            Located::Tenant(tenant) => {
                let number = self.store().remove_collection(&tenant, label()?)?;
                self.forget_collection(number);
                self.store().events().removed(&format!("{tenant}/{}", label()?), user);
                Ok(())
            }
            _ => {
                let directory = self.directory_for(parent, name)?;
                if self.keeps_tensor(&directory, name)? {
                    return Ok(());
                }
                let Directory { collection, node } = &directory;
                self.removing(collection, NameIn { directory: *node, name }, || {
                    self.with_room(|| open::remove_directory(collection, *node, name))
                })
            }
        }
    }

    /// Renames a file or a directory within its collection, a collection, or a tenant.
    pub fn rename(&self, from: ChildName<'_>, to: ChildName<'_>, keep: bool) -> Result<Invalidation> {
        self.check_access()?;
        match (self.locate(from.parent)?, self.locate(to.parent)?) {
            (Located::Root, Located::Root) => return self.rename_tenant(from.name, to.name),
            (Located::Tenant(old), Located::Tenant(new)) => {
                let from = CollectionName::new(&old, label(from.name)?);
                return self.rename_collection(from, CollectionName::new(&new, label(to.name)?));
            }
            _ => {}
        }
        let source = self.directory_for(from.parent, from.name)?;
        if source.collection.state().is_of_tensors(source.node, from.name) {
            return Err(of_container());
        }
        let target = self.directory_to_add(to.parent, to.name)?;
        let collection = &source.collection;
        if !Arc::ptr_eq(collection, &target.collection) {
            return Err(other_collection());
        }
        let from = NameIn { directory: source.node, name: from.name };
        let to = NameIn { directory: target.node, name: to.name };
        let last = self.file_to_unlink(collection, to.directory, to.name);
        let mut changes = Changes::default();
        let rename = match self.ordinary_file(collection, from, to) {
            Some(_) => open::rename_ordinary,
            None => open::rename,
        };
        let arrived = self.rename_as_container(collection, from, to, keep, &mut changes);
        let renamed = match arrived {
            Some(node) => Ok((node, Changes::default())),
            None => self.removing(collection, to, || self.with_room(|| rename(collection, from, to, keep))),
        };
        let (node, more) = match renamed {
            Ok(renamed) => renamed,
            Err(error) => return self.forget_or_queue(collection, changes, None, Err(error)),
        };
        self.moved_between(collection, from.directory, to.directory);
        changes.merge(more);
        changes.merge(self.keep(last));
        let (is_file, is_marked) = {
            let state = collection.state();
            let is_file = state.node(node).is_some_and(|node| node.file().is_some());
            (is_file, state.must_be_recognized_again(node))
        };
        let mut finish = || {
            // Written to meanwhile, it may not be ordinary any more.
            let number = collection.state().number();
            let is_ordinary = || self.open_files.is_ordinary(number, node, to.name);
            let has_changed = is_file && arrived.is_none() && open::has_other_suffix(from.name, to.name);
            if is_marked || has_changed && !is_ordinary() {
                let open_file = self.open_files.open(collection, node, self.verify);
                // The kernel must learn that its names are out of date.
                let open_file = open_file.inspect_err(|_| collection.invalidate_all_names())?;
                changes.merge(self.look_at_renamed(&open_file)?);
            }
            if is_file && arrived.is_none() && open::arrives_by_rename(collection, node, from, to) {
                let open_file = self.open_files.open(collection, node, self.verify)?;
                self.with_room(|| open_file.arrive_renamed(&mut changes))?;
            }
            if is_file && arrived.is_some() && collection.state().has_tails() {
                let open_file = self.open_files.open(collection, node, self.verify)?;
                open_file.cool_arrived(&mut changes)?;
            }
            changes.merge(self.data_files_recognized(collection, node));
            changes.merge(self.look_at_blob(collection, node)?);
            Ok(())
        };
        let finished = finish();
        self.queue_invalidation(self.forget_name(collection, from));
        self.forget_or_queue(collection, changes, None, finished)
    }

    /// Exchanges two names of a collection (`RENAME_EXCHANGE`).
    pub fn exchange(&self, from: ChildName<'_>, to: ChildName<'_>) -> Result<Invalidation> {
        self.check_access()?;
        let source = self.directory_for(from.parent, from.name)?;
        let target = self.directory_for(to.parent, to.name)?;
        let collection = &source.collection;
        if !Arc::ptr_eq(collection, &target.collection) {
            return Err(other_collection());
        }
        for (directory, name) in [(source.node, from.name), (target.node, to.name)] {
            if collection.state().is_of_tensors(directory, name) {
                return Err(of_container());
            }
        }
        let from = NameIn { directory: source.node, name: from.name };
        let to = NameIn { directory: target.node, name: to.name };
        let nodes = self.with_room(|| open::exchange(collection, from, to))?;
        self.moved_between(collection, from.directory, to.directory);
        let mut changes = Changes::default();
        let mut finish = || {
            for node in nodes {
                if collection.state().must_be_recognized_again(node) {
                    let open_file = self.open_files.open(collection, node, self.verify);
                    let open_file = open_file.inspect_err(|_| collection.invalidate_all_names())?;
                    changes.merge(self.look_at_renamed(&open_file)?);
                }
                changes.merge(self.data_files_recognized(collection, node));
                changes.merge(self.look_at_blob(collection, node)?);
            }
            for (node, from, to) in [(nodes[0], from, to), (nodes[1], to, from)] {
                let is_file = collection.state().node(node).is_some_and(|node| node.file().is_some());
                if is_file && open::arrives_by_rename(collection, node, from, to) {
                    let open_file = self.open_files.open(collection, node, self.verify)?;
                    self.with_room(|| open_file.arrive_renamed(&mut changes))?;
                }
            }
            Ok(())
        };
        let finished = finish();
        for name in [from, to] {
            self.queue_invalidation(self.forget_name(collection, name));
        }
        self.forget_or_queue(collection, changes, None, finished)
    }

    /// The collection of a file, if a rename takes it to where settings for what arrives apply.
    pub fn arrives_by_rename(&self, from: ChildName<'_>, to: ChildName<'_>) -> Option<Arc<Collection>> {
        let Located::Node(source) = self.locate(from.parent).ok()? else { return None };
        let collection = source.collection;
        if !collection.state().has_settings_of_arrivals() {
            return None;
        }
        let Located::Node(target) = self.locate(to.parent).ok()? else { return None };
        let directory = source.node.entry.id;
        let node = {
            let state = collection.state();
            let node = state.directory(directory)?.get(from.name)?;
            state.node(node)?.file().map(|_| node)?
        };
        let from = NameIn { directory, name: from.name };
        let to = NameIn { directory: target.node.entry.id, name: to.name };
        let arrives = Arc::ptr_eq(&collection, &target.collection)
            && open::arrives_by_rename(&collection, node, from, to);
        arrives.then_some(collection)
    }

    /// The file with a name, if a rename to another, which is free, leaves it an ordinary file: its first bytes say so.
    fn ordinary_file(&self, collection: &Collection, from: NameIn<'_>, to: NameIn<'_>) -> Option<EntryId> {
        let (number, node) = {
            let state = collection.state();
            let node = state.directory(from.directory)?.get(from.name)?;
            let is_plain = state.node(node)?.file()?.content == Content::Plain;
            let is_free = state.directory(to.directory)?.get(to.name).is_none();
            let is_alone = state.links(node).len() == 1 && !state.is_shard_index(node) && !has_models(&state);
            Some((state.number(), node)).filter(|_| is_plain && is_free && is_alone)?
        };
        Some(node).filter(|_| self.open_files.is_ordinary(number, node, to.name))
    }

    /// Whether a rename leaves an ordinary file as it is, so that it takes no time.
    pub fn renames_ordinary(&self, from: ChildName<'_>, to: ChildName<'_>) -> bool {
        let (Ok(Located::Node(source)), Ok(Located::Node(target))) =
            (self.locate(from.parent), self.locate(to.parent))
        else {
            return false;
        };
        let named = |view: &FileView, name| NameIn { directory: view.node.entry.id, name };
        let (old, new) = (named(&source, from.name), named(&target, to.name));
        Arc::ptr_eq(&source.collection, &target.collection)
            && self.ordinary_file(&source.collection, old, new).is_some()
    }

    /// Renames a file that its new name makes a container, together with the names of its tensors. `None` where the
    /// name does not, or that fails: nothing is renamed then.
    fn rename_as_container(
        &self,
        collection: &Arc<Collection>,
        from: NameIn<'_>,
        to: NameIn<'_>,
        keep: bool,
        changes: &mut Changes,
    ) -> Option<EntryId> {
        let node = {
            let state = collection.state();
            let node = state.node(state.directory(from.directory)?.get(from.name)?)?;
            let is_plain = node.file()?.content == Content::Plain;
            Some(node.entry.id).filter(|_| is_plain && open::may_become_container(&state, from.name, to))?
        };
        if self.ordinary_file(collection, from, to).is_some() {
            return None;
        }
        let open_file = self.open_files.open(collection, node, self.verify).ok()?;
        let renamed = open_file.rename_as_container(from, to, keep, changes);
        let is_renamed = renamed.inspect_err(|error| log::debug!("renaming a file in two steps: {error}"));
        is_renamed.is_ok_and(|is_renamed| is_renamed).then_some(node)
    }

    /// Writes to an open file.
    pub fn write(&self, open_file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<()> {
        self.with_room(|| open_file.write(offset, bytes))
    }

    /// Sets attributes, and with `bytes` the size.
    pub fn set_attr(&self, ino: Ino, set: SetAttr, bytes: Option<u64>) -> Result<Invalidation> {
        self.check_access()?;
        let located = match self.locate(ino) {
            Err(error) => return self.set_unlinked(ino, set, bytes, error),
            Ok(located) => located,
        };
        let view = match located {
            Located::Node(view) if State::is_computed(view.node.entry.id) => return Err(of_container()),
            Located::Node(view) => view,
            Located::Control(view) => return self.set_control(&view, set, bytes),
            Located::Tenant(name) => return self.set_tenant(&name, set, bytes),
            _ => return Err(not_here()),
        };
        let (collection, node) = (&view.collection, view.node.entry.id);
        if let Some(bytes) = bytes {
            self.set_bytes(&view, bytes)?;
        }
        if set != SetAttr::default() {
            if let Some(open_file) = self.open_file(ino) {
                // Flushed first, so that the earlier write does not override a time that is set.
                self.flush_and_queue(&open_file)?;
            }
            let changes = self.with_room(|| open::set_attr(collection, node, set))?;
            return Ok(self.forget(collection, changes, None));
        }
        Ok(Invalidation::default())
    }

    /// Truncates a file or extends it with zeros, and commits that. On an error nothing changes.
    fn set_bytes(&self, view: &FileView, bytes: u64) -> Result<()> {
        let (collection, node) = (&view.collection, view.node.entry.id);
        let open_file = self.open(view)?;
        self.check_not_open_removed(&open_file)?;
        let _invalidation_order = open_file.invalidation_order();
        let mut changes = Changes::default();
        let truncated = self.with_room(|| open_file.truncate_into(bytes, &mut changes));
        if truncated.is_err() {
            self.keep_unflushed(&open_file);
            self.queue_unlogged(&open_file);
            // The kernel would keep its cached size.
            changes.nodes.push(node);
        }
        self.queue_invalidation(self.forget(collection, changes, Some(node)));
        truncated
    }

    /// Accepts the truncation of `>` on a writable control, which has nothing to truncate.
    fn set_control(&self, view: &ControlView, set: SetAttr, bytes: Option<u64>) -> Result<Invalidation> {
        let is_cut = bytes.is_some() && set == SetAttr::default();
        let is_written = self.row(view).is_some_and(|row| row.mode & OWNER_WRITES != 0);
        if is_cut && is_written { Ok(Invalidation::default()) } else { Err(not_here()) }
    }

    /// Sets attributes of an open unlinked file. They are lost with it.
    fn set_unlinked(&self, ino: Ino, set: SetAttr, bytes: Option<u64>, gone: Error) -> Result<Invalidation> {
        let open_file = self.open_file(ino).ok_or(gone)?;
        if let Some(bytes) = bytes {
            self.with_room(|| open_file.truncate(bytes))?;
        }
        if set.mtime.is_some() {
            // It is newer than that of the last write.
            open_file.forget_mtime();
        }
        if let Some(file) = self.unlinked.files.lock().get_mut(&ino) {
            set.apply(&mut file.entry);
        }
        Ok(Invalidation::default())
    }

    /// Releases the unlinked files that no program has open: they use space, because the kernel could
    /// still open them. Whether there were any.
    pub fn release_unlinked(&self) -> bool {
        let is_idle = |_: &Ino, file: &mut UnlinkedFile| Arc::strong_count(&file.open_file) == 1;
        let idle: Vec<_> = self.unlinked.files.lock().extract_if(is_idle).collect();
        !idle.is_empty()
    }

    /// Whether an open file was unlinked, and no program has it open. The caller has a reference to it.
    pub(super) fn is_idle_unlinked(&self, open_file: &Arc<OpenFile>) -> bool {
        let unlinked = self.unlinked.files.lock();
        let is_it = |file: &UnlinkedFile| Arc::ptr_eq(&file.open_file, open_file) && file.unlinking == 0;
        unlinked.values().any(is_it) && Arc::strong_count(open_file) <= 2
    }

    /// A directory in which a name can be created. A computed directory is created in the log first.
    fn directory_to_add(&self, ino: Ino, name: &[u8]) -> Result<Directory> {
        let found = self.directory_for(ino, name)?;
        if !State::is_computed(found.node) {
            return Ok(found);
        }
        let (place, like) = {
            let state = found.collection.state();
            (state.place_beside(found.node), state.shown(found.node))
        };
        let Some(((mut node, names), like)) = place.zip(like) else { return Err(of_container()) };
        let (mode, owner) = (like.entry.mode, like.entry.owner());
        for name in names {
            let collection = &found.collection;
            let made = self.with_room(|| open::make_directory(collection, node, &name, mode, owner));
            node = match made {
                Err(error) if error.kind() == ErrorKind::Exists => {
                    let state = collection.state();
                    state.find(node, &name).ok_or(error)?
                }
                made => made?,
            };
        }
        // The kernel knows them by the numbers of tensors' directories.
        found.collection.invalidate_all_names();
        Ok(Directory { node, ..found })
    }

    /// The new entry of a directory.
    fn found_in(&self, directory: &Directory, name: &[u8]) -> Result<(Ino, Located)> {
        let node = self.named(&directory.collection, directory.node, name)?;
        let located = Located::Node(FileView { collection: directory.collection.clone(), node });
        Ok((self.ino(&located)?, located))
    }

    /// Whether a name leads to a tensor in a listing of tensors, where removing it does nothing, so that
    /// programs that remove all listed names continue. Fails with `Denied` for another tensor.
    fn keeps_tensor(&self, directory: &Directory, name: &[u8]) -> Result<bool> {
        let state = directory.collection.state();
        if !state.is_of_tensors(directory.node, name) {
            return Ok(false);
        }
        let is_beside = !State::is_computed(directory.node) || state.place_beside(directory.node).is_some();
        let is_listed = is_beside && self.list_mode(&state, directory.node) == ListMode::Both;
        if is_listed && name != TENSORS_NAME.as_bytes() { Ok(true) } else { Err(of_container()) }
    }

    /// A directory in which names can be created and removed.
    fn directory_for(&self, ino: Ino, name: &[u8]) -> Result<Directory> {
        self.check_access()?;
        match self.locate(ino)? {
            Located::Node(view) if view.node.entry.id == ROOT && is_ours(name) => Err(not_here()),
            Located::Node(FileView { collection, node }) => Ok(Directory { collection, node: node.entry.id }),
            Located::Root => {
                let text = "files have their place in a collection, two directories below: mkdir -p TENANT/COLLECTION";
                Err(Error::new(ErrorKind::Denied, text))
            }
            Located::Tenant(_) => {
                let text = "files have their place in a collection, a directory below: mkdir COLLECTION";
                Err(Error::new(ErrorKind::Denied, text))
            }
            _ => Err(not_here()),
        }
    }

    pub(super) fn check_access(&self) -> Result<()> {
        match self.store().access() {
            Access::Write => Ok(()),
            Access::Read => Err(Error::new(ErrorKind::ReadOnly, "the store is mounted to be read only")),
        }
    }
}

fn is_ours(name: &[u8]) -> bool {
    [CONTROL_NAME, FORMS_NAME].iter().any(|ours| ours.as_bytes() == name)
}

fn of_container() -> Error {
    let text = "it is made of the tensors of a container: change the container, or write to the tensors";
    Error::new(ErrorKind::Denied, text)
}

pub(super) fn not_here() -> Error {
    let text = "only directories can be created among tenants and collections, and .ctl and .as are reserved";
    Error::new(ErrorKind::Denied, text)
}

fn other_collection() -> Error {
    Error::new(ErrorKind::OtherDevice, "a name in another collection")
}
