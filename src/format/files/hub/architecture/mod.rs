//! The architectures that are written as GGUF, as data: one file for each.

mod bert;
mod gemma3;
mod llama;
mod mistral;
mod nomic_bert;
mod qwen2;
mod qwen3;

use super::config::Assumed;

/// All architectures.
const ALL: [&Architecture; 7] = [
    &llama::LLAMA,
    &mistral::MISTRAL,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &gemma3::GEMMA3,
    &bert::BERT,
    &nomic_bert::NOMIC_BERT,
];

/// An architecture of llama.cpp, and how models of transformers become models of it.
pub(super) struct Architecture {
    /// Its name in GGUF files.
    pub(super) name: &'static str,
    /// The names that `architectures` of a configuration has for it.
    pub(super) classes: &'static [&'static str],
    /// The values that the class of its configuration assumes. Source: transformers 5.24.
    pub(super) assumed: &'static [(&'static str, Assumed)],
    /// Heads have the width that the hidden size gives where the configuration has none.
    pub(super) implies_head: bool,
    /// Prefixes that the names of its tensors lose.
    pub(super) prefixes: &'static [&'static str],
    /// Beginnings of names of tensors that llama.cpp does not need.
    pub(super) drops: &'static [&'static str],
    pub(super) tensors: &'static [Row],
    pub(super) vocabulary: Vocabulary,
    /// The hyperparameters that not all architectures have, in the order of a file.
    pub(super) extras: &'static [Extra],
}

/// A tensor.
pub(super) struct Row {
    /// Its name in GGUF files, with `{}` for the number of a layer.
    pub(super) name: &'static str,
    /// Its name in models of transformers, the same way.
    pub(super) source: &'static str,
    pub(super) shape: &'static [Size],
    pub(super) change: Change,
    /// Whether llama.cpp opens no model without it.
    pub(super) is_needed: bool,
}

/// A dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Size {
    /// The tokens.
    Vocabulary,
    Hidden,
    /// The width of the feed-forward layers.
    Inner,
    /// The heads of the queries together.
    Queries,
    /// The heads of the keys, or of the values, together.
    Keys,
    /// Queries, keys and values.
    Joint,
    /// One head.
    Head,
    Positions,
    /// The types of tokens.
    Types,
    /// The classes of a classifier.
    Any,
}

/// A change of the values of a tensor, beside a cast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    None,
    /// The halves of each head of queries are interleaved.
    QueryHeads,
    /// The halves of each head of keys are interleaved.
    KeyHeads,
    /// One is added.
    Increment,
    /// Rows past the tokens are left out.
    Tokens,
}

/// The way in which the tokens of an architecture are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Vocabulary {
    /// `tokenizer.model`; otherwise pieces of `tokenizer.json` with bytes as tokens; otherwise its byte pairs.
    Llama,
    /// `tokenizer.model`, otherwise byte pairs.
    Qwen,
    /// `tokenizer.model`, otherwise byte pairs. The tokenizer puts no space before the text.
    Gemma,
    /// Word pieces.
    Bert,
}

/// A hyperparameter that not all architectures have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extra {
    VocabularySize,
    RotaryDimensions,
    Pooling,
    NotCausal,
    Labels,
    SlidingWindow,
    FinalSoftcap,
    /// The base of rotary positions stretches by parts, as a tensor of factors says.
    RotaryFactors,
}

/// The architecture that a class of transformers has. `None` for one that is not in a table.
pub(super) fn find(class: &str) -> Option<&'static Architecture> {
    ALL.into_iter().find(|known| known.classes.contains(&class))
}

/// The names of all classes, for people.
pub(super) fn class_names() -> String {
    ALL.iter().flat_map(|known| known.classes).copied().collect::<Vec<_>>().join(", ")
}

/// A row of a tensor that must be there and is only cast.
const fn row(name: &'static str, source: &'static str, shape: &'static [Size]) -> Row {
    Row { name, source, shape, change: Change::None, is_needed: true }
}

/// A row of a tensor that may be missing.
const fn optional(name: &'static str, source: &'static str, shape: &'static [Size]) -> Row {
    Row { name, source, shape, change: Change::None, is_needed: false }
}

/// A row whose elements are changed too.
const fn changed(row: Row, change: Change) -> Row {
    Row { change, ..row }
}
