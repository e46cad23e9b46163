//! Opens collections, each once, with those that it is related to.
//!
//! A collection of this machine is read under the lock of the open ones. A remote may not answer for a minute, so what is
//! needed of it is read before, and a collection is read again if the remote shows another snapshot of it meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::MutexGuard;

use crate::model::{CollectionName, Error, OwnedCollectionName, Result, check_label};
use crate::store::collection::Collection;
use crate::store::collection::lineage::relatives;
use crate::store::collection::open::OpenedLog;
use crate::store::many_at_once::at_once;
use crate::store::open_collections::{Closed, OpenCollections};
use crate::store::repair::set_aside::open_log;
use crate::store::store::{Store, check_tenant};
use crate::store::upstream::ShownSnapshots;
use crate::store::version_disk::version_in;
use crate::store::version_list::bytes_of_versions;

/// Collections that were read and that are not open yet.
type ReadCollections = HashMap<OwnedCollectionName, Result<Collection>>;

/// Newer snapshots that a collection may get while it is read. After so many it is read under the lock, which the next one
/// waits for.
const READ_AGAIN_MAX: u32 = 3;

/// The collections that must be read before `key` can be opened: itself and those that it is related to, unless they are open
/// or were read. Those whose remote shows another snapshot now are taken from `read`.
fn still_missing(
    snapshots: &dyn ShownSnapshots,
    open: &OpenCollections,
    key: &OwnedCollectionName,
    read: &mut ReadCollections,
) -> Vec<OwnedCollectionName> {
    let (mut missing, mut waiting, mut seen) = (Vec::new(), vec![key.clone()], HashSet::new());
    while let Some(place) = waiting.pop() {
        if open.get(&place).is_some() || !seen.insert(place.clone()) {
            continue;
        }
        match read.get(&place) {
            Some(Err(_)) => {}
            Some(Ok(found)) if snapshots.is_shown(place.borrowed(), found.state().number()) => {
                waiting.extend(relatives(&found.state()));
            }
            _ => {
                read.remove(&place);
                missing.push(place);
            }
        }
    }
    missing
}

impl Store {
    /// A collection, opened if it is not open yet.
    pub(in crate::store) fn opened(&self, tenant: &str, name: &str) -> Result<Arc<Collection>> {
        check_tenant(tenant)?;
        if let Some((collection, number)) = version_in(name) {
            return self.version(CollectionName::new(tenant, collection), number);
        }
        check_label(name).map_err(|wrong| Error::invalid(format!("the collection {name:?} {wrong}")))?;
        let key = OwnedCollectionName::new(tenant, name);
        let open = self.open.lock();
        if let Some(collection) = open.get(&key) {
            collection.note_lookup();
            return Ok(collection.clone());
        }
        let Some(snapshots) = self.upstream.snapshots() else {
            return self.open_with_related(open, key, ReadCollections::new());
        };
        drop(open);
        let opened = self.opening.run(&key, || self.opened_unlocked(snapshots, &key).map_err(Arc::new));
        // Others that waited for it have the same error.
        opened.map_err(|error| {
            Arc::try_unwrap(error).unwrap_or_else(|error| Error::new(error.kind(), error.to_string()))
        })
    }

    /// Reads a collection of a remote, and those that it is related to and that are not open, with no lock held: others are
    /// opened while the remote does not answer.
    fn opened_unlocked(
        &self,
        snapshots: &dyn ShownSnapshots,
        key: &OwnedCollectionName,
    ) -> Result<Arc<Collection>> {
        let (mut read, mut asked, mut again) = (ReadCollections::new(), HashSet::new(), 0);
        loop {
            let open = self.open.lock();
            if let Some(collection) = open.get(key) {
                return Ok(collection.clone());
            }
            let missing = still_missing(snapshots, &open, key, &mut read);
            if missing.iter().filter(|place| !asked.insert((*place).clone())).count() > 0 {
                again += 1;
            }
            if missing.is_empty() || again > READ_AGAIN_MAX {
                return self.open_with_related(open, key.clone(), read);
            }
            drop(open);
            let found = at_once(&missing, |place| self.read_one(place, false));
            read.extend(missing.into_iter().zip(found));
            if read.get(key).is_some_and(Result::is_err)
                && let Some(Err(error)) = read.remove(key)
            {
                return Err(error);
            }
        }
    }

    /// Opens a collection and those that it is related to. Those that were not read yet are read under the lock.
    fn open_with_related(
        &self,
        mut open: MutexGuard<'_, OpenCollections>,
        key: OwnedCollectionName,
        mut read: ReadCollections,
    ) -> Result<Arc<Collection>> {
        let collection = self.open_one(&mut open, key, &mut read)?;
        // Must happen before anybody can write to objects that others depend on.
        let (mut opened, mut failed) = (Vec::new(), HashSet::new());
        let mut waiting = vec![collection.clone()];
        while let Some(found) = waiting.pop() {
            opened.push(found.clone());
            found.note_children(&found);
            let related = relatives(&found.state());
            for relative in related {
                let extent = match open.get(&relative) {
                    Some(extent) => extent.clone(),
                    None if failed.contains(&relative) => {
                        found.keep_parents_of(&relative);
                        continue;
                    }
                    None => match self.open_one(&mut open, relative.clone(), &mut read) {
                        Ok(extent) => {
                            waiting.push(extent.clone());
                            extent
                        }
                        // Readers of dependent blocks get an error.
                        Err(error) => {
                            log::warn!("{}: a related collection is missing: {error}", found.path());
                            found.keep_parents_of(&relative);
                            failed.insert(relative);
                            continue;
                        }
                    },
                };
                found.relate(&extent);
            }
        }
        opened.iter().for_each(|found| found.children_are_known());
        let closed =
            if open.may_exceed(self.settings.idle_memory_max) { self.closed(&mut open) } else { Vec::new() };
        // Freeing memory takes a while.
        drop((open, closed));
        Ok(collection)
    }

    fn open_one(
        &self,
        open: &mut OpenCollections,
        key: OwnedCollectionName,
        read: &mut ReadCollections,
    ) -> Result<Arc<Collection>> {
        let was_durable = || open.closed(&key).is_some_and(|closed| closed.is_durable);
        let collection = read.remove(&key).unwrap_or_else(|| self.read_one(&key, was_durable()))?;
        Ok(self.keep(open, key, collection))
    }

    /// Reads the log of a collection.
    fn read_one(&self, key: &OwnedCollectionName, was_durable: bool) -> Result<Collection> {
        let path = key.to_string();
        let place = key.borrowed();
        let (disk, upstream) = match self.upstream.snapshots() {
            Some(snapshots) => {
                let still = snapshots.still(place);
                self.limited(still.map_err(|error| Error::io(format!("opening {path}"), error))?)
            }
            None => (self.disk.clone(), self.upstream.clone()),
        };
        let opened = OpenedLog::read(&disk, self.id(), place, self.access)?;
        let opened = if was_durable { opened.known_durable() } else { opened };
        Ok(open_log(&disk, self.id(), place, opened)?.with_upstream(Some(upstream)))
    }

    pub(in crate::store) fn keep(
        &self,
        open: &mut OpenCollections,
        key: OwnedCollectionName,
        collection: Collection,
    ) -> Arc<Collection> {
        let Closed { meter, computed, summaries, checkpoint, .. } =
            open.take_closed(&key).unwrap_or_default();
        let tenant = match self.shows_snapshots() {
            // Whoever enters the tenant waits until the remote says who owns it.
            true => self.tenants.known(&key.tenant),
            false => self.tenant(&key.tenant),
        };
        let collection = collection.joined(&self.services, tenant.meter(), meter);
        let collection = Arc::new(collection.continued(computed, summaries, checkpoint));
        let (disk, place) = (self.disk.clone(), key.clone());
        collection
            .meter()
            .has_versions_counted_by(Box::new(move || bytes_of_versions(&*disk, place.borrowed())));
        self.services.note_opening();
        collection.note_lookup();
        open.insert(key, collection.clone());
        collection
    }
}
