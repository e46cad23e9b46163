//! Names that the kernel caches, and their invalidation.
//!
//! Names of a container's tensors are created and removed with the container, without a request of
//! the kernel. Invalidating one waits for the lock of its directory, which the daemon must not wait
//! for (`fs/state/invalidate.rs`). Linux 6.16 and later can invalidate all names at once
//! (FUSE_NOTIFY_INC_EPOCH): this waits for nothing, and the kernel looks each name up again at its
//! next use. Older kernels do not cache such names.
//!
//! The kernel also unmounts what is mounted on a directory whose name is invalidated. So the
//! notification is sent only where the kernel may cache such names: some were sent to it shortly
//! before.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::fs::kernel::notify::invalidate_names;

/// By then the kernel has processed a reply to a listing. It counts names of a listing as new when it
/// processes them, whenever the request was made.
const TAKEN_IN_AFTER: Duration = Duration::from_secs(1);

/// Invalidates cached names in the kernel.
pub(in crate::fs) struct Names {
    is_supported: AtomicBool,
    /// Number of changes of names.
    changes: AtomicU64,
    /// When the kernel was last sent one, in milliseconds after `since`; 0 before the first.
    last_sent: AtomicU64,
    since: Instant,
    /// How long the kernel caches them.
    cached_for: Duration,
    /// The mount's device, while it is mounted. No lock is taken with it held.
    device: Mutex<Option<OwnedFd>>,
    /// Time of the last notification, until it is repeated.
    notified_at: Mutex<Option<Instant>>,
}

impl Names {
    /// Names that the kernel caches for `cached_for`, if it supports the notification.
    pub fn new(cached_for: Duration) -> Names {
        Names {
            is_supported: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            last_sent: AtomicU64::new(0),
            since: Instant::now(),
            cached_for,
            device: Mutex::default(),
            notified_at: Mutex::default(),
        }
    }

    /// Begins to cache names. The kernel supports the notification.
    pub fn begin(&self, device: OwnedFd) {
        *self.device.lock() = Some(device);
        self.is_supported.store(true, Ordering::Release);
    }

    /// Ends the caching of names.
    pub fn end(&self) {
        self.is_supported.store(false, Ordering::Release);
        self.device.lock().take();
    }

    /// Number of changes so far; callers read it before a lookup.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Whether the kernel may cache the name of a tensor that was looked up after `changes`. Counts
    /// the name as sent, so that a later change notifies the kernel.
    pub fn may_be_cached(&self, changes: u64) -> bool {
        if !self.is_supported.load(Ordering::Acquire) {
            return false;
        }
        self.last_sent.store(self.now(), Ordering::SeqCst);
        self.changes() == changes
    }

    /// Invalidates all names, if the kernel may cache any of a tensor.
    pub fn invalidate(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        let last_sent = self.last_sent.load(Ordering::SeqCst);
        // A reply takes a while to reach the kernel.
        let until = last_sent.saturating_add((self.cached_for + TAKEN_IN_AFTER).as_millis() as u64);
        if last_sent > 0 && self.now() <= until && self.notify() {
            *self.notified_at.lock() = Some(Instant::now());
        }
    }

    /// Invalidates all names, also those of directories and files.
    pub fn invalidate_all(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        if self.notify() {
            *self.notified_at.lock() = Some(Instant::now());
        }
    }

    /// Milliseconds after `since`, at least 1.
    fn now(&self) -> u64 {
        self.since.elapsed().as_millis() as u64 + 1
    }

    /// Repeats the notification for names from listings that were in progress at the first one.
    pub fn notify_again(&self, now: Instant) {
        let is_due = |notified_at: &mut Instant| now.duration_since(*notified_at) >= TAKEN_IN_AFTER;
        if self.notified_at.lock().take_if(is_due).is_some() {
            self.notify();
        }
    }

    fn notify(&self) -> bool {
        let device = self.device.lock();
        let Some(device) = device.as_ref() else { return false };
        // This fails after the unmount, when no names are cached.
        invalidate_names(device)
            .inspect_err(|error| log::debug!("the kernel may show old names: {error}"))
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    use super::{Names, TAKEN_IN_AFTER};

    fn names() -> Names {
        Names::new(Duration::from_secs(3600))
    }

    #[test]
    fn a_device_without_support_gets_no_notification() {
        let names = names();
        assert!(!names.may_be_cached(names.changes()));
        names.invalidate();
        names.notify_again(Instant::now() + TAKEN_IN_AFTER);
    }

    #[test]
    fn names_are_notified_again_after_a_while_and_never_after_the_end() {
        let (mut out, into) = std::io::pipe().unwrap();
        let names = names();
        names.begin(OwnedFd::from(into));
        // No name is cached yet.
        names.invalidate();
        assert!(names.may_be_cached(names.changes()));
        names.invalidate();
        let now = Instant::now();
        for later in [now, now + TAKEN_IN_AFTER, now + 3 * TAKEN_IN_AFTER] {
            names.notify_again(later);
        }
        names.end();
        names.invalidate();
        let mut sent = Vec::new();
        out.read_to_end(&mut sent).unwrap();
        let once = [16, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(sent, [once, once].concat(), "at once, once more");
    }

    #[test]
    fn a_name_that_changed_during_its_lookup_is_not_cached() {
        let (_out, into) = std::io::pipe().unwrap();
        let names = names();
        names.begin(OwnedFd::from(into));
        let asked = names.changes();
        names.invalidate();
        assert!(!names.may_be_cached(asked));
        assert!(names.may_be_cached(names.changes()));
    }

    #[test]
    fn an_expired_name_needs_no_notification() {
        let (mut out, into) = std::io::pipe().unwrap();
        let mut names = Names::new(Duration::ZERO);
        names.begin(OwnedFd::from(into));
        assert!(names.may_be_cached(names.changes()));
        names.since = names.since.checked_sub(2 * TAKEN_IN_AFTER).unwrap();
        names.invalidate();
        names.end();
        let mut sent = Vec::new();
        out.read_to_end(&mut sent).unwrap();
        assert!(sent.is_empty());
    }
}
