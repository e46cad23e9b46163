//! Encodes numbers to packed codes and decodes them, with pure functions of bytes.
//!
//! Values are split into groups of [`GROUP_LEN`]; the last group of a block may be shorter. A group is its scale and
//! its codes ([`payload_len`] has the sizes). A value decodes to `code * scale` in f32, rounded to the element type.
//! Codes of 8 bits are signed bytes; those of 7, 5 and 3 bits are `code + q`, `q` = 63, 15, 3, in a stream that begins
//! with the least significant bit. `two_level.rs` gives a group of q3x two scales. The ladder encoding (`ladder/`)
//! packs exact blocks without loss, `difference.rs` exact differences, and `sparse.rs` those of few elements.
//!
//! One decoder reads the output of every encoder. The encoders `absmax`, `best` and `least` choose scales and codes only.
//! [`InstructionSet`] selects the instructions; all sets give the same bytes.
//!
//! To add a tier of another width: `Tier` in `model/tier.rs`, `payload.rs`, `encode.rs`, `decode.rs`, and the kernels
//! in `arch/`. To encode another element type: `Dtype::is_quantizable`, `element.rs`, and the kernels.

mod arch;
mod best;
mod decode;
pub mod dequantize;
pub mod difference;
mod element;
mod encode;
pub mod ggml;
pub mod ladder;
pub mod low_rank;
mod payload;
pub mod sparse;
mod stream;
mod two_level;

pub use arch::InstructionSet;
pub use encode::{Encoded, NotEncodable};
pub use payload::{group_offset, payload_len};
pub use stream::stream_len;

use crate::model::{Dtype, Encoder, Error, Result, Tier};
#[cfg(doc)]
use crate::model::{ErrorKind, GROUP_LEN};

/// Changes when an encoder gives other payloads for the same elements.
pub const ENCODERS_REVISION: u32 = 2;

/// Decodes a whole block of `elements` elements into `out`, without allocating.
///
/// Errors: [`ErrorKind::Corrupt`] if the length of `payload` differs from
/// [`payload_len`] or a scale is not finite (`out` may be partly written);
/// [`ErrorKind::Invalid`] for a type that is never quantized, a tier without codes, or
/// an `out` that is not `elements` elements long.
pub fn decode(tier: Tier, dtype: Dtype, payload: &[u8], elements: usize, out: &mut [u8]) -> Result<()> {
    let out_len = u64::try_from(elements).ok().and_then(|elements| dtype.bytes_of(elements));
    if u64::try_from(out.len()).ok() != out_len {
        return Err(Error::invalid(format!(
            "room for {} bytes where {elements} elements of {dtype} are to be decoded",
            out.len()
        )));
    }
    decode_groups(tier, dtype, payload, out)
}

/// Decodes consecutive groups of a block, as many as fit `out`. Only the last group of a
/// block may be short.
///
/// `payload` has exactly the bytes of those groups: from [`group_offset`] of the first group
/// to that of the group after the last, or to the payload's end. Errors: as [`decode`], with
/// group numbers counted from the first given group.
pub fn decode_groups(tier: Tier, dtype: Dtype, payload: &[u8], out: &mut [u8]) -> Result<()> {
    InstructionSet::detected().decode_groups(tier, dtype, payload, out)
}

/// Appends to `out` the payload of a block: `raw`, little-endian elements of `dtype`.
///
/// If the block must stay exact, `out` is unchanged and the inner error gives the
/// reason. Errors: [`ErrorKind::Invalid`] for a type that is never quantized, a tier
/// without codes, or a `raw` that is not a whole number of elements.
pub fn encode(
    tier: Tier,
    encoder: Encoder,
    dtype: Dtype,
    raw: &[u8],
    out: &mut Vec<u8>,
) -> Result<Result<Encoded, NotEncodable>> {
    InstructionSet::detected().encode(tier, encoder, dtype, raw, out)
}

/// The largest magnitude of `values`: 0 if there are none, a NaN if one is a NaN.
pub fn max_abs(values: &[f32]) -> f32 {
    InstructionSet::detected().max_abs(values)
}

/// Packs signed codes of `bits` bits (3, 5, 7 or 8) into `stream`, whose length must be
/// [`stream_len`]; unused bits of the last byte are zero.
///
/// Errors: [`ErrorKind::Invalid`] for other bits or lengths, or a code out of range.
pub fn pack(bits: u8, codes: &[i8], stream: &mut [u8]) -> Result<()> {
    InstructionSet::detected().pack(bits, codes, stream)
}

/// The reverse of [`pack`]: as many signed codes as `codes` holds.
///
/// Errors: [`ErrorKind::Invalid`] for other bits or lengths.
pub fn unpack(bits: u8, stream: &[u8], codes: &mut [i8]) -> Result<()> {
    InstructionSet::detected().unpack(bits, stream, codes)
}

/// The name of the set that these functions use: `avx512-bf16`, `avx512`, `avx2`,
/// `neon` or `scalar`.
pub fn instruction_set() -> &'static str {
    InstructionSet::detected().name()
}
