//! Moves between tiers by policy: the input of the plan, and its execution.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::access::Heat;
use crate::engine::evict::{Evict, EvictRequest};
use crate::engine::moves::with_container;
use crate::engine::plan_move::MoveRequest;
use crate::engine::policy::{BlockKey, Moment, Move, Tensor, add_moves_for_space, plan};
use crate::engine::reconstruct::setting::Reconstruct;
use crate::engine::reconstruct::{Gives, WAYS};
use crate::engine::refuse::refuse_pinned;
use crate::engine::results::Moved;
use crate::engine::select::{Target, targets};
use crate::engine::settings::{
    Consent, POLICY, allowed_loss, is_automatic, is_moved_by_block, is_moved_by_policy, policy_floor,
};
use crate::engine::stretches::{all_of, count_of, rows_of};
use crate::engine::tails::tail_of;
use crate::engine::work::Engine;
use crate::model::{Aim, ErrorKind, Instant, MoveTo, Progress, Result, Tier, packs};
use crate::store::Collection;
use crate::store::ROOT;
use crate::store::{Event, EventKind, Step};
use crate::store::{Node, Object, OpenObject, State, Verify};

/// Seconds between two passes that reduce q7 to its cap.
const COOL_EVERY: u64 = 60;
/// The most objects that the stretches of a tensor name in all, if they move by their own use.
const PLACES_MAX: u64 = 1 << 18;
/// The longest pause after a step.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// A tensor, or a stretch of one, that may be moved, with the handles to move it.
#[derive(Clone)]
pub(super) struct Candidate {
    pub collection: Arc<Collection>,
    pub target: Target,
    pub tensor: Tensor,
    pub epoch: u64,
}

/// A step of a tensor, or of neighbouring stretches of one.
struct JoinedMove {
    step: Move,
    candidate: Candidate,
    /// The first blocks of the stretches, and their epochs.
    keys: Vec<(BlockKey, u64)>,
}

/// The same moves, with those of neighbouring stretches in one.
fn joined(places: &HashMap<BlockKey, &Candidate>, moves: Vec<Move>) -> Vec<JoinedMove> {
    let steps: HashMap<BlockKey, Tier> = moves.iter().map(|step| (step.key, step.to)).collect();
    let mut taken: HashSet<BlockKey> = HashSet::new();
    // The stretch of the same object that begins with a block and takes the same step.
    let same = |step: &Move, index: u32| {
        let key = BlockKey { index, ..step.key };
        let candidate = places.get(&key).filter(|found| found.tensor.tier == step.from)?;
        (steps.get(&key) == Some(&step.to)).then_some(*candidate)
    };
    let mut found = Vec::new();
    for step in moves {
        let Some(candidate) = places.get(&step.key).copied() else { continue };
        if !taken.insert(step.key) {
            continue;
        }
        let mut one = JoinedMove {
            keys: vec![(step.key, candidate.epoch)],
            candidate: candidate.clone(),
            step: step.clone(),
        };
        let blocks = candidate.target.part.as_ref().and_then(|part| {
            part.iter()
                .zip(0..)
                .find(|(blocks, _)| !blocks.is_empty())
                .map(|(blocks, place)| (blocks.clone(), place))
        });
        if let Some((mut blocks, place)) = blocks {
            while let Some(next) = same(&step, blocks.end).filter(|next| taken.insert(next.tensor.key)) {
                blocks.end = next.end_of_part(place);
                one.keys.push((next.tensor.key, next.epoch));
            }
            if let Some(slot) = one.candidate.target.part.as_mut().and_then(|part| part.get_mut(place)) {
                *slot = blocks;
            }
        }
        found.push(one);
    }
    found
}

/// The use of a tensor, or of a part of it.
struct HeatOf {
    part: Option<Vec<Range<u32>>>,
    heat: Heat,
}

/// Whether each stretch of a tensor can be a candidate, which names all of its objects. Others move as a whole.
fn has_few_stretches(target: &Target) -> bool {
    let stretches: u64 = target.objects.iter().map(|object| count_of(object.layout())).sum();
    stretches.saturating_mul(target.objects.len() as u64) <= PLACES_MAX
}

/// The stretches of a tensor.
fn parts_of(collection: &Collection, state: &State, node: &Node, target: &Target) -> Vec<HeatOf> {
    let mut found = Vec::new();
    for (number, object) in target.objects.iter().enumerate() {
        let stretches: Vec<Range<u32>> = all_of(object.layout()).collect();
        let heats = Heat::of_stretches(collection, state, node, object, &stretches);
        for (stretch, heat) in stretches.into_iter().zip(heats) {
            let mut part = vec![0..0; target.objects.len()];
            if let Some(slot) = part.get_mut(number) {
                *slot = stretch;
            }
            found.push(HeatOf { part: Some(part), heat });
        }
    }
    found
}

/// Has the kernel drop its pages of tensors that are moved by block: the next read of each, also by a mapping, then reaches
/// the daemon and counts.
fn show_reads(candidates: &[Candidate], changed: &mut dyn FnMut(&Arc<Collection>, Moved)) {
    let by_block = candidates.iter().filter(|candidate| candidate.target.part.is_some());
    let mut by_block: Vec<&Candidate> = by_block.collect();
    by_block.dedup_by_key(|candidate| (candidate.tensor.key.collection, candidate.target.node));
    for candidate in by_block {
        let nodes = with_container(&candidate.collection.state(), candidate.target.node);
        changed(&candidate.collection, Moved { nodes: nodes.into_iter().collect(), ..Moved::default() });
    }
}

/// Pauses after each step as long as the step took, so that other work comes first.
struct Yielding<'a> {
    progress: &'a dyn Progress,
    since: parking_lot::Mutex<Instant>,
    moved: AtomicU64,
}

impl Progress for Yielding<'_> {
    fn advance(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        self.progress.advance(bytes);
        let mut since = self.since.lock();
        std::thread::sleep(since.elapsed().min(PAUSE_MAX));
        *since = Instant::now();
    }

    fn is_cancelled(&self) -> bool {
        self.progress.is_cancelled()
    }
}

impl Candidate {
    /// The end of its blocks of an object.
    fn end_of_part(&self, object: usize) -> u32 {
        self.target.part.as_ref().and_then(|part| part.get(object)).map_or(u32::MAX, |blocks| blocks.end)
    }
}

/// Whether some node of a collection has the policy.
fn has_policy(state: &State) -> bool {
    state.set_nodes(POLICY.name).any(|(_, value)| is_automatic(value))
}

impl Engine {
    /// Whether there may be work: an open collection has the policy, or tails.
    pub fn has_automatic(&self) -> bool {
        let collections = self.store.open_collections();
        let has_work = |state: &State| has_policy(state) || state.has_tails();
        collections.iter().any(|collection| has_work(&collection.state()))
    }

    /// Moves the tensors that the plan selects, in open collections with the policy `auto`, and those that make room
    /// where fewer than `free_min` of `free` bytes are free, and rows behind the tails of others. Passes to `changed` the
    /// nodes whose bytes change. Returns how many tensors were moved; durable when it returns.
    pub fn move_automatically(
        &self,
        free: u64,
        progress: &dyn Progress,
        changed: &mut dyn FnMut(&Arc<Collection>, Moved),
    ) -> Result<u64> {
        let rules = &self.store.settings().rules;
        let now = self.store.ticks().seconds();
        let candidates = self.candidates()?;
        let mut tensors: Vec<Tensor> = candidates.iter().map(|candidate| candidate.tensor.clone()).collect();
        self.correct_times(&mut tensors, now);
        let may_cool = {
            let cooled = self.automatic.lock().cooled;
            now >= cooled.saturating_add(COOL_EVERY) || now < cooled
        };
        let moves = self.moves_of_pass(&candidates, &tensors, may_cool, Moment { free, now });
        if may_cool && moves.iter().any(|step| step.from == Tier::Q7 && step.to == Tier::Q5) {
            self.automatic.lock().cooled = now;
        }
        let places: HashMap<_, _> =
            candidates.iter().map(|candidate| (candidate.tensor.key, candidate)).collect();
        let moves = joined(&places, moves);
        let (since, moved) = (parking_lot::Mutex::new(Instant::now()), AtomicU64::new(0));
        let yielding = Yielding { progress, since, moved };
        let mut done = 0;
        for JoinedMove { step, candidate, keys } in moves {
            let candidate = &candidate;
            if yielding.moved.load(Ordering::Relaxed) > rules.pass_bytes {
                break;
            }
            let mut moved = Moved::default();
            let taken = self.take_step(candidate, &step, &yielding, &mut moved);
            let has_moved = moved.blocks > 0;
            if has_moved {
                changed(&candidate.collection, moved);
            }
            match taken {
                Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
                Ok(()) if has_moved => done += 1,
                came_to_nothing => {
                    if let Err(error) = came_to_nothing {
                        self.tell(candidate, &step, EventKind::Refusal, &error.to_string());
                    }
                    let mut automatic = self.automatic.lock();
                    automatic.stuck.extend(keys.iter().map(|(key, epoch)| ((*key, step.to), *epoch)));
                }
            }
        }
        show_reads(&candidates, changed);
        Ok(done + self.cool_tails(&yielding, changed)?)
    }

    /// The moves of a pass: those of the plan, then those that make room. A step that came to nothing is left out until its
    /// tensor changes.
    pub(super) fn moves_of_pass(
        &self,
        candidates: &[Candidate],
        tensors: &[Tensor],
        may_cool: bool,
        moment: Moment,
    ) -> Vec<Move> {
        let rules = &self.store.settings().rules;
        let epochs: HashMap<BlockKey, u64> =
            candidates.iter().map(|candidate| (candidate.tensor.key, candidate.epoch)).collect();
        let stuck = self.automatic.lock().stuck.clone();
        let may_go = |key: BlockKey, to: Tier| {
            stuck.get(&(key, to)).is_none_or(|stuck| Some(stuck) != epochs.get(&key))
        };
        let mut moves = plan(tensors, rules, may_cool, moment.now);
        moves.retain(|step| may_go(step.key, step.to));
        add_moves_for_space(&mut moves, tensors, rules, moment, &may_go);
        moves
    }

    /// Corrects times of a clock that was ahead: they must not keep a tensor in its tier until they come.
    pub(super) fn correct_times(&self, tensors: &mut [Tensor], now: u64) {
        let begun = {
            let mut automatic = self.automatic.lock();
            let begun = automatic.begun.filter(|begun| *begun <= now).unwrap_or(now);
            automatic.begun = Some(begun);
            begun
        };
        for tensor in tensors.iter_mut() {
            if tensor.since > now.saturating_add(tensor.thresholds.hold as u64) {
                tensor.since = begun;
            }
        }
    }

    fn is_stuck(&self, key: BlockKey, to: Tier, epoch: u64) -> bool {
        self.automatic.lock().stuck.get(&(key, to)).is_some_and(|stuck| *stuck == epoch)
    }

    fn take_step(
        &self,
        candidate: &Candidate,
        step: &Move,
        progress: &dyn Progress,
        moved: &mut Moved,
    ) -> Result<()> {
        let (collection, node) = (&candidate.collection, candidate.target.node);
        match step.to {
            Tier::Absent => self.evict(
                collection,
                node,
                EvictRequest { what: Evict::Stored, consent: Consent::AsSet, user: None },
                progress,
                moved,
            )?,
            tier => {
                let aim = match (step.from, tier) {
                    (_, Tier::Packed) => Aim::Pack,
                    (Tier::Packed, Tier::Exact) => Aim::Unpack,
                    _ => Aim::Tier(tier),
                };
                let request = MoveRequest { to: MoveTo::all(aim), consent: Consent::AsSet, rows: None };
                match candidate.target.part.as_deref() {
                    None => self.set_tier(collection, node, request, progress, moved)?,
                    Some(_) => self.move_part(collection, &candidate.target, aim, progress, moved)?,
                }
            }
        }
        if moved.blocks > 0 {
            let text = format!("{} blocks, score {:.0}", moved.blocks, candidate.tensor.score);
            self.tell(candidate, step, EventKind::Migration, &text);
        }
        Ok(())
    }

    fn tell(&self, candidate: &Candidate, step: &Move, kind: EventKind, text: &str) {
        let path = format!("{}/{}", candidate.collection.path(), candidate.target.path);
        let rows = candidate.target.part.as_deref().and_then(|part| rows_of(&candidate.target, part));
        let rows = rows.map_or_else(String::new, |rows| format!("rows {rows}, "));
        let text = format!("{} -> {}, {}: {rows}{text}", step.from, step.to, step.why);
        let moved = Step { from: step.from, to: step.to, bytes: candidate.target.bytes_taken() };
        let step = Some(moved).filter(|_| kind == EventKind::Migration);
        let event = Event { kind, path: &path, cause: "policy=auto", text: &text, user: None, step };
        candidate.collection.event_log().note(&event);
    }

    pub(super) fn candidates(&self) -> Result<Vec<Candidate>> {
        let mut found = Vec::new();
        for collection in self.store.open_collections() {
            if has_policy(&collection.state()) && collection.check_writable().is_ok() {
                for target in targets(&collection, ROOT)? {
                    self.add_candidates(&collection, target, &mut found)?;
                }
            }
        }
        // A tensor can have several nodes.
        found.sort_by_key(|candidate| candidate.tensor.key);
        found.dedup_by_key(|candidate| candidate.tensor.key);
        Ok(found)
    }

    /// Adds a tensor, or each of its stretches where these move by their own use, if the policy may move it.
    fn add_candidates(
        &self,
        collection: &Arc<Collection>,
        target: Target,
        found: &mut Vec<Candidate>,
    ) -> Result<()> {
        let parts = {
            let state = collection.state();
            if !is_moved_by_policy(&state, target.node) {
                return Ok(());
            }
            let Some(node) = state.node(target.node) else { return Ok(()) };
            if is_moved_by_block(&state, target.node) && has_few_stretches(&target) {
                parts_of(collection, &state, node, &target)
            } else {
                let heat = Heat::of(collection, &state, node, &target.objects);
                vec![HeatOf { part: None, heat }]
            }
        };
        for HeatOf { part, heat } in parts {
            let target = Target { part, ..target.clone() };
            found.extend(self.candidate(collection, target, heat)?);
        }
        Ok(())
    }

    /// A tensor or a stretch of it, if it may be moved by policy.
    fn candidate(
        &self,
        collection: &Arc<Collection>,
        target: Target,
        heat: Heat,
    ) -> Result<Option<Candidate>> {
        let to = MoveTo { aim: Aim::Tier(Tier::Q8), all: false };
        let is_part = target.part.is_some();
        let (number, floor, loss, how, thresholds) = {
            let state = collection.state();
            let node = target.node;
            let Some(floor) = policy_floor(&state, node) else { return Ok(None) };
            let thresholds = collection.thresholds_of(&state, node);
            let (loss, how) = (allowed_loss(&state, node), Reconstruct::of(&state, node));
            (state.number(), floor, loss, how, thresholds)
        };
        if tail_of(collection, &target).is_some() {
            return Ok(None);
        }
        // The keep list has tables whose rows a person names by block.
        let can_be_encoded = match is_part {
            true => {
                !target.is_view && !target.is_checksummed && to.takes(target.dtype, &target.shape, || None)
            }
            false => target.kept_by(to, self.store.settings()).is_none(),
        };
        let is_busy = |object: &Arc<Object>| {
            object.is_dirty() || collection.check_not_needed(object.entry.id, None).is_err()
        };
        let numbered = || target.objects.iter().enumerate();
        let taken = |number: usize, object: &Arc<Object>| target.blocks_of(number, object.layout());
        let first = numbered().find(|(number, object)| !is_part || !taken(*number, object).is_empty());
        let Some((first, at)) = first.map(|(number, object)| (object.entry.id, taken(number, object).start))
        else {
            return Ok(None);
        };
        // Packing copies the whole of a file in place, so parts are not packed.
        let can_be_packed = !is_part && packs(target.dtype) && target.has_blocks_to_pack();
        let is_fixed = refuse_pinned(collection, &target).is_err() || target.objects.iter().any(is_busy);
        if !(can_be_encoded || can_be_packed) || is_fixed {
            return Ok(None);
        }
        let mut tiers: HashMap<Tier, u64> = HashMap::new();
        let (mut blocks, mut since, mut epoch, mut has_exact_source) = (0, 0, 0, true);
        let is_outside = target.objects.iter().any(|object| object.origin.is_some());
        for (number, object) in numbered() {
            let layout = object.layout();
            let within = taken(number, object);
            if is_part && within.is_empty() {
                continue;
            }
            let open = OpenObject::open(collection, object, Verify::First)?;
            for (index, block) in object.stored_blocks(within, layout) {
                *tiers.entry(block.stored.tier).or_default() += 1;
                blocks += 1;
                since = since.max(u64::from(block.since));
                epoch = epoch.max(block.epoch);
                let mut ways = WAYS.iter().filter(|way| way.gives == Gives::Exact);
                has_exact_source &= ways.any(|way| (way.is_there)(&open, index, &block));
            }
        }
        // Blocks that cannot be encoded stay exact, so the majority determines the tier.
        let tier = tiers.into_iter().max_by_key(|(tier, count)| (*count, std::cmp::Reverse(*tier)));
        let Some((tier, _)) = tier else { return Ok(None) };
        let width = target.dtype.bytes();
        let key = BlockKey { collection: number, object: first, index: at };
        let tensor = Tensor {
            key,
            tier,
            blocks,
            elements: target.bytes_taken() / width,
            width,
            since,
            score: heat.score,
            last_access: heat.last_access,
            // A tensor that packing does not make smaller counts as packed: the next step is a lower tier.
            can_be_packed: can_be_packed && !self.is_stuck(key, Tier::Packed, epoch),
            can_be_encoded,
            loss,
            floor,
            thresholds,
            has_exact_source,
            is_outside,
            can_be_absent: !is_part
                && how.way().is_some_and(|way| match way.gives {
                    Gives::Exact => has_exact_source,
                    // A clone's evicted bytes are still stored, in the bucket: no tier is left.
                    Gives::Stored => false,
                    Gives::Absent | Gives::Seen => true,
                }),
        };
        Ok(Some(Candidate { collection: collection.clone(), target, tensor, epoch }))
    }
}
