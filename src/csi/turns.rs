//! Turns: one call at a time for each volume, and for each daemon.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Calls that wait for the turn of one name. More would take the places of calls for others.
const WAITING_MAX: usize = 16;

/// Names of which each has one turn at a time. Clones share them.
#[derive(Clone, Default)]
pub(in crate::csi) struct Turns(Arc<Names>);

#[derive(Default)]
struct Names {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    taken: HashSet<String>,
    /// How many calls wait for a name.
    waiting: HashMap<String, usize>,
}

/// Why a call has no turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::csi) enum NoTurn {
    /// The calls before it have not ended in time.
    Late,
    /// Too many others wait.
    Crowded,
}

/// A turn. Dropping it lets the next one begin.
pub(in crate::csi) struct Turn {
    names: Arc<Names>,
    name: String,
}

impl Turns {
    /// The turn of a name, unless another call has it.
    pub fn take(&self, name: &str) -> Option<Turn> {
        let is_free = self.0.state.lock().taken.insert(name.to_owned());
        is_free.then(|| self.turn(name))
    }

    fn turn(&self, name: &str) -> Turn {
        Turn { names: self.0.clone(), name: name.to_owned() }
    }

    /// Waits for the turn of a name until the calls before this one have ended, at most until `until`.
    pub fn wait(&self, name: &str, until: Instant) -> Result<Turn, NoTurn> {
        let mut state = self.0.state.lock();
        if state.taken.contains(name) {
            state.enter(name)?;
            let mut is_late = false;
            while state.taken.contains(name) && !is_late {
                is_late = self.0.freed.wait_until(&mut state, until).timed_out();
            }
            state.leave(name);
            if state.taken.contains(name) {
                return Err(NoTurn::Late);
            }
        }
        state.taken.insert(name.to_owned());
        Ok(self.turn(name))
    }
}

impl State {
    /// Counts a call that waits.
    fn enter(&mut self, name: &str) -> Result<(), NoTurn> {
        let waiting = self.waiting.entry(name.to_owned()).or_default();
        if *waiting >= WAITING_MAX {
            return Err(NoTurn::Crowded);
        }
        *waiting += 1;
        Ok(())
    }

    fn leave(&mut self, name: &str) {
        let left = self.waiting.get_mut(name).map(|waiting| {
            *waiting = waiting.saturating_sub(1);
            *waiting
        });
        if left == Some(0) {
            self.waiting.remove(name);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.names.state.lock().taken.remove(&self.name);
        self.names.freed.notify_all();
    }
}

/// Does work that a daemon or a remote may hold up for ever. Returns `None` if it is not done by `until`: it then goes on alone
/// and keeps its turn, so that calls of a daemon that hangs do not add threads without end.
pub(in crate::csi) fn within<T: Send + 'static>(
    turn: Turn,
    until: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, done) = mpsc::channel();
    let begun = thread::Builder::new().name("daemon".to_owned()).spawn(move || {
        let result = work();
        drop(turn);
        sender.send(result)
    });
    begun.inspect_err(|error| log::warn!("starting a thread: {error}")).ok()?;
    done.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{NoTurn, Turns, WAITING_MAX, within};

    #[test]
    fn a_name_has_one_turn_at_a_time() {
        let turns = Turns::default();
        let first = turns.take("a").unwrap();
        let soon = Instant::now() + Duration::from_millis(20);
        assert!(turns.take("a").is_none());
        assert_eq!(turns.wait("a", soon).err(), Some(NoTurn::Late));
        assert!(turns.take("b").is_some());
        let late = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| turns.wait("a", late).is_ok());
            drop(first);
            assert!(next.join().unwrap());
        });
        assert!(turns.take("a").is_some());
    }

    #[test]
    fn one_name_holds_up_a_limited_number_of_calls() {
        let turns = Turns::default();
        let first = turns.take("a").unwrap();
        let late = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            let wait = || scope.spawn(|| turns.wait("a", late).map(drop));
            let waiting: Vec<_> = (0..WAITING_MAX).map(|_| wait()).collect();
            while turns.0.state.lock().waiting.get("a") != Some(&WAITING_MAX) {
                std::thread::yield_now();
            }
            assert_eq!(turns.wait("a", late).err(), Some(NoTurn::Crowded));
            assert!(turns.wait("b", late).is_ok());
            drop(first);
            assert!(waiting.into_iter().all(|call| call.join().unwrap().is_ok()));
        });
        assert!(turns.0.state.lock().waiting.is_empty() && turns.wait("a", late).is_ok());
    }

    #[test]
    fn work_that_hangs_is_left_alone_with_its_turn() {
        let (turns, late) = (Turns::default(), Instant::now() + Duration::from_secs(60));
        let soon = || Instant::now() + Duration::from_millis(20);
        assert_eq!(within(turns.take("a").unwrap(), late, || 7), Some(7));
        let (stop_waiting, waiting) = std::sync::mpsc::channel::<()>();
        assert_eq!(within(turns.take("a").unwrap(), soon(), move || waiting.recv().is_ok()), None);
        assert!(turns.wait("a", soon()).is_err());
        drop(stop_waiting);
        assert!(turns.wait("a", late).is_ok());
        // The turn of work that panics ends too.
        assert_eq!(within(turns.take("a").unwrap(), late, || -> u8 { panic!("a bug") }), None);
        assert!(turns.wait("a", late).is_ok());
    }
}
