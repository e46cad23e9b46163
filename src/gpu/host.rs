//! By way of the host: read into one pinned buffer while the device copies from the other.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::gpu::device::Device;
use crate::gpu::memory::{Event, Pinned};
use crate::gpu::pieces::{PIECE_BYTES, pieces};
use crate::model::{Error, Result};

/// A buffer, and when it may be written to again.
struct Slot<'d> {
    memory: Pinned<'d>,
    copied: Event<'d>,
}

impl<'d> Slot<'d> {
    fn new(device: &'d Device, bytes: usize) -> Result<Slot<'d>> {
        Ok(Slot { memory: Pinned::new(device, bytes)?, copied: Event::new(device)? })
    }
}

/// Two buffers that take turns.
pub(super) struct Pipe<'d> {
    device: &'d Device,
    slots: [Slot<'d>; 2],
}

impl<'d> Pipe<'d> {
    /// Buffers for pieces of files of `len` bytes.
    pub fn new(device: &'d Device, len: u64) -> Result<Pipe<'d>> {
        let bytes = len.min(PIECE_BYTES) as usize;
        Ok(Pipe { device, slots: [Slot::new(device, bytes)?, Slot::new(device, bytes)?] })
    }

    /// Reads `len` bytes of a file from `offset` on and copies them to `pointer`; returns when all are there.
    ///
    /// # Safety
    /// The device has `len` bytes at `pointer`.
    pub unsafe fn run(&mut self, path: &Path, offset: u64, len: u64, pointer: u64) -> Result<()> {
        let failed = |error| Error::io(format!("reading {}", path.display()), error);
        let file = fs::File::open(path).map_err(failed)?;
        for (number, piece) in pieces(offset, len).enumerate() {
            let [even, odd] = &mut self.slots;
            let slot = if number % 2 == 0 { even } else { odd };
            slot.copied.wait()?;
            file.read_exact_at(&mut slot.memory.bytes()[..piece.len], offset + piece.into).map_err(failed)?;
            // SAFETY: the piece lies in the bytes that the caller has there. The buffer is written to again, and given
            // back, only after its event.
            unsafe { self.device.copy_in(pointer + piece.into, &slot.memory, piece.len) }?;
            slot.copied.record()?;
        }
        self.device.finish()
    }
}

impl Drop for Pipe<'_> {
    fn drop(&mut self) {
        // A read that failed has left a copy under way, which reads of the buffers.
        if let Err(error) = self.device.finish() {
            log::warn!("{error}");
        }
    }
}
