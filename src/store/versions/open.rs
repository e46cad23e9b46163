//! Opens versions as collections.

use std::sync::Arc;

use crate::model::{CollectionName, Error, ErrorKind, OwnedCollectionName, Result, check_label};
use crate::store::collection::Collection;
use crate::store::collection::identity::Access;
use crate::store::disk::Disk;
use crate::store::quota::{Limits, Meter};
use crate::store::repair::set_aside::open_collection;
use crate::store::store::Store;
use crate::store::version_disk::{VersionDisk, version_name};

impl Store {
    /// A version of a collection, as a collection that is only read; of a remote, the snapshot with this number. `NotFound`
    /// if there is none.
    pub fn version(&self, place: CollectionName<'_>, number: u64) -> Result<Arc<Collection>> {
        check_label(place.name)
            .map_err(|wrong| Error::invalid(format!("the collection {:?} {wrong}", place.name)))?;
        let key = OwnedCollectionName::new(place.tenant, version_name(place.name, number));
        let mut open = self.versions.open.lock();
        if let Some(version) = open.get(&key) {
            version.note_lookup();
            return Ok(version.clone());
        }
        let missing = || Error::new(ErrorKind::NotFound, format!("{place} has no version {number}"));
        let opened = match self.upstream.snapshots() {
            Some(snapshots) => {
                let found = snapshots.numbered(place, number);
                let found = found
                    .map_err(|error| Error::io(format!("opening version {number} of {place}"), error))?;
                let (disk, upstream) = self.limited(found.ok_or_else(missing)?);
                open_collection(&disk, self.id(), place, Access::Read)?.with_upstream(Some(upstream))
            }
            None => {
                let disk: Arc<dyn Disk> = Arc::new(VersionDisk::new(&self.disk));
                let opened = open_collection(&disk, self.id(), key.borrowed(), Access::Read);
                opened.map_err(|error| if error.kind() == ErrorKind::NotFound { missing() } else { error })?
            }
        };
        // The collection counts the bytes of its versions.
        let meter = Meter::new("", None, Limits::default());
        let version = Arc::new(opened.joined(&self.services, &meter, None));
        open.insert(key, version.clone());
        Ok(version)
    }

    /// Closes versions that nobody uses.
    pub(in crate::store) fn close_unused_versions(&self) {
        // While one is opened, others are closed the next time.
        if let Some(mut open) = self.versions.open.try_lock() {
            open.retain(|_, version| Arc::strong_count(version) > 1);
        }
    }
}
