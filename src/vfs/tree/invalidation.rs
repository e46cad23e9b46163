//! Cached pages and attributes that the kernel must drop.

use crate::vfs::tree::ino::Ino;

/// Inodes whose cached pages and attributes the kernel must drop.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Invalidation {
    /// Inodes whose bytes or attributes changed without a request of the kernel.
    pub nodes: Vec<Ino>,
}

impl Invalidation {
    /// Adds one more inode.
    pub fn and(mut self, also: Option<Ino>) -> Invalidation {
        self.nodes.extend(also);
        self
    }

    /// Whether there is nothing to invalidate.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}
