//! Replies that wait, and the entries that they hold.
//!
//! A request has its entry until it is answered. A reply may wait for an invalidation (`fs/state/invalidate.rs`), which waits for
//! pages whose reads and writes need entries of the same queue. So of each queue one entry never has a reply that waits:
//! [`Wait::begin`] refuses the last. That entry is answered without waiting, and the kernel, which gets it back with the
//! reply, puts the first request of its own queue into it. Requests that have a thread of their own take long; so that
//! the last entry is not with one of them, they count as well.
//!
//! From the device come any number of requests, but only `max_background` of those that programs do not wait for, such
//! as read-ahead. A smaller number of replies may wait there.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A queue of requests, by those that are not answered soon.
#[derive(Debug)]
pub(in crate::fs) struct Queue {
    /// The number of requests that the daemon may have at a time.
    entries: AtomicUsize,
    /// Replies that wait, and requests with a thread of their own.
    kept: AtomicUsize,
}

impl Queue {
    pub fn new(entries: usize) -> Arc<Queue> {
        Arc::new(Queue { entries: AtomicUsize::new(entries), kept: AtomicUsize::new(0) })
    }

    /// Notes that the kernel has taken fewer entries.
    pub(super) fn set_entries(&self, entries: usize) {
        self.entries.store(entries, Ordering::Release);
    }
}

/// The request that a thread answers.
#[derive(Clone)]
struct Current {
    queue: Arc<Queue>,
    has_own_thread: bool,
}

thread_local! {
    /// The request that this thread answers; none if it has come from the device.
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// Puts the request before back, also after a panic.
struct Restored(Option<Current>);

impl Drop for Restored {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Answers a request of a queue on this thread.
pub(super) fn answer_of<T>(queue: Option<Arc<Queue>>, answer: impl FnOnce() -> T) -> T {
    let current = queue.map(|queue| Current { queue, has_own_thread: false });
    let _restored = Restored(CURRENT.replace(current));
    answer()
}

/// Work on the request of this thread that a thread of its own does.
pub(in crate::fs) fn on_own<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let kept = CURRENT.with_borrow(Clone::clone).map(|current| {
        current.queue.kept.fetch_add(1, Ordering::AcqRel);
        Wait(current.queue)
    });
    move || {
        let of_kept = |kept: &Wait| Current { queue: kept.0.clone(), has_own_thread: true };
        let _restored = Restored(CURRENT.replace(kept.as_ref().map(of_kept)));
        work()
    }
}

/// The permission for a reply to wait, until it is dropped.
#[derive(Debug)]
pub(in crate::fs) struct Wait(Arc<Queue>);

impl Wait {
    /// The permission for the reply to this thread's request, which is of `device` unless it came over io_uring. `None`
    /// if the other entries of the queue are kept.
    pub fn begin(device: &Arc<Queue>) -> Option<Wait> {
        let (queue, own) = match CURRENT.with_borrow(Clone::clone) {
            Some(current) => (current.queue, usize::from(current.has_own_thread)),
            None => (device.clone(), 0),
        };
        let most = queue.entries.load(Ordering::Acquire).saturating_sub(1);
        let more = |kept| (kept < most + own).then_some(kept + 1);
        queue.kept.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Wait(queue))
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.0.kept.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::{Queue, Wait, answer_of, on_own};

    #[test]
    fn the_last_entry_of_a_queue_never_has_a_reply_that_waits() {
        let device = Queue::new(2);
        for entries in 0..4 {
            let queue = Queue::new(entries);
            answer_of(Some(queue.clone()), || {
                let mut waits: Vec<Wait> = (1..entries).map(|_| Wait::begin(&device).unwrap()).collect();
                assert!(Wait::begin(&device).is_none());
                if waits.pop().is_some() {
                    let again = Wait::begin(&device).unwrap();
                    assert!(Wait::begin(&device).is_none());
                    drop(again);
                }
            });
        }
        // No request of these queues is answered now.
        let of_the_device = Wait::begin(&device).unwrap();
        assert!(Wait::begin(&device).is_none());
        drop(of_the_device);
        let queue = Queue::new(8);
        queue.set_entries(1);
        assert!(answer_of(Some(queue), || Wait::begin(&device)).is_none());
    }

    #[test]
    fn a_request_with_a_thread_of_its_own_leaves_one_entry_less_to_replies_that_wait() {
        let (device, queue) = (Queue::new(2), Queue::new(3));
        let begin = || answer_of(Some(queue.clone()), || Wait::begin(&device));
        let own = answer_of(Some(queue.clone()), || on_own(|| Wait::begin(&device)));
        let first = begin().unwrap();
        assert!(begin().is_none());
        // Its own reply may wait, in place of the thread.
        let last = own().unwrap();
        assert!(begin().is_none());
        drop(first);
        assert!(begin().is_some());
        drop(last);
        let [one, other] = [begin(), begin()];
        assert!(one.is_some() && other.is_some() && begin().is_none());
    }
}
