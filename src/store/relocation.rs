//! Renames and removals of whole collections and tenants.
//!
//! The directory on the disk is renamed, which is atomic; the log does not contain names of collections. But records
//! of lineage and of its parents' settings name a child's or parent's collection. So a collection keeps its name while
//! other collections need its objects, or its objects need others. Lineage that no stored block needs keeps the old
//! name, which then leads to nothing.
//!
//! A collection must be unused to be renamed or removed; it is closed first.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::model::{
    Cause, CollectionName, Error, ErrorKind, Instant, OwnedCollectionName, Refusal, Result, check_label,
};
use crate::store::collection::Collection;
use crate::store::collection::lineage::{children_in, parents_in, parents_needed, relatives};
use crate::store::collection::usage_file::SaveUsage;
use crate::store::open_collections::{Closed, OpenCollections};
use crate::store::quota::Use;
use crate::store::store::{Store, check_tenant};
use crate::store::version_disk::version_in;

/// Beginning of the name of a directory that is being removed or put together. No collection has such a name.
pub(in crate::store) const REMOVED: &str = ".removed-";
/// Longest wait for requests that use a collection.
pub(in crate::store) const CLOSE_WAIT: Duration = Duration::from_millis(300);
/// The time between two looks.
const CLOSE_STEP: Duration = Duration::from_millis(2);

fn in_use(version: &OwnedCollectionName) -> Error {
    Error::new(ErrorKind::Busy, format!("{version} is in use: a file in it is open; close its files"))
}

/// Whether a key names a version of a collection with this number at most.
fn is_version_of(key: &OwnedCollectionName, place: CollectionName<'_>, last: u64) -> bool {
    let version = version_in(&key.name).filter(|_| key.tenant == place.tenant);
    version.is_some_and(|(name, number)| name == place.name && number <= last)
}

/// A change that lineage may forbid.
#[derive(Clone, Copy)]
pub(in crate::store) enum Change<'a> {
    /// A rename, with the new place of each collection.
    Rename(&'a dyn Fn(&OwnedCollectionName) -> OwnedCollectionName),
    Remove,
}

impl Store {
    /// Renames a collection, also to another tenant, durably. `Exists` if the name is taken, `Busy` if it
    /// is in use or lineage names it, `Quota` if the other tenant has no room for it.
    pub fn rename_collection(&self, from: CollectionName<'_>, to: CollectionName<'_>) -> Result<()> {
        self.check_new_collection(to)?;
        let collection = self.collection(from.tenant, from.name)?;
        if from.tenant != to.tenant {
            self.check_tenant_quota(to.tenant, collection.meter().used())?;
        }
        let (old, new) = (from.to_string(), to.to_string());
        drop(collection);
        let renamed = |_: &OwnedCollectionName| to.owned();
        self.with_closed(&[from.owned()], Change::Rename(&renamed), || {
            let failed = |error| Error::io(format!("renaming {old} to {new}"), error);
            self.disk.rename(&old, &new).map_err(failed)?;
            self.disk.sync_directory(to.tenant).map_err(failed)?;
            self.disk.sync_directory(from.tenant).map_err(failed)
        })
    }

    /// Renames a tenant with its collections, durably. Fails as
    /// [`rename_collection`](Self::rename_collection) does.
    pub fn rename_tenant(&self, from: &str, to: &str) -> Result<()> {
        check_tenant(to)?;
        let tenants = self.tenants()?;
        if !tenants.iter().any(|tenant| tenant == from) {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no tenant {from}")));
        }
        if tenants.iter().any(|tenant| tenant == to) {
            return Err(Error::new(ErrorKind::Exists, format!("there is a tenant {to} already")));
        }
        let mut places = Vec::new();
        for name in self.collections(from)? {
            match self.opened(from, &name) {
                Ok(_) => places.push(OwnedCollectionName::new(from, name)),
                // Its creation never finished.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let renamed = |place: &OwnedCollectionName| OwnedCollectionName::new(to, place.name.clone());
        self.with_closed(&places, Change::Rename(&renamed), || {
            let failed = |error| Error::io(format!("renaming {from} to {to}"), error);
            self.tenants.record_number(from)?;
            self.disk.rename(from, to).map_err(failed)?;
            self.tenants.forget(from);
            self.tenants.forget(to);
            self.disk.sync_directory("").map_err(failed)
        })
    }

    /// Removes an empty collection with its versions. Returns its number.
    pub fn remove_collection(&self, tenant: &str, name: &str) -> Result<u32> {
        let collection = self.collection(tenant, name)?;
        let place = OwnedCollectionName::new(tenant, name);
        self.close_versions(place.borrowed(), u64::MAX, CLOSE_WAIT)?;
        let parents = self.collections_of_parents(std::slice::from_ref(&place));
        let mut open = self.open.lock();
        collection.remove()?;
        open.remove(&place);
        collection.meter().versions_gone();
        self.forget_all_versions(place.borrowed());
        forget_children(&parents, std::slice::from_ref(&place));
        let number = collection.state().number();
        Ok(number)
    }

    /// Removes a collection with everything in it, durably. `Busy` if it is in use or others need it.
    pub fn remove_collection_with_content(&self, tenant: &str, name: &str) -> Result<()> {
        let number = self.collection(tenant, name)?.state().number();
        let (old, new) = (format!("{tenant}/{name}"), format!("{tenant}/{REMOVED}{number}"));
        self.with_closed(&[OwnedCollectionName::new(tenant, name)], Change::Remove, || {
            let failed = |error| Error::io(format!("removing {old}"), error);
            self.disk.rename(&old, &new).map_err(failed)?;
            self.services.invalidate_all_names();
            self.disk.sync_directory(tenant).map_err(failed)
        })?;
        // It has no name any more. The next opening of the store removes the remains of a failure.
        if let Err(error) = self.remove_tree(&new) {
            log::warn!("{old} was removed, but some of its files remain: {error}");
        }
        Ok(())
    }

    /// Removes the remains of interrupted removals.
    pub(in crate::store) fn finish_removals(&self) -> Result<()> {
        for tenant in self.tenants()? {
            let listed = self.disk.list(&tenant);
            for entry in listed.map_err(|error| Error::io(format!("listing {tenant}"), error))? {
                if entry.is_directory && entry.name.starts_with(REMOVED) {
                    self.remove_tree(&format!("{tenant}/{}", entry.name))?;
                }
            }
        }
        Ok(())
    }

    pub(in crate::store) fn remove_tree(&self, path: &str) -> Result<()> {
        let failed = |error| Error::io(format!("removing {path}"), error);
        for entry in self.disk.list(path).map_err(failed)? {
            let below = format!("{path}/{}", entry.name);
            if entry.is_directory {
                self.remove_tree(&below)?;
            } else {
                self.disk.remove_file(&below).map_err(failed)?;
            }
        }
        self.disk.remove_directory(path).map_err(failed)
    }

    pub(in crate::store) fn check_new_collection(
        &self,
        CollectionName { tenant, name }: CollectionName<'_>,
    ) -> Result<()> {
        check_label(name).map_err(|wrong| Error::invalid(format!("the collection {name:?} {wrong}")))?;
        if !self.tenants()?.iter().any(|there| there == tenant) {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no tenant {tenant}")));
        }
        if self.collections(tenant)?.iter().any(|there| there == name) {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("there is a collection {tenant}/{name} already"),
            ));
        }
        Ok(())
    }

    /// Closes the versions of a collection up to a number, as soon as nobody uses them. `Busy` if somebody does after
    /// `patience`.
    pub(in crate::store) fn close_versions(
        &self,
        place: CollectionName<'_>,
        last: u64,
        patience: Duration,
    ) -> Result<()> {
        let until = Instant::now() + patience;
        loop {
            let mut open = self.versions.open.lock();
            open.retain(|key, version| !is_version_of(key, place, last) || Arc::strong_count(version) > 1);
            let used = open.keys().filter(|key| is_version_of(key, place, last)).min();
            let Some(used) = used else { return Ok(()) };
            if Instant::now() >= until {
                return Err(in_use(used));
            }
            drop(open);
            std::thread::sleep(CLOSE_STEP);
        }
    }

    /// As [`close_versions`](Self::close_versions), without waiting, and then calls `done` before anybody opens one.
    pub(in crate::store) fn with_versions_closed(
        &self,
        place: CollectionName<'_>,
        last: u64,
        done: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut open = self.versions.open.lock();
        open.retain(|key, version| !is_version_of(key, place, last) || Arc::strong_count(version) > 1);
        match open.keys().filter(|key| is_version_of(key, place, last)).min() {
            Some(used) => Err(in_use(used)),
            None => done(),
        }
    }

    /// Forgets all versions of a collection that went with it, or that have other names now.
    fn forget_all_versions(&self, place: CollectionName<'_>) {
        self.forget_versions(place, u64::MAX);
        self.versions.surplus.lock().remove(&place.owned());
    }

    /// Forgets the open versions of a collection up to a number, whose directories have gone. Users of one keep it.
    fn forget_versions(&self, place: CollectionName<'_>, last: u64) {
        self.versions.open.lock().retain(|key, _| !is_version_of(key, place, last));
    }

    /// Closes collections that are open, then does `change`. If that fails, they are opened as before.
    pub(in crate::store) fn with_closed(
        &self,
        places: &[OwnedCollectionName],
        what: Change<'_>,
        change: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        for place in places {
            self.close_versions(place.borrowed(), u64::MAX, CLOSE_WAIT)?;
        }
        let parents = self.collections_of_parents(places);
        let mut open = self.open.lock();
        for place in places {
            if let Some(collection) = open.get(place) {
                self.check_lineage(collection, &open, what)?;
                collection.check_writable()?;
                collection.sync()?;
                collection.save_usage(SaveUsage::Now);
            }
        }
        let mut closed = Vec::new();
        let mut done = Ok(());
        for place in places {
            let Some(collection) = open.remove(place) else { continue };
            match alone(collection) {
                Ok(collection) => {
                    // An eviction may have ended since the first look.
                    done = self.check_lineage(&collection, &open, what);
                    if done.is_ok() && matches!(what, Change::Rename(_)) {
                        // The settings of children name it by its place.
                        done = collection.forget_children_in(|_| true);
                    }
                    closed.push((place.clone(), collection));
                }
                Err(collection) => {
                    let text = format!(
                        "{} is in use: a file in it is open, or a job works on it; close its files, or wait for \
                         the job (tierfs jobs)",
                        collection.path()
                    );
                    done = Err(Error::new(ErrorKind::Busy, text));
                    open.insert(place.clone(), collection);
                }
            }
            if done.is_err() {
                break;
            }
        }
        match done.and_then(|()| change()) {
            Ok(()) => {
                places.iter().for_each(|place| self.forget_all_versions(place.borrowed()));
                forget_children(&parents, places);
                let before =
                    places.iter().filter_map(|place| Some((place.clone(), open.take_closed(place)?)));
                let before: Vec<_> = before.collect();
                let now =
                    closed.into_iter().map(|(place, mut collection)| (place, Closed::of(&mut collection)));
                for (place, closed) in before.into_iter().chain(now) {
                    closed.meter.inspect(|meter| {
                        meter.set_used(Use::default());
                        meter.versions_gone();
                    });
                    if let Change::Rename(renamed) = what {
                        // The kernel knows the nodes by their numbers, which stay.
                        let closed = Closed { computed: closed.computed, ..Closed::default() };
                        open.note_closed(renamed(&place), closed);
                    }
                }
                Ok(())
            }
            Err(error) => {
                for (place, collection) in closed {
                    let collection = Arc::new(collection);
                    collection.note_children(&collection);
                    for relative in relatives(&collection.state()) {
                        if let Some(relative) = open.get(&relative) {
                            collection.relate(relative);
                        }
                    }
                    open.insert(place, collection);
                }
                Err(error)
            }
        }
    }

    /// `Busy` if records in other collections, or in this one, need it by its name.
    fn check_lineage(&self, collection: &Collection, open: &OpenCollections, what: Change<'_>) -> Result<()> {
        let own = collection.place().owned();
        let state = collection.state();
        let refused = |text: String| Err(Error::new(ErrorKind::Busy, text));
        let bound = |path: String, text: String| {
            let cause = Cause::Bound(path, text);
            Err(Error::refused(vec![Refusal { path: String::new(), cause }]))
        };
        if matches!(what, Change::Rename(_))
            && let Some(OwnedCollectionName { tenant, name }) = parents_needed(&state).next()
        {
            let path = collection.path();
            let text = format!(
                "tensors of {path} are stored as differences to {tenant}/{name}, which names them by their collection"
            );
            return bound(path, text);
        }
        for place in children_in(&state).into_iter().filter(|place| *place != own) {
            let child = place.to_string();
            match open.get(&place) {
                Some(found) => {
                    let needs_it = |object: &&Arc<_>| found.needs(object, &own);
                    if found.damage().is_some() || found.state().objects().any(|object| needs_it(&object)) {
                        let text =
                            format!("tensors of {child} are stored as differences to {}", collection.path());
                        return bound(child, text);
                    }
                }
                // All relatives were opened with it, except those that cannot be opened.
                // It was closed, and has no objects that need others.
                None if open.closed(&place).is_some() => {}
                None if self.collections(&place.tenant).is_ok_and(|names| names.contains(&place.name)) => {
                    return refused(format!(
                        "tensors of {child}, which does not open, may be stored as differences to {}; run \
                         tierfs fsck",
                        collection.path()
                    ));
                }
                None => {
                    return refused(format!(
                        "tensors of {child}, which is missing, may be stored as differences to {}; put it \
                         back, or run tierfs fsck --repair",
                        collection.path()
                    ));
                }
            }
        }
        Ok(())
    }

    /// The collections with parents of objects of these, apart from themselves, as far as they open.
    fn collections_of_parents(&self, places: &[OwnedCollectionName]) -> Vec<Arc<Collection>> {
        let mut above = BTreeSet::new();
        for place in places {
            if let Some(collection) = self.open.lock().get(place) {
                above.extend(parents_in(&collection.state()));
            }
        }
        above.retain(|place| !places.contains(place));
        let opened = above.iter().map(|place| self.opened(&place.tenant, &place.name));
        opened.filter_map(|opened| opened.inspect_err(|error| log::debug!("lineage: {error}")).ok()).collect()
    }
}

/// Forgets in the collections of parents that there were children at these places, where nothing is any more.
fn forget_children(parents: &[Arc<Collection>], places: &[OwnedCollectionName]) {
    for parent in parents {
        if let Err(error) = parent.forget_children_in(|place| places.contains(place)) {
            log::warn!(
                "{}: its tensors cannot be moved or removed until tierfs fsck --repair: {error}",
                parent.path()
            );
        }
    }
}

/// The collection, once it has no other users. Requests end soon; open files and jobs do not.
fn alone(mut collection: Arc<Collection>) -> std::result::Result<Collection, Arc<Collection>> {
    let until = Instant::now() + CLOSE_WAIT;
    loop {
        match Arc::try_unwrap(collection) {
            Ok(collection) => return Ok(collection),
            Err(shared) if Instant::now() >= until => return Err(shared),
            Err(shared) => collection = shared,
        }
        std::thread::sleep(CLOSE_STEP);
    }
}
