//! Verifies the copies of pinned files, and reads blocks from them.

use crate::model::{Error, ErrorKind, Result};
use crate::store::collection::Collection;
use crate::store::collection::open_object::OpenObject;
use crate::store::disk::Open;
use crate::store::events::EventKind;
use crate::store::state::pinned_copy::{PIN, PinnedCopy};
use crate::store::state::pins::Pin;

/// A copy is read in chunks of this many bytes.
const CHUNK_BYTES: usize = 1 << 20;

impl Collection {
    /// Reads a copy and verifies its BLAKE3; the error describes the difference. `Interrupted` if `stop`
    /// returned true.
    pub fn check_copy(&self, copy: &PinnedCopy, stop: &dyn Fn() -> bool) -> Result<()> {
        let path = self.pinned_path(copy.number);
        let failed = |error| Error::io(format!("reading {path}"), error);
        let file = self.files.disk().open(&path, Open::Read).map_err(failed)?;
        let found = file.len().map_err(failed)?;
        if found != copy.bytes {
            return Err(Error::corrupt(format!("{path} has {found} bytes where {} should be", copy.bytes)));
        }
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        while at < copy.bytes {
            let len = (copy.bytes - at).min(CHUNK_BYTES as u64) as usize;
            let here = &mut chunk[..len];
            file.read_exact_at(here, at).map_err(failed)?;
            hasher.update(here);
            at += len as u64;
            if stop() {
                return Err(Error::new(ErrorKind::Interrupted, "the job was cancelled"));
            }
        }
        if hasher.finalize().as_bytes() != &copy.blake3 {
            return Err(Error::corrupt(format!("{path}: its BLAKE3 differs from the one in the log")));
        }
        Ok(())
    }

    /// Whether a copy of a file is sound. Verifies it once and reports a corrupt one. Also `false` if
    /// `stop` returned true before the result was known.
    pub fn is_sound(&self, pin: Pin, copy: &PinnedCopy, stop: &dyn Fn() -> bool) -> bool {
        copy.is_sound_by(false, || self.verify_copy(pin, copy, stop))
    }

    /// Whether a copy of a file is sound now. As [`is_sound`](Self::is_sound), but verifies it again.
    pub fn is_still_sound(&self, pin: Pin, copy: &PinnedCopy, stop: &dyn Fn() -> bool) -> bool {
        copy.is_sound_by(true, || self.verify_copy(pin, copy, stop))
    }

    /// Whether a copy is still that of its pin.
    pub fn has_copy(&self, pin: Pin, copy: &PinnedCopy) -> bool {
        self.state().copy_of(pin).is_some_and(|now| now.number == copy.number)
    }

    /// Verifies a copy and reports a corrupt one. `None` if `stop` returned true, or if the copy went meanwhile.
    fn verify_copy(&self, pin: Pin, copy: &PinnedCopy, stop: &dyn Fn() -> bool) -> Option<bool> {
        let checked = self.check_copy(copy, stop);
        if checked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted) {
            return None;
        }
        // A copy that was removed or replaced meanwhile is not corrupt.
        if checked.is_err() && !self.has_copy(pin, copy) {
            return None;
        }
        if let Err(error) = &checked {
            let below = String::from_utf8_lossy(&self.state().path(pin.node)).into_owned();
            let path = format!("{}/{below}", self.path());
            self.services.events().tell(EventKind::Corruption, &path, PIN, &error.to_string());
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
                && (compare == Compare::Once || collection.is_still_sound(pin, &copy, &|| false));
            if !is_sound {
                continue;
            }
            let path = self.collection.pinned_path(copy.number);
            let file = self.collection.files.disk().open(&path, Open::Read);
            let read = file.and_then(|file| file.read_exact_at(out, offset + layout.start(index)));
            match read {
                Ok(()) => return Ok(true),
                Err(error) => log::warn!("{path}: {error}"),
            }
        }
        Ok(false)
    }
}
