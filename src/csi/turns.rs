//! Turns: one call at a time for each volume, and for each daemon.

use std::collections::HashSet;
use std::sync::mpsc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// The names that have a turn.
#[derive(Default)]
pub(in crate::csi) struct Turns {
    taken: Mutex<HashSet<String>>,
    freed: Condvar,
}

/// A turn. Dropping it lets the next one begin.
pub(in crate::csi) struct Turn<'a> {
    turns: &'a Turns,
    name: String,
}

impl Turns {
    /// The turn of a name, unless another call has it.
    pub fn take(&self, name: &str) -> Option<Turn<'_>> {
        let is_free = self.taken.lock().insert(name.to_owned());
        is_free.then(|| Turn { turns: self, name: name.to_owned() })
    }

    /// Waits for the turn of a name. Returns `None` if the calls before this one have not ended by `until`.
    pub fn wait(&self, name: &str, until: Instant) -> Option<Turn<'_>> {
        let mut taken = self.taken.lock();
        while taken.contains(name) {
            if self.freed.wait_until(&mut taken, until).timed_out() && taken.contains(name) {
                return None;
            }
        }
        taken.insert(name.to_owned());
        Some(Turn { turns: self, name: name.to_owned() })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.taken.lock().remove(&self.name);
        self.turns.freed.notify_all();
    }
}

/// Does work that a daemon or a remote may hold up for ever. `None` if it is not done in time; it then goes on alone.
pub(in crate::csi) fn within<T: Send + 'static>(
    until: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, done) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
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
    fn work_that_hangs_is_left_alone() {
        let soon = || Instant::now() + Duration::from_millis(20);
        assert_eq!(within(soon() + Duration::from_secs(60), || 7), Some(7));
        assert_eq!(within(soon(), || std::thread::sleep(Duration::from_secs(5))), None);
    }
}
