//! What a file is under its new name: looked at after the rename, by the next mount where
//! the process ended between the two.
//!
//! The batch of the rename marks the file with a setting; when it was looked at, the mark
//! goes.

use std::sync::Arc;

use crate::edit::{Changes, Live, LiveTable};
use crate::format::catalog::Entry;
use crate::model::{EntryId, Result};
use crate::store::Collection;
use crate::store::collection::Touched;
use crate::store::read::Verify;
use crate::store::state::State;

/// The setting that says that a renamed file was not looked at under its new name yet.
pub(super) const LOOK_AGAIN: &str = "look_again";

impl Live {
    /// Looks at what the file is under the name that it has now, and takes away the mark
    /// that a rename has left for this.
    pub fn look_again(&self) -> Result<Changes> {
        let changes = self.looked_at()?;
        let marked = |state: &State| must_be_looked_at(state, self.node);
        if marked(&self.collection.state()) {
            let taken = self.collection.record(Touched::default(), |batch, state| {
                if marked(state) {
                    let key = LOOK_AGAIN.to_owned();
                    batch.entry(Entry::Setting { node: self.node, key, value: None });
                }
                Ok(())
            });
            // Looking once more changes nothing.
            if let Err(error) = taken {
                log::warn!("{}: {error}", self.collection.path());
            }
        }
        Ok(changes)
    }
}

/// Whether a file was given another first name, and not looked at since.
pub fn must_be_looked_at(state: &State, node: EntryId) -> bool {
    state.setting(node, LOOK_AGAIN).is_some()
}

/// Whether a file may be something else under the other name: it is looked at after the
/// rename.
pub fn is_another_place(from: (EntryId, &[u8]), to: (EntryId, &[u8])) -> bool {
    from.0 != to.0 || suffix(from.1) != suffix(to.1) || [&b"npy"[..], b"cgeb"].contains(&suffix(to.1))
}

fn suffix(name: &[u8]) -> &[u8] {
    name.rsplit(|byte| *byte == b'.').next().filter(|suffix| suffix.len() < name.len()).unwrap_or_default()
}

/// Looks at the files that were renamed and not looked at before their process ended.
pub fn finish_renames(collection: &Arc<Collection>, table: &LiveTable, verify: Verify) {
    if collection.check_writable().is_err() {
        return;
    }
    let marked: Vec<EntryId> = {
        let state = collection.state();
        let nodes = state.nodes().map(|node| node.entry.id);
        nodes.filter(|node| must_be_looked_at(&state, *node)).collect()
    };
    for node in marked {
        if let Err(error) = table.open(collection, node, verify).and_then(|live| live.look_again()) {
            log::warn!("{}: looking at a renamed file: {error}", collection.path());
        }
    }
}
