//! The models of bases that an adapter was compared with.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::model::EntryId;
use crate::store::Collection;
use crate::vfs::form::adapters::base_model::BaseModel;

/// Most models that are kept, and most bytes of memory that they take, unless one alone takes more.
const KNOWN_MAX: usize = 16;
const BYTES_MAX: usize = 4 << 20;

/// The models that an adapter was compared with last. The latest comes last.
#[derive(Default)]
pub(super) struct KnownModels(Mutex<Vec<KnownModel>>);

/// A model of a directory.
#[derive(Clone)]
pub(super) struct KnownModel {
    pub collection: Weak<Collection>,
    pub directory: EntryId,
    /// The number of changes of the collection before somebody looked at the directory.
    pub changes: u64,
    pub model: Arc<BaseModel>,
}

impl KnownModels {
    /// The model of a directory, which may have changed since.
    pub fn of(&self, collection: &Arc<Collection>, directory: EntryId) -> Option<KnownModel> {
        let mut all = self.0.lock();
        let is_it = |known: &KnownModel| {
            known.directory == directory && std::ptr::eq(known.collection.as_ptr(), Arc::as_ptr(collection))
        };
        let at = all.iter().position(is_it)?;
        let found = all.remove(at);
        all.push(found.clone());
        Some(found)
    }

    /// Keeps a model in place of an earlier one of its directory.
    pub fn keep(&self, model: KnownModel) {
        let mut all = self.0.lock();
        all.retain(|known| {
            let is_same = known.directory == model.directory && known.collection.ptr_eq(&model.collection);
            !is_same && known.collection.strong_count() > 0
        });
        all.push(model);
        drop_oldest(&mut all);
    }

    /// Bytes of memory, about.
    pub fn memory(&self) -> usize {
        memory(&self.0.lock())
    }
}

fn drop_oldest(all: &mut Vec<KnownModel>) {
    while all.len() > 1 && (all.len() > KNOWN_MAX || memory(all) > BYTES_MAX) {
        all.remove(0);
    }
}

fn memory(all: &[KnownModel]) -> usize {
    all.iter().map(|known| size_of::<KnownModel>() + known.model.memory()).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Weak};

    use super::{BYTES_MAX, KNOWN_MAX, KnownModel, KnownModels, drop_oldest};
    use crate::model::EntryId;
    use crate::vfs::form::adapters::base_model::BaseModel;

    fn of_squares(directory: u64, count: usize) -> KnownModel {
        let mut model = BaseModel::default();
        model.squares.extend((0..count).map(|at| (format!("layers.{at:09}.weight"), None)));
        let directory = EntryId(directory);
        KnownModel { collection: Weak::new(), directory, changes: 0, model: Arc::new(model) }
    }

    #[test]
    fn the_latest_models_are_kept_within_the_bounds_of_number_and_memory() {
        let kept = |directories: &[u64], count: usize| {
            let mut all = directories.iter().map(|directory| of_squares(*directory, count)).collect();
            drop_oldest(&mut all);
            all.into_iter().map(|known| known.directory.0).collect::<Vec<_>>()
        };
        let many: Vec<u64> = (1..=20).collect();
        assert_eq!(kept(&many, 3), many[many.len() - KNOWN_MAX..]);
        let half = BYTES_MAX / 2 / of_squares(0, 1000).model.memory() * 1000;
        assert_eq!(kept(&[1, 2, 3], half - 1000), [2, 3]);
        assert_eq!(kept(&[1, 2, 3], 3 * half), [3]);
        let known = KnownModels::default();
        known.keep(of_squares(1, half));
        assert!(known.memory() > BYTES_MAX / 3, "{}", known.memory());
    }
}
