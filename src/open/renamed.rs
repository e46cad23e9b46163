//! Recognizes a file again after a rename. If the process ends in between, the next mount does so.
//!
//! The batch of the rename marks the file with a setting. Recognition removes the mark.

use std::sync::Arc;

use crate::model::{EntryId, Result};
use crate::open::{Changes, OpenFile, OpenFiles};
use crate::store::Collection;
use crate::store::State;
use crate::store::Touched;
use crate::store::Verify;

impl OpenFile {
    /// Recognizes the file under its current name, and removes the mark that a rename left.
    pub fn recognize_again(&self) -> Result<Changes> {
        let changes = self.recognize_now()?;
        let marked = |state: &State| state.must_be_recognized_again(self.node);
        if marked(&self.collection.state()) {
            let taken = self.collection.record(Touched::default(), |batch, state| {
                if marked(state) {
                    batch.was_recognized_again(self.node);
                }
                Ok(())
            });
            // Recognizing it once more does no harm.
            if let Err(error) = taken {
                log::warn!("{}: {error}", self.collection.path());
            }
        }
        Ok(changes)
    }
}

/// Whether a file may have other content under its new name, so that it must be recognized again.
pub fn has_other_suffix(from: &[u8], to: &[u8]) -> bool {
    suffix(from) != suffix(to)
}

fn suffix(name: &[u8]) -> &[u8] {
    name.rsplit(|byte| *byte == b'.').next().filter(|suffix| suffix.len() < name.len()).unwrap_or_default()
}

/// Recognizes renamed files that still have the mark: the process ended before, or an import took
/// their first name.
pub fn finish_renames(collection: &Arc<Collection>, table: &OpenFiles, verify: Verify) -> Changes {
    let mut changes = Changes::default();
    let marked: Vec<EntryId> = collection.state().to_be_recognized_again().collect();
    if marked.is_empty() || collection.check_writable().is_err() {
        return changes;
    }
    for node in marked {
        match table.open(collection, node, verify).and_then(|open_file| open_file.recognize_again()) {
            Ok(more) => changes.merge(more),
            Err(error) => log::warn!("{}: looking at a renamed file: {error}", collection.path()),
        }
    }
    changes
}
