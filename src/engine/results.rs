//! The results of the engine's work.

use std::collections::BTreeSet;
use std::fmt;

use crate::model::EntryId;

/// The changes that a request made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// The files whose bytes changed: tensors and their containers.
    pub nodes: BTreeSet<EntryId>,
    /// Blocks that were moved.
    pub blocks: u64,
    /// Tensors, of several, that could not be moved, with the reason.
    pub left: Vec<(EntryId, String)>,
}

/// The result of a compaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compacted {
    /// Blocks that were returned to their data files.
    pub returned: u64,
    /// Blocks that were moved within tier files.
    pub moved: u64,
    /// Bytes of the payload files before: `tier0.dat` to `factor.dat`.
    pub before: u64,
    /// Bytes of the payload files after.
    pub after: u64,
    /// Objects that were left unchanged, because their files cannot be read or written.
    pub left: u64,
    /// When it ended, in seconds since 1970.
    pub at: u64,
}

impl Compacted {
    /// Adds the result of another collection.
    pub fn add(&mut self, other: Compacted) {
        self.returned += other.returned;
        self.moved += other.moved;
        self.before += other.before;
        self.after += other.after;
        self.left += other.left;
        self.at = self.at.max(other.at);
    }
}

impl fmt::Display for Compacted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Compacted { returned, moved, before, after, left, at } = self;
        write!(
            out,
            "payloads at {at} from {before} to {after} bytes, {returned} blocks back in data files, {moved} moved"
        )?;
        match left {
            0 => Ok(()),
            left => write!(out, ", {left} objects cannot be read and stay as they are: run tierfs fsck"),
        }
    }
}

/// The result of a scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scrubbed {
    /// Number of blocks that were checked.
    pub blocks: u64,
    /// Number of blocks with stored bytes that are wrong or unreadable.
    pub corrupt: u64,
    /// Number of those that were healed.
    pub healed: u64,
    /// When it ended, in seconds since 1970.
    pub at: u64,
    /// Whether it was stopped before its end.
    pub is_stopped: bool,
}

impl Scrubbed {
    /// Adds the result of another collection.
    pub fn add(&mut self, other: Scrubbed) {
        self.blocks += other.blocks;
        self.corrupt += other.corrupt;
        self.healed += other.healed;
        self.at = self.at.max(other.at);
        self.is_stopped |= other.is_stopped;
    }
}

impl fmt::Display for Scrubbed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scrubbed { blocks, corrupt, healed, at, is_stopped } = self;
        let how = if *is_stopped { "stopped at" } else { "at" };
        write!(out, "{how} {at}: {blocks} blocks checked, {corrupt} corrupt, {healed} healed")
    }
}
