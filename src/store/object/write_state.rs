//! State that most objects never need: dirty blocks, deltas, factorization, failed reads. Allocated
//! on first use, so that an object that is only read costs no memory for it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, RwLock};

use crate::format::log::record::Stored;
use crate::store::object::factors::{FactorLink, IsEnded};
use crate::store::object::failed_reads::FailedReads;
use crate::store::object::links::DeltaLink;

/// State that most objects never need.
#[derive(Debug)]
pub(in crate::store) struct WriteState {
    /// Blocks written since the last batch. The length of each is the number of bytes at the beginning
    /// of the block that its checksum covers, 0 for none. Locked before `Object::blocks`; not held
    /// across I/O.
    pub dirty: RwLock<BTreeMap<u32, Stored>>,
    /// Locked for reading by reads of dirty blocks, and for writing while one is written in place, so
    /// that a read sees a block either before or after a write. Held across I/O; the last lock in the
    /// order.
    pub in_place: RwLock<()>,
    /// Its blocks that could not be read.
    pub failed: FailedReads,
    /// The deltas on encoded blocks, by block and epoch. Locked after `Object::blocks`.
    pub deltas: RwLock<DeltasByBlock>,
    /// Bytes of its deltas and its factorization.
    pub linked: AtomicU64,
    /// The factorization of its absent blocks. Locked after `Object::blocks`.
    pub factor: RwLock<Option<(FactorLink, IsEnded)>>,
    /// Epoch of the factorization verified since the store was opened; 0 for none.
    pub factor_checked: Mutex<u64>,
    /// Held while the object is written and while the writes are committed. The first lock in the
    /// collection's order.
    pub writing: Mutex<Writing>,
}

/// The deltas on encoded blocks, by block and epoch.
pub(in crate::store) type DeltasByBlock = HashMap<(u32, u64), Arc<[DeltaLink]>>;

/// State that only writers use.
#[derive(Debug)]
pub(in crate::store) struct Writing {
    /// Bytes of the data file, from the object's offset in it, that were ever used. Space behind them
    /// is free.
    pub used: u64,
    /// Bytes of it that may be nonzero although they hold no dirty block: named by a record, or
    /// dropped.
    pub stale: u64,
    /// The last logged block, if the object grew inside it, and the bytes of it that the log describes.
    /// These are not written in place.
    pub edge: Option<(u32, usize)>,
    /// Payloads that the log still names but that no reader can reach.
    pub dropped: Vec<Stored>,
}

impl WriteState {
    /// The state of an object whose logged size is `logged` and never changed.
    pub fn new(logged: u64) -> WriteState {
        WriteState {
            dirty: RwLock::default(),
            in_place: RwLock::default(),
            failed: FailedReads::default(),
            deltas: RwLock::default(),
            linked: AtomicU64::new(0),
            factor: RwLock::default(),
            factor_checked: Mutex::default(),
            writing: Mutex::new(Writing { used: logged, stale: logged, edge: None, dropped: Vec::new() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::format::log::catalog::ObjectEntry;
    use crate::model::{Dtype, ObjectId, SeedId, TensorId};
    use crate::store::object::Object;
    use crate::store::object::blocks::DIRTY;

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
    fn the_used_part_of_a_data_file_is_the_largest_that_the_log_recorded() {
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
        // Longer and then shorter in one batch.
        assert!(object.resized(500).is_empty() && object.resized(200).is_empty());
        object.batch_ended();
        assert_eq!((object.described(), object.is_dirty()), (4, false));
    }

    #[test]
    fn a_query_allocates_no_write_state() {
        let object = object(100);
        assert!(!object.is_dirty() && object.deltas(0, 1).is_none() && object.factor().is_none());
        assert!(object.block(0, object.layout()).is_none() && object.delta_counts().is_empty());
        assert!(object.resized(100).is_empty());
        assert!(object.existing_write_state().is_none());
    }
}
