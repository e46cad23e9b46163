//! The time that requests and repetitions may take.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use crate::remote::client::window::LIMIT_SILENT;

/// The last part of the time of an operation, in which nothing is repeated: one in so many.
const LAST: u32 = 20;
/// While the server leaves requests without an answer, one that receives nothing leaves its place to others after this part
/// of the time.
pub(super) const REPEATED: u32 = 5;

/// Times after which a request is repeated, doubled or given up.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// Without a byte for this long, a second request is made, and the first one to answer wins.
    pub stall: Duration,
    /// Without a byte for this long, a request is given up.
    pub silence: Duration,
    /// An upload, or a deletion, takes no longer than this.
    pub upload: Duration,
    /// Without progress for this long, an operation fails, with all that belongs to it: the wait for its turn,
    /// repetitions, and second requests.
    pub total: Duration,
    /// The pause before the first repetition. Each further one is three times as long, up to
    /// [`Deadlines::pause_max`].
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines {
            stall: Duration::from_secs(5),
            silence: Duration::from_secs(10),
            upload: Duration::from_secs(120),
            total: Duration::from_secs(60),
            pause: Duration::from_millis(200),
            pause_max: Duration::from_secs(10),
        }
    }
}

/// The pauses before repetitions, and the deadline of an operation without progress.
pub(super) struct Pauses {
    /// The last progress.
    pub since: Instant,
    pub total: Duration,
    next: Duration,
    longest: Duration,
    /// Whether the server has left a request of the operation without an answer.
    pub was_silent: bool,
    /// The least number of requests at a time after it has.
    pub least_places: usize,
}

impl Pauses {
    pub fn new(deadlines: Deadlines) -> Pauses {
        let (total, next, longest) = (deadlines.total, deadlines.pause, deadlines.pause_max);
        Pauses { since: Instant::now(), total, next, longest, was_silent: false, least_places: LIMIT_SILENT }
    }

    /// The time until the deadline.
    pub fn left(&self) -> Duration {
        self.total.saturating_sub(self.since.elapsed())
    }

    /// The next pause, half to all of its length at random, and less before the deadline; `None` if that has come.
    pub fn next(&mut self) -> Option<Duration> {
        let pause = self.next;
        self.next = pause.saturating_mul(3).min(self.longest);
        let (left, pause) = (self.left(), pause.mul_f64(0.5 + 0.5 * random()));
        (left > self.total / LAST).then(|| pause.min(left.mul_f64(0.75)))
    }

    /// The next pause, which takes at least the time that the server wants; `None` if the deadline comes before.
    pub fn at_least(&mut self, wanted: Duration) -> Option<Duration> {
        let pause = self.next()?.max(wanted);
        (pause < self.left()).then_some(pause)
    }
}

/// A number from 0 to 1 that differs from call to call.
fn random() -> f64 {
    let hash = RandomState::new().build_hasher().finish();
    hash as f64 / u64::MAX as f64
}
