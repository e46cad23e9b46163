//! One ring of io_uring, with the commands of FUSE.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::memory::Entry;

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Where `len` lies in a submission entry.
const LEN_AT: usize = 24;
/// Commands that wait to be submitted. More are submitted at once.
const SUBMISSIONS: u32 = 64;
/// The completion of the read that wakes a thread has this number. Others have that of an entry.
const WAKE: u64 = u64::MAX;
/// A queue that no machine has.
const NO_QUEUE: u16 = u16::MAX;

/// A ring, used by one thread after [`begin`](Self::begin).
pub(super) struct Ring {
    ring: IoUring<Entry128, cqueue::Entry>,
    /// A number that others write wakes the thread which waits on the ring.
    wake: OwnedFd,
    woken: Box<[u8; 8]>,
}

pub(super) enum Completion {
    /// A thread has work for this one.
    Woken,
    /// The kernel gave back an entry: with a request, or with an error number.
    Entry(usize, i32),
}

impl Ring {
    /// A ring for this many entries. Fails where io_uring is forbidden.
    pub fn new(entries: usize) -> io::Result<Ring> {
        let completions = (entries as u32 + 8).next_power_of_two().clamp(2 * SUBMISSIONS, 1 << 14);
        let mut builder = IoUring::builder();
        // Requests are delivered by any system call of the thread. Deferred until it waits, as a flag of io_uring has it,
        // those of two programs, or a close and the next open, would take turns.
        builder.setup_cqsize(completions).setup_single_issuer().setup_coop_taskrun().setup_r_disabled();
        let ring = builder.build(SUBMISSIONS)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Ring { ring, wake, woken: Box::new([0; 8]) })
    }

    /// Writing a number to it wakes the thread that waits on the ring.
    pub fn wake_handle(&self) -> io::Result<File> {
        Ok(File::from(self.wake.try_clone()?))
    }

    /// Makes the calling thread the one that uses the ring.
    pub fn begin(&mut self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()?;
        self.await_wake()
    }

    /// Waits for a wake again.
    pub fn await_wake(&mut self) -> io::Result<()> {
        let wake = types::Fd(self.wake.as_raw_fd());
        let read = opcode::Read::new(wake, self.woken.as_mut_ptr(), self.woken.len() as u32);
        self.push(Entry128::from(read.build().user_data(WAKE)))
    }

    /// Gives a new entry to the kernel.
    pub fn register(&mut self, device: BorrowedFd, number: usize, entry: Entry) -> io::Result<()> {
        let parts = entry.parts();
        let address = Some(parts.as_ptr().expose_provenance() as u64);
        self.push(command(device, REGISTER, entry.queue, 0, address).user_data(number as u64))?;
        // The kernel reads the parts while it submits.
        self.submit()
    }

    /// Gives an entry with a reply back to the kernel.
    pub fn commit(&mut self, device: BorrowedFd, number: usize, entry: Entry, id: u64) -> io::Result<()> {
        self.push(command(device, COMMIT_AND_FETCH, entry.queue, id, None).user_data(number as u64))
    }

    /// Registers what the kernel must refuse. It uses the device from then on.
    pub fn refuse(&mut self, device: BorrowedFd) -> io::Result<()> {
        self.push(command(device, REGISTER, NO_QUEUE, 0, None).user_data(WAKE))?;
        self.submit()
    }

    fn push(&mut self, entry: Entry128) -> io::Result<()> {
        loop {
            // SAFETY: the buffers that the commands name live as long as the ring: those of entries in `Buffers`, that of
            // the wake in the ring.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            self.submit()?;
        }
    }

    pub fn submit(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        retried(|| self.ring.submit())
    }

    /// Submits the commands and waits for a completion.
    pub fn wait(&mut self) -> io::Result<()> {
        retried(|| self.ring.submit_and_wait(1))
    }

    /// The next completion, without a system call.
    pub fn next(&mut self) -> Option<Completion> {
        let completed = self.ring.completion().next()?;
        Some(match completed.user_data() {
            WAKE => Completion::Woken,
            number => Completion::Entry(number as usize, completed.result()),
        })
    }
}

/// Repeats a system call that a signal or a lack of memory interrupted.
fn retried(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<()> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Completions wait to be taken, or the kernel lacks memory for the moment.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::BUSY | Errno::AGAIN)) => {
                return Ok(());
            }
            other => return other.map(|_| ()),
        }
    }
}

/// A command to the FUSE device, with `struct fuse_uring_cmd_req`.
fn command(device: BorrowedFd, kind: u32, queue: u16, id: u64, parts: Option<u64>) -> Entry128 {
    let mut request = [0; 80];
    request[8..16].copy_from_slice(&id.to_ne_bytes());
    request[16..18].copy_from_slice(&queue.to_ne_bytes());
    let device = types::Fd(device.as_raw_fd());
    let mut entry = opcode::UringCmd80::new(device, kind).cmd(request).addr(parts).build();
    if parts.is_some() {
        let len = 2_u32.to_ne_bytes();
        let begin = std::ptr::from_mut(&mut entry).cast::<u8>();
        // SAFETY: a submission entry has 128 bytes, and the crate has no way to set the length of this command.
        unsafe { begin.add(LEN_AT).copy_from_nonoverlapping(len.as_ptr(), len.len()) };
    }
    entry
}

/// Wakes the thread that waits on the ring of this handle.
pub(super) fn wake(mut handle: &File) {
    if let Err(error) = handle.write_all(&1_u64.to_ne_bytes()) {
        log::error!("waking a thread of requests: {error}");
    }
}
