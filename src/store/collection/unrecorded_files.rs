//! Files with writes that the log could not take, which are lost if the process ends.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::model::EntryId;

/// The reasons, by file. Held briefly; no other lock is taken with it.
#[derive(Default)]
pub(in crate::store) struct Unrecorded(Mutex<BTreeMap<EntryId, String>>);

impl Unrecorded {
    /// Notes the reason for a file. Whether there was none before.
    pub fn note(&self, node: EntryId, why: &str) -> bool {
        self.0.lock().insert(node, why.to_owned()).is_none()
    }

    /// Forgets a file. Whether it was noted.
    pub fn forget(&self, node: EntryId) -> bool {
        self.0.lock().remove(&node).is_some()
    }

    /// The reason for a file.
    pub fn why(&self, node: EntryId) -> Option<String> {
        self.0.lock().get(&node).cloned()
    }

    /// All files, with the reasons.
    pub fn all(&self) -> BTreeMap<EntryId, String> {
        self.0.lock().clone()
    }
}
