//! The protocol of FUSE: the only folder with its numbers and layouts.
//!
//! ```text
//! device.rs ──┐ bytes                                  reply.rs ──> sender.rs ──> device
//!             ├──> service.rs ──> request.rs ──> fs/answer/requests.rs                └─> ring
//! rings/   ───┘
//! ```
//!
//! Threads read requests from the device, or get them by rings. [`Service::receive`] parses one and gives it to the
//! file system with a [`Reply`], which knows its way back. Each of them works on bytes alone, so the file system is
//! tested without a kernel: `Offline` (`fs/mount/offline.rs`) serves a store, and `tests/kernel/` sends it requests and
//! compares replies. The mount, the handshake and most notifications are those of the crate `fuser` (`session.rs`).
//!
//! 1. A thread of `device.rs` reads a request with one system call into a buffer that it keeps; a reply is one
//!    `writev`. Neither allocates memory. Long requests, all of them writes, go on with their buffer to other threads.
//! 2. `Reply::place` gives the memory that a read or a listing fills: a buffer of the thread, or the entry of a ring.
//!    `Reply::placed` sends it from there.
//! 3. A `Reply` is sent once. Dropped unsent it answers EIO, so a panic in a request leaves no program waiting.
//!    `Reply::withhold` ends requests without reply: FORGET, BATCH_FORGET and INTERRUPT.
//! 4. The kernel checks names and access. The parser checks lengths, ends of names and offsets all the same: bytes that
//!    do not fit are an error, never a panic. `tests/fuzz/targets/` has a target for it, and one for the answers on a
//!    small store.
//!
//! To serve another request: its number in `opcode.rs`, its arguments in `Operation` of `request.rs`, its reply in
//! `reply.rs`, an arm in `fs/answer/requests.rs`, a function in `vfs/tree/change.rs`, and `tests/golden/fuse.py`. An unknown
//! kind answers ENOSYS.

pub(super) mod backing;
pub(super) mod device;
pub mod errno;
mod long_requests;
pub(super) mod notify;
mod opcode;
mod reply;
mod request;
pub(super) mod rings;
mod sender;
mod service;
pub(super) mod session;

pub use reply::{Attributes, Entry, Listing, Opened, OpenedFlags, Reply, Space};
pub use request::{
    AllocateFlags, AttributeFlags, CopyRange, Forgotten, ForgottenInode, Malformed, OpenFlags, Operation,
    REQUEST_HEADER_BYTES, RenameFlags, Request, SetAttributes, SetTime,
};
pub use sender::{
    REPLY_HEADER_BYTES, ReplyHeader, Route, Sender, TRANSFER_BYTES_MAX, ToDevice, drop_long_buffers,
};
pub use service::Service;
