//! Maps from identities, numbers and names. SipHash would take eight times as long as the hash used
//! here. Each map has a random seed, so that no log can be crafted in which the keys collide.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use foldhash::quality::RandomState;

use crate::model::{EntryId, ObjectId};
use crate::store::object::Object;
use crate::store::state::node::Node;

/// A map keyed by object.
pub type ByObject<V> = HashMap<ObjectId, V, RandomState>;

/// A set of objects or nodes, found by their identity without a separate copy of it.
pub type Set<T> = HashSet<ById<T>, RandomState>;

/// An object or node that hashes and compares by its identity.
#[derive(Debug)]
pub struct ById<T>(pub Arc<T>);

impl Borrow<ObjectId> for ById<Object> {
    fn borrow(&self) -> &ObjectId {
        &self.0.entry.id
    }
}

impl Borrow<EntryId> for ById<Node> {
    fn borrow(&self) -> &EntryId {
        &self.0.entry.id
    }
}

macro_rules! equal_by_identity {
    ($of:ty, $identity:ty) => {
        impl PartialEq for ById<$of> {
            fn eq(&self, other: &Self) -> bool {
                self.0.entry.id == other.0.entry.id
            }
        }

        impl Eq for ById<$of> {}

        impl Hash for ById<$of> {
            fn hash<H: Hasher>(&self, hasher: &mut H) {
                Borrow::<$identity>::borrow(self).hash(hasher);
            }
        }
    };
}

equal_by_identity!(Object, ObjectId);
equal_by_identity!(Node, EntryId);

/// A map keyed by a name in a directory.
pub type ByName<V> = HashMap<Arc<[u8]>, V, RandomState>;

/// A map keyed by node.
pub type ByEntry<V> = HashMap<EntryId, V, RandomState>;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::{ByObject, RandomState};
    use crate::model::{EntryId, ObjectId};

    #[test]
    fn similar_identities_differ_in_both_ends_of_their_hashes() {
        let keys = RandomState::default();
        let ids: Vec<ObjectId> =
            (0..4096).map(ObjectId).chain((0..4096).map(|high| ObjectId(high << 64 | 7))).collect();
        for shift in [0, 57] {
            // 128 values each: a hash map uses the low bits for the place, and the seven high ones.
            let mut counts = [0; 128];
            for id in &ids {
                counts[(keys.hash_one(id) >> shift & 127) as usize] += 1;
            }
            assert!(counts.iter().all(|count| (1..512).contains(count)), "{shift}: {counts:?}");
        }
        let mut counts = [0; 128];
        for number in 1..8192 {
            counts[(keys.hash_one(EntryId(number)) & 127) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (1..512).contains(count)), "numbers: {counts:?}");
        let hashes: HashSet<u64> = ids.iter().map(|id| keys.hash_one(id)).collect();
        assert!(hashes.len() > ids.len() - 10);
    }

    #[test]
    fn two_maps_have_different_hashes() {
        let hash = |keys: RandomState| keys.hash_one(ObjectId(1));
        assert_ne!(hash(RandomState::default()), hash(RandomState::default()));
    }

    #[test]
    fn inserted_values_are_found() {
        let map: ByObject<u32> = (0..1000).map(|id| (ObjectId(u128::from(id)), id)).collect();
        assert!((0..1000).all(|id| map.get(&ObjectId(u128::from(id))) == Some(&id)));
        assert_eq!(map.get(&ObjectId(1000)), None);
    }
}
