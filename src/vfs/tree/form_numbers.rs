//! Numbers of forms with parameters, `.as/tp/0-of-2` for example. An inode number has no room for the number of a
//! collection and for the parameters, so the mount gives a number to each form of each collection that is looked up.
//!
//! The number is a hash of both, so that it is the same after a remount, unless two of them meet. The hash of a file with
//! rows includes the number of its order, which each mount gives anew: its number may be another one after a remount.
//!
//! A number means one form until the kernel has forgotten all inodes with it, whatever becomes of the collection: the kernel may
//! hold an inode, with pages, of a form that is gone. So each reply that names such an inode is counted, and each forget
//! says how many of the replies it ends. Then the number is free. A number that is free when a reply names it is taken
//! again. Thus there are as many numbers as the kernel holds inodes, at most, and those that were given in the last
//! seconds.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parking_lot::RwLock;

use crate::model::{EntryId, Error, Instant};
use crate::vfs::form::Form;
use crate::vfs::tree::ino::FORM_NUMBERS_END;

/// A number may be in a reply that is not sent yet.
const FREED_AFTER: Duration = Duration::from_secs(10);

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

/// The numbers of forms.
#[derive(Default)]
pub(super) struct FormNumbers(RwLock<Numbers>);

#[derive(Default)]
struct Numbers {
    by_form: HashMap<FormOf, u32>,
    by_number: HashMap<u32, Given>,
}

/// A number that was given.
struct Given {
    of: FormOf,
    /// The replies that named an inode with it to the kernel, without those that the kernel has forgotten.
    named: u64,
    /// When it was last asked for, or forgotten, while the kernel knew no inode with it.
    last: Instant,
}

/// The error for a form while all numbers are in use.
pub(super) fn no_number() -> Error {
    Error::unsupported("more than 2^23 forms with parameters")
}

impl FormNumbers {
    /// The number of a form. `None` if all numbers are taken.
    pub fn number(&self, of: FormOf) -> Option<u32> {
        {
            let numbers = self.0.read();
            let is_named =
                |number: &&u32| numbers.by_number.get(*number).is_some_and(|given| given.named > 0);
            if let Some(number) = numbers.by_form.get(&of).filter(is_named) {
                return Some(*number);
            }
        }
        self.0.write().take(of).map(|(number, _)| number)
    }

    /// The number of a form, in a reply that names an inode with it to the kernel.
    pub fn named(&self, of: FormOf) -> Option<u32> {
        let mut numbers = self.0.write();
        let (number, given) = numbers.take(of)?;
        given.named = given.named.saturating_add(1);
        Some(number)
    }

    /// The form with a number.
    pub fn form(&self, number: u32) -> Option<FormOf> {
        self.0.read().by_number.get(&number).map(|given| given.of)
    }

    /// The numbers of the orders whose rows files with a number show.
    pub fn orders_of_rows(&self) -> HashSet<u64> {
        let numbers = self.0.read();
        let order = |of: &FormOf| match of.form {
            Form::Rows(rows) => Some(rows.order),
            _ => None,
        };
        numbers.by_form.keys().filter_map(order).collect()
    }

    /// Notes that a reply names an inode with this number to the kernel. The number was asked for just before.
    pub fn note_named(&self, number: u32) {
        if let Some(given) = self.0.write().by_number.get_mut(&number) {
            given.named = given.named.saturating_add(1);
        }
    }

    /// Notes that the kernel has forgotten so many of the replies that named an inode with this number.
    pub fn note_forgotten(&self, number: u32, replies: u64) {
        if let Some(given) = self.0.write().by_number.get_mut(&number) {
            given.named = given.named.saturating_sub(replies);
            given.last = Instant::now();
        }
    }

    /// Frees the numbers that the kernel does not know, and that were not asked for lately.
    pub fn free_unknown(&self) {
        self.free_unknown_for(FREED_AFTER);
    }

    fn free_unknown_for(&self, time: Duration) {
        let is_free = |given: &Given| given.named == 0 && given.last.elapsed() >= time;
        if !self.0.read().by_number.values().any(is_free) {
            return;
        }
        let Numbers { by_form, by_number } = &mut *self.0.write();
        for (_, given) in by_number.extract_if(|_, given| is_free(given)) {
            by_form.remove(&given.of);
        }
        log::debug!("forms: {} numbers are left", by_number.len());
    }
}

impl Numbers {
    /// The number of a form, given now if it has none.
    fn take(&mut self, of: FormOf) -> Option<(u32, &mut Given)> {
        let Numbers { by_form, by_number } = self;
        let number = match by_form.get(&of) {
            Some(number) => *number,
            None => {
                let first = hash(of);
                let mut all = (first..FORM_NUMBERS_END).chain(1..first);
                all.find(|number| !by_number.contains_key(number))?
            }
        };
        by_form.insert(of, number);
        let given = by_number.entry(number).or_insert(Given { of, named: 0, last: Instant::now() });
        given.last = Instant::now();
        Some((number, given))
    }
}

/// The number that a form is given while it is free.
fn hash(FormOf { collection, form }: FormOf) -> u32 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&collection.to_le_bytes());
    hasher.update(form.path().as_bytes());
    if let Form::Rows(rows) = form {
        hasher.update(&rows.order.to_le_bytes());
    }
    let digest = hasher.finalize();
    let (first, _) = digest.as_bytes().split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
    1 + u32::from_le_bytes(*first) % (FORM_NUMBERS_END - 1)
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};
    use std::time::Duration;

    use super::{FormNumbers, FormOf, hash};
    use crate::vfs::form::{Form, RowFormat, RowsOf};

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
    fn a_number_stays_until_the_kernel_has_forgotten_each_reply_that_named_it() {
        let numbers = FormNumbers::default();
        let (gone, other) = two_with_one_hash();
        let number = numbers.number(gone).unwrap();
        let is_kept = |time| {
            numbers.free_unknown_for(time);
            let kept = (numbers.form(number), numbers.number(gone));
            kept == (Some(gone), Some(number))
        };
        // Before the reply.
        assert!(is_kept(Duration::from_secs(100)));
        for _ in 0..3 {
            numbers.note_named(number);
        }
        numbers.note_forgotten(number, 2);
        assert!(is_kept(Duration::ZERO));
        let second = numbers.number(other).unwrap();
        assert_ne!(second, number);
        numbers.note_named(second);
        numbers.note_forgotten(number, 1);
        assert!(is_kept(Duration::from_secs(100)));
        numbers.free_unknown_for(Duration::ZERO);
        assert_eq!((numbers.form(number), numbers.form(second)), (None, Some(other)));
        // A form keeps its number, although the first number that it could have is free now.
        assert_eq!((numbers.number(other), numbers.number(gone)), (Some(second), Some(number)));
        for number in [number, second, 5] {
            numbers.note_forgotten(number, u64::MAX);
        }
        numbers.free_unknown_for(Duration::ZERO);
        let left = numbers.0.read();
        assert!(left.by_form.is_empty() && left.by_number.is_empty());
    }

    #[test]
    fn a_number_that_became_free_before_the_reply_is_taken_again() {
        let numbers = FormNumbers::default();
        let (first, second) = two_with_one_hash();
        let number = numbers.number(first).unwrap();
        numbers.free_unknown_for(Duration::ZERO);
        assert_eq!(numbers.form(number), None);
        assert_eq!(numbers.named(first), Some(number));
        numbers.free_unknown_for(Duration::ZERO);
        assert_eq!(numbers.form(number), Some(first));
        numbers.note_forgotten(number, 1);
        numbers.free_unknown_for(Duration::ZERO);
        // Another form has it by now, so the reply has another number.
        assert_eq!(numbers.named(second), Some(number));
        let other = numbers.named(first).unwrap();
        assert_ne!(other, number);
        assert_eq!((numbers.form(number), numbers.form(other)), (Some(second), Some(first)));
    }

    #[test]
    fn the_orders_of_a_collection_have_numbers_apart_from_each_other() {
        let rows =
            |order| FormOf { collection: 1, form: Form::Rows(RowsOf { format: RowFormat::Npy, order }) };
        let hashes: HashSet<u32> = (0..1000).map(|order| hash(rows(order))).collect();
        assert!(hashes.len() > 990, "{}", hashes.len());
    }

    /// Two forms of different collections that would be given the same number.
    fn two_with_one_hash() -> (FormOf, FormOf) {
        let forms = |collection| (0..6000).map(move |index| expert(collection, index));
        let known: HashMap<u32, FormOf> = forms(1).map(|of| (hash(of), of)).collect();
        let found = forms(2).find_map(|of| Some((*known.get(&hash(of))?, of)));
        found.unwrap()
    }
}
