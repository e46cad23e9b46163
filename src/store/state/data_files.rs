//! The data files of a collection, as the log says.

use std::collections::HashMap;
use std::sync::Arc;

use crate::format::log::catalog::OutsideFile;
use crate::model::{Error, Result};

/// The data files of a collection.
#[derive(Debug, Default)]
pub(in crate::store) struct DataFiles {
    /// Number of objects in each.
    objects: HashMap<u64, u32>,
    /// Those that are files outside the store.
    outside: HashMap<u64, Arc<OutsideFile>>,
}

impl DataFiles {
    /// Whether any object lies in a data file.
    pub fn has_objects(&self, file: u64) -> bool {
        self.objects.get(&file).is_some_and(|count| *count > 0)
    }

    /// The outside file that serves as a data file.
    pub fn outside(&self, file: u64) -> Option<&Arc<OutsideFile>> {
        self.outside.get(&file)
    }

    /// The outside files, in arbitrary order.
    pub fn outside_files(&self) -> impl Iterator<Item = &Arc<OutsideFile>> {
        self.outside.values()
    }

    /// Adds an outside file. `Corrupt` if its number is taken.
    pub fn add_outside(&mut self, outside: OutsideFile) -> Result<()> {
        let number = outside.file;
        if self.has_objects(number) || self.outside.contains_key(&number) {
            return Err(Error::corrupt(format!("data file {number} is recorded twice")));
        }
        self.outside.insert(number, Arc::new(outside));
        Ok(())
    }

    /// Counts an object that lies in a data file.
    pub fn add_object(&mut self, file: u64) {
        *self.objects.entry(file).or_default() += 1;
    }

    /// Ends counting an object. The last object takes the outside file with it.
    pub fn remove_object(&mut self, file: u64) {
        if let Some(count) = self.objects.get_mut(&file) {
            *count -= 1;
        }
        if !self.has_objects(file) {
            self.outside.remove(&file);
        }
    }
}
