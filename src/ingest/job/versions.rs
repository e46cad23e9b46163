//! The versions that an import with `previous` keeps: of the state before it, and of the state after it.

use std::sync::Arc;

use crate::ingest::job::import_job::Watch;
use crate::ingest::job::request::Request;
use crate::ingest::job::sum::Sum;
use crate::model::{ErrorKind, Result};
use crate::store::{Collection, Kept, ROOT, Store};

/// How often a version is tried while a file is being cut into tensors.
const TRIES: u32 = 5;

pub(super) struct KeptVersions<'a> {
    pub store: &'a Store,
    pub collection: &'a Arc<Collection>,
    pub request: &'a Request,
    pub watch: &'a dyn Watch,
}

impl KeptVersions<'_> {
    /// Keeps the present state, unless a version is that state or nothing is there yet. A state with damaged blocks is
    /// noted and not kept: the import may mend it.
    pub fn before(&self, sum: &mut Sum) -> Result<()> {
        if !self.request.previous {
            return Ok(());
        }
        self.store.check_versionable(self.collection)?;
        let is_empty = self.collection.state().directory(ROOT).is_none_or(|directory| directory.is_empty());
        if is_empty {
            return Ok(());
        }
        match self.keep() {
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Absent) => {
                self.note(format!("the state before is no version: {error}"), sum);
                Ok(())
            }
            kept => kept.map(drop),
        }
    }

    /// Keeps the state after an import in which no file failed. Earlier versions become differences, the oldest go.
    pub fn after(&self, sum: &mut Sum) -> Result<()> {
        if !self.request.previous || !sum.failed.is_empty() {
            return Ok(());
        }
        let place = self.collection.place();
        let aside = |error: crate::model::Error| {
            error.at("the files were imported, but their versions need another import --previous")
        };
        sum.version = Some(self.keep().map_err(aside)?.number);
        if let Some(count) = self.request.keep
            && let Some(used) = self.store.keep_last_versions(place, count).map_err(aside)?
        {
            let note = format!("{used}; it goes when nobody uses it, or with the next import --keep");
            self.note(note, sum);
        }
        self.store.shrink_versions(place, self.watch).map_err(aside)
    }

    fn note(&self, note: String, sum: &mut Sum) {
        let path = self.collection.path();
        self.watch.noted(&path, &note);
        sum.notes.push((path, note));
    }

    fn keep(&self) -> Result<Kept> {
        let mut tries = 0;
        loop {
            self.watch.flush(self.collection)?;
            match self.store.keep_version(self.collection) {
                Err(error) if error.kind() == ErrorKind::Busy && tries < TRIES => tries += 1,
                kept => return kept,
            }
        }
    }
}
