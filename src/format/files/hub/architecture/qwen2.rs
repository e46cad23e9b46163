//! qwen2: queries, keys and values have biases.

use super::{Architecture, Extra, Row, Size, Vocabulary, optional, row};
use crate::format::files::hub::config::Assumed;

use Size::{Hidden, Inner, Keys, Queries, Vocabulary as Tokens};

pub(super) static QWEN2: Architecture = Architecture {
    name: "qwen2",
    classes: &["Qwen2ForCausalLM", "Qwen2Model"],
    assumed: &[
        ("max_position_embeddings", Assumed::Count(32768)),
        ("hidden_size", Assumed::Count(4096)),
        ("intermediate_size", Assumed::Count(22016)),
        ("num_hidden_layers", Assumed::Count(32)),
        ("num_attention_heads", Assumed::Count(32)),
        ("num_key_value_heads", Assumed::Count(32)),
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

pub(super) const Q_BIAS: Row =
    optional("blk.{}.attn_q.bias", "model.layers.{}.self_attn.q_proj.bias", &[Queries]);
pub(super) const K_BIAS: Row =
    optional("blk.{}.attn_k.bias", "model.layers.{}.self_attn.k_proj.bias", &[Keys]);
pub(super) const V_BIAS: Row =
    optional("blk.{}.attn_v.bias", "model.layers.{}.self_attn.v_proj.bias", &[Keys]);
