//! The time. The host's clock is that of the system, unless the host sets another one: `wasm32-unknown-unknown` has none,
//! and the standard library panics where it is asked.

use std::ops::Add;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::model::{Error, ErrorKind, Result};

/// A clock. The wall clock may go back.
pub trait Clock: Send + Sync {
    /// Seconds since 1970.
    fn seconds(&self) -> u64;

    /// Nanoseconds since 1970.
    fn nanoseconds(&self) -> i64 {
        i64::try_from(self.seconds()).unwrap_or(i64::MAX).saturating_mul(1_000_000_000)
    }

    /// The time since a moment that stays the same. A host with a clock that does not go back gives that one.
    fn steady(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.nanoseconds()).unwrap_or(0))
    }
}

/// The clock of the operating system.
struct SystemClock;

/// The beginning of the steady time of the system.
static BEGUN: OnceLock<std::time::Instant> = OnceLock::new();

impl Clock for SystemClock {
    fn seconds(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    fn nanoseconds(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    }

    fn steady(&self) -> Duration {
        BEGUN.get_or_init(std::time::Instant::now).elapsed()
    }
}

static HOST: OnceLock<Box<dyn Clock>> = OnceLock::new();

/// Sets the clock for everything in this process. A host without a clock calls it before it opens a store.
///
/// # Errors
/// `Busy` if a clock was set before.
pub fn set_host_clock(clock: Box<dyn Clock>) -> Result<()> {
    HOST.set(clock).map_err(|_| Error::new(ErrorKind::Busy, "the clock of this process was set before"))
}

fn host() -> &'static dyn Clock {
    HOST.get().map_or(&SystemClock, |clock| &**clock)
}

/// Seconds since 1970.
pub fn now_seconds() -> u64 {
    host().seconds()
}

/// Nanoseconds since 1970.
pub fn now_nanoseconds() -> i64 {
    host().nanoseconds()
}

/// A moment by the steady time of the host, in place of that of the standard library.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Instant(Duration);

impl Instant {
    /// This moment.
    pub fn now() -> Instant {
        Instant(host().steady())
    }

    /// The time since then; 0 if the clock of the host went back.
    pub fn elapsed(&self) -> Duration {
        host().steady().saturating_sub(self.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(duration))
    }
}
