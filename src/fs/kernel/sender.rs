//! The ways of a reply to the kernel.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::store::PageBuffer;

/// Bytes of the header that begins every reply.
pub const REPLY_HEADER_BYTES: usize = 16;
/// The longest write and the longest reply that the kernel may be told to use, in bytes.
pub const TRANSFER_BYTES_MAX: usize = 16 << 20;

/// The header of a reply.
pub type ReplyHeader = [u8; REPLY_HEADER_BYTES];

/// Sends the reply to one request.
pub trait Sender: Send {
    /// Sends a header and the bytes after it.
    /// # Errors
    /// Returns an error if the reply is not taken.
    fn send(&mut self, header: &ReplyHeader, body: &[u8]) -> io::Result<()>;

    /// The place of `len` bytes after the header, to be filled before they are sent. Their content is left over from
    /// earlier use. `None` if there is no room for as many.
    fn place(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Sends a header and the first `count` bytes of the place.
    /// # Errors
    /// Returns an error if the reply is not taken.
    fn send_placed(&mut self, header: &ReplyHeader, count: usize) -> io::Result<()>;
}

/// The sender of one reply. That of the device lies in it, so that its requests cost no allocation.
pub enum Route {
    Device(ToDevice),
    Other(Box<dyn Sender>),
}

impl Route {
    fn sender(&mut self) -> &mut dyn Sender {
        match self {
            Route::Device(device) => device,
            Route::Other(other) => &mut **other,
        }
    }
}

impl Sender for Route {
    fn send(&mut self, header: &ReplyHeader, body: &[u8]) -> io::Result<()> {
        self.sender().send(header, body)
    }

    fn place(&mut self, len: usize) -> Option<&mut [u8]> {
        self.sender().place(len)
    }

    fn send_placed(&mut self, header: &ReplyHeader, count: usize) -> io::Result<()> {
        self.sender().send_placed(header, count)
    }
}

/// A thread keeps a buffer of at most this size for itself.
const OWN_BYTES_MAX: usize = 256 << 10;
/// Longer buffers that are kept.
const SHARED_MAX: usize = 16;

thread_local! {
    /// The buffer of the thread's replies, while none has it.
    static BUFFER: RefCell<PageBuffer> = const { RefCell::new(PageBuffer::new()) };
}

/// Longer buffers that no reply has. All threads share them: a mount of a remote has 64 threads, few of which reply at a time.
static SHARED: Mutex<Vec<PageBuffer>> = Mutex::new(Vec::new());

/// Frees the long buffers that no reply has.
pub fn drop_long_buffers() {
    let dropped = std::mem::take(&mut *SHARED.lock());
    drop(dropped);
}

/// Sends a reply by a descriptor of the device.
pub struct ToDevice {
    device: Arc<OwnedFd>,
    /// The place, if it was asked for. A buffer begins at a page, as direct reads of files want it.
    buffer: Option<PageBuffer>,
}

impl ToDevice {
    /// A reply to a request that was read from this descriptor.
    pub(super) fn new(device: Arc<OwnedFd>) -> ToDevice {
        ToDevice { device, buffer: None }
    }

    /// One call of writev(2): the kernel takes a reply in one piece.
    fn write(device: &OwnedFd, header: &ReplyHeader, body: &[u8]) -> io::Result<()> {
        rustix::io::writev(device, &[IoSlice::new(header), IoSlice::new(body)])?;
        Ok(())
    }
}

impl Sender for ToDevice {
    fn send(&mut self, header: &ReplyHeader, body: &[u8]) -> io::Result<()> {
        ToDevice::write(&self.device, header, body)
    }

    fn place(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > TRANSFER_BYTES_MAX {
            return None;
        }
        let buffer = self.buffer.get_or_insert_with(|| match len <= OWN_BYTES_MAX {
            true => BUFFER.take(),
            false => SHARED.lock().pop().unwrap_or_default(),
        });
        Some(buffer.sized(len))
    }

    fn send_placed(&mut self, header: &ReplyHeader, count: usize) -> io::Result<()> {
        let placed = self.buffer.as_mut().map(|buffer| &*buffer.sized(count));
        ToDevice::write(&self.device, header, placed.unwrap_or_default())
    }
}

impl Drop for ToDevice {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        if buffer.memory() <= 2 * OWN_BYTES_MAX {
            // A thread that ends needs none.
            drop(BUFFER.try_with(|kept| kept.replace(buffer)));
            return;
        }
        let mut shared = SHARED.lock();
        if shared.len() < SHARED_MAX {
            shared.push(buffer);
        }
    }
}
