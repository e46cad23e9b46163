//! The files of a collection that contain payloads: tier files and data files.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use crate::format::checksum;
use crate::format::log::catalog::{OutsideFile, OutsidePlace};
use crate::format::log::record::Stored;
use crate::model::{Error, Result};
use crate::store::clones::{Clones, SharedFile};
use crate::store::disk::change::Change;
use crate::store::disk::{Advice, Disk, File, Open, remove_if_present};
use crate::store::object::Object;
use crate::store::object::factors::FACTOR_FILE;
use crate::store::object::links::DELTA_FILE;
use crate::store::space::external_file::{FarOutside, Outside};
use crate::store::space::holders::Shown;
use crate::store::space::reservations::ReservedSlots;
use crate::store::upstream::{Upstream, cloned_file};

/// Number of payload files: the tier files, `delta.dat` and `factor.dat`.
pub(in crate::store) const PAYLOAD_FILES: usize = 6;
/// Entries of closed data files are removed from a map with more entries than this.
const SWEPT_MIN: usize = 1000;

/// Files that were written and must be durable before a batch that names them.
#[derive(Default)]
pub struct Touched {
    pub(in crate::store) files: Vec<Arc<dyn File>>,
    /// Addresses of these in memory, so that each is listed once.
    seen: HashSet<usize>,
    pub(in crate::store) tiers: HashSet<u8>,
    /// Slots reserved for the written payloads. Dropping this returns those that no batch names.
    pub(in crate::store) slots: ReservedSlots,
}

impl Touched {
    /// Adds a file that was written.
    pub fn file(&mut self, file: &Arc<dyn File>) {
        if self.seen.insert(Arc::as_ptr(file).cast::<()>().addr()) {
            self.files.push(file.clone());
        }
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.tiers.is_empty()
    }

    /// Takes over the content of `other`.
    pub fn merge(&mut self, other: Touched) {
        other.files.iter().for_each(|file| self.file(file));
        self.tiers.extend(other.tiers);
        self.slots.merge(other.slots);
    }
}

/// Data files that somebody has open.
#[derive(Default)]
struct OpenDataFiles {
    known: HashMap<u64, Weak<dyn File>>,
    /// The number of entries at which those of closed files are removed: twice what the last time left.
    sweep_at: usize,
    /// The one that was asked for last, kept open: the next tensor that a program opens is often in the same file.
    /// None outside the store, whose name may come to lead to another file.
    last: Option<(u64, Arc<dyn File>)>,
}

impl OpenDataFiles {
    fn note(&mut self, id: u64, file: &Arc<dyn File>) {
        if self.known.len() >= self.sweep_at.max(SWEPT_MIN) {
            self.known.retain(|_, file| file.strong_count() > 0);
            self.sweep_at = self.known.len() * 2;
        }
        self.known.insert(id, Arc::downgrade(file));
    }

    fn keep(&mut self, id: u64, file: &Arc<dyn File>) {
        if self.last.as_ref().is_none_or(|(last, _)| *last != id) {
            self.last = Some((id, file.clone()));
        }
    }
}

/// The files of a collection. Each is opened at its first use.
pub(in crate::store) struct Files {
    disk: Arc<dyn Disk>,
    /// The remote behind the disk. Logs in memory and repairs have none.
    upstream: Option<Arc<dyn Upstream>>,
    /// The collection's directory.
    path: String,
    /// How files that exist are opened.
    how: Open,
    payload_files: [OnceLock<Arc<dyn File>>; PAYLOAD_FILES],
    /// Open data files. Held while one is opened.
    data_files: Mutex<OpenDataFiles>,
    /// Data files that programs see.
    pub shown: Shown,
}

impl Files {
    /// The files in the directory `path`, opened for writing if they may be written.
    pub fn new(disk: &Arc<dyn Disk>, path: String, may_write: bool) -> Files {
        Files {
            disk: disk.clone(),
            upstream: None,
            path,
            how: if may_write { Open::Write } else { Open::Read },
            payload_files: Default::default(),
            data_files: Mutex::default(),
            shown: Shown::default(),
        }
    }

    /// Sets the remote behind the disk.
    pub fn set_upstream(&mut self, upstream: Option<Arc<dyn Upstream>>) {
        self.upstream = upstream;
    }

    /// The remote behind the disk.
    pub fn upstream(&self) -> Option<&Arc<dyn Upstream>> {
        self.upstream.as_ref()
    }

    /// The clones of the store, if it can have any.
    pub fn clones(&self) -> Option<&Clones> {
        self.upstream()?.clones()
    }

    /// The pieces of a file of payloads, if the collection is a clone.
    pub fn cloned_payload_file(&self, number: u8) -> std::io::Result<Option<Arc<SharedFile>>> {
        cloned_file(self.upstream(), &self.payload_path(number))
    }

    /// The pieces of a data file, if the collection is a clone.
    pub fn cloned_data_file(&self, id: u64) -> std::io::Result<Option<Arc<SharedFile>>> {
        cloned_file(self.upstream(), &self.data_path(id))
    }

    /// The disk.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// The collection's directory: `tenant/name`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A payload file by number: a tier's, or that of deltas or factorizations.
    pub fn payload_file(&self, number: u8) -> Result<Arc<dyn File>> {
        self.payload_file_by(number, |path| self.disk.open(path, self.how))
    }

    /// The payload file to write to. It is created only if it `may_be_missing`: an empty file in place of
    /// a lost one would hide the loss.
    pub fn payload_file_made(&self, number: u8, may_be_missing: bool) -> Result<Arc<dyn File>> {
        self.payload_file_by(number, |path| match self.disk.open(path, Open::Write) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && may_be_missing => {
                self.disk.open(path, Open::Create)
            }
            opened => opened,
        })
    }

    fn payload_file_by(
        &self,
        number: u8,
        open: impl FnOnce(&str) -> std::io::Result<Arc<dyn File>>,
    ) -> Result<Arc<dyn File>> {
        let Some(cell) = self.payload_files.get(usize::from(number)) else {
            return Err(Error::invalid(format!("tier {number}")));
        };
        if let Some(file) = cell.get() {
            return Ok(file.clone());
        }
        let path = self.payload_path(number);
        let file = open(&path).map_err(|error| Error::io(format!("opening {path}"), error))?;
        Ok(cell.get_or_init(|| file).clone())
    }

    /// Punches a hole in a payload file, if it is open.
    pub fn punch(&self, number: u8, from: u64, len: u64) {
        if let Some(Some(file)) = self.payload_files.get(usize::from(number)).map(OnceLock::get)
            && let Err(error) = file.punch(Change::Slots, from, len)
        {
            log::warn!("giving back space of {}: {error}", self.payload_path(number));
        }
    }

    /// The path of a tier file in the store.
    pub fn tier_path(&self, number: u8) -> String {
        self.payload_path(number)
    }

    /// The path in the store of a payload file.
    pub fn payload_path(&self, number: u8) -> String {
        format!("{}/{}", self.path, payload_name(number))
    }

    /// The directory of the data files.
    pub fn data_directory(&self) -> String {
        format!("{}/data", self.path)
    }

    /// The path in the store of a data file of the collection's own.
    pub fn data_path(&self, id: u64) -> String {
        format!("{}/data/{id:016x}", self.path)
    }

    /// The path of the file that contains a payload: relative to the store, or absolute for an outside
    /// file.
    pub fn path_of_payload(&self, object: &Object, stored: &Stored) -> String {
        match (object.extent(), &object.origin) {
            (_, Some(origin)) if stored.in_data => origin.path(),
            (Some(extent), _) if stored.in_data => self.data_path(extent.file),
            _ => self.tier_path(stored.tier.byte()),
        }
    }

    /// Opens a data file, which is the file `outside` if that is given. Concurrent users share one open
    /// file.
    pub fn data_file(&self, id: u64, outside: Option<&Arc<OutsideFile>>) -> Result<Arc<dyn File>> {
        let mut open = self.data_files.lock();
        let file = match open.known.get(&id).and_then(Weak::upgrade) {
            Some(file) => file,
            None => {
                let file = match outside {
                    Some(outside) => self.open_outside(outside)?,
                    None => {
                        let path = self.data_path(id);
                        let opened = self.disk.open(&path, self.how);
                        opened.map_err(|error| Error::io(format!("opening {path}"), error))?
                    }
                };
                open.note(id, &file);
                file
            }
        };
        if outside.is_none() {
            open.keep(id, &file);
        }
        Ok(file)
    }

    /// Opens an outside file by its name. Reads succeed while it has its recorded length, and an object at a URL its
    /// recorded version.
    pub fn open_outside(&self, outside: &Arc<OutsideFile>) -> Result<Arc<dyn File>> {
        let opened: std::io::Result<Arc<dyn File>> = match &outside.place {
            OutsidePlace::Path(path) => {
                let opened = self.disk.open_outside(path);
                opened.and_then(|inner| Ok(Arc::new(Outside::new(inner, outside.clone())?) as Arc<dyn File>))
            }
            OutsidePlace::Object { object, .. } => {
                let opened = self.clones().map(|clones| clones.far_file(object, outside.bytes));
                let opened = opened.unwrap_or_else(|| Err(std::io::ErrorKind::Unsupported.into()));
                opened.map(|inner| Arc::new(FarOutside::new(inner, outside.clone())) as Arc<dyn File>)
            }
        };
        let name = outside.name();
        opened.map_err(|error| Error::io(format!("opening {name}, which an import left in place"), error))
    }

    /// Creates a data file.
    pub fn create_data_file(&self, id: u64) -> Result<Arc<dyn File>> {
        let path = self.data_path(id);
        let made = self.disk.open(&path, Open::Create);
        let file = made.map_err(|error| Error::io(format!("making {path}"), error))?;
        let mut open = self.data_files.lock();
        open.note(id, &file);
        open.keep(id, &file);
        Ok(file)
    }

    /// Removes a data file without objects. If that fails, the file is found when the collection is
    /// opened again.
    pub fn remove_data_file(&self, id: u64) {
        let path = self.data_path(id);
        // Its space is free only once nobody has it open.
        self.data_files.lock().last.take_if(|(last, _)| *last == id);
        if let Err(error) = remove_if_present(&*self.disk, &path) {
            log::warn!("removing {path}: {error}");
        }
    }

    /// Whether somebody reads the object's data file directly by a descriptor.
    pub fn is_read_directly(&self, object: &Object) -> bool {
        object.extent().is_some_and(|extent| self.shown.has_readers(extent.file))
    }

    /// Reads and verifies the record of `delta.dat` or `factor.dat` with this offset and length.
    /// `Corrupt` if it does not match the log. Allocates no more than the size of the file.
    pub fn read_record(&self, number: u8, offset: u64, len: u64, checksum: u32) -> Result<Vec<u8>> {
        let path = || self.payload_path(number);
        let file = self.payload_file(number).map_err(|error| Error::corrupt(error.to_string()))?;
        let bytes = file.len().map_err(|error| Error::io(path(), error))?;
        let len =
            usize::try_from(len).ok().filter(|_| offset.checked_add(len).is_some_and(|end| end <= bytes));
        let len = len.ok_or_else(|| Error::corrupt(format!("{} is cut off; run tierfs fsck", path())))?;
        let mut record = vec![0; len];
        file.read_exact_at(&mut record, offset).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Error::corrupt(error.to_string()),
            _ => Error::io(path(), error),
        })?;
        let found = checksum::of(&record);
        if found != checksum {
            return Err(Error::corrupt(format!(
                "record crc {found:#010x} but the log says {checksum:#010x}; run tierfs fsck"
            )));
        }
        Ok(record)
    }

    /// Makes the files of `touched` and their names durable.
    pub fn sync(&self, touched: &Touched) -> Result<()> {
        if touched.files.len() > 1 {
            // The disk gets all of it before the first wait.
            for file in &touched.files {
                let begun = file.len().and_then(|len| file.advise(Advice::WillSync, 0, len));
                begun.unwrap_or_else(|error| log::debug!("syncing {}: {error}", self.path));
            }
        }
        for file in &touched.files {
            file.sync_data().map_err(|error| Error::io(format!("syncing {}", self.path), error))?;
        }
        if !touched.files.is_empty() {
            for directory in [self.data_directory(), self.path.clone()] {
                let synced = self.disk.sync_directory(&directory);
                synced.map_err(|error| Error::io(format!("syncing {directory}"), error))?;
            }
        }
        Ok(())
    }
}

/// The name of a payload file in the directory of its collection.
pub(in crate::store) fn payload_name(number: u8) -> String {
    match number {
        DELTA_FILE => "delta.dat".to_owned(),
        FACTOR_FILE => "factor.dat".to_owned(),
        tier => format!("tier{tier}.dat"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Weak};

    use super::Files;
    use crate::store::disk::memory::MemoryDisk;
    use crate::store::disk::{Disk, File, Open};

    #[test]
    fn the_data_file_that_was_used_last_stays_open_until_another_is_used_or_it_is_removed() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        for directory in ["t", "t/c", "t/c/data"] {
            disk.create_directory(directory).unwrap();
        }
        let files = Files::new(&disk, "t/c".to_owned(), true);
        for id in [1, 2] {
            disk.open(&files.data_path(id), Open::Create).unwrap();
        }
        let used = |id| -> Weak<dyn File> { Arc::downgrade(&files.data_file(id, None).unwrap()) };
        let (first, again) = (used(1), used(1));
        assert!(Weak::ptr_eq(&first, &again));
        // The disk itself has each file in memory.
        assert_eq!(first.strong_count(), 2);
        let second = used(2);
        assert_eq!([first.strong_count(), second.strong_count()], [1, 2]);
        files.remove_data_file(2);
        assert!(second.upgrade().is_none());
    }
}
