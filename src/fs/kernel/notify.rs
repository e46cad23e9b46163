//! Notifications: messages to the kernel that answer no request.
//!
//! A message is `struct fuse_out_header`, with the code in place of an error and no number of a request, and the structure
//! of its kind.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::vfs::Ino;

/// Bytes of the header of a notification.
const NOTIFICATION_BYTES: u32 = 16;
const POLL: i32 = 1;
const INVALIDATE_INODE: i32 = 2;
const RESEND: i32 = 7;
const INC_EPOCH: i32 = 8;

/// The part of an inode's caches to drop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::fs) enum Dropped {
    /// Its attributes. This waits for no request.
    Attributes,
    /// Its attributes and all its pages. This waits for requests that have one of them.
    Pages,
}

/// Sends notifications to the kernel.
#[derive(Clone)]
pub(in crate::fs) struct Notifier(Arc<OwnedFd>);

impl Notifier {
    /// Notifications of the mount with this device.
    pub fn new(device: Arc<OwnedFd>) -> Notifier {
        Notifier(device)
    }

    /// Has the kernel drop what it caches of an inode.
    pub fn invalidate(&self, node: Ino, what: Dropped) -> io::Result<()> {
        let first_byte: i64 = match what {
            Dropped::Attributes => -1,
            Dropped::Pages => 0,
        };
        // The last number is that of bytes; 0 means all.
        let body = [node.0.to_ne_bytes(), first_byte.to_ne_bytes(), [0; 8]].concat();
        send(&self.0, INVALIDATE_INODE, &body)
    }

    /// Wakes the programs that poll a file, by the number that the request to poll had.
    pub fn wake(&self, kernel_handle: u64) -> io::Result<()> {
        send(&self.0, POLL, &kernel_handle.to_ne_bytes())
    }
}

/// Has the kernel look each cached name up again at its next use. Fails before Linux 6.16.
pub(in crate::fs) fn invalidate_names(device: &OwnedFd) -> io::Result<()> {
    send(device, INC_EPOCH, &[])
}

/// Has the kernel give each request again that was read and not answered; it marks them ([`is_resent`]). Fails before
/// Linux 6.9.
pub(in crate::fs) fn resend_requests(device: &OwnedFd) -> io::Result<()> {
    send(device, RESEND, &[])
}

/// Whether the kernel gives the request with this number not for the first time.
pub(in crate::fs) fn is_resent(unique: u64) -> bool {
    unique >> 63 != 0
}

fn send(device: &OwnedFd, code: i32, body: &[u8]) -> io::Result<()> {
    let mut header = [0; NOTIFICATION_BYTES as usize];
    let len = NOTIFICATION_BYTES + body.len() as u32;
    header[..4].copy_from_slice(&len.to_ne_bytes());
    header[4..8].copy_from_slice(&code.to_ne_bytes());
    rustix::io::writev(device, &[IoSlice::new(&header), IoSlice::new(body)])?;
    Ok(())
}
