//! Bounds the memory of layouts that are being made at the same time.

use parking_lot::{Condvar, Mutex};

/// Bytes of files from which layouts are made at a time. A layout that needs more is made alone.
const BYTES_MAX: u64 = 64 << 20;

/// The bytes of files from which layouts are being made.
static BYTES: Mutex<u64> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

/// The right to make a layout from so many bytes. It ends when this is dropped.
pub(super) struct Planned(u64);

impl Planned {
    /// Waits until others need few enough bytes.
    pub fn wait(bytes: u64) -> Planned {
        let bytes = bytes.min(BYTES_MAX);
        let mut sum = BYTES.lock();
        FREED.wait_while(&mut sum, |sum| *sum + bytes > BYTES_MAX);
        *sum += bytes;
        Planned(bytes)
    }
}

impl Drop for Planned {
    fn drop(&mut self) {
        *BYTES.lock() -= self.0;
        FREED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::{BYTES_MAX, Planned};

    #[test]
    fn layouts_of_many_bytes_are_made_one_at_a_time() {
        let made = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for share in [4, 1, 2, 1, 4, 3, 0] {
                let made = &made;
                scope.spawn(move || {
                    let bytes = BYTES_MAX * 5 / 4 * share / 4;
                    let planned = Planned::wait(bytes);
                    let now = made.fetch_add(bytes.min(BYTES_MAX), Ordering::SeqCst);
                    assert!(now + bytes.min(BYTES_MAX) <= BYTES_MAX);
                    std::thread::sleep(std::time::Duration::from_millis(2));
                    made.fetch_sub(bytes.min(BYTES_MAX), Ordering::SeqCst);
                    drop(planned);
                });
            }
        });
    }
}
