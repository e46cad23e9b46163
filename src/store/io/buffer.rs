//! Buffers that begin at a page.
//!
//! The kernel copies to and from its pages one by one. A buffer that begins in the middle of
//! one meets two pages for each, and copies between places that are not equally aligned are
//! slower: on Zen 5 by a seventh.

/// Bytes of a page.
const PAGE: usize = 4096;

/// A buffer that is kept, grows and begins at a page.
#[derive(Default)]
pub struct PageBuffer {
    bytes: Vec<u8>,
}

impl PageBuffer {
    /// One without memory.
    pub const fn new() -> PageBuffer {
        PageBuffer { bytes: Vec::new() }
    }

    /// Its first `len` bytes; what is in them is left from before.
    pub fn sized(&mut self, len: usize) -> &mut [u8] {
        let needed = len.saturating_add(PAGE - 1);
        if self.bytes.len() < needed {
            self.bytes.resize(needed, 0);
        }
        let begin = self.bytes.as_ptr().align_offset(PAGE);
        self.bytes.get_mut(begin..begin.saturating_add(len)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::PageBuffer;

    #[test]
    fn it_begins_at_a_page_however_it_grows() {
        let mut buffer = PageBuffer::new();
        for len in [0, 1, 17, 4096, 5000, 1 << 20, 3, (1 << 20) + 1] {
            let bytes = buffer.sized(len);
            assert_eq!(bytes.len(), len);
            assert!(len == 0 || bytes.as_ptr().addr().is_multiple_of(4096));
        }
    }
}
