//! The reply to one request.

use std::fmt::{self, Debug, Formatter};
use std::io::{self, IoSlice};
use std::sync::Arc;

use fuser::Replier;

use super::memory::{Entry, OUT_HEADER_BYTES};
use super::worker::Shared;

/// A reply for the payload of an entry that is in use until the request is answered.
pub(super) struct Kept {
    header: [u8; OUT_HEADER_BYTES],
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
    fn finish(&mut self, header: [u8; OUT_HEADER_BYTES], count: usize) {
        if self.is_in_place {
            self.shared.keep(self.number, Kept { header, payload: Vec::new() });
        } else {
            self.entry.reply(&header, count);
        }
        self.is_sent = true;
        self.shared.replied(self.number);
    }
}

impl Debug for Answer {
    fn fmt(&self, formatter: &mut Formatter) -> fmt::Result {
        write!(formatter, "the answer in entry {}", self.number)
    }
}

impl Replier for Answer {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let (header, payload) = parts.split_first().ok_or_else(wrong)?;
        let header = <[u8; OUT_HEADER_BYTES]>::try_from(&**header).map_err(|_| wrong())?;
        let len = payload.iter().map(|part| part.len()).sum();
        if self.is_in_place && len > 0 {
            let payload = payload.iter().flat_map(|part| part.iter().copied()).collect();
            self.shared.keep(self.number, Kept { header, payload });
            self.is_sent = true;
            self.shared.replied(self.number);
            return Ok(());
        }
        let mut rest = self.entry.place(len).ok_or_else(wrong)?;
        for part in payload {
            let (place, after) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = after;
        }
        self.finish(header, len);
        Ok(())
    }

    fn place(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.is_in_place { None } else { self.entry.place(len) }
    }

    fn send_placed(&mut self, header: &[u8], count: usize) -> io::Result<()> {
        self.finish(header.try_into().map_err(|_| wrong())?, count);
        Ok(())
    }
}

impl Drop for Answer {
    /// A request without a reply would keep its program waiting for ever.
    fn drop(&mut self) {
        if !self.is_sent {
            self.finish(self.entry.failure(), 0);
        }
    }
}

fn wrong() -> io::Error {
    io::Error::from(io::ErrorKind::InvalidInput)
}
