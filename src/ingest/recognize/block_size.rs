//! Block sizes.

use crate::model::{Dtype, Error, Result};

const SMALL_BLOCK_BYTES: u64 = 16 << 10;
const LARGE_BLOCK_BYTES: u64 = 128 << 10;
/// Tensors of at least this size have large blocks.
const LARGE_FROM_BYTES: u64 = 16 << 20;
/// Deltas number the elements of a block with 16 bits.
const BLOCK_ELEMENTS_MAX: u64 = 65_536;
const CACHE_BLOCK_BYTES: u64 = 32 << 10;
const BLOCK_BYTES_MIN: u64 = 4096;

/// How tensors are split into blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Blocking {
    /// 16 KiB, and 128 KiB from 16 MiB on.
    #[default]
    BySize,
    Bytes(u32),
    /// 32 KiB rounded down to whole positions of this many elements, for key-value caches.
    HeadDim(u32),
}

impl Blocking {
    /// Blocks of `bytes` bytes: 4096 to 131072, whole elements of every type.
    pub fn bytes(bytes: u64) -> Result<Blocking> {
        if !(BLOCK_BYTES_MIN..=LARGE_BLOCK_BYTES).contains(&bytes) || !bytes.is_multiple_of(8) {
            return Err(Error::invalid(format!(
                "blocks of {bytes} bytes: 4096 to 131072 are possible, in steps of 8"
            )));
        }
        Ok(Blocking::Bytes(bytes as u32))
    }

    /// Blocks of whole positions of `elements` elements.
    pub fn head_dim(elements: u64) -> Result<Blocking> {
        if elements == 0 || elements > CACHE_BLOCK_BYTES / 8 {
            return Err(Error::invalid(format!("a head dimension of {elements}: 1 to 4096 are possible")));
        }
        Ok(Blocking::HeadDim(elements as u32))
    }

    /// Size of every block but the last, for `bytes` bytes of elements.
    pub fn block_bytes(self, dtype: Dtype, bytes: u64) -> u32 {
        let chosen = match self {
            Blocking::BySize if bytes < LARGE_FROM_BYTES => SMALL_BLOCK_BYTES,
            Blocking::BySize => LARGE_BLOCK_BYTES,
            Blocking::Bytes(chosen) => u64::from(chosen),
            Blocking::HeadDim(elements) => {
                let position = u64::from(elements) * dtype.bytes();
                CACHE_BLOCK_BYTES / position * position
            }
        };
        chosen.min(BLOCK_ELEMENTS_MAX * dtype.bytes()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::Blocking;
    use crate::model::Dtype;

    #[test]
    fn block_lengths_follow_the_size_and_the_type() {
        let size = |blocking: Blocking, dtype, bytes| blocking.block_bytes(dtype, bytes);
        assert_eq!(size(Blocking::BySize, Dtype::F32, (16 << 20) - 1), 16 << 10);
        assert_eq!(size(Blocking::BySize, Dtype::F32, 16 << 20), 128 << 10);
        assert_eq!(size(Blocking::BySize, Dtype::U8, 16 << 20), 64 << 10);
        assert_eq!(size(Blocking::head_dim(128).unwrap(), Dtype::F16, 1), 128 * 2 * 128);
        assert_eq!(size(Blocking::head_dim(96).unwrap(), Dtype::F32, 1), 85 * 96 * 4);
        assert_eq!(size(Blocking::bytes(4096).unwrap(), Dtype::F64, 1), 4096);
        for bad in [0, 4095, 4100, 131_080] {
            assert!(Blocking::bytes(bad).is_err(), "{bad}");
        }
    }
}
