//! The effect of a change on the caches of the kernel.

use crate::model::EntryId;

/// The invalidations that a change requires in the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Nodes whose bytes or attributes changed without a request of the kernel.
    pub nodes: Vec<EntryId>,
}

impl Changes {
    /// Adds the invalidations of `other`.
    pub fn merge(&mut self, other: Changes) {
        self.nodes.extend(other.nodes);
    }

    /// Whether there is nothing to invalidate.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}
