//! Stores with a clock that the test sets: the engine of a mount, without a kernel.

use std::sync::Arc;

use tierfs::engine::{Engine, Heat, LOSSY, POLICY, UNIT, set_setting, set_threshold};
use tierfs::ingest::{Blocking, Options};
use tierfs::model::{DOWN_BELOW, EMA_SHARE, FREE_MIN, HOLD, MoveTo, Owner, Silent, Thresholds, Tier};
use tierfs::store::ROOT;
use tierfs::store::SaveUsage;
use tierfs::store::SetClock;
use tierfs::store::Verify;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, Open};
use tierfs::store::{Access, Collection, Store};
use tierfs::vfs::open::OpenFiles;

use crate::policy::reference::{Simulated, TIERS};

use crate::fixture::{Numbers, STORE, f32s, find, import, objects, on_each_disk, read, safetensors_file};

const HOUR: u64 = 3600;

struct Held {
    store: Arc<Store>,
    clock: Arc<SetClock>,
    collection: Arc<Collection>,
}

fn hold(disk: &Arc<dyn Disk>, now: u64) -> Held {
    let clock = Arc::new(SetClock::default());
    clock.set(now);
    let store = Store::open(disk.clone(), Access::Write, "").unwrap().with_clock(clock.clone());
    let collection = store.collection_made("t", "c", Owner { uid: 0, gid: 0 }).unwrap();
    Held { store: Arc::new(store), clock, collection }
}

/// A store with a container of `a`, `b` and `norm`, and the time, which begins at the system's clock.
fn made(disk: &Arc<dyn Disk>) -> (Held, u64, Vec<u8>) {
    Store::create(&**disk, STORE).unwrap();
    let now = tierfs::store::now_seconds() / 60 * 60;
    let held = hold(disk, now);
    let mut numbers = Numbers(7);
    let tensors = ["a", "b", "norm"].map(|name| f32s(name, &[256, 300], &mut numbers));
    let bytes = safetensors_file(&tensors);
    import(&held.collection, "m.safetensors", &bytes, &Options::default()).unwrap();
    (held, now, bytes)
}

fn tier(collection: &Arc<Collection>, path: &str) -> Tier {
    let objects = objects(collection, path);
    let tiers: Vec<Tier> = objects
        .iter()
        .flat_map(|object| {
            object
                .blocks
                .read()
                .described(object.layout())
                .map(|(_, block)| block.stored.tier)
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(tiers.windows(2).all(|two| two[0] == two[1]), "{path} is mixed");
    tiers[0]
}

fn look_at(collection: &Arc<Collection>, path: &str) {
    let node = find(collection, path).unwrap().entry.id;
    let open_file = OpenFiles::default().open(collection, node, Verify::First).unwrap();
    open_file.read(0, &mut [0; 4096]).unwrap();
}

fn heat(held: &Held, path: &str) -> Heat {
    let (node, objects) = (find(&held.collection, path).unwrap(), objects(&held.collection, path));
    Heat::of(&held.collection, &held.collection.state(), &node, &objects)
}

/// The tiers of `a`, `b` and `norm` after each hour, while `a` is read in each minute.
fn pass_hours(held: &Held, engine: &Engine, begin: u64, hours: u64) -> Vec<[Tier; 3]> {
    let mut seen = Vec::new();
    for minute in 0..hours * 60 {
        held.clock.set(begin + minute * 60);
        for _ in 0..5 {
            look_at(&held.collection, "a");
        }
        engine.move_automatically(u64::MAX, &Silent, &mut |_, _| ()).unwrap();
        if minute % 60 == 59 {
            seen.push(["a", "b", "norm"].map(|path| tier(&held.collection, path)));
        }
    }
    seen
}

#[test]
fn unused_tensors_are_demoted_and_used_or_pinned_ones_stay() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let (held, now, _) = made(&disk);
    let engine = Engine::new(held.store.clone());
    assert!(!engine.has_automatic());
    for (setting, value) in [(POLICY, "auto:q3"), (LOSSY, "allow")] {
        set_setting(&held.collection, ROOT, &setting, value).unwrap();
    }
    assert!(engine.has_automatic());
    let seen = pass_hours(&held, &engine, now, 6);
    let of_b = [Tier::Packed, Tier::Q8, Tier::Q7, Tier::Q5, Tier::Q3];
    let seen_then = of_b.map(|tier| [Tier::Exact, tier, Tier::Packed]);
    assert_eq!((seen[0], &seen[1..]), ([Tier::Exact; 3], &seen_then[..]));
    let (start, end) = held.store.events().range();
    let mut told = vec![0; (end - start) as usize];
    held.store.events().read(start, &mut told).unwrap();
    let told = String::from_utf8(told).unwrap();
    assert_eq!(told.matches("\"migration\"").count(), 6, "{told}");
    assert!(
        told.contains("exact -> packed, it is not used") && told.contains("packed -> q8, it is not used"),
        "{told}"
    );
}

#[test]
fn thresholds_of_a_directory_and_of_a_tensor_decide_in_place_of_those_of_the_store() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let (held, now, _) = made(&disk);
    let engine = Engine::new(held.store.clone());
    for (setting, value) in [(POLICY, "auto:q3"), (LOSSY, "allow")] {
        set_setting(&held.collection, ROOT, &setting, value).unwrap();
    }
    let of = |path: &str| find(&held.collection, path).unwrap().entry.id;
    let set = |node, threshold, text: &str| set_threshold(&held.collection, node, threshold, text).unwrap();
    let refused = set_threshold(&held.collection, ROOT, &DOWN_BELOW, "1001").unwrap_err();
    assert!(refused.to_string().contains("a number from 0 to 1000"), "{refused}");
    // The directory holds tensors for long; one tensor has a time of its own, and is used.
    set(ROOT, &HOLD, "7d");
    set(of("a"), &HOLD, "2h");
    set(of("a"), &DOWN_BELOW, "1000");
    let seen = pass_hours(&held, &engine, now, 6);
    let of_a: Vec<Tier> = seen.iter().map(|tiers| tiers[0]).collect();
    // It was never unused for an hour, so it is not packed: the first step is to q8.
    assert_eq!(of_a, [Tier::Exact; 6]);
    assert!(seen.iter().all(|tiers| tiers[1..] == [Tier::Exact; 2]), "{seen:?}");
    set(ROOT, &HOLD, "0");
    assert_eq!(pass_hours(&held, &engine, now + 7 * HOUR, 1)[0][1], Tier::Q3);
    // Thresholds are in the log.
    held.collection.sync().unwrap();
    let again = hold(&disk, now + 9 * HOUR);
    let a = find(&again.collection, "a").unwrap().entry.id;
    let state = again.collection.state();
    let kept = again.collection.thresholds_of(&state, a);
    assert_eq!((kept.hold, kept.down_below, kept.up_above), (7200.0, 1000.0, 512.0));
    assert_eq!(again.collection.thresholds_of(&state, ROOT).hold, 0.0);
}

/// The tiers of the stretches of a table, each of which is of one tier.
fn tiers_of_stretches(collection: &Arc<Collection>, path: &str) -> Vec<Tier> {
    let object = objects(collection, path).remove(0);
    let blocks = object.blocks.read();
    let tiers: Vec<Tier> = blocks.described(object.layout()).map(|(_, block)| block.stored.tier).collect();
    assert_eq!(tiers.len(), 256);
    let stretches = tiers.chunks(64);
    stretches
        .inspect(|tiers| assert!(tiers.windows(2).all(|two| two[0] == two[1])))
        .map(|tiers| tiers[0])
        .collect()
}

#[test]
fn the_stretches_of_a_table_are_in_the_tiers_that_the_simulation_says() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    Store::create(&*disk, STORE).unwrap();
    let now = tierfs::store::now_seconds() / 60 * 60;
    let held = hold(&disk, now);
    // 256 blocks of 16 rows. The keep list has the name.
    let [table, other] =
        ["embed", "other"].map(|name| safetensors_file(&[f32s(name, &[4096, 64], &mut Numbers(8))]));
    let options = |tier: &str| Options {
        blocking: Blocking::bytes(4096).unwrap(),
        tier: (tier != "exact").then(|| MoveTo::parse(&format!("{tier}:all")).unwrap()),
        ..Options::default()
    };
    import(&held.collection, "m.safetensors", &table, &options("exact")).unwrap();
    // Without an exact source each step begins with what readers see.
    let mut references = vec![other];
    for tier in ["q8", "q7", "q5"] {
        let (name, before) = (format!("{tier}.safetensors"), references.last().unwrap().clone());
        import(&held.collection, &name, &before, &options(tier)).unwrap();
        references.push(read(&held.collection, &name).unwrap());
    }
    let node = find(&held.collection, "m.safetensors").unwrap().entry.id;
    for (setting, value) in [(POLICY, "auto:q5"), (LOSSY, "allow"), (UNIT, "block")] {
        set_setting(&held.collection, node, &setting, value).unwrap();
    }
    set_threshold(&held.collection, node, &HOLD, "300").unwrap();
    let engine = Engine::new(held.store.clone());
    // The simulation has ticks of ten minutes.
    let limits = Thresholds { hold: 3000.0, ..Thresholds::default() };
    let simulated = |_| Simulated {
        tier: 0,
        since: 0,
        uses: Vec::new(),
        has_source: false,
        consent: Some(4),
        floor: 3,
        limits,
    };
    let mut all: Vec<Simulated> = (0..4).map(simulated).collect();
    let is_used: [fn(u64) -> u64; 4] =
        [|_| 2, |_| 0, |tick| u64::from(tick < 30), |tick| u64::from(tick % 10 == 0)];
    let mut seen = std::collections::BTreeSet::new();
    for tick in 0..120 {
        held.clock.set(now + tick * 60);
        let open_file = OpenFiles::default()
            .open(&held.collection, find(&held.collection, "embed").unwrap().entry.id, Verify::First)
            .unwrap();
        open_file.opened_to_read();
        for (stretch, (of, is_used)) in all.iter_mut().zip(is_used).enumerate() {
            for _ in 0..is_used(tick) {
                of.uses.push(tick);
                open_file.read((stretch as u64 * 64 + 5) * 4096, &mut [0; 256]).unwrap();
            }
        }
        // The import has the time of the system, up to a tick later than the first one here.
        if tick < 10 {
            continue;
        }
        engine.move_automatically(u64::MAX, &Silent, &mut |_, _| ()).unwrap();
        all.iter_mut().for_each(|of| of.step(tick));
        let wanted: Vec<Tier> = all.iter().map(|of| TIERS[of.tier]).collect();
        assert_eq!(tiers_of_stretches(&held.collection, "embed"), wanted, "tick {tick}");
        if seen.insert(wanted) {
            let found = read(&held.collection, "m.safetensors").unwrap();
            let begin = found.len() - (1 << 20);
            for (stretch, of) in all.iter().enumerate() {
                let part = begin + (stretch << 18)..begin + ((stretch + 1) << 18);
                assert!(found[part.clone()] == references[of.tier][part], "tick {tick}, stretch {stretch}");
            }
        }
    }
    let ended: Vec<usize> = all.iter().map(|of| of.tier).collect();
    assert_eq!((ended[0], ended[1], ended[2]), (0, 3, 3));
    // As a whole tensor, of which a block is used, it would stay.
    set_setting(&held.collection, node, &UNIT, "tensor").unwrap();
    assert_eq!(engine.foreseen_moves(u64::MAX, 60).unwrap().len(), 0);
}

#[test]
fn the_moves_that_are_foreseen_are_those_that_come() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let (held, now, _) = made(&disk);
    let engine = Engine::new(held.store.clone());
    for (setting, value) in [(POLICY, "auto:q5"), (LOSSY, "allow")] {
        set_setting(&held.collection, ROOT, &setting, value).unwrap();
    }
    held.clock.set(now);
    (0..20).for_each(|_| look_at(&held.collection, "a"));
    let foreseen = engine.foreseen_moves(u64::MAX, 24 * HOUR).unwrap();
    assert_eq!(foreseen.iter().filter(|step| step.path.ends_with("/a")).count(), 4, "packed, q8, q7, q5");
    assert!(foreseen.windows(2).all(|two| two[0].after <= two[1].after));
    let mut came = Vec::new();
    // The passes that are foreseen are a quarter of an hour apart.
    for after in (0..=24 * HOUR).step_by(900) {
        held.clock.set(now + after);
        let before = ["a", "b", "norm"].map(|path| tier(&held.collection, path));
        engine.move_automatically(u64::MAX, &Silent, &mut |_, _| ()).unwrap();
        let tiers = ["a", "b", "norm"].map(|path| tier(&held.collection, path));
        let names = ["a", "b", "norm"].into_iter();
        came.extend(
            names
                .zip(before.into_iter().zip(tiers))
                .filter(|(_, (from, to))| from != to)
                .map(|(name, (from, to))| (after, name.to_owned(), from, to)),
        );
    }
    let mut wanted: Vec<_> = foreseen
        .iter()
        .map(|step| (step.after, step.path.rsplit('/').next().unwrap().to_owned(), step.from, step.to))
        .collect();
    wanted.sort();
    came.sort();
    assert_eq!(came, wanted);
    assert_eq!(engine.foreseen_moves(u64::MAX, 24 * HOUR).unwrap().len(), 0);
}

#[test]
fn no_more_is_foreseen_than_the_passes_may_move() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    Store::create(&*disk, STORE).unwrap();
    let settings = disk.open("tierfs.toml", Open::Write).unwrap();
    let mut text = vec![0; settings.len().unwrap() as usize];
    settings.read_exact_at(&mut text, 0).unwrap();
    let text = String::from_utf8(text).unwrap();
    let text = text
        .replace("pass_bytes = 4294967296", "pass_bytes = 1")
        .replace("pack_idle = 3600", "pack_idle = 1");
    settings.set_len(0).unwrap();
    settings.write_at(text.as_bytes(), 0).unwrap();
    let held = hold(&disk, tierfs::store::now_seconds() / 60 * 60);
    let mut numbers = Numbers(7);
    let tensors = ["a", "b", "c"].map(|name| f32s(name, &[256, 300], &mut numbers));
    import(&held.collection, "m.safetensors", &safetensors_file(&tensors), &Options::default()).unwrap();
    set_setting(&held.collection, ROOT, &POLICY, "auto").unwrap();
    set_threshold(&held.collection, ROOT, &HOLD, "0").unwrap();
    let engine = Engine::new(held.store.clone());
    // One of three tensors a tick, for ten minutes.
    let foreseen = engine.foreseen_moves(u64::MAX, 600).unwrap();
    let after: Vec<u64> = foreseen.iter().map(|step| step.after).collect();
    assert_eq!(after.len(), 3);
    assert!(after.windows(2).all(|two| two[0] < two[1]), "{after:?}");
}

#[test]
fn a_full_disk_takes_tensors_down_in_use_or_not_and_no_farther_than_their_floor() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let (held, now, _) = made(&disk);
    let engine = Engine::new(held.store.clone());
    for (setting, value) in [(POLICY, "auto:q7"), (LOSSY, "allow")] {
        set_setting(&held.collection, ROOT, &setting, value).unwrap();
    }
    set_threshold(&held.collection, ROOT, &FREE_MIN, "1M").unwrap();
    held.clock.set(now);
    (0..20).for_each(|_| look_at(&held.collection, "a"));
    let pass = |free: u64| {
        engine.move_automatically(free, &Silent, &mut |_, _| ()).unwrap();
        ["a", "b", "norm"].map(|path| tier(&held.collection, path))
    };
    assert_eq!(pass(1 << 20), [Tier::Exact; 3]);
    let packed = pass(0);
    assert_eq!(packed, [Tier::Packed; 3], "the first step loses nothing");
    assert_eq!((pass(0), pass(0), pass(0)), {
        let at = |tier| [tier, tier, Tier::Packed];
        (at(Tier::Q8), at(Tier::Q7), at(Tier::Q7))
    });
}

#[test]
fn an_access_has_the_weight_that_ema_share_says() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let (held, now, _) = made(&disk);
    let (a, b) = ("a", "b");
    set_threshold(&held.collection, find(&held.collection, a).unwrap().entry.id, &EMA_SHARE, "0.5").unwrap();
    held.clock.set(now);
    [a, b].iter().for_each(|path| look_at(&held.collection, path));
    // 700 times the share, and 300/64 for the window of one tick.
    let (of_a, of_b) = (heat(&held, a).score, heat(&held, b).score);
    assert!((of_a - 354.6875).abs() < 1e-3 && (of_b - 74.6875).abs() < 1e-3, "{of_a} {of_b}");
    held.clock.set(now + 60);
    let (of_a, of_b) = (heat(&held, a).score, heat(&held, b).score);
    assert!((of_a - 179.6875).abs() < 1e-3 && (of_b - 67.6875).abs() < 1e-3, "{of_a} {of_b}");
}

#[test]
fn a_model_imported_in_q8_is_in_q8_after_a_year_of_the_policy() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    Store::create(&*disk, STORE).unwrap();
    let now = tierfs::store::now_seconds() / 60 * 60;
    let held = hold(&disk, now);
    let tensors = ["a", "b", "norm"].map(|name| f32s(name, &[256, 300], &mut Numbers(7)));
    let options = Options { tier: Some(MoveTo::parse("q8").unwrap()), ..Options::default() };
    import(&held.collection, "m.safetensors", &safetensors_file(&tensors), &options).unwrap();
    let engine = Engine::new(held.store.clone());
    let pass_days = |first: u64, days: std::ops::Range<u64>| {
        for day in days {
            held.clock.set(first + day * 24 * HOUR);
            engine.move_automatically(u64::MAX, &Silent, &mut |_, _| ()).unwrap();
        }
        ["a", "b", "norm"].map(|path| tier(&held.collection, path))
    };
    let set = |setting, value| set_setting(&held.collection, ROOT, setting, value).unwrap();
    set(&POLICY, "auto");
    assert_eq!(pass_days(now, 0..365), [Tier::Q8, Tier::Q8, Tier::Packed]);
    // A lower floor gives no consent: the tensors stay in the tier that the import agreed to.
    set(&POLICY, "auto:q3");
    assert_eq!(pass_days(now, 365..400), [Tier::Q8, Tier::Q8, Tier::Packed]);
    let lossy = || {
        let node = find(&held.collection, "a").unwrap().entry.id;
        LOSSY.of(&held.collection.state(), node).to_owned()
    };
    for (above, seen) in [("deny", "allow:q8"), ("allow:q8", "allow:q8"), ("allow:q5", "allow:q5")] {
        set(&LOSSY, above);
        assert_eq!(lossy(), seen, "{above} above the consent of the import");
    }
    assert_eq!(pass_days(now, 400..440), [Tier::Q5, Tier::Q5, Tier::Packed]);
}

#[test]
fn no_precision_is_lost_without_consent() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let (held, now, bytes) = made(&disk);
    let engine = Engine::new(held.store.clone());
    set_setting(&held.collection, ROOT, &POLICY, "auto").unwrap();
    let mut moved = 0;
    for hour in 0..100 {
        held.clock.set(now + hour * HOUR);
        moved += engine.move_automatically(u64::MAX, &Silent, &mut |_, _| ()).unwrap();
    }
    assert_eq!(moved, 3, "each is packed, and no more");
    assert_eq!(read(&held.collection, "m.safetensors").unwrap(), bytes);
    assert_eq!(tier(&held.collection, "b"), Tier::Packed);
}

#[test]
fn access_histories_survive_reopening_the_store() {
    on_each_disk(|disk| {
        let (held, now, _) = made(&disk);
        (0..9).for_each(|_| look_at(&held.collection, "a"));
        held.clock.set(now + 120);
        look_at(&held.collection, "a");
        let before = heat(&held, "a");
        assert_eq!((before.count, before.last_access), (10, now + 120));
        assert_eq!(heat(&held, "m.safetensors"), before, "the same bytes");
        assert_eq!(heat(&held, "b").count, 0);
        held.collection.save_usage(SaveUsage::Now);
        drop(held);
        let held = hold(&disk, now + 120);
        assert_eq!(heat(&held, "a"), before);
        // A clock that was ahead has no effect.
        drop(held);
        assert_eq!(heat(&hold(&disk, now), "a").last_access, now);
    });
}

#[test]
fn a_missing_or_damaged_access_history_reads_as_empty() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let (held, now, bytes) = made(&disk);
    look_at(&held.collection, "a");
    held.collection.save_usage(SaveUsage::Now);
    drop(held);
    let file = disk.open("t/c/access", Open::Read).unwrap();
    let mut good = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut good, 0).unwrap();
    let write = |bytes: &[u8]| {
        disk.remove_file("t/c/access").unwrap();
        disk.open("t/c/access", Open::Create).unwrap().write_at(bytes, 0).unwrap();
    };
    let count = |what: &str| {
        let held = hold(&disk, now);
        assert_eq!(read(&held.collection, "m.safetensors").unwrap(), bytes, "{what}");
        heat(&held, "a").count
    };
    assert_eq!(count("as it was"), 1);
    for at in (0..good.len()).step_by(7) {
        let mut flipped = good.clone();
        flipped[at] ^= 0x10;
        write(&flipped);
        assert_eq!(count("a flipped bit"), 0);
        write(&good[..at]);
        assert_eq!(count("cut"), 0);
    }
    write(&vec![0xff; 1 << 20]);
    assert_eq!(count("too long"), 0);
    disk.remove_file("t/c/access").unwrap();
    assert_eq!(count("gone"), 0);
}

#[test]
fn a_clock_that_goes_back_loses_nothing_and_delays_the_policy() {
    on_each_disk(|disk| {
        let (held, now, _) = made(&disk);
        let engine = Engine::new(held.store.clone());
        for (setting, value) in [(POLICY, "auto:q3"), (LOSSY, "allow")] {
            set_setting(&held.collection, ROOT, &setting, value).unwrap();
        }
        look_at(&held.collection, "a");
        let mut expected = read(&held.collection, "m.safetensors").unwrap();
        let begin = expected.len() - 2 * 256 * 300 * 4;
        for (round, seconds) in [now - 30 * 24 * HOUR, 0, now - 1, 60].into_iter().enumerate() {
            held.clock.set(seconds);
            look_at(&held.collection, "a");
            assert_eq!(
                engine.move_automatically(u64::MAX, &Silent, &mut |_, _| ()).unwrap(),
                0,
                "at {seconds}"
            );
            let node = find(&held.collection, "b").unwrap().entry.id;
            let open = OpenFiles::default().open(&held.collection, node, Verify::First).unwrap();
            open.write(round as u64 * 4, &[round as u8; 4]).unwrap();
            open.flush().unwrap();
            expected[begin + round * 4..begin + round * 4 + 4].fill(round as u8);
            assert_eq!(read(&held.collection, "m.safetensors").unwrap(), expected, "at {seconds}");
            let heat = heat(&held, "a");
            assert!(heat.score.is_finite() && heat.count > 0, "at {seconds}");
        }
        held.collection.save_usage(SaveUsage::Now);
        held.collection.sync().unwrap();
        drop((engine, held));
        // Opened while the clock is behind, the log is replayed in its own order.
        let held = hold(&disk, 0);
        assert_eq!(read(&held.collection, "m.safetensors").unwrap(), expected);
        let engine = Engine::new(held.store.clone());
        held.clock.set(now + 6 * HOUR);
        while engine.move_automatically(u64::MAX, &Silent, &mut |_, _| ()).unwrap() > 0 {}
        assert_ne!(tier(&held.collection, "norm"), Tier::Absent);
    });
}

#[test]
fn a_clock_that_goes_back_years_leaves_no_tensor_hot_or_pinned() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let (held, now, _) = made(&disk);
    let engine = Engine::new(held.store.clone());
    for (setting, value) in [(POLICY, "auto:q3"), (LOSSY, "allow")] {
        set_setting(&held.collection, ROOT, &setting, value).unwrap();
    }
    // The clock is ten years ahead: `a` is used, and `b` goes down a step.
    let seen = pass_hours(&held, &engine, now + 10 * 365 * 24 * HOUR, 1);
    assert_eq!(seen, [[Tier::Exact, Tier::Packed, Tier::Packed]]);
    assert!(heat(&held, "a").score > 100.0);
    // The clock is corrected, and no program uses the tensors.
    let mut tiers = Vec::new();
    for minute in 0..12 * 60 {
        held.clock.set(now + HOUR + minute * 60);
        engine.move_automatically(u64::MAX, &Silent, &mut |_, _| ()).unwrap();
        if minute % 60 == 50 {
            tiers.push(["a", "b"].map(|path| tier(&held.collection, path)));
        }
    }
    assert_eq!(tiers[0][1], Tier::Packed, "a step needs its hour: {tiers:?}");
    assert_eq!(tiers.last(), Some(&[Tier::Q3, Tier::Q3]), "{tiers:?}");
    let last = heat(&held, "a").last_access;
    assert!((now..now + 2 * HOUR).contains(&last), "{last} is not near {now}");
}
