//! The table of the settings of nodes.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::model::{EntryId, THRESHOLDS, Threshold};
use crate::store::state::shared_objects::SharedObjects;

/// Setting of a file whose first name changed and that has not been examined since.
pub(super) const RECOGNIZE_AGAIN: &str = "look_again";
/// Setting of a model: the paths of the files with further tensors, relative to its directory, in lines.
pub const DATA_FILES: &str = "data_files";
/// Setting of the index of a sharded model: the containers that it names, each with its tensors
/// (`format/files/shard_index.rs`).
pub const SHARDS: &str = "shards";

/// Mark of the directory of a collection whose data files lie elsewhere and were not read: what the log has as the
/// checksum of a block in one is that of its place.
pub const UNREAD: &str = "unread";

/// Setting that says whether the periodic work of a mount moves or removes files.
pub const POLICY: &str = "policy";
/// Setting with the tags of a node, with commas between.
pub const TAGS: &str = "tags";

/// Setting that says in which tier the tensors of arriving files are stored.
pub const ARRIVE: &str = "arrive";
/// Setting of directories: the element type of arriving files that no format describes.
pub const DTYPE: &str = "dtype";
/// Setting of directories: the shape of such files without its first dimension.
pub const ROW: &str = "row";
/// Setting of directories: the number of elements of which blocks of arriving tensors hold whole multiples.
pub const HEAD_DIM: &str = "head_dim";
/// Setting of directories: the length of the blocks of arriving tensors.
pub const BLOCK_BYTES: &str = "block_bytes";
/// Setting of directories: the number of the last rows of a tensor that stay exact.
pub const TAIL: &str = "tail";
/// Setting of directories: the tiers of the rows further back.
pub const BACK: &str = "back";
/// Setting that says whether the policy moves a tensor as a whole, or by stretches of blocks.
pub const UNIT: &str = "unit";
/// Mark of a file that the settings for arriving files have been applied to: they apply to what is appended to it too.
pub const ARRIVED: &str = "arrived";

/// Setting of a joined file: the nodes of its sources, each with a colon and the number of its objects, with commas
/// between.
pub const JOINED: &str = "joined";

/// Keys that few nodes have, and of which all nodes are asked for. The thresholds follow them.
const RARE_KEYS: [&str; 12] = [
    RECOGNIZE_AGAIN,
    DATA_FILES,
    SHARDS,
    TAGS,
    POLICY,
    ARRIVE,
    DTYPE,
    HEAD_DIM,
    BLOCK_BYTES,
    BACK,
    UNIT,
    JOINED,
];
const RARE_COUNT: usize = RARE_KEYS.len() + THRESHOLDS.len();

/// The keys of which one must be set somewhere for files to arrive in another way than by default.
pub(super) const OF_ARRIVALS: [&str; 5] = [ARRIVE, DTYPE, HEAD_DIM, BLOCK_BYTES, BACK];

/// The settings of all nodes.
#[derive(Debug, Default)]
pub(in crate::store) struct Settings {
    /// By node and key. One map, because many nodes have one setting each, and a map with one entry
    /// takes half a kilobyte.
    pub(super) all: ByNode<'static>,
    /// The nodes with a setting of each rare key.
    pub(super) rare: [BTreeSet<EntryId>; RARE_COUNT],
    /// The objects of joined files.
    pub(super) shared: SharedObjects,
}

impl Settings {
    /// The thresholds, each with the nodes that have their own.
    pub(super) fn thresholds(&self) -> impl Iterator<Item = (&'static Threshold, &BTreeSet<EntryId>)> {
        THRESHOLDS.iter().zip(self.rare.iter().skip(RARE_KEYS.len()))
    }
}

pub(super) type ByNode<'a> = BTreeMap<(EntryId, Cow<'a, str>), Box<str>>;

/// The place of a key among the rare ones.
pub(super) fn rare(key: &str) -> Option<usize> {
    let thresholds = THRESHOLDS.iter().map(|threshold| threshold.name);
    RARE_KEYS.into_iter().chain(thresholds).position(|rare| rare == key)
}
