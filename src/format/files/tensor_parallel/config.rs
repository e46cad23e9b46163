//! The statements of a model's configuration that its split depends on.
//!
//! Source: the configuration classes of transformers; `params.json` of Mistral for `n_heads`, `n_kv_heads` and `moe`.

use serde_json::{Map, Value};

/// The statements of a model's configuration. Missing ones are not known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Config {
    /// The architecture. Those that arrange heads in other ways have names of their own: `falcon_one`, `falcon_groups`,
    /// `gpt_bigcode_heads`, `chatglm_heads`, `chatglm_first` (ChatGLM-6B) and `chatglm_other`.
    pub model_type: String,
    /// Heads of queries.
    pub heads: Option<u64>,
    /// Heads of keys, and of values.
    pub kv_heads: Option<u64>,
    /// Experts of a layer.
    pub experts: Option<u64>,
    /// Bits of a code.
    pub bits: Option<u64>,
    /// Whether the columns of a matrix use its scales in any order.
    pub has_act_order: bool,
}

/// Parts of a configuration that describe the language model.
const LANGUAGE: [&str; 5] = ["text_config", "llm_config", "language_config", "thinker_config", "decoder"];
const HEADS: [&str; 4] = ["num_attention_heads", "n_head", "n_heads", "num_heads"];
const KV_HEADS: [&str; 4] = ["num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv"];
const EXPERTS: [&str; 4] = ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"];

impl Config {
    /// Parses the JSON of a configuration. Nothing is known from other bytes.
    pub fn parse(json: &[u8]) -> Config {
        let Ok(Value::Object(all)) = serde_json::from_slice(json) else { return Config::default() };
        let mut language = &all;
        // A configuration has the parts of one of the models in it, at most a few deep.
        for _ in 0..LANGUAGE.len() {
            let inner = LANGUAGE.iter().find_map(|key| language.get(*key)).and_then(Value::as_object);
            language = inner.unwrap_or(language);
        }
        let number = |map: &Map<String, Value>, keys: &[&str]| {
            let found = keys.iter().find_map(|key| map.get(*key)).and_then(Value::as_u64);
            found.filter(|count| *count > 0)
        };
        let part = |key: &str| language.get(key).and_then(Value::as_object);
        let is = |key: &str| language.get(key).and_then(Value::as_bool).unwrap_or_default();
        let text =
            |map: &Map<String, Value>| map.get("model_type").and_then(Value::as_str).map(str::to_owned);
        let mut model_type = text(language).or_else(|| text(&all)).unwrap_or_default();
        let heads = number(language, &HEADS);
        let mut kv_heads = number(language, &KV_HEADS);
        kv_heads = kv_heads.or_else(|| number(part("attn_config")?, &["kv_n_heads"]));
        let has_one_head = language.get("multi_query").and_then(Value::as_bool) != Some(false);
        match model_type.as_str() {
            "falcon" if is("new_decoder_architecture") => "falcon_groups".clone_into(&mut model_type),
            "falcon" if has_one_head => {
                "falcon_one".clone_into(&mut model_type);
                kv_heads = Some(1);
            }
            "gpt_bigcode" if has_one_head => kv_heads = Some(1),
            "gpt_bigcode" => "gpt_bigcode_heads".clone_into(&mut model_type),
            "chatglm" if is("multi_query_attention") => {
                kv_heads = number(language, &["multi_query_group_num"]);
            }
            // The first version and the later ones name the size of their MLP differently; only the later ones have gates.
            "chatglm" if language.contains_key("ffn_hidden_size") => {
                "chatglm_heads".clone_into(&mut model_type);
            }
            "chatglm" if language.contains_key("inner_hidden_size") => {
                "chatglm_first".clone_into(&mut model_type);
            }
            "chatglm" => "chatglm_other".clone_into(&mut model_type),
            _ => {}
        }
        let experts = number(language, &EXPERTS)
            .or_else(|| number(part("moe")?, &["num_experts"]))
            .or_else(|| number(part("ffn_config")?, &["moe_num_experts"]));
        let quantization = ["quantization_config", "compression_config"]
            .into_iter()
            .find_map(|key| all.get(key).or_else(|| language.get(key)));
        Config {
            model_type,
            heads,
            kv_heads: kv_heads.or(heads),
            experts,
            bits: quantization.and_then(|of| number(of.as_object()?, &["bits", "w_bit"])),
            has_act_order: quantization.is_some_and(has_act_order),
        }
    }
}

/// Whether a quantization, or one in it, lets columns use scales in any order.
fn has_act_order(of: &Value) -> bool {
    let Some(of) = of.as_object() else { return false };
    let is_set = |value: &Value| match value {
        Value::Bool(is_set) => *is_set,
        Value::String(kind) => kind == "group",
        _ => false,
    };
    of.iter().any(|(key, value)| match key.as_str() {
        "desc_act" | "actorder" => is_set(value),
        _ => has_act_order(value),
    })
}
