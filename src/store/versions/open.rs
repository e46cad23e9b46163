//! Opens, lists and removes versions.

use std::sync::Arc;

use crate::model::{CollectionName, Error, ErrorKind, OwnedCollectionName, Result, check_label};
use crate::store::collection::Collection;
use crate::store::collection::identity::Access;
use crate::store::disk::Disk;
use crate::store::quota::{Limits, Meter};
use crate::store::repair::set_aside::open_collection;
use crate::store::store::Store;
use crate::store::version_disk::{UNFINISHED, VERSIONS, VersionDisk, version_name};
use crate::store::version_list::{bytes_of_versions, directory, numbers};
use crate::store::versions::differences::Neighbours;

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

    /// The numbers of the versions of a collection, ascending.
    pub fn version_numbers(&self, place: CollectionName<'_>) -> Result<Vec<u64>> {
        numbers(&*self.disk, place)
    }

    /// Removes a version, durably. Earlier ones that are differences from it become differences from the next. `NotFound`
    /// if there is none with this number, `Busy` if a file of a version is open, `Invalid` for the newest: its number must
    /// not be given twice.
    pub fn remove_version(&self, place: CollectionName<'_>, number: u64) -> Result<()> {
        let collection = self.collection(place.tenant, place.name)?;
        collection.check_writable()?;
        let _making = self.versions.making.lock();
        let disk = &*self.disk;
        let numbers = numbers(disk, place)?;
        let Some(index) = numbers.iter().position(|known| *known == number) else {
            return Err(Error::new(ErrorKind::NotFound, format!("{place} has no version {number}")));
        };
        let Some(next) = numbers.get(index + 1) else {
            let text = format!(
                "version {number} of {place} is its newest, which stays; remove earlier ones, or the collection"
            );
            return Err(Error::invalid(text));
        };
        self.close_versions(place)?;
        self.remove_unfinished(place)?;
        // A removal that was interrupted may have left any earlier version as a difference from this one.
        for before in numbers.iter().take(index) {
            self.rebase_files(&Neighbours { place, older: *before, newer: *next }, number)?;
        }
        let (old, gone) = (directory(place, number), format!("{place}/{VERSIONS}/{UNFINISHED}{number}"));
        let renamed =
            disk.rename(&old, &gone).and_then(|()| disk.sync_directory(&format!("{place}/{VERSIONS}")));
        renamed.map_err(|error| Error::io(format!("removing {old}"), error))?;
        self.forget_versions(place);
        self.services.invalidate_all_names();
        // It has no name any more. The next step removes the remains of a failure.
        if let Err(error) = self.remove_tree(&gone) {
            log::warn!("{old} was removed, but some of its files remain: {error}");
        }
        collection.meter().set_aside(bytes_of_versions(disk, place));
        Ok(())
    }

    /// Removes the oldest versions, until `count` are left or one is in use. Returns how many were removed.
    pub fn keep_last_versions(&self, place: CollectionName<'_>, count: u64) -> Result<u64> {
        let numbers = numbers(&*self.disk, place)?;
        let surplus = (numbers.len() as u64).saturating_sub(count.max(1));
        let mut removed = 0;
        for number in numbers.into_iter().take(surplus as usize) {
            match self.remove_version(place, number) {
                Err(error) if error.kind() == ErrorKind::Busy => break,
                done => done?,
            }
            removed += 1;
        }
        Ok(removed)
    }
}
