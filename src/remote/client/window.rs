//! The number of requests that are made at a time.
//!
//! The limit grows by one with each window of successes and is halved when the server has too much to do, as
//! TCP does with its segments.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

const LIMIT_START: usize = 8;
const LIMIT_MAX: usize = 128;
/// The least limit of a server that refuses requests.
pub(super) const LIMIT_MIN: usize = 1;
/// The least limit of a server that leaves some requests without an answer. These leave their places to others anyway, so
/// fewer places would only delay the objects that it does send.
pub(super) const LIMIT_SILENT: usize = LIMIT_START / 2;
/// Requests that may go on without a place.
const DEPARTED_MAX: usize = LIMIT_MAX / 2;
/// Bytes of all requests in flight.
const BYTES_MAX: u64 = 1 << 30;
/// Failures within this time count as one.
const HALVED_EVERY: Duration = Duration::from_secs(1);

/// Which of two waiting requests comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// A reader waits for the bytes.
    Demand,
    /// A reader may want them soon. One in four places is left for demands.
    Ahead,
}

/// The requests in flight, and those that wait.
#[derive(Default)]
pub struct Window {
    state: Mutex<State>,
}

struct State {
    limit: usize,
    active: usize,
    bytes: u64,
    /// Requests in flight that have left their places.
    departed: usize,
    /// Successes since the limit last changed.
    succeeded: usize,
    halved: Option<Instant>,
    /// When the server last left a request without an answer.
    silent: Option<Instant>,
    demands: VecDeque<Waiting>,
    ahead: VecDeque<Waiting>,
}

struct Waiting {
    bytes: u64,
    since: Instant,
    enter: oneshot::Sender<Permit>,
}

impl Default for State {
    fn default() -> State {
        State {
            limit: LIMIT_START,
            active: 0,
            bytes: 0,
            departed: 0,
            succeeded: 0,
            halved: None,
            silent: None,
            demands: VecDeque::new(),
            ahead: VecDeque::new(),
        }
    }
}

/// A place in the window, until it is dropped.
pub struct Permit {
    window: Arc<Window>,
    bytes: u64,
}

/// A request that goes on without a place.
pub(super) struct Departed {
    window: Arc<Window>,
}

impl Window {
    /// Waits for a place.
    pub async fn enter(self: &Arc<Window>, class: Class, bytes: u64) -> Permit {
        loop {
            let waiting = {
                let mut state = self.state.lock();
                if state.queue(class).is_empty() && state.has_room(class, bytes) {
                    state.take(bytes);
                    return Permit { window: self.clone(), bytes };
                }
                let (enter, waiting) = oneshot::channel();
                state.queue(class).push_back(Waiting { bytes, since: Instant::now(), enter });
                waiting
            };
            if let Ok(permit) = waiting.await {
                return permit;
            }
        }
    }

    /// Gives free places to those that wait. A permit whose request was cancelled is dropped, which comes
    /// here again.
    fn admit(self: &Arc<Window>) {
        loop {
            let next = {
                let mut state = self.state.lock();
                state.next()
            };
            let Some(next) = next else { return };
            drop(next.enter.send(Permit { window: self.clone(), bytes: next.bytes }));
        }
    }

    /// The most requests at a time, and those in flight.
    pub fn limit_and_active(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.limit, state.active)
    }

    /// Whether a demand has waited for a place for this long. Demands get places in their order.
    pub fn has_waited(&self, time: Duration) -> bool {
        let state = self.state.lock();
        let mut waiting = state.demands.iter().filter(|waiting| !waiting.enter.is_closed());
        waiting.next().is_some_and(|first| first.since.elapsed() >= time)
    }

    /// The requests in flight, and the bytes that they asked for.
    pub fn in_flight(&self) -> (usize, u64) {
        let state = self.state.lock();
        (state.active, state.bytes)
    }

    pub(super) fn succeeded(&self) {
        let mut state = self.state.lock();
        state.succeeded += 1;
        // An idle client learns nothing about the server.
        if state.succeeded >= state.limit {
            state.succeeded = 0;
            state.limit = (state.limit + 1).min(LIMIT_MAX);
        }
    }

    /// Notes that the server has left a request without an answer.
    pub(super) fn note_silence(&self) {
        self.state.lock().silent = Some(Instant::now());
    }

    /// Whether a further request may go on without a place.
    pub(super) fn may_leave(&self) -> bool {
        self.state.lock().departed < DEPARTED_MAX
    }

    /// Whether the server has left a request without an answer in this last time.
    pub(super) fn was_silent_within(&self, time: Duration) -> bool {
        self.state.lock().silent.is_some_and(|silent| silent.elapsed() < time)
    }

    /// Halves the limit, to no less than `least`.
    pub(super) fn slow_down(&self, least: usize) {
        let mut state = self.state.lock();
        let now = Instant::now();
        if state.halved.is_none_or(|halved| now.duration_since(halved) >= HALVED_EVERY) {
            state.limit = (state.limit / 2).max(least.min(state.limit));
            state.succeeded = 0;
            state.halved = Some(now);
        }
    }
}

impl State {
    fn queue(&mut self, class: Class) -> &mut VecDeque<Waiting> {
        match class {
            Class::Demand => &mut self.demands,
            Class::Ahead => &mut self.ahead,
        }
    }

    /// Whether a request of `bytes` fits. One always does.
    fn has_room(&self, class: Class, bytes: u64) -> bool {
        let limit = match class {
            Class::Demand => self.limit,
            Class::Ahead => (self.limit - self.limit / 4).max(1),
        };
        self.active == 0 || (self.active < limit && self.bytes.saturating_add(bytes) <= BYTES_MAX)
    }

    fn take(&mut self, bytes: u64) {
        self.active += 1;
        self.bytes += bytes;
    }

    /// Takes a place for the first request that waits, demands first.
    fn next(&mut self) -> Option<Waiting> {
        for class in [Class::Demand, Class::Ahead] {
            let Some(bytes) = self.queue(class).front().map(|waiting| waiting.bytes) else { continue };
            if self.has_room(class, bytes) {
                self.take(bytes);
                return self.queue(class).pop_front();
            }
        }
        None
    }
}

impl Permit {
    /// Leaves the place to others, while the request goes on until this is dropped.
    pub(super) fn leave(self) -> Departed {
        self.window.state.lock().departed += 1;
        Departed { window: self.window.clone() }
    }
}

impl Drop for Departed {
    fn drop(&mut self) {
        let mut state = self.window.state.lock();
        state.departed = state.departed.saturating_sub(1);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        {
            let mut state = self.window.state.lock();
            state.active = state.active.saturating_sub(1);
            state.bytes = state.bytes.saturating_sub(self.bytes);
        }
        self.window.admit();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{BYTES_MAX, Class, LIMIT_MIN, LIMIT_SILENT, LIMIT_START, Permit, Window};
    use crate::remote::client::runtime::wait;

    /// Enters at once, or not at all.
    fn entered(window: &Arc<Window>, class: Class, bytes: u64) -> Option<Permit> {
        wait(async { tokio::time::timeout(Duration::from_millis(20), window.enter(class, bytes)).await.ok() })
            .unwrap()
    }

    #[test]
    fn demands_find_a_place_where_requests_ahead_do_not() {
        let window = Arc::new(Window::default());
        let ahead: Vec<Permit> =
            std::iter::from_fn(|| entered(&window, Class::Ahead, 1)).take(LIMIT_START).collect();
        assert_eq!(ahead.len(), LIMIT_START - LIMIT_START / 4);
        let demands: Vec<Permit> =
            std::iter::from_fn(|| entered(&window, Class::Demand, 1)).take(LIMIT_START).collect();
        assert_eq!(ahead.len() + demands.len(), LIMIT_START);
        // Those that gave up while they waited have left no trace.
        drop(demands);
        drop(ahead);
        assert_eq!(window.limit_and_active(), (LIMIT_START, 0));
        assert!(entered(&window, Class::Ahead, 1).is_some());
    }

    #[test]
    fn a_wait_counts_once_it_is_long_and_is_that_of_a_demand() {
        let window = Arc::new(Window::default());
        let taken: Vec<Permit> =
            (0..LIMIT_START).map(|_| entered(&window, Class::Demand, 0).unwrap()).collect();
        let wait_in = |class| {
            let window = window.clone();
            drop(crate::remote::client::runtime::spawn(async move { drop(window.enter(class, 0).await) }));
        };
        wait_in(Class::Ahead);
        while window.state.lock().ahead.is_empty() {
            std::thread::yield_now();
        }
        assert!(!window.has_waited(Duration::ZERO), "nobody waits for bytes that may be wanted soon");
        wait_in(Class::Demand);
        while window.state.lock().demands.is_empty() {
            std::thread::yield_now();
        }
        assert!(!window.has_waited(Duration::from_secs(30)) && window.has_waited(Duration::ZERO));
        drop(taken);
    }

    #[test]
    fn bytes_in_flight_are_bounded_but_one_request_always_fits() {
        let window = Arc::new(Window::default());
        let large = entered(&window, Class::Demand, BYTES_MAX + 1).unwrap();
        assert!(entered(&window, Class::Demand, 1).is_none());
        drop(large);
        assert!(entered(&window, Class::Demand, 1).is_some());
    }

    #[test]
    fn the_limit_grows_with_each_window_of_successes_and_failures_in_a_row_halve_it_once() {
        let window = Arc::new(Window::default());
        (0..LIMIT_START + LIMIT_START + 1).for_each(|_| window.succeeded());
        assert_eq!(window.limit_and_active().0, LIMIT_START + 2);
        window.slow_down(LIMIT_MIN);
        window.slow_down(LIMIT_MIN);
        assert_eq!(window.limit_and_active().0, (LIMIT_START + 2) / 2);
    }

    #[test]
    fn silence_leaves_places_and_raises_no_limit_that_refusals_have_lowered() {
        let window = Arc::new(Window::default());
        let halve = |least, times| {
            for _ in 0..times {
                window.state.lock().halved = None;
                window.slow_down(least);
            }
            window.limit_and_active().0
        };
        assert_eq!(halve(LIMIT_SILENT, 5), LIMIT_SILENT);
        assert_eq!(halve(LIMIT_MIN, 5), LIMIT_MIN);
        assert_eq!(halve(LIMIT_SILENT, 1), LIMIT_MIN);
    }

    #[test]
    fn a_freed_place_goes_to_the_demand_that_waits_before_requests_ahead() {
        let window = Arc::new(Window::default());
        let mut taken: Vec<Permit> =
            (0..LIMIT_START).map(|_| entered(&window, Class::Demand, 0).unwrap()).collect();
        let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let [ahead, demand] = [Class::Ahead, Class::Demand].map(|class| {
            let (window, order) = (window.clone(), order.clone());
            let waits = crate::remote::client::runtime::spawn(async move {
                let permit = window.enter(class, 0).await;
                order.lock().push(class);
                drop(permit);
            });
            waits.unwrap()
        });
        while {
            let state = window.state.lock();
            state.demands.len() + state.ahead.len() < 2
        } {
            std::thread::yield_now();
        }
        // One place first: with several, both would go on at once.
        drop(taken.pop());
        wait(demand).unwrap().unwrap();
        drop(taken);
        wait(ahead).unwrap().unwrap();
        assert_eq!(*order.lock(), [Class::Demand, Class::Ahead]);
    }
}
