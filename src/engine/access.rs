//! Access statistics of tensors.

use std::sync::Arc;

use crate::format::log::access::History;
use crate::store::{Collection, Node, Object, State};

/// Access statistics of a file, which are those of its hottest block. Its blocks are moved together,
/// and a used block must not lose precision with the others.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Heat {
    /// The access count of the hottest block.
    pub count: u32,
    /// The start of the tick of the last access, in seconds since 1970; 0 if never.
    pub last_access: u64,
    /// The highest score of a block, 0 to 1000.
    pub score: f64,
}

impl Heat {
    /// The statistics of a file with these objects.
    pub fn of(collection: &Collection, state: &State, node: &Node, objects: &[Arc<Object>]) -> Heat {
        let (ticks, entry) = (collection.ticks(), &node.entry);
        let share = collection.thresholds_of(state, entry.id).ema_share as f32;
        let now = ticks.now();
        let unused = History::new(ticks.of(entry.created_at));
        let mut heat = Heat { score: unused.score(now, share), ..Heat::default() };
        for object in objects {
            object.accesses.turn_back(now);
            object.accesses.each_used(object.layout().blocks(), |_, history| {
                heat.count = heat.count.max(history.count);
                heat.last_access = heat.last_access.max(ticks.begins(history.last));
                heat.score = heat.score.max(history.score(now, share));
            });
        }
        heat
    }
}
