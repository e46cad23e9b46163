//! Plans alone: tensors are values, and each planned move happens at once.

use proptest::prelude::*;

use tierfs::engine::policy::{BlockKey, Moment, Move, Tensor, add_moves_for_space, plan};
use tierfs::format::log::access::History;
use tierfs::model::{LOSSES, Loss, ObjectId, Thresholds, Tier};
use tierfs::store::{Limit, Rules};

const TICK: u64 = 60;
const HOUR: u64 = 3600;
/// Some time, a whole number of ticks.
const BEGIN: u64 = 1_700_000_040;

fn tensor(id: u128, tier: Tier) -> Tensor {
    Tensor {
        key: BlockKey { collection: 1, object: ObjectId(id), index: 0 },
        tier,
        blocks: 8,
        elements: 1 << 18,
        width: 4,
        since: BEGIN,
        score: 0.0,
        last_access: 0,
        can_be_packed: false,
        can_be_encoded: true,
        loss: Loss::Any,
        floor: Tier::Q3,
        thresholds: Thresholds::default(),
        has_exact_source: false,
        is_outside: false,
        can_be_absent: false,
    }
}

fn apply(tensors: &mut [Tensor], moves: &[Move], now: u64) {
    for step in moves {
        let tensor = tensors.iter_mut().find(|tensor| tensor.key == step.key).unwrap();
        assert_eq!(tensor.tier, step.from);
        (tensor.tier, tensor.since) = (step.to, now);
    }
}

/// The number of accesses of a tensor at a tick.
type Pattern = fn(u64) -> u32;
const BUSY: Pattern = |_| 10;
const BATCH: Pattern = |tick| if tick % 240 == 0 { 3 } else { 0 };
const IDLE: Pattern = |_| 0;

/// Simulates `ticks` ticks; returns the moves with their ticks.
fn open_file(tensors: &mut [Tensor], patterns: &[Pattern], ticks: u64, rules: &Rules) -> Vec<(u64, Move)> {
    let first = (BEGIN / TICK) as u32;
    let mut histories = vec![History::new(first); tensors.len()];
    let mut told = Vec::new();
    for tick in 0..ticks {
        let (now, at) = (BEGIN + tick * TICK, first + tick as u32);
        for ((tensor, history), pattern) in tensors.iter_mut().zip(&mut histories).zip(patterns) {
            let share = tensor.thresholds.ema_share as f32;
            for _ in 0..pattern(tick) {
                *history = history.accessed(at, share);
                tensor.last_access = now;
            }
            tensor.score = history.score(at, share);
        }
        let moves = plan(tensors, rules, true, now);
        apply(tensors, &moves, now);
        told.extend(moves.into_iter().map(|step| (tick, step)));
    }
    told
}

fn tiers(tensors: &[Tensor]) -> Vec<Tier> {
    tensors.iter().map(|tensor| tensor.tier).collect()
}

fn ticks_of(moves: &[(u64, Move)], id: u128) -> Vec<u64> {
    moves.iter().filter(|(_, step)| step.key.object == ObjectId(id)).map(|(tick, _)| *tick).collect()
}

#[test]
fn each_pattern_of_use_ends_in_its_tier_and_plans_are_deterministic() {
    let patterns = [BUSY, BATCH, IDLE, BUSY, BATCH, IDLE];
    let make = || -> Vec<Tensor> {
        let mut tensors: Vec<Tensor> = (0..6).map(|id| tensor(id, Tier::Exact)).collect();
        for tensor in &mut tensors[3..] {
            (tensor.has_exact_source, tensor.can_be_absent, tensor.loss) = (true, true, Loss::Deny);
        }
        tensors
    };
    let mut tensors = make();
    let moves = open_file(&mut tensors, &patterns, 48 * 60, &Rules::default());
    let ended = [Tier::Exact, Tier::Q3, Tier::Q3, Tier::Exact, Tier::Q3, Tier::Absent];
    assert_eq!(tiers(&tensors), ended);
    // One step an hour, the first one an hour after the creation.
    assert_eq!(ticks_of(&moves, 2), [60, 120, 180, 240]);
    // Absent a day after it reached its tier, because it was never used.
    assert_eq!(ticks_of(&moves, 5), [60, 120, 180, 240, 240 + 1440]);
    // Three accesses at once make an average of 0.271, the three at 240 make it 0.388: 700 times that, and less
    // than a point for the window, is below 32 from 21 ticks on.
    assert_eq!(ticks_of(&moves, 1), [60, 120, 180, 261]);
    let mut again = make();
    assert_eq!(open_file(&mut again, &patterns, 48 * 60, &Rules::default()), moves);
    let mut turned = make();
    turned.reverse();
    let mut backwards = patterns;
    backwards.reverse();
    let turned = open_file(&mut turned, &backwards, 48 * 60, &Rules::default());
    assert_eq!(turned, moves, "their order does not matter");
}

#[test]
fn a_reused_tensor_rises_one_tier_per_tick_where_it_is_stored_exactly() {
    let mut tensors = vec![tensor(1, Tier::Q3), tensor(2, Tier::Q3), tensor(3, Tier::Absent)];
    for place in [1, 2] {
        (tensors[place].has_exact_source, tensors[place].can_be_absent) = (true, true);
    }
    let moves = open_file(&mut tensors, &[BUSY, BUSY, BUSY], 20, &Rules::default());
    assert_eq!(tiers(&tensors), [Tier::Q3, Tier::Exact, Tier::Exact]);
    // 10 accesses a tick: the average is 1 - 0.9^10 = 0.65 in the first, 0.88 in the second.
    assert_eq!(ticks_of(&moves, 2), [1, 2, 3, 4]);
    assert_eq!(ticks_of(&moves, 3), [1, 2, 3, 4, 5]);
}

#[test]
fn a_score_between_the_bounds_moves_nothing() {
    for score in [32.0, 100.0, 512.0] {
        let tensor = Tensor { score, has_exact_source: true, ..tensor(1, Tier::Q7) };
        assert_eq!(plan(&[tensor], &Rules::default(), true, BEGIN + 100 * HOUR), []);
    }
    let cold = Tensor { score: 31.9, ..tensor(1, Tier::Q7) };
    assert_eq!(plan(std::slice::from_ref(&cold), &Rules::default(), true, BEGIN + HOUR - 1), []);
    assert_eq!(plan(&[cold], &Rules::default(), true, BEGIN + HOUR)[0].to, Tier::Q5);
}

#[test]
fn an_idle_tensor_is_packed_before_it_loses_precision_and_unpacked_when_it_is_hot() {
    let can = |loss| Tensor { can_be_packed: true, loss, ..tensor(1, Tier::Exact) };
    let mut tensors =
        vec![can(Loss::Any), can(Loss::Deny), Tensor { can_be_encoded: false, ..can(Loss::Any) }];
    (tensors[1].key.object, tensors[2].key.object) = (ObjectId(2), ObjectId(3));
    let rules = Rules { pack_idle: 2 * HOUR, ..Rules::default() };
    let moves = open_file(&mut tensors, &[IDLE, IDLE, IDLE], 6 * 60, &rules);
    assert_eq!(tiers(&tensors), [Tier::Q5, Tier::Packed, Tier::Packed]);
    // Two hours idle, then an hour a step.
    assert_eq!(ticks_of(&moves, 1), [120, 180, 240, 300]);
    assert_eq!(ticks_of(&moves, 2), [120]);
    let mut tensors = vec![Tensor { tier: Tier::Packed, ..can(Loss::Deny) }];
    let moves = open_file(&mut tensors, &[BUSY], 20, &rules);
    assert_eq!((tiers(&tensors), ticks_of(&moves, 1)), (vec![Tier::Exact], vec![1]));
    // An encoded tensor becomes exact, not packed.
    let q8 = Tensor { tier: Tier::Q8, has_exact_source: true, score: 900.0, ..can(Loss::Any) };
    assert_eq!(plan(&[q8], &rules, true, BEGIN)[0].to, Tier::Exact);
    let never = Rules { pack_idle: 0, ..Rules::default() };
    let at = |tensor: Tensor, rules: &Rules| plan(&[tensor], rules, true, BEGIN + 9 * HOUR);
    assert_eq!(at(can(Loss::Any), &never)[0].to, Tier::Q8);
    assert_eq!(at(can(Loss::Deny), &never), []);
    // A full tier moves tensors at once.
    let mut full = rules.clone();
    full.limits.insert(Tier::Exact, Limit { bytes: 1, blocks: 0 });
    let used = Tensor { score: 100.0, last_access: BEGIN, ..can(Loss::Deny) };
    assert_eq!(plan(std::slice::from_ref(&used), &rules, true, BEGIN + HOUR), []);
    assert_eq!(plan(&[used], &full, true, BEGIN + HOUR)[0].to, Tier::Packed);
}

#[test]
fn a_tensor_becomes_absent_only_with_a_low_score_after_a_day_and_if_recoverable() {
    let can = Tensor { can_be_absent: true, score: 3.9, last_access: BEGIN + HOUR, ..tensor(1, Tier::Q3) };
    let at = |tensor: &Tensor, now| plan(std::slice::from_ref(tensor), &Rules::default(), true, now);
    assert_eq!(at(&can, BEGIN + 25 * HOUR)[0].to, Tier::Absent);
    assert_eq!(at(&can, BEGIN + 25 * HOUR - 1), []);
    assert_eq!(at(&Tensor { score: 4.0, ..can.clone() }, BEGIN + 99 * HOUR), []);
    assert_eq!(at(&Tensor { can_be_absent: false, ..can.clone() }, BEGIN + 99 * HOUR), []);
    assert_eq!(at(&Tensor { loss: Loss::Deny, ..can.clone() }, BEGIN + 99 * HOUR), []);
    assert_eq!(at(&Tensor { tier: Tier::Q3x, ..can }, BEGIN + 25 * HOUR)[0].to, Tier::Absent);
}

#[test]
fn a_tensor_stays_at_its_floor_and_within_its_consent() {
    let ends_in = |tensor: Tensor| {
        let mut tensors = vec![tensor];
        open_file(&mut tensors, &[IDLE], 10 * 24 * 60, &Rules::default());
        tensors[0].tier
    };
    let exact = tensor(1, Tier::Exact);
    for floor in [Tier::Q8, Tier::Q7, Tier::Q5, Tier::Q3] {
        assert_eq!(ends_in(Tensor { floor, ..exact.clone() }), floor);
        assert_eq!(ends_in(Tensor { loss: Loss::DownTo(floor), ..exact.clone() }), floor);
        // A tensor that can be made again exactly keeps to the floor as well, and then needs no place at all.
        let source = Tensor { floor, loss: Loss::Deny, has_exact_source: true, ..exact.clone() };
        assert_eq!(ends_in(source.clone()), floor);
        assert_eq!(ends_in(Tensor { can_be_absent: true, ..source }), Tier::Absent);
    }
    // A tensor below its floor rises past the tiers between.
    let used = Tensor { floor: Tier::Q8, has_exact_source: true, score: 900.0, ..tensor(1, Tier::Q5) };
    assert_eq!(plan(&[used], &Rules::default(), true, BEGIN)[0].to, Tier::Q8);
}

#[test]
fn a_full_tier_demotes_its_coldest_tensor_and_takes_none() {
    let warm = |id, score| Tensor { score, ..tensor(id, Tier::Q8) };
    let mut tensors = vec![warm(1, 90.0), warm(3, 50.0), warm(2, 50.0), tensor(4, Tier::Q7)];
    (tensors[3].score, tensors[3].has_exact_source) = (900.0, true);
    let bytes = tensors[0].bytes_in(Tier::Q8);
    // A group of 64 values has 4 + 64 bytes.
    assert_eq!(bytes, (1 << 18) / 64 * 68);
    let limited = |limit| {
        let mut rules = Rules::default();
        rules.limits.insert(Tier::Q8, limit);
        let moves = plan(&tensors, &rules, true, BEGIN);
        moves.iter().map(|step| (step.key.object.0, step.to)).collect::<Vec<_>>()
    };
    assert_eq!(limited(Limit { bytes: 2 * bytes, blocks: 0 }), [(2, Tier::Q7)]);
    assert_eq!(limited(Limit { bytes: 0, blocks: 16 }), [(2, Tier::Q7)]);
    assert_eq!(limited(Limit { bytes, blocks: 0 }), [(2, Tier::Q7), (3, Tier::Q7)]);
    assert_eq!(limited(Limit { bytes: 3 * bytes, blocks: 0 }), []);
    assert_eq!(limited(Limit { bytes: 4 * bytes, blocks: 0 }), [(4, Tier::Q8)]);
}

#[test]
fn the_q7_tier_shrinks_to_its_cap_and_fills_to_a_part_of_it() {
    let used = |id, tier, ago| Tensor { score: 100.0, last_access: BEGIN - ago, ..tensor(id, tier) };
    let mut tensors: Vec<Tensor> = (0..5).map(|id| used(id, Tier::Q7, 100 - 10 * id as u64)).collect();
    tensors[1].loss = Loss::Deny;
    let bytes = tensors[0].bytes_in(Tier::Q7);
    let rules = Rules { warm_byte_cap: 3 * bytes, ..Rules::default() };
    assert_eq!(plan(&tensors, &rules, false, BEGIN), [], "not twice a minute");
    assert_eq!(plan(&tensors, &Rules::default(), true, BEGIN), [], "there is no cap");
    let moves = plan(&tensors, &rules, true, BEGIN);
    // The least recently used tensors, except the one that must not lose precision.
    assert_eq!(
        moves.iter().map(|step| (step.key.object.0, step.to)).collect::<Vec<_>>(),
        [(0, Tier::Q5), (2, Tier::Q5)]
    );
    apply(&mut tensors, &moves, BEGIN);
    assert_eq!(plan(&tensors, &rules, true, BEGIN + 60), []);
    // Used again, they return only where there is room, and where the tensor is stored exactly.
    (tensors[0].last_access, tensors[2].last_access) = (BEGIN + 70, BEGIN + 80);
    tensors[0].has_exact_source = true;
    assert_eq!(plan(&tensors, &rules, true, BEGIN + 120), [], "it is full");
    tensors[3].tier = Tier::Q3;
    tensors[4].tier = Tier::Q3;
    let back = plan(&tensors, &rules, true, BEGIN + 180);
    assert_eq!((back.len(), back[0].key.object.0, back[0].to), (1, 0, Tier::Q7));
    // Two of three are less than 80 %, three are not.
    let fits = Rules { warm_byte_cap: 2 * bytes * 100 / 80 + 2, ..rules.clone() };
    assert_eq!(plan(&tensors, &fits, true, BEGIN + 180).len(), 1);
    let tight = Rules { warm_byte_cap: 2 * bytes * 100 / 80 - 2, ..rules };
    assert_eq!(plan(&tensors, &tight, true, BEGIN + 180), []);
}

#[test]
fn the_coldest_tensors_make_room_until_enough_of_the_disk_is_free() {
    let thresholds = Thresholds { free_min: 1000.0 * 1024.0 * 1024.0, ..Thresholds::default() };
    let hot = |id: u128, score: f64, tier| Tensor { score, thresholds, ..tensor(id, tier) };
    // Each has 1 MiB in exact, so q8 frees 1 MiB less 272 KiB.
    let mut tensors =
        vec![hot(1, 900.0, Tier::Exact), hot(2, 300.0, Tier::Exact), hot(3, 100.0, Tier::Exact)];
    tensors.push(Tensor { is_outside: true, ..hot(4, 0.0, Tier::Exact) });
    tensors.push(Tensor { loss: Loss::Deny, ..hot(5, 50.0, Tier::Exact) });
    tensors.push(Tensor { thresholds: Thresholds::default(), ..hot(6, 60.0, Tier::Exact) });
    let nothing = BlockKey { collection: 9, ..tensors[0].key };
    let steps = |free_kib: u64, stuck: BlockKey| -> Vec<(u128, Tier)> {
        let mut moves = Vec::new();
        let moment = Moment { free: free_kib << 10, now: BEGIN };
        add_moves_for_space(&mut moves, &tensors, &Rules::default(), moment, &|key, _| key != stuck);
        moves.iter().map(|step| (step.key.object.0, step.to)).collect()
    };
    assert_eq!(steps(1000 << 10, nothing), []);
    assert_eq!(steps((1000 << 10) - 1, nothing), [(3, Tier::Q8)]);
    assert_eq!(steps((1000 << 10) - 752, nothing), [(3, Tier::Q8)]);
    assert_eq!(steps((1000 << 10) - 753, nothing), [(3, Tier::Q8), (2, Tier::Q8)]);
    assert_eq!(steps(0, nothing), [(3, Tier::Q8), (2, Tier::Q8), (1, Tier::Q8)]);
    // A step that came to nothing frees nothing.
    assert_eq!(steps((1000 << 10) - 1, tensors[2].key), [(2, Tier::Q8)]);
    // Moves of the pass itself count.
    let key = tensors[0].key;
    let mut moves = vec![Move { key, from: Tier::Exact, to: Tier::Q8, why: "it is not used" }];
    let moment = Moment { free: (1000 << 20) - 1, now: BEGIN };
    add_moves_for_space(&mut moves, &tensors, &Rules::default(), moment, &|_, _| true);
    assert_eq!(moves.len(), 1);
}

const TIERS: [Tier; 7] = [Tier::Exact, Tier::Q8, Tier::Q7, Tier::Q5, Tier::Q3, Tier::Q3x, Tier::Absent];

/// The tiers in the order of the steps of tensors that are not packed.
const STEPS: [Tier; 6] = [Tier::Exact, Tier::Q8, Tier::Q7, Tier::Q5, Tier::Q3, Tier::Absent];

fn any_thresholds() -> impl Strategy<Value = Thresholds> {
    (0..7200_u64, 0..90_000_u64, 0.0..100.0_f64, 50.0..1000.0_f64).prop_map(
        |(hold, idle, down_below, up_above)| Thresholds {
            hold: hold as f64,
            idle: idle as f64,
            down_below,
            up_above,
            ..Thresholds::default()
        },
    )
}

fn any_tensor() -> impl Strategy<Value = Tensor> {
    let lossy = (0..7_usize).prop_map(|value| Loss::parse(LOSSES[value]));
    let flags = (lossy, (1..6_usize).prop_map(|tier| TIERS[tier]), any::<bool>(), any::<bool>());
    let times = (0..3_u64, 0..200_000_u64, 0..200_000_u64);
    (0..7_usize, 1..2000_u64, times, (0.0..1000.0_f64, any_thresholds()), flags).prop_map(
        |(tier, elements, (blocks, since, last), (score, thresholds), (loss, floor, exact, absent))| Tensor {
            tier: TIERS[tier],
            elements: elements * 64,
            blocks,
            since: BEGIN + since,
            score: if score < 500.0 { score / 12.0 } else { score },
            last_access: BEGIN + last,
            loss,
            floor,
            thresholds,
            has_exact_source: exact,
            can_be_absent: absent,
            ..tensor(0, Tier::Exact)
        },
    )
}

fn any_rules() -> impl Strategy<Value = Rules> {
    let limits = prop::collection::vec((0..5_usize, 0..400_000_u64, 0..9_u64), 0..4);
    (limits, 0..400_000_u64).prop_map(|(limits, cap)| {
        let limits = limits.into_iter().map(|(tier, bytes, blocks)| (TIERS[tier], Limit { bytes, blocks }));
        let limits = limits.collect();
        Rules { warm_byte_cap: cap, limits, ..Rules::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn plans_never_give_up_a_last_exact_copy_against_the_settings(
        mut tensors in prop::collection::vec(any_tensor(), 1..12),
        rules in any_rules(),
        scores in prop::collection::vec((0.0..1000.0_f64, 0..7200_u64), 12),
    ) {
        for (id, tensor) in (0..).zip(&mut tensors) {
            tensor.key.object = ObjectId(id);
        }
        let made = tensors.clone();
        let mut now = BEGIN;
        for (score, later) in scores {
            now += later;
            let moves = plan(&tensors, &rules, true, now);
            let place = |tier| STEPS.iter().position(|step| *step == tier);
            for step in &moves {
                let tensor = tensors.iter().find(|tensor| tensor.key == step.key).unwrap();
                let from = place(if step.from == Tier::Q3x { Tier::Q3 } else { step.from }).unwrap();
                let to = place(step.to).unwrap();
                let between = &STEPS[from.min(to) + 1..from.max(to)];
                prop_assert!(between.iter().all(|step| tensor.floor.finer_than(*step)), "a step at a time");
                let is_encoded = step.to != Tier::Absent && !step.to.is_exact();
                prop_assert!(!is_encoded || !tensor.floor.finer_than(step.to), "below the floor");
                let is_allowed = if is_encoded { tensor.loss.allows(step.to) } else { tensor.loss != Loss::Deny };
                prop_assert!(to < from || is_allowed || tensor.has_exact_source);
                prop_assert!(to > from || tensor.has_exact_source, "made of nothing");
                prop_assert!(step.to != Tier::Absent || tensor.can_be_absent);
            }
            let mut keys: Vec<_> = moves.iter().map(|step| step.key).collect();
            keys.sort_unstable();
            keys.dedup();
            prop_assert_eq!(keys.len(), moves.len(), "each once");
            apply(&mut tensors, &moves, now);
            let count = tensors.len();
            tensors[(score as usize) % count].score = score;
        }
        for (before, after) in made.iter().zip(&tensors) {
            if before.loss == Loss::Deny && !before.has_exact_source {
                prop_assert_eq!(before.tier, after.tier);
            }
        }
    }
}
