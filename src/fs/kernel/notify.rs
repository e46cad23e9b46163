//! The notification that `fuser` does not have: all cached names are old.

use std::io;
use std::os::fd::OwnedFd;

/// `struct fuse_out_header` of a notification: its length, its code, zero.
pub(in crate::fs) const NOTIFICATION_BYTES: u32 = 16;
const INC_EPOCH: i32 = 8;

/// Has the kernel look each cached name up again at its next use. Fails before Linux 6.16.
pub(in crate::fs) fn invalidate_names(device: &OwnedFd) -> io::Result<()> {
    let mut message = [0; NOTIFICATION_BYTES as usize];
    message[..4].copy_from_slice(&NOTIFICATION_BYTES.to_ne_bytes());
    message[4..8].copy_from_slice(&INC_EPOCH.to_ne_bytes());
    rustix::io::write(device, &message)?;
    Ok(())
}
