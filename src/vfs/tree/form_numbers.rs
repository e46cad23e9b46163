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

/// The most forms of a collection that have numbers at a time: any user can look up half a million ranks of a model.
const FORMS_MAX: u32 = 1 << 14;

/// The numbers of the forms that were looked up.
///
/// 1. A number means one form for as long as the mount lasts. The kernel may hold an inode of a form that is gone, with
///    pages under its number, and a decoded copy is found by it. So a number that was given is not given again, but to
///    the same form: `by_number` only grows, to at most [`FORM_NUMBERS_END`] of them.
/// 2. A collection has at most [`FORMS_MAX`] numbers in use. One with more lets go of adapters first, because those that were
///    replaced are among them. An adapter that is still used has its number again when it is looked up.
#[derive(Default)]
pub(super) struct FormNumbers(RwLock<Numbers>);

#[derive(Default)]
struct Numbers {
    by_form: HashMap<FormOf, u32>,
    by_number: HashMap<u32, FormOf>,
    /// How many forms of each collection `by_form` has.
    in_use: HashMap<u32, u32>,
}

impl FormNumbers {
    /// The number of a form. `None` if all numbers are taken, or all that a collection may have.
    pub fn number(&self, of: FormOf) -> Option<u32> {
        if let Some(number) = self.0.read().by_form.get(&of) {
            return Some(*number);
        }
        let mut numbers = self.0.write();
        if !numbers.by_form.contains_key(&of) && !numbers.has_room(of.collection) {
            return None;
        }
        let first = hash(of);
        let all = (first..FORM_NUMBERS_END).chain(1..first);
        let number =
            all.into_iter().find(|number| numbers.by_number.get(number).is_none_or(|known| *known == of))?;
        numbers.by_number.insert(number, of);
        if numbers.by_form.insert(of, number).is_none() {
            *numbers.in_use.entry(of.collection).or_default() += 1;
        }
        Some(number)
    }

    /// The form with a number.
    pub fn form(&self, number: u32) -> Option<FormOf> {
        self.0.read().by_number.get(&number).copied()
    }

    /// Lets go of the numbers of a collection that the mount has closed, removed or renamed. They still mean its forms.
    pub fn forget(&self, collection: u32) {
        let numbers = &mut *self.0.write();
        numbers.by_form.retain(|of, _| of.collection != collection);
        numbers.in_use.remove(&collection);
    }
}

impl Numbers {
    /// Whether a collection may have one more number. Lets go of its adapters if it has all.
    fn has_room(&mut self, collection: u32) -> bool {
        let count = |numbers: &Numbers| numbers.in_use.get(&collection).copied().unwrap_or_default();
        if count(self) < FORMS_MAX {
            return true;
        }
        let mut adapters = 0;
        self.by_form.retain(|of, _| {
            let is_gone = of.collection == collection && matches!(of.form, Form::Merged(_));
            adapters += u32::from(is_gone);
            !is_gone
        });
        let left = count(self).saturating_sub(adapters);
        self.in_use.insert(collection, left);
        left < FORMS_MAX
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
    use super::{FORMS_MAX, FormNumbers, FormOf, hash};
    use crate::format::files::tensor_parallel::Rank;
    use crate::model::EntryId;
    use crate::vfs::form::{AdapterFiles, Form};

    fn expert(collection: u32, index: u32) -> FormOf {
        FormOf { collection, form: Form::Expert(index) }
    }

    #[test]
    fn each_form_of_each_collection_has_a_number_of_its_own() {
        let numbers = FormNumbers::default();
        let forms = |collection| (0..5000).map(move |index| expert(collection, index));
        let mut given: Vec<u32> = (1..4).flat_map(forms).map(|of| numbers.number(of).unwrap()).collect();
        for of in forms(2) {
            let number = numbers.number(of).unwrap();
            assert_eq!(numbers.form(number), Some(of));
        }
        given.sort_unstable();
        given.dedup();
        assert_eq!((given.len(), given.contains(&0)), (15_000, false));
        // The same number in another mount.
        let of = expert(2, 7);
        assert_eq!(FormNumbers::default().number(of), Some(hash(of)));
    }

    #[test]
    fn a_number_of_a_collection_that_is_gone_is_not_given_to_another_form() {
        let numbers = FormNumbers::default();
        let (gone, other) = two_with_one_hash();
        let number = numbers.number(gone).unwrap();
        numbers.forget(gone.collection);
        assert!(numbers.0.read().by_form.is_empty());
        assert_ne!(numbers.number(other), Some(number));
        // A collection that was renamed has the numbers that the kernel knows.
        assert_eq!((numbers.form(number), numbers.number(gone)), (Some(gone), Some(number)));
    }

    /// Two forms of different collections that would be given the same number.
    fn two_with_one_hash() -> (FormOf, FormOf) {
        let forms = |collection| (0..6000).map(move |index| expert(collection, index));
        let known: std::collections::HashMap<u32, FormOf> = forms(1).map(|of| (hash(of), of)).collect();
        let found = forms(2).find_map(|of| Some((*known.get(&hash(of))?, of)));
        found.unwrap()
    }

    #[test]
    fn a_collection_has_a_bounded_number_of_forms_and_adapters_make_room() {
        let numbers = FormNumbers::default();
        let rank = |place: u32| {
            let rank = Rank { rank: (place % 1000) as u16, ranks: (1000 + place / 1000) as u16 };
            FormOf { collection: 1, form: Form::Rank(rank) }
        };
        let adapter = |weights| {
            let files = AdapterFiles {
                collection: 2,
                directory: EntryId(1),
                config: EntryId(5),
                weights: EntryId(weights),
            };
            FormOf { collection: 1, form: Form::Merged(files) }
        };
        let first = numbers.number(adapter(0)).unwrap();
        for replaced in 1..u64::from(FORMS_MAX) + 10 {
            assert!(numbers.number(adapter(replaced)).is_some());
        }
        assert_eq!((numbers.form(first), numbers.number(adapter(0))), (Some(adapter(0)), Some(first)));
        let mut given = (0..FORMS_MAX).filter(|place| numbers.number(rank(*place)).is_some()).count() as u32;
        assert_eq!(given, FORMS_MAX);
        given = (0..FORMS_MAX + 5).filter(|place| numbers.number(rank(*place)).is_some()).count() as u32;
        assert_eq!(given, FORMS_MAX);
        assert_eq!((numbers.number(adapter(1)), numbers.number(expert(1, 0))), (None, None));
        assert!(numbers.number(expert(3, 0)).is_some());
        assert_eq!(numbers.0.read().by_form.len(), FORMS_MAX as usize + 1);
    }
}
