//! Sparse files whose bytes come in pieces from a remote. The cache of a mounted remote is a directory of such files;
//! a clone has them in place of its own.
//!
//! `layout` says where the pieces of a file stand, and is pure. `file` has their states, the data and the map on disk.
//! `arrival` writes a piece while its bytes arrive. This room fetches nothing: it gives out claims, and their holders
//! bring the bytes.

pub mod arrival;
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
