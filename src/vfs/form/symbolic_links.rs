//! Symbolic links, followed inside a collection. A path that leaves the collection leads nowhere.
//!
//! A lookup follows links while the state is locked, and a listing follows all links of a directory. So the number of links
//! and the parts of a path are bounded.

use std::sync::Arc;

use crate::format::log::catalog::NodeType;
use crate::model::{EntryId, NameIn};
use crate::store::{Node, ROOT, State};

/// Most symbolic links that lead to a file.
const LINKS_MAX: usize = 8;
/// Most parts of the path of a link. Links in a cache of the hub have four or five.
const PARTS_MAX: usize = 32;

/// A name in a directory, and its node.
pub(super) struct Target<'a> {
    pub at: NameIn<'a>,
    pub node: &'a Arc<Node>,
}

/// The name that the path of a symbolic link in a directory leads to, which may be another link.
pub(super) fn target<'a>(state: &'a State, directory: EntryId, path: &'a [u8]) -> Option<Target<'a>> {
    let mut steps = Steps { state, at: directory, waiting: Vec::new(), links: 0, enter: &mut |_| () };
    steps.follow(path)?;
    steps.last()
}

/// The file, other than a tensor, that a node of a directory is or leads to.
pub(super) fn file<'a>(state: &'a State, directory: EntryId, node: &'a Arc<Node>) -> Option<&'a Arc<Node>> {
    Steps { state, at: directory, waiting: Vec::new(), links: 0, enter: &mut |_| () }.file(node)
}

/// [`file`] of a name. `enter` learns the directories in which names are looked up.
pub(super) fn file_named<'a>(
    state: &'a State,
    NameIn { directory, name }: NameIn<'a>,
    enter: &mut dyn FnMut(EntryId),
) -> Option<&'a Arc<Node>> {
    let mut steps = Steps { state, at: directory, waiting: vec![name], links: 0, enter };
    let found = steps.last()?;
    steps.file(found.node)
}

/// The way along a path.
struct Steps<'a, 'e> {
    state: &'a State,
    /// The present directory.
    at: EntryId,
    /// The parts that are left, the next one last.
    waiting: Vec<&'a [u8]>,
    /// The links that were followed.
    links: usize,
    enter: &'e mut dyn FnMut(EntryId),
}

impl<'a> Steps<'a, '_> {
    /// Puts the path of a link before the parts that are left.
    fn follow(&mut self, path: &'a [u8]) -> Option<()> {
        self.links += 1;
        let parts = path.iter().filter(|byte| **byte == b'/').count() + 1;
        if path.starts_with(b"/") || parts > PARTS_MAX || self.links > LINKS_MAX {
            return None;
        }
        self.waiting.extend(path.split(|byte| *byte == b'/').rev());
        Some(())
    }

    /// Goes to the last part. Follows the links before it.
    fn last(&mut self) -> Option<Target<'a>> {
        while let Some(part) = self.waiting.pop() {
            (self.enter)(self.at);
            match part {
                b"" | b"." => continue,
                b".." => {
                    self.at = self.state.above(self.at).filter(|_| self.at != ROOT)?;
                    continue;
                }
                _ => {}
            }
            let node = self.state.node(self.state.directory(self.at)?.get(part)?)?;
            if self.waiting.is_empty() {
                return Some(Target { at: NameIn { directory: self.at, name: part }, node });
            }
            match &node.entry.node_type {
                NodeType::Directory => self.at = node.entry.id,
                NodeType::Symlink(path) => self.follow(path)?,
                NodeType::File(_) => return None,
            }
        }
        None
    }

    /// The file that a node of the present directory is or leads to.
    fn file(mut self, mut node: &'a Arc<Node>) -> Option<&'a Arc<Node>> {
        while let NodeType::Symlink(path) = &node.entry.node_type {
            self.follow(path)?;
            node = self.last()?.node;
        }
        node.file().filter(|file| file.tensor.is_none()).map(|_| node)
    }
}
