//! Inode numbers, each of a node of a collection.
//!
//! | bits | meaning |
//! |---|---|
//! | 63 | a control or a form; with bit 39, and a collection, a file that the kernel reads where it lies |
//! | 62..40 | the collection's number; 0: the mount itself and its tenants; of a tenant's control: 2^23 - 16 and its place in the table |
//! | 39..0 | the node's number; of a tenant and its controls: its number; of another control: 38..34 its place in the table, 33..0 the number of the node it is about, or 0; of a form in a collection: the same with bit 38 and the form's number; of a control of a file in a form: `MIRRORED_FORMS` and `FORMS_PLACE` |
//!
//! A form with parameters (`form_numbers.rs`) has the number 15, and its own number in place of the collection's.
//!
//! The highest bit of a node's number marks a directory that names of tensors make; the other bits are
//! the number that it has in this mount.
//!
//! A file has two inode numbers. The daemon reads and writes it under its own number, and programs
//! see this one for both. The kernel knows it by the number with bits 63 and 39 while it reads the
//! physical file by passthrough. It knows a tensor of a container by the number with bit 38 alone where its
//! plain name leads to it, which is only read. Numbers of nodes are thus below 2^38.
//!
//! The log keeps the numbers of a collection and its nodes, and they are never reused. An inode
//! number thus means the same content after a remount.

use std::ops::Range;

use crate::model::EntryId;
use crate::store::{COMPUTED_FIRST, TENANT_NUMBERS};

const CONTROL: u64 = 1 << 63;
/// Marks a passthrough inode. Places of controls are below this bit.
const BACKED: u64 = CONTROL | 1 << 39;
const COLLECTION_SHIFT: u32 = 40;
/// Bits of a node's number, and of the number of a node that a control or form is about.
const NODE_BITS: u32 = COLLECTION_SHIFT;
/// Marks a computed node.
const COMPUTED: u64 = 1 << (NODE_BITS - 1);
const CONTROL_NODE_BITS: u32 = PLACE_SHIFT;
const NODE_MASK: u64 = (1 << COLLECTION_SHIFT) - 1;
const COLLECTION_MASK: u64 = (1 << (63 - COLLECTION_SHIFT)) - 1;
/// Places of a tenant's control files, with the directory itself.
const TENANT_PLACES: u32 = 16;
/// Collection numbers from here on encode places of a tenant's controls.
const COLLECTION_END: u32 = COLLECTION_MASK as u32 + 1 - TENANT_PLACES;
const _: () = assert!(TENANT_NUMBERS.start > Ino::ROOT.0 && TENANT_NUMBERS.end == 1 << COLLECTION_SHIFT);
/// Bit position of a control's place.
const PLACE_SHIFT: u32 = 34;
const CONTROL_NODE_MASK: u64 = (1 << PLACE_SHIFT) - 1;
/// Marks forms, and the passthrough inodes of forms.
const FORM: u64 = 1 << 38;
/// Marks a tensor's plain name, without the bits of `BACKED`.
const PLAIN: u64 = 1 << 38;
const PLACE_MASK: u64 = (FORM - 1) >> PLACE_SHIFT;
/// The controls of a collection that mirror the files of its forms too. Such a mirror has its own place, with the number of
/// the form in the highest bits of the node's number.
pub(super) const MIRRORED_FORMS: Range<u32> = 5..7;
/// The place of the first of these mirrors.
const FORMS_PLACE: u32 = 14;
/// Bits of the number of a node in a form that a control is about.
const FORM_NODE_BITS: u32 = PLACE_SHIFT - 4;
/// The number of all forms with parameters.
const NUMBERED: u64 = PLACE_MASK;
/// Numbers of forms with parameters are from 1 and below this.
pub(super) const FORM_NUMBERS_END: u32 = COLLECTION_END;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ino(pub u64);

/// A name in a directory of the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChildName<'a> {
    /// The directory.
    pub parent: Ino,
    /// The name.
    pub name: &'a [u8],
}

/// The node, control or form that an inode number identifies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// The directory of tenants.
    Root,
    /// A tenant, by its number.
    Tenant(u64),
    /// A node of a collection.
    Node { collection: u32, node: EntryId },
    /// A control directory, or something in it.
    Control {
        owner: Owner,
        /// The place in the table of control files, counted from 1; 0: the directory.
        place: u32,
        /// The node that it mirrors; 0: none.
        node: EntryId,
    },
    /// A control of a file in a form of a collection, or of a directory there.
    FormControl {
        collection: u32,
        /// The place in the table of control files, one of `MIRRORED_FORMS`.
        place: u32,
        /// The number of the form, or of its indexes.
        form: u8,
        /// The node that the form shows.
        node: EntryId,
    },
    /// The directory of a collection's forms, or something in it.
    Form {
        collection: u32,
        /// The number of the form, or of its indexes, at most 14; 0: the directory of forms.
        form: u8,
        /// The node that it shows; 0: the whole collection.
        node: EntryId,
    },
    /// An item of a form with parameters.
    Numbered {
        /// The number of the form in this mount, which says the collection too; not 0.
        form: u32,
        /// The node that it shows.
        node: EntryId,
    },
}

/// The scope of a control.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    Mount,
    /// A tenant, by its number.
    Tenant(u64),
    /// A collection, by its number.
    Collection(u32),
}

impl Ino {
    pub const ROOT: Ino = Ino(1);

    /// The inode number of a place. `None` where the number of the collection or the node is too
    /// large for its bits.
    pub fn of(place: Place) -> Option<Ino> {
        let joined = |collection: u32, low: u64| {
            let collection = u64::from(collection);
            (low <= NODE_MASK).then_some(collection << COLLECTION_SHIFT | low)
        };
        let numbered =
            |collection: u32, low| (collection < COLLECTION_END).then(|| joined(collection, low))?;
        match place {
            Place::Root => Some(Ino::ROOT),
            Place::Tenant(number) => Some(Ino(number)),
            Place::Node { collection, node } => {
                let low = packed(node, NODE_BITS)?;
                let fits = low & COMPUTED != 0 || low < PLAIN;
                fits.then(|| numbered(collection, low))?.map(Ino)
            }
            Place::Control { owner, place, node } => {
                let fits = u64::from(place) <= PLACE_MASK;
                let low = u64::from(place) << PLACE_SHIFT | packed(node, CONTROL_NODE_BITS)?;
                let number = match owner {
                    _ if !fits => None,
                    Owner::Mount => joined(0, low),
                    Owner::Tenant(number) => {
                        (place < TENANT_PLACES).then(|| joined(COLLECTION_END + place, number))?
                    }
                    Owner::Collection(_) if place >= FORMS_PLACE => None,
                    Owner::Collection(number) => numbered(number, low),
                };
                number.map(|number| Ino(CONTROL | number))
            }
            Place::FormControl { collection, place, form, node } => {
                let fits = MIRRORED_FORMS.contains(&place) && (1..NUMBERED).contains(&u64::from(form));
                let mirror = u64::from(FORMS_PLACE + place.checked_sub(MIRRORED_FORMS.start)?);
                let about = u64::from(form) << FORM_NODE_BITS | packed(node, FORM_NODE_BITS)?;
                let number = fits.then(|| numbered(collection, mirror << PLACE_SHIFT | about))?;
                number.map(|number| Ino(CONTROL | number))
            }
            Place::Form { collection, form, node } => {
                let fits = u64::from(form) < NUMBERED;
                let low = FORM | u64::from(form) << PLACE_SHIFT | packed(node, CONTROL_NODE_BITS)?;
                let number = fits.then(|| numbered(collection, low))?;
                number.map(|number| Ino(CONTROL | number))
            }
            Place::Numbered { form, node } => {
                let low = FORM | NUMBERED << PLACE_SHIFT | packed(node, CONTROL_NODE_BITS)?;
                let number = (form > 0).then(|| numbered(form, low))?;
                number.map(|number| Ino(CONTROL | number))
            }
        }
    }

    /// The passthrough inode number of a file. `None` for numbers that are not a file's own.
    pub fn backed(self) -> Option<Ino> {
        match self.place() {
            Place::Node { .. } if self.0 & (BACKED | PLAIN) == 0 => Some(Ino(self.0 | BACKED)),
            Place::Form { .. } if self.0 & BACKED == CONTROL => Some(Ino(self.0 | BACKED)),
            _ => None,
        }
    }

    /// Whether the kernel reads a physical file under this number.
    pub fn is_backed(self) -> bool {
        let collection = (self.0 >> COLLECTION_SHIFT & COLLECTION_MASK) as u32;
        self.0 & BACKED == BACKED && (1..COLLECTION_END).contains(&collection)
    }

    /// The inode number by which a plain name leads to a tensor. `None` for numbers that are not a file's own.
    pub fn plain(self) -> Option<Ino> {
        match self.place() {
            Place::Node { .. } if self.0 & (BACKED | PLAIN) == 0 => Some(Ino(self.0 | PLAIN)),
            _ => None,
        }
    }

    /// Whether a plain name leads to a tensor under this number.
    pub fn is_plain(self) -> bool {
        let collection = (self.0 >> COLLECTION_SHIFT & COLLECTION_MASK) as u32;
        self.0 & (BACKED | PLAIN) == PLAIN && (1..COLLECTION_END).contains(&collection)
    }

    /// Whether it is one of a form with parameters.
    pub fn is_numbered(self) -> bool {
        matches!(self.place(), Place::Numbered { .. })
    }

    /// Whether each daemon of a mount finds its place, as long as that is there, without a lookup by name before.
    pub fn is_found_again(self) -> bool {
        match self.place() {
            Place::Root | Place::Tenant(_) => true,
            Place::Node { node, .. } => node.0 < COMPUTED_FIRST,
            _ => false,
        }
    }

    /// Whether it is one of a file of a form.
    pub fn is_of_form(self) -> bool {
        matches!(self.place(), Place::Form { .. } | Place::Numbered { .. })
    }

    /// The number that programs see.
    pub fn own(self) -> Ino {
        if self.is_plain() {
            return Ino(self.0 & !PLAIN);
        }
        match self.is_backed() {
            true if self.0 & FORM != 0 => Ino(self.0 & !BACKED | CONTROL),
            true => Ino(self.0 & !BACKED),
            false => self,
        }
    }

    /// The place that the number identifies.
    pub fn place(self) -> Place {
        let collection = (self.0 >> COLLECTION_SHIFT & COLLECTION_MASK) as u32;
        let low = self.0 & NODE_MASK;
        if self.is_backed() || self.is_plain() {
            self.own().place()
        } else if self.0 & CONTROL != 0 && collection >= COLLECTION_END {
            let place = collection - COLLECTION_END;
            Place::Control { owner: Owner::Tenant(low), place, node: EntryId(0) }
        } else if self.0 & CONTROL != 0 && collection != 0 && low & FORM != 0 {
            let node = unpacked(low & CONTROL_NODE_MASK, CONTROL_NODE_BITS);
            match low >> PLACE_SHIFT & PLACE_MASK {
                NUMBERED => Place::Numbered { form: collection, node },
                form => Place::Form { collection, form: form as u8, node },
            }
        } else if self.0 & CONTROL != 0 {
            let owner = if collection == 0 { Owner::Mount } else { Owner::Collection(collection) };
            let about = low & CONTROL_NODE_MASK;
            let place = (low >> PLACE_SHIFT) as u32;
            match place.checked_sub(FORMS_PLACE).filter(|_| collection != 0) {
                Some(mirror) => Place::FormControl {
                    collection,
                    place: MIRRORED_FORMS.start + mirror,
                    form: (about >> FORM_NODE_BITS) as u8,
                    node: unpacked(about & ((1 << FORM_NODE_BITS) - 1), FORM_NODE_BITS),
                },
                None => Place::Control { owner, place, node: unpacked(about, CONTROL_NODE_BITS) },
            }
        } else if self == Ino::ROOT {
            Place::Root
        } else if collection == 0 {
            Place::Tenant(low)
        } else {
            Place::Node { collection, node: unpacked(low, NODE_BITS) }
        }
    }
}

/// The number of a node in this many bits; the highest one marks a computed node.
fn packed(node: EntryId, bits: u32) -> Option<u64> {
    let mark = 1 << (bits - 1);
    let (number, mark) = node.0.checked_sub(COMPUTED_FIRST).map_or((node.0, 0), |number| (number, mark));
    (number >> (bits - 1) == 0).then_some(number | mark)
}

fn unpacked(low: u64, bits: u32) -> EntryId {
    let mark = 1 << (bits - 1);
    EntryId(if low & mark == 0 { low } else { COMPUTED_FIRST + (low ^ mark) })
}

#[cfg(test)]
mod tests {
    use super::{COMPUTED_FIRST, Ino, Owner, Place};
    use crate::model::EntryId;

    const ACME: u64 = 0x5e_ed12_3456;

    #[test]
    fn every_place_has_a_unique_inode_number() {
        let places = [
            Place::Root,
            Place::Tenant(ACME),
            Place::Node { collection: 1, node: EntryId(1) },
            Place::Node { collection: 8_388_591, node: EntryId((1 << 38) - 1) },
            Place::Node { collection: 8_388_591, node: EntryId(COMPUTED_FIRST) },
            Place::Node { collection: 1, node: EntryId(COMPUTED_FIRST + (1 << 39) - 1) },
            Place::Control { owner: Owner::Mount, place: 0, node: EntryId(0) },
            Place::Control { owner: Owner::Mount, place: 15, node: EntryId(0) },
            Place::Control { owner: Owner::Tenant(ACME), place: 0, node: EntryId(0) },
            Place::Control { owner: Owner::Tenant((1 << 40) - 1), place: 15, node: EntryId(0) },
            Place::Control { owner: Owner::Collection(3), place: 7, node: EntryId(0) },
            Place::Control { owner: Owner::Collection(8_388_591), place: 13, node: EntryId((1 << 33) - 1) },
            Place::Control { owner: Owner::Collection(1), place: 13, node: EntryId(COMPUTED_FIRST + 1) },
            Place::FormControl { collection: 1, place: 5, form: 1, node: EntryId(1) },
            Place::FormControl { collection: 1, place: 6, form: 1, node: EntryId(1) },
            Place::FormControl { collection: 8_388_591, place: 6, form: 14, node: EntryId((1 << 29) - 1) },
            Place::FormControl {
                collection: 7,
                place: 6,
                form: 12,
                node: EntryId(COMPUTED_FIRST + (1 << 29) - 1),
            },
            Place::Form { collection: 1, form: 0, node: EntryId(0) },
            Place::Form { collection: 1, form: 10, node: EntryId(7) },
            Place::Form { collection: 1, form: 12, node: EntryId(7) },
            Place::Form { collection: 8_388_591, form: 14, node: EntryId((1 << 33) - 1) },
            Place::Form { collection: 8_388_591, form: 14, node: EntryId(COMPUTED_FIRST + (1 << 33) - 1) },
            Place::Numbered { form: 1, node: EntryId(7) },
            Place::Numbered { form: 8_388_591, node: EntryId(COMPUTED_FIRST + (1 << 33) - 1) },
        ];
        let numbers: std::collections::HashSet<_> = places.iter().map(|place| Ino::of(*place)).collect();
        assert_eq!(numbers.len(), places.len());
        for place in places {
            assert_eq!(Ino::of(place).unwrap().place(), place);
        }
        assert_eq!(Ino::of(Place::Node { collection: 8_388_592, node: EntryId(1) }), None);
        for (owner, place, node) in [
            (Owner::Mount, 16, 0),
            (Owner::Tenant(7), 16, 0),
            (Owner::Collection(8_388_592), 1, 0),
            (Owner::Collection(1), 1, 1 << 33),
            (Owner::Collection(1), 1, COMPUTED_FIRST + (1 << 33)),
            (Owner::Collection(1), 14, 1),
        ] {
            assert_eq!(Ino::of(Place::Control { owner, place, node: EntryId(node) }), None);
        }
        for (place, form, node) in [(4, 1, 1), (7, 1, 1), (5, 0, 1), (5, 15, 1), (6, 1, 1 << 29)] {
            let place = Place::FormControl { collection: 1, place, form, node: EntryId(node) };
            assert_eq!(Ino::of(place), None);
        }
        let numbered = |form| Ino::of(Place::Numbered { form, node: EntryId(1) });
        assert_eq!((numbered(0), numbered(8_388_592)), (None, None));
        assert_eq!(Ino::of(Place::Form { collection: 1, form: 15, node: EntryId(1) }), None);
        for node in [1 << 38, (1 << 39) - 1, 1 << 39] {
            assert_eq!(Ino::of(Place::Node { collection: 1, node: EntryId(node) }), None);
        }
        assert_eq!(Ino::of(Place::Node { collection: 1, node: EntryId(COMPUTED_FIRST + (1 << 39)) }), None);
    }

    #[test]
    fn a_second_inode_number_of_a_file_leads_to_the_same_place() {
        let node = |collection, node| Place::Node { collection, node: EntryId(node) };
        let form = |form| Place::Form { collection: 3, form, node: EntryId(9) };
        let places = [node(1, 1), node(8_388_591, (1 << 38) - 1), form(1), form(11), form(14)];
        for place in places {
            let ino = Ino::of(place).unwrap();
            let backed = ino.backed().unwrap();
            assert!(backed.is_backed() && !ino.is_backed() && backed != ino);
            assert_eq!((backed.own(), ino.own(), backed.place()), (ino, ino, ino.place()));
            assert_eq!(backed.backed(), None);
        }
        let places = [
            Place::Root,
            Place::Tenant(ACME),
            Place::Control { owner: Owner::Collection(3), place: 13, node: EntryId((1 << 33) - 1) },
            Place::FormControl { collection: 3, place: 6, form: 14, node: EntryId((1 << 29) - 1) },
            Place::Control { owner: Owner::Tenant((1 << 40) - 1), place: 15, node: EntryId(0) },
            Place::Node { collection: 1, node: EntryId(COMPUTED_FIRST) },
            Place::Numbered { form: 3, node: EntryId(9) },
        ];
        for place in places {
            let ino = Ino::of(place).unwrap();
            assert_eq!((ino.backed(), ino.is_backed()), (None, false), "{place:?}");
            assert_eq!((ino.plain(), ino.is_plain()), (None, false), "{place:?}");
        }
    }

    #[test]
    fn a_plain_name_has_a_number_of_its_own_that_leads_to_the_same_place() {
        for (collection, node) in [(1, 1), (8_388_591, (1 << 38) - 1)] {
            let place = Place::Node { collection, node: EntryId(node) };
            let ino = Ino::of(place).unwrap();
            let plain = ino.plain().unwrap();
            assert!(plain.is_plain() && !plain.is_backed() && !ino.is_plain() && plain != ino);
            assert_ne!(ino.backed(), Some(plain));
            assert_eq!((plain.own(), plain.place(), plain.plain(), plain.backed()), (ino, place, None, None));
        }
        let computed = Place::Node { collection: 1, node: EntryId(COMPUTED_FIRST + (1 << 38)) };
        assert!(!Ino::of(computed).unwrap().is_plain());
    }
}
