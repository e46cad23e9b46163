//! Settings of files and directories.

use crate::format::catalog::{Entry, NodeEntry};
use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::Collection;
use crate::store::collection::{Touched, now_nanoseconds};

/// Gives a node a setting of its own; without a value it inherits again. `Gone` where the
/// node is not there.
pub fn set_setting(collection: &Collection, node: EntryId, key: &str, value: Option<&str>) -> Result<()> {
    collection.record(Touched::default(), |batch, state| {
        let found = state.node(node).ok_or_else(|| Error::new(ErrorKind::Gone, "the file is gone"))?;
        if state.setting(node, key) == value {
            return Ok(());
        }
        let (key, value) = (key.to_owned(), value.map(str::to_owned));
        batch.entry(Entry::Setting { node, key, value });
        batch.entry(Entry::Node(Box::new(NodeEntry { ctime: now_nanoseconds(), ..found.entry.clone() })));
        Ok(())
    })
}
