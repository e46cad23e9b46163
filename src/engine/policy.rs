//! The policy of moves between tiers: computes a plan from plain values.
//!
//! A tensor moves one step in a pass: down when it is not used and has been in its tier for a while, up when it is used
//! and has a more precise source. The first step down packs the tensor, which loses nothing; tensors that may not lose
//! precision never move further. The coldest tensors come first, those of equal score by the key of their first block,
//! so that the same history gives the same moves.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::codec;
use crate::model::{GROUP_LEN, Loss, ObjectId, Thresholds, Tier};
use crate::store::Rules;

/// Tensors with a lower score can become absent.
pub const ABSENT_BELOW: f64 = 4.0;
/// The tiers in order of the steps, the most precise first. Packed tensors are exact, so a step between
/// these two needs no consent and no other source.
const STEPS: [Tier; 7] = [Tier::Exact, Tier::Packed, Tier::Q8, Tier::Q7, Tier::Q5, Tier::Q3, Tier::Absent];
/// Tensors return to q7 while it holds less than this share of `warm_byte_cap`.
const WARM_PERCENT: u128 = 80;

/// A block of the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockKey {
    /// The number of its collection.
    pub collection: u32,
    /// Its object.
    pub object: ObjectId,
    /// Its index in the object.
    pub index: u32,
}

/// A tensor that may be moved by policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    /// Its first block.
    pub key: BlockKey,
    /// The tier of most of its blocks.
    pub tier: Tier,
    pub blocks: u64,
    pub elements: u64,
    pub width: u64,
    /// When its last block entered the tier, in seconds since 1970.
    pub since: u64,
    /// Score of use, 0 to 1000.
    pub score: f64,
    /// Time of the last access, in seconds since 1970; 0 if never.
    pub last_access: u64,
    /// Whether it can be packed.
    pub can_be_packed: bool,
    /// Whether it is one that may lose precision at all.
    pub can_be_encoded: bool,
    /// The permanent loss of precision that is allowed.
    pub loss: Loss,
    /// The lowest tier that it may be encoded in.
    pub floor: Tier,
    pub thresholds: Thresholds,
    /// Whether it has an exact source besides the payloads.
    pub has_exact_source: bool,
    /// Whether its exact bytes lie in a file outside the store, so that a lower tier takes more of the store's disk.
    pub is_outside: bool,
    /// Whether it stays readable when it becomes absent.
    pub can_be_absent: bool,
}

/// A planned step of a tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct Move {
    pub key: BlockKey,
    pub from: Tier,
    pub to: Tier,
    /// The reason, for people.
    pub why: &'static str,
}

impl Tensor {
    /// Size of its payloads in a tier, in bytes. Packed ones count as whole: their size is not known before.
    pub fn bytes_in(&self, tier: Tier) -> u64 {
        let group = GROUP_LEN as u64;
        match tier {
            Tier::Absent => 0,
            Tier::Exact | Tier::Packed => self.elements.saturating_mul(self.width),
            _ => {
                let bytes = codec::payload_len(tier, GROUP_LEN).unwrap_or_default() as u64;
                self.elements.div_ceil(group).saturating_mul(bytes)
            }
        }
    }

    /// The bytes that a step down frees. Packing usually saves a quarter.
    pub fn freed_by(&self, to: Tier) -> u64 {
        let bytes = |tier| match tier {
            Tier::Packed => self.bytes_in(tier) / 4 * 3,
            _ => self.bytes_in(tier),
        };
        bytes(self.tier).saturating_sub(bytes(to))
    }

    /// Whether users see it in a tier.
    fn is_in(&self, tier: Tier) -> bool {
        self.tier == tier || (self.tier == Tier::Packed && tier == Tier::Exact)
    }

    fn place(&self) -> usize {
        let tier = if self.tier == Tier::Q3x { Tier::Q3 } else { self.tier };
        STEPS.iter().position(|step| *step == tier).unwrap_or(0)
    }

    /// The next tier down, if it may ever move there. Tensors that are not packed skip that step, and all skip the tiers
    /// below their floor.
    fn below(&self, rules: &Rules) -> Option<Tier> {
        let packs = rules.pack_idle > 0 && self.can_be_packed;
        let is_step = |step: &Tier| match step {
            Tier::Packed => packs,
            Tier::Absent => true,
            step => !self.floor.finer_than(*step),
        };
        let next = STEPS.iter().skip(self.place() + 1).copied().find(is_step)?;
        let may_go = match next {
            Tier::Packed => true,
            // The eviction itself needs a consent where it is not exact.
            Tier::Absent => {
                self.can_be_absent
                    && self.can_be_encoded
                    && (self.loss != Loss::Deny || self.has_exact_source)
            }
            _ => self.can_be_encoded && (self.loss.allows(next) || self.has_exact_source),
        };
        may_go.then_some(next)
    }

    /// The next tier up that is not below the floor, if it has a source of that precision. An encoded tensor becomes exact,
    /// not packed.
    fn above(&self) -> Option<Tier> {
        if self.tier == Tier::Packed {
            return Some(Tier::Exact);
        }
        let mut steps = STEPS.iter().take(self.place()).rev().copied();
        let next = steps.find(|step| *step != Tier::Packed && !self.floor.finer_than(*step))?;
        self.has_exact_source.then_some(next)
    }

    /// The next tier down that it may move to now. Only tensors that were idle for long are packed or become
    /// absent.
    fn below_now(&self, rules: &Rules, now: u64) -> Option<Tier> {
        let used = self.last_access.max(self.since);
        self.below(rules).filter(|next| match next {
            Tier::Packed => now >= used.saturating_add(rules.pack_idle),
            Tier::Absent => {
                self.score < ABSENT_BELOW && now >= used.saturating_add(self.thresholds.idle as u64)
            }
            _ => true,
        })
    }

    /// The same where its tier holds too much: it is packed without waiting.
    fn below_if_full(&self, rules: &Rules, now: u64) -> Option<Tier> {
        self.below(rules).filter(|next| *next == Tier::Packed).or_else(|| self.below_now(rules, now))
    }

    fn goes_down(&self, rules: &Rules, now: u64) -> Option<Tier> {
        let Thresholds { hold, down_below, .. } = self.thresholds;
        let is_held = now < self.since.saturating_add(hold as u64);
        self.below_now(rules, now).filter(|_| self.score < down_below && !is_held)
    }

    /// Whether it is used enough to move up. It would come down again at once if it were below the other threshold.
    fn is_hot(&self) -> bool {
        self.score > self.thresholds.up_above.max(self.thresholds.down_below)
    }
}

/// The use of the tiers, and the moves so far.
struct Pass<'a> {
    tensors: &'a [Tensor],
    rules: &'a Rules,
    now: u64,
    held: BTreeMap<Tier, (u64, u64)>,
    has_moved: Vec<bool>,
    moves: Vec<Move>,
}

/// The moves of a pass at `now`, in seconds since 1970. `may_cool` is whether this pass may reduce q7
/// to its cap.
pub fn plan(tensors: &[Tensor], rules: &Rules, may_cool: bool, now: u64) -> Vec<Move> {
    let mut pass = Pass {
        tensors,
        rules,
        now,
        held: BTreeMap::new(),
        has_moved: vec![false; tensors.len()],
        moves: Vec::new(),
    };
    for tensor in tensors {
        pass.hold(tensor, tensor.tier, u64::saturating_add);
    }
    let coldest = coldest_first(tensors);
    for (place, tensor) in &coldest {
        if let Some(to) = tensor.goes_down(rules, now) {
            pass.go(*place, to, "it is not used");
        }
    }
    pass.keep_limits(&coldest);
    if may_cool {
        pass.cool();
    }
    for (place, tensor) in coldest.iter().rev() {
        if let Some(to) = tensor.above().filter(|to| tensor.is_hot() && pass.has_room(tensor, *to)) {
            pass.go(*place, to, "it is used");
        }
    }
    pass.warm();
    pass.moves
}

/// A time, in seconds since 1970, and the bytes that are free on the disk of the store then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    pub free: u64,
    pub now: u64,
}

/// Adds the steps down that make room on the disk, of tensors that `moves` leaves as they are: the coldest first, however
/// much they are used, until as many bytes are free as their `free_min` says. A step that `may_go` refuses is not planned.
pub fn add_moves_for_space(
    moves: &mut Vec<Move>,
    tensors: &[Tensor],
    rules: &Rules,
    moment: Moment,
    may_go: &dyn Fn(BlockKey, Tier) -> bool,
) {
    let mut free = moment.free;
    if tensors.iter().all(|tensor| free >= tensor.thresholds.free_min as u64) {
        return;
    }
    // A tensor that moved up would come down again at once.
    let short = tensors.iter().filter(|tensor| free < tensor.thresholds.free_min as u64);
    let short: HashSet<BlockKey> = short.map(|tensor| tensor.key).collect();
    moves.retain(|step| step.to > step.from || !short.contains(&step.key));
    let planned: HashMap<BlockKey, Tier> = moves.iter().map(|step| (step.key, step.to)).collect();
    for tensor in tensors {
        let freed = planned.get(&tensor.key).map_or(0, |to| tensor.freed_by(*to));
        free = free.saturating_add(freed);
    }
    for (_, tensor) in coldest_first(tensors) {
        if free >= tensor.thresholds.free_min as u64 || tensor.is_outside || planned.contains_key(&tensor.key)
        {
            continue;
        }
        let to = tensor.below_if_full(rules, moment.now).filter(|to| may_go(tensor.key, *to));
        if let Some(to) = to {
            free = free.saturating_add(tensor.freed_by(to));
            moves.push(Move { key: tensor.key, from: tensor.tier, to, why: "the disk is nearly full" });
        }
    }
}

/// The places and tensors, those with the lowest scores first.
fn coldest_first(tensors: &[Tensor]) -> Vec<(usize, &Tensor)> {
    let mut coldest: Vec<(usize, &Tensor)> = tensors.iter().enumerate().collect();
    coldest.sort_by(|(_, one), (_, other)| one.score.total_cmp(&other.score).then(one.key.cmp(&other.key)));
    coldest
}

impl Pass<'_> {
    fn hold(&mut self, tensor: &Tensor, tier: Tier, change: fn(u64, u64) -> u64) {
        let tier = if tier.is_exact() { Tier::Exact } else { tier };
        let (bytes, blocks) = self.held.entry(tier).or_default();
        *bytes = change(*bytes, tensor.bytes_in(tier));
        *blocks = change(*blocks, tensor.blocks);
    }

    fn bytes(&self, tier: Tier) -> u64 {
        self.held.get(&tier).map_or(0, |(bytes, _)| *bytes)
    }

    fn has_moved(&self, place: usize) -> bool {
        self.has_moved.get(place).copied().unwrap_or(true)
    }

    fn go(&mut self, place: usize, to: Tier, why: &'static str) {
        let Some(tensor) = self.tensors.get(place).filter(|_| !self.has_moved(place)) else { return };
        self.hold(tensor, tensor.tier, u64::saturating_sub);
        self.hold(tensor, to, u64::saturating_add);
        self.moves.push(Move { key: tensor.key, from: tensor.tier, to, why });
        if let Some(moved) = self.has_moved.get_mut(place) {
            *moved = true;
        }
    }

    /// Moves the coldest tensors down from tiers over their limit.
    fn keep_limits(&mut self, coldest: &[(usize, &Tensor)]) {
        // The most precise tier first, so that moves from above count below.
        for (tier, limit) in &self.rules.limits {
            for (place, tensor) in coldest {
                let (bytes, blocks) = self.held.get(tier).copied().unwrap_or_default();
                if !limit.is_passed(bytes, blocks) {
                    break;
                }
                if let Some(to) = tensor.below_if_full(self.rules, self.now).filter(|_| tensor.is_in(*tier)) {
                    self.go(*place, to, "its tier holds too much");
                }
            }
        }
    }

    /// Reduces q7 to its cap: the least recently used tensors move to q5.
    fn cool(&mut self) {
        let cap = self.rules.warm_byte_cap;
        for place in self.by_last_access(Tier::Q7) {
            if cap == 0 || self.bytes(Tier::Q7) <= cap {
                break;
            }
            if self.tensors.get(place).is_some_and(|tensor| tensor.below(self.rules) == Some(Tier::Q5)) {
                self.go(place, Tier::Q5, "q7 is over its cap");
            }
        }
    }

    /// Moves tensors that were used since they came to q5 back to q7, while q7 has room.
    fn warm(&mut self) {
        let cap = u128::from(self.rules.warm_byte_cap) * WARM_PERCENT / 100;
        for place in self.by_last_access(Tier::Q5).into_iter().rev() {
            let Some(tensor) = self.tensors.get(place) else { continue };
            let is_wanted = tensor.last_access > tensor.since && tensor.above() == Some(Tier::Q7);
            let after = u128::from(self.bytes(Tier::Q7)) + u128::from(tensor.bytes_in(Tier::Q7));
            if is_wanted && after < cap && self.has_room(tensor, Tier::Q7) {
                self.go(place, Tier::Q7, "it is used, and q7 has room");
            }
        }
    }

    /// The tensors of a tier, the least recently used first.
    fn by_last_access(&self, tier: Tier) -> Vec<usize> {
        let there = self.tensors.iter().enumerate().filter(|(_, tensor)| tensor.tier == tier);
        let mut there: Vec<(usize, &Tensor)> = there.collect();
        there.sort_by_key(|(_, tensor)| (tensor.last_access, tensor.key));
        there.into_iter().map(|(place, _)| place).collect()
    }

    /// Whether a tier stays within its limit with one more tensor.
    fn has_room(&self, tensor: &Tensor, tier: Tier) -> bool {
        let (bytes, blocks) = self.held.get(&tier).copied().unwrap_or_default();
        if tensor.is_in(tier) {
            return true;
        }
        let (bytes, blocks) = (bytes.saturating_add(tensor.bytes_in(tier)), blocks + tensor.blocks);
        let cap = self.rules.warm_byte_cap;
        let is_capped = tier == Tier::Q7 && cap > 0 && bytes > cap;
        !is_capped && !self.rules.limits.get(&tier).is_some_and(|limit| limit.is_passed(bytes, blocks))
    }
}
