//! Memory that is kept from block to block.

/// Memory that encoding and decoding use, to be kept for the next block. It grows to at most a few
/// megabytes.
#[derive(Default, Debug)]
pub struct Scratch {
    pub(super) bytes: Vec<u8>,
    /// The elements of a difference.
    pub(in crate::codec) elements: Vec<u8>,
}

impl Scratch {
    /// Scratch memory of no size yet.
    pub const fn new() -> Scratch {
        Scratch { bytes: Vec::new(), elements: Vec::new() }
    }

    /// `len` bytes of any value.
    pub(in crate::codec) fn take(&mut self, len: usize) -> &mut [u8] {
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
        &mut self.bytes[..len]
    }
}
