//! The files of each object that more than one file has or had.

use smallvec::SmallVec;

use crate::model::{EntryId, ObjectId};
use crate::store::state::by_id::ByObject;

/// The files of each object that more than one file has or had. A file without a name may still be open, so an object
/// stays here until its last file is gone.
#[derive(Debug, Default)]
pub(in crate::store) struct SharedObjects(ByObject<SmallVec<[EntryId; 2]>>);

impl SharedObjects {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Another file than `own` that has an object, the one that was joined last first. Without `own`, one of several.
    pub fn other(&self, object: ObjectId, own: Option<EntryId>) -> Option<EntryId> {
        let files = self.0.get(&object).filter(|files| own.is_some() || files.len() > 1)?;
        files.iter().rev().copied().find(|file| Some(*file) != own)
    }

    /// Notes files that have an object.
    pub fn add(&mut self, object: ObjectId, files: &[EntryId]) {
        let known = self.0.entry(object).or_default();
        for file in files {
            if !known.contains(file) {
                known.push(*file);
            }
        }
    }

    /// Notes that a file no longer has an object.
    pub fn remove(&mut self, object: ObjectId, file: EntryId) {
        let Some(files) = self.0.get_mut(&object) else { return };
        files.retain(|known| *known != file);
        if files.is_empty() {
            self.0.remove(&object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SharedObjects;
    use crate::model::{EntryId, ObjectId};

    #[test]
    fn an_object_is_of_others_until_one_file_has_it_and_is_known_until_none_has() {
        let (object, [one, two, three]) = (ObjectId(7), [1, 2, 3].map(EntryId));
        let mut shared = SharedObjects::default();
        assert_eq!(shared.other(object, None), None);
        shared.add(object, &[one, two]);
        shared.add(object, &[two, three]);
        assert_eq!(
            [None, Some(one), Some(three)].map(|own| shared.other(object, own)),
            [Some(three), Some(three), Some(two)]
        );
        shared.remove(object, three);
        shared.remove(object, one);
        assert_eq!(
            [None, Some(two), Some(one)].map(|own| shared.other(object, own)),
            [None, None, Some(two)]
        );
        shared.remove(object, two);
        assert!(shared.is_empty());
    }
}
