//! Removes the remains of interrupted imports, and a collection as a whole.

use std::collections::HashSet;

use crate::format::log::record::Record;
use crate::model::{Error, ErrorKind, ObjectId, Result};
use crate::store::collection::Collection;
use crate::store::link_candidates::data_number;
use crate::store::space::files::Touched;
use crate::store::state::ROOT;
use crate::store::state::freed_space::Freed;
use crate::store::version_disk::{UNFINISHED, VERSIONS, number_of};

impl Collection {
    /// Removes the collection from the disk. `NotEmpty` if there are names in it. The log goes last,
    /// because the other files are found only with it.
    pub(in crate::store) fn remove(&self) -> Result<()> {
        let mut writer = self.journal.lock();
        if let Some(reason) = self.poisoned() {
            return Err(self.read_only(reason));
        }
        if writer.is_none() {
            return Err(self.read_only("it is damaged or was opened to be read only"));
        }
        if self.gate.is_held() {
            let text = format!("{} is being read as a whole; try again when that has ended", self.path());
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let state = self.state.read();
        if state.directory(ROOT).is_none_or(|directory| !directory.is_empty()) {
            return Err(Error::new(ErrorKind::NotEmpty, format!("{} is not empty", self.path())));
        }
        let path = self.path();
        let failed = |error| Error::io(format!("removing {path}"), error);
        let versions = format!("{path}/{VERSIONS}");
        let mut directories = Vec::new();
        for version in self.files.disk().list(&versions).unwrap_or_default() {
            let (own, mut gone) = (format!("{versions}/{}", version.name), version.name.clone());
            if number_of(&version.name).is_some() {
                // A kill leaves no part of a version that would count as one.
                gone = format!("{UNFINISHED}removed-{gone}");
                self.files.disk().rename(&own, &format!("{versions}/{gone}")).map_err(failed)?;
            }
            directories.push(format!("{versions}/{gone}"));
        }
        directories.extend([versions, format!("{path}/pinned"), format!("{path}/data"), path.clone()]);
        for directory in directories {
            let mut listed = match self.files.disk().list(&directory) {
                // Nothing was ever pinned, or there are no versions.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                listed => listed.map_err(failed)?,
            };
            listed.sort_by_key(|entry| entry.name == "meta.log");
            for entry in listed.into_iter().filter(|entry| !entry.is_directory) {
                self.files.disk().remove_file(&format!("{directory}/{}", entry.name)).map_err(failed)?;
            }
            self.files.disk().remove_directory(&directory).map_err(failed)?;
        }
        self.files.disk().sync_directory(self.tenant()).map_err(failed)?;
        // Others may still hold this collection and must not write to it.
        *writer = None;
        Ok(())
    }

    /// Removes the remains of an interrupted import: objects without a file, and data files without an
    /// object. Objects whose removal does not fit the log stay until it has room.
    pub(in crate::store) fn recover(&self) -> Result<()> {
        if self.journal.lock().is_none() {
            return Ok(());
        }
        *self.orphans.lock() = self.objects_without_file();
        self.remove_orphans()?;
        if self.has_orphans() {
            log::warn!("{}: the space of an interrupted import is freed when the log has room", self.path());
        }
        let mut extents: HashSet<u64> = self
            .state
            .read()
            .objects()
            .filter_map(|object| object.extent())
            .map(|extent| extent.file)
            .collect();
        if let Some(writer) = self.journal.lock().as_ref() {
            // A damaged end of the log may lead back to these.
            extents.extend(writer.freed.iter().filter_map(|(_, freed)| match freed {
                Freed::Object(object) => object.extent().map(|extent| extent.file),
                _ => None,
            }));
        }
        let directory = format!("{}/data", self.path());
        let listed = match self.files.disk().list(&directory) {
            // An interrupted removal has removed the directory.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            listed => listed.map_err(|error| Error::io(format!("listing {directory}"), error))?,
        };
        for file in listed {
            if data_number(&file.name).is_some_and(|id| !extents.contains(&id)) {
                let path = format!("{directory}/{}", file.name);
                self.files
                    .disk()
                    .remove_file(&path)
                    .map_err(|error| Error::io(format!("removing {path}"), error))?;
            }
        }
        self.remove_stray_copies()
    }

    /// Removes the objects that had no file when the collection was opened. Objects without a file that
    /// came later may belong to an import in progress.
    pub(in crate::store) fn remove_orphans(&self) -> Result<()> {
        let orphans = self.orphans.lock().clone();
        if orphans.is_empty() {
            return Ok(());
        }
        let removed = self.record(Touched::default(), |batch, state| {
            for &object in orphans.iter().filter(|id| state.object(**id).is_some()) {
                batch.record(Record::Delete { object });
            }
            Ok(())
        });
        match removed {
            Ok(()) => self.orphans.lock().clear(),
            Err(error) if error.kind() == ErrorKind::Full => return Ok(()),
            Err(error) => return Err(error),
        }
        self.sync()
    }

    /// Whether there are such objects left.
    pub(in crate::store) fn has_orphans(&self) -> bool {
        !self.orphans.lock().is_empty()
    }

    /// The objects without a file, in the order of their identities.
    pub(in crate::store) fn objects_without_file(&self) -> Vec<ObjectId> {
        let state = self.state.read();
        let mut owned: HashSet<ObjectId> = HashSet::new();
        for node in state.nodes() {
            if let Some(file) = node.file() {
                owned.extend(file.objects.iter().copied());
            }
        }
        let mut orphans: Vec<ObjectId> =
            state.objects().map(|object| object.entry.id).filter(|id| !owned.contains(id)).collect();
        orphans.sort_unstable();
        orphans
    }
}
