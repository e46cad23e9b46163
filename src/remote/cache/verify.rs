//! Compares cached files with the digests in their maps.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use rustix::fs::{FallocateFlags, fallocate};

use crate::format::snapshot::cache_map::{DIGEST_BYTES, Map, Stretch};
use crate::remote::cache::blob::{read_map, remove, write_map};
use crate::remote::cache::root::unlinked;

/// Bytes that are read at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// The findings about a cached file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified {
    /// Its name.
    pub name: String,
    /// Bytes of the pieces that were compared.
    pub bytes: u64,
    /// Pieces that are right.
    pub right: u64,
    /// Pieces that were dropped because they differ or cannot be read. They are fetched again.
    pub dropped: u64,
    /// Why the file was removed, if it was.
    pub removed: Option<String>,
}

impl Verified {
    /// Whether something was dropped.
    pub fn is_damaged(&self) -> bool {
        self.dropped > 0 || self.removed.is_some()
    }
}

/// Compares the file at `path`, which nobody else has open, and drops what differs from its map. Without a
/// usable map it is removed.
pub(super) fn verify(name: &str, path: &Path) -> io::Result<Verified> {
    let found = Verified { name: name.to_owned(), bytes: 0, right: 0, dropped: 0, removed: None };
    let removed = |why: &str| {
        remove(path)?;
        Ok(Verified { removed: Some(why.to_owned()), ..found.clone() })
    };
    let Ok(mut map) = Map::parse(&read_map(path)?) else { return removed("its map is damaged") };
    let file = unlinked().read(true).write(true).open(path)?;
    if file.metadata()?.len() != map.bytes {
        return removed("it has another length than its map says");
    }
    let mut there: Vec<&Stretch> =
        map.stretches.iter().filter(|stretch| map.bits.has(stretch.piece)).collect();
    // The sort is stable: a digest is that of a piece's bytes in the order of the file.
    there.sort_by_key(|stretch| stretch.piece);
    let pieces: Vec<&[&Stretch]> = there.chunk_by(|one, next| one.piece == next.piece).collect();
    let compared: Vec<(u32, u64, bool)> =
        pieces.into_par_iter().filter_map(|stretches| compare(&file, &map, stretches)).collect();
    let bytes = compared.iter().map(|(_, bytes, _)| bytes).sum();
    let wrong: Vec<u32> =
        compared.iter().filter(|(.., is_right)| !is_right).map(|(piece, ..)| *piece).collect();
    let (dropped, right) = (wrong.len() as u64, (compared.len() - wrong.len()) as u64);
    if dropped > 0 {
        for piece in &wrong {
            map.bits.set(*piece, false);
            if let Some(digest) = map.digests.get_mut(*piece as usize) {
                *digest = [0; DIGEST_BYTES];
            }
        }
        write_map(path, &map, || Some(()))?;
        free(&file, &map, &wrong);
    }
    Ok(Verified { bytes, right, dropped, ..found })
}

/// The piece that has these stretches, its bytes, and whether they are those of its digest. Bytes that cannot be
/// read are not.
fn compare(file: &fs::File, map: &Map, stretches: &[&Stretch]) -> Option<(u32, u64, bool)> {
    let piece = stretches.first()?.piece;
    let (mut hasher, mut bytes, mut is_read) = (blake3::Hasher::new(), 0, true);
    let mut buffer = vec![0; BUFFER_BYTES];
    for stretch in stretches {
        let (mut at, mut left) = (stretch.offset, stretch.len as usize);
        while left > 0 && is_read {
            let Some(part) = buffer.get_mut(..left.min(BUFFER_BYTES)) else { break };
            is_read = file.read_exact_at(part, at).is_ok();
            hasher.update(part);
            (at, left) = (at.saturating_add(part.len() as u64), left - part.len());
        }
        bytes += u64::from(stretch.len);
    }
    let wanted = map.digests.get(piece as usize);
    Some((piece, bytes, is_read && wanted == Some(hasher.finalize().as_bytes())))
}

/// Gives the space of pieces back, where the file system can. Their numbers ascend.
fn free(file: &fs::File, map: &Map, pieces: &[u32]) {
    for stretch in map.stretches.iter().filter(|stretch| pieces.binary_search(&stretch.piece).is_ok()) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = fallocate(file, flags, stretch.offset, u64::from(stretch.len)) {
            log::debug!("the space of dropped pieces is still taken: {error}");
            return;
        }
    }
}
