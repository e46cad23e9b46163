//! Maps from identities. These are hashes already, so little is left to do: a product with numbers
//! that nobody outside the process knows, so that no log can be made whose objects collide.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::model::ObjectId;

/// A map from objects.
pub type ByObject<V> = HashMap<ObjectId, V, Keys>;

/// The numbers of one map.
#[derive(Clone, Copy)]
pub struct Keys([u64; 2]);

/// The hash of one identity.
pub struct IdHasher {
    keys: [u64; 2],
    hash: u64,
}

impl Default for Keys {
    fn default() -> Keys {
        let random = RandomState::new();
        Keys([0_u64, 1].map(|number| random.hash_one(number)))
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Keys")
    }
}

impl BuildHasher for Keys {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher { keys: self.0, hash: 0 }
    }
}

impl Hasher for IdHasher {
    fn write_u128(&mut self, id: u128) {
        let [low, high] = self.keys;
        let factors = [(id as u64) ^ low ^ self.hash, ((id >> 64) as u64) ^ high];
        let product = u128::from(factors[0]) * u128::from(factors[1]);
        self.hash = (product as u64) ^ ((product >> 64) as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(16) {
            let mut id = [0; 16];
            for (to, from) in id.iter_mut().zip(part) {
                *to = *from;
            }
            self.write_u128(u128::from_le_bytes(id));
        }
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::{ByObject, Keys};
    use crate::model::ObjectId;

    #[test]
    fn identities_that_differ_in_little_have_other_hashes_at_both_ends() {
        let keys = Keys::default();
        let ids: Vec<ObjectId> =
            (0..4096).map(ObjectId).chain((0..4096).map(|high| ObjectId(high << 64 | 7))).collect();
        for shift in [0, 57] {
            // 128 values each: a map takes its place from the low bits, and seven high ones.
            let mut counts = [0; 128];
            for id in &ids {
                counts[(keys.hash_one(id) >> shift & 127) as usize] += 1;
            }
            assert!(counts.iter().all(|count| (1..512).contains(count)), "{shift}: {counts:?}");
        }
        let hashes: HashSet<u64> = ids.iter().map(|id| keys.hash_one(id)).collect();
        assert!(hashes.len() > ids.len() - 10);
    }

    #[test]
    fn two_maps_have_different_hashes() {
        let hash = |keys: Keys| keys.hash_one(ObjectId(1));
        assert_ne!(hash(Keys::default()), hash(Keys::default()));
    }

    #[test]
    fn what_is_put_in_is_found() {
        let map: ByObject<u32> = (0..1000).map(|id| (ObjectId(u128::from(id)), id)).collect();
        assert!((0..1000).all(|id| map.get(&ObjectId(u128::from(id))) == Some(&id)));
        assert_eq!(map.get(&ObjectId(1000)), None);
    }
}
