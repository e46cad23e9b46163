//! State that the engine keeps in memory from one request to the next.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::engine::policy::BlockKey;
use crate::model::{Instant, Tier};
use crate::store::{Collection, Pin};

/// State of the automatic moves from pass to pass.
#[derive(Default)]
pub(super) struct Automatic {
    /// When q7 was last reduced, in seconds since 1970.
    pub cooled: u64,
    /// When the first pass was, in seconds since 1970, or the first one since the clock went back.
    pub begun: Option<u64>,
    /// Moves that had no effect, by tensor and target, with the newest epoch of the tensor at that time. They
    /// are retried once the tensor has changed.
    pub stuck: HashMap<(BlockKey, Tier), u64>,
}

/// Pinned files that need a check of their copies.
#[derive(Default)]
pub(super) struct PinQueue {
    pub waiting: BTreeMap<(String, Pin), Arc<Collection>>,
    pub failed: BTreeMap<(String, Pin), Instant>,
}
