//! Who may read a file about a whole collection: who may list and read all that is in it.

use std::collections::HashSet;

use crate::format::log::catalog::{NodeEntry, What};
use crate::model::EntryId;
use crate::store::{ROOT, State};

/// The bits of a mode by which the owner, the group and all others read.
const READ: [u32; 3] = [0o400, 0o040, 0o004];
/// Those by which they come through a directory.
const ENTER: [u32; 3] = [0o100, 0o010, 0o001];

/// The mode of a file that shows all of a collection and belongs to who has the collection. A class
/// of users reads it that may list each directory and read each file below, by every name, whoever they are.
pub(super) fn read_bits(state: &State) -> u32 {
    let Some(root) = state.node(ROOT).map(|node| &node.entry) else { return 0 };
    let mut bits = READ.into_iter().fold(0, |bits, bit| bits | bit) & root.mode;
    let mut waiting = vec![ROOT];
    // A damaged catalog could have a circle of directories.
    let mut seen = HashSet::from([ROOT]);
    while let Some(directory) = waiting.pop() {
        let Some(names) = state.directory(directory) else { continue };
        for (_, _, id) in names.after(EntryId(0)) {
            let Some(node) = state.node(id).filter(|_| seen.insert(id)) else { continue };
            match node.entry.what {
                What::File(_) => bits &= allowed(root, &node.entry, READ),
                What::Directory => {
                    bits &= allowed(root, &node.entry, ENTER) & allowed(root, &node.entry, READ);
                    waiting.push(id);
                }
                What::Symlink(_) => {}
            }
        }
    }
    bits
}

/// The bits by which those who have `root`, by owner, group and otherwise, may do what the bits
/// `asked` of an entry say. Who is somebody else there is taken for one of the others.
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
