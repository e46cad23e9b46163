//! Counts the bytes that pass a second.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::Mutex;

/// The rate is that of this many seconds.
const SECONDS: u64 = 5;

/// Bytes of the last seconds.
#[derive(Debug)]
pub struct Rate {
    begun: Instant,
    /// Bytes by the second since `begun` in which they passed, the last ones.
    passed: Mutex<VecDeque<(u64, u64)>>,
}

impl Default for Rate {
    fn default() -> Rate {
        Rate { begun: Instant::now(), passed: Mutex::default() }
    }
}

impl Rate {
    /// Counts bytes that pass now.
    pub fn add(&self, bytes: u64) {
        self.add_at(self.begun.elapsed().as_secs(), bytes);
    }

    /// Bytes a second, of the last whole seconds.
    pub fn now(&self) -> u64 {
        self.at(self.begun.elapsed().as_secs())
    }

    fn add_at(&self, second: u64, bytes: u64) {
        let mut passed = self.passed.lock();
        match passed.back_mut() {
            Some((last, sum)) if *last == second => *sum = sum.saturating_add(bytes),
            _ => {
                passed.push_back((second, bytes));
                // The present second is not whole.
                if passed.len() > SECONDS as usize + 1 {
                    passed.pop_front();
                }
            }
        }
    }

    fn at(&self, second: u64) -> u64 {
        let first = second.saturating_sub(SECONDS);
        let passed = self.passed.lock();
        let whole = passed.iter().filter(|(passed, _)| (first..second).contains(passed));
        let sum = whole.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        sum / (second - first).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::{Rate, SECONDS};

    #[test]
    fn the_rate_is_that_of_the_last_whole_seconds() {
        let rate = Rate::default();
        rate.add_at(0, 100);
        assert_eq!(rate.at(0), 0);
        assert_eq!(rate.at(1), 100);
        assert_eq!(rate.at(2), 50);
        (1..20).for_each(|second| {
            rate.add_at(second, 10);
            rate.add_at(second, 20);
        });
        rate.add_at(20, 1 << 40);
        assert_eq!(rate.at(20), 30);
        assert_eq!(rate.at(22), ((1 << 40) + 3 * 30) / SECONDS);
        assert_eq!(rate.at(99), 0);
    }
}
