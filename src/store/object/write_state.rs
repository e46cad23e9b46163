//! What few objects ever have: written blocks, deltas, factors, damage. It is made when it is
//! first needed, so that an object that is only read costs no memory for it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::format::log::record::Stored;
use crate::store::events::ReportedBlocks;
use crate::store::object::Object;
use crate::store::object::deltas::Link;
use crate::store::object::factors::{FactorLink, IsEnded};

/// What few objects ever have.
#[derive(Debug)]
pub(in crate::store) struct WriteState {
    /// What was written since the last batch: the length of each place is how many bytes at the
    /// beginning of the block have its checksum, 0 where nothing is known of them. Taken before
    /// `Object::blocks`; not held across input or output.
    pub dirty: RwLock<BTreeMap<u32, Stored>>,
    /// Held by reads of dirty blocks, and whole while one is written to where it lies: a
    /// block is read as it was before a write or after it. Held across input and output;
    /// the last lock that is taken.
    pub in_place: RwLock<()>,
    /// Which wrong blocks were told of.
    pub reported: ReportedBlocks,
    /// The deltas on encoded blocks, by block and epoch. Taken after `Object::blocks`.
    pub chains: RwLock<Chains>,
    /// Bytes of its deltas and of its factorization.
    pub linked: AtomicU64,
    /// What its absent blocks are rows of. Taken after `Object::blocks`.
    pub factor: RwLock<Option<(FactorLink, IsEnded)>>,
    /// The number of the factorization that was checked since the store was opened, 0 for none.
    pub factor_checked: Mutex<u64>,
    /// Held while the object is written and while what was written is committed; taken before
    /// every other lock of the collection.
    pub writing: Mutex<Writing>,
}

/// The deltas on encoded blocks, by block and epoch.
pub(in crate::store) type Chains = HashMap<(u32, u64), Arc<[Link]>>;

/// What only writers look at.
#[derive(Debug)]
pub(in crate::store) struct Writing {
    /// Bytes of the data file, counted from the object's place in it, that were used:
    /// what lies behind is nobody's.
    pub used: u64,
    /// Bytes of it that may hold something else than zeros though no block is there that is
    /// dirty: named by a record, or dropped.
    pub stale: u64,
    /// The block that goes on where the log says that it ends, and how many bytes of it the
    /// log describes there: these are not written in place.
    pub edge: Option<(u32, usize)>,
    /// Payloads that the log still names and that nothing reads any more.
    pub dropped: Vec<Stored>,
}

impl WriteState {
    /// That of an object of which the log says so many bytes, and never said others.
    fn new(logged: u64) -> WriteState {
        WriteState {
            dirty: RwLock::default(),
            in_place: RwLock::default(),
            reported: ReportedBlocks::default(),
            chains: RwLock::default(),
            linked: AtomicU64::new(0),
            factor: RwLock::default(),
            factor_checked: Mutex::default(),
            writing: Mutex::new(Writing { used: logged, stale: logged, edge: None, dropped: Vec::new() }),
        }
    }
}

impl Object {
    /// What few objects have; made for this one if it has none yet.
    pub(in crate::store) fn write_state(&self) -> &WriteState {
        self.write_state.get_or_init(|| Box::new(WriteState::new(self.logged.load(Ordering::Acquire))))
    }

    /// What few objects have, if this one has.
    pub(in crate::store) fn existing_write_state(&self) -> Option<&WriteState> {
        self.write_state.get().map(Box::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use crate::format::log::catalog::ObjectEntry;
    use crate::model::{Dtype, ObjectId, SeedId, TensorId};
    use crate::store::object::{DIRTY, Object};

    fn object(bytes: u64) -> Object {
        Object::new(ObjectEntry {
            id: ObjectId(1),
            tensor: TensorId(0),
            seed: SeedId(0),
            creation: 0,
            dtype: Dtype::U8,
            bytes,
            block_bytes: 64,
            extent: None,
            parent: None,
        })
    }

    #[test]
    fn what_was_used_of_the_data_file_is_the_most_that_the_log_ever_said() {
        for sizes in [&[100][..], &[100, 100], &[100, 300], &[300, 100], &[0, 300, 200], &[10, 0, 5]] {
            let object = object(sizes[0]);
            sizes[1..].iter().for_each(|bytes| assert!(object.resized(*bytes).is_empty()));
            let writing = object.write_state().writing.lock();
            let most = sizes.iter().max().unwrap();
            assert_eq!((&writing.used, &writing.stale), (most, most), "{sizes:?}");
        }
    }

    #[test]
    fn blocks_that_come_with_a_size_are_zeros_until_the_batch_ends() {
        let object = object(100);
        let block = |index| object.block(index, object.layout()).map(|block| block.epoch);
        assert!(object.resized(300).is_empty());
        assert_eq!([1, 2, 4].map(block), [None, Some(DIRTY), Some(DIRTY)]);
        object.batch_ended();
        assert_eq!([1, 2, 4].map(block), [None; 3]);
        // Longer and shorter in one batch.
        assert!(object.resized(500).is_empty() && object.resized(200).is_empty());
        object.batch_ended();
        assert_eq!((object.described(), object.is_dirty()), (4, false));
    }

    #[test]
    fn an_object_that_is_only_asked_makes_none() {
        let object = object(100);
        assert!(!object.is_dirty() && object.chain(0, 1).is_none() && object.factor().is_none());
        assert!(object.block(0, object.layout()).is_none() && object.chain_lens().is_empty());
        assert!(object.resized(100).is_empty());
        assert!(object.existing_write_state().is_none());
    }
}
