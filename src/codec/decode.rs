//! Decodes payloads to elements: `code * scale` in f32, then rounded to the element type.

use super::arch::{Group, InstructionSet, Job, Kernel, signed};
use super::element::Element;
use super::payload::{FLAGS_LEN, SCALE_LEN, codes_len, payload_len};
use crate::model::{Dtype, Encoding, Error, GROUP_LEN, Result, Tier};

impl InstructionSet {
    /// [`decode_groups`](super::decode_groups) with this set.
    pub fn decode_groups(self, tier: Tier, dtype: Dtype, payload: &[u8], out: &mut [u8]) -> Result<()> {
        let element = Element::of(dtype)?;
        let elements = out.len() / element.len();
        if !out.len().is_multiple_of(element.len()) {
            return Err(Error::invalid(format!(
                "room for {} bytes is not a whole number of {dtype} elements",
                out.len()
            )));
        }
        match payload_len(tier, elements) {
            None => return Err(without_codes(tier)),
            Some(expected) if expected != payload.len() => {
                return Err(Error::corrupt(format!(
                    "a {tier} payload has {} bytes, but {elements} elements need {expected}",
                    payload.len()
                )));
            }
            Some(_) => {}
        }
        let decoded = match element {
            Element::F32 => self.decode_as::<F32>(tier, payload, out),
            Element::F16 => self.decode_as::<F16>(tier, payload, out),
            Element::Bf16 => self.decode_as::<BF16>(tier, payload, out),
        };
        decoded
            .map_err(|BadScale { group }| Error::corrupt(format!("the scale of group {group} is not finite")))
    }

    fn decode_as<const ELEMENT: u8>(
        self,
        tier: Tier,
        payload: &[u8],
        out: &mut [u8],
    ) -> Result<(), BadScale> {
        match (tier.code_bits(), tier.encoding()) {
            (_, Encoding::TwoLevel) => self.run(Decode::<ELEMENT, 3, true> { payload, out }),
            (Some(8), _) => self.run(Decode::<ELEMENT, 8, false> { payload, out }),
            (Some(7), _) => self.run(Decode::<ELEMENT, 7, false> { payload, out }),
            (Some(5), _) => self.run(Decode::<ELEMENT, 5, false> { payload, out }),
            _ => self.run(Decode::<ELEMENT, 3, false> { payload, out }),
        }
    }
}

/// The error that `tier` has no codes.
pub(super) fn without_codes(tier: Tier) -> Error {
    Error::invalid(format!("a block in tier {tier} holds no codes"))
}

// `Element`s as constants, so that each loop is compiled for one element type.
const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// The error of a scale that is a NaN or infinite.
struct BadScale {
    group: usize,
}

/// Decodes whole groups; the lengths have been checked.
struct Decode<'a, const ELEMENT: u8, const BITS: usize, const TWO_LEVEL: bool> {
    payload: &'a [u8],
    out: &'a mut [u8],
}

impl<const ELEMENT: u8, const BITS: usize, const TWO_LEVEL: bool> Job
    for Decode<'_, ELEMENT, BITS, TWO_LEVEL>
{
    type Output = Result<(), BadScale>;
    #[cfg(target_arch = "x86_64")]
    const STORES_BF16: bool = ELEMENT == BF16;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> Result<(), BadScale> {
        let element = match ELEMENT {
            F32 => Element::F32,
            F16 => Element::F16,
            _ => Element::Bf16,
        };
        let head_len = head_len(TWO_LEVEL);
        let group_len = head_len + codes_len(BITS);
        let out_len = GROUP_LEN * element.len();

        // A short group of 63 values can be as long as a full one, so count groups instead of
        // chunking bytes.
        let full = self.out.len() / out_len;
        let (groups, last) = self.payload.split_at(full * group_len);
        let (outs, out) = self.out.split_at_mut(full * out_len);
        let pairs = groups.chunks_exact(group_len).zip(outs.chunks_exact_mut(out_len));
        for (index, (group, out)) in pairs.enumerate() {
            store::<K, ELEMENT, BITS, TWO_LEVEL>(kernel, element, group, out)
                .ok_or(BadScale { group: index })?;
        }
        if out.is_empty() {
            return Ok(());
        }
        let elements = out.len() / element.len();
        let group = padded::<TWO_LEVEL>(last, elements, head_len);
        let values =
            values::<K, BITS, TWO_LEVEL>(kernel, &group[..group_len]).ok_or(BadScale { group: full })?;
        let mut bytes = [0; 4 * GROUP_LEN];
        let (Values::Normal(values) | Values::Any(values)) = values;
        element.store(kernel, values, &mut bytes[..out_len]);
        out.copy_from_slice(&bytes[..out.len()]);
        Ok(())
    }
}

/// Bytes of a full group before its codes.
#[inline(always)]
fn head_len(two_level: bool) -> usize {
    if two_level { 2 * SCALE_LEN + FLAGS_LEN } else { SCALE_LEN }
}

/// Decodes a full group; `None` if a scale is not finite.
#[inline(always)]
fn store<K: Kernel, const ELEMENT: u8, const BITS: usize, const TWO_LEVEL: bool>(
    kernel: K,
    element: Element,
    group: &[u8],
    out: &mut [u8],
) -> Option<()> {
    if ELEMENT != F16 && !TWO_LEVEL {
        let (head, codes) = group.split_at(SCALE_LEN);
        let scale = scale(head, 0)?;
        if let (F32, Some(out)) = (ELEMENT, out.first_chunk_mut()) {
            kernel.store_f32_products::<BITS>(codes, scale, out);
            return Some(());
        }
        if let (BF16, false, Some(out)) = (ELEMENT, scale.is_subnormal(), out.first_chunk_mut()) {
            kernel.store_bf16_products::<BITS>(codes, scale, out);
            return Some(());
        }
    }
    match values::<K, BITS, TWO_LEVEL>(kernel, group)? {
        Values::Normal(values) => element.store_normal(kernel, values, out),
        Values::Any(values) => element.store(kernel, values, out),
    }
    Some(())
}

/// The values of a group.
enum Values<K: Kernel> {
    /// No value is subnormal.
    Normal(Group<K>),
    Any(Group<K>),
}

/// The values of a full group; `None` if a scale is not finite.
#[inline(always)]
fn values<K: Kernel, const BITS: usize, const TWO_LEVEL: bool>(kernel: K, group: &[u8]) -> Option<Values<K>> {
    let (head, codes) = group.split_at(head_len(TWO_LEVEL));
    let codes = kernel.lanes_of(signed::<K, BITS>(kernel, codes));
    if TWO_LEVEL { two_scales(kernel, head, codes) } else { one_scale(kernel, head, codes) }
}

/// Extends a short group of `elements` values to the layout of a full one.
fn padded<const TWO_LEVEL: bool>(group: &[u8], elements: usize, head_len: usize) -> [u8; 68] {
    let short_head = if TWO_LEVEL { 2 * SCALE_LEN + elements.div_ceil(8) } else { SCALE_LEN };
    let (head, codes) = group.split_at(short_head);
    let mut full = [0; 68];
    full[..head.len()].copy_from_slice(head);
    full[head_len..head_len + codes.len()].copy_from_slice(codes);
    full
}

/// The scale at byte `at`; `None` if it is not finite.
#[inline(always)]
fn scale(head: &[u8], at: usize) -> Option<f32> {
    let scale = f32::from_le_bytes(*head[at..].first_chunk()?);
    scale.is_finite().then_some(scale)
}

#[inline(always)]
fn one_scale<K: Kernel>(kernel: K, head: &[u8], codes: Group<K>) -> Option<Values<K>> {
    let scale = scale(head, 0)?;
    let values = kernel.mul_group(codes, kernel.splat(scale));
    // Codes are integers, so their products are zero or at least as large as the scale.
    Some(if scale.is_subnormal() { Values::Any(values) } else { Values::Normal(values) })
}

#[inline(always)]
fn two_scales<K: Kernel>(kernel: K, head: &[u8], codes: Group<K>) -> Option<Values<K>> {
    let (primary, secondary) = (scale(head, 0)?, scale(head, SCALE_LEN)?);
    let is_any = primary.is_subnormal() || secondary.is_subnormal();
    let (primary, secondary) = (kernel.splat(primary), kernel.splat(secondary));
    let flags = u64::from_le_bytes(*head[2 * SCALE_LEN..].first_chunk()?);
    let mut values = codes;
    for (i, lanes) in values.iter_mut().enumerate() {
        let scales = kernel.select((flags >> (16 * i)) as u16, secondary, primary);
        *lanes = kernel.mul(*lanes, scales);
    }
    Some(if is_any { Values::Any(values) } else { Values::Normal(values) })
}
