//! The names of nodes, by node.

use std::collections::HashMap;

use foldhash::quality::RandomState;
use smallvec::SmallVec;

use crate::model::EntryId;
use crate::store::state::by_id::ByEntry;
use crate::store::state::node::Link;

/// A node with more names than this finds them by a map, so that the removal of a name takes the same time however many
/// there are.
const SEARCHED_MAX: usize = 32;

/// The names of each node.
#[derive(Debug, Default)]
pub(in crate::store) struct Links {
    by_node: ByEntry<SmallVec<[Link; 1]>>,
    /// For a node that had more than [`SEARCHED_MAX`] names: the place of each.
    places: ByEntry<HashMap<Link, usize, RandomState>>,
}

impl Links {
    /// The names of a node.
    pub fn of(&self, node: EntryId) -> &[Link] {
        self.by_node.get(&node).map_or(&[], SmallVec::as_slice)
    }

    /// Reserves space for the names of more nodes.
    pub fn reserve(&mut self, nodes: usize) {
        self.by_node.reserve(nodes);
    }

    /// Adds a name. Returns the number of names that the node then has.
    pub fn add(&mut self, node: EntryId, link: Link) -> usize {
        let links = self.by_node.entry(node).or_default();
        if let Some(places) = self.places.get_mut(&node) {
            places.insert(link.clone(), links.len());
        }
        links.push(link);
        if links.len() == SEARCHED_MAX + 1 && !self.places.contains_key(&node) {
            self.places.insert(node, links.iter().cloned().zip(0..).collect());
        }
        links.len()
    }

    /// Removes a name. Returns the number of names that the node had, and has then. The names of a node with many may
    /// change their order.
    pub fn remove(&mut self, node: EntryId, link: &Link) -> (usize, usize) {
        let Some(links) = self.by_node.get_mut(&node) else { return (0, 0) };
        let before = links.len();
        let Some(places) = self.places.get_mut(&node) else {
            links.retain(|known| known != link);
            return (before, links.len());
        };
        if let Some(place) = places.remove(link).filter(|place| *place < before) {
            links.swap_remove(place);
            if let Some(moved) = links.get(place) {
                places.insert(moved.clone(), place);
            }
        }
        (before, links.len())
    }

    /// Removes all names of a node. Returns how many there were.
    pub fn remove_all(&mut self, node: EntryId) -> usize {
        self.places.remove(&node);
        self.by_node.remove(&node).map_or(0, |links| links.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Links, SEARCHED_MAX};
    use crate::model::EntryId;
    use crate::store::state::node::Link;

    #[test]
    fn names_that_come_and_go_are_those_of_a_set() {
        let mut seed = 1_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let (mut links, mut wanted) = (Links::default(), BTreeSet::new());
        let node = EntryId(7);
        for round in 0..4000 {
            // The number of names rises and falls around the one from which they are found by a map.
            let grows = round / 200 % 2 == 0;
            let number = random(3 * SEARCHED_MAX as u64);
            let link: Link = (EntryId(number % 3), number.to_be_bytes().into());
            if random(4) > 0 && grows && wanted.insert(link.clone()) {
                assert_eq!(links.add(node, link), wanted.len());
            } else if !grows || random(4) == 0 {
                let before = wanted.len();
                wanted.remove(&link);
                assert_eq!(links.remove(node, &link), (before, wanted.len()));
            }
            let found: BTreeSet<Link> = links.of(node).iter().cloned().collect();
            assert_eq!((found.len(), &found), (links.of(node).len(), &wanted), "round {round}");
        }
        assert_eq!(links.remove_all(node), wanted.len());
        assert_eq!((links.of(node).len(), links.remove_all(node)), (0, 0));
    }
}
