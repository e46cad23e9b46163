//! Permissions of a file about a whole collection: its readers may list and read everything in it.

use std::collections::HashSet;

use crate::format::log::catalog::{NodeEntry, NodeType};
use crate::model::EntryId;
use crate::store::{ROOT, State};

/// The read permissions of the owner, the group and all others.
const READ: [u32; 3] = [0o400, 0o040, 0o004];
/// Their search permissions for directories.
const ENTER: [u32; 3] = [0o100, 0o010, 0o001];

/// The mode of a file that shows a whole collection and has its owner. A class of users may read it
/// if every user of the class may list each directory and read each file below, by every name.
pub(super) fn read_bits(state: &State) -> u32 {
    let Some(root) = state.node(ROOT).map(|node| &node.entry) else { return 0 };
    let mut bits = READ.into_iter().fold(0, |bits, bit| bits | bit) & root.mode;
    let mut waiting = vec![ROOT];
    // A damaged catalog could contain a cycle of directories.
    let mut seen = HashSet::from([ROOT]);
    while let Some(directory) = waiting.pop() {
        let Some(names) = state.directory(directory) else { continue };
        for (_, _, id) in names.after(EntryId(0)) {
            let Some(node) = state.node(id).filter(|_| seen.insert(id)) else { continue };
            match node.entry.node_type {
                NodeType::File(_) => bits &= allowed(root, &node.entry, READ),
                NodeType::Directory => {
                    bits &= allowed(root, &node.entry, ENTER) & allowed(root, &node.entry, READ);
                    waiting.push(id);
                }
                NodeType::Symlink(_) => {}
            }
        }
    }
    bits
}

/// The classes of `root` that have the permission `asked` of an entry, as read bits. A class whose
/// owner or group differs there counts as others.
fn allowed(root: &NodeEntry, entry: &NodeEntry, asked: [u32; 3]) -> u32 {
    let [owner, group, others] = asked.map(|bit| entry.mode & bit != 0);
    let by_owner = if entry.uid == root.uid { owner } else { others };
    let by_group = if entry.gid == root.gid { group } else { others };
    [by_owner, by_group, others]
        .into_iter()
        .zip(READ)
        .filter(|(is_allowed, _)| *is_allowed)
        .map(|(_, bit)| bit)
        .sum()
}
