//! llama: queries and keys have the two halves of each head interleaved in GGUF.

use super::{Architecture, Change, Extra, Row, Size, Vocabulary, changed, optional, row};
use crate::format::files::hub::config::Assumed;

use Size::{Any, Hidden, Inner, Keys, Queries, Vocabulary as Tokens};

pub(super) static LLAMA: Architecture = Architecture {
    name: "llama",
    classes: &["LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel"],
    assumed: &[
        ("max_position_embeddings", Assumed::Count(2048)),
        ("hidden_size", Assumed::Count(4096)),
        ("intermediate_size", Assumed::Count(11008)),
        ("num_hidden_layers", Assumed::Count(32)),
        ("num_attention_heads", Assumed::Count(32)),
        ("rms_norm_eps", Assumed::Float(1e-6)),
        ("rope_theta", Assumed::Float(10000.0)),
        ("vocab_size", Assumed::Count(32000)),
    ],
    implies_head: true,
    prefixes: &[],
    drops: &[],
    tensors: &TENSORS,
    vocabulary: Vocabulary::Llama,
    extras: &[Extra::VocabularySize, Extra::RotaryDimensions, Extra::RotaryFactors],
};

pub(super) static TENSORS: [Row; 19] = [
    row("token_embd.weight", "model.embed_tokens.weight", &[Tokens, Hidden]),
    row("output_norm.weight", "model.norm.weight", &[Hidden]),
    optional("output.weight", "lm_head.weight", &[Tokens, Hidden]),
    row("blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", &[Hidden]),
    changed(
        row("blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", &[Queries, Hidden]),
        Change::QueryHeads,
    ),
    changed(
        row("blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight", &[Keys, Hidden]),
        Change::KeyHeads,
    ),
    row("blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight", &[Keys, Hidden]),
    row("blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight", &[Hidden, Queries]),
    changed(
        optional("blk.{}.attn_q.bias", "model.layers.{}.self_attn.q_proj.bias", &[Queries]),
        Change::QueryHeads,
    ),
    changed(
        optional("blk.{}.attn_k.bias", "model.layers.{}.self_attn.k_proj.bias", &[Keys]),
        Change::KeyHeads,
    ),
    optional("blk.{}.attn_v.bias", "model.layers.{}.self_attn.v_proj.bias", &[Keys]),
    optional("blk.{}.attn_output.bias", "model.layers.{}.self_attn.o_proj.bias", &[Hidden]),
    row("blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight", &[Hidden]),
    row("blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight", &[Inner, Hidden]),
    row("blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight", &[Inner, Hidden]),
    row("blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight", &[Hidden, Inner]),
    optional("blk.{}.ffn_gate.bias", "model.layers.{}.mlp.gate_proj.bias", &[Any]),
    optional("blk.{}.ffn_up.bias", "model.layers.{}.mlp.up_proj.bias", &[Any]),
    optional("blk.{}.ffn_down.bias", "model.layers.{}.mlp.down_proj.bias", &[Any]),
];
