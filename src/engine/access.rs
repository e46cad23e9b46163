//! How much tensors are used.

use std::sync::Arc;

use crate::format::log::access::History;
use crate::store::Object;
use crate::store::Ticks;

/// How much a file is used: as much as its most used block, because its blocks are moved
/// together, and a block that is used must not lose precision with others.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Heat {
    /// The most accesses of a block.
    pub count: u32,
    /// The begin of the tick of the last access, in seconds since 1970; 0 for none.
    pub last_access: u64,
    /// The highest score of a block, 0 to 1000.
    pub score: f64,
}

impl Heat {
    /// That of the blocks of objects that were made at a time, in seconds since 1970.
    pub fn of(objects: &[Arc<Object>], created_at: u64, ticks: &Ticks) -> Heat {
        let now = ticks.now();
        let mut heat = Heat { score: History::new(ticks.of(created_at)).score(now), ..Heat::default() };
        for object in objects {
            object.accesses.each_used(object.layout().blocks(), |_, history| {
                heat.count = heat.count.max(history.count);
                heat.last_access = heat.last_access.max(ticks.begins(history.last));
                heat.score = heat.score.max(history.score(now));
            });
        }
        heat
    }
}
