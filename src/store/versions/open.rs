//! Opens, lists and removes versions.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::model::{CollectionName, Error, ErrorKind, OwnedCollectionName, Result, check_label};
use crate::store::collection::Collection;
use crate::store::collection::identity::Access;
use crate::store::disk::Disk;
use crate::store::quota::{Limits, Meter};
use crate::store::relocation::CLOSE_WAIT;
use crate::store::repair::set_aside::open_collection;
use crate::store::store::Store;
use crate::store::version_disk::{UNFINISHED, VERSIONS, VersionDisk, version_name};
use crate::store::version_list::{directory, numbers, read_description, write_description};
use crate::store::versions::differences::{Neighbours, files_led_to};

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

    /// Fails if the file `version.toml` of a version cannot be read. The version reads without it.
    pub fn check_version(&self, place: CollectionName<'_>, number: u64) -> Result<()> {
        read_description(&*self.disk, &directory(place, number)).map(drop)
    }

    /// The numbers of the versions of a collection, ascending.
    pub fn version_numbers(&self, place: CollectionName<'_>) -> Result<Vec<u64>> {
        numbers(&*self.disk, place)
    }

    /// Removes a version, durably. Earlier ones that are differences from it become differences from the next. `NotFound`
    /// if there is none with this number, `Busy` if a file of it or of an earlier one is open, `Invalid` for the newest: its
    /// number must not be given twice.
    pub fn remove_version(&self, place: CollectionName<'_>, number: u64) -> Result<()> {
        let _making = self.versions.making.lock();
        self.remove_version_within(place, number, CLOSE_WAIT)
    }

    /// As [`remove_version`](Self::remove_version), while the caller holds [`Versions::making`]. Waits so long for users.
    fn remove_version_within(
        &self,
        place: CollectionName<'_>,
        number: u64,
        patience: Duration,
    ) -> Result<()> {
        let collection = self.collection(place.tenant, place.name)?;
        collection.check_writable()?;
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
        // Later ones need no file of it.
        self.close_versions(place, number, patience)?;
        self.remove_unfinished(place)?;
        // A removal that was interrupted may have left any earlier version as a difference from this one.
        let mut earlier = numbers.iter().take(index);
        let rebased = earlier.try_for_each(|before| {
            self.rebase_files(&Neighbours { place, older: *before, newer: *next }, number)
        });
        // Also those before a failure take other space now.
        collection.meter().versions_changed();
        rebased?;
        let (old, gone) = (directory(place, number), format!("{place}/{VERSIONS}/{UNFINISHED}{number}"));
        // No chain leads to the next one any more once the oldest is gone, so its files may do as differences.
        let led_to = match index {
            0 => files_led_to(&*self.disk, place, *next)?,
            _ => HashSet::new(),
        };
        // Somebody may have opened one meanwhile.
        self.with_versions_closed(place, number, || {
            let renamed = disk.rename(&old, &gone);
            let renamed = renamed.and_then(|()| disk.sync_directory(&format!("{place}/{VERSIONS}")));
            renamed.map_err(|error| Error::io(format!("removing {old}"), error))
        })?;
        self.services.invalidate_all_names();
        // It has no name any more. The next step removes the remains of a failure.
        if let Err(error) = self.remove_tree(&gone) {
            log::warn!("{old} was removed, but some of its files remain: {error}");
        }
        if !led_to.is_empty() {
            let next = directory(place, *next);
            self.forget_keyframes(&next, &led_to).unwrap_or_else(|error| log::warn!("{error}"));
        }
        collection.meter().versions_changed();
        Ok(())
    }

    /// Has the next version try again to store these whole files of this one as differences.
    fn forget_keyframes(&self, directory: &str, names: &HashSet<String>) -> Result<()> {
        let mut description = read_description(&*self.disk, directory)?;
        let known = description.keyframes.len();
        description.keyframes.retain(|name| !names.contains(name));
        if description.keyframes.len() == known {
            return Ok(());
        }
        write_description(&*self.disk, directory, &description)
    }

    /// Removes the oldest versions, until `count` are left. One that is in use stays, with those behind it, until nobody
    /// uses it; then the error that says so is returned.
    pub fn keep_last_versions(&self, place: CollectionName<'_>, count: u64) -> Result<Option<Error>> {
        let _making = self.versions.making.lock();
        // This request is newer.
        self.versions.surplus.lock().remove(&place.owned());
        let numbers = numbers(&*self.disk, place)?;
        let surplus = (numbers.len() as u64).saturating_sub(count.max(1));
        let Some(first) = numbers.get(surplus as usize).filter(|_| surplus > 0) else { return Ok(None) };
        let left = self.remove_versions_before(place, *first, CLOSE_WAIT)?;
        if left.is_some() {
            self.versions.surplus.lock().insert(place.owned(), *first);
        }
        Ok(left)
    }

    /// Removes the versions that were to go when nobody uses them.
    pub(in crate::store) fn remove_surplus_versions(&self) {
        // While versions are made, others go the next time.
        let Some(_making) = self.versions.making.try_lock() else { return };
        let waiting = self.versions.surplus.lock().clone();
        for (place, first) in waiting {
            match self.remove_versions_before(place.borrowed(), first, Duration::ZERO) {
                Ok(Some(_)) => {}
                done => {
                    if let Err(error) = done {
                        log::warn!("{place}: versions before {first} stay: {error}");
                    }
                    self.versions.surplus.lock().remove(&place);
                }
            }
        }
    }

    /// Removes the versions before one, the oldest first, until one is in use: the error says so.
    fn remove_versions_before(
        &self,
        place: CollectionName<'_>,
        first: u64,
        patience: Duration,
    ) -> Result<Option<Error>> {
        for number in numbers(&*self.disk, place)?.into_iter().take_while(|number| *number < first) {
            match self.remove_version_within(place, number, patience) {
                Err(error) if error.kind() == ErrorKind::Busy => return Ok(Some(error)),
                done => done?,
            }
        }
        Ok(None)
    }
}
