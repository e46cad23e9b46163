//! The buffers of the entries, which the kernel fills and reads.

use std::io;

use memmap2::{MmapMut, MmapOptions};
use rustix::io::Errno;

use crate::fs::kernel::opcode;
use crate::fs::kernel::request::REQUEST_HEADER_BYTES;
use crate::fs::kernel::sender::{REPLY_HEADER_BYTES, ReplyHeader};

use super::layout::{
    ARGUMENTS_AT, ARGUMENTS_BYTES_MAX, COMMIT_ID_AT, HEADER_BYTES, OPCODE_AT, PAYLOAD_BYTES, PAYLOAD_SIZE_AT,
    TRANSFER_SIZE_AT,
};

const PAGE: usize = 4096;
/// Bytes of an entry: a page for the header, whose end has room for the parts that precede a payload, and the payload.
const ENTRY_BYTES: usize = PAGE + PAYLOAD_BYTES;

/// The buffers of all entries. Pages that no request has used take no memory.
pub(super) struct Buffers {
    /// Owns the memory. The threads that give entries to the kernel have ended before it goes, since each holds a
    /// reference to this; the kernel then has none.
    _memory: MmapMut,
    begin: *mut u8,
    depth: usize,
    entries: usize,
}

// SAFETY: the memory is reached through `Entry` only, whose users are told apart by the protocol: an entry is either
// with the kernel or with the thread that answers its request.
unsafe impl Send for Buffers {}
// SAFETY: as above.
unsafe impl Sync for Buffers {}

impl Buffers {
    /// Buffers for `depth` entries of each queue.
    pub fn new(queues: usize, depth: usize) -> io::Result<Buffers> {
        let entries = queues * depth;
        let mut memory = MmapOptions::new().len(entries * ENTRY_BYTES).no_reserve_swap().map_anon()?;
        Ok(Buffers { begin: memory.as_mut_ptr(), _memory: memory, depth, entries })
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// The entry with this number, if there is one.
    pub fn entry(&self, number: usize) -> Option<Entry> {
        // SAFETY: the entry lies within the mapping.
        let begin = (number < self.entries).then(|| unsafe { self.begin.add(number * ENTRY_BYTES) })?;
        Some(Entry { begin, queue: (number / self.depth) as u16 })
    }

    /// The numbers of a queue's entries.
    pub fn of_queue(&self, queue: usize) -> std::ops::Range<usize> {
        queue * self.depth..(queue + 1) * self.depth
    }
}

/// The buffer of an entry. Its methods are for the one who has the entry: after the kernel gave it with a request, and
/// before it is given back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    begin: *mut u8,
    /// The kernel's queue of the entry.
    pub queue: u16,
}

// SAFETY: see `Buffers`.
unsafe impl Send for Entry {}

impl Entry {
    /// The two parts that the kernel is told of: header and payload.
    pub fn parts(self) -> [libc::iovec; 2] {
        [
            libc::iovec { iov_base: self.begin.cast(), iov_len: HEADER_BYTES },
            libc::iovec { iov_base: self.payload().cast(), iov_len: PAYLOAD_BYTES },
        ]
    }

    fn payload(self) -> *mut u8 {
        // SAFETY: an entry has a page before its payload.
        unsafe { self.begin.add(PAGE) }
    }

    fn number_at<const BYTES: usize>(self, at: usize) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        // SAFETY: all callers pass places within the header.
        unsafe { self.begin.add(at).copy_to_nonoverlapping(bytes.as_mut_ptr(), BYTES) };
        bytes
    }

    /// The number by which the kernel knows the request.
    pub fn commit_id(self) -> u64 {
        u64::from_ne_bytes(self.number_at(COMMIT_ID_AT))
    }

    /// The kind of the request.
    pub fn operation(self) -> u32 {
        u32::from_ne_bytes(self.number_at(OPCODE_AT))
    }

    /// The bytes that a read or a write is about.
    pub fn size_of_transfer(self) -> u32 {
        u32::from_ne_bytes(self.number_at(TRANSFER_SIZE_AT))
    }

    /// Lays the request out as the device gives it, header, arguments and payload in one piece, and calls `answer` with
    /// it. A write is not copied: `answer` is told that the payload's place is in use. Returns `None` if the sizes make
    /// no sense.
    pub fn with_request<T>(self, copy: &mut Vec<u8>, answer: impl FnOnce(&[u8], bool) -> T) -> Option<T> {
        let len = u32::from_ne_bytes(self.number_at(0)) as usize;
        let payload_len = u32::from_ne_bytes(self.number_at(PAYLOAD_SIZE_AT)) as usize;
        let arguments = len.checked_sub(REQUEST_HEADER_BYTES)?.checked_sub(payload_len)?;
        if arguments > ARGUMENTS_BYTES_MAX || payload_len > PAYLOAD_BYTES {
            return None;
        }
        let before = REQUEST_HEADER_BYTES + arguments;
        let is_in_place = self.operation() == opcode::WRITE;
        let begin: *mut u8 = if is_in_place {
            // SAFETY: at most 168 bytes, in the page before the payload and far from the header at its begin.
            unsafe { self.payload().sub(before) }
        } else {
            copy.resize(copy.len().max(len), 0);
            copy.as_mut_ptr()
        };
        // SAFETY: `begin` has room for `len` bytes, which do not overlap the header. The payload is initialized, as
        // anonymous memory is from the start.
        let request = unsafe {
            begin.copy_from_nonoverlapping(self.begin, REQUEST_HEADER_BYTES);
            begin.add(REQUEST_HEADER_BYTES).copy_from_nonoverlapping(self.begin.add(ARGUMENTS_AT), arguments);
            if !is_in_place {
                begin.add(before).copy_from_nonoverlapping(self.payload(), payload_len);
            }
            std::slice::from_raw_parts(begin, len)
        };
        Some(answer(request, is_in_place))
    }

    /// The first bytes of the payload, to be filled with a reply.
    pub fn place(&mut self, len: usize) -> Option<&mut [u8]> {
        // SAFETY: the place lies within the payload, and the entry's holder is the only user.
        (len <= PAYLOAD_BYTES).then(|| unsafe { std::slice::from_raw_parts_mut(self.payload(), len) })
    }

    /// The header of a reply that says that the request failed.
    pub fn failure(self) -> ReplyHeader {
        let mut header = [0; REPLY_HEADER_BYTES];
        header[..4].copy_from_slice(&(REPLY_HEADER_BYTES as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&(-Errno::IO.raw_os_error()).to_ne_bytes());
        header[8..].copy_from_slice(&self.commit_id().to_ne_bytes());
        header
    }

    /// Writes the header of a reply with `count` bytes of payload.
    pub fn reply(self, header: &ReplyHeader, count: usize) {
        let count = (count as u32).to_ne_bytes();
        // SAFETY: both places lie within the header.
        unsafe {
            self.begin.copy_from_nonoverlapping(header.as_ptr(), REPLY_HEADER_BYTES);
            self.begin.add(PAYLOAD_SIZE_AT).copy_from_nonoverlapping(count.as_ptr(), count.len());
        }
    }
}
