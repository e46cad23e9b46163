//! Access statistics of tensors.

use std::ops::Range;
use std::sync::Arc;

use crate::format::log::access::History;
use crate::store::{Collection, Node, Object, State, Ticks};

/// Access statistics of a file or of a stretch of its blocks, which are those of the hottest block: blocks that are moved
/// together must not lose precision while one of them is used.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Heat {
    /// The access count of the hottest block.
    pub count: u32,
    /// The start of the tick of the last access, in seconds since 1970; 0 if never.
    pub last_access: u64,
    /// The highest score of a block, 0 to 1000.
    pub score: f64,
}

/// The scale of the scores of a file.
struct Scale<'a> {
    ticks: &'a Ticks,
    now: u32,
    share: f32,
    unused: History,
}

impl<'a> Scale<'a> {
    fn of(collection: &'a Collection, state: &State, node: &Node) -> Scale<'a> {
        let (ticks, entry) = (collection.ticks(), &node.entry);
        let share = collection.thresholds_of(state, entry.id).ema_share as f32;
        Scale { ticks, now: ticks.now(), share, unused: History::new(ticks.of(entry.created_at)) }
    }

    fn unused(&self) -> Heat {
        Heat { score: self.unused.score(self.now, self.share), ..Heat::default() }
    }

    fn hotter(&self, heat: Heat, history: History) -> Heat {
        Heat {
            count: heat.count.max(history.count),
            last_access: heat.last_access.max(self.ticks.begins(history.last)),
            score: heat.score.max(history.score(self.now, self.share)),
        }
    }
}

impl Heat {
    /// The statistics of a file with these objects.
    pub fn of(collection: &Collection, state: &State, node: &Node, objects: &[Arc<Object>]) -> Heat {
        let scale = Scale::of(collection, state, node);
        let mut heat = scale.unused();
        for object in objects {
            object.accesses.turn_back(scale.now);
            object.accesses.each_used(object.layout().blocks(), |_, history| {
                heat = scale.hotter(heat, history);
            });
        }
        heat
    }

    /// The statistics of each of the given stretches of an object, which are in order.
    pub(super) fn of_stretches(
        collection: &Collection,
        state: &State,
        node: &Node,
        object: &Object,
        stretches: &[Range<u32>],
    ) -> Vec<Heat> {
        let scale = Scale::of(collection, state, node);
        let mut heats = vec![scale.unused(); stretches.len()];
        object.accesses.turn_back(scale.now);
        object.accesses.each_used(object.layout().blocks(), |block, history| {
            let place = stretches.partition_point(|stretch| stretch.end <= block);
            if let Some(heat) = heats.get_mut(place) {
                *heat = scale.hotter(*heat, history);
            }
        });
        heats
    }
}
