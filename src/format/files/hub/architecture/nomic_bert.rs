//! nomic-bert: rotary positions, gated feed-forward layers, no biases.

use super::bert::DROPS;
use super::{Architecture, Extra, Size, Vocabulary, optional, row};

use Size::{Hidden, Inner, Joint, Types, Vocabulary as Tokens};

pub(super) static NOMIC_BERT: Architecture = Architecture {
    name: "nomic-bert",
    classes: &["NomicBertModel"],
    // Its configuration is not one of transformers: it has the keys of GPT-2 and names every value.
    assumed: &[],
    implies_head: false,
    prefixes: &["bert."],
    drops: DROPS,
    tensors: &[
        row("token_embd.weight", "embeddings.word_embeddings.weight", &[Tokens, Hidden]),
        optional("token_types.weight", "embeddings.token_type_embeddings.weight", &[Types, Hidden]),
        row("token_embd_norm.weight", "emb_ln.weight", &[Hidden]),
        row("token_embd_norm.bias", "emb_ln.bias", &[Hidden]),
        row("blk.{}.attn_qkv.weight", "encoder.layers.{}.attn.Wqkv.weight", &[Joint, Hidden]),
        row("blk.{}.attn_output.weight", "encoder.layers.{}.attn.out_proj.weight", &[Hidden, Hidden]),
        row("blk.{}.attn_output_norm.weight", "encoder.layers.{}.norm1.weight", &[Hidden]),
        row("blk.{}.attn_output_norm.bias", "encoder.layers.{}.norm1.bias", &[Hidden]),
        row("blk.{}.ffn_up.weight", "encoder.layers.{}.mlp.fc11.weight", &[Inner, Hidden]),
        row("blk.{}.ffn_gate.weight", "encoder.layers.{}.mlp.fc12.weight", &[Inner, Hidden]),
        row("blk.{}.ffn_down.weight", "encoder.layers.{}.mlp.fc2.weight", &[Hidden, Inner]),
        row("blk.{}.layer_output_norm.weight", "encoder.layers.{}.norm2.weight", &[Hidden]),
        row("blk.{}.layer_output_norm.bias", "encoder.layers.{}.norm2.bias", &[Hidden]),
    ],
    vocabulary: Vocabulary::Bert,
    extras: &[Extra::NotCausal, Extra::Pooling, Extra::Labels],
};
