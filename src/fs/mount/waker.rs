//! Wakes the thread that waits for the end of a mount, so that an idle daemon sleeps.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::model::{Error, Result};

/// A wake-up for one waiting thread.
pub struct Waker {
    heard: UnixStream,
    wake_handle: UnixStream,
    ended: AtomicBool,
}

impl Waker {
    /// Creates a waker without a pending wake-up.
    pub fn new() -> Result<Waker> {
        let failed = |error| Error::io("making a pair of sockets", error);
        let (heard, wake_handle) = UnixStream::pair().map_err(failed)?;
        // A writer never blocks: a full stream already wakes the reader.
        wake_handle.set_nonblocking(true).map_err(failed)?;
        Ok(Waker { heard, wake_handle, ended: AtomicBool::new(false) })
    }

    /// A stream for signal handlers: a byte written to it wakes the thread.
    pub fn wake_handle(&self) -> Result<UnixStream> {
        self.wake_handle.try_clone().map_err(|error| Error::io("taking hold of a socket", error))
    }

    /// Notes the end of the session and wakes the thread.
    pub(in crate::fs) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    pub(in crate::fs) fn wake(&self) {
        if let Err(error) = (&self.wake_handle).write(&[0]) {
            log::debug!("the end of the session is seen at the next look: {error}");
        }
    }

    /// Whether the session is over.
    pub(in crate::fs) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Sleeps until a wake-up, for at most `at_most`, which must not be zero.
    pub(in crate::fs) fn listen(&self, at_most: Duration) -> Result<()> {
        use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
        self.heard.set_read_timeout(Some(at_most)).map_err(|error| Error::io("waiting", error))?;
        match (&self.heard).read(&mut [0; 64]) {
            Err(error) if !matches!(error.kind(), WouldBlock | TimedOut | Interrupted) => {
                Err(Error::io("waiting", error))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::{Duration, Instant};

    use super::Waker;

    #[test]
    fn many_wakes_wake_a_waiter_once_and_at_once() {
        let waker = Waker::new().unwrap();
        let began = Instant::now();
        for _ in 0..100_000 {
            waker.end();
        }
        waker.listen(Duration::from_secs(60)).unwrap();
        assert!(waker.has_ended() && began.elapsed() < Duration::from_secs(50));
        let signalled = Waker::new().unwrap();
        signalled.wake_handle().unwrap().write_all(&[0]).unwrap();
        signalled.listen(Duration::from_secs(60)).unwrap();
        assert!(!signalled.has_ended() && began.elapsed() < Duration::from_secs(50));
        signalled.listen(Duration::from_millis(1)).unwrap();
    }
}
