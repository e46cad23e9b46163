//! The kinds of requests that are served, by the kernel's numbers (`enum fuse_opcode`). The others get ENOSYS.

pub(super) const LOOKUP: u32 = 1;
pub(super) const FORGET: u32 = 2;
pub(super) const GETATTR: u32 = 3;
pub(super) const SETATTR: u32 = 4;
pub(super) const READLINK: u32 = 5;
pub(super) const SYMLINK: u32 = 6;
pub(super) const MKNOD: u32 = 8;
pub(super) const MKDIR: u32 = 9;
pub(super) const UNLINK: u32 = 10;
pub(super) const RMDIR: u32 = 11;
pub(super) const RENAME: u32 = 12;
pub(super) const LINK: u32 = 13;
pub(super) const OPEN: u32 = 14;
pub(super) const READ: u32 = 15;
pub(super) const WRITE: u32 = 16;
pub(super) const STATFS: u32 = 17;
pub(super) const RELEASE: u32 = 18;
pub(super) const FSYNC: u32 = 20;
pub(super) const SETXATTR: u32 = 21;
pub(super) const GETXATTR: u32 = 22;
pub(super) const LISTXATTR: u32 = 23;
pub(super) const REMOVEXATTR: u32 = 24;
pub(super) const FLUSH: u32 = 25;
pub(super) const OPENDIR: u32 = 27;
pub(super) const READDIR: u32 = 28;
pub(super) const RELEASEDIR: u32 = 29;
pub(super) const FSYNCDIR: u32 = 30;
pub(super) const CREATE: u32 = 35;
/// Has no reply: the request that it interrupts is answered.
pub(super) const INTERRUPT: u32 = 36;
pub(super) const DESTROY: u32 = 38;
pub(super) const POLL: u32 = 40;
pub(super) const BATCH_FORGET: u32 = 42;
pub(super) const FALLOCATE: u32 = 43;
pub(super) const READDIRPLUS: u32 = 44;
pub(super) const RENAME2: u32 = 45;
pub(super) const LSEEK: u32 = 46;
pub(super) const COPY_FILE_RANGE: u32 = 47;
/// Since protocol 7.37.
pub(super) const TMPFILE: u32 = 51;
/// Since protocol 7.45. Older kernels, and newer ones after a reply that it is not served, send the one before.
pub(super) const COPY_FILE_RANGE_64: u32 = 53;

/// Whether the answer to a request, given by its bytes, may need stored bytes of a file.
pub(super) fn needs_bytes(request: &[u8]) -> bool {
    let kind = request.get(4..8).and_then(|kind| kind.try_into().ok()).map(u32::from_ne_bytes);
    kind.is_some_and(|kind| {
        // The others read nothing, or where they do have threads of their own (`fs/mod.rs`).
        matches!(kind, SETATTR | READ | WRITE | FALLOCATE)
    })
}

/// Whether the kernel waits for a reply to a request of this kind.
pub(super) fn has_reply(opcode: u32) -> bool {
    !matches!(opcode, FORGET | INTERRUPT | BATCH_FORGET)
}
