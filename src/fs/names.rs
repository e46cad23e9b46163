//! Names that the kernel keeps, and how it is told that they are old.
//!
//! Names of a container's tensors come and go with the container, without a request that the
//! kernel would know them by. To take one from the kernel waits for the lock of its
//! directory, which must not be waited for (`fs/forget.rs`). Linux 6.16 and later can be told
//! that all names are old (FUSE_NOTIFY_INC_EPOCH): it waits for nothing, and each name is
//! asked for again when it is used next. Where it is not known, such names are not kept.
//!
//! The kernel also takes away what is mounted on a directory whose name is old. So it is told
//! only where it may have such names: some were given to it shortly before.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// An answer to a listing has been taken in by then. The kernel takes names of a listing for
/// new when it takes them in, whenever it asked for them.
const TAKEN_IN_AFTER: Duration = Duration::from_secs(1);

/// `struct fuse_out_header` of a notification: its length, its code, zero.
const HEADER_BYTES: u32 = 16;
const NOTIFY_INC_EPOCH: i32 = 8;

/// What makes the kernel look names up again.
pub(super) struct Names {
    can_be_old: AtomicBool,
    /// How often names have changed.
    changes: AtomicU64,
    /// When one was given last, in milliseconds after `since`; 0 before the first.
    page_cache: AtomicU64,
    since: Instant,
    /// How long the kernel keeps them.
    kept_for: Duration,
    /// The mount's device, while it is mounted. No lock is taken with it held.
    device: Mutex<Option<OwnedFd>>,
    /// When they became old last, until it is said once more.
    said: Mutex<Option<Instant>>,
}

impl Names {
    /// Names that the kernel keeps for so long, if it can be told.
    pub fn new(kept_for: Duration) -> Names {
        Names {
            can_be_old: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            page_cache: AtomicU64::new(0),
            since: Instant::now(),
            kept_for,
            device: Mutex::default(),
            said: Mutex::default(),
        }
    }

    /// Asks the kernel whether it can be told.
    pub fn begin(&self, device: OwnedFd) {
        match send(&device) {
            Ok(()) => {
                *self.device.lock() = Some(device);
                self.can_be_old.store(true, Ordering::Release);
            }
            Err(error) => {
                log::info!("names of tensors are not kept by this kernel ({error}): it is before 6.16")
            }
        }
    }

    /// Nobody keeps names any more.
    pub fn end(&self) {
        self.can_be_old.store(false, Ordering::Release);
        self.device.lock().take();
    }

    /// How often names have changed, for who is about to look one up.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Whether the kernel may keep the name of a tensor that was looked up after `changes`. It
    /// is as if it had got it already: a change from now on tells it.
    pub fn may_be_kept(&self, changes: u64) -> bool {
        if !self.can_be_old.load(Ordering::Acquire) {
            return false;
        }
        self.page_cache.store(self.now(), Ordering::SeqCst);
        self.changes() == changes
    }

    /// Has all names looked up again, if the kernel may have any of a tensor.
    pub fn are_old(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        let page_cache = self.page_cache.load(Ordering::SeqCst);
        // An answer takes a while to come to the kernel.
        let until = page_cache.saturating_add((self.kept_for + TAKEN_IN_AFTER).as_millis() as u64);
        if page_cache > 0 && self.now() <= until && self.tell() {
            *self.said.lock() = Some(Instant::now());
        }
    }

    /// Milliseconds, at least 1.
    fn now(&self) -> u64 {
        self.since.elapsed().as_millis() as u64 + 1
    }

    /// Says so once more of what came with listings that were under way.
    pub fn say_again(&self, now: Instant) {
        let is_due = |said: &mut Instant| now.duration_since(*said) >= TAKEN_IN_AFTER;
        if self.said.lock().take_if(is_due).is_some() {
            self.tell();
        }
    }

    fn tell(&self) -> bool {
        let device = self.device.lock();
        let Some(device) = device.as_ref() else { return false };
        // One that is not mounted any more keeps none.
        send(device).inspect_err(|error| log::debug!("names are old: {error}")).is_ok()
    }
}

fn send(device: &OwnedFd) -> std::io::Result<()> {
    let mut message = [0; HEADER_BYTES as usize];
    message[..4].copy_from_slice(&HEADER_BYTES.to_ne_bytes());
    message[4..8].copy_from_slice(&NOTIFY_INC_EPOCH.to_ne_bytes());
    rustix::io::write(device, &message)?;
    Ok(())
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
    fn a_device_that_does_not_know_of_it_is_not_told() {
        let names = names();
        names.begin(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        assert!(!names.may_be_kept(names.changes()));
        names.are_old();
        names.say_again(Instant::now() + TAKEN_IN_AFTER);
    }

    #[test]
    fn names_are_told_once_more_after_a_while_and_not_after_the_end() {
        let (mut out, into) = std::io::pipe().unwrap();
        let names = names();
        names.begin(OwnedFd::from(into));
        // Nobody has one.
        names.are_old();
        assert!(names.may_be_kept(names.changes()));
        names.are_old();
        let now = Instant::now();
        for later in [now, now + TAKEN_IN_AFTER, now + 3 * TAKEN_IN_AFTER] {
            names.say_again(later);
        }
        names.end();
        names.are_old();
        let mut told = Vec::new();
        out.read_to_end(&mut told).unwrap();
        let once = [16, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(told, [once, once, once].concat(), "at the beginning, at once, once more");
    }

    #[test]
    fn a_name_that_changed_while_it_was_looked_up_is_not_kept() {
        let (_out, into) = std::io::pipe().unwrap();
        let names = names();
        names.begin(OwnedFd::from(into));
        let asked = names.changes();
        names.are_old();
        assert!(!names.may_be_kept(asked));
        assert!(names.may_be_kept(names.changes()));
    }

    #[test]
    fn what_the_kernel_has_kept_for_long_enough_it_asks_for_by_itself() {
        let (mut out, into) = std::io::pipe().unwrap();
        let mut names = Names::new(Duration::ZERO);
        names.begin(OwnedFd::from(into));
        assert!(names.may_be_kept(names.changes()));
        names.since = names.since.checked_sub(2 * TAKEN_IN_AFTER).unwrap();
        names.are_old();
        names.end();
        let mut told = Vec::new();
        out.read_to_end(&mut told).unwrap();
        assert_eq!(told.len(), super::HEADER_BYTES as usize, "only at the beginning");
    }
}
