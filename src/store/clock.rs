//! Clocks of a store, and the ticks that accesses are counted in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use crate::model::{Clock, now_nanoseconds, now_seconds, set_host_clock};
use crate::store::settings::TICK_SECONDS;

/// The clock of the host.
pub struct HostClock;

impl Clock for HostClock {
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
        Ticks::new(Arc::new(HostClock), TICK_SECONDS)
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
