//! The statements of a model's `config.json` and `quantize_config.json` about its codes, and `config.json` without them.
//!
//! Source: `transformers.utils.quantization_config`, and the configurations of compressed-tensors and AutoGPTQ.

use serde_json::{Map, Value};

use crate::model::{Dtype, Error, Result};

/// Longest file that is read, in bytes.
pub const BYTES_MAX: u64 = 1 << 20;

/// Keys of a configuration that say how weights are quantized.
const KEYS: [&str; 2] = ["quantization_config", "compression_config"];

/// The statements of a model's configuration about its codes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Config {
    /// Rows and columns of a block with one scale.
    pub weight_block: Option<[u64; 2]>,
    /// Bits of an integer code.
    pub bits: Option<u64>,
    /// Values of one scale.
    pub group: Option<u64>,
    /// Whether zero points of GPTQ are stored whole. Those of its first version are stored less one.
    pub has_whole_zeros: bool,
    /// Whether parts of a model are quantized in different ways, so that the other fields hold for none of them.
    pub is_mixed: bool,
    /// Whether the configuration says that weights are quantized.
    pub is_quantized: bool,
}

impl Config {
    /// Parses the JSON of a model's configuration, or of a quantization alone. Nothing is known from other bytes.
    pub fn parse(json: &[u8]) -> Config {
        let Ok(Value::Object(all)) = serde_json::from_slice(json) else { return Config::default() };
        let mut found = Vec::new();
        quantizations(&all, &mut found);
        let mut known = found.iter().map(|found| Config::of(found));
        let Some(first) = known.next() else { return Config::of(&all) };
        let is_mixed = known.any(|other| other != first);
        let known = if is_mixed { Config { is_mixed, ..Config::default() } } else { first };
        Config { is_quantized: true, ..known }
    }

    fn of(inner: &Map<String, Value>) -> Config {
        let pair = inner.get("weight_block_size").and_then(Value::as_array);
        let pair = pair.and_then(|pair| Some([pair.first()?.as_u64()?, pair.get(1)?.as_u64()?]));
        let groups = inner.get("config_groups").and_then(Value::as_object);
        let mut weights =
            groups.into_iter().flat_map(|groups| groups.values()).filter_map(|group| group.get("weights"));
        let first = weights.next();
        let block = first.and_then(|weights| weights.get("block_structure")).and_then(Value::as_array);
        let block = block.and_then(|pair| Some([pair.first()?.as_u64()?, pair.get(1)?.as_u64()?]));
        let number = |of_group: &str, others: &[&str]| {
            let of_weights = first.and_then(|weights| weights.get(of_group));
            of_weights.or_else(|| others.iter().find_map(|key| inner.get(*key))).and_then(Value::as_u64)
        };
        let format = inner.get("checkpoint_format").and_then(Value::as_str);
        Config {
            weight_block: pair.or(block),
            bits: number("num_bits", &["bits", "w_bit"]).filter(|bits| (1..=16).contains(bits)),
            group: number("group_size", &["group_size", "q_group_size"]).filter(|group| *group > 0),
            has_whole_zeros: format == Some("gptq_v2"),
            is_mixed: weights.any(|other| Some(other) != first),
            is_quantized: false,
        }
    }
}

/// The quantizations in a configuration and in the ones in it.
fn quantizations<'a>(all: &'a Map<String, Value>, found: &mut Vec<&'a Map<String, Value>>) {
    found.extend(KEYS.into_iter().filter_map(|key| all.get(key)).filter_map(Value::as_object));
    for (key, value) in all {
        if let Some(inner) = value.as_object().filter(|_| !KEYS.contains(&key.as_str())) {
            quantizations(inner, found);
        }
    }
}

/// Whether a model's configuration says that its weights are quantized.
pub fn is_quantized(json: &[u8]) -> bool {
    without(json, Dtype::F32).is_ok_and(|without| without.is_some())
}

/// A model's configuration without the quantization of its weights, which have the type `to`. `None` for one that says nothing
/// of it.
///
/// # Errors
/// `Invalid` for bytes that are not a JSON object.
pub fn without(json: &[u8], to: Dtype) -> Result<Option<Vec<u8>>> {
    let parsed: std::result::Result<Map<String, Value>, _> = serde_json::from_slice(json);
    let mut all = parsed.map_err(|error| Error::invalid(format!("config.json: {error}")))?;
    if !strip(&mut all) {
        return Ok(None);
    }
    let name = match to {
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
        _ => "float32",
    };
    retype(&mut all, name);
    if !all.contains_key("torch_dtype") && !all.contains_key("dtype") {
        all.insert("torch_dtype".to_owned(), Value::from(name));
    }
    let mut text = serde_json::to_vec_pretty(&all).map_err(|error| Error::invalid(error.to_string()))?;
    text.push(b'\n');
    Ok(Some(text))
}

/// Removes the quantization from a configuration and the ones in it.
fn strip(all: &mut Map<String, Value>) -> bool {
    let mut has = false;
    for key in KEYS {
        has |= all.remove(key).is_some();
    }
    for inner in all.values_mut().filter_map(Value::as_object_mut) {
        has |= strip(inner);
    }
    has
}

/// Sets the type of weights where a configuration has one.
fn retype(all: &mut Map<String, Value>, name: &str) {
    for (key, value) in all.iter_mut() {
        match value {
            Value::Object(inner) => retype(inner, name),
            Value::String(text) if key == "torch_dtype" || key == "dtype" => name.clone_into(text),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, without};
    use crate::model::Dtype;

    #[test]
    fn a_configuration_says_how_codes_lie() {
        let json = br#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 64]}}"#;
        assert_eq!(Config::parse(json).weight_block, Some([128, 64]));
        let json = br#"{"bits": 4, "checkpoint_format": "gptq_v2"}"#;
        assert_eq!(Config::parse(json), Config { bits: Some(4), has_whole_zeros: true, ..Config::default() });
        let json = br#"{"text_config": {"quantization_config": {"bits": 4, "group_size": 96}}}"#;
        let known = Config { bits: Some(4), group: Some(96), is_quantized: true, ..Config::default() };
        assert_eq!(Config::parse(json), known);
        let json =
            br#"{"a": {"quantization_config": {"bits": 4}}, "b": {"quantization_config": {"bits": 8}}}"#;
        assert!(Config::parse(json).is_mixed);
        let json =
            br#"{"quantization_config": {"config_groups": {"group_0": {"weights": {"num_bits": 8}}}}}"#;
        assert_eq!(Config::parse(json).bits, Some(8));
        assert_eq!(Config::parse(b"[]"), Config::default());
    }

    #[test]
    fn the_quantization_disappears_from_a_configuration() {
        let json = br#"{"torch_dtype": "float16", "a": [1], "quantization_config": {"bits": 4},
            "text_config": {"dtype": "float16", "quantization_config": {}}}"#;
        let text = without(json, Dtype::Bf16).unwrap().unwrap();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let wanted =
            serde_json::json!({"torch_dtype": "bfloat16", "a": [1], "text_config": {"dtype": "bfloat16"}});
        assert_eq!(value, wanted);
        assert_eq!(without(b"{\"a\": 1}", Dtype::F32).unwrap(), None);
        assert!(without(b"[]", Dtype::F32).is_err());
    }
}
