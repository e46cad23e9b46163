//! Zstandard frames (RFC 8878) of bounded size.

use std::io::Read;

use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// Largest window of a frame that is decoded. RFC 8878 requires no more of decoders.
const WINDOW_BYTES_MAX: u64 = 8 << 20;

/// Why a frame was not decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Undecoded {
    /// It is damaged, or bytes follow it.
    Damaged,
    /// It has more bytes than allowed.
    TooLong,
}

/// Decodes one frame to at most `bytes_max` bytes.
pub fn decode(frame: &[u8], bytes_max: usize) -> Result<Vec<u8>, Undecoded> {
    let mut source = frame;
    let mut decoder = StreamingDecoder::new_with_max_window_size(&mut source, WINDOW_BYTES_MAX)
        .map_err(|_| Undecoded::Damaged)?;
    let mut out = Vec::new();
    let read = (&mut decoder).take(bytes_max as u64 + 1).read_to_end(&mut out);
    read.map_err(|_| Undecoded::Damaged)?;
    if out.len() > bytes_max {
        return Err(Undecoded::TooLong);
    }
    let decoded = &decoder.decoder;
    let is_sound = decoded
        .get_checksum_from_data()
        .is_none_or(|stored| decoded.get_calculated_checksum().is_some_and(|computed| computed == stored));
    if is_sound && source.is_empty() { Ok(out) } else { Err(Undecoded::Damaged) }
}

/// One frame of these bytes.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}
