//! The sizes and places of what the kernel and a ring exchange: `struct fuse_uring_req_header` and the payload after it.

/// The longest write, and the longest reply, in bytes. The kernel's own limit is the same.
pub(in crate::fs::kernel) const PAYLOAD_BYTES: usize = 1 << 20;
/// Requests that a queue has with the daemon at a time. Others wait in the kernel. More entries than one let replies
/// wait (`waits.rs`).
pub(super) const DEPTH: usize = 8;

/// Bytes of the structure: a header in or out, the arguments of an operation, and sizes.
pub(super) const HEADER_BYTES: usize = 288;
pub(super) const OPCODE_AT: usize = 4;
pub(super) const ARGUMENTS_AT: usize = 128;
pub(super) const ARGUMENTS_BYTES_MAX: usize = 128;
/// The number of bytes in the arguments of a read and of a write.
pub(super) const TRANSFER_SIZE_AT: usize = ARGUMENTS_AT + 16;
pub(super) const COMMIT_ID_AT: usize = 264;
pub(super) const PAYLOAD_SIZE_AT: usize = 272;
