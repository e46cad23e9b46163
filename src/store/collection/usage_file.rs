//! The side file `access` of a collection: read when the collection is opened, written from time to
//! time.

use parking_lot::Mutex;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::format::log::access::{History, HistoryWriter, file_bytes, parse};
use crate::model::{Error, Instant, Result};
use crate::store::clock::Ticks;
use crate::store::disk::{Open, write_new};
use crate::store::object::Object;
use crate::store::space::files::Files;
use crate::store::state::State;

const NAME: &str = "access";
/// Maximum number of records read from a file, beyond twice the number of blocks.
const LEFT: u64 = 1024;
/// Shortest interval between writes for [`SaveUsage::NowAndThen`].
const EVERY: Duration = Duration::from_secs(60);

/// When to write the side file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SaveUsage {
    /// Now, if blocks were used since the last write.
    Now,
    /// If blocks were used and the last write is a minute ago.
    NowAndThen,
}

/// The side file of a collection.
#[derive(Default)]
pub(in crate::store) struct UsageFile {
    /// Whether blocks were used since the file was last written.
    is_used: AtomicBool,
    /// When the file was last written. Held during a save, across I/O; only the state is locked with it.
    saved: Mutex<Option<Instant>>,
}

impl UsageFile {
    /// Restores the usage of blocks before the collection was opened. A file that is missing, corrupt
    /// or of another tick length counts as empty.
    pub fn restore(files: &Files, state: &State, ticks: &Ticks) {
        let path = format!("{}/{NAME}", files.path());
        // Only blocks with payloads are counted, independent of the claimed size of an object.
        let stored = |object: &Object| -> u64 {
            let blocks = object.blocks.read();
            blocks.with_payloads(0..object.layout().blocks()).map(|range| range.len() as u64).sum()
        };
        let blocks: u64 = state.objects().map(|object| stored(object)).sum();
        let read = || -> io::Result<Option<Vec<u8>>> {
            let file = match files.disk().open(&path, Open::Read) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                opened => opened?,
            };
            let len = file.len()?;
            // Blocks may have been truncated since.
            if len > file_bytes(2 * blocks + LEFT) {
                let text = format!("{len} bytes for {blocks} blocks");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, 0)?;
            Ok(Some(bytes))
        };
        let bytes = match read() {
            Ok(None) => return,
            Ok(Some(bytes)) => bytes,
            Err(error) => return log::warn!("{path} is not used: {error}"),
        };
        let histories = match parse(&bytes) {
            Ok(histories) if histories.tick_seconds == ticks.length() => histories,
            Ok(_) => return log::info!("{path} is not used: it was written with another tick_seconds"),
            Err(error) => return log::warn!("{path} is not used: {error}"),
        };
        // A clock that was ahead must not make a block look used for ever.
        let now = ticks.now();
        // Records may overlap: more blocks than the collection has need not be looked at.
        let mut left = usize::try_from(blocks + LEFT).unwrap_or(usize::MAX);
        for (object, kept) in histories.by_object() {
            let Some(object) = state.object(object) else { continue };
            let blocks = object.blocks.read();
            let kept = kept.flat_map(|(range, history)| {
                let (last, created) = (history.last.min(now), history.created.min(now));
                let history = History { last, created, ..history };
                blocks.with_payloads(range).flatten().map(move |block| (block, history))
            });
            let kept = kept.take(left).inspect(|_| left = left.saturating_sub(1));
            object.accesses.restore(object.layout().blocks(), kept);
        }
    }

    /// Saves the usage of the blocks of `objects` if there was any since the last time. A failure is only
    /// logged, because nothing depends on the file.
    pub fn save(
        &self,
        when: SaveUsage,
        files: &Files,
        ticks: &Ticks,
        objects: impl FnOnce() -> Vec<Arc<Object>>,
    ) {
        let mut saved = self.saved.lock();
        if when == SaveUsage::NowAndThen && saved.is_some_and(|saved| saved.elapsed() < EVERY) {
            return;
        }
        if !self.is_used.swap(false, Ordering::Relaxed) {
            return;
        }
        *saved = Some(Instant::now());
        if let Err(error) = write(files, ticks, objects()) {
            log::warn!("{}: the usage of blocks is not saved: {error}", files.path());
        }
    }

    /// Whether blocks were used since the file was last written.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Notes that blocks were used. Returns whether that is the first use since the file was last written.
    pub fn note_use(&self) -> bool {
        // Written only once, because other threads read the same cache line.
        let is_first = !self.is_used();
        if is_first {
            self.is_used.store(true, Ordering::Relaxed);
        }
        is_first
    }
}

fn write(files: &Files, ticks: &Ticks, mut objects: Vec<Arc<Object>>) -> Result<()> {
    let path = format!("{}/{NAME}", files.path());
    let draft = format!("{path}.new");
    objects.sort_unstable_by_key(|object| object.entry.id);
    let mut histories = HistoryWriter::default();
    for object in &objects {
        let id = object.entry.id;
        object
            .accesses
            .each_used(object.layout().blocks(), |block, history| histories.add(id, block, history));
    }
    let bytes = histories.to_bytes(ticks.length());
    let write = || -> io::Result<()> {
        write_new(&**files.disk(), &draft, &bytes)?;
        files.disk().rename(&draft, &path)
    };
    write().map_err(|error| Error::io(format!("writing {path}"), error))
}
