//! Requests of the kernel over io_uring.
//!
//! The kernel has a queue for each core and sends a request to the queue of the core on which the caller runs. A queue
//! has entries, each with a buffer. A command in a ring gives an entry to the kernel. It completes with a request in
//! the buffer; the next command takes the reply from there and waits for the next request. So one system call replies
//! and waits, and the thread that answers runs on the caller's core, with its caches.
//!
//! On the caller's core a long request would only take turns with the caller. So each queue has one thread on its own
//! core for the short requests, and as many threads as `--threads` says answer the long ones on any core (`worker.rs`):
//! reads and writes from 64 KiB on, and fsync. A bound thread hands these over. An entry belongs to the ring from which
//! it was given last. That of a long request stays with the thread that answered it, so the next request of a stream
//! arrives there directly; that of a short one goes back to its core. A request may be answered by another thread
//! before its own has returned, so an entry goes back after both; until then the reply to a write, whose bytes are read
//! where the kernel put them, lies in `Kept`. A read is decoded into the entry; a write is not copied.
//!
//! Forgotten inodes, interruptions and notifications keep using the device. Where the kernel offers no rings, or a
//! container forbids them, so does everything. A mount takes rings up in this order:
//!
//! 1. `Prepared::new` makes the rings before the session begins, and their buffers: 8 entries for each core that the
//!    machine may have, each 1 MiB and a page. Pages that no request has used take no memory, so a core takes 8 MiB
//!    after long requests in all of its entries. If a ring cannot be made, the mount uses the device; so does a mount
//!    whose answers may wait for a remote (`Choice::prepare`).
//! 2. The session accepts `FUSE_OVER_IO_URING` in the first request, if the kernel offers it: since Linux 6.14, with
//!    `enable_uring` of the module `fuse`. The kernel then answers nobody before every queue has an entry, or one is
//!    refused.
//! 3. `Transport::start` starts the threads and registers the entries. After a failure it registers a queue that does
//!    not exist, which the kernel refuses; the kernel then uses the device.

mod answer;
mod layout;
mod memory;
mod ring;
mod waits;
mod worker;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use crate::control::RINGS;
use crate::fs::kernel::service::Service;
use crate::model::{Error, Result};
use layout::DEPTH;
use memory::Buffers;
use ring::Ring;
use worker::{Shared, Worker};

pub(super) use layout::PAYLOAD_BYTES;
pub(in crate::fs) use waits::{Queue, Wait, on_own};

/// How the requests of a mount arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Choice {
    /// Over io_uring, if the kernel offers it and answers need no remote. Otherwise from the device, without a warning.
    #[default]
    Auto,
    /// As `Auto`, but a mount that uses the device logs the reason.
    Uring,
    Classic,
}

impl Choice {
    /// The choice as an option.
    pub fn name(self) -> &'static str {
        match self {
            Choice::Auto => "auto",
            Choice::Uring => RINGS,
            Choice::Classic => "classic",
        }
    }

    /// Makes the rings of a mount with this choice, with `helpers` threads for long requests and `depth` entries a queue.
    /// A mount whose answers may wait for a remote gets none: reads that wait would hold all entries of a queue, and
    /// names would wait for them. While a mount has rings, it refuses imports that leave files at URLs.
    pub(in crate::fs) fn prepare(
        self,
        helpers: usize,
        depth: Option<usize>,
        waits: impl FnOnce() -> bool,
    ) -> Option<Prepared> {
        let is_asked_for = self == Choice::Uring;
        if self == Choice::Classic || !is_asked_for && Support::here() != Support::Offered {
            return None;
        }
        let tell = |why: &str| {
            let level = if is_asked_for { log::Level::Warn } else { log::Level::Info };
            log::log!(level, "requests arrive by the device, not by io_uring: {why}");
        };
        if waits() {
            tell("answers may wait for a remote");
            return None;
        }
        Prepared::new(helpers, depth.unwrap_or(DEPTH)).inspect_err(|error| tell(&error.to_string())).ok()
    }
}

impl FromStr for Choice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Choice> {
        let choices = [Choice::Auto, Choice::Uring, Choice::Classic];
        let wrong = || {
            Error::invalid(format!("invalid value {text:?} of transport; expected auto, uring or classic"))
        };
        choices.into_iter().find(|choice| choice.name() == text).ok_or_else(wrong)
    }
}

/// Whether requests can arrive over io_uring on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Support {
    Offered,
    /// The kernel is told not to offer it.
    Disabled,
    /// The kernel does not have it.
    Missing,
    /// This process may not make rings, for this reason.
    Forbidden(String),
}

impl Support {
    /// The parameter of the kernel that enables it.
    pub const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

    /// That of this machine.
    pub fn here() -> Support {
        match std::fs::read_to_string(Support::PARAMETER) {
            Err(_) => Support::Missing,
            Ok(text) if text.trim() != "Y" => Support::Disabled,
            Ok(_) => match Ring::new(1) {
                Ok(_) => Support::Offered,
                Err(error) => Support::Forbidden(error.to_string()),
            },
        }
    }
}

/// Rings of a session that has not begun yet. They are made first because a kernel that was promised rings answers
/// nobody before it has them.
pub(in crate::fs) struct Prepared {
    /// The rings of the threads: first those with a core, then the others.
    rings: Vec<Ring>,
    /// Tells the kernel that nothing comes of it.
    spare: Ring,
    /// The core of each of the first threads.
    cores: Vec<usize>,
    buffers: Buffers,
    /// Queues of the kernel, one for each core that the machine may have.
    queues: usize,
}

impl Prepared {
    /// Makes the rings, with `helpers` threads for long requests and `depth` entries a queue.
    pub fn new(helpers: usize, depth: usize) -> io::Result<Prepared> {
        let queues = possible_cores()?;
        let allowed = rustix::thread::sched_getaffinity(None)?;
        let cores: Vec<usize> = (0..queues).filter(|core| allowed.is_set(*core)).collect();
        if cores.is_empty() {
            return Err(io::Error::other("the list of processor cores is empty"));
        }
        let entries = queues * depth;
        let rings = (0..cores.len() + helpers).map(|_| Ring::new(entries)).collect::<io::Result<_>>()?;
        let (spare, buffers) = (Ring::new(1)?, Buffers::new(queues, depth)?);
        Ok(Prepared { rings, spare, cores, buffers, queues })
    }
}

/// Threads that answer requests over io_uring.
pub(in crate::fs) struct Transport {
    shared: Arc<Shared>,
}

impl Transport {
    /// Gives the rings to the kernel, which has agreed to use them. If that fails, the kernel uses the device.
    /// `ended` is called when the last thread ends.
    pub fn start(
        prepared: Prepared,
        withholds_rings: bool,
        device: &Arc<OwnedFd>,
        service: &Arc<impl Service>,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Transport> {
        let Prepared { rings, mut spare, cores, buffers, queues } = prepared;
        let started = wakes(&rings, withholds_rings).and_then(|wakes| {
            let shared = Arc::new(Shared::new(buffers, wakes, cores, queues));
            let transport = Transport { shared };
            start_threads(&transport.shared, rings, queues, device, service, Arc::new(ended))?;
            Ok(transport)
        });
        if started.is_err() {
            spare.begin()?;
            spare.refuse(device.as_fd())?;
        }
        started
    }

    /// Lets the threads end after the requests that they answer now.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Whether all threads have ended.
    pub fn has_ended(&self) -> bool {
        self.shared.running.load(Ordering::Acquire) == 0
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The handles that wake the threads of the rings. Fails if a test withholds the rings.
fn wakes(rings: &[Ring], are_withheld: bool) -> io::Result<Vec<File>> {
    if are_withheld {
        return Err(io::Error::other("the rings are withheld"));
    }
    rings.iter().map(Ring::wake_handle).collect()
}

/// Starts the threads. Those with queues come last and one after the other: the kernel uses the rings as soon as each
/// queue has an entry, so after a failure it does not.
fn start_threads(
    shared: &Arc<Shared>,
    rings: Vec<Ring>,
    queues: usize,
    device: &Arc<OwnedFd>,
    service: &Arc<impl Service>,
    ended: Arc<impl Fn() + Send + Sync + 'static>,
) -> io::Result<()> {
    for (this, ring) in rings.into_iter().enumerate().rev() {
        let mut worker = Worker::new(shared.clone(), this, ring, device.clone(), service.clone());
        let (told, began) = channel();
        let (running, ended) = (shared.clone(), ended.clone());
        let run = move || {
            let result = worker.begin(queues);
            let has_begun = result.is_ok();
            if told.send(result).is_ok() && has_begun {
                worker.run();
            }
            drop(worker);
            if running.running.fetch_sub(1, Ordering::AcqRel) == 1 {
                ended();
            }
        };
        let thread = std::thread::Builder::new().name(format!("ring-{this}"));
        shared.running.fetch_add(1, Ordering::AcqRel);
        if let Err(error) = thread.spawn(run) {
            shared.running.fetch_sub(1, Ordering::AcqRel);
            return Err(error);
        }
        began.recv().map_err(io::Error::other)??;
    }
    Ok(())
}

/// The number of cores that the machine may have. The kernel has a queue for each.
fn possible_cores() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    cores_in(text.trim())
        .ok_or_else(|| io::Error::other(format!("{text:?} is not a list of processor cores")))
}

/// The number of cores in a list such as `0-3,8`.
fn cores_in(list: &str) -> Option<usize> {
    list.split(',').try_fold(0_usize, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let len = last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)?;
        sum.checked_add(len)?.checked_add(1)
    })
}

#[cfg(test)]
mod tests {
    use super::cores_in;

    #[test]
    fn cores_of_a_list_are_counted() {
        assert_eq!(cores_in("0"), Some(1));
        assert_eq!(cores_in("0-1"), Some(2));
        assert_eq!(cores_in("0-3,8,10-11"), Some(7));
        for wrong in ["", "3-1", "a", "0-", "0-18446744073709551615"] {
            assert_eq!(cores_in(wrong), None, "{wrong}");
        }
    }
}
