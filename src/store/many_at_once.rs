//! Work on many items that waits for a remote most of the time.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex};

/// Items that are worked on at a time.
const AT_ONCE: usize = 64;

thread_local! {
    /// Whether this thread works on an item of others.
    static IS_INNER: Cell<bool> = const { Cell::new(false) };
}

/// The results of `work` on each item, in the order of the items. 64 are worked on at a time, so that few that do not end for
/// long hold up no others. Inside of such work, further items are worked on one after another.
pub(in crate::store) fn at_once<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let each = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(place) else { break };
            let result = work(item);
            done.lock().push((place, result));
        }
    };
    thread::scope(|scope| {
        let count = if IS_INNER.get() { 1 } else { AT_ONCE.min(items.len()) };
        for _ in 1..count {
            let inner = || {
                IS_INNER.set(true);
                each();
            };
            let begun = thread::Builder::new().name("at once".to_owned()).spawn_scoped(scope, inner);
            // The others do its part.
            if let Err(error) = begun {
                log::warn!("starting a thread: {error}");
                break;
            }
        }
        each();
    });
    let mut done = done.into_inner();
    done.sort_unstable_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Work by keys, which one thread does for all that want it meanwhile.
pub(in crate::store) struct InFlight<K, V> {
    begun: Mutex<HashMap<K, Arc<Flight<V>>>>,
}

/// Work that a thread has begun.
struct Flight<V> {
    state: Mutex<FlightState<V>>,
    ended: Condvar,
}

enum FlightState<V> {
    Begun,
    /// `None` if its thread has panicked.
    Ended(Option<V>),
}

impl<K, V> Default for InFlight<K, V> {
    fn default() -> InFlight<K, V> {
        InFlight { begun: Mutex::default() }
    }
}

impl<V> Flight<V> {
    fn end(&self, result: Option<V>) {
        let mut state = self.state.lock();
        if matches!(*state, FlightState::Begun) {
            *state = FlightState::Ended(result);
        }
        self.ended.notify_all();
    }
}

impl<K: Clone + Eq + Hash, V: Clone> InFlight<K, V> {
    /// The result of `work`, or of that which another thread has begun for the same key and not ended.
    pub fn run(&self, key: &K, work: impl FnOnce() -> V) -> V {
        let own = loop {
            let flight = {
                let mut begun = self.begun.lock();
                match begun.get(key) {
                    Some(flight) => flight.clone(),
                    None => {
                        let state = Mutex::new(FlightState::Begun);
                        let own = Arc::new(Flight { state, ended: Condvar::new() });
                        begun.insert(key.clone(), own.clone());
                        break own;
                    }
                }
            };
            let mut state = flight.state.lock();
            loop {
                match &*state {
                    FlightState::Begun => flight.ended.wait(&mut state),
                    FlightState::Ended(Some(result)) => return result.clone(),
                    FlightState::Ended(None) => break,
                }
            }
        };
        let landing = Landing { all: self, key, own: &own };
        let result = work();
        own.end(Some(result.clone()));
        drop(landing);
        result
    }
}

/// Ends the work for a key, also if it panics.
struct Landing<'a, K: Eq + Hash, V> {
    all: &'a InFlight<K, V>,
    key: &'a K,
    own: &'a Flight<V>,
}

impl<K: Eq + Hash, V> Drop for Landing<'_, K, V> {
    fn drop(&mut self) {
        self.all.begun.lock().remove(self.key);
        self.own.end(None);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::{AT_ONCE, InFlight, at_once};

    #[test]
    fn work_for_a_key_is_done_once_for_all_that_wait_and_again_after_a_panic() {
        let (flights, done, barrier) = (InFlight::default(), AtomicUsize::new(0), Barrier::new(8));
        let work = || {
            std::thread::sleep(Duration::from_millis(300));
            done.fetch_add(1, Ordering::SeqCst)
        };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    assert_eq!(flights.run(&"a", work), 0);
                });
            }
        });
        assert_eq!(flights.run(&"a", work), 1, "the result is not kept");
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                flights.run(&"b", || {
                    barrier.wait();
                    std::thread::sleep(Duration::from_millis(100));
                    panic!("on purpose")
                })
            });
            let others: Vec<_> = (0..7)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        flights.run(&"b", || 7)
                    })
                })
                .collect();
            others.into_iter().for_each(|other| assert_eq!(other.join().unwrap(), 7));
            assert!(panics.join().is_err());
        });
    }

    #[test]
    fn results_have_the_order_of_the_items_and_64_are_worked_on_at_a_time() {
        assert_eq!(at_once(&[0; 0], |item| *item), [0; 0]);
        let items: Vec<usize> = (0..2 * AT_ONCE).collect();
        // It opens only for all of them.
        let barrier = Barrier::new(AT_ONCE);
        let doubled = at_once(&items, |item| {
            barrier.wait();
            2 * item
        });
        assert!(doubled.iter().zip(&items).all(|(doubled, item)| *doubled == 2 * item));
        assert_eq!(doubled.len(), items.len());
        let id = || std::thread::current().id();
        let caller = id();
        let are_alone = at_once(&items, |_| {
            let own = id();
            own == caller || at_once(&items, |_| id() == own).into_iter().all(|is_own| is_own)
        });
        assert!(are_alone.into_iter().all(|is_alone| is_alone), "64 threads, not 64 for each of 64");
    }
}
