//! The stored parts of an import that is not committed yet.

use std::sync::Arc;

use crate::format::log::record::Record;
use crate::model::{Error, ObjectId, Result};
use crate::store::Touched;
use crate::store::disk::File;
use crate::store::{Collection, SharedName};

/// Data files and objects of an import. Dropping this before the commit releases them, so that a
/// failed import does not fill the disk.
pub(in crate::ingest) struct Uncommitted<'a> {
    collection: &'a Collection,
    data_files: Vec<u64>,
    objects: Vec<ObjectId>,
}

impl<'a> Uncommitted<'a> {
    /// Creates an empty one.
    pub fn new(collection: &'a Collection) -> Uncommitted<'a> {
        collection.publishing_begins();
        Uncommitted { collection, data_files: Vec::new(), objects: Vec::new() }
    }

    /// Creates a data file of `bytes` zeros and returns its number.
    pub fn create_data_file(&mut self, bytes: u64) -> Result<(u64, Arc<dyn File>)> {
        let (number, file) = self.collection.create_data_file()?;
        self.data_files.push(number);
        file.set_len(bytes).map_err(|error| Error::io("making room for it", error))?;
        Ok((number, file))
    }

    /// Creates a data file as another name of one that may have the same `bytes` bytes, and returns its
    /// number. `None` where that is not possible.
    pub fn link_data_file(&mut self, name: &SharedName, bytes: u64) -> Result<Option<(u64, Arc<dyn File>)>> {
        let linked = self.collection.link_data_file(name, bytes)?;
        self.data_files.extend(linked.as_ref().map(|(number, _)| *number));
        Ok(linked)
    }

    /// Removes a data file that is not needed after all.
    pub fn remove_data_file(&mut self, number: u64) {
        self.data_files.retain(|known| *known != number);
        self.collection.remove_data_file(number);
    }

    /// Notes an object that is about to be committed.
    pub fn object(&mut self, id: ObjectId) {
        self.objects.push(id);
    }

    /// Notes that a batch names all of these.
    pub fn named(mut self) {
        self.data_files.clear();
        self.objects.clear();
    }
}

impl Drop for Uncommitted<'_> {
    fn drop(&mut self) {
        self.remove_rest();
        self.collection.publishing_ends();
    }
}

impl Uncommitted<'_> {
    /// Removes what no batch names.
    fn remove_rest(&self) {
        if self.data_files.is_empty() && self.objects.is_empty() {
            // All of these were committed.
            return;
        }
        // After a failed sync the names may still have reached the disk. Reopening the collection
        // resolves that.
        if self.collection.poisoned().is_some() {
            return;
        }
        for &id in &self.data_files {
            self.collection.remove_data_file(id);
        }
        if self.objects.is_empty() {
            return;
        }
        let deleted = self.collection.commit(Touched::default(), |batch, state| {
            for &object in self.objects.iter().filter(|id| state.object(**id).is_some()) {
                batch.record(Record::Delete { object });
            }
            Ok(())
        });
        if let Err(error) = deleted {
            log::warn!("the space of an unfinished import is freed when the store is opened again: {error}");
        }
    }
}
