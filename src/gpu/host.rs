//! Reads through host memory: fills one pinned buffer while the device copies from the other.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::gpu::device::Device;
use crate::gpu::memory::{Event, Pinned};
use crate::gpu::pieces::{PIECE_BYTES, pieces};
use crate::model::{Error, Result};

/// A buffer, and the event after which it may be overwritten.
struct Slot<'d> {
    memory: Pinned<'d>,
    copied: Event<'d>,
}

impl<'d> Slot<'d> {
    fn new(device: &'d Device, bytes: usize) -> Result<Slot<'d>> {
        Ok(Slot { memory: Pinned::new(device, bytes)?, copied: Event::new(device)? })
    }
}

/// Two buffers that are used alternately.
pub(super) struct Pipe<'d> {
    device: &'d Device,
    slots: [Slot<'d>; 2],
}

impl<'d> Pipe<'d> {
    /// Allocates buffers for a read of `len` bytes.
    pub fn new(device: &'d Device, len: u64) -> Result<Pipe<'d>> {
        let bytes = len.min(PIECE_BYTES) as usize;
        Ok(Pipe { device, slots: [Slot::new(device, bytes)?, Slot::new(device, bytes)?] })
    }

    /// Reads `len` bytes of a file from `offset` and copies them to `pointer`. Returns when the copies are complete.
    ///
    /// # Safety
    /// `pointer` has `len` bytes of device memory.
    pub unsafe fn run(&mut self, path: &Path, offset: u64, len: u64, pointer: u64) -> Result<()> {
        let failed = |error| Error::io(format!("reading {}", path.display()), error);
        let file = fs::File::open(path).map_err(failed)?;
        for (number, piece) in pieces(offset, len).enumerate() {
            let [even, odd] = &mut self.slots;
            let slot = if number % 2 == 0 { even } else { odd };
            slot.copied.wait()?;
            file.read_exact_at(&mut slot.memory.bytes()[..piece.len], offset + piece.into).map_err(failed)?;
            // SAFETY: the piece lies within the bytes that the caller guarantees. The buffer is overwritten or freed only
            // after its event.
            unsafe { self.device.copy_in(pointer + piece.into, &slot.memory, piece.len) }?;
            slot.copied.record()?;
        }
        self.device.finish()
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
