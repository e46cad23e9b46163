//! Compares cached files with the digests in their maps.

use std::io;

use crate::format::snapshot::piece_map::{ARRIVED, PieceState};
use crate::remote::client::failure::Failure;
use crate::store::disk::files::FileDisk;
use crate::store::disk::{Disk, Open};
use crate::store::pieces::file::{PieceFile, remove};
use crate::store::pieces::{map_of, read_map};

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

/// Forgets the pieces of a file, which nobody else has open, that were not made durable.
pub(super) fn forget_arrived(disk: &FileDisk, name: &str) -> io::Result<()> {
    let file = disk.open(&map_of(name), Open::Write)?;
    let map = read_map(&*file)?;
    let (places, mut state) = (map.places(), [0]);
    for piece in 0..map.pieces.len() as u32 {
        file.read_exact_at(&mut state, places.state(piece))?;
        if state == [ARRIVED] {
            file.write_at(&[PieceState::Remote.byte()], places.state(piece))?;
        }
    }
    Ok(())
}

/// Compares a file, which nobody else has open, and drops pieces that differ from its map. Without a usable map it is
/// removed.
pub(super) fn verify(disk: &FileDisk, name: &str) -> io::Result<Verified> {
    let found = Verified { name: name.to_owned(), bytes: 0, right: 0, dropped: 0, removed: None };
    let removed = |why: &str| {
        remove(disk, name)?;
        Ok(Verified { removed: Some(why.to_owned()), ..found.clone() })
    };
    let map_file = disk.open(&map_of(name), Open::Write)?;
    let map = read_map(&*map_file).ok().filter(|map| map.check.is_some());
    let Some(map) = map else { return removed("its map is damaged") };
    let data = disk.open(name, Open::Write)?;
    let len = data.len()?;
    let file = PieceFile::<Failure>::of(map, Some(data), Some(map_file));
    if len != file.layout().bytes() {
        return removed("it has another length than its map says");
    }
    // A process that was killed has not recorded its last pieces.
    file.look(0..file.layout().piece_count())?;
    let checked = file.check();
    if !checked.wrong.is_empty() {
        file.record(&checked.wrong, PieceState::Remote)?;
        if let Err(error) = file.punch(&checked.wrong) {
            log::debug!("the space of dropped pieces is still taken: {error}");
        }
    }
    let dropped = checked.wrong.len() as u64;
    Ok(Verified { bytes: checked.bytes, right: checked.right, dropped, ..found })
}
