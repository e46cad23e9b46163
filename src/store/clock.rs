//! The time of the system, and the clock interface: other hosts have their own clock, and tests set one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::store::settings::TICK_SECONDS;

/// Seconds since 1970.
pub fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Nanoseconds since 1970.
pub fn now_nanoseconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

/// A wall clock. It may go back.
pub trait Clock: Send + Sync {
    /// Seconds since 1970.
    fn seconds(&self) -> u64;
}

/// The clock of the operating system.
pub struct SystemClock;

impl Clock for SystemClock {
    fn seconds(&self) -> u64 {
        now_seconds()
    }
}

/// A clock that stands still until it is set.
#[derive(Default)]
pub struct SetClock(AtomicU64);

impl SetClock {
    /// Sets it to this many seconds since 1970.
    pub fn set(&self, seconds: u64) {
        self.0.store(seconds, Ordering::Relaxed);
    }
}

impl Clock for SetClock {
    fn seconds(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A clock, and the length of the ticks that accesses are counted in.
#[derive(Clone)]
pub struct Ticks {
    clock: Arc<dyn Clock>,
    seconds: u32,
}

impl Default for Ticks {
    fn default() -> Ticks {
        Ticks::new(Arc::new(SystemClock), TICK_SECONDS)
    }
}

impl Ticks {
    /// Ticks of this many seconds, at least 1.
    pub fn new(clock: Arc<dyn Clock>, seconds: u32) -> Ticks {
        Ticks { clock, seconds: seconds.max(1) }
    }

    /// Seconds since 1970.
    pub fn seconds(&self) -> u64 {
        self.clock.seconds()
    }

    /// The current tick.
    pub fn now(&self) -> u32 {
        self.of(self.seconds())
    }

    /// The tick of a time in seconds since 1970.
    pub fn of(&self, seconds: u64) -> u32 {
        u32::try_from(seconds / u64::from(self.seconds)).unwrap_or(u32::MAX)
    }

    /// Start of a tick, in seconds since 1970.
    pub fn begins(&self, tick: u32) -> u64 {
        u64::from(tick) * u64::from(self.seconds)
    }

    /// Length of a tick in seconds.
    pub fn length(&self) -> u32 {
        self.seconds
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{SetClock, Ticks};

    #[test]
    fn a_tick_begins_where_the_one_before_it_ends() {
        let clock = Arc::new(SetClock::default());
        let ticks = Ticks::new(clock.clone(), 60);
        for (seconds, tick) in [(0, 0), (59, 0), (60, 1), (61, 1), (6000, 100)] {
            clock.set(seconds);
            assert_eq!(ticks.now(), tick);
        }
        assert_eq!(ticks.begins(100), 6000);
    }
}
