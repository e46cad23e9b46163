//! The orders of files with rows that directories have and had: see `rows.rs`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::model::EntryId;
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
#[derive(Default)]
pub(super) struct RowOrders(Mutex<Orders>);

#[derive(Default)]
struct Orders {
    last: u64,
    /// The number of the present order of a directory.
    present: HashMap<RowsPlace, u64>,
    known: HashMap<u64, Order>,
}

/// The files with rows of a directory, sorted by name.
#[derive(Clone)]
pub(super) struct Order {
    place: RowsPlace,
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
    /// Sets the present files of a directory. Returns the number of their order.
    pub fn put(&self, place: RowsPlace, members: Members, in_use: impl Fn() -> HashSet<u64>) -> Found {
        let orders = &mut *self.0.lock();
        let known = orders.present.get(&place).copied();
        if let Some((number, order)) = known.and_then(|number| Some((number, orders.known.get_mut(&number)?)))
            && members.begin_with(&order.members)
        {
            let has_grown = members.count() > order.members.count();
            order.version += u64::from(has_grown);
            order.members = Arc::new(members);
            return Found { number, has_grown };
        }
        orders.end(place);
        if orders.known.len() >= ORDERS_MAX {
            let in_use = in_use();
            orders.known.retain(|number, _| in_use.contains(number));
            let Orders { present, known, .. } = orders;
            present.retain(|_, number| known.contains_key(number));
        }
        orders.last += 1;
        let order = Order { place, members: Arc::new(members), is_present: true, version: 0 };
        orders.known.insert(orders.last, order);
        orders.present.insert(place, orders.last);
        Found { number: orders.last, has_grown: false }
    }

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
    /// Ends the present order of a directory.
    fn end(&mut self, place: RowsPlace) {
        if let Some(order) = self.present.remove(&place).and_then(|number| self.known.get_mut(&number)) {
            order.is_present = false;
            order.version += 1;
        }
    }
}
