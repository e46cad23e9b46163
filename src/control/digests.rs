//! SHA-256 and BLAKE3 of a file's bytes.

use sha2::{Digest, Sha256};

use crate::control::measure::Measure;
use crate::format::catalog::Digests;
use crate::model::{Error, ErrorKind, Result};
use crate::namespace::{FileView, Namespace};

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The digests of the bytes that came in: those that were kept, or of all bytes as they
/// are read now while every block is exact. `Absent` where a part is not exact any more.
/// Reads the whole file where none were kept.
pub fn digests(namespace: &Namespace, view: &FileView) -> Result<Digests> {
    if !Measure::of(view)?.is_exact() {
        return Err(Error::new(
            ErrorKind::Absent,
            format!(
                "{}: not all of it is exact, so the bytes that came in are not there to digest",
                view.path()
            ),
        ));
    }
    if let Some(kept) = view.node.file().and_then(|file| file.digests) {
        return Ok(kept);
    }
    let stream = namespace.open(view)?;
    let (mut sha256, mut blake3) = (Sha256::new(), blake3::Hasher::new());
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    loop {
        let count = stream.read(at, &mut chunk)?;
        let Some(bytes) = chunk.get(..count).filter(|bytes| !bytes.is_empty()) else { break };
        sha256.update(bytes);
        blake3.update(bytes);
        at += count as u64;
    }
    Ok(Digests { sha256: sha256.finalize().into(), blake3: *blake3.finalize().as_bytes() })
}
