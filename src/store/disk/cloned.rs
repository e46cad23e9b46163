//! The traits of files and disks of clones, collections whose files are fetched from a remote when they are read.

use std::io;
use std::ops::Range;

use crate::format::snapshot::manifest::Piece;
use crate::format::snapshot::map::PieceMap;
use crate::store::disk::clones::described::CloneSource;

/// A file of a clone.
pub trait ClonedFile {
    /// Whether a range can be read without the remote.
    fn is_here(&self, offset: u64, len: u64) -> bool;
    /// Gives back the space of a range as far as the remote has the bytes. The caller makes sure that nobody
    /// outside the store sees them or is shown the file. Returns the bytes of the pieces that went.
    fn evict(&self, offset: u64, len: u64) -> io::Result<u64>;
    /// The bytes that the remote has for a range, also where this file has others; `None` if it lacks some.
    fn in_remote(&self, offset: u64, len: u32) -> io::Result<Option<Vec<u8>>>;
    /// The piece that consists of exactly these ranges, if the remote has it.
    fn piece_of(&self, ranges: &[Range<u64>]) -> Option<Piece>;
    /// Gives the file these pieces, all bytes of which the remote has. The caller keeps their bytes from
    /// being written. With `is_rest_unused`, nobody reads other bytes of the pieces before: they give back their
    /// space.
    fn adopt(&self, map: PieceMap, is_rest_unused: bool) -> io::Result<()>;
    /// Its pieces and their states.
    fn map(&self) -> PieceMap;
    /// Makes the pieces that have arrived durable, and says so in the map.
    fn save(&self) -> io::Result<()>;
}

/// A disk whose collections may be clones.
pub trait ClonedCollections {
    /// Whether what is fetched is kept.
    fn keeps(&self) -> bool;
    /// The snapshot that the collection at this path is a clone of, if it is one.
    fn source_of(&self, path: &str) -> io::Result<Option<CloneSource>>;
    /// Changes that, durably.
    fn set_source_of(&self, path: &str, source: &CloneSource) -> io::Result<()>;
}
