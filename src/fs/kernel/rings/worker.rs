//! The threads that answer requests over rings.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::fs::kernel::opcode;
use crate::fs::kernel::sender::Route;
use crate::fs::kernel::service::Service;

use super::answer::{Answer, Kept};
use super::memory::Buffers;
use super::ring::{Completion, Ring, wake};
use super::waits::{Queue, answer_of};

/// A read or write of as many bytes is long.
const LONG_BYTES: u32 = 64 << 10;

/// Rest after an error that may come at once again.
const AFTER_ERROR: Duration = Duration::from_millis(10);

const ANSWERED: u8 = 1;
const REPLIED: u8 = 2;

thread_local! {
    /// The thread's number among those of its transport, and the transport.
    static SELF: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// An entry that the daemon has.
#[derive(Default)]
struct State {
    /// `ANSWERED` when the request was answered and is no longer read, `REPLIED` when there is a reply. With both, the
    /// entry goes back to the kernel.
    progress: AtomicU8,
    is_long: AtomicBool,
    kept: Mutex<Option<Kept>>,
}

/// The way to a thread.
struct Mailbox {
    /// Entries to give back to the kernel.
    entries: Mutex<Vec<usize>>,
    wake: File,
}

/// Long requests that no thread answers yet, and threads that wait for some.
#[derive(Default)]
struct Pool {
    requests: VecDeque<usize>,
    idle: Vec<usize>,
}

/// The common part of all threads.
pub(super) struct Shared {
    buffers: Buffers,
    states: Vec<State>,
    mailboxes: Vec<Mailbox>,
    /// The core of each of the first threads. Other threads run anywhere.
    cores: Vec<usize>,
    /// The thread that gives back the entries of each queue.
    homes: Vec<usize>,
    /// The replies of each queue that wait.
    queues: Vec<Arc<Queue>>,
    pool: Mutex<Pool>,
    is_stopping: AtomicBool,
    /// Threads that have not ended.
    pub running: AtomicUsize,
}

impl Shared {
    pub fn new(buffers: Buffers, wakes: Vec<File>, cores: Vec<usize>, queues: usize) -> Shared {
        let home = |queue| cores.iter().position(|core| *core == queue).unwrap_or(queue % cores.len().max(1));
        Shared {
            homes: (0..queues).map(home).collect(),
            queues: (0..queues).map(|queue| Queue::new(buffers.of_queue(queue).len())).collect(),
            states: (0..buffers.len()).map(|_| State::default()).collect(),
            buffers,
            running: AtomicUsize::new(0),
            mailboxes: wakes.into_iter().map(|wake| Mailbox { entries: Mutex::default(), wake }).collect(),
            cores,
            pool: Mutex::default(),
            is_stopping: AtomicBool::new(false),
        }
    }

    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.mailboxes.iter().for_each(|mailbox| wake(&mailbox.wake));
    }

    /// Keeps a reply until its request is answered.
    pub fn keep(&self, number: usize, kept: Kept) {
        if let Some(state) = self.states.get(number) {
            *state.kept.lock() = Some(kept);
        }
    }

    /// Notes that the reply of an entry is there.
    pub fn replied(&self, number: usize) {
        self.progress(number, REPLIED);
    }

    fn progress(&self, number: usize, what: u8) {
        let Some(state) = self.states.get(number) else { return };
        let before = state.progress.fetch_or(what, Ordering::AcqRel);
        if before | what == ANSWERED | REPLIED && before != before | what {
            self.give_back(number, state);
        }
    }

    fn give_back(&self, number: usize, state: &State) {
        let Some(entry) = self.buffers.entry(number) else { return };
        if let Some(kept) = state.kept.lock().take() {
            kept.write(entry);
        }
        state.progress.store(0, Ordering::Release);
        let (this, own) = SELF.get();
        let is_own = own == std::ptr::from_ref(self).addr();
        let stays = is_own && this >= self.cores.len() && state.is_long.load(Ordering::Relaxed);
        let home = self.homes.get(usize::from(entry.queue)).copied();
        let to = if stays { Some(this) } else { home };
        let Some((to, mailbox)) = to.and_then(|to| Some((to, self.mailboxes.get(to)?))) else { return };
        let was_empty = {
            let mut entries = mailbox.entries.lock();
            entries.push(number);
            entries.len() == 1
        };
        if was_empty && !(is_own && this == to) {
            wake(&mailbox.wake);
        }
    }

    /// Lets another thread answer a long request.
    fn hand_over(&self, number: usize) {
        let mut pool = self.pool.lock();
        pool.requests.push_back(number);
        let idle = pool.idle.pop();
        drop(pool);
        if let Some(mailbox) = idle.and_then(|idle| self.mailboxes.get(idle)) {
            wake(&mailbox.wake);
        }
    }

    /// A long request that no thread answers yet. Without one, the thread counts as idle.
    fn long_request(&self, this: usize) -> Option<usize> {
        let mut pool = self.pool.lock();
        pool.idle.retain(|idle| *idle != this);
        let request = pool.requests.pop_front();
        if request.is_none() {
            pool.idle.push(this);
        }
        request
    }

    fn is_long(&self, number: usize) -> bool {
        let Some(entry) = self.buffers.entry(number) else { return false };
        match entry.operation() {
            opcode::READ | opcode::WRITE => entry.size_of_transfer() >= LONG_BYTES,
            opcode::FSYNC | opcode::FSYNCDIR => true,
            _ => false,
        }
    }
}

pub(super) struct Worker<S> {
    shared: Arc<Shared>,
    this: usize,
    ring: Ring,
    device: Arc<OwnedFd>,
    service: Arc<S>,
    /// Requests that this thread is going to answer.
    requests: VecDeque<usize>,
    /// The request that this thread answers.
    copy: Vec<u8>,
}

impl<S: Service> Worker<S> {
    pub fn new(
        shared: Arc<Shared>,
        this: usize,
        ring: Ring,
        device: Arc<OwnedFd>,
        service: Arc<S>,
    ) -> Worker<S> {
        Worker { shared, this, ring, device, service, requests: VecDeque::new(), copy: Vec::new() }
    }

    /// Makes the calling thread this one, and gives the entries of its queues to the kernel. Fails if the kernel has
    /// none of a queue then.
    pub fn begin(&mut self, queues: usize) -> io::Result<()> {
        SELF.set((self.this, std::ptr::from_ref(&*self.shared).addr()));
        if let Some(core) = self.shared.cores.get(self.this) {
            let mut cores = rustix::thread::CpuSet::new();
            cores.set(*core);
            if let Err(error) = rustix::thread::sched_setaffinity(None, &cores) {
                log::info!("a thread of requests runs on any core: {error}");
            }
        }
        self.ring.begin()?;
        let shared = self.shared.clone();
        for queue in 0..queues {
            if !self.is_bound() || shared.homes.get(queue) != Some(&self.this) {
                continue;
            }
            let numbers = shared.buffers.of_queue(queue);
            let mut taken = numbers.len();
            for number in numbers {
                let Some(entry) = shared.buffers.entry(number) else { continue };
                self.ring.register(self.device.as_fd(), number, entry)?;
            }
            let mut refused = None;
            while let Some(completion) = self.ring.next() {
                match completion {
                    Completion::Entry(_, error) if error < 0 => {
                        taken -= 1;
                        refused = Some(io::Error::from_raw_os_error(-error));
                    }
                    other => self.completed(other)?,
                }
            }
            if let Some(of_queue) = shared.queues.get(queue) {
                of_queue.set_entries(taken);
            }
            match refused {
                Some(error) if taken == 0 => return Err(error),
                Some(error) => log::info!("queue {queue} of requests has fewer entries: {error}"),
                None => {}
            }
        }
        Ok(())
    }

    /// Answers requests until the transport stops.
    pub fn run(&mut self) {
        while !self.shared.is_stopping.load(Ordering::Acquire) {
            if let Err(error) = self.turn() {
                log::error!("a ring of requests: {error}");
                std::thread::sleep(AFTER_ERROR);
            }
        }
    }

    fn turn(&mut self) -> io::Result<()> {
        self.give_back_all()?;
        match self.next_request() {
            Some(number) => {
                // The caller of the request before goes on meanwhile.
                self.ring.submit()?;
                self.answer(number);
            }
            None => self.ring.wait()?,
        }
        while let Some(completion) = self.ring.next() {
            self.completed(completion)?;
        }
        Ok(())
    }

    fn is_bound(&self) -> bool {
        self.this < self.shared.cores.len()
    }

    fn give_back_all(&mut self) -> io::Result<()> {
        let Some(mailbox) = self.shared.mailboxes.get(self.this) else { return Ok(()) };
        let entries = std::mem::take(&mut *mailbox.entries.lock());
        for number in entries {
            if let Some(entry) = self.shared.buffers.entry(number) {
                self.ring.commit(self.device.as_fd(), number, entry, entry.commit_id())?;
            }
        }
        Ok(())
    }

    fn next_request(&mut self) -> Option<usize> {
        if let Some(number) = self.requests.pop_front() {
            return Some(number);
        }
        if self.is_bound() { None } else { self.shared.long_request(self.this) }
    }

    fn completed(&mut self, completion: Completion) -> io::Result<()> {
        let number = match completion {
            Completion::Woken => return self.ring.await_wake(),
            // The kernel gives back all entries when the session ends.
            Completion::Entry(number, error) if error < 0 => {
                log::debug!("entry {number} has ended: {}", io::Error::from_raw_os_error(-error));
                return Ok(());
            }
            Completion::Entry(number, _) => number,
        };
        let is_long = self.shared.is_long(number);
        if let Some(state) = self.shared.states.get(number) {
            state.is_long.store(is_long, Ordering::Relaxed);
        }
        match is_long {
            true if self.is_bound() || !self.requests.is_empty() => self.shared.hand_over(number),
            true => self.requests.push_back(number),
            false => self.requests.push_front(number),
        }
        Ok(())
    }

    fn answer(&mut self, number: usize) {
        let Some(entry) = self.shared.buffers.entry(number) else { return };
        let (shared, service) = (&self.shared, &self.service);
        let queue = shared.queues.get(usize::from(entry.queue)).cloned();
        let answered = entry.with_request(&mut self.copy, |request, is_in_place| {
            let answer = Answer::new(shared.clone(), number, entry, is_in_place);
            answer_of(queue, || service.receive(request, Route::Other(Box::new(answer))));
        });
        if answered.is_none() {
            log::error!("the kernel sent a request with impossible sizes");
            drop(Answer::new(shared.clone(), number, entry, false));
        }
        shared.progress(number, ANSWERED);
    }
}
