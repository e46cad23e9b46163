//! `adapter_config.json` of a PEFT adapter, and the names of the tensors beside it.
//!
//! Source: `LoraConfig`, `get_pattern_key` and `get_peft_model_state_dict` of the Python package `peft` 0.21.

use serde_json::{Map, Value};

use crate::model::{Error, ErrorKind, Result, beginning};

/// Longest configuration that is read, in bytes.
pub const BYTES_MAX: u64 = 1 << 20;

/// The name of the configuration.
pub const CONFIG_NAME: &str = "adapter_config.json";

/// The names of the tensors' container, in the order in which `peft` looks for them.
pub const WEIGHTS_NAMES: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];

/// Most bytes of patterns and names that are compared for an adapter.
const COMPARED_BYTES_MAX: u64 = 1 << 28;

/// Most bytes of a name or value that an error quotes.
const QUOTED_BYTES_MAX: usize = 200;

/// The prefix of all tensors.
const PREFIX: &str = "base_model.model.";

/// Fields that make a tensor something else than the product of two matrices, or that change the base, each with the name
/// of the kind. A field counts unless it is absent, `null`, `false` or empty.
const KINDS: [(&str, &str); 11] = [
    ("use_dora", "DoRA"),
    ("use_qalora", "QALoRA"),
    ("use_bdlora", "BD-LoRA"),
    ("alora_invocation_tokens", "activated LoRA"),
    ("arrow_config", "Arrow"),
    ("kasa_config", "KaSA"),
    ("monteclora_config", "MonteCLoRA"),
    ("layer_replication", "LoRA with replicated layers"),
    ("target_parameters", "LoRA of parameters that are not the weight of a module"),
    ("trainable_token_indices", "LoRA with trainable tokens"),
    ("megatron_config", "LoRA of Megatron layers"),
];

/// The types of fields that describe a sum, which may be absent or `null` too.
const TYPES: [(&str, &[JsonType]); 11] = [
    ("alpha_pattern", &[JsonType::Object]),
    ("bias", &[JsonType::String]),
    ("fan_in_fan_out", &[JsonType::Bool]),
    ("init_lora_weights", &[JsonType::Bool, JsonType::String]),
    ("lora_bias", &[JsonType::Bool]),
    ("modules_to_save", &[JsonType::Array]),
    ("peft_type", &[JsonType::String]),
    ("r", &[JsonType::Number]),
    ("rank_pattern", &[JsonType::Object]),
    ("target_modules", &[JsonType::String, JsonType::Array]),
    ("use_rslora", &[JsonType::Bool]),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum JsonType {
    Array,
    Bool,
    Null,
    Number,
    Object,
    String,
}

impl JsonType {
    fn of(value: &Value) -> JsonType {
        match value {
            Value::Array(_) => JsonType::Array,
            Value::Bool(_) => JsonType::Bool,
            Value::Null => JsonType::Null,
            Value::Number(_) => JsonType::Number,
            Value::Object(_) => JsonType::Object,
            Value::String(_) => JsonType::String,
        }
    }

    fn name(self) -> &'static str {
        match self {
            JsonType::Array => "a list",
            JsonType::Bool => "true or false",
            JsonType::Null => "null",
            JsonType::Number => "a number",
            JsonType::Object => "an object",
            JsonType::String => "a string",
        }
    }
}

/// Initial values that leave the weights of the base as they are.
const PLAIN_INITIAL_VALUES: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// How the tensors of an adapter change those of its base.
#[derive(Clone, PartialEq, Debug)]
pub struct AdapterConfig {
    /// `lora_alpha`.
    alpha: f64,
    /// Other values of it, by the pattern of a module's name.
    alphas: Vec<(Pattern, f64)>,
    /// Whether the scale is alpha by the root of the rank, in place of alpha by the rank.
    is_rank_stabilized: bool,
    /// Whether square weights have a row for each input.
    pub is_transposed: bool,
}

/// The end of a module's name, in which a dot stands for any character.
#[derive(Clone, PartialEq, Debug)]
struct Pattern {
    text: String,
    /// Whether it is the whole name.
    is_whole: bool,
}

/// The part that a tensor of an adapter has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AdapterPart {
    /// `A` of a module: a row for each rank.
    A,
    /// `B` of a module: a column for each rank.
    B,
    /// `A` of an embedding: a column for each token.
    EmbeddingA,
    /// `B` of an embedding.
    EmbeddingB,
    /// The sum for the bias of a module.
    Bias,
    /// The tensor takes the place of the one of the base.
    Whole,
}

impl AdapterConfig {
    /// Parses a configuration. Fails with `NotSupported` for kinds of adapters that are not a plain sum, and with `Invalid` for other
    /// bytes.
    pub fn parse(json: &[u8]) -> Result<AdapterConfig> {
        let invalid = |text: &str| Error::invalid(format!("{CONFIG_NAME} {text}"));
        let all = match serde_json::from_slice(json) {
            Ok(Value::Object(all)) => all,
            Ok(_) => return Err(invalid("is not a JSON object")),
            Err(_) if has_nan_or_infinity(json) => {
                return Err(invalid("has NaN or Infinity, which JSON lacks: write a number"));
            }
            Err(error) => return Err(invalid(&format!("is not JSON: {error}"))),
        };
        check_types(&all)?;
        let kind = all.get("peft_type").and_then(Value::as_str).ok_or_else(|| invalid("has no peft_type"))?;
        if kind != "LORA" {
            return Err(refused(&format!("peft_type {}", quoted(kind))));
        }
        let has = |field: &str| all.get(field).is_some_and(is_set);
        if let Some((field, kind)) = KINDS.into_iter().find(|(field, _)| has(field)) {
            return Err(refused(&format!("{kind} ({field})")));
        }
        let unknown = |(field, value): &(&String, &Value)| {
            field.starts_with("use_") && *field != "use_rslora" && is_set(value)
        };
        if let Some((field, _)) = all.iter().find(unknown) {
            return Err(refused(beginning(field, QUOTED_BYTES_MAX)));
        }
        let initial = all.get("init_lora_weights").and_then(Value::as_str);
        if let Some(initial) = initial.filter(|initial| !PLAIN_INITIAL_VALUES.contains(initial)) {
            let initial = quoted(initial);
            let text = format!("init_lora_weights {initial}, which changes the weights of the base,");
            return Err(refused(&text));
        }
        let alpha = match all.get("lora_alpha") {
            // The default of `LoraConfig`.
            None => 8.0,
            Some(value) => {
                number(value).ok_or_else(|| invalid("has a lora_alpha that is not a number of f32"))?
            }
        };
        let patterns = all.get("alpha_pattern").and_then(Value::as_object);
        let alphas = patterns.into_iter().flatten().map(|(key, value)| {
            let alpha = number(value).ok_or_else(|| invalid("has an alpha that is not a number of f32"))?;
            let other = || refused(&format!("alpha_pattern {}", quoted(key)));
            let pattern = Pattern::new(key).ok_or_else(other)?;
            Ok((pattern, alpha))
        });
        Ok(AdapterConfig {
            alpha,
            alphas: alphas.collect::<Result<_>>()?,
            is_rank_stabilized: flag(&all, "use_rslora"),
            is_transposed: flag(&all, "fan_in_fan_out"),
        })
    }

    /// Fails with `NotSupported` where the comparison of all patterns with so many modules takes too long.
    pub fn check_patterns(&self, modules: usize) -> Result<()> {
        let bytes: u64 = self.alphas.iter().map(|(pattern, _)| pattern.text.len() as u64 + 16).sum();
        if bytes.saturating_mul(modules as u64) > COMPARED_BYTES_MAX {
            let text = format!("alpha_pattern with {} patterns for {modules} modules", self.alphas.len());
            return Err(refused(&text));
        }
        Ok(())
    }

    /// The scale of the product of a module, of a rank. Fails with `NotSupported` where several patterns disagree.
    pub fn scale(&self, module: &str, rank: u64) -> Result<f32> {
        let mut alphas =
            self.alphas.iter().filter(|(pattern, _)| pattern.matches(module)).map(|(_, alpha)| alpha);
        let alpha = *alphas.next().unwrap_or(&self.alpha);
        if alphas.any(|other| *other != alpha) {
            let module = beginning(module, QUOTED_BYTES_MAX);
            return Err(refused(&format!("alpha_pattern with several alphas for {module}")));
        }
        let rank = rank as f64;
        Ok((alpha / if self.is_rank_stabilized { rank.sqrt() } else { rank }) as f32)
    }
}

impl Pattern {
    /// `None` for a pattern with more than names, dots and an anchor at its beginning.
    fn new(key: &str) -> Option<Pattern> {
        let (text, is_whole) = match key.strip_prefix('^') {
            Some(text) => (text, true),
            None => (key, false),
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        text.bytes().all(is_plain).then(|| Pattern { text: text.to_owned(), is_whole })
    }

    /// Whether the pattern is the end of a name, from a dot on, or all of it.
    fn matches(&self, module: &str) -> bool {
        let start = module.len().checked_sub(self.text.len());
        let Some((before, end)) = start.and_then(|start| module.split_at_checked(start)) else {
            return false;
        };
        let is_start = before.is_empty() || (before.ends_with('.') && !self.is_whole);
        is_start && end.bytes().zip(self.text.bytes()).all(|(one, other)| one == other || other == b'.')
    }
}

/// Fails with `Invalid` for a field with a value of a type that it never has.
fn check_types(all: &Map<String, Value>) -> Result<()> {
    for (field, types) in TYPES {
        let found = all.get(field).map_or(JsonType::Null, JsonType::of);
        if found != JsonType::Null && !types.contains(&found) {
            let names: Vec<&str> = types.iter().map(|known| known.name()).collect();
            let (wanted, found) = (names.join(" or "), found.name());
            return Err(Error::invalid(format!("{CONFIG_NAME} has {field} as {found}; it must be {wanted}")));
        }
    }
    Ok(())
}

/// A number that f32 can hold.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| (*number as f32).is_finite())
}

/// Whether a text has NaN or Infinity outside strings, which are numbers for Python only.
fn has_nan_or_infinity(json: &[u8]) -> bool {
    let (mut is_string, mut is_escaped) = (false, false);
    let mut outside = Vec::new();
    for byte in json {
        match (is_string, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (_, b'"') => is_string = !is_string,
            (true, _) => {}
            (false, _) => outside.push(*byte),
        }
    }
    ["NaN", "Infinity"].iter().any(|word| outside.windows(word.len()).any(|part| part == word.as_bytes()))
}

fn flag(all: &Map<String, Value>, field: &str) -> bool {
    all.get(field).and_then(Value::as_bool).unwrap_or_default()
}

/// Whether a field says something.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => true,
    }
}

/// The beginning of a text of the adapter, in quotes.
fn quoted(text: &str) -> String {
    format!("{:?}", beginning(text, QUOTED_BYTES_MAX))
}

fn refused(what: &str) -> Error {
    Error::new(
        ErrorKind::NotSupported,
        format!("{what} is not merged; only LoRA is, which is the sum of a weight and a product"),
    )
}

/// The module or tensor of the base that a tensor of an adapter belongs to, and its part. For [`AdapterPart::Whole`] the name is
/// that of a tensor, otherwise of a module. Fails with `NotSupported` for other names.
pub fn part_of(name: &str) -> Result<(String, AdapterPart)> {
    let unknown = || refused(&format!("the tensor {} of the adapter", quoted(name)));
    let rest = name.strip_prefix(PREFIX).ok_or_else(unknown)?;
    if name.contains("lora_magnitude_vector") {
        return Err(refused(&format!("DoRA (the tensor {})", quoted(name))));
    }
    // The name of the adapter, which `peft` leaves out, may come between.
    let of = |marker: &str, end: &str| {
        let (module, after) = rest.split_once(marker)?;
        let after = after.strip_suffix(end)?;
        let is_adapter = after.is_empty()
            || after.strip_prefix('.').is_some_and(|name| !name.contains('.') && !name.is_empty());
        (is_adapter && !module.is_empty()).then(|| without_base_layer(module))
    };
    let parts = [
        (".lora_A", ".weight", AdapterPart::A),
        (".lora_B", ".weight", AdapterPart::B),
        (".lora_B", ".bias", AdapterPart::Bias),
        (".lora_embedding_A", "", AdapterPart::EmbeddingA),
        (".lora_embedding_B", "", AdapterPart::EmbeddingB),
    ];
    if let Some(found) = parts.into_iter().find_map(|(marker, end, part)| Some((of(marker, end)?, part))) {
        return Ok(found);
    }
    if rest.contains(".lora_") || rest.contains("trainable_tokens") {
        return Err(unknown());
    }
    let (module, tensor) = rest.rsplit_once('.').ok_or_else(unknown)?;
    let module = match module.split_once(".modules_to_save") {
        None => module,
        Some((module, after)) if after.is_empty() || after.matches('.').count() == 1 => module,
        Some(_) => return Err(unknown()),
    };
    Ok((format!("{}.{tensor}", without_base_layer(module)), AdapterPart::Whole))
}

/// The name of a module whose adapter wraps it.
fn without_base_layer(module: &str) -> String {
    module.strip_suffix(".base_layer").unwrap_or(module).to_owned()
}
