//! SHA-256 and BLAKE3 of incoming bytes, and of the current contents of files.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::format::log::catalog::{Digests, RecordedDigests};
use crate::model::{EntryId, Result};
use crate::store::Collection;
use crate::store::Object;
use crate::store::{Assembly, OpenObject, Verify};
use crate::store::{Sums, of_one_version};
use crate::stream::{Stream, batch_beside, put_hash, shown_hash};

/// Bytes to read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Computes digests of incoming bytes.
#[derive(Clone, Default)]
pub struct Digester {
    blake3: blake3::Hasher,
    sha256: Option<Sha256>,
}

impl Digester {
    pub fn blake3() -> Digester {
        Digester::default()
    }

    /// BLAKE3 and SHA-256, which takes five times as long.
    pub fn with_sha256() -> Digester {
        Digester { sha256: Some(Sha256::new()), ..Digester::default() }
    }

    /// Adds the next bytes. Computes two digests in parallel.
    pub fn update(&mut self, bytes: &[u8]) {
        let Digester { blake3, sha256 } = self;
        match sha256 {
            Some(sha256) => {
                rayon::join(|| sha256.update(bytes), || blake3.update(bytes).count());
            }
            None => {
                blake3.update(bytes);
            }
        }
    }

    /// The digests of all bytes.
    pub fn finish(self) -> Digests {
        Digests::Recorded(Box::new(RecordedDigests {
            blake3: *self.blake3.finalize().as_bytes(),
            sha256: self.sha256.map(|sha256| sha256.finalize().into()),
        }))
    }
}

/// The digests of the current contents of a file, which is assembled from `parts`. Reads the whole file and caches the result until it changes. Fails with `Busy` while
/// the file is being written.
pub fn sums(
    collection: &Arc<Collection>,
    node: EntryId,
    parts: &[Arc<Object>],
    assembly: Option<&Assembly>,
    verify: Verify,
) -> Result<Sums> {
    let open = |part| OpenObject::open(collection, part, verify);
    let compute = || {
        let stream = Stream::of_file(parts.iter().map(open).collect::<Result<_>>()?, assembly)?;
        let hash = shown_hash(collection, node, &stream, verify)?;
        sums_of(stream.bytes(), &|at, out| {
            let count = stream.read(at, out)?;
            if let Some(hash) = hash {
                put_hash(hash, at, &mut out[..count]);
            }
            Ok(count)
        })
    };
    // An index shows the hash of its batch, so a change of the batch changes it too. Look up the batch first:
    // reading takes long and locks the state again, so the state must not be locked meanwhile.
    let batch = batch_beside(&collection.state(), node);
    match batch {
        Some(batch) => {
            let (of_batch, _) = collection.parts_of(batch)?;
            of_one_version(&[parts, &of_batch].concat(), compute)
        }
        None => of_one_version(parts, || collection.sums(node, parts, compute)),
    }
}

/// Computes both digests. SHA-256 takes longest, so BLAKE3 and the next read run in parallel to it.
fn sums_of(bytes: u64, read: &(dyn Fn(u64, &mut [u8]) -> Result<usize> + Sync)) -> Result<Sums> {
    let (mut sha256, mut blake3) = (Sha256::new(), blake3::Hasher::new());
    let (mut chunk, mut next) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let mut count = read(0, &mut chunk)?;
    let mut at = count as u64;
    while count > 0 {
        let here = &chunk[..count];
        let beside = || {
            blake3.update(here);
            if at < bytes { read(at, &mut next) } else { Ok(0) }
        };
        let (_, ahead) = rayon::join(|| sha256.update(here), beside);
        count = ahead?;
        at += count as u64;
        std::mem::swap(&mut chunk, &mut next);
    }
    Ok(Sums { sha256: sha256.finalize().into(), blake3: *blake3.finalize().as_bytes() })
}
