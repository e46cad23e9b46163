//! The protocol of FUSE: the only folder with its numbers and layouts.
//!
//! ```text
//! device.rs ──┐ bytes                                  reply.rs ──> sender.rs ──> device
//!             ├──> service.rs ──> request.rs ──> fs/answer/requests.rs                └─> ring
//! rings/   ───┘
//! ```
//!
//! Threads read requests from the device, or get them by rings. [`Service::receive`] parses one and gives it to the file
//! system with a [`Reply`], which knows its way back. Each of them works on bytes alone, so the file system is tested
//! without a kernel. The mount, the handshake and most notifications are those of the crate `fuser` (`session.rs`).

pub(super) mod backing;
pub(super) mod device;
pub mod errno;
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
    Forgotten, Malformed, OpenFlags, Operation, REQUEST_HEADER_BYTES, RenameFlags, Request, SetAttributes,
    SetTime,
};
pub use sender::{REPLY_HEADER_BYTES, ReplyHeader, Route, Sender, TRANSFER_BYTES_MAX, ToDevice};
pub use service::Service;
