//! Pinned copies: the bytes of pinned files, and of pinned forms of files, as readers see them, kept
//! once more in a contiguous file of their own, `pinned/<number>`.
//!
//! Invariants:
//! 1. A copy is complete and durable before the log names it, and is never written again.
//! 2. The batch that changes the content of a file removes its copy from the log.
//! 3. A copy is read directly, and used to repair blocks, only once its BLAKE3 was verified since the
//!    store was opened.
//! 4. The file of a copy is removed when the batch that no longer names it is durable and nobody has it
//!    open.

use std::collections::HashSet;
use std::sync::Arc;

use crate::model::{Error, Result};
use crate::store::collection::Collection;
use crate::store::disk::{File, Open, remove_if_present};
use crate::store::state::freed_space::Freed;

impl Collection {
    fn pinned_directory(&self) -> String {
        format!("{}/pinned", self.path())
    }

    /// The path of a copy in the store.
    pub fn pinned_path(&self, number: u64) -> String {
        format!("{}/{number:016x}", self.pinned_directory())
    }

    /// Creates the file of a copy and returns its number. It becomes a copy with
    /// [`finish_pinned`](Self::finish_pinned) and a batch that names it.
    pub fn create_pinned(&self) -> Result<(u64, Arc<dyn File>)> {
        let writer = &mut *self.writer()?;
        self.reclaim(writer);
        let number = self.next_data(writer)?;
        writer.next_data = number + 1;
        let (directory, path) = (self.pinned_directory(), draft_of(&self.pinned_path(number)));
        let made = self.files.disk().create_directory(&directory);
        let made = made.and_then(|()| self.files.disk().sync_directory(self.files.path()));
        let file = made.and_then(|()| self.files.disk().open(&path, Open::Create));
        Ok((number, file.map_err(|error| Error::io(format!("making {path}"), error))?))
    }

    /// Makes a complete copy durable and gives it its final name.
    pub fn finish_pinned(&self, number: u64, file: &Arc<dyn File>) -> Result<()> {
        let path = self.pinned_path(number);
        let finished = file.sync_data().and_then(|()| self.files.disk().rename(&draft_of(&path), &path));
        let finished = finished.and_then(|()| self.files.disk().sync_directory(&self.pinned_directory()));
        finished.map_err(|error| Error::io(format!("writing {path}"), error))
    }

    /// Removes the file of a copy that no batch names. If that fails, the file is found when the
    /// collection is opened again.
    pub fn remove_pinned(&self, number: u64) {
        let path = self.pinned_path(number);
        for path in [draft_of(&path), path] {
            if let Err(error) = remove_if_present(&**self.files.disk(), &path) {
                log::warn!("removing {path}: {error}");
            }
        }
    }

    /// Removes the files of copies that the log does not name.
    pub(in crate::store) fn remove_stray_copies(&self) -> Result<()> {
        let directory = self.pinned_directory();
        let listed = match self.files.disk().list(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            listed => listed.map_err(|error| Error::io(format!("listing {directory}"), error))?,
        };
        let mut kept: HashSet<u64> = HashSet::new();
        if let Some(writer) = self.journal.lock().as_ref() {
            kept.extend(writer.freed.iter().filter_map(|(_, freed)| match freed {
                Freed::Copy(copy) => Some(copy.number),
                _ => None,
            }));
        }
        kept.extend(self.state.read().pins().filter_map(|(_, copy)| copy).map(|copy| copy.number));
        let known: HashSet<String> = kept.iter().map(|number| format!("{number:016x}")).collect();
        for file in listed.into_iter().filter(|file| !file.is_directory && !known.contains(&file.name)) {
            let path = format!("{directory}/{}", file.name);
            self.files
                .disk()
                .remove_file(&path)
                .map_err(|error| Error::io(format!("removing {path}"), error))?;
        }
        Ok(())
    }
}

fn draft_of(path: &str) -> String {
    format!("{path}.new")
}
