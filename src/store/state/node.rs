//! Nodes and their names.

use std::sync::Arc;

use crate::format::log::catalog::{FileEntry, NodeEntry, NodeType};
use crate::model::EntryId;

/// A file, a directory or a symbolic link, without its name.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its catalog entry.
    pub entry: NodeEntry,
    /// Logical bytes of a file.
    pub bytes: u64,
}

impl Node {
    /// The file entry, if the node is a file.
    pub fn file(&self) -> Option<&FileEntry> {
        match &self.entry.node_type {
            NodeType::File(file) => Some(file),
            _ => None,
        }
    }
}

/// A name of a node: the directory and the name.
pub type Link = (EntryId, Arc<[u8]>);
