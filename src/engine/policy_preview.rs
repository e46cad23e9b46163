//! The steps that the policy would take if nothing were used.

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::automatic::Candidate;
use crate::engine::policy::{BlockKey, Moment, Move, Tensor};
use crate::engine::stretches::rows_of;
use crate::engine::work::Engine;
use crate::format::log::access::History;
use crate::model::{EntryId, Result, Rows, Tier};
use crate::store::Collection;

/// The time that is looked at has this many passes at most.
const PASSES_MAX: u64 = 96;
/// A tensor's score is that of its hottest block, and the hottest change; so many histories of a tensor are looked at.
const HISTORIES_MAX: usize = 64;

/// A step that the policy would take.
pub struct ForeseenMove {
    pub collection: Arc<Collection>,
    /// The node of the tensor.
    pub node: EntryId,
    /// Its path below the collection.
    pub path: String,
    /// Seconds from now.
    pub after: u64,
    pub from: Tier,
    pub to: Tier,
    /// The first block of the tensor, or of the stretch that moves.
    pub key: BlockKey,
    /// Its rows, if these are not all.
    pub rows: Option<Rows>,
    /// Bytes of its payloads before and after the step. A packed tensor counts as whole.
    pub bytes: [u64; 2],
    pub why: &'static str,
}

impl Engine {
    /// The steps of the policy within `seconds`, in order, if nothing is used and nothing written meanwhile, while `free`
    /// bytes of the disk are free now. The passes are a tick apart, or so far that there are 96 of them, and each moves what
    /// the passes in its time may move. It reads the first block of each tensor that the policy may move.
    pub fn foreseen_moves(&self, free: u64, seconds: u64) -> Result<Vec<ForeseenMove>> {
        let (rules, ticks) = (&self.store.settings().rules, self.store.ticks());
        let now = ticks.seconds();
        let candidates = self.candidates()?;
        let mut tensors: Vec<Tensor> = candidates.iter().map(|candidate| candidate.tensor.clone()).collect();
        self.correct_times(&mut tensors, now);
        let places: HashMap<_, usize> =
            tensors.iter().zip(0..).map(|(tensor, place)| (tensor.key, place)).collect();
        let histories: Vec<Vec<History>> = candidates.iter().map(histories_of).collect();
        let tick = u64::from(rules.tick_seconds).max(1);
        let step = tick.max(seconds / PASSES_MAX);
        let budget = rules.pass_bytes.saturating_mul(step / tick);
        let (mut found, mut free) = (Vec::new(), free);
        for after in (0..=seconds).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            let (now, tick) = (now + after, ticks.of(now + after));
            for (tensor, histories) in tensors.iter_mut().zip(&histories) {
                let share = tensor.thresholds.ema_share as f32;
                tensor.score = histories.iter().map(|history| history.score(tick, share)).fold(0.0, f64::max);
            }
            let mut moved = 0;
            for Move { key, from, to, why } in
                self.moves_of_pass(&candidates, &tensors, true, Moment { free, now })
            {
                let place = places.get(&key).copied().unwrap_or(usize::MAX);
                let (Some(candidate), Some(tensor)) = (candidates.get(place), tensors.get_mut(place)) else {
                    continue;
                };
                // The last tensor may exceed the bytes of a pass.
                if moved > budget {
                    break;
                }
                moved = moved.saturating_add(tensor.bytes_in(Tier::Exact));
                free = free.saturating_add(tensor.freed_by(to));
                (tensor.tier, tensor.since) = (to, now);
                found.push(ForeseenMove {
                    collection: candidate.collection.clone(),
                    node: candidate.target.node,
                    path: candidate.target.path.clone(),
                    key,
                    rows: candidate.target.part.as_deref().and_then(|part| rows_of(&candidate.target, part)),
                    after,
                    from,
                    to,
                    bytes: [from, to].map(|tier| tensor.bytes_in(tier)),
                    why,
                });
            }
        }
        Ok(found)
    }
}

/// The histories of a tensor's blocks, each once, and that of a block that was never used.
fn histories_of(candidate: &Candidate) -> Vec<History> {
    let ticks = candidate.collection.ticks();
    let created_at =
        candidate.collection.state().node(candidate.target.node).map(|node| node.entry.created_at);
    let mut found = vec![History::new(ticks.of(created_at.unwrap_or_default()))];
    for (number, object) in candidate.target.objects.iter().enumerate() {
        let blocks = candidate.target.blocks_of(number, object.layout());
        object.accesses.each_used(blocks.end, |block, history| {
            if blocks.contains(&block) && found.last() != Some(&history) {
                found.push(history);
            }
        });
    }
    let (now, share) = (ticks.now(), candidate.tensor.thresholds.ema_share as f32);
    found.sort_by(|one, other| other.score(now, share).total_cmp(&one.score(now, share)));
    found.dedup();
    found.truncate(HISTORIES_MAX);
    found
}
