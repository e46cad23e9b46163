//! Small tensors that say how the codes beside them lie.

use serde_json::Value;

use crate::model::Dtype;

/// Most bytes of such a tensor.
pub const STATE_BYTES_MAX: u64 = 1 << 20;

/// The state of a weight of bitsandbytes with codes of four bits.
pub(super) struct QuantState {
    pub shape: Vec<u64>,
    /// Values of a scale.
    pub block: u64,
    /// Scales of a scale of scales, and the number that is added to each scale.
    pub nested: Option<(u64, f32)>,
}

/// Parses the JSON of a tensor `quant_state.bitsandbytes__*`.
pub(super) fn quant_state(json: &[u8]) -> Option<QuantState> {
    let json: Value = serde_json::from_slice(json).ok()?;
    let shape: Option<Vec<u64>> = json.get("shape")?.as_array()?.iter().map(Value::as_u64).collect();
    let block = json.get("nested_blocksize").and_then(Value::as_u64);
    let offset = json.get("nested_offset").and_then(Value::as_f64).unwrap_or_default() as f32;
    Some(QuantState {
        shape: shape?,
        block: json.get("blocksize")?.as_u64()?,
        nested: block.map(|block| (block, offset)),
    })
}

/// The state of a weight of HQQ.
pub(super) struct HqqState {
    pub shape: Vec<u64>,
    pub bits: u64,
    pub axis: u64,
}

/// Reads the state from the tensors that `get` returns.
pub(super) fn hqq_state(get: impl Fn(&str) -> Option<(Dtype, Vec<u8>)>) -> Option<HqqState> {
    let integers = |key: &str| get(key).and_then(|(dtype, bytes)| sizes_of(dtype, &bytes));
    let one = |key: &str| integers(key)?.first().copied();
    // Zero points and scales that are quantized too are not decoded, nor are codes in the bytes of floats.
    let is_set = |key: &str| one(key).is_some_and(|value| value != 0);
    if ["quant_scale", "quant_zero", "view_as_float"].into_iter().any(is_set) {
        return None;
    }
    Some(HqqState { shape: integers("shape")?, bits: one("nbits")?, axis: one("axis")? })
}

/// Non-negative integers of a tensor.
pub(super) fn sizes_of(dtype: Dtype, bytes: &[u8]) -> Option<Vec<u64>> {
    match dtype {
        Dtype::I64 => {
            bytes.as_chunks().0.iter().map(|bytes| u64::try_from(i64::from_le_bytes(*bytes)).ok()).collect()
        }
        Dtype::I32 => {
            bytes.as_chunks().0.iter().map(|bytes| u64::try_from(i32::from_le_bytes(*bytes)).ok()).collect()
        }
        Dtype::U8 | Dtype::Bool => Some(bytes.iter().copied().map(u64::from).collect()),
        _ => None,
    }
}
