//! Numbers of forms with parameters, `.as/tp/0-of-2` for example. An inode number has no room for the number of a
//! collection and for the parameters, so the mount gives a number to each form of each collection that is looked up.
//!
//! The number is a hash of both, so that it is the same after a remount, unless two of them meet.

use std::collections::HashMap;

use parking_lot::RwLock;

use crate::model::EntryId;
use crate::vfs::form::Form;
use crate::vfs::tree::ino::FORM_NUMBERS_END;

/// A form of a collection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct FormOf {
    pub collection: u32,
    pub form: Form,
}

/// A node that a form of a collection shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShownNode {
    pub collection: u32,
    pub node: EntryId,
}

/// The numbers given so far. Only names that exist are looked up, so their number is bounded.
#[derive(Default)]
pub(super) struct FormNumbers(RwLock<Numbers>);

#[derive(Default)]
struct Numbers {
    by_form: HashMap<FormOf, u32>,
    by_number: HashMap<u32, FormOf>,
}

impl FormNumbers {
    /// The number of a form. `None` if all numbers are taken.
    pub fn number(&self, of: FormOf) -> Option<u32> {
        if let Some(number) = self.0.read().by_form.get(&of) {
            return Some(*number);
        }
        let mut numbers = self.0.write();
        let first = hash(of);
        let all = (first..FORM_NUMBERS_END).chain(1..first);
        let number =
            all.into_iter().find(|number| numbers.by_number.get(number).is_none_or(|known| *known == of))?;
        numbers.by_number.insert(number, of);
        numbers.by_form.insert(of, number);
        Some(number)
    }

    /// The form with a number.
    pub fn form(&self, number: u32) -> Option<FormOf> {
        self.0.read().by_number.get(&number).copied()
    }

    /// Drops the numbers of a collection.
    pub fn forget(&self, collection: u32) {
        let numbers = &mut *self.0.write();
        numbers.by_form.retain(|of, _| of.collection != collection);
        numbers.by_number.retain(|_, of| of.collection != collection);
    }
}

/// The number that a form is given while it is free.
fn hash(FormOf { collection, form }: FormOf) -> u32 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&collection.to_le_bytes());
    hasher.update(form.path().as_bytes());
    let digest = hasher.finalize();
    let (first, _) = digest.as_bytes().split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
    1 + u32::from_le_bytes(*first) % (FORM_NUMBERS_END - 1)
}

#[cfg(test)]
mod tests {
    use super::{FormNumbers, FormOf, hash};
    use crate::vfs::form::Form;

    #[test]
    fn each_form_of_each_collection_has_a_number_of_its_own() {
        let numbers = FormNumbers::default();
        let forms = |collection| (0..5000).map(move |index| FormOf { collection, form: Form::Expert(index) });
        let mut given: Vec<u32> = (1..4).flat_map(forms).map(|of| numbers.number(of).unwrap()).collect();
        for of in forms(2) {
            let number = numbers.number(of).unwrap();
            assert_eq!(numbers.form(number), Some(of));
        }
        given.sort_unstable();
        given.dedup();
        assert_eq!((given.len(), given.contains(&0)), (15_000, false));
        numbers.forget(2);
        for collection in [1, 2, 3] {
            let of = FormOf { collection, form: Form::Expert(7) };
            let is_known = numbers.0.read().by_form.contains_key(&of);
            assert_eq!(is_known, collection != 2);
        }
        // The same number in another mount.
        let of = FormOf { collection: 2, form: Form::Expert(7) };
        assert_eq!(FormNumbers::default().number(of), Some(hash(of)));
    }
}
