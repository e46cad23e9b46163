//! The element types that can be encoded and decoded.

use super::arch::{Group, Kernel, LANES};
use crate::model::{Dtype, Error, GROUP_LEN, Result};

/// An element type that can be encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Element {
    F32,
    F16,
    Bf16,
}

impl Element {
    /// The element type of `dtype`. Fails with `Invalid` for a type that is never quantized.
    pub(super) fn of(dtype: Dtype) -> Result<Element> {
        match dtype {
            Dtype::F32 => Ok(Element::F32),
            Dtype::F16 => Ok(Element::F16),
            Dtype::Bf16 => Ok(Element::Bf16),
            _ => Err(Error::invalid(format!(
                "elements of type {dtype} cannot be encoded, only f32, f16 and bf16; store them exactly"
            ))),
        }
    }

    /// Bytes of one element.
    pub(super) fn len(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::F16 | Element::Bf16 => 2,
        }
    }

    /// The values of a group. Zeros follow the end of `bytes` in a short last group.
    #[inline(always)]
    pub(super) fn load<K: Kernel>(self, kernel: K, bytes: &[u8]) -> Group<K> {
        let len = GROUP_LEN * self.len();
        if bytes.len() < len {
            let mut padded = [0; 4 * GROUP_LEN];
            padded[..bytes.len()].copy_from_slice(bytes);
            return self.load_full(kernel, &padded[..len]);
        }
        self.load_full(kernel, bytes)
    }

    #[inline(always)]
    fn load_full<K: Kernel>(self, kernel: K, bytes: &[u8]) -> Group<K> {
        let mut group = [kernel.splat(0.0); 4];
        match self {
            Element::F32 => {
                for (lanes, bytes) in group.iter_mut().zip(bytes.as_chunks().0) {
                    *lanes = kernel.load_f32(bytes);
                }
            }
            Element::F16 => {
                for (lanes, bytes) in group.iter_mut().zip(bytes.as_chunks().0) {
                    *lanes = kernel.load_f16(bytes);
                }
            }
            Element::Bf16 => {
                for (lanes, bytes) in group.iter_mut().zip(bytes.as_chunks().0) {
                    *lanes = kernel.load_bf16(bytes);
                }
            }
        }
        group
    }

    /// Stores the values of a full group as [`store`](Element::store) does. None may be subnormal.
    #[inline(always)]
    pub(super) fn store_normal<K: Kernel>(self, kernel: K, group: Group<K>, bytes: &mut [u8]) {
        if self != Element::Bf16 {
            return self.store(kernel, group, bytes);
        }
        let [a, b, c, d] = group;
        for (pair, bytes) in [[a, b], [c, d]].into_iter().zip(bytes.as_chunks_mut().0) {
            kernel.store_bf16_pair(pair, bytes);
        }
    }

    /// Stores the values of a full group as elements, rounded ties to even.
    #[inline(always)]
    pub(super) fn store<K: Kernel>(self, kernel: K, group: Group<K>, bytes: &mut [u8]) {
        match self {
            Element::F32 => {
                for (lanes, bytes) in group.into_iter().zip(bytes.as_chunks_mut().0) {
                    kernel.store_f32(lanes, bytes);
                }
            }
            Element::F16 => {
                for (lanes, bytes) in group.into_iter().zip(bytes.as_chunks_mut().0) {
                    kernel.store_f16(lanes, bytes);
                }
            }
            Element::Bf16 => {
                for (lanes, bytes) in group.into_iter().zip(bytes.as_chunks_mut().0) {
                    kernel.store_bf16(lanes, bytes);
                }
            }
        }
    }

    /// The values that a reader gets after rounding to this element type.
    #[inline(always)]
    pub(super) fn round<K: Kernel>(self, kernel: K, group: Group<K>) -> Group<K> {
        let mut read = group;
        let mut bytes = [0; 2 * LANES];
        for lanes in &mut read {
            match self {
                Element::F32 => {}
                Element::F16 => {
                    kernel.store_f16(*lanes, &mut bytes);
                    *lanes = kernel.load_f16(&bytes);
                }
                Element::Bf16 => {
                    kernel.store_bf16(*lanes, &mut bytes);
                    *lanes = kernel.load_bf16(&bytes);
                }
            }
        }
        read
    }
}
