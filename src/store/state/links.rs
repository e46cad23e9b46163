//! The names of nodes, by node, in the order in which they were made: the first is the node's place in the tree.

use std::collections::{BTreeMap, HashMap};

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
    /// The nodes that have or had more than [`SEARCHED_MAX`] names: those with few take fewer bytes.
    with_many: ByEntry<Many>,
}

/// Many names.
#[derive(Debug, Default)]
struct Many {
    /// By a number that grows with each name.
    by_age: BTreeMap<u64, Link>,
    ages: HashMap<Link, u64, RandomState>,
    next: u64,
}

/// The names of a node.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a>(Kept<'a>);

#[derive(Clone, Copy, Debug)]
enum Kept<'a> {
    Few(&'a [Link]),
    Many(&'a Many),
}

impl Many {
    fn add(&mut self, link: Link) {
        if let Some(before) = self.ages.insert(link.clone(), self.next) {
            self.by_age.remove(&before);
        }
        self.by_age.insert(self.next, link);
        self.next += 1;
    }

    fn remove(&mut self, link: &Link) {
        if let Some(age) = self.ages.remove(link) {
            self.by_age.remove(&age);
        }
    }
}

impl<'a> Names<'a> {
    /// The number of names.
    pub fn len(self) -> usize {
        match self.0 {
            Kept::Few(links) => links.len(),
            Kept::Many(many) => many.by_age.len(),
        }
    }

    /// Whether the node has no name.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The name that is the node's place in the tree.
    pub fn first(self) -> Option<&'a Link> {
        self.iter().next()
    }

    /// The name that will be, once the first has gone.
    pub fn second(self) -> Option<&'a Link> {
        self.iter().nth(1)
    }

    /// The names, the oldest first.
    pub fn iter(self) -> impl Iterator<Item = &'a Link> {
        let (few, many) = match self.0 {
            Kept::Few(links) => (links, None),
            Kept::Many(many) => (&[][..], Some(many.by_age.values())),
        };
        few.iter().chain(many.into_iter().flatten())
    }
}

impl Links {
    /// The names of a node.
    pub fn of(&self, node: EntryId) -> Names<'_> {
        let few = self.by_node.get(&node).map(SmallVec::as_slice);
        let many = || self.with_many.get(&node).map(Kept::Many);
        Names(few.map(Kept::Few).or_else(many).unwrap_or(Kept::Few(&[])))
    }

    /// Reserves space for the names of more nodes.
    pub fn reserve(&mut self, nodes: usize) {
        self.by_node.reserve(nodes);
    }

    /// Adds a name. Returns the number of names that the node then has.
    pub fn add(&mut self, node: EntryId, link: Link) -> usize {
        if let Some(many) = self.with_many.get_mut(&node) {
            many.add(link);
            return many.by_age.len();
        }
        let links = self.by_node.entry(node).or_default();
        links.push(link);
        let count = links.len();
        if count > SEARCHED_MAX {
            let mut many = Many::default();
            self.by_node.remove(&node).into_iter().flatten().for_each(|link| many.add(link));
            self.with_many.insert(node, many);
        }
        count
    }

    /// Removes a name. Returns the number of names that the node had, and has then.
    pub fn remove(&mut self, node: EntryId, link: &Link) -> (usize, usize) {
        let before = self.of(node).len();
        if let Some(many) = self.with_many.get_mut(&node) {
            many.remove(link);
        } else if let Some(links) = self.by_node.get_mut(&node) {
            links.retain(|known| known != link);
        }
        (before, self.of(node).len())
    }

    /// Removes all names of a node. Returns how many there were.
    pub fn remove_all(&mut self, node: EntryId) -> usize {
        let many = self.with_many.remove(&node).map_or(0, |many| many.by_age.len());
        many + self.by_node.remove(&node).map_or(0, |links| links.len())
    }
}

#[cfg(test)]
mod tests {
    use super::{Links, SEARCHED_MAX};
    use crate::model::EntryId;
    use crate::store::state::node::Link;

    #[test]
    fn names_that_come_and_go_are_those_of_a_list() {
        let mut seed = 1_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let (mut links, mut wanted) = (Links::default(), Vec::<Link>::new());
        let node = EntryId(7);
        for round in 0..4000 {
            // The number of names rises and falls around the one from which they are found by a map.
            let grows = round / 200 % 2 == 0;
            let number = random(3 * SEARCHED_MAX as u64);
            let link: Link = (EntryId(number % 3), number.to_be_bytes().into());
            if random(4) > 0 && grows && !wanted.contains(&link) {
                wanted.push(link.clone());
                assert_eq!(links.add(node, link), wanted.len());
            } else if !grows || random(4) == 0 {
                let before = wanted.len();
                wanted.retain(|known| *known != link);
                assert_eq!(links.remove(node, &link), (before, wanted.len()));
            }
            let found: Vec<Link> = links.of(node).iter().cloned().collect();
            assert_eq!((links.of(node).len(), &found), (wanted.len(), &wanted), "round {round}");
            let ends = (links.of(node).first(), links.of(node).second());
            assert_eq!(ends, (wanted.first(), wanted.get(1)), "round {round}");
        }
        assert_eq!(links.remove_all(node), wanted.len());
        assert_eq!((links.of(node).len(), links.remove_all(node)), (0, 0));
    }
}
