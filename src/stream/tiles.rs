//! Tiles of the right matrices of products ([`low_rank.rs`](super::low_rank)), which all ranges of a file need. One
//! [`Tiles`] keeps those of all files of a mount, within a number of bytes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::codec::low_rank::Panels;
use crate::model::ObjectId;

/// Most bytes of tiles that are kept for a mount.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// The tiles that were used last.
pub struct Tiles {
    bytes_max: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    tiles: HashMap<Key, Tile>,
    /// The tiles by the number of their last use.
    by_use: BTreeMap<u64, Key>,
    uses: u64,
    bytes: usize,
    owners: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    owner: u64,
    place: TilePlace,
}

struct Tile {
    used: u64,
    versions: Vec<ObjectVersion>,
    panels: Arc<Panels>,
}

/// The place of a tile in the matrices of an owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TilePlace {
    pub matrix: u64,
    pub first_column: u64,
}

/// The content of an object.
#[derive(PartialEq, Eq)]
pub(super) struct ObjectVersion {
    pub object: ObjectId,
    pub changes: u32,
}

/// The tiles of the matrices of one owner. They are dropped with the last reference.
pub struct OwnTiles {
    tiles: Arc<Tiles>,
    owner: u64,
    has_any: AtomicBool,
}

impl Default for Tiles {
    fn default() -> Tiles {
        Tiles::new(KEPT_BYTES_MAX)
    }
}

impl Tiles {
    /// Keeps at most so many bytes.
    fn new(bytes_max: usize) -> Tiles {
        Tiles { bytes_max, kept: Mutex::default() }
    }

    /// The tiles of a new owner.
    pub fn own(self: &Arc<Tiles>) -> OwnTiles {
        let mut kept = self.kept.lock();
        kept.owners += 1;
        OwnTiles { tiles: self.clone(), owner: kept.owners, has_any: AtomicBool::default() }
    }
}

impl Kept {
    fn remove(&mut self, key: Key) {
        if let Some(tile) = self.tiles.remove(&key) {
            self.by_use.remove(&tile.used);
            self.bytes -= tile.panels.bytes();
        }
    }
}

impl OwnTiles {
    /// A tile that was made of objects in these versions.
    pub(super) fn find(&self, place: TilePlace, versions: &[ObjectVersion]) -> Option<Arc<Panels>> {
        let key = Key { owner: self.owner, place };
        let kept = &mut *self.tiles.kept.lock();
        let tile = kept.tiles.get_mut(&key)?;
        if tile.versions != versions {
            kept.remove(key);
            return None;
        }
        kept.uses += 1;
        kept.by_use.remove(&tile.used);
        tile.used = kept.uses;
        kept.by_use.insert(tile.used, key);
        Some(tile.panels.clone())
    }

    /// Keeps a tile, and drops those that were not used for the longest time.
    pub(super) fn keep(&self, place: TilePlace, versions: Vec<ObjectVersion>, panels: Arc<Panels>) {
        let key = Key { owner: self.owner, place };
        let kept = &mut *self.tiles.kept.lock();
        kept.remove(key);
        if panels.bytes() > self.tiles.bytes_max {
            return;
        }
        self.has_any.store(true, Ordering::Relaxed);
        kept.uses += 1;
        kept.bytes += panels.bytes();
        kept.by_use.insert(kept.uses, key);
        kept.tiles.insert(key, Tile { used: kept.uses, versions, panels });
        while kept.bytes > self.tiles.bytes_max
            && let Some((_, oldest)) = kept.by_use.first_key_value()
        {
            kept.remove(*oldest);
        }
    }
}

impl Drop for OwnTiles {
    fn drop(&mut self) {
        if !*self.has_any.get_mut() {
            return;
        }
        let kept = &mut *self.tiles.kept.lock();
        let own: Vec<Key> = kept.tiles.keys().filter(|key| key.owner == self.owner).copied().collect();
        own.into_iter().for_each(|key| kept.remove(key));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{ObjectVersion, TilePlace, Tiles};
    use crate::codec::low_rank::Panels;
    use crate::model::ObjectId;

    #[test]
    fn all_owners_share_one_bound_and_leave_nothing() {
        let panels = Arc::new(Panels::zeros(4, 16));
        let tiles = Arc::new(Tiles::new(3 * panels.bytes()));
        let place = |column| TilePlace { matrix: 7, first_column: column };
        let versions = |changes| vec![ObjectVersion { object: ObjectId(1), changes }];
        let owners: Vec<_> = (0..5).map(|_| tiles.own()).collect();
        for owner in &owners {
            owner.keep(place(0), versions(2), panels.clone());
            owner.keep(place(64), versions(2), panels.clone());
            assert!(tiles.kept.lock().bytes <= 3 * panels.bytes());
        }
        let found =
            |owner: usize, column, changes| owners[owner].find(place(column), &versions(changes)).is_some();
        // The three that were used last.
        assert_eq!([found(3, 0, 2), found(3, 64, 2), found(4, 0, 2)], [false, true, true]);
        // Of another version, and the same again.
        assert_eq!([found(4, 0, 3), found(4, 0, 2), found(4, 64, 2)], [false, false, true]);
        drop(owners);
        let kept = tiles.kept.lock();
        assert_eq!((kept.bytes, kept.tiles.len(), kept.by_use.len()), (0, 0, 0));
    }
}
