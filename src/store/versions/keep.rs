//! Makes a version of the present state of a collection.

use std::io;
use std::sync::Arc;

use crate::format::log::catalog::Entry;
use crate::format::snapshot::manifest::FileKind;
use crate::model::{CollectionName, Error, ErrorKind, Result};
use crate::store::clock::now_nanoseconds;
use crate::store::collection::Collection;
use crate::store::disk::{Open, without_zeros, write_new};
use crate::store::log::LOG_NAME;
use crate::store::snapshot::canonical::{Canonical, log_of};
use crate::store::snapshot::freeze::{Frozen, copied};
use crate::store::snapshot::payloads::CanonicalFile;
use crate::store::store::Store;
use crate::store::version_disk::{UNFINISHED, VERSIONS};
use crate::store::version_list::{Description, bytes_of_versions, directory, file_name, numbers};

/// Bytes of a file that are copied at a time.
const STEP_BYTES: u64 = 8 << 20;

/// A version that is the present state of a collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Its number.
    pub number: u64,
    /// Whether it was made, because the newest one was another state.
    pub is_new: bool,
}

impl Store {
    /// Keeps the present state of a collection as a version, durably, unless the newest version is that state.
    /// `NotSupported` if the collection is a clone, or has bytes that lie in files outside the store or are differences
    /// from another collection; `Busy` while a file is being cut.
    pub fn keep_version(&self, collection: &Arc<Collection>) -> Result<Kept> {
        let _making = self.versions.making.lock();
        let place = collection.place();
        self.check_versionable(collection)?;
        let frozen = Frozen::of(collection)?;
        let canonical = frozen.canonical(self.id())?;
        if let Some(need) = canonical.needs().first() {
            return Err(refused(place, &format!("tensors of it are stored as differences from {need}")));
        }
        let state = *blake3::hash(canonical.log()).as_bytes();
        let newest = numbers(&*self.disk, place)?.last().copied();
        // One whose description cannot be read is another state.
        let is_that_state = |number: &u64| {
            let described = Description::read(&*self.disk, &directory(place, *number));
            described.is_ok_and(|described| described.state == state)
        };
        if let Some(number) = newest.filter(is_that_state) {
            return Ok(Kept { number, is_new: false });
        }
        let number = newest.unwrap_or(0) + 1;
        self.remove_unfinished(place)?;
        let draft = format!("{place}/{VERSIONS}/{UNFINISHED}{number}");
        let failed = |error| Error::io(format!("making {draft}"), error);
        for directory in [format!("{place}/{VERSIONS}"), draft.clone()] {
            self.disk.create_directory(&directory).map_err(failed)?;
        }
        if let Err(error) = self.keep_files(&canonical, place, &draft) {
            self.remove_unfinished(place)
                .unwrap_or_else(|left| log::warn!("the next version removes the remains: {left}"));
            return Err(error);
        }
        let bytes = collection.state().used().logical;
        let created_at = u64::try_from(now_nanoseconds()).unwrap_or(0);
        let description = Description { created_at, bytes, state, ..Description::default() };
        description.write(&*self.disk, &draft)?;
        let made = self.disk.sync_directory(&draft).and_then(|()| {
            self.disk.rename(&draft, &directory(place, number))?;
            self.disk.sync_directory(&format!("{place}/{VERSIONS}"))?;
            self.disk.sync_directory(&place.to_string())
        });
        made.map_err(failed)?;
        collection.meter().set_aside(bytes_of_versions(&*self.disk, place));
        Ok(Kept { number, is_new: true })
    }

    /// `NotSupported` if a collection cannot have versions, whatever its files are.
    pub fn check_versionable(&self, collection: &Collection) -> Result<()> {
        let place = collection.place();
        collection.check_writable()?;
        if self.clone_source(place.tenant, place.name)?.is_some() {
            return Err(refused(place, "it is a clone, whose bytes are those of a remote"));
        }
        if collection.state().objects().any(|object| object.origin.is_some()) {
            return Err(refused(place, "it has files that an import left in place, which may change"));
        }
        Ok(())
    }

    fn keep_files(&self, canonical: &Canonical, place: CollectionName<'_>, draft: &str) -> Result<()> {
        for file in canonical.files() {
            self.keep_file(canonical, file, place, draft)?;
        }
        self.keep_log(canonical, draft)
    }

    /// Gives a version a file: another name of a data file, or a copy.
    fn keep_file(
        &self,
        canonical: &Canonical,
        file: &CanonicalFile,
        place: CollectionName<'_>,
        draft: &str,
    ) -> Result<()> {
        let Some(name) = file_name(file.kind, file.number) else { return Ok(()) };
        let path = format!("{draft}/{name}");
        if file.kind == FileKind::Data {
            // The hold keeps the file; from now on it has two names, so it is not changed in place.
            let from = format!("{place}/data/{name}");
            let linked = self.services.sharing().while_unchanged(|| self.disk.link(&from, &path));
            match linked {
                Ok(()) => return Ok(()),
                Err(error) => log::debug!("{path} is a copy: {error}"),
            }
        }
        self.copy_file(canonical, file, &path)
    }

    /// Writes a canonical file, durably apart from its name.
    pub(super) fn copy_file(&self, canonical: &Canonical, file: &CanonicalFile, path: &str) -> Result<()> {
        let failed = |error: io::Error| Error::io(format!("writing {path}"), error);
        let copy = self.disk.open(path, Open::Create).map_err(failed)?;
        copy.set_len(file.bytes).map_err(failed)?;
        let (mut at, mut bytes) = (0, Vec::new());
        while at < file.bytes {
            let end = file.bytes.min(at + STEP_BYTES);
            canonical.read(file, std::slice::from_ref(&(at..end)), &mut bytes)?;
            for (offset, part) in without_zeros(&bytes) {
                copy.write_at(part, at + offset).map_err(failed)?;
            }
            at = end;
        }
        copy.sync_data().map_err(failed)
    }

    /// Writes the log of a version, with a number for inode numbers.
    fn keep_log(&self, canonical: &Canonical, draft: &str) -> Result<()> {
        let number = self.free_number()?;
        let mut state = copied(canonical.state(), |_| true)?;
        let (created_at, last_entry) = (state.created_at(), state.last_entry());
        state.apply_entry(Entry::Collection { number, created_at, last_entry })?;
        state.batch_ended();
        let path = format!("{draft}/{LOG_NAME}");
        let written = write_new(&*self.disk, &path, &log_of(&state, self.id())?);
        let synced = written.and_then(|log| log.sync_data());
        synced.map_err(|error| Error::io(format!("writing {path}"), error))
    }

    /// Removes what an interrupted step has left.
    pub(super) fn remove_unfinished(&self, place: CollectionName<'_>) -> Result<()> {
        let path = format!("{place}/{VERSIONS}");
        let listed = match self.disk.list(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            listed => listed.map_err(|error| Error::io(format!("listing {path}"), error))?,
        };
        for entry in listed.iter().filter(|entry| entry.name.starts_with(UNFINISHED)) {
            self.remove_tree(&format!("{path}/{}", entry.name))?;
        }
        Ok(())
    }
}

fn refused(place: CollectionName<'_>, why: &str) -> Error {
    Error::new(ErrorKind::NotSupported, format!("{place} cannot have versions: {why}"))
}
