//! Turns: one call at a time for each volume, and for each daemon.

use std::collections::HashSet;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Names of which each has one turn at a time. Clones share them.
#[derive(Clone, Default)]
pub(in crate::csi) struct Turns(Arc<Names>);

#[derive(Default)]
struct Names {
    taken: Mutex<HashSet<String>>,
    freed: Condvar,
}

/// A turn. Dropping it lets the next one begin.
pub(in crate::csi) struct Turn {
    names: Arc<Names>,
    name: String,
}

impl Turns {
    /// The turn of a name, unless another call has it.
    pub fn take(&self, name: &str) -> Option<Turn> {
        let is_free = self.0.taken.lock().insert(name.to_owned());
        is_free.then(|| self.turn(name))
    }

    fn turn(&self, name: &str) -> Turn {
        Turn { names: self.0.clone(), name: name.to_owned() }
    }

    /// Waits for the turn of a name. Returns `None` if the calls before this one have not ended by `until`.
    pub fn wait(&self, name: &str, until: Instant) -> Option<Turn> {
        let mut taken = self.0.taken.lock();
        while taken.contains(name) {
            if self.0.freed.wait_until(&mut taken, until).timed_out() && taken.contains(name) {
                return None;
            }
        }
        taken.insert(name.to_owned());
        Some(self.turn(name))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.names.taken.lock().remove(&self.name);
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

    use super::{Turns, within};

    #[test]
    fn a_name_has_one_turn_at_a_time() {
        let turns = Turns::default();
        let first = turns.take("a").unwrap();
        let soon = Instant::now() + Duration::from_millis(20);
        assert!(turns.take("a").is_none() && turns.wait("a", soon).is_none());
        assert!(turns.take("b").is_some());
        let late = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| turns.wait("a", late).is_some());
            drop(first);
            assert!(next.join().unwrap());
        });
        assert!(turns.take("a").is_some());
    }

    #[test]
    fn work_that_hangs_is_left_alone_with_its_turn() {
        let (turns, late) = (Turns::default(), Instant::now() + Duration::from_secs(60));
        let soon = || Instant::now() + Duration::from_millis(20);
        assert_eq!(within(turns.take("a").unwrap(), late, || 7), Some(7));
        let (stop_waiting, waiting) = std::sync::mpsc::channel::<()>();
        assert_eq!(within(turns.take("a").unwrap(), soon(), move || waiting.recv().is_ok()), None);
        assert!(turns.wait("a", soon()).is_none());
        drop(stop_waiting);
        assert!(turns.wait("a", late).is_some());
        // The turn of work that panics ends too.
        assert_eq!(within(turns.take("a").unwrap(), late, || -> u8 { panic!("a bug") }), None);
        assert!(turns.wait("a", late).is_some());
    }
}
