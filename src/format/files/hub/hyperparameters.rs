//! The hyperparameters of a model as metadata, in the order in which the converter sets them.

use serde_json::Value;

use super::architecture::{Architecture, Extra};
use super::config::Config;
use super::entries::{Entries, Entry};
use super::model_files::{Files, MODULES_NAME, pooling_directory};
use crate::model::{Error, Result};

/// Keys of counts that all architectures have: the name in GGUF files, then the keys of a configuration.
const COUNTS: [(&str, &[&str]); 5] = [
    (
        "context_length",
        &[
            "max_position_embeddings",
            "n_ctx",
            "n_positions",
            "max_length",
            "max_sequence_length",
            "model_max_length",
        ],
    ),
    ("embedding_length", &["hidden_size", "n_embd", "dim"]),
    (
        "feed_forward_length",
        &[
            "prefix_dense_intermediate_size",
            "dense_intermediate_size",
            "intermediate_size",
            "n_inner",
            "hidden_dim",
        ],
    ),
    ("attention.head_count", HEADS),
    ("attention.head_count_kv", KEY_HEADS),
];

/// Keys of the number of layers.
pub(super) const LAYERS: &[&str] = &["n_layers", "num_hidden_layers", "n_layer", "num_layers"];
pub(super) const HEADS: &[&str] = &["num_attention_heads", "n_head", "n_heads"];
pub(super) const KEY_HEADS: &[&str] = &["num_key_value_heads", "n_kv_heads"];
pub(super) const HIDDEN: &[&str] = &["hidden_size", "n_embd", "dim"];
pub(super) const INNER: &[&str] = &["intermediate_size", "n_inner", "hidden_dim"];
pub(super) const POSITIONS: &[&str] = &["max_position_embeddings", "n_positions"];

/// Keys of models that route tokens to experts, which no table here has.
const EXPERTS: &[&str] = &["num_local_experts", "num_experts", "n_routed_experts", "moe_every_n_layers"];

/// Sets the hyperparameters of a model whose file has this type.
///
/// # Errors
/// `Invalid` for values of other types, `Unsupported` for a model that the table does not cover.
pub(super) fn set(
    out: &mut Entries,
    architecture: &Architecture,
    config: &Config,
    files: &Files,
    file_type: u32,
) -> Result<()> {
    if config.count(EXPERTS)?.is_some_and(|count| count > 0) {
        return Err(Error::unsupported(format!("{} with experts", architecture.name)));
    }
    let key = |name: &str| format!("{}.{name}", architecture.name);
    out.set(key("block_count"), Entry::U32(config.needed(LAYERS)?));
    for (name, keys) in COUNTS {
        if let Some(count) = config.count(keys)? {
            out.set(key(name), Entry::U32(count));
        }
    }
    if config.value("is_causal") == Some(&Value::Bool(false)) {
        out.set(key("attention.causal"), Entry::Bool(false));
    }
    positions(out, &key, config)?;
    if let Some(epsilon) = config.float(&["rms_norm_eps", "norm_eps"])? {
        out.set(key("attention.layer_norm_rms_epsilon"), Entry::F32(epsilon as f32));
    }
    if let Some(epsilon) = config.float(&["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"])? {
        out.set(key("attention.layer_norm_epsilon"), Entry::F32(epsilon as f32));
    }
    if let Some(head) = config.count(&["head_dim"])? {
        out.set(key("attention.key_length"), Entry::U32(head));
        out.set(key("attention.value_length"), Entry::U32(head));
    }
    out.set("general.file_type", Entry::U32(file_type));
    architecture.extras.iter().try_for_each(|extra| more(out, &key, config, files, *extra))
}

/// The parameters of rotary positions.
fn positions(out: &mut Entries, key: &dyn Fn(&str) -> String, config: &Config) -> Result<()> {
    let parameters = &config.positions.full;
    let float = |name: &str| -> Result<Option<f32>> {
        let value = parameters.get(name).filter(|value| !value.is_null());
        let wrong = || Error::invalid(format!("config.json: {name} of the positions is not a number"));
        value.map(|value| value.as_f64().map(|value| value as f32).ok_or_else(wrong)).transpose()
    };
    let kind = parameters.get("rope_type").and_then(Value::as_str);
    match (kind, float("factor")?) {
        (Some("linear"), Some(factor)) => {
            out.text(&key("rope.scaling.type"), "linear");
            out.set(key("rope.scaling.factor"), Entry::F32(factor));
        }
        (Some("yarn"), Some(factor)) => {
            out.text(&key("rope.scaling.type"), "yarn");
            out.set(key("rope.scaling.factor"), Entry::F32(factor));
            let original = parameters.get("original_max_position_embeddings").and_then(Value::as_u64);
            let original = original.and_then(|count| u32::try_from(count).ok());
            let missing = || Error::invalid("config.json: yarn without original_max_position_embeddings");
            out.set(key("rope.scaling.original_context_length"), Entry::U32(original.ok_or_else(missing)?));
            let attention = match float("attention_factor")? {
                Some(factor) => Some(factor),
                None => float("attn_factor")?,
            };
            let others = [
                ("rope.scaling.yarn_ext_factor", float("extrapolation_factor")?),
                ("rope.scaling.yarn_attn_factor", attention),
                ("rope.scaling.yarn_beta_fast", float("beta_fast")?),
                ("rope.scaling.yarn_beta_slow", float("beta_slow")?),
            ];
            for (name, value) in others {
                if let Some(value) = value {
                    out.set(key(name), Entry::F32(value));
                }
            }
        }
        (Some("longrope" | "su"), _) => {
            return Err(Error::unsupported("positions of the kind longrope"));
        }
        _ => {}
    }
    if parameters.contains_key("mrope_section") {
        return Err(Error::unsupported("positions in several dimensions"));
    }
    if let Some(base) = float("rope_theta")? {
        out.set(key("rope.freq_base"), Entry::F32(base));
    }
    if let Some(base) = config.positions.local_base {
        out.set(key("rope.freq_base_swa"), Entry::F32(base as f32));
    }
    Ok(())
}

fn more(
    out: &mut Entries,
    key: &dyn Fn(&str) -> String,
    config: &Config,
    files: &Files,
    extra: Extra,
) -> Result<()> {
    match extra {
        Extra::VocabularySize => out.set(key("vocab_size"), Entry::U32(config.needed(&["vocab_size"])?)),
        Extra::RotaryDimensions => {
            out.set(key("rope.dimension_count"), Entry::U32(config.needed(&["head_dim"])?));
        }
        Extra::Pooling => {
            if let Some(kind) = pooling(files)? {
                out.set(key("pooling_type"), Entry::U32(kind));
            }
        }
        Extra::NotCausal => out.set(key("attention.causal"), Entry::Bool(false)),
        Extra::Labels => {
            let labels = labels(config).unwrap_or_default();
            out.set(key("classifier.output_labels"), Entry::Texts(labels));
        }
        Extra::FinalSoftcap => {
            if let Some(cap) = config.float(&["final_logit_softcapping"])?.filter(|cap| *cap != 0.0) {
                out.set(key("final_logit_softcapping"), Entry::F32(cap as f32));
            }
            if config.float(&["attn_logit_softcapping"])?.is_some() {
                return Err(Error::unsupported("gemma3 with attn_logit_softcapping"));
            }
        }
        Extra::SlidingWindow => {
            if config.value("sliding_window_pattern") != Some(&Value::from(1)) {
                let window = config.needed(&["sliding_window"])?;
                out.set(key("attention.sliding_window"), Entry::U32(window));
            }
        }
        Extra::RotaryFactors => {}
    }
    Ok(())
}

/// The classes of a classifier. `None` for the names that transformers gives where a model has none.
pub(super) fn labels(config: &Config) -> Option<Vec<String>> {
    let labels = config.raw.get("id2label")?.as_object()?;
    let mut numbered: Vec<(u64, String)> = Vec::with_capacity(labels.len());
    for (number, label) in labels {
        numbered.push((number.parse().ok()?, label.as_str()?.to_owned()));
    }
    numbered.sort_unstable();
    let are_assumed = numbered.len() == 2 && numbered.first().is_some_and(|(_, label)| label == "LABEL_0");
    (!are_assumed).then(|| numbered.into_iter().map(|(_, label)| label).collect())
}

/// The number of the way in which a model of sentence-transformers makes one vector of those of its tokens.
fn pooling(files: &Files) -> Result<Option<u32>> {
    let Some(directory) = files.get(MODULES_NAME).and_then(pooling_directory) else { return Ok(None) };
    let place = format!("{directory}/config.json");
    let bytes = files.pooling.as_deref().ok_or_else(|| Error::invalid(format!("{place} is missing")))?;
    let config: std::result::Result<Value, _> = serde_json::from_slice(bytes);
    let config = config.map_err(|error| Error::invalid(format!("{place}: {error}")))?;
    let is = |mode: &str| config.get(mode).and_then(Value::as_bool) == Some(true);
    let named = config.get("pooling_mode").and_then(Value::as_str);
    let kinds = [
        ("pooling_mode_mean_tokens", "mean", 1),
        ("pooling_mode_cls_token", "cls", 2),
        ("pooling_mode_lasttoken", "lasttoken", 3),
    ];
    let by_flag = kinds.iter().find(|(flag, ..)| is(flag));
    let found = by_flag.or_else(|| kinds.iter().find(|(_, name, _)| named == Some(*name)));
    let unknown = || Error::unsupported(format!("{place}: a pooling other than mean, cls and lasttoken"));
    found.map(|(.., kind)| Some(*kind)).ok_or_else(unknown)
}
