//! Sets modes, owners and times.

use crate::format::log::catalog::{Entry, NodeEntry, NodeType};
use crate::model::{EntryId, GROUP_EXECUTES, MODE_BITS, PERMISSIONS, Result, SET_GROUP_ID, SET_USER_ID};
use crate::open::Changes;
use crate::open::tree::known;
use crate::store::Collection;
use crate::store::{Touched, now_nanoseconds};

/// Attributes to set; `None` leaves one unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Access time, in nanoseconds since 1970.
    pub atime: Option<i64>,
    /// Modification time, in nanoseconds since 1970.
    pub mtime: Option<i64>,
    /// Whether a file loses its set-user-ID and set-group-ID bits. The rest of its mode stays.
    pub clears_setid: bool,
}

impl SetAttr {
    /// Sets the attributes of `entry`, and its `ctime` to now.
    pub fn apply(self, entry: &mut NodeEntry) {
        entry.mode = self.mode.map_or(entry.mode, |mode| mode & MODE_BITS);
        if self.clears_setid && matches!(entry.node_type, NodeType::File(_)) {
            entry.mode = without_setid(entry.mode);
        }
        entry.uid = self.uid.unwrap_or(entry.uid);
        entry.gid = self.gid.unwrap_or(entry.gid);
        entry.atime = self.atime.unwrap_or(entry.atime);
        entry.mtime = self.mtime.unwrap_or(entry.mtime);
        entry.ctime = now_nanoseconds();
    }
}

/// A mode without the set-user-ID bit, and without an effective set-group-ID bit.
fn without_setid(mode: u32) -> u32 {
    let group = if mode & GROUP_EXECUTES != 0 { SET_GROUP_ID } else { 0 };
    mode & !(SET_USER_ID | group)
}

/// Whether a mode has the set-user-ID bit or an effective set-group-ID bit.
pub fn has_setid(mode: u32) -> bool {
    without_setid(mode) != mode
}

/// Sets attributes of a node. The tensors of a container get its owner and permissions too, so that a
/// user who may read the container may read them. Setting the attributes of one tensor changes only
/// that tensor.
pub fn set_attr(collection: &Collection, node: EntryId, set: SetAttr) -> Result<Changes> {
    collection.record(Touched::default(), |batch, state| {
        let found = known(state, node)?;
        let mut entry = found.entry.clone();
        set.apply(&mut entry);
        batch.entry(Entry::Node(Box::new(entry)));
        let mut changes = Changes::default();
        let has_owner = set.uid.is_some() || set.gid.is_some();
        let set = SetAttr {
            mode: set.mode.map(|mode| mode & PERMISSIONS),
            atime: None,
            mtime: None,
            clears_setid: set.clears_setid || has_owner,
            ..set
        };
        let container = found.file().filter(|file| file.content.is_container());
        for part in container.into_iter().flat_map(|file| state.parts(file)) {
            let mut entry = part.entry.clone();
            set.apply(&mut entry);
            if (entry.mode, entry.uid, entry.gid) != (part.entry.mode, part.entry.uid, part.entry.gid) {
                batch.entry(Entry::Node(Box::new(entry)));
                changes.nodes.push(part.entry.id);
            }
        }
        Ok(changes)
    })
}
