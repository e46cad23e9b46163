//! A disk in memory whose data files lie elsewhere. A log that describes such files is made on it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::store::disk::forward::ForwardDisk;
use crate::store::disk::memory::MemoryDisk;
use crate::store::disk::{Disk, File, Open};

/// A disk in memory. The next file that is created is one that lies elsewhere, if one was given.
#[derive(Default)]
pub struct ElsewhereDisk {
    memory: MemoryDisk,
    given: Mutex<Option<Arc<dyn File>>>,
    /// By path.
    taken: Mutex<HashMap<String, Arc<dyn File>>>,
}

impl ElsewhereDisk {
    /// Gives a file, for the next creation.
    pub fn give(&self, file: &Arc<dyn File>) {
        *self.given.lock() = Some(file.clone());
    }
}

impl ForwardDisk for ElsewhereDisk {
    fn inner(&self) -> &dyn Disk {
        &self.memory
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        if how == Open::Create
            && let Some(given) = self.given.lock().take()
        {
            self.taken.lock().insert(path.to_owned(), given.clone());
            return Ok(given);
        }
        match self.taken.lock().get(path) {
            Some(_) if how == Open::Create => Err(io::ErrorKind::AlreadyExists.into()),
            Some(file) => Ok(file.clone()),
            None => self.memory.open(path, how),
        }
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        match self.taken.lock().remove(path) {
            Some(_) => Ok(()),
            None => self.memory.remove_file(path),
        }
    }
}
