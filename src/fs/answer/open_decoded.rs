//! The choice of opens that wait for a decoded copy, and of files that are decoded after their close.
//!
//! An open says nothing of the reads that follow. So a file is decoded when it is opened only if the setting
//! `cache` says `decoded`, or if the program that had it open last read it whole. After the first whole read
//! it is decoded in the background, when the reader has closed it. A program that reads the beginning of a
//! file, or single pages, neither waits nor causes work.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::fs::answer::dispatcher::Dispatcher;
use crate::fs::kernel::{OpenFlags, Reply};
use crate::fs::state::decoded_copies::decode::{Decoding, Urgency};
use crate::fs::state::failure::guarded;
use crate::fs::state::handles::Handle;
use crate::fs::state::in_progress;
use crate::fs::state::read_pattern::Verdict;
use crate::vfs::{CacheMode, Content, Ino};

/// An open waits as long as the daemon would take to serve the file at this rate, in bytes a second, within
/// these times. Files are decoded several times as fast.
const SERVED_RATE: f64 = 2e9;
const TIME_MIN: Duration = Duration::from_millis(250);
const TIME_MAX: Duration = Duration::from_secs(2);

/// The longest delay of an open of a file with `bytes` bytes.
fn patience(bytes: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / SERVED_RATE).clamp(TIME_MIN, TIME_MAX)
}

impl Dispatcher {
    /// The content of a file that may be decoded; `None` for other files. Most of them are told apart
    /// without a look at their objects.
    fn decodable(&self, ino: Ino) -> Option<Content> {
        if !self.decoded.is_on() || !self.may_be_given(ino) {
            return None;
        }
        let content = self.vfs.content(ino, self.decoded.bytes_min())?;
        content.is_computed().then_some(content)
    }

    /// Begins to decode a file that is opened to be read, if the open shall wait for it. Counts a miss
    /// otherwise.
    pub fn decode_at_open(&self, ino: Ino) -> Option<Arc<Decoding>> {
        let content = self.decodable(ino)?;
        let is_due = self.decoded.is_eager
            || match content.cache_mode() {
                CacheMode::Decoded => true,
                CacheMode::Auto => self.decoded.was_read_whole(ino),
                CacheMode::Kernel | CacheMode::None => false,
            };
        let decoding = if is_due { self.decode(ino, content, Urgency::Now) } else { None };
        if decoding.is_none() {
            self.mounted.counters.decoded_misses.fetch_add(1, Ordering::Relaxed);
        }
        decoding
    }

    fn decode(&self, ino: Ino, content: Content, urgency: Urgency) -> Option<Arc<Decoding>> {
        let stream = content.stream(self.vfs.store().settings());
        let stream = stream.inspect_err(|error| log::debug!("decoding a file: {error}")).ok()?;
        self.decoded.decode(ino, content, stream, urgency)
    }

    /// Replies to an open of either number once the file is decoded, at the latest after the time of
    /// [`patience`]. It waits on a thread of its own, so that other requests are answered meanwhile.
    pub fn open_decoded(
        &self,
        thread: u32,
        number: Ino,
        flags: OpenFlags,
        decoding: Arc<Decoding>,
        reply: Reply,
    ) {
        let until = Instant::now() + patience(decoding.bytes());
        let waiting = Arc::new(Mutex::new(Some(reply)));
        let (dispatcher, taken) = (self.clone(), waiting.clone());
        let answer = move || {
            guarded(&dispatcher.mounted, "open", || {
                decoding.wait(until);
                if let Some(reply) = taken.lock().take() {
                    dispatcher.open_now(thread, number, flags, reply);
                }
            });
        };
        if let Err(error) =
            std::thread::Builder::new().name("open".to_owned()).spawn(in_progress::carried(answer))
        {
            log::warn!("the thread that waits for a decoded file cannot be started: {error}");
            if let Some(reply) = waiting.lock().take() {
                self.open_now(thread, number, flags, reply);
            }
        }
    }

    /// Replies to an open of either number with the copy, or without it if it is not there yet.
    fn open_now(&self, thread: u32, number: Ino, flags: OpenFlags, reply: Reply) {
        let ino = number.own();
        let is_hit = if number.is_backed() {
            self.open_backed(thread, ino, reply)
        } else {
            let reply = self.send_to_kernel(thread, ino, reply);
            reply.map_err(|reply| self.open_own(thread, ino, flags, reply)).is_ok()
        };
        if !is_hit {
            self.mounted.counters.decoded_misses.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes how a program has read a file that it closes. Decodes the file in the background if it was read
    /// whole.
    pub fn note_reads(&self, ino: Ino, handle: &Handle) {
        let verdict = handle.pattern().map_or(Verdict::Unknown, |pattern| pattern.verdict());
        if verdict == Verdict::Unknown || !self.decoded.is_on() {
            return;
        }
        let content = if verdict == Verdict::Whole { self.decodable(ino) } else { None };
        self.decoded.note_reads(ino, content.is_some());
        if let Some(content) = content.filter(|content| content.cache_mode() == CacheMode::Auto)
            && self.decoded.find(ino).is_none()
        {
            self.decode(ino, content, Urgency::Later);
        }
    }
}
