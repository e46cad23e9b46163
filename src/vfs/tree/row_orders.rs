//! The orders of files with rows that directories have and had: see `rows.rs`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::model::EntryId;
use crate::store::{Collection, now_nanoseconds};
use crate::vfs::form::Members;

/// Orders that are kept, beside those of which the kernel knows files.
const ORDERS_MAX: usize = 256;

/// A directory of a collection.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RowsPlace {
    pub collection: u32,
    pub directory: EntryId,
}

/// The orders of the directories that were looked at.
pub(super) struct RowOrders(Mutex<Orders>);

impl Default for RowOrders {
    /// Numbers begin at the time, so that no number of an earlier daemon of the mount comes again with another meaning.
    fn default() -> RowOrders {
        let last = now_nanoseconds().cast_unsigned();
        RowOrders(Mutex::new(Orders { last, ..Orders::default() }))
    }
}

#[derive(Default)]
struct Orders {
    last: u64,
    present: HashMap<RowsPlace, Present>,
    known: HashMap<u64, Order>,
    /// The orders that were kept when unused ones were last dropped.
    kept: usize,
}

/// The present order of a directory.
struct Present {
    number: u64,
    seen: Seen,
}

/// A state of a collection: so many changes after it was opened.
struct Seen {
    collection: Weak<Collection>,
    changes: u64,
}

impl Seen {
    fn of(collection: &Arc<Collection>) -> Seen {
        Seen { collection: Arc::downgrade(collection), changes: collection.changes() }
    }

    fn is_present(&self, collection: &Arc<Collection>) -> bool {
        std::ptr::eq(self.collection.as_ptr(), Arc::as_ptr(collection))
            && self.changes == collection.changes()
    }
}

/// The files with rows of a directory, sorted by name.
#[derive(Clone)]
pub(super) struct Order {
    pub place: RowsPlace,
    pub members: Arc<Members>,
    /// Whether it is the present order of its directory.
    pub is_present: bool,
    /// Counts the changes of its files.
    version: u64,
}

/// The order of a directory after a look at its files.
pub(super) struct Found {
    pub number: u64,
    pub has_grown: bool,
}

impl RowOrders {
    /// The number of the present order of a directory, if the collection has not changed since the order was set.
    pub fn present(&self, collection: &Arc<Collection>, place: RowsPlace) -> Option<u64> {
        let orders = self.0.lock();
        let present = orders.present.get(&place).filter(|present| present.seen.is_present(collection))?;
        Some(present.number)
    }

    /// Sets the present files of a directory. Returns the number of their order. The caller holds the state that has these
    /// files.
    pub fn put(
        &self,
        collection: &Arc<Collection>,
        place: RowsPlace,
        members: Members,
        in_use: impl Fn() -> HashSet<u64>,
    ) -> Found {
        self.0.lock().put(Seen::of(collection), place, members, in_use)
    }

    /// Ends the present order of a directory. The caller holds the state in which its files are not one array.
    pub fn end(&self, place: RowsPlace) {
        self.0.lock().end(place);
    }

    pub fn order(&self, number: u64) -> Option<Order> {
        self.0.lock().known.get(&number).cloned()
    }

    pub fn version(&self, number: u64) -> u64 {
        self.0.lock().known.get(&number).map_or(0, |order| order.version)
    }

    /// Notes that files of these directories have changed. Returns the directories that have an order.
    pub fn note_changed(&self, collection: u32, directories: &BTreeSet<EntryId>) -> Vec<EntryId> {
        let orders = &mut *self.0.lock();
        let mut found = Vec::new();
        for order in orders.known.values_mut() {
            let RowsPlace { collection: of, directory } = order.place;
            if of == collection && directories.contains(&directory) {
                order.version += 1;
                found.push(directory);
            }
        }
        found
    }
}

impl Orders {
    fn put(
        &mut self,
        seen: Seen,
        place: RowsPlace,
        members: Members,
        in_use: impl Fn() -> HashSet<u64>,
    ) -> Found {
        if let Some(present) = self.present.get_mut(&place)
            && let Some(order) = self.known.get_mut(&present.number)
            && members.begin_with(&order.members)
        {
            let has_grown = members.count() > order.members.count();
            order.version += u64::from(has_grown);
            order.members = Arc::new(members);
            present.seen = seen;
            return Found { number: present.number, has_grown };
        }
        self.end(place);
        // Each sweep looks at all orders, so there are as many new ones between two of them.
        if self.known.len() >= ORDERS_MAX.max(self.kept * 2) {
            let in_use = in_use();
            self.known.retain(|number, _| in_use.contains(number));
            let Orders { present, known, .. } = self;
            present.retain(|_, present| known.contains_key(&present.number));
            self.kept = self.known.len();
        }
        self.last += 1;
        let number = self.last;
        let order = Order { place, members: Arc::new(members), is_present: true, version: 0 };
        self.known.insert(number, order);
        self.present.insert(place, Present { number, seen });
        Found { number, has_grown: false }
    }

    /// Ends the present order of a directory.
    fn end(&mut self, place: RowsPlace) {
        let present = self.present.remove(&place);
        if let Some(order) = present.and_then(|present| self.known.get_mut(&present.number)) {
            order.is_present = false;
            order.version += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::HashSet;
    use std::sync::Weak;

    use super::{ORDERS_MAX, Orders, RowsPlace, Seen};
    use crate::model::{Dtype, EntryId};
    use crate::vfs::form::Members;

    #[test]
    fn orders_in_use_are_looked_at_each_time_that_their_number_has_doubled() {
        let (mut orders, sweeps, end) = (Orders::default(), Cell::new(0), 20 * ORDERS_MAX as u64);
        let mut put = |directory, in_use: &HashSet<u64>| {
            let place = RowsPlace { collection: 1, directory: EntryId(directory) };
            let in_use = || {
                sweeps.set(sweeps.get() + 1);
                in_use.clone()
            };
            let members = Members::none(Dtype::F32, 4, 0);
            orders.put(Seen { collection: Weak::new(), changes: 0 }, place, members, in_use).number
        };
        let all: HashSet<u64> = (1..=end).collect();
        for directory in 1..=end {
            assert_eq!(put(directory, &all), directory);
        }
        assert_eq!(sweeps.get(), 5);
        // Of those that are no longer in use, few are kept.
        for directory in end + 1..=3 * end {
            put(directory, &HashSet::new());
        }
        assert!(orders.known.len() <= ORDERS_MAX && orders.present.len() <= ORDERS_MAX);
    }
}
