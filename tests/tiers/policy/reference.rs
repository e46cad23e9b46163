//! The policy against a simulation that was written from the documents alone.

use proptest::prelude::*;

use tierfs::engine::policy::{BlockKey, Tensor, plan};
use tierfs::format::log::access::History;
use tierfs::model::{Loss, ObjectId, Thresholds, Tier};
use tierfs::store::Rules;

const TICK: u64 = 600;
const BEGIN: u64 = 1_700_000_400;
/// The tiers from the most precise to the least.
pub const TIERS: [Tier; 5] = [Tier::Exact, Tier::Q8, Tier::Q7, Tier::Q5, Tier::Q3];

/// A tensor of the simulation, or a stretch of one. Times are in ticks.
#[derive(Debug)]
pub struct Simulated {
    /// The place in [`TIERS`].
    pub tier: usize,
    pub since: u64,
    /// The moments of its uses.
    pub uses: Vec<u64>,
    pub has_source: bool,
    /// The lowest tier that the consent allows; `None` for no consent.
    pub consent: Option<usize>,
    pub floor: usize,
    pub limits: Thresholds,
}

impl Simulated {
    /// The score by its definition: the average of the accesses a tick, and the ticks with one among the last 64.
    fn score(&self, now: u64) -> f64 {
        let share = f64::from(self.limits.ema_share as f32);
        let (mut average, mut last) = (0.0, 0);
        for at in &self.uses {
            average = share / (at - last).max(1) as f64 + (1.0 - share) * average;
            last = *at;
        }
        let decayed = average * (1.0 - share).powi((now - last) as i32);
        let mut ticks: Vec<u64> = self.uses.iter().copied().chain([0]).filter(|at| now - at < 64).collect();
        ticks.dedup();
        ticks.sort_unstable();
        ticks.dedup();
        700.0 * decayed + 300.0 * ticks.len() as f64 / 64.0 / (now.max(1) as f64).sqrt()
    }

    pub fn step(&mut self, now: u64) {
        let score = self.score(now);
        let Thresholds { down_below, up_above, hold, .. } = self.limits;
        let below = self.tier + 1;
        let may_be_rounded = self.has_source || self.consent.is_some_and(|lowest| below <= lowest);
        let is_held = ((now - self.since) * TICK) < hold as u64;
        if score < down_below && !is_held && below <= self.floor && may_be_rounded {
            (self.tier, self.since) = (below, now);
        } else if score > up_above.max(down_below) && self.tier > 0 && self.has_source {
            (self.tier, self.since) = (self.tier - 1, now);
        }
    }
}

fn any_simulated() -> impl Strategy<Value = (Simulated, Vec<u8>)> {
    let limits = (0.0..200.0_f64, 150.0..900.0_f64, 0..20_000_u64, 5..100_u32);
    let uses = prop::collection::vec(prop_oneof![4 => Just(0_u8), 1 => 1..4_u8], 150);
    (limits, any::<bool>(), prop::option::of(1..5_usize), 1..5_usize, uses).prop_map(
        |((down_below, up_above, hold, share), has_source, consent, floor, uses)| {
            let ema_share = f64::from(share) / 100.0;
            let limits =
                Thresholds { down_below, up_above, hold: hold as f64, ema_share, ..Thresholds::default() };
            (Simulated { tier: 0, since: 0, uses: Vec::new(), has_source, consent, floor, limits }, uses)
        },
    )
}

/// Each second one is a stretch of the object of the one before.
fn planned(of: &Simulated, id: u32) -> Tensor {
    Tensor {
        key: BlockKey { collection: 1, object: ObjectId(u128::from(id / 2)), index: id % 2 * 64 },
        tier: Tier::Exact,
        blocks: 1,
        elements: 1 << 16,
        width: 4,
        since: BEGIN,
        score: 0.0,
        last_access: 0,
        can_be_packed: false,
        can_be_encoded: true,
        loss: of.consent.map_or(Loss::Deny, |lowest| Loss::DownTo(TIERS[lowest])),
        floor: TIERS[of.floor],
        thresholds: of.limits,
        has_exact_source: of.has_source,
        is_outside: false,
        can_be_absent: false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn tensors_are_in_the_tiers_that_the_simulation_says_after_every_tick(
        mut all in prop::collection::vec(any_simulated(), 1..6)
    ) {
        let mut tensors: Vec<Tensor> = (1..).zip(&all).map(|(id, (of, _))| planned(of, id)).collect();
        let first = (BEGIN / TICK) as u32;
        let mut histories = vec![History::new(first); tensors.len()];
        for tick in 0..150_u64 {
            let (now, at) = (BEGIN + tick * TICK, first + tick as u32);
            for (((of, uses), tensor), history) in all.iter_mut().zip(&mut tensors).zip(&mut histories) {
                let share = tensor.thresholds.ema_share as f32;
                for _ in 0..uses[tick as usize] {
                    of.uses.push(tick);
                    *history = history.accessed(at, share);
                    tensor.last_access = now;
                }
                tensor.score = history.score(at, share);
                prop_assert!((tensor.score - of.score(tick)).abs() < 0.01, "{} {}", tensor.score, of.score(tick));
                // A score this near to a threshold may be on either side of it.
                for limit in [tensor.thresholds.down_below, tensor.thresholds.up_above] {
                    prop_assume!((tensor.score - limit).abs() > 0.01);
                }
            }
            for step in plan(&tensors, &Rules::default(), true, now) {
                let tensor = tensors.iter_mut().find(|tensor| tensor.key == step.key).unwrap();
                (tensor.tier, tensor.since) = (step.to, now);
            }
            for ((of, _), tensor) in all.iter_mut().zip(&tensors) {
                of.step(tick);
                prop_assert_eq!(tensor.tier, TIERS[of.tier], "tick {}", tick);
            }
        }
    }
}
