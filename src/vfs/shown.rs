//! Which files listings show: the mount option `list`.

use std::collections::HashSet;

use crate::format::log::catalog::{Content, NodeType};
use crate::model::EntryId;
use crate::store::{Node, State};

/// Which files of a collection listings show. Hidden files still open by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Shown {
    /// Containers and their tensors.
    #[default]
    Both,
    /// Tensors and plain files, without the containers.
    Tensors,
    /// Containers and plain files, without their tensors: every byte once.
    Containers,
}

impl Shown {
    /// The value of the mount option `list`, as [`from_name`](Self::from_name) takes it.
    pub fn name(self) -> &'static str {
        match self {
            Shown::Both => "both",
            Shown::Tensors => "tensors",
            Shown::Containers => "containers",
        }
    }

    /// Parses a value of the mount option `list`.
    pub fn from_name(name: &str) -> Option<Shown> {
        match name {
            "both" => Some(Shown::Both),
            "tensors" => Some(Shown::Tensors),
            "containers" => Some(Shown::Containers),
            _ => None,
        }
    }

    /// Whether listings show a node. A directory that has files but would show none of them is
    /// hidden.
    pub(super) fn shows(self, node: &Node, state: &State) -> bool {
        if self == Shown::Both {
            return true;
        }
        let mut waiting = vec![node];
        // A damaged catalog could contain a cycle of directories.
        let mut seen = HashSet::new();
        let mut hides = false;
        while let Some(node) = waiting.pop() {
            if let Some(directory) = state.directory(node.entry.id).filter(|_| seen.insert(node.entry.id)) {
                let below = directory.after(EntryId(0)).filter_map(|(_, _, node)| state.node(node));
                waiting.extend(below.map(|node| &**node));
            }
            match (&node.entry.node_type, self) {
                (NodeType::File(file), Shown::Tensors) if file.content.is_container() => hides = true,
                (NodeType::File(file), Shown::Containers) if file.content == Content::Part => hides = true,
                (NodeType::File(_) | NodeType::Symlink(_), _) => return true,
                (NodeType::Directory, _) => {}
            }
        }
        !hides
    }
}
