//! copy_file_range(2) between open files.

use std::ops::Range;
use std::sync::Arc;

use crate::model::Result;
use crate::store::GATHERED_BYTES_MAX;
use crate::vfs::open::{CopyStep, OpenFile};
use crate::vfs::tree::vfs::Vfs;

/// Bytes that one request reads and writes at most. Shared blocks and zeros cost little, and count as a page a step.
const COST_MAX: u64 = 16 << 20;
const STEP_COST: u64 = 4096;
/// Bytes that are copied at a time.
const CHUNK_BYTES: u64 = 1 << 20;

impl Vfs {
    /// Copies `bytes` bytes of an open file, or as many as it has, into another or to another place of the same. Returns
    /// how many were copied, at least one unless the source ends there: fewer than asked for where much has to be
    /// read, or after an error behind the first ones.
    ///
    /// Whole blocks that lie in a data file are shared where they come to the end of the file, if files of the two
    /// collections may share. All other bytes are written as a program writes them.
    pub fn copy_range(
        &self,
        from: &Arc<OpenFile>,
        from_offset: u64,
        to: &Arc<OpenFile>,
        to_offset: u64,
        bytes: u64,
    ) -> Result<u64> {
        let may_share = bytes > GATHERED_BYTES_MAX && from.collection().check_writable().is_ok();
        if may_share && from.is_changed() {
            // Only recorded blocks are shared.
            if let Err(error) = self.flush_and_queue(from) {
                log::debug!("{}: blocks that are not recorded are copied: {error}", from.collection().path());
            }
        }
        let bytes = bytes.min((i64::MAX as u64).saturating_sub(to_offset));
        let end = from_offset.saturating_add(bytes).min(from.bytes());
        let (mut at, mut cost) = (from_offset, 0);
        while at < end && cost < COST_MAX {
            let place = to_offset.saturating_add(at - from_offset);
            match self.copy_first(from, at..end, to, place, COST_MAX - cost) {
                Ok(copied) => {
                    at += copied.bytes;
                    cost += copied.cost;
                    if copied.bytes == 0 {
                        // The source became shorter.
                        break;
                    }
                }
                Err(_) if at > from_offset => break,
                Err(error) => return Err(error),
            }
        }
        Ok(at.saturating_sub(from_offset))
    }

    /// Copies the first bytes of a range.
    fn copy_first(
        &self,
        from: &OpenFile,
        range: Range<u64>,
        to: &OpenFile,
        place: u64,
        cost_max: u64,
    ) -> Result<Copied> {
        let begin = range.start;
        let bytes = match from.copy_step(range)? {
            CopyStep::Blocks(blocks) => {
                let shared = self.with_room(|| to.append_blocks(place, &blocks))?;
                if shared > 0 {
                    return Ok(Copied { bytes: shared, cost: STEP_COST });
                }
                blocks.bytes()
            }
            CopyStep::Zeros(bytes) if place >= to.bytes() => {
                // All but the last of them are a hole.
                self.write(to, place + bytes - 1, &[0])?;
                return Ok(Copied { bytes, cost: STEP_COST });
            }
            CopyStep::Zeros(bytes) | CopyStep::Bytes(bytes) => bytes,
        };
        let mut chunk = vec![0; bytes.min(CHUNK_BYTES).min(cost_max) as usize];
        let read = from.read(begin, &mut chunk)?;
        chunk.truncate(read);
        self.write(to, place, &chunk)?;
        Ok(Copied { bytes: read as u64, cost: STEP_COST + read as u64 })
    }
}

/// A step of a copy.
struct Copied {
    bytes: u64,
    cost: u64,
}
