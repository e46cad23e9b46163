//! Reads through host memory: several threads fill pinned buffers while the device copies from full ones.
//!
//! One thread copies from the page cache, or waits for the daemon, at a fraction of the speed of the bus to a device.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use parking_lot::Mutex;

use crate::gpu::device::Device;
use crate::gpu::memory::{Event, Pinned};
use crate::gpu::pieces::{PIECE_BYTES, Piece, pieces};
use crate::model::{Error, Result};

/// Threads that read at most. More gain little: four read 16 GB/s and more from the page cache.
const READERS_MAX: usize = 4;
/// Buffers beyond those that the threads fill: one that the device copies from, and one that waits for it.
const SPARE_BUFFERS: usize = 2;

/// A buffer, and the event after which it may be overwritten.
struct Slot<'d> {
    memory: Pinned<'d>,
    copied: Event<'d>,
}

/// A buffer that goes from thread to thread, and the number of its event.
struct Buffer<'b> {
    bytes: &'b mut [u8],
    slot: usize,
}

/// The threads that read, and their buffers.
pub(super) struct Pipe<'d> {
    device: &'d Device,
    readers: usize,
    slots: Vec<Slot<'d>>,
}

impl<'d> Pipe<'d> {
    /// Allocates buffers for a read of `len` bytes.
    pub fn new(device: &'d Device, len: u64) -> Result<Pipe<'d>> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let full_pieces = usize::try_from(len / PIECE_BYTES).unwrap_or(usize::MAX);
        let readers = cores.min(READERS_MAX).min(full_pieces).max(1);
        let bytes = len.min(PIECE_BYTES) as usize;
        let slot = |_| Ok(Slot { memory: Pinned::new(device, bytes)?, copied: Event::new(device)? });
        let slots = (0..readers + SPARE_BUFFERS).map(slot).collect::<Result<_>>()?;
        Ok(Pipe { device, readers, slots })
    }

    /// Reads `len` bytes of a file from `offset` and copies them to `pointer`. Returns when the copies are complete.
    ///
    /// # Safety
    /// `pointer` has `len` bytes of device memory.
    pub unsafe fn run(&mut self, path: &Path, offset: u64, len: u64, pointer: u64) -> Result<()> {
        let (device, readers) = (self.device, self.readers);
        let mut events = Vec::new();
        let (give, free) = channel();
        for (slot, of_slot) in self.slots.iter_mut().enumerate() {
            events.push(&of_slot.copied);
            give.send(Buffer { bytes: of_slot.memory.bytes(), slot }).unwrap_or_default();
        }
        let failed = |error| Error::io(format!("reading {}", path.display()), error);
        let number = fs::File::open(path).and_then(|file| number_of(&file)).map_err(failed)?;
        let work = Work {
            path,
            number,
            offset,
            pieces: Mutex::new(pieces(offset, len)),
            free: Mutex::new(free),
            is_over: AtomicBool::new(false),
        };
        thread::scope(|scope| {
            let (filled, full) = channel();
            for _ in 0..readers {
                let (work, filled) = (&work, filled.clone());
                let reader = thread::Builder::new().name("gpu-read".to_owned());
                reader.spawn_scoped(scope, move || work.read(&filled)).map_err(failed)?;
            }
            drop(filled);
            // SAFETY: guaranteed by the caller.
            let copied = unsafe { copy_all(device, &events, &full, &give, pointer) };
            // After an error the readers stop: they find neither a buffer nor a receiver.
            work.is_over.store(true, Ordering::Relaxed);
            drop((give, full));
            copied
        })?;
        device.finish()
    }
}

/// Copies each filled buffer to the device, and gives it back to the readers when it is free.
///
/// # Safety
/// `pointer` has device memory for every piece.
unsafe fn copy_all<'b>(
    device: &Device,
    events: &[&Event],
    full: &Receiver<Result<(Piece, Buffer<'b>)>>,
    give: &Sender<Buffer<'b>>,
    pointer: u64,
) -> Result<()> {
    let mut copying: VecDeque<Buffer> = VecDeque::new();
    while let Ok(filled) = full.recv() {
        let (piece, buffer) = filled?;
        // SAFETY: the caller guarantees the piece's room. The buffer is kept until its event, and freed only after the
        // stream has ended (see `drop`).
        unsafe { device.copy_in(pointer + piece.into, &buffer.bytes[..piece.len]) }?;
        events[buffer.slot].record()?;
        copying.push_back(buffer);
        // One copy stays queued behind the one that runs, so that the device never waits for this thread.
        if copying.len() == SPARE_BUFFERS
            && let Some(oldest) = copying.pop_front()
        {
            events[oldest.slot].wait()?;
            // Readers that have ended need no buffer.
            give.send(oldest).unwrap_or_default();
        }
    }
    Ok(())
}

/// The numbers of the device and the inode of a file.
fn number_of(file: &fs::File) -> std::io::Result<(u64, u64)> {
    file.metadata().map(|found| (found.dev(), found.ino()))
}

/// The part of a file that several threads read.
struct Work<'w, 'b, P> {
    path: &'w Path,
    /// Of the file that all threads read.
    number: (u64, u64),
    offset: u64,
    /// The pieces that no thread has taken yet.
    pieces: Mutex<P>,
    free: Mutex<Receiver<Buffer<'b>>>,
    is_over: AtomicBool,
}

impl<'b, P: Iterator<Item = Piece>> Work<'_, 'b, P> {
    /// Fills buffers until no piece is left, or a read fails.
    fn read(&self, filled: &Sender<Result<(Piece, Buffer<'b>)>>) {
        if let Err(error) = self.read_pieces(filled) {
            self.is_over.store(true, Ordering::Relaxed);
            // The receiver has ended only if there is an error already.
            drop(filled.send(Err(Error::io(format!("reading {}", self.path.display()), error))));
        }
    }

    fn read_pieces(&self, filled: &Sender<Result<(Piece, Buffer<'b>)>>) -> std::io::Result<()> {
        // A descriptor of its own gives each thread its own read-ahead.
        let file = fs::File::open(self.path)?;
        if number_of(&file)? != self.number {
            return Err(std::io::Error::other("the file was replaced while it was read"));
        }
        while !self.is_over.load(Ordering::Relaxed) {
            let Some(piece) = self.pieces.lock().next() else { break };
            let Ok(buffer) = self.free.lock().recv() else { break };
            file.read_exact_at(&mut buffer.bytes[..piece.len], self.offset + piece.into)?;
            if filled.send(Ok((piece, buffer))).is_err() {
                break;
            }
        }
        Ok(())
    }
}

impl Drop for Pipe<'_> {
    fn drop(&mut self) {
        // After a failed read a copy from the buffers may still be in progress.
        if let Err(error) = self.device.finish() {
            log::warn!("{error}");
        }
    }
}
