//! A piece on its way into a file.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::format::snapshot::manifest::FileExtent;
use crate::format::snapshot::piece_map::Digest;
use crate::model::Instant;
use crate::store::disk::File;
use crate::store::disk::change::Change;

/// Bytes are written in parts of this length, at multiples of it: the page cache then holds them in large
/// folios, which are read and mapped faster.
const PART_BYTES: u64 = 1 << 20;
/// A piece waits with at most this many bytes while another piece of the file is written.
const WAITING_MAX: u64 = 4 << 20;
/// The most buffers of one call: `IOV_MAX` of Linux.
const BUFFERS_MAX: usize = 1024;

/// Bytes of a piece on their way into the file, in chunks of any length.
///
/// The extents have all bytes of the piece, in order.
pub struct Arrival<'a, C> {
    file: &'a dyn File,
    /// Held by the piece that is written.
    turn: &'a Mutex<()>,
    extents: &'a [FileExtent],
    hasher: blake3::Hasher,
    /// Chunks that are not written as a whole, the bytes of the first that are, and where the rest begins in the piece.
    waiting: VecDeque<C>,
    written: usize,
    from: u64,
    bytes: u64,
    progress: Progress,
}

/// The part of a piece that a file has taken.
#[derive(Clone, Copy, Default, Debug)]
pub struct Progress {
    /// Bytes.
    pub written: u64,
    /// Time of writing.
    pub writing: Duration,
    /// Time of waiting until other pieces were written.
    pub waiting: Duration,
}

impl<'a, C: AsRef<[u8]>> Arrival<'a, C> {
    /// Nothing has arrived yet. The lock belongs to the file.
    pub fn new(file: &'a dyn File, turn: &'a Mutex<()>, extents: &'a [FileExtent]) -> Arrival<'a, C> {
        let (hasher, waiting) = (blake3::Hasher::new(), VecDeque::new());
        Arrival {
            file,
            turn,
            extents,
            hasher,
            waiting,
            written: 0,
            from: 0,
            bytes: 0,
            progress: Progress::default(),
        }
    }

    /// The next bytes.
    pub fn take(&mut self, chunk: C) -> io::Result<()> {
        self.hasher.update(chunk.as_ref());
        self.bytes += chunk.as_ref().len() as u64;
        self.waiting.push_back(chunk);
        if self.bytes < PART_BYTES {
            return Ok(());
        }
        let turn = self.turn.try_lock();
        if turn.is_none() && self.bytes < WAITING_MAX {
            return Ok(());
        }
        let _turn = turn.unwrap_or_else(|| self.wait_for_turn());
        self.write(false)
    }

    /// Writes what is left. Returns the BLAKE3 of all bytes.
    pub fn finish(&mut self) -> io::Result<Digest> {
        let _turn = self.wait_for_turn();
        self.write(true)?;
        Ok(*self.hasher.finalize().as_bytes())
    }

    /// The part that the file has taken.
    pub fn progress(&self) -> Progress {
        Progress { written: self.from, ..self.progress }
    }

    /// Writes no more, and gives the space back. Returns the bytes that have arrived, and their hasher.
    pub fn into_memory(self) -> io::Result<(Vec<u8>, blake3::Hasher)> {
        // The buffer has room for the bytes that have not arrived yet.
        let len: u64 = self.extents.iter().map(|extent| u64::from(extent.len)).sum();
        let (mut bytes, mut left) = (Vec::with_capacity(len as usize), self.from);
        bytes.resize(self.from as usize, 0);
        for extent in self.extents {
            if left == 0 {
                break;
            }
            let len = left.min(extent.len.into());
            let from = extent.piece_offset as usize;
            let part = bytes.get_mut(from..from + len as usize).ok_or(io::ErrorKind::InvalidData)?;
            self.file.read_exact_at(part, extent.offset)?;
            if let Err(error) = self.file.punch(Change::Evict, extent.offset, len) {
                log::debug!("a part of a piece keeps its space: {error}");
            }
            left -= len;
        }
        let mut skipped = self.written;
        for chunk in &self.waiting {
            bytes.extend_from_slice(chunk.as_ref().get(std::mem::take(&mut skipped)..).unwrap_or_default());
        }
        Ok((bytes, self.hasher))
    }

    fn wait_for_turn(&mut self) -> MutexGuard<'a, ()> {
        let (turn, begun) = (self.turn, Instant::now());
        let held = turn.lock();
        self.progress.waiting += begun.elapsed();
        held
    }

    /// Writes what waits, up to the end of the last whole part unless it is the rest.
    fn write(&mut self, is_rest: bool) -> io::Result<()> {
        let extents = self.extents;
        while self.bytes > 0 {
            // The extents of this piece have its bytes in their order.
            let next = extents.partition_point(|extent| u64::from(extent.piece_offset) <= self.from);
            let Some(extent) = next.checked_sub(1).and_then(|at| extents.get(at)) else { break };
            let offset = extent.offset + (self.from - u64::from(extent.piece_offset));
            let is_last = self.bytes <= extent.end().saturating_sub(offset);
            let end = (offset + self.bytes).min(extent.end());
            let end = if is_rest || !is_last || end == extent.end() { end } else { end - end % PART_BYTES };
            if end <= offset {
                break;
            }
            self.write_at(offset, end - offset)?;
        }
        Ok(())
    }

    /// Writes the first `len` bytes that wait.
    fn write_at(&mut self, mut offset: u64, mut len: u64) -> io::Result<()> {
        while len > 0 {
            let (mut skipped, mut rest) = (self.written, len as usize);
            let parts = self.waiting.iter().take(BUFFERS_MAX).map_while(|chunk| {
                let chunk = chunk.as_ref().get(std::mem::take(&mut skipped)..)?;
                let part = chunk.get(..rest.min(chunk.len()))?;
                rest -= part.len();
                (!part.is_empty() || rest > 0).then_some(part)
            });
            let parts: Vec<&[u8]> = parts.collect();
            let count: u64 = parts.iter().map(|part| part.len() as u64).sum();
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            let begun = Instant::now();
            self.file.write_parts_at(&parts, offset)?;
            self.progress.writing += begun.elapsed();
            self.drop_first(count);
            offset += count;
            len -= count;
        }
        Ok(())
    }

    fn drop_first(&mut self, bytes: u64) {
        self.from += bytes;
        self.bytes -= bytes;
        let mut left = bytes as usize;
        while let Some(chunk) = self.waiting.front() {
            let unwritten = chunk.as_ref().len() - self.written;
            if left < unwritten {
                self.written += left;
                return;
            }
            left -= unwritten;
            self.written = 0;
            self.waiting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::disk::memory::unnamed_file;

    proptest! {
        #[test]
        fn bytes_of_any_chunks_land_in_their_extents(
            extents in prop::collection::vec((0..3_u64, 1..2_500_000_u32), 1..6),
            chunks in prop::collection::vec(1..300_000_usize, 1..40),
            is_busy in any::<bool>(),
            chunks_to_the_file in 0..60_usize,
        ) {
            let (mut placed, mut at, mut len) = (Vec::new(), 0, 0);
            for (gap, bytes) in extents {
                at += gap * 777;
                placed.push(FileExtent { offset: at, piece: 0, piece_offset: len, len: bytes });
                at += u64::from(bytes);
                len += bytes;
            }
            let bytes: Vec<u8> = (0..len).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect();
            let (file, turn) = (unnamed_file(), Mutex::new(()));
            let mut arrival = Arrival::new(&*file, &turn, &placed);
            let mut rest = bytes.as_slice();
            for (number, chunk) in chunks.iter().cycle().enumerate() {
                // Another piece is written, but never for so long that this one has to wait.
                let _other = (is_busy && arrival.bytes < WAITING_MAX - 300_000).then(|| turn.lock());
                let chunk = rest.split_off(..(*chunk).min(rest.len())).unwrap();
                arrival.take(chunk).unwrap();
                if number == chunks_to_the_file {
                    let (mut found, mut hasher) = arrival.into_memory().unwrap();
                    hasher.update(rest);
                    found.extend_from_slice(rest);
                    prop_assert!(found == bytes);
                    prop_assert_eq!(hasher.finalize(), blake3::hash(&bytes));
                    return Ok(());
                }
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(arrival.finish().unwrap(), *blake3::hash(&bytes).as_bytes());
            prop_assert_eq!(arrival.progress().written, bytes.len() as u64);
            let mut wanted = vec![0; at as usize];
            for extent in &placed {
                let from = &bytes[extent.piece_offset as usize..][..extent.len as usize];
                wanted[extent.offset as usize..][..from.len()].copy_from_slice(from);
            }
            let mut found = vec![0; at as usize];
            file.read_exact_at(&mut found, 0).unwrap();
            prop_assert!(found == wanted);
        }
    }
}
