//! Collections of garbage beside pushes: whatever the order of their requests, no snapshot loses a piece.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use object_store::memory::InMemory;
use parking_lot::{Condvar, Mutex};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use support::Place;
use tierfs::format::snapshot::keys;
use tierfs::model::{CollectionName, ErrorKind, Result, Silent};
use tierfs::remote::place::garbage::{Collected, Keep, collect};
use tierfs::remote::place::remote::Remote;
use tierfs::remote::place::tags::{Move, remove_tag, set_tag, tags};
use tierfs::remote::push::outcome::Pushed;
use tierfs::remote::push::parameters::{May, Parameters};
use tierfs::remote::push::publish::{Elapsed, push_within};
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, Store};

use crate::faulty::{Call, Clock, Fault, Faulty};
use crate::push::{quiet, remote};

pub const HOUR: u64 = 3600;
const KEEP: Keep = Keep { last: 1, younger: Duration::ZERO, grace: Duration::from_secs(24 * HOUR) };

/// A store with the collection `acme/m`, which has one file with this text.
fn store_with(text: &str) -> Place {
    let place = Place::new();
    support::run([Path::new("init"), &place.store()]).ok();
    let file = place.write("note.txt", text);
    place.import("acme/m", &[&file], &[]);
    place
}

/// Stores with the texts of the first, the second and the third snapshot.
pub fn stores() -> [Arc<Place>; 3] {
    ["one", "two", "three"].map(|text| Arc::new(store_with(&text.repeat(100))))
}

pub fn push_from(place: &Place, bucket: &Arc<Faulty>, request: &Parameters, clock: &Clock) -> Result<Pushed> {
    let begun = clock.now();
    push_timed(place, bucket, request, &|| Duration::from_secs(clock.now() - begun))
}

fn push_timed(
    place: &Place,
    bucket: &Arc<Faulty>,
    request: &Parameters,
    elapsed: &Elapsed,
) -> Result<Pushed> {
    let store = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Write, "test").unwrap();
    let collection = store.collection("acme", "m").unwrap();
    push_within(&remote(bucket)?, &collection, request, &Silent, elapsed)
}

/// A push, over that of anybody else.
fn request(push: u128) -> Parameters {
    Parameters { may: May { force: true, ..May::default() }, ..crate::push::request(push) }
}

pub fn named(collection: &str, push: u128) -> Parameters {
    Parameters { collection: collection.to_owned(), ..request(push) }
}

/// The snapshots of a bucket, and the pieces that they name and that are not there.
pub fn missing(objects: &Arc<InMemory>) -> (Vec<String>, Vec<String>) {
    let client = quiet(objects).client();
    let keys = |below| -> BTreeSet<String> {
        client.list(below, None).unwrap().into_iter().map(|listed| listed.key).collect()
    };
    let (there, remote) = (keys("piece"), Remote::open(client.clone()).unwrap());
    let (mut snapshots, mut lost) = (Vec::new(), Vec::new());
    for key in keys("snap") {
        let (_, place) = key.split_once("acme/").unwrap();
        let (collection, number) = place.split_once('/').unwrap();
        let number = keys::number(number).unwrap();
        let found = remote.manifest("acme", collection, number).unwrap().unwrap();
        let names = found.manifest.pieces.iter().map(|piece| keys::piece(&piece.name));
        lost.extend(names.filter(|piece| !there.contains(piece)));
        snapshots.push(format!("{collection}={number}"));
    }
    (snapshots, lost)
}

/// Threads that take turns at each request, in the order of a schedule.
struct Turns {
    state: Mutex<State>,
    changed: Condvar,
    clock: Arc<Clock>,
}

struct State {
    waiting: BTreeSet<usize>,
    living: usize,
    running: Option<usize>,
    /// Those that are about to commit, which takes a moment.
    committing: BTreeSet<usize>,
    /// Which of those that wait comes next, and the minutes that pass before.
    schedule: VecDeque<(u8, u16)>,
}

impl Turns {
    fn step(&self, actor: usize) {
        let mut state = self.state.lock();
        state.running = None;
        state.waiting.insert(actor);
        self.choose(&mut state);
        while state.running != Some(actor) {
            self.changed.wait(&mut state);
        }
        state.committing.remove(&actor);
    }

    /// The next request of this actor is its commit.
    fn commits(&self, actor: usize) {
        self.state.lock().committing.insert(actor);
    }

    fn end(&self, actor: usize) {
        let mut state = self.state.lock();
        state.running = None;
        state.committing.remove(&actor);
        state.living -= 1;
        self.choose(&mut state);
    }

    fn choose(&self, state: &mut State) {
        if state.waiting.len() < state.living || state.living == 0 {
            return;
        }
        let (choice, minutes) = state.schedule.pop_front().unwrap_or((0, 30));
        let next = *state.waiting.iter().nth(usize::from(choice) % state.waiting.len()).unwrap();
        state.waiting.remove(&next);
        state.running = Some(next);
        if state.committing.is_empty() {
            self.clock.advance(u64::from(minutes) * 60);
        }
        self.changed.notify_all();
    }
}

/// Two pushes, and so many collectors. Returns the pieces that snapshots lack at the end. With `hides_plans`, pushes
/// do not see plans.
fn interleaved(
    [one, two, three]: &[Arc<Place>; 3],
    schedule: Vec<(u8, u16)>,
    (collectors, hides_plans): (usize, bool),
) -> std::result::Result<Vec<String>, TestCaseError> {
    let (objects, clock) = (Arc::new(InMemory::new()), Arc::new(Clock::default()));
    let plain = Faulty::at(&objects, Some(&clock), |_| Fault::None);
    push_from(one, &plain, &named("m", 1), &clock).unwrap();
    push_from(two, &plain, &named("m", 2), &clock).unwrap();
    // A push that was killed before its commit.
    let killed = Faulty::at(&objects, Some(&clock), |request| {
        let is_commit = request.call == Call::Put && request.key.contains("/snap/");
        if is_commit { Fault::Denied } else { Fault::None }
    });
    push_from(three, &killed, &named("n", 3), &clock).unwrap_err();
    clock.advance(100 * HOUR);
    let state = State {
        waiting: BTreeSet::new(),
        living: 2 + collectors,
        running: None,
        committing: BTreeSet::new(),
        schedule: schedule.into(),
    };
    let turns = Arc::new(Turns { state: Mutex::new(state), changed: Condvar::new(), clock: clock.clone() });
    let bucket = |actor: usize| {
        let turns = turns.clone();
        Faulty::at(&objects, Some(&clock), move |request| {
            // The pieces are listed in 256 parts, one after the other.
            if !request.key.contains("/piece/") || request.call != Call::List {
                turns.step(actor);
            }
            let is_plan = request.call == Call::List && request.key.ends_with("/gc");
            if is_plan && hides_plans && actor < 2 { Fault::Empty } else { Fault::None }
        })
    };
    let act = |actor: usize, place: &Arc<Place>, request: Parameters| {
        let (bucket, turns, clock) = (bucket(actor), turns.clone(), clock.clone());
        let place = place.clone();
        std::thread::spawn(move || {
            turns.step(actor);
            let begun = clock.now();
            let elapsed = || {
                turns.commits(actor);
                Duration::from_secs(clock.now() - begun)
            };
            let pushed = push_timed(&place, &bucket, &request, &elapsed);
            turns.end(actor);
            pushed
        })
    };
    // The first has the content of a snapshot that is old, the second that of the push that was killed.
    let again = act(0, one, named("m", 4));
    let fresh = act(1, three, named("n", 5));
    let collectors: Vec<_> = (2..2 + collectors)
        .map(|actor| {
            let (bucket, turns) = (bucket(actor), turns.clone());
            std::thread::spawn(move || {
                turns.step(actor);
                let remote = Remote::open(bucket.client()).unwrap();
                let runs: Vec<Result<Collected>> = (0..8).map(|_| collect(&remote, &KEEP, false)).collect();
                turns.end(actor);
                runs
            })
        })
        .collect();
    let pushed = [("m=3", again.join().unwrap()), ("n=1", fresh.join().unwrap())];
    for run in collectors.into_iter().flat_map(|collector| collector.join().unwrap()) {
        // A manifest was removed by another run, or a push has made one.
        let is_fine = run.as_ref().map_or_else(|error| error.kind() == ErrorKind::Busy, |_| true);
        prop_assert!(is_fine, "{run:?}");
    }
    let (snapshots, lost) = missing(&objects);
    for (name, pushed) in pushed {
        match pushed {
            Ok(_) => prop_assert!(snapshots.iter().any(|found| found == name), "{name} is gone"),
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Gone, "{}", error),
        }
    }
    Ok(lost)
}

fn schedules() -> impl Strategy<Value = Vec<(u8, u16)>> {
    // Mostly moments, sometimes hours.
    let minutes = prop_oneof![6 => 0_u16..10, 1 => 60_u16..600];
    prop::collection::vec((any::<u8>(), minutes), 40..160)
}

#[test]
fn no_snapshot_loses_a_piece_however_requests_of_pushes_and_collections_are_interleaved() {
    let stores = stores();
    let mut runner = TestRunner::new(Config { cases: 60, ..Config::default() });
    let run = runner.run(&schedules(), |schedule| {
        for collectors in [1, 2] {
            let lost = interleaved(&stores, schedule.clone(), (collectors, false))?;
            prop_assert!(lost.is_empty(), "{collectors} collectors: {lost:?}");
        }
        Ok(())
    });
    run.unwrap();
}

/// A plan, then 25 hours, then a push that pauses while the plan is swept: with pauses at many places.
fn pauses() -> impl Iterator<Item = Vec<(u8, u16)>> {
    let paused =
        |plan, pause| [vec![(2, 0); plan], vec![(1, 1500)], vec![(1, 0); pause], vec![(2, 0); 16]].concat();
    (13..17).flat_map(move |plan| (3..13).map(move |pause| paused(plan, pause)))
}

#[test]
fn a_push_that_pauses_while_a_plan_is_swept_loses_nothing_and_one_that_ignored_plans_would() {
    let stores = stores();
    let mut harmed = 0;
    for schedule in pauses() {
        let lost = interleaved(&stores, schedule.clone(), (1, false)).unwrap();
        assert!(lost.is_empty(), "{schedule:?}: {lost:?}");
        let ignoring = interleaved(&stores, schedule, (1, true));
        harmed += usize::from(ignoring.is_ok_and(|lost| !lost.is_empty()));
    }
    assert!(harmed > 0, "no pause harms a push that is wrong");
}

#[test]
fn old_snapshots_go_in_two_runs_and_those_with_a_tag_stay() {
    let [one, two, three] = &stores();
    let (objects, clock) = (Arc::new(InMemory::new()), Arc::new(Clock::default()));
    let bucket = Faulty::at(&objects, Some(&clock), |_| Fault::None);
    for (push, place) in [(1, one), (2, two), (3, three), (4, one)] {
        push_from(place, &bucket, &named("m", push), &clock).unwrap();
        clock.advance(HOUR);
    }
    let remote = Remote::open(bucket.client()).unwrap();
    let place = CollectionName::new("acme", "m");
    set_tag(&remote, place, "best", 2, Move::Refused).unwrap();
    assert_eq!(tags(&remote, place).unwrap(), [("best".to_owned(), 2)]);
    clock.advance(48 * HOUR);
    let dry = collect(&remote, &KEEP, true).unwrap();
    let planned = collect(&remote, &KEEP, false).unwrap();
    assert_eq!((dry.snapshots_planned, dry.pieces_planned), (2, planned.pieces_planned));
    assert_eq!((planned.snapshots_planned, planned.snapshots_removed), (2, 0));
    let error = set_tag(&remote, place, "late", 3, Move::Refused).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(collect(&remote, &KEEP, false).unwrap().waits.is_some());
    assert_eq!(missing(&objects).0, ["m=1", "m=2", "m=3", "m=4"]);
    clock.advance(25 * HOUR);
    let swept = collect(&remote, &KEEP, false).unwrap();
    assert_eq!((swept.snapshots_removed, swept.pieces_removed), (2, planned.pieces_planned));
    assert_eq!(missing(&objects), (vec!["m=2".to_owned(), "m=4".to_owned()], Vec::new()));
    assert_eq!(collect(&remote, &KEEP, false).unwrap(), Collected::default());
    // The newest is found although the hint lags, and the next push follows it.
    assert_eq!(remote.newest("acme", "m").unwrap(), Some(4));
    // Of a push that took long, which wrote its hint last.
    remote.client().put(&keys::head("acme", "m"), format!("{:016x}", 2).into()).unwrap();
    assert_eq!(remote.newest("acme", "m").unwrap(), Some(4));
    assert_eq!(push_from(three, &bucket, &named("m", 5), &clock).unwrap().number, 5);
    assert!(missing(&objects).1.is_empty());
    remove_tag(&remote, place, "best").unwrap();
    assert_eq!(remove_tag(&remote, place, "best").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_plan_that_another_run_sweeps_is_left_alone_until_that_run_must_have_died() {
    let [one, two, _] = &stores();
    let (objects, clock) = (Arc::new(InMemory::new()), Arc::new(Clock::default()));
    let bucket = Faulty::at(&objects, Some(&clock), |_| Fault::None);
    for (push, place) in [(1, one), (2, two)] {
        push_from(place, &bucket, &named("m", push), &clock).unwrap();
    }
    clock.advance(48 * HOUR);
    let remote = Remote::open(bucket.client()).unwrap();
    collect(&remote, &KEEP, false).unwrap();
    clock.advance(25 * HOUR);
    let claim = format!("{}.sweep", keys::garbage(1));
    remote.client().put(&claim, Vec::new().into()).unwrap();
    let error = collect(&remote, &KEEP, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains(&claim), "{error}");
    assert_eq!(missing(&objects).0, ["m=1", "m=2"]);
    clock.advance(25 * HOUR);
    assert_eq!(collect(&remote, &KEEP, false).unwrap().snapshots_removed, 1);
    assert_eq!(remote.client().get(&claim, 1).unwrap(), None);
    assert_eq!(missing(&objects), (vec!["m=2".to_owned()], Vec::new()));
}

#[test]
fn a_collection_with_less_grace_than_pushes_may_take_is_refused() {
    let objects = Arc::new(InMemory::new());
    let remote = remote(&quiet(&objects)).unwrap();
    let keep = Keep { grace: Duration::from_secs(HOUR), ..KEEP };
    let error = collect(&remote, &keep, false).unwrap_err();
    assert!(error.to_string().contains("at least 24 h"), "{error}");
}

#[test]
fn tags_that_look_like_numbers_or_paths_are_refused() {
    let objects = Arc::new(InMemory::new());
    let remote = remote(&quiet(&objects)).unwrap();
    let place = CollectionName::new("acme", "m");
    for tag in ["", "12", "a/b", "..", "ü", &"x".repeat(101)] {
        assert_eq!(
            set_tag(&remote, place, tag, 1, Move::Refused).unwrap_err().kind(),
            ErrorKind::Invalid,
            "{tag}"
        );
    }
    assert_eq!(set_tag(&remote, place, "v1", 1, Move::Refused).unwrap_err().kind(), ErrorKind::NotFound);
}
