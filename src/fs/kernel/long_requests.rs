//! Long requests of the device, which other threads answer: a create or a rename does not wait for the writes before it.
//! Those that may wait for a network have threads of their own: a server that does not answer holds up nothing else.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::opcode;
use super::sender::{Route, TRANSFER_BYTES_MAX};
use super::service::Service;

/// A request of as many bytes is long. Only writes are.
const LONG_BYTES: usize = 64 << 10;
/// Requests that wait for a thread: a write of 2 MiB by each of 16 programs is in two of them. More are answered by the
/// thread that has read them.
const WAITING_MAX: usize = 32;
/// Threads for requests that may wait for a network, as a mount of a remote has, and requests that wait for one of these.
const FAR_THREADS_MAX: usize = 64;
const FAR_WAITING_MAX: usize = 1024;
/// A thread without work ends after this time.
const REST: Duration = Duration::from_secs(10);

const PAGE_BYTES: usize = 4096;
/// Bytes of a write before its data, which begins at a page: so it can go past the page cache.
const BEFORE_DATA: usize = 80;
/// A buffer for the longest write with its header and arguments. The kernel refuses a shorter one.
const BUFFER_BYTES: usize = TRANSFER_BYTES_MAX + PAGE_BYTES;

/// The memory of a request.
pub(super) struct RequestBuffer {
    bytes: Vec<u8>,
    begin: usize,
}

impl RequestBuffer {
    pub fn new() -> RequestBuffer {
        // The system gives pages of it at their first use.
        // Memory that was used before is cleared, which costs a quarter of a write: so buffers are used again.
        let bytes = vec![0; BUFFER_BYTES + PAGE_BYTES];
        let begin = (bytes.as_ptr().align_offset(PAGE_BYTES) + PAGE_BYTES - BEFORE_DATA) % PAGE_BYTES;
        RequestBuffer { bytes, begin }
    }

    /// All of it.
    pub fn room(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.begin..self.begin + BUFFER_BYTES).unwrap_or_default()
    }

    /// The first bytes.
    pub fn first(&self, len: usize) -> &[u8] {
        self.bytes.get(self.begin..self.begin + len.min(BUFFER_BYTES)).unwrap_or_default()
    }
}

struct Long {
    buffer: RequestBuffer,
    len: usize,
    route: Route,
}

/// Held briefly; no other lock is taken with it.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Long>,
    /// Buffers for the threads that read requests.
    free: Vec<RequestBuffer>,
    /// Threads that wait for work.
    idle: usize,
    threads: usize,
    is_ending: bool,
}

/// Threads at a time. They copy, or wait for the disk. More of them than that would keep the threads that read requests
/// from a core, and with these the short requests.
fn threads_max() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).saturating_mul(2).clamp(4, 16)
}

/// The long requests, and the threads that answer them. These start when they are needed.
pub(super) struct LongRequests<S> {
    service: Arc<S>,
    threads_max: usize,
    waiting_max: usize,
    /// Buffers that are kept for the next requests, at most.
    free_max: usize,
    queue: Mutex<Queue>,
    /// Notified of a request, and of the end.
    arrived: Condvar,
    /// Notified when the last thread ends.
    ended: Condvar,
}

impl<S: Service> LongRequests<S> {
    fn new(service: Arc<S>, threads_max: usize, waiting_max: usize) -> Arc<LongRequests<S>> {
        Arc::new(LongRequests {
            service,
            threads_max,
            waiting_max,
            free_max: threads_max.max(WAITING_MAX),
            queue: Mutex::default(),
            arrived: Condvar::new(),
            ended: Condvar::new(),
        })
    }

    /// Answers the first `len` bytes of a buffer, now or later. Returns a buffer for the next request.
    fn answer(self: &Arc<Self>, buffer: RequestBuffer, len: usize, route: Route) -> RequestBuffer {
        let mut queue = self.queue.lock();
        if queue.waiting.len() >= self.waiting_max
            || (queue.idle <= queue.waiting.len() && !self.start(&mut queue))
        {
            drop(queue);
            self.service.receive(buffer.first(len), route);
            return buffer;
        }
        queue.waiting.push_back(Long { buffer, len, route });
        let next = queue.free.pop();
        drop(queue);
        self.arrived.notify_one();
        next.unwrap_or_else(RequestBuffer::new)
    }

    /// Starts a thread for the next request unless one waits. `false` if no thread waits and none can be started.
    fn start(self: &Arc<Self>, queue: &mut Queue) -> bool {
        if queue.threads >= self.threads_max {
            return true;
        }
        let long = self.clone();
        let started = std::thread::Builder::new().name("long-request".to_owned()).spawn(move || long.work());
        match started {
            Ok(_) => queue.threads += 1,
            Err(error) => log::warn!("a long request is answered by the thread that has read it: {error}"),
        }
        queue.threads > 0
    }

    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(Long { buffer, len, route }) = queue.waiting.pop_front() {
                drop(queue);
                self.service.receive(buffer.first(len), route);
                queue = self.queue.lock();
                if queue.free.len() < self.free_max {
                    queue.free.push(buffer);
                }
                continue;
            }
            if queue.is_ending {
                break;
            }
            queue.idle += 1;
            let is_over = self.arrived.wait_for(&mut queue, REST).timed_out();
            queue.idle -= 1;
            if is_over && queue.waiting.is_empty() {
                // The buffers of a burst of writes go with its threads.
                let left = queue.free.len() - queue.free.len().div_ceil(queue.threads);
                queue.free.truncate(left);
                break;
            }
        }
        queue.threads -= 1;
        if queue.threads == 0 {
            self.ended.notify_all();
        }
    }

    /// Waits until all are answered and the threads have ended. No more come.
    fn end(&self) {
        let mut queue = self.queue.lock();
        queue.is_ending = true;
        self.arrived.notify_all();
        while queue.threads > 0 {
            self.ended.wait(&mut queue);
        }
    }
}

/// The threads beside those that read requests.
pub(super) struct OtherThreads<S> {
    service: Arc<S>,
    long: Arc<LongRequests<S>>,
    far: Arc<LongRequests<S>>,
}

impl<S: Service> OtherThreads<S> {
    pub fn new(service: &Arc<S>) -> OtherThreads<S> {
        OtherThreads {
            service: service.clone(),
            long: LongRequests::new(service.clone(), threads_max(), WAITING_MAX),
            far: LongRequests::new(service.clone(), FAR_THREADS_MAX, FAR_WAITING_MAX),
        }
    }

    /// Answers the first `len` bytes of a buffer on this thread, or later on another. Returns a buffer for the next request.
    pub fn answer(&self, buffer: RequestBuffer, len: usize, route: Route) -> RequestBuffer {
        if self.service.waits_for_network() && opcode::needs_bytes(buffer.first(len)) {
            return self.far.answer(buffer, len, route);
        }
        if len >= LONG_BYTES {
            return self.long.answer(buffer, len, route);
        }
        self.service.receive(buffer.first(len), route);
        buffer
    }

    /// Waits until all are answered and the threads have ended. No more come.
    pub fn end(&self) {
        self.long.end();
        self.far.end();
    }
}

#[cfg(test)]
mod tests {
    use super::{BEFORE_DATA, BUFFER_BYTES, RequestBuffer};

    #[test]
    fn the_data_of_a_write_begins_at_a_page() {
        let mut buffer = RequestBuffer::new();
        assert_eq!(buffer.room().len(), BUFFER_BYTES);
        assert!(buffer.first(BUFFER_BYTES)[BEFORE_DATA..].as_ptr().addr().is_multiple_of(4096));
        assert_eq!(buffer.first(5).as_ptr(), buffer.first(BUFFER_BYTES).as_ptr());
    }
}
