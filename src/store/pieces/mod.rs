//! Sparse files whose bytes come in pieces from a remote. The cache of a mounted remote is a directory of such files; a
//! clone has them in place of its own.
//!
//! This room fetches nothing: it gives out claims, and their holders bring the bytes.
//!
//! 1. `layout.rs` is pure: the pieces of a file, where their bytes stand in it, and queries. Equal files of two
//!    snapshots have one `Layout::name`.
//! 2. Each piece has a state: remote, here or, in a clone, own. The map beside the file
//!    (`format/snapshot/piece_map.rs`) has the states, and in a cache digests of the pieces that are here. Both are
//!    written in place. In a cache other processes write them too; `PieceFile::look` reads what they have brought.
//! 3. `PieceFile::begin` gives one caller the `Claim` (`file/claim.rs`) of a piece that is remote. The others wait for its
//!    end, and get the same bytes or the same error.
//! 4. A piece whose bytes the file has as they are stored may arrive in parts (`arrival.rs`): at multiples of 1 MiB,
//!    one piece of a file at a time. Other pieces, and those that replace bytes which a reader may have open, are
//!    compared first (`Claim::keep`).
//! 5. `PieceFile::save` (`file/states.rs`) makes the bytes that have arrived durable, then writes the states. After a
//!    failed sync the pieces are remote again. `PieceFile::check` compares with the digests.
//! 6. `ReadAhead` (`read_ahead.rs`) says which pieces to fetch before a reader asks for them.
//! 7. A piece may be stored as its difference from others (`difference.rs`), which are then needed to make its bytes.
//!
//! | | a file of a cache | a file of a clone |
//! |---|---|---|
//! | users | all mounts of a machine, by content | the collection, by name |
//! | bytes that arrive | in parts, asynchronously, where the cache has room | whole, from a `PieceSource` |
//! | the map is made | with the file | with the file, or by a push |
//! | the map is saved | every 30 s, and when the file is closed | after 8 pieces, and at a sync |
//! | space goes back | by removing the whole file, the one used longest ago first | by `evict`, a piece at a time |
//! | wrong bytes | the piece is remote again; a check drops it | the piece is fetched again, over them |
//! | fetched ahead | 2 pieces, then twice as many, up to 32 | 4 pieces |
//! | other bytes | never | own pieces; a push changes the layout (`SharedFile::adopt`) |

pub mod arrival;
pub mod difference;
pub mod file;
pub mod layout;
pub mod read_ahead;

use std::io;

use crate::format::snapshot::piece_map::{MAP_BYTES_MAX, PieceMap};
use crate::store::disk::File;

/// The path of the map of a file.
pub fn map_of(path: &str) -> String {
    format!("{path}.map")
}

/// Reads a map. `InvalidData` if it is damaged or of another version.
pub fn read_map(file: &dyn File) -> io::Result<PieceMap> {
    let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let len = file.len()?;
    if len > MAP_BYTES_MAX {
        return Err(wrong(format!("it has {len} bytes")));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    PieceMap::parse(&bytes).map_err(|error| wrong(error.to_string()))
}
