//! Threads that wait for a remote. Their number is bounded: a remote that is silent would otherwise add some at each listing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads of a mount that may wait at a time. A listing has 64 of them, and so has a tenant that is opened.
const THREADS_MAX: usize = 256;

/// The threads of a mount that wait.
#[derive(Default)]
pub(super) struct WaitingThreads {
    running: AtomicUsize,
}

/// A thread, until it ends, also by a panic.
struct Running(Arc<WaitingThreads>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WaitingThreads {
    /// Does `work` on a thread of its own. Fails if too many wait.
    pub fn start(self: &Arc<Self>, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let running = Running(self.clone());
        if self.running.fetch_add(1, Ordering::Relaxed) >= THREADS_MAX {
            return Err(io::Error::other(format!(
                "{THREADS_MAX} requests of this mount wait for the remote"
            )));
        }
        let work = move || {
            let _running = running;
            work();
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::sync::{Arc, mpsc};

    use super::{THREADS_MAX, WaitingThreads};

    #[test]
    fn threads_are_bounded_and_those_that_ended_or_did_not_begin_do_not_count() {
        let threads = Arc::new(WaitingThreads::default());
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(parking_lot::Mutex::new(ended));
        for _ in 0..THREADS_MAX {
            let ended = ended.clone();
            threads.start("waits", move || assert!(ended.lock().recv().is_err())).unwrap();
        }
        for _ in 0..3 {
            let refused = threads.start("more", || panic!("it must not begin")).unwrap_err();
            assert!(refused.to_string().contains("wait for the remote"), "{refused}");
        }
        drop(end);
        while threads.running.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        threads.start("again", || {}).unwrap();
    }
}
