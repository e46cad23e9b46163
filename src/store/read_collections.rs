//! Opens collections, each once, with those that it is related to.
//!
//! A collection of this machine is read under the lock of the open ones. A remote may not answer for a minute, so what is
//! needed of it is read before, and read again if it shows another snapshot meanwhile.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::{CollectionName, Error, OwnedCollectionName, Result, check_label};
use crate::store::collection::Collection;
use crate::store::collection::lineage::relatives;
use crate::store::collection::open::OpenedLog;
use crate::store::many_at_once::at_once;
use crate::store::open_collections::{Closed, OpenCollections};
use crate::store::repair::set_aside::open_log;
use crate::store::store::{Store, check_tenant};
use crate::store::version_disk::version_in;
use crate::store::version_list::bytes_of_versions;

/// Collections that were read and that are not open yet.
type ReadCollections = HashMap<OwnedCollectionName, Result<Collection>>;

impl Store {
    /// A collection, opened if it is not open yet.
    pub(in crate::store) fn opened(&self, tenant: &str, name: &str) -> Result<Arc<Collection>> {
        check_tenant(tenant)?;
        if let Some((collection, number)) = version_in(name) {
            return self.version(CollectionName::new(tenant, collection), number);
        }
        check_label(name).map_err(|wrong| Error::invalid(format!("the collection {name:?} {wrong}")))?;
        let key = OwnedCollectionName::new(tenant, name);
        let (mut read, mut read_at) = (ReadCollections::new(), None);
        let mut open = loop {
            let open = self.open.lock();
            if let Some(collection) = open.get(&key) {
                collection.note_lookup();
                return Ok(collection.clone());
            }
            let Some(snapshots) = self.upstream.snapshots() else { break open };
            let changes = snapshots.changes();
            if read_at == Some(changes) {
                break open;
            }
            drop(open);
            (read, read_at) = (self.read_unlocked(&key), Some(changes));
        };
        let collection = self.open_one(&mut open, key, &mut read)?;
        // Must happen before anybody can write to objects that others depend on.
        let mut opened = Vec::new();
        let mut waiting = vec![collection.clone()];
        while let Some(found) = waiting.pop() {
            opened.push(found.clone());
            found.note_children(&found);
            let related = relatives(&found.state());
            for relative in related {
                let extent = match open.get(&relative) {
                    Some(extent) => extent.clone(),
                    None => match self.open_one(&mut open, relative.clone(), &mut read) {
                        Ok(extent) => {
                            waiting.push(extent.clone());
                            extent
                        }
                        // Readers of dependent blocks get an error.
                        Err(error) => {
                            log::warn!("{}: a related collection is missing: {error}", found.path());
                            found.keep_parents_of(&relative);
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

    /// Reads a collection of a remote, and those that it is related to and that are not open, with no lock held: others are
    /// opened while the remote does not answer.
    fn read_unlocked(&self, key: &OwnedCollectionName) -> ReadCollections {
        let mut read = ReadCollections::new();
        let mut wanted = vec![key.clone()];
        while !wanted.is_empty() {
            let found = at_once(&wanted, |place| self.read_one(place, false));
            let related = found.iter().flatten().flat_map(|found| relatives(&found.state()));
            let mut related: Vec<OwnedCollectionName> = related.collect();
            read.extend(wanted.into_iter().zip(found));
            let open = self.open.lock();
            related.retain(|place| !read.contains_key(place) && open.get(place).is_none());
            related.sort_unstable();
            related.dedup();
            wanted = related;
        }
        read
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
