//! Decodes one file into memory, on all cores.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::fs::state::decoded_copies::file::{DecodedFile, page_bytes};
use crate::fs::state::decoded_copies::memory::Memory;
use crate::fs::state::decoded_copies::{AGAIN_AFTER, Copy, DecodedCache, Seen, Table, WAITING_MAX};
use crate::fs::state::failure::guarded;
use crate::model::{Error, ErrorKind, Result};
use crate::stream::Stream;
use crate::trace;
use crate::vfs::{Content, Ino};

/// Bytes that a thread decodes at a time. They stay in the second-level cache until they are written.
const STEP_BYTES: u64 = 512 << 10;

/// How urgent it is that a file is decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::fs) enum Urgency {
    Now,
    /// Nobody waits: other work goes first.
    Later,
}

/// A file that is being decoded, or waits for its turn.
#[derive(Default)]
pub(in crate::fs) struct Decoding {
    /// The length of the file.
    bytes: u64,
    has_ended: Mutex<bool>,
    ended: Condvar,
    is_cancelled: AtomicBool,
}

impl Decoding {
    fn of(bytes: u64) -> Decoding {
        Decoding { bytes, ..Decoding::default() }
    }

    /// The length of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Waits until the end, or until a time.
    pub fn wait(&self, until: Instant) {
        let mut has_ended = self.has_ended.lock();
        while !*has_ended {
            if self.ended.wait_until(&mut has_ended, until).timed_out() {
                return;
            }
        }
    }

    fn end(&self) {
        *self.has_ended.lock() = true;
        self.ended.notify_all();
    }
}

impl DecodedCache {
    /// Begins to decode a file, or returns the decoding that has begun. `None` if the file is too short or
    /// too long, if memory is scarce, or if decoding it failed less than a minute ago.
    pub fn decode(
        self: &Arc<Self>,
        ino: Ino,
        content: Content,
        stream: Stream,
        urgency: Urgency,
    ) -> Option<Arc<Decoding>> {
        let bytes = stream.bytes();
        if bytes < self.bytes_min() {
            return None;
        }
        let held_bytes = bytes.checked_next_multiple_of(page_bytes())?;
        let left = Memory::now().map(|memory| memory.available.saturating_sub(2 * memory.reserve()));
        let decoding = {
            let mut table = self.table.lock();
            if let Some(decoding) = table.decoding.get(&ino) {
                return Some(decoding.clone());
            }
            if table.copies.get(&ino).is_some_and(|copy| copy.version.is_of(&content)) {
                // Another thread has decoded it since the caller looked.
                let decoding = Decoding::of(bytes);
                decoding.end();
                return Some(Arc::new(decoding));
            }
            if !table.may_begin(ino)
                || left.is_some_and(|left| left < held_bytes)
                || !table.make_room(held_bytes, self.budget_bytes)
            {
                return None;
            }
            let decoding = Arc::new(Decoding::of(bytes));
            table.decoding.insert(ino, decoding.clone());
            table.held_bytes += held_bytes;
            self.count(&table);
            decoding
        };
        let (cache, begun) = (self.clone(), decoding.clone());
        let thread = std::thread::Builder::new().name("decode".to_owned());
        let started = thread.spawn(move || {
            if urgency == Urgency::Later
                && let Err(error) = rustix::process::nice(19)
            {
                log::debug!("a file is decoded without a lower priority: {error}");
            }
            cache.decode_now(ino, &content, &stream, &begun);
        });
        if let Err(error) = started {
            log::warn!("the thread that decodes a file cannot be started: {error}");
            self.end(ino, held_bytes, &decoding, |_| ());
            return None;
        }
        Some(decoding)
    }

    fn decode_now(&self, ino: Ino, content: &Content, stream: &Stream, decoding: &Decoding) {
        let mut made = None;
        guarded(&self.mounted, "decoding", || {
            let _turn = self.turn.lock();
            let _span = trace::decode_file(ino.0, stream.bytes());
            let decoded = self.decoded(content, stream, decoding);
            made = Some(decoded.inspect_err(|error| trace::note_failure(error)));
        });
        let version = content.version();
        // Bytes read during a change may belong to two versions.
        let is_current = || self.mounted.vfs.content(ino, 0).is_some_and(|now| version.is_of(&now));
        let held_bytes = stream.bytes().next_multiple_of(page_bytes());
        match made {
            Some(Ok(file)) if is_current() && !decoding.is_cancelled() => {
                self.end(ino, 0, decoding, |table| {
                    table.retire(ino);
                    table.opens += 1;
                    let last_open = table.opens;
                    table.copies.insert(ino, Copy { file, version, last_open });
                });
            }
            Some(Ok(_)) => self.end(ino, held_bytes, decoding, |_| ()),
            failed => {
                let is_passing = failed.as_ref().is_some_and(|made| {
                    let error = made.as_ref().err();
                    error.inspect(|error| log::debug!("decoding a file: {error}"));
                    let kind = error.map(Error::kind);
                    matches!(kind, Some(ErrorKind::Interrupted | ErrorKind::Full))
                });
                self.end(ino, held_bytes, decoding, |table| {
                    if !is_passing {
                        table.remember(ino, Seen::Failed(Instant::now()));
                    }
                });
            }
        }
    }

    /// Ends a decoding, and releases `held_bytes` of its reserved bytes.
    fn end(&self, ino: Ino, held_bytes: u64, decoding: &Decoding, then: impl FnOnce(&mut Table)) {
        let mut table = self.table.lock();
        table.decoding.remove(&ino);
        table.held_bytes -= held_bytes;
        then(&mut table);
        self.count(&table);
        drop(table);
        decoding.end();
    }

    /// Writes all bytes of a stream to a file in memory.
    fn decoded(&self, content: &Content, stream: &Stream, decoding: &Decoding) -> Result<Arc<DecodedFile>> {
        let failed = |error| Error::io("writing a decoded file", error);
        let began = Instant::now();
        let draft = self.files.create(stream.bytes()).map_err(failed)?;
        let ranges = Mutex::new(content.ranges(stream.bytes(), STEP_BYTES).into_iter());
        let first_error = Mutex::new(None);
        let step = |range: Range<u64>, buffer: &mut Vec<u8>| {
            if decoding.is_cancelled() {
                return Err(Error::new(ErrorKind::Interrupted, "memory is scarce"));
            }
            buffer.resize((range.end - range.start) as usize, 0);
            stream.read_exact(range.start, buffer)?;
            draft.write_at(buffer, range.start).map_err(failed)
        };
        let work = || {
            let mut buffer = Vec::new();
            while let Some(range) = next_of(&ranges) {
                if first_error.lock().is_some() {
                    return;
                }
                if let Err(error) = step(range, &mut buffer) {
                    first_error.lock().get_or_insert(error);
                    return;
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // If no thread can be started, this one does the work alone.
                let started = std::thread::Builder::new().spawn_scoped(scope, trace::carried(work));
                started.map(drop).unwrap_or_else(|error| log::debug!("decoding: {error}"));
            }
            work();
        });
        match first_error.into_inner() {
            Some(error) => Err(error),
            None => {
                log::debug!("{} bytes were decoded in {:?}", stream.bytes(), began.elapsed());
                draft.finish(&self.files).map_err(failed)
            }
        }
    }
}

impl Table {
    /// Whether a file may be decoded now.
    fn may_begin(&mut self, ino: Ino) -> bool {
        if let Some(Seen::Failed(at)) = self.seen.get(&ino) {
            if at.elapsed() < AGAIN_AFTER {
                return false;
            }
            self.seen.remove(&ino);
        }
        let is_paused = self.paused_until.is_some_and(|until| Instant::now() < until);
        !is_paused && self.decoding.len() < WAITING_MAX
    }
}

/// The next item. The lock is released before the item is used.
fn next_of<T>(items: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    items.lock().next()
}
