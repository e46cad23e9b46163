//! The numbers of the collections that a disk of snapshots shows. Inode numbers contain them, so the next process that serves
//! the same mount gives a collection the number that it had, as long as it shows the same snapshot.
//!
//! Invariants:
//! 1. A number stands for one snapshot of one collection, or for a directory that shows none, and is never given again.
//! 2. A number is noted before anybody gets it.

use std::collections::HashMap;

use crate::format::handover::{NumberOf, Numbered};
use crate::format::snapshot::manifest::{OwnerAndMode, SnapshotName};
use crate::model::OwnedCollectionName;
use crate::store::upstream::{NoteNumber, NumberBefore};

/// The numbers of collections.
#[derive(Default)]
pub(super) struct Numbers {
    /// Those of collections whose directories are shown, and which nobody has opened.
    directories: HashMap<OwnedCollectionName, (u32, OwnerAndMode)>,
    /// The snapshots that an earlier process has shown, and that were not opened here.
    left: HashMap<OwnedCollectionName, LeftNumber>,
    /// The last meaning that each number had in earlier processes.
    before: HashMap<u32, Numbered>,
    /// The attributes with which earlier processes have shown directories, of the numbers that these have now.
    shown: HashMap<u32, OwnerAndMode>,
    versions: HashMap<(OwnedCollectionName, SnapshotName), u32>,
    /// The number given last.
    last: u32,
    note: Option<Box<NoteNumber>>,
}

/// A snapshot that an earlier process has shown last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LeftNumber {
    pub number: u32,
    pub name: SnapshotName,
}

impl Numbers {
    /// No numbers but one that was given before.
    pub fn after(last: u32) -> Numbers {
        Numbers { last, ..Numbers::default() }
    }

    /// Goes on after these, oldest first, and notes further ones.
    pub fn go_on(&mut self, before: Vec<Numbered>, note: Box<NoteNumber>) {
        for numbered in before {
            let Numbered { number, place, of } = &numbered;
            self.last = self.last.max(*number);
            match of {
                NumberOf::Directory(owner) => {
                    self.directories.insert(place.clone(), (*number, *owner));
                    self.shown.insert(*number, *owner);
                }
                NumberOf::Shown(name) => {
                    self.directories.remove(place);
                    self.left.insert(place.clone(), LeftNumber { number: *number, name: *name });
                }
                NumberOf::Version(name) => {
                    self.versions.insert((place.clone(), *name), *number);
                }
                NumberOf::Gone => {
                    self.directories.remove(place);
                    self.left.remove(place);
                    continue;
                }
            }
            self.before.insert(*number, numbered);
        }
        self.note = Some(note);
    }

    fn given(&mut self, number: u32, place: &OwnedCollectionName, of: NumberOf) -> u32 {
        if let Some(note) = &self.note {
            note(&Numbered { number, place: place.clone(), of });
        }
        number
    }

    /// A number that no collection has had.
    fn next(&mut self) -> u32 {
        self.last = self.last.saturating_add(1);
        self.last
    }

    /// The number of a collection that shows this snapshot from now on.
    pub fn shown(&mut self, place: &OwnedCollectionName, name: SnapshotName) -> u32 {
        let left = self.left.remove(place).filter(|left| left.name == name);
        if let Some(left) = left {
            return left.number;
        }
        let number = self.directories.remove(place).map(|(number, _)| number);
        let number = number.unwrap_or_else(|| self.next());
        self.given(number, place, NumberOf::Shown(name))
    }

    /// The number of a collection whose directory is shown.
    pub fn directory(&mut self, place: &OwnedCollectionName, owner: OwnerAndMode) -> u32 {
        let number = match self.directories.get(place) {
            Some((number, before)) if *before == owner => return *number,
            Some((number, _)) => *number,
            None => self.next(),
        };
        self.directories.insert(place.clone(), (number, owner));
        self.given(number, place, NumberOf::Directory(owner))
    }

    /// The number of a snapshot beside the one that is shown.
    pub fn version(&mut self, place: &OwnedCollectionName, name: SnapshotName) -> u32 {
        if let Some(number) = self.versions.get(&(place.clone(), name)) {
            return *number;
        }
        let number = self.next();
        self.given(number, place, NumberOf::Version(name))
    }

    /// A collection is not shown any more.
    pub fn gone(&mut self, place: &OwnedCollectionName) {
        self.left.remove(place);
        self.directories.remove(place);
        self.given(0, place, NumberOf::Gone);
    }

    /// The snapshot of a collection that an earlier process has shown last, until it is shown here.
    pub fn left(&self, place: &OwnedCollectionName) -> Option<LeftNumber> {
        self.left.get(place).copied()
    }

    /// Forgets that: it is not there any more.
    pub fn lost(&mut self, place: &OwnedCollectionName) {
        self.left.remove(place);
    }

    /// All of these, with the numbers of their snapshots.
    pub fn all_left(&self) -> impl Iterator<Item = (&OwnedCollectionName, u64)> {
        self.left.iter().map(|(place, left)| (place, left.name.number))
    }

    /// The collections whose directories are shown and that nobody has opened.
    pub fn unopened(&self) -> impl Iterator<Item = &OwnedCollectionName> {
        self.directories.keys()
    }

    /// The last meaning that a number had in an earlier process.
    pub fn before(&self, number: u32) -> Option<&Numbered> {
        self.before.get(&number)
    }

    /// The meaning of a number of an earlier process, for a lookup: a version, a collection that this mount shows with the same
    /// number, or a former one. `present` returns the number of a collection that this mount shows.
    pub fn meant(
        &self,
        number: u32,
        present: impl Fn(&OwnedCollectionName) -> Option<u32>,
    ) -> Option<NumberBefore> {
        let Numbered { place, of, .. } = self.before(number)?;
        let left = || self.left(place).map(|left| left.number);
        let directory = || self.directories.get(place).map(|(number, _)| *number);
        Some(match of {
            NumberOf::Version(name) => NumberBefore::Version(place.clone(), name.number),
            _ if present(place).or_else(left).or_else(directory) == Some(number) => {
                NumberBefore::Present(place.clone())
            }
            _ => NumberBefore::Former(place.clone()),
        })
    }

    /// The collections that the kernel may know by attributes that an earlier process had from a list, with their numbers.
    pub fn shown_before(&self) -> Vec<(u32, OwnedCollectionName, OwnerAndMode)> {
        let present = self.directories.iter().map(|(place, (number, _))| (place, *number));
        let present = present.chain(self.left.iter().map(|(place, left)| (place, left.number)));
        present
            .filter_map(|(place, number)| Some((number, place.clone(), *self.shown.get(&number)?)))
            .collect()
    }

    /// The tenants of which an earlier process has shown something.
    pub fn tenants(&self) -> Vec<String> {
        let mut tenants: Vec<String> =
            self.before.values().map(|before| before.place.tenant.clone()).collect();
        tenants.sort_unstable();
        tenants.dedup();
        tenants
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::{LeftNumber, Numbers};
    use crate::format::handover::{NumberOf, Numbered};
    use crate::format::snapshot::manifest::{OwnerAndMode, SnapshotName};
    use crate::model::OwnedCollectionName;

    type Noted = Arc<Mutex<Vec<Numbered>>>;

    /// The numbers of a process that goes on after another one.
    fn after(noted: &Noted) -> Numbers {
        let (mut numbers, own) = (Numbers::default(), noted.clone());
        let before = noted.lock().clone();
        numbers.go_on(before, Box::new(move |numbered| own.lock().push(numbered.clone())));
        numbers
    }

    fn name(number: u64) -> SnapshotName {
        SnapshotName { number, digest: [number as u8; 32], more: 0 }
    }

    fn place(name: &str) -> OwnedCollectionName {
        OwnedCollectionName::new("t", name)
    }

    #[test]
    fn the_next_process_gives_the_same_snapshots_the_same_numbers_and_others_new_ones() {
        let (noted, owner) = (Noted::default(), OwnerAndMode { uid: 1, gid: 2, mode: 0o700 });
        let [a, b, c, d] = ["a", "b", "c", "d"].map(place);
        let mut first = after(&noted);
        assert_eq!((first.directory(&a, owner), first.directory(&b, owner)), (1, 2));
        assert_eq!((first.shown(&a, name(1)), first.shown(&c, name(1))), (1, 3));
        assert_eq!((first.shown(&a, name(2)), first.version(&a, name(1))), (4, 5));
        assert_eq!(first.shown(&d, name(1)), 6);
        first.gone(&d);
        let mut second = after(&noted);
        assert_eq!(second.left(&a), Some(LeftNumber { number: 4, name: name(2) }));
        assert_eq!((second.left(&b), second.left(&d)), (None, None));
        // The number 1 was that of another snapshot, which no directory has now.
        assert_eq!(second.shown_before(), [(2, b.clone(), owner)]);
        assert_eq!((second.directory(&b, owner), second.version(&a, name(1))), (2, 5));
        assert_eq!((second.shown(&a, name(2)), second.shown(&b, name(1))), (4, 2));
        // Another snapshot than the one that was shown.
        assert_eq!((second.shown(&c, name(2)), second.shown(&d, name(1))), (7, 8));
        let former = second.before(1).unwrap();
        assert_eq!((&former.place, former.of), (&a, NumberOf::Shown(name(1))));
        assert_eq!(after(&noted).left(&c), Some(LeftNumber { number: 7, name: name(2) }));
        assert_eq!(after(&noted).tenants(), ["t"]);
    }

    #[test]
    fn a_directory_with_another_owner_keeps_its_number_and_the_owner_is_noted() {
        let noted = Noted::default();
        let mut numbers = after(&noted);
        let owner = |uid| OwnerAndMode { uid, gid: 2, mode: 0o700 };
        let a = place("a");
        let given = [1, 1, 5].map(|uid| numbers.directory(&a, owner(uid)));
        assert_eq!((given, noted.lock().len()), ([1; 3], 2));
        assert_eq!(after(&noted).shown_before(), [(1, a.clone(), owner(5))]);
        let mut numbers = after(&noted);
        assert_eq!(numbers.shown(&a, name(1)), 1);
        // Whoever knows it by the list's attributes still does.
        assert_eq!(after(&noted).shown_before(), [(1, a, owner(5))]);
    }
}
