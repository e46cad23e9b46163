//! Compares the bytes on the device with an ordinary read of the file.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::gpu::counter::Counter;
use crate::gpu::device::Device;
use crate::gpu::memory::{DeviceBytes, Pinned};
use crate::gpu::pieces::{PIECE_BYTES, Piece, pieces};
use crate::gpu::{Compared, ComparedOn};
use crate::model::{Error, Result};

/// Compares `len` bytes at `pointer` with those of a file from `offset`: on the device or, if it cannot load the program,
/// on the host, which adds a note to `steps`.
///
/// # Safety
/// `pointer` has `len` bytes of device memory.
pub(super) unsafe fn compare(
    device: &Device,
    path: &Path,
    offset: u64,
    len: u64,
    pointer: u64,
    steps: &mut Vec<String>,
) -> Result<Compared> {
    let failed = |error| Error::io(format!("reading {}", path.display()), error);
    let file = fs::File::open(path).map_err(failed)?;
    let mut read = Pinned::new(device, len.min(PIECE_BYTES) as usize)?;
    let fetch = |piece: Piece, into: &mut Pinned| {
        file.read_exact_at(&mut into.bytes()[..piece.len], offset + piece.into).map_err(failed)
    };
    // Declared before the counter that uses it, so it is dropped after it.
    let scratch = DeviceBytes::new(device, read.len() as u64)?;
    let differing = match Counter::new(device) {
        Ok(mut counter) => {
            for piece in pieces(offset, len) {
                fetch(piece, &mut read)?;
                // SAFETY: both have room for the piece, and `finish` waits before the buffer is overwritten.
                unsafe { device.copy_in(scratch.pointer(), &read.bytes()[..piece.len]) }?;
                // SAFETY: as above, and guaranteed by the caller.
                unsafe { counter.add(pointer + piece.into, scratch.pointer(), piece.len) }?;
                device.finish()?;
            }
            return Ok(Compared { differing: counter.total()?, place: ComparedOn::Device });
        }
        Err(error) => {
            steps.push(format!("compared on the host: {error}"));
            let mut back = Pinned::new(device, read.len())?;
            let mut differing = 0;
            for piece in pieces(offset, len) {
                fetch(piece, &mut read)?;
                // SAFETY: guaranteed by the caller.
                unsafe { device.copy_out(&mut back, pointer + piece.into, piece.len) }?;
                let pairs = read.bytes()[..piece.len].iter().zip(&back.bytes()[..piece.len]);
                differing += pairs.filter(|(one, other)| one != other).count() as u64;
            }
            differing
        }
    };
    Ok(Compared { differing, place: ComparedOn::Host })
}
