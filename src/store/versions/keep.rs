//! Makes a version of the present state of a collection.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use crate::format::log::catalog::Entry;
use crate::format::snapshot::manifest::FileKind;
use crate::format::version_description::Description;
use crate::format::zstandard;
use crate::model::{CollectionName, Error, ErrorKind, Result};
use crate::store::clock::now_nanoseconds;
use crate::store::collection::Collection;
use crate::store::disk::{Open, without_zeros, write_new};
use crate::store::log::LOG_NAME;
use crate::store::quota::{Reserved, Use};
use crate::store::snapshot::canonical::{Canonical, log_of};
use crate::store::snapshot::freeze::{Frozen, copied};
use crate::store::snapshot::payloads::CanonicalFile;
use crate::store::store::Store;
use crate::store::version_disk::{
    DIFFERENCE, DRAFT, PACKED, PACKED_LOG_MAX, UNFINISHED, VERSIONS, number_of,
};
use crate::store::version_list::{create_description, directory, file_name, numbers, read_description};

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

/// A version that is being made.
struct Draft<'a> {
    place: CollectionName<'a>,
    canonical: &'a Canonical,
    /// Its directory, and that of the version before.
    path: &'a str,
    previous: Option<String>,
    /// Bytes of the files that are copies.
    copied: u64,
}

impl Store {
    /// Keeps the present state of a collection as a version, durably, unless the newest version is that state.
    /// `Quota` if its copies exceed a limit;
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
            let described = read_description(&*self.disk, &directory(place, *number));
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
        let previous = newest.map(|number| directory(place, number));
        let draft_of = Draft { place, canonical: &canonical, path: &draft, previous, copied: 0 };
        // The copies count in quotas before they are made.
        let mut held = collection.meter().reserve(Use::default())?;
        let bytes = collection.state().used().logical;
        let created_at = u64::try_from(now_nanoseconds()).unwrap_or(0);
        let description = Description { created_at, bytes, state, ..Description::default() };
        let made = self.keep_files(draft_of, &mut held).and_then(|()| {
            create_description(&*self.disk, &draft, &description)?;
            let placed = self.disk.sync_directory(&draft);
            placed.and_then(|()| self.disk.rename(&draft, &directory(place, number))).map_err(failed)
        });
        if let Err(error) = made {
            self.remove_unfinished(place)
                .unwrap_or_else(|left| log::warn!("the next version removes the remains: {left}"));
            return Err(error);
        }
        let synced = self.disk.sync_directory(&format!("{place}/{VERSIONS}"));
        synced.and_then(|()| self.disk.sync_directory(&place.to_string())).map_err(failed)?;
        collection.meter().versions_changed();
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

    fn keep_files(&self, mut draft: Draft<'_>, held: &mut Reserved) -> Result<()> {
        for file in draft.canonical.files() {
            self.keep_file(&mut draft, file, held)?;
        }
        self.keep_log(draft.canonical, draft.path)
    }

    /// Gives a version a file: another name of a data file or of an equal file of the version before, or a copy.
    fn keep_file(&self, draft: &mut Draft<'_>, file: &CanonicalFile, held: &mut Reserved) -> Result<()> {
        let Some(name) = file_name(file.kind, file.number) else { return Ok(()) };
        let path = format!("{}/{name}", draft.path);
        let linked = match &draft.previous {
            _ if file.kind == FileKind::Data => {
                // The hold keeps the file; from now on it has two names, so it is not changed in place.
                let from = format!("{}/data/{name}", draft.place);
                self.services.sharing().while_unchanged(|| self.disk.link(&from, &path))
            }
            Some(previous) if self.is_in(draft.canonical, file, &format!("{previous}/{name}"))? => {
                self.disk.link(&format!("{previous}/{name}"), &path)
            }
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        let Err(error) = linked else { return Ok(()) };
        log::debug!("{path} is a copy: {error}");
        draft.copied = draft.copied.saturating_add(file.bytes);
        held.count_versions();
        held.set(Use { stored: draft.copied, ..Use::default() })?;
        self.copy_file(draft.canonical, file, &path)
    }

    /// Whether the file at a path, which never changes, has the bytes of a canonical file.
    fn is_in(&self, canonical: &Canonical, file: &CanonicalFile, path: &str) -> Result<bool> {
        let opened = self.disk.open(path, Open::Read);
        let Ok(before) = opened.and_then(|before| before.len().map(|len| (before, len))) else {
            return Ok(false);
        };
        let (before, len) = before;
        let (mut at, mut now, mut then) = (0, Vec::new(), Vec::new());
        while at < file.bytes && len == file.bytes {
            let end = file.bytes.min(at + STEP_BYTES);
            canonical.read(file, std::slice::from_ref(&(at..end)), &mut now)?;
            then.resize(now.len(), 0);
            if before.read_exact_at(&mut then, at).is_err() || now != then {
                return Ok(false);
            }
            at = end;
        }
        Ok(len == file.bytes)
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
        let log = log_of(&state, self.id())?;
        let (path, log) = match log.len() as u64 <= PACKED_LOG_MAX {
            true => (format!("{draft}/{LOG_NAME}{PACKED}"), zstandard::encode(&log)),
            false => (format!("{draft}/{LOG_NAME}"), log),
        };
        let written = write_new(&*self.disk, &path, &log);
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
        for entry in listed.iter().filter(|entry| entry.is_directory) {
            let below = format!("{path}/{}", entry.name);
            if entry.name.starts_with(UNFINISHED) {
                self.remove_tree(&below)?;
            } else if number_of(&entry.name).is_some() {
                self.remove_drafts(&below)?;
            }
        }
        Ok(())
    }
}

impl Store {
    /// Removes the drafts of files in the directory of a version, and differences of files that are there whole.
    fn remove_drafts(&self, directory: &str) -> Result<()> {
        let failed = |error| Error::io(format!("removing drafts from {directory}"), error);
        let listed = self.disk.list(directory).map_err(failed)?;
        let names: HashSet<&str> = listed.iter().map(|entry| entry.name.as_str()).collect();
        let is_left = |name: &&str| {
            let whole = name.strip_suffix(DIFFERENCE);
            name.ends_with(DRAFT) || whole.is_some_and(|whole| names.contains(whole))
        };
        for name in names.iter().copied().filter(is_left) {
            self.disk.remove_file(&format!("{directory}/{name}")).map_err(failed)?;
        }
        Ok(())
    }
}

fn refused(place: CollectionName<'_>, why: &str) -> Error {
    Error::new(ErrorKind::NotSupported, format!("{place} cannot have versions: {why}"))
}
