//! The reply to one request.

use std::io;
use std::sync::Arc;

use crate::fs::kernel::sender::{ReplyHeader, Sender};

use super::memory::Entry;
use super::worker::Shared;

/// A reply for the payload of an entry that is in use until the request is answered.
pub(super) struct Kept {
    header: ReplyHeader,
    payload: Vec<u8>,
}

impl Kept {
    /// Writes the reply into its entry, which is free for it now.
    pub fn write(self, mut entry: Entry) {
        if let Some(place) = entry.place(self.payload.len()) {
            place.copy_from_slice(&self.payload);
        }
        entry.reply(&self.header, self.payload.len());
    }
}

/// Sends the reply to the request of an entry.
pub(super) struct Answer {
    shared: Arc<Shared>,
    number: usize,
    entry: Entry,
    /// Whether the answering thread uses the payload's place for the request.
    is_in_place: bool,
    is_sent: bool,
}

impl Answer {
    pub fn new(shared: Arc<Shared>, number: usize, entry: Entry, is_in_place: bool) -> Answer {
        Answer { shared, number, entry, is_in_place, is_sent: false }
    }

    /// Sends a header, and the first `count` bytes of the payload with it.
    fn finish(&mut self, header: &ReplyHeader, count: usize) {
        if self.is_in_place {
            self.shared.keep(self.number, Kept { header: *header, payload: Vec::new() });
        } else {
            self.entry.reply(header, count);
        }
        self.sent();
    }

    fn sent(&mut self) {
        self.is_sent = true;
        self.shared.replied(self.number);
    }
}

impl Sender for Answer {
    fn send(&mut self, header: &ReplyHeader, body: &[u8]) -> io::Result<()> {
        if self.is_in_place && !body.is_empty() {
            self.shared.keep(self.number, Kept { header: *header, payload: body.to_vec() });
            self.sent();
            return Ok(());
        }
        self.entry.place(body.len()).ok_or_else(wrong)?.copy_from_slice(body);
        self.finish(header, body.len());
        Ok(())
    }

    fn place(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.is_in_place { None } else { self.entry.place(len) }
    }

    fn send_placed(&mut self, header: &ReplyHeader, count: usize) -> io::Result<()> {
        self.finish(header, count);
        Ok(())
    }
}

impl Drop for Answer {
    /// A request without a reply would keep its program waiting for ever.
    fn drop(&mut self) {
        if !self.is_sent {
            self.finish(&self.entry.failure(), 0);
        }
    }
}

fn wrong() -> io::Error {
    io::Error::from(io::ErrorKind::InvalidInput)
}
