//! Limits of time, and waiting for a condition.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time limit for a program or a condition.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The factor by which random and time-boxed tests run longer than in `make test`.
pub fn scale() -> u32 {
    std::env::var("TIERFS_TEST_SCALE").map_or(1, |text| text.parse().unwrap())
}

/// Waits until `condition` holds; `what` names it in the failure.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Whether a time-boxed test continues: its time is not over, or it has done less than `enough`, as on a busy machine.
/// The runner ends a test that makes no progress.
pub fn goes_on(until: Instant, done: u64, enough: u64) -> bool {
    Instant::now() < until || done < enough
}

/// Sets a flag when it is dropped, also during a panic.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
