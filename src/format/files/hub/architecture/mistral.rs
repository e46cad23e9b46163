//! Models of Mistral in the layout of transformers, which llama.cpp runs as llama.

use super::llama::{LLAMA, TENSORS};
use super::{Architecture, Vocabulary};
use crate::format::files::hub::config::Assumed;

pub(super) static MISTRAL: Architecture = Architecture {
    name: "llama",
    classes: &["MistralForCausalLM"],
    assumed: &[
        ("max_position_embeddings", Assumed::Count(131_072)),
        ("hidden_size", Assumed::Count(4096)),
        ("intermediate_size", Assumed::Count(14336)),
        ("num_hidden_layers", Assumed::Count(32)),
        ("num_attention_heads", Assumed::Count(32)),
        ("num_key_value_heads", Assumed::Count(8)),
        ("rms_norm_eps", Assumed::Float(1e-6)),
        ("rope_theta", Assumed::Float(10000.0)),
        ("vocab_size", Assumed::Count(32000)),
    ],
    implies_head: true,
    prefixes: &[],
    drops: &[],
    tensors: &TENSORS,
    vocabulary: Vocabulary::Llama,
    extras: LLAMA.extras,
};
