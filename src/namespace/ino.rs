//! Inode numbers: which node of which collection.
//!
//! | bits | meaning |
//! |---|---|
//! | 63 | a control file or directory; with bit 39 a file that the kernel reads where it lies |
//! | 62..40 | the collection's number; 0: the mount itself and its tenants |
//! | 39..0 | the node's number; of a tenant: a hash of its name; of a control: its place in the table |
//!
//! A file has two numbers: its own, which programs see and under which the daemon reads and
//! writes it, and with bits 63 and 39 the one under which the kernel knows it while it
//! reads the physical file itself (only node numbers below 2^39 have it). Programs are
//! shown the first for both.
//!
//! A collection's number and its nodes' numbers are kept in its log and never used
//! twice, so that an inode number means the same content after a remount.

use crate::model::EntryId;

const CONTROL: u64 = 1 << 63;
/// Places of controls are far below.
const BACKED: u64 = CONTROL | 1 << 39;
const COLLECTION_SHIFT: u32 = 40;
const NODE_MASK: u64 = (1 << COLLECTION_SHIFT) - 1;
const COLLECTION_MASK: u64 = (1 << (63 - COLLECTION_SHIFT)) - 1;

/// An inode number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ino(pub u64);

/// What an inode number stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// The directory of tenants.
    Root,
    /// A tenant, by a hash of its name.
    Tenant(u64),
    /// A node of a collection.
    Node {
        /// The collection's number.
        collection: u32,
        /// The node.
        node: EntryId,
    },
    /// A control directory (place 0), or a control file, of a collection; of the mount
    /// where that is 0.
    Control {
        /// The collection's number.
        collection: u32,
        /// The place in the table of control files, counted from 1.
        place: u32,
    },
}

impl Ino {
    /// The mount itself.
    pub const ROOT: Ino = Ino(1);

    /// The number of a place. `None` where the collection's or the node's own number is
    /// too large for its bits.
    pub fn of(place: Place) -> Option<Ino> {
        let joined = |collection: u32, low: u64| {
            let collection = u64::from(collection);
            (collection <= COLLECTION_MASK && low <= NODE_MASK)
                .then_some(collection << COLLECTION_SHIFT | low)
        };
        match place {
            Place::Root => Some(Ino::ROOT),
            Place::Tenant(hash) => Some(Ino(hash)),
            Place::Node { collection, node } => joined(collection, node.0).map(Ino),
            Place::Control { collection, place } => {
                joined(collection, u64::from(place)).map(|joined| Ino(CONTROL | joined))
            }
        }
    }

    /// The number under which the kernel reads a file's physical file. `None` for what is no
    /// file's own number.
    pub fn backed(self) -> Option<Ino> {
        match self.place() {
            Place::Node { .. } if self.0 & BACKED == 0 => Some(Ino(self.0 | BACKED)),
            _ => None,
        }
    }

    /// Whether the kernel reads a physical file under this number.
    pub fn is_backed(self) -> bool {
        self.0 & BACKED == BACKED
    }

    /// The number that programs see.
    pub fn own(self) -> Ino {
        if self.is_backed() { Ino(self.0 & !BACKED) } else { self }
    }

    /// What the number stands for.
    pub fn place(self) -> Place {
        let collection = (self.0 >> COLLECTION_SHIFT & COLLECTION_MASK) as u32;
        let low = self.0 & NODE_MASK;
        if self.is_backed() {
            self.own().place()
        } else if self.0 & CONTROL != 0 {
            Place::Control { collection, place: low as u32 }
        } else if self == Ino::ROOT {
            Place::Root
        } else if collection == 0 {
            Place::Tenant(low)
        } else {
            Place::Node { collection, node: EntryId(low) }
        }
    }

    /// The hash that stands for a tenant: never that of the mount.
    pub fn tenant_hash(name: &str) -> u64 {
        let digest = blake3::hash(name.as_bytes());
        let (first, _) = digest.as_bytes().split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        (u64::from_le_bytes(*first) & NODE_MASK).max(2)
    }
}

#[cfg(test)]
mod tests {
    use super::{Ino, Place};
    use crate::model::EntryId;

    #[test]
    fn every_place_has_a_number_of_its_own() {
        let places = [
            Place::Root,
            Place::Tenant(Ino::tenant_hash("acme")),
            Place::Node { collection: 1, node: EntryId(1) },
            Place::Node { collection: 8_388_607, node: EntryId((1 << 40) - 1) },
            Place::Control { collection: 0, place: 0 },
            Place::Control { collection: 3, place: 7 },
        ];
        for place in places {
            assert_eq!(Ino::of(place).unwrap().place(), place);
        }
        let controls = Ino::of(Place::Control { collection: 3, place: u32::MAX }).unwrap();
        assert!(!controls.is_backed());
        assert_eq!(Ino::of(Place::Node { collection: 8_388_608, node: EntryId(1) }), None);
        assert_eq!(Ino::of(Place::Node { collection: 1, node: EntryId(1 << 40) }), None);
    }

    #[test]
    fn a_file_has_a_second_number_that_leads_to_the_same_place() {
        for (collection, node) in [(1, 1), (8_388_607, (1 << 39) - 1)] {
            let ino = Ino::of(Place::Node { collection, node: EntryId(node) }).unwrap();
            let backed = ino.backed().unwrap();
            assert!(backed.is_backed() && !ino.is_backed() && backed != ino);
            assert_eq!((backed.own(), ino.own(), backed.place()), (ino, ino, ino.place()));
            assert_eq!(backed.backed(), None);
        }
        let places = [
            Place::Root,
            Place::Tenant(Ino::tenant_hash("acme")),
            Place::Control { collection: 3, place: 7 },
            Place::Node { collection: 1, node: EntryId(1 << 39) },
        ];
        for place in places {
            assert_eq!(Ino::of(place).unwrap().backed(), None, "{place:?}");
        }
    }
}
