//! The SHA-256 of a whole file, as a source says it. Bytes are read in pieces, so it can be compared only once all of them are
//! in the cache.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use sha2::{Digest, Sha256};

use crate::format::snapshot::manifest::{Manifest, ManifestFile};
use crate::format::snapshot::references::Version;
use crate::remote::read::cache::blob::Blob;

/// Bytes of a read.
const CHUNK: u64 = 1 << 20;

/// How far the comparison of a file is. Pieces may be missing.
const AWAITED: u8 = 0;
const COMPARING: u8 = 1;
const RIGHT: u8 = 2;
const WRONG: u8 = 3;

/// The digest of a file, and whether the file has it.
pub(super) struct WholeDigest {
    wanted: [u8; 32],
    state: AtomicU8,
}

impl WholeDigest {
    /// The digest of a file of a manifest, if the source says one.
    pub fn of(manifest: &Manifest, file: &ManifestFile) -> Option<Arc<WholeDigest>> {
        let references = manifest.references.as_ref()?;
        let (object, offset) = references.place_of(file.extents.first()?.piece)?;
        match object.version {
            Version::Sha256(wanted) if offset == 0 && object.bytes == file.bytes => {
                Some(Arc::new(WholeDigest { wanted, state: AtomicU8::new(AWAITED) }))
            }
            _ => None,
        }
    }

    /// Fails if the file was compared and has other bytes.
    pub fn check(&self) -> io::Result<()> {
        match self.state.load(Ordering::Relaxed) {
            WRONG => Err(io::Error::other("its bytes do not have the SHA-256 that the source says")),
            _ => Ok(()),
        }
    }

    /// Whether the file was compared, by this mount or an earlier one, and has its bytes.
    pub fn is_right(&self) -> bool {
        self.state.load(Ordering::Relaxed) == RIGHT
    }

    /// Notices how far the file is. Returns whether it is to be compared now, by the caller.
    pub fn is_due(&self, blob: &Blob) -> bool {
        let change =
            |from, to| self.state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !blob.pieces().is_whole() {
            // Pieces of a compared file may have been dropped.
            change(RIGHT, AWAITED);
            return false;
        }
        change(AWAITED, COMPARING) && !(blob.has_sha256(&self.wanted) && change(COMPARING, RIGHT))
    }

    /// Compares the file, which takes as long as it is read. One that differs is forgotten, and not read again.
    pub fn compare(&self, blob: &Blob) -> io::Result<bool> {
        let drops = blob.drops();
        let is_right = || digest_of(blob).map(|found| found == self.wanted);
        // Pieces may have been dropped and fetched again meanwhile.
        let is_same = is_right().and_then(|is_same| if is_same { Ok(true) } else { is_right() });
        let state = match is_same {
            Ok(true) => {
                blob.note_sha256(&self.wanted, drops);
                RIGHT
            }
            Ok(false) => WRONG,
            // The cache has failed, or dropped the file.
            Err(_) => AWAITED,
        };
        self.state.store(state, Ordering::Relaxed);
        if state == WRONG {
            blob.drop_pieces(&(0..blob.layout().piece_count()).collect::<Vec<_>>());
        }
        is_same
    }
}

fn digest_of(blob: &Blob) -> io::Result<[u8; 32]> {
    let (mut hasher, mut at, bytes) = (Sha256::new(), 0, blob.layout().bytes());
    let mut buffer = vec![0; CHUNK.min(bytes) as usize];
    while at < bytes {
        let len = CHUNK.min(bytes - at);
        let part = buffer.get_mut(..len as usize).unwrap_or_default();
        blob.read_at(part, at)?;
        hasher.update(&*part);
        at += len;
    }
    // A piece that was dropped reads as zeros.
    if blob.pieces().is_whole() { Ok(hasher.finalize().into()) } else { Err(io::ErrorKind::NotFound.into()) }
}
