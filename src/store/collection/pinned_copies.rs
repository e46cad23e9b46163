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

use crate::model::{Error, ErrorKind, Result};
use crate::store::Collection;
use crate::store::disk::{File, Open};
use crate::store::events::EventKind;
use crate::store::io::read::OpenObject;
use crate::store::state::freed::Freed;
use crate::store::state::pinned_copy::{PIN, PinnedCopy};
use crate::store::state::pins::Pin;

/// A copy is read in chunks of this many bytes.
const CHUNK_BYTES: usize = 1 << 20;

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
        let mut writer = self.writer.lock();
        let writer = self.writable(&mut writer)?;
        self.reclaim(writer);
        let number = self.next_data(writer)?;
        writer.next_data = number + 1;
        let (directory, path) = (self.pinned_directory(), draft_of(&self.pinned_path(number)));
        let made = self.disk.create_directory(&directory);
        let made = made.and_then(|()| self.disk.sync_directory(&self.path()));
        let file = made.and_then(|()| self.disk.open(&path, Open::Create));
        Ok((number, file.map_err(|error| Error::io(format!("making {path}"), error))?))
    }

    /// Makes a complete copy durable and gives it its final name.
    pub fn finish_pinned(&self, number: u64, file: &Arc<dyn File>) -> Result<()> {
        let path = self.pinned_path(number);
        let finished = file.sync_data().and_then(|()| self.disk.rename(&draft_of(&path), &path));
        let finished = finished.and_then(|()| self.disk.sync_directory(&self.pinned_directory()));
        finished.map_err(|error| Error::io(format!("writing {path}"), error))
    }

    /// Removes the file of a copy that no batch names. If that fails, the file is found when the
    /// collection is opened again.
    pub fn remove_pinned(&self, number: u64) {
        let path = self.pinned_path(number);
        for path in [draft_of(&path), path] {
            match self.disk.remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    log::warn!("removing {path}: {error}");
                }
                _ => {}
            }
        }
    }

    /// Removes the files of copies that the log does not name.
    pub(in crate::store) fn remove_stray_copies(&self) -> Result<()> {
        let directory = self.pinned_directory();
        let listed = match self.disk.list(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            listed => listed.map_err(|error| Error::io(format!("listing {directory}"), error))?,
        };
        let mut kept: HashSet<u64> = HashSet::new();
        if let Some(writer) = self.writer.lock().as_ref() {
            kept.extend(writer.freed.iter().filter_map(|(_, freed)| match freed {
                Freed::Copy(copy) => Some(copy.number),
                _ => None,
            }));
        }
        kept.extend(self.state.read().pins().filter_map(|(_, copy)| copy).map(|copy| copy.number));
        let known: HashSet<String> = kept.iter().map(|number| format!("{number:016x}")).collect();
        for file in listed.into_iter().filter(|file| !file.is_directory && !known.contains(&file.name)) {
            let path = format!("{directory}/{}", file.name);
            self.disk.remove_file(&path).map_err(|error| Error::io(format!("removing {path}"), error))?;
        }
        Ok(())
    }

    /// Reads a copy and verifies its BLAKE3: an error says what is wrong. `Interrupted` if `stop`
    /// returned true.
    pub fn check_copy(&self, copy: &PinnedCopy, stop: &dyn Fn() -> bool) -> Result<()> {
        let path = self.pinned_path(copy.number);
        let failed = |error| Error::io(format!("reading {path}"), error);
        let file = self.disk.open(&path, Open::Read).map_err(failed)?;
        let found = file.len().map_err(failed)?;
        if found != copy.bytes {
            return Err(Error::corrupt(format!("{path} has {found} bytes where {} should be", copy.bytes)));
        }
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        while at < copy.bytes {
            let len = (copy.bytes - at).min(CHUNK_BYTES as u64) as usize;
            let here = chunk.get_mut(..len).unwrap_or_default();
            file.read_exact_at(here, at).map_err(failed)?;
            hasher.update(here);
            at += len as u64;
            if stop() {
                return Err(Error::new(ErrorKind::Interrupted, "it was told to stop"));
            }
        }
        match hasher.finalize().as_bytes() == &copy.blake3 {
            true => Ok(()),
            false => Err(Error::corrupt(format!("{path}: its BLAKE3 is not that which the log says"))),
        }
    }

    /// Whether a copy of a file is sound. Verifies it once and reports a corrupt one. Also `false` if
    /// `stop` returned true before the result was known.
    pub fn is_sound(&self, pin: Pin, copy: &PinnedCopy, stop: &dyn Fn() -> bool) -> bool {
        copy.is_sound_by(false, || self.verify_copy(pin, copy, stop))
    }

    /// Verifies a copy and reports a corrupt one. `None` if `stop` returned true.
    fn verify_copy(&self, pin: Pin, copy: &PinnedCopy, stop: &dyn Fn() -> bool) -> Option<bool> {
        let checked = self.check_copy(copy, stop);
        if checked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted) {
            return None;
        }
        if let Err(error) = &checked {
            let below = String::from_utf8_lossy(&self.state().path(pin.node)).into_owned();
            let path = format!("{}/{below}", self.path());
            self.event_log.tell(EventKind::Corruption, &path, PIN, &error.to_string());
        }
        Some(checked.is_ok())
    }
}

/// When to verify a copy before a block is read from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compare {
    /// Once since the store was opened. The caller has a checksum of the block.
    Once,
    /// Before this read.
    Again,
}

impl OpenObject {
    /// Whether a pinned copy may contain the object's bytes.
    pub fn has_pinned(&self) -> bool {
        !self.collection.state().copies_with(self.object.entry.id).is_empty()
    }

    /// Reads a block as readers see it from a pinned copy into `out`, which has the block's length.
    /// `false` if there is no sound copy.
    pub fn read_pinned(&self, index: u32, compare: Compare, out: &mut [u8]) -> Result<bool> {
        let object = &self.object;
        let mut copies = self.collection.state().copies_with(object.entry.id);
        copies.sort_by_key(|(_, copy, _)| copy.bytes);
        let layout = object.logged_layout();
        if self.collection.damage().is_some() || layout.len(index) != out.len() {
            return Ok(false);
        }
        for (pin, copy, offset) in copies {
            let collection = &self.collection;
            // A copy that was found corrupt is not compared again.
            let is_sound = collection.is_sound(pin, &copy, &|| false)
                && (compare == Compare::Once
                    || copy.is_sound_by(true, || collection.verify_copy(pin, &copy, &|| false)));
            if !is_sound {
                continue;
            }
            let path = self.collection.pinned_path(copy.number);
            let file = self.collection.disk.open(&path, Open::Read);
            let read = file.and_then(|file| file.read_exact_at(out, offset + layout.start(index)));
            match read {
                Ok(()) => return Ok(true),
                Err(error) => log::warn!("{path}: {error}"),
            }
        }
        Ok(false)
    }
}

fn draft_of(path: &str) -> String {
    format!("{path}.new")
}
