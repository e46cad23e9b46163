//! gemma3, the text model of it: norms are stored less one.

use super::{Architecture, Change, Extra, Row, Size, Vocabulary, changed, optional, row};
use crate::format::files::hub::config::Assumed;

use Size::{Head, Hidden, Inner, Keys, Queries, Vocabulary as Tokens};

pub(super) static GEMMA3: Architecture = Architecture {
    name: "gemma3",
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    assumed: &[
        ("max_position_embeddings", Assumed::Count(131_072)),
        ("hidden_size", Assumed::Count(2304)),
        ("intermediate_size", Assumed::Count(9216)),
        ("num_hidden_layers", Assumed::Count(26)),
        ("num_attention_heads", Assumed::Count(8)),
        ("num_key_value_heads", Assumed::Count(4)),
        ("head_dim", Assumed::Count(256)),
        ("rms_norm_eps", Assumed::Float(1e-6)),
        ("rope_theta", Assumed::Float(1_000_000.0)),
        ("rope_local_base_freq", Assumed::Float(10000.0)),
        ("sliding_window", Assumed::Count(4096)),
        ("vocab_size", Assumed::Count(262_208)),
    ],
    implies_head: false,
    prefixes: &[],
    drops: &[],
    tensors: &[
        changed(row("token_embd.weight", "model.embed_tokens.weight", &[Tokens, Hidden]), Change::Tokens),
        norm("output_norm.weight", "model.norm.weight", &[Hidden]),
        optional("output.weight", "lm_head.weight", &[Tokens, Hidden]),
        norm("blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", &[Hidden]),
        row("blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", &[Queries, Hidden]),
        row("blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight", &[Keys, Hidden]),
        row("blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight", &[Keys, Hidden]),
        row("blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight", &[Hidden, Queries]),
        norm("blk.{}.attn_q_norm.weight", "model.layers.{}.self_attn.q_norm.weight", &[Head]),
        norm("blk.{}.attn_k_norm.weight", "model.layers.{}.self_attn.k_norm.weight", &[Head]),
        norm(
            "blk.{}.post_attention_norm.weight",
            "model.layers.{}.post_attention_layernorm.weight",
            &[Hidden],
        ),
        norm("blk.{}.ffn_norm.weight", "model.layers.{}.pre_feedforward_layernorm.weight", &[Hidden]),
        norm("blk.{}.post_ffw_norm.weight", "model.layers.{}.post_feedforward_layernorm.weight", &[Hidden]),
        row("blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight", &[Inner, Hidden]),
        row("blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight", &[Inner, Hidden]),
        row("blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight", &[Hidden, Inner]),
    ],
    vocabulary: Vocabulary::Gemma,
    extras: &[Extra::FinalSoftcap, Extra::SlidingWindow],
};

/// Norms multiply by one more than what is stored.
const fn norm(name: &'static str, source: &'static str, shape: &'static [Size]) -> Row {
    changed(row(name, source, shape), Change::Increment)
}
