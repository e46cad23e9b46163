//! Renames and removals of whole collections and tenants.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{CollectionName, Error, ErrorKind, Instant, OwnedCollectionName, Result, check_label};
use crate::store::Collection;
use crate::vfs::open::OpenFile;
use crate::vfs::tree::change::not_here;
use crate::vfs::tree::ino::{Ino, Place};
use crate::vfs::tree::invalidation::Invalidation;
use crate::vfs::tree::location::CONTROL_NAME;
use crate::vfs::tree::location::no_name;
use crate::vfs::tree::vfs::Vfs;

/// Longest wait for the closes of files to arrive, and the time between two looks.
const CLOSE_WAIT_MAX: Duration = Duration::from_millis(300);
const CLOSE_WAIT: Duration = Duration::from_millis(5);

impl Vfs {
    /// Renames a collection, also to another tenant. Fails as `Store::rename_collection` does.
    pub(super) fn rename_collection(
        &self,
        old: CollectionName<'_>,
        new: CollectionName<'_>,
    ) -> Result<Invalidation> {
        if old == new {
            return Ok(Invalidation::default());
        }
        let done = self.with_released(&[old.owned()], || self.store().rename_collection(old, new));
        let there = if done.is_ok() { new } else { old };
        // The kernel knows its nodes by their numbers, which stay.
        self.collection_named(there.tenant, there.name).map(|_| ()).or_else(|error| match &done {
            Ok(()) => Err(error),
            Err(_) => Ok(()),
        })?;
        done.map(|()| Invalidation::default())
    }

    /// Renames a tenant. Fails as `Store::rename_tenant` does.
    pub(super) fn rename_tenant(&self, from: &[u8], to: &[u8]) -> Result<Invalidation> {
        let (old, new) = (label(from)?, label(to)?);
        if old == new {
            return Ok(Invalidation::default());
        }
        let names = self.store().collections(old).map_err(|_| no_name(from))?;
        let places: Vec<_> = names.into_iter().map(|name| OwnedCollectionName::new(old, name)).collect();
        let done = self.with_released(&places, || self.store().rename_tenant(old, new));
        let tenant = if done.is_ok() { new } else { old };
        // The kernel knows it by its number, which stays.
        if let Err(error) = self.tenant_named(tenant) {
            log::warn!("{tenant}: {error}");
        }
        for OwnedCollectionName { name, .. } in &places {
            if let Err(error) = self.collection_named(tenant, name) {
                log::warn!("{tenant}/{name}: {error}");
            }
        }
        done.map(|()| Invalidation::default())
    }

    /// Removes a collection with everything in it. Fails as `Store::remove_collection_with_content` does.
    /// The kernel has cached its name, which leads to an inode that is gone, so it asks for the name
    /// again.
    pub fn remove_collection(&self, tenant: &str, name: &str) -> Result<Invalidation> {
        self.check_access()?;
        label(name.as_bytes())?;
        let nodes = {
            let collection = self.collection_named(tenant, name)?;
            let nodes: Vec<_> = collection.state().nodes().map(|node| node.entry.id).collect();
            self.invalidate_nodes(&collection, nodes)
        };
        let done = self.with_released(&[OwnedCollectionName::new(tenant, name)], || {
            self.store().remove_collection_with_content(tenant, name)
        });
        if done.is_err()
            && let Err(error) = self.collection_named(tenant, name)
        {
            log::debug!("{tenant}/{name}: {error}");
        }
        done.map(|()| nodes.and(Ino::of(Place::Tenant(self.store().tenant_number(tenant)))))
    }

    /// Removes a version of a collection. Fails as `Store::remove_version` does.
    pub fn remove_version(&self, place: CollectionName<'_>, number: u64) -> Result<()> {
        self.check_access()?;
        let version = self.store().version(place, number)?.state().number();
        self.store().remove_version(place, number)?;
        self.forget_collection(version);
        Ok(())
    }

    /// Closes collections in this mount, so that the store can close them, and does `change`. `Busy` if
    /// a file of one is open.
    fn with_released(
        &self,
        places: &[OwnedCollectionName],
        change: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _no_comparison = self.open_files.closed.stop_comparing();
        self.flush_everything()?;
        self.release_unlinked();
        let mut numbers = Vec::new();
        for OwnedCollectionName { tenant, name } in places {
            let collection = match self.store().collection(tenant, name) {
                Err(error) if error.kind() == ErrorKind::NotFound && places.len() > 1 => continue,
                found => found?,
            };
            if let Some(open) = self.still_open(&collection) {
                let state = collection.state();
                let path = String::from_utf8_lossy(&state.path(open.node())).into_owned();
                let text = format!("{tenant}/{name} is in use: {path} is open; close it first");
                return Err(Error::new(ErrorKind::Busy, text));
            }
            let number = collection.state().number();
            self.forget_collection(number);
            numbers.push(number);
        }
        let done = change();
        if done.is_ok() {
            // Other requests may have looked up the old names meanwhile.
            numbers.into_iter().for_each(|number| self.forget_collection(number));
        }
        done
    }

    /// A file of the collection that programs have open. The kernel tells of the last close after
    /// close(2) has returned, so one that a program has just closed is given some time.
    fn still_open(&self, collection: &Arc<Collection>) -> Option<Arc<OpenFile>> {
        let until = Instant::now() + CLOSE_WAIT_MAX;
        loop {
            let mut open = self.open_files.all().into_iter();
            let found = open.find(|open| Arc::ptr_eq(open.collection(), collection))?;
            if Instant::now() >= until {
                return Some(found);
            }
            drop((found, open));
            std::thread::sleep(CLOSE_WAIT);
        }
    }
}

pub(super) fn label(name: &[u8]) -> Result<&str> {
    if name == CONTROL_NAME.as_bytes() {
        return Err(not_here());
    }
    let label = std::str::from_utf8(name).ok().filter(|label| check_label(label).is_ok());
    label.ok_or_else(|| Error::invalid("tenants and collections have names of text without a leading dot"))
}
