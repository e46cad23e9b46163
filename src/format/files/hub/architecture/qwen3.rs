//! qwen3: queries and keys have norms.

use super::qwen2::{K_BIAS, Q_BIAS, V_BIAS};
use super::{Architecture, Extra, Size, Vocabulary, optional, row};
use crate::format::files::hub::config::Assumed;

use Size::{Head, Hidden, Inner, Keys, Queries, Vocabulary as Tokens};

pub(super) static QWEN3: Architecture = Architecture {
    name: "qwen3",
    classes: &["Qwen3ForCausalLM", "Qwen3Model"],
    assumed: &[
        ("max_position_embeddings", Assumed::Count(32768)),
        ("hidden_size", Assumed::Count(4096)),
        ("intermediate_size", Assumed::Count(22016)),
        ("num_hidden_layers", Assumed::Count(32)),
        ("num_attention_heads", Assumed::Count(32)),
        ("num_key_value_heads", Assumed::Count(32)),
        ("head_dim", Assumed::Count(128)),
        ("rms_norm_eps", Assumed::Float(1e-6)),
        ("rope_theta", Assumed::Float(10000.0)),
        ("vocab_size", Assumed::Count(151_936)),
    ],
    implies_head: false,
    prefixes: &[],
    drops: &[],
    tensors: &[
        row("token_embd.weight", "model.embed_tokens.weight", &[Tokens, Hidden]),
        row("output_norm.weight", "model.norm.weight", &[Hidden]),
        optional("output.weight", "lm_head.weight", &[Tokens, Hidden]),
        row("blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", &[Hidden]),
        row("blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", &[Queries, Hidden]),
        row("blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight", &[Keys, Hidden]),
        row("blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight", &[Keys, Hidden]),
        row("blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight", &[Hidden, Queries]),
        row("blk.{}.attn_q_norm.weight", "model.layers.{}.self_attn.q_norm.weight", &[Head]),
        row("blk.{}.attn_k_norm.weight", "model.layers.{}.self_attn.k_norm.weight", &[Head]),
        Q_BIAS,
        K_BIAS,
        V_BIAS,
        row("blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight", &[Hidden]),
        row("blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight", &[Inner, Hidden]),
        row("blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight", &[Inner, Hidden]),
        row("blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight", &[Hidden, Inner]),
    ],
    vocabulary: Vocabulary::Qwen,
    extras: &[Extra::Pooling],
};
