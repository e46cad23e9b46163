//! Which way square weights lie. A weight of `Linear` has a row for each output, a weight of `Conv1D` of GPT-2 a row for
//! each input. `peft` asks the class of a module; `fan_in_fan_out` of a configuration is that of the last module alone.
//! Names, shapes and the architecture replace the class here, in this order:
//!
//! 1. A weight without a bias is straight, because each `Conv1D` has a bias.
//! 2. A square weight lies as other weights with the same last name (`c_proj`) do. The matrices of the adapter or a bias
//!    show how a weight lies that is not square.
//! 3. `config.json` names an architecture with `Conv1D`, and `CONV1D_NAMES` the modules of that class.
//! 4. A square weight lies as all others do.
//! 5. Where no weight tells, `fan_in_fan_out` must be false.

use std::collections::HashMap;

use serde_json::Value;

/// The architectures with `Conv1D` in transformers 5.
const CONV1D_MODELS: [&str; 5] = ["clvp_decoder", "decision_transformer", "gpt2", "imagegpt", "openai-gpt"];
/// The last names of these modules.
const CONV1D_NAMES: [&str; 4] = ["c_attn", "c_fc", "c_proj", "q_attn"];

/// Which way a weight lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layout {
    /// It has a row for each output.
    Straight,
    /// It has a row for each input.
    Transposed,
}

/// How the weights of a model lie that are not square.
#[derive(Default)]
pub(super) struct Layouts {
    by_last_name: HashMap<String, Seen>,
    all: Seen,
}

/// The layouts of some weights.
#[derive(Clone, Copy, Default)]
struct Seen {
    is_straight: bool,
    is_transposed: bool,
}

impl Seen {
    fn note(&mut self, layout: Layout) {
        match layout {
            Layout::Straight => self.is_straight = true,
            Layout::Transposed => self.is_transposed = true,
        }
    }

    /// The only layout.
    fn only(self) -> Option<Layout> {
        match (self.is_straight, self.is_transposed) {
            (true, false) => Some(Layout::Straight),
            (false, true) => Some(Layout::Transposed),
            _ => None,
        }
    }
}

/// Facts that decide about a square weight beside the other weights.
#[derive(Clone, Copy)]
pub(super) struct Hints<'a> {
    pub has_bias: bool,
    /// The bytes of `config.json`.
    pub config: Option<&'a [u8]>,
    /// `fan_in_fan_out`.
    pub flag: bool,
}

impl Layouts {
    /// Notes how a weight lies.
    pub fn note(&mut self, weight: &str, layout: Layout) {
        self.by_last_name.entry(last_name(weight).to_owned()).or_default().note(layout);
        self.all.note(layout);
    }

    /// How a square weight lies. `None` where this cannot be decided.
    pub fn of_square(&self, weight: &str, hints: Hints<'_>) -> Option<Layout> {
        if !hints.has_bias {
            return Some(Layout::Straight);
        }
        let last_name = last_name(weight);
        if let Some(layout) = self.by_last_name.get(last_name).and_then(|seen| seen.only()) {
            return Some(layout);
        }
        if hints.config.is_some_and(has_conv1d) {
            let is_conv1d = CONV1D_NAMES.contains(&last_name);
            return Some(if is_conv1d { Layout::Transposed } else { Layout::Straight });
        }
        let is_any = self.all.is_straight || self.all.is_transposed;
        if is_any || hints.flag { self.all.only() } else { Some(Layout::Straight) }
    }
}

/// The last name of the module of a weight.
fn last_name(weight: &str) -> &str {
    let module = weight.strip_suffix(".weight").unwrap_or(weight);
    module.rsplit('.').next().unwrap_or(module)
}

/// Whether a configuration, or a part of it, is that of an architecture with `Conv1D`.
fn has_conv1d(config: &[u8]) -> bool {
    fn is_in(value: &Value) -> bool {
        let Value::Object(fields) = value else { return false };
        let model_type = fields.get("model_type").and_then(Value::as_str);
        model_type.is_some_and(|name| CONV1D_MODELS.contains(&name)) || fields.values().any(is_in)
    }
    serde_json::from_slice(config).is_ok_and(|config: Value| is_in(&config))
}

#[cfg(test)]
mod tests {
    use super::{Hints, Layout, Layouts};

    const GPT2: &[u8] = br#"{"model_type": "vision-encoder-decoder", "decoder": {"model_type": "gpt2"}}"#;
    const OTHER: &[u8] = br#"{"model_type": "bert"}"#;

    #[test]
    fn a_square_weight_lies_as_its_name_the_architecture_or_all_others_say() {
        let (straight, transposed) = (Some(Layout::Straight), Some(Layout::Transposed));
        let mut layouts = Layouts::default();
        let hints = |config, flag| Hints { has_bias: true, config: Some(config), flag };
        let without = Hints { has_bias: false, config: Some(GPT2), flag: true };
        assert_eq!(layouts.of_square("h.0.attn.c_proj.weight", without), straight);
        assert_eq!(layouts.of_square("h.0.query.weight", hints(OTHER, false)), straight);
        assert_eq!(layouts.of_square("h.0.query.weight", hints(OTHER, true)), None);
        layouts.note("h.0.dense.weight", Layout::Straight);
        assert_eq!(layouts.of_square("h.0.query.weight", hints(OTHER, true)), straight);
        layouts.note("h.0.mlp.c_proj.weight", Layout::Transposed);
        for config in [OTHER, GPT2] {
            assert_eq!(layouts.of_square("h.3.attn.c_proj.weight", hints(config, false)), transposed);
        }
        assert_eq!(layouts.of_square("h.0.query.weight", hints(OTHER, true)), None);
        assert_eq!(layouts.of_square("h.0.query.weight", hints(GPT2, true)), straight);
        assert_eq!(layouts.of_square("h.0.q_attn.weight", hints(GPT2, false)), transposed);
    }
}
