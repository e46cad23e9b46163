//! The protocol of FUSE against golden requests and replies, and the file system as bytes in, bytes out, without a kernel.

// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod ask;
mod files;
mod golden;
// Other test binaries use the rest of it.
#[path = "../library/mod.rs"]
#[allow(unused)]
mod library;

use std::io;
use std::sync::mpsc;

use library::fixture;
use tierfs::fs::kernel::{REPLY_HEADER_BYTES, ReplyHeader, Route, Sender, TRANSFER_BYTES_MAX};

/// Takes a reply as bytes.
struct Taker {
    replies: mpsc::Sender<Vec<u8>>,
    place: Vec<u8>,
}

impl Taker {
    /// A sender, and the replies that it takes.
    fn new() -> (Taker, mpsc::Receiver<Vec<u8>>) {
        let (replies, taken) = mpsc::channel();
        (Taker { replies, place: Vec::new() }, taken)
    }

    fn route(self) -> Route {
        Route::Other(Box::new(self))
    }
}

impl Sender for Taker {
    fn send(&mut self, header: &ReplyHeader, body: &[u8]) -> io::Result<()> {
        let reply = [header, body].concat();
        let len = u32::from_ne_bytes(reply[..4].try_into().unwrap());
        assert_eq!((len as usize, REPLY_HEADER_BYTES), (reply.len(), header.len()));
        self.replies.send(reply).unwrap();
        Ok(())
    }

    fn place(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > TRANSFER_BYTES_MAX {
            return None;
        }
        // Left over from earlier use.
        self.place = vec![0xee; len];
        Some(&mut self.place)
    }

    fn send_placed(&mut self, header: &ReplyHeader, count: usize) -> io::Result<()> {
        let body = std::mem::take(&mut self.place);
        self.send(header, &body[..count])
    }
}
