//! bert, for embeddings: without the pooling layer, the heads of its training and the numbers of positions.

use super::{Architecture, Extra, Size, Vocabulary, optional, row};
use crate::format::files::hub::config::Assumed;

use Size::{Any, Hidden, Inner, Positions, Types, Vocabulary as Tokens};

pub(super) static BERT: Architecture = Architecture {
    name: "bert",
    classes: &["BertModel", "BertForMaskedLM", "BertForSequenceClassification"],
    assumed: &[
        ("max_position_embeddings", Assumed::Count(512)),
        ("hidden_size", Assumed::Count(768)),
        ("intermediate_size", Assumed::Count(3072)),
        ("num_hidden_layers", Assumed::Count(12)),
        ("num_attention_heads", Assumed::Count(12)),
        ("layer_norm_eps", Assumed::Float(1e-12)),
        ("type_vocab_size", Assumed::Count(2)),
        ("vocab_size", Assumed::Count(30522)),
    ],
    implies_head: false,
    prefixes: &["bert."],
    drops: DROPS,
    tensors: &[
        row("token_embd.weight", "embeddings.word_embeddings.weight", &[Tokens, Hidden]),
        row("position_embd.weight", "embeddings.position_embeddings.weight", &[Positions, Hidden]),
        optional("token_types.weight", "embeddings.token_type_embeddings.weight", &[Types, Hidden]),
        row("token_embd_norm.weight", "embeddings.LayerNorm.weight", &[Hidden]),
        row("token_embd_norm.bias", "embeddings.LayerNorm.bias", &[Hidden]),
        row("blk.{}.attn_q.weight", "encoder.layer.{}.attention.self.query.weight", &[Hidden, Hidden]),
        row("blk.{}.attn_q.bias", "encoder.layer.{}.attention.self.query.bias", &[Hidden]),
        row("blk.{}.attn_k.weight", "encoder.layer.{}.attention.self.key.weight", &[Hidden, Hidden]),
        row("blk.{}.attn_k.bias", "encoder.layer.{}.attention.self.key.bias", &[Hidden]),
        row("blk.{}.attn_v.weight", "encoder.layer.{}.attention.self.value.weight", &[Hidden, Hidden]),
        row("blk.{}.attn_v.bias", "encoder.layer.{}.attention.self.value.bias", &[Hidden]),
        row("blk.{}.attn_output.weight", "encoder.layer.{}.attention.output.dense.weight", &[Hidden, Hidden]),
        row("blk.{}.attn_output.bias", "encoder.layer.{}.attention.output.dense.bias", &[Hidden]),
        row(
            "blk.{}.attn_output_norm.weight",
            "encoder.layer.{}.attention.output.LayerNorm.weight",
            &[Hidden],
        ),
        row("blk.{}.attn_output_norm.bias", "encoder.layer.{}.attention.output.LayerNorm.bias", &[Hidden]),
        row("blk.{}.ffn_up.weight", "encoder.layer.{}.intermediate.dense.weight", &[Inner, Hidden]),
        row("blk.{}.ffn_up.bias", "encoder.layer.{}.intermediate.dense.bias", &[Inner]),
        row("blk.{}.ffn_down.weight", "encoder.layer.{}.output.dense.weight", &[Hidden, Inner]),
        row("blk.{}.ffn_down.bias", "encoder.layer.{}.output.dense.bias", &[Hidden]),
        row("blk.{}.layer_output_norm.weight", "encoder.layer.{}.output.LayerNorm.weight", &[Hidden]),
        row("blk.{}.layer_output_norm.bias", "encoder.layer.{}.output.LayerNorm.bias", &[Hidden]),
        optional("cls.weight", "classifier.weight", &[Any, Hidden]),
        optional("cls.bias", "classifier.bias", &[Any]),
        optional("cls.output.weight", "classifier.out_proj.weight", &[Any, Hidden]),
        optional("cls.output.bias", "classifier.out_proj.bias", &[Any]),
    ],
    vocabulary: Vocabulary::Bert,
    extras: &[Extra::NotCausal, Extra::Pooling, Extra::Labels],
};

/// The tensors of a model that embeddings do not need.
pub(super) const DROPS: &[&str] = &[
    "embeddings.position_ids",
    "pooler.dense.weight",
    "pooler.dense.bias",
    "cls.predictions",
    "cls.seq_relationship",
];
