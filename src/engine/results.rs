//! The results of the engine's work.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use crate::engine::summary::Summary;
use crate::model::{EntryId, Refusal};
use crate::store::PlaceOfObject;

/// The changes that a request made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// The files whose bytes changed: tensors and their containers.
    pub nodes: BTreeSet<EntryId>,
    /// Blocks that were moved.
    pub blocks: u64,
    /// The refusals of tensors while other tensors were changed.
    pub left: Vec<Refusal>,
    /// Numbers of tensors, by outcome.
    pub summary: Summary,
    /// Bytes of pieces that only the remote of a clone has now, if the request was for these.
    pub to_remote: Option<u64>,
}

/// The result of a compaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compacted {
    /// Blocks that were returned to their data files.
    pub returned: u64,
    /// Blocks that were packed again.
    pub packed: u64,
    /// Blocks whose patches were merged.
    pub merged: u64,
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
        self.packed += other.packed;
        self.merged += other.merged;
        self.moved += other.moved;
        self.before += other.before;
        self.after += other.after;
        self.left += other.left;
        self.at = self.at.max(other.at);
    }
}

impl fmt::Display for Compacted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Compacted { returned, packed, merged, moved, before, after, left, at } = self;
        write!(
            out,
            "payloads at {at} from {before} to {after} bytes, {returned} blocks back in data files, {packed} packed again, {moved} moved"
        )?;
        if *merged > 0 {
            write!(out, ", patches of {merged} blocks merged")?;
        }
        match left {
            0 => Ok(()),
            left => write!(out, ", {left} objects cannot be read and stay as they are: run tierfs fsck"),
        }
    }
}

/// Maximal number of corrupt ranges that a scrub of a collection names.
const RANGES_MAX: usize = 1000;

/// The result of a scrub.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
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
    /// Where the corrupt blocks lie, up to a limit.
    pub ranges: Vec<CorruptRange>,
    /// Whether there are more of them.
    pub has_more_ranges: bool,
}

/// Advice for a file that nothing in the store heals.
pub const IMPORT_AGAIN: &str =
    "import it again with tierfs import --checksum, which mends it from its source";

/// A range of corrupt bytes of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CorruptRange {
    /// The file, below the mount.
    pub path: String,
    /// The tensor of the container `path` whose bytes they are.
    pub tensor: Option<String>,
    /// The bytes, counted from the start of the file.
    pub bytes: Range<u64>,
    /// Whether they were healed.
    pub is_healed: bool,
}

impl fmt::Display for CorruptRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CorruptRange { path, tensor, bytes, is_healed } = self;
        let last = bytes.end.saturating_sub(1).max(bytes.start);
        let what = if *is_healed { "corrupt, healed" } else { "corrupt" };
        write!(out, "{path}: bytes {} to {last}: {what}", bytes.start)?;
        match tensor {
            Some(tensor) => write!(out, " (tensor {tensor})"),
            None => Ok(()),
        }
    }
}

impl Scrubbed {
    /// Adds the result of another collection.
    pub fn add(&mut self, other: Scrubbed) {
        self.blocks += other.blocks;
        self.corrupt += other.corrupt;
        self.healed += other.healed;
        self.at = self.at.max(other.at);
        self.is_stopped |= other.is_stopped;
        self.has_more_ranges |= other.has_more_ranges;
        self.ranges.extend(other.ranges);
    }

    /// The sums, and on further lines the corrupt ranges.
    pub fn report(&self) -> String {
        let lines = self.ranges.iter().map(|range| format!("\n{range}"));
        let more = if self.has_more_ranges { "\nmore ranges are corrupt" } else { "" };
        let left: BTreeSet<&str> =
            self.ranges.iter().filter(|range| !range.is_healed).map(|range| range.path.as_str()).collect();
        let advice = left.iter().map(|path| format!("\n{path}: {IMPORT_AGAIN}"));
        [self.to_string()].into_iter().chain(lines).chain([more.to_owned()]).chain(advice).collect()
    }

    /// Notes corrupt blocks of an object.
    pub(super) fn note(&mut self, place: &PlaceOfObject, bytes: Range<u64>, is_healed: bool) {
        let bytes = place.offset + bytes.start..place.offset + bytes.end;
        if let Some(last) = self.ranges.last_mut()
            && (last.path == place.path && last.tensor == place.tensor)
            && (last.is_healed == is_healed && last.bytes.end == bytes.start)
        {
            last.bytes.end = bytes.end;
        } else if self.ranges.len() < RANGES_MAX {
            let (path, tensor) = (place.path.clone(), place.tensor.clone());
            self.ranges.push(CorruptRange { path, tensor, bytes, is_healed });
        } else {
            self.has_more_ranges = true;
        }
    }
}

impl fmt::Display for Scrubbed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scrubbed { blocks, corrupt, healed, at, is_stopped, .. } = self;
        let how = if *is_stopped { "stopped at" } else { "at" };
        write!(out, "{how} {at}: {blocks} blocks checked, {corrupt} corrupt, {healed} healed")
    }
}
