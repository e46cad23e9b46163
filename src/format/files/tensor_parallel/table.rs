//! The matrices of known architectures by their names, and how ranks share them.
//!
//! Sources: `base_model_tp_plan` of the models of transformers 5.24, and the layers of the same models in vLLM
//! (`ColumnParallelLinear`, `QKVParallelLinear`, `MergedColumnParallelLinear`, `RowParallelLinear`,
//! `VocabParallelEmbedding`, `FusedMoE` with expert parallelism). Routers, norms, the factors that compress queries and
//! keys, and all other names are whole in each rank, as there.

/// The things that a dimension consists of, and that ranks share without cutting one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    /// Single indices.
    Any,
    Heads,
    /// Heads of keys and values, which several ranks may share.
    KvHeads,
    /// A head of keys, one of values, and the heads of queries that use them.
    Groups,
}

/// How ranks share a matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// By rows: its output.
    Column(Unit),
    /// By columns: its input.
    Row(Unit),
    /// By rows, each of several matrices that lie one after the other.
    Joined(&'static [Unit]),
    /// Not at all: the order of the matrices in it, or of its dimensions, is not known.
    Unknown,
}

/// The name of a tensor of one expert: its number, and the name around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Expert<'a> {
    pub before: &'a str,
    pub index: u64,
    pub after: &'a str,
}

/// The place of a tensor in a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place<'a> {
    /// A tensor of one expert.
    Expert(Expert<'a>),
    /// A tensor of all experts, which are its first dimension.
    Experts,
    /// A tensor of a matrix: the name of the matrix, and the rest of its own name.
    Matrix { rule: Rule, stem: &'a str, part: &'a str },
}

/// A row of the table.
struct Row {
    /// The names before that of the matrix, of which one must be there.
    parents: &'static [&'static str],
    /// The names of the matrices.
    names: &'static [&'static str],
    rule: Rule,
    /// The values of `model_type` for which the row holds; empty: all.
    of: &'static [&'static str],
}

const ATTENTION: &[&str] =
    &["self_attn", "attn", "attention", "self_attention", "cross_attn", "encoder_attn"];
const MLP: &[&str] = &["mlp", "feed_forward", "ffn", "shared_expert", "shared_experts", "shared_mlp", "mlps"];
const QKV: Rule = Rule::Joined(&[Unit::Heads, Unit::KvHeads, Unit::KvHeads]);
const GATE_UP: Rule = Rule::Joined(&[Unit::Any, Unit::Any]);

/// A row for all architectures.
const fn row(parents: &'static [&'static str], names: &'static [&'static str], rule: Rule) -> Row {
    Row { parents, names, rule, of: &[] }
}

/// Matrices of layers. The first row that matches counts.
const LAYERS: [Row; 25] = [
    // Llama, mistral, mixtral, qwen2, qwen3, gemma, phi, olmo, cohere, granite, starcoder2, glm4, gpt-oss; deepseek's MLA.
    row(ATTENTION, &["q_proj", "wq", "q_b_proj", "kv_b_proj", "sinks"], Rule::Column(Unit::Heads)),
    // Gates of heads.
    row(ATTENTION, &["gate_proj", "g_proj", "q_gate_proj"], Rule::Column(Unit::Heads)),
    row(ATTENTION, &["k_proj", "v_proj", "wk", "wv"], Rule::Column(Unit::KvHeads)),
    row(ATTENTION, &["o_proj", "wo", "out_proj", "dense"], Rule::Row(Unit::Heads)),
    // Baichuan, which has as many heads of keys as of queries.
    row(ATTENTION, &["W_pack"], QKV),
    Row {
        parents: ATTENTION,
        names: &["qkv_proj"],
        rule: QKV,
        of: &["phi3", "phi3_v", "phi4mm", "phi4_multimodal"],
    },
    // The query, the key and the value of a head lie together, or those of a group.
    Row {
        parents: ATTENTION,
        names: &["query_key_value"],
        rule: Rule::Column(Unit::Heads),
        of: &["gpt_neox", "bloom", "falcon", "chatglm_heads", "chatglm_first"],
    },
    Row {
        parents: ATTENTION,
        names: &["c_attn"],
        rule: Rule::Column(Unit::Heads),
        of: &["gpt_bigcode_heads"],
    },
    Row {
        parents: ATTENTION,
        names: &["query_key_value"],
        rule: Rule::Column(Unit::Groups),
        of: &["falcon_groups"],
    },
    Row {
        parents: ATTENTION,
        names: &["wqkv"],
        rule: Rule::Column(Unit::Groups),
        of: &["internlm2", "internlm3"],
    },
    Row { parents: ATTENTION, names: &["query_key_value"], rule: QKV, of: &["chatglm", "falcon_one"] },
    Row { parents: ATTENTION, names: &["c_attn"], rule: QKV, of: &["qwen", "gpt_bigcode"] },
    Row { parents: ATTENTION, names: &["Wqkv"], rule: QKV, of: &["mpt", "dbrx"] },
    Row {
        parents: ATTENTION,
        names: &["c_proj"],
        rule: Rule::Row(Unit::Heads),
        of: &["qwen", "gpt_bigcode", "gpt_bigcode_heads"],
    },
    // Qwen 1 names both inputs by numbers.
    Row { parents: &["mlp"], names: &["w1", "w2"], rule: Rule::Column(Unit::Any), of: &["qwen"] },
    row(MLP, &["gate_proj", "up_proj", "w1", "w3", "fc1", "fc_in"], Rule::Column(Unit::Any)),
    row(&["layers"], &["fc1"], Rule::Column(Unit::Any)),
    row(&["layers"], &["fc2"], Rule::Row(Unit::Any)),
    row(MLP, &["down_proj", "w2", "fc2", "fc_out", "dense_4h_to_h"], Rule::Row(Unit::Any)),
    row(MLP, &["gate_up_proj"], GATE_UP),
    row(&["shared_mlp"], &["input_linear"], GATE_UP),
    row(&["shared_mlp"], &["output_linear"], Rule::Row(Unit::Any)),
    Row { parents: MLP, names: &["dense_h_to_4h"], rule: GATE_UP, of: &["chatglm", "chatglm_heads"] },
    Row {
        parents: MLP,
        names: &["dense_h_to_4h", "c_fc"],
        rule: Rule::Column(Unit::Any),
        of: &[
            "gpt_neox",
            "bloom",
            "falcon",
            "falcon_groups",
            "falcon_one",
            "starcoder2",
            "gpt_bigcode",
            "gpt_bigcode_heads",
            "chatglm_first",
        ],
    },
    Row {
        parents: MLP,
        names: &["c_proj"],
        rule: Rule::Row(Unit::Any),
        of: &["qwen", "starcoder2", "gpt_bigcode", "gpt_bigcode_heads"],
    },
];

/// Names of matrices that some architectures join or transpose. Those without a row above are not split.
const UNKNOWN: [&str; 9] =
    ["qkv_proj", "query_key_value", "wqkv", "c_attn", "Wqkv", "qkv", "dense_h_to_4h", "c_fc", "c_proj"];

/// The names of embeddings and of output matrices, which the ranks share by words.
const VOCABULARY: [&str; 8] = [
    "embed_tokens",
    "lm_head",
    "tok_embeddings",
    "embed_in",
    "embed_out",
    "word_embeddings",
    "output_layer",
    "shared_head.head",
];

/// Names that are output matrices only at the top.
const VOCABULARY_AT_TOP: [&str; 1] = ["output"];

/// Words that are in a part of the name of a tensor outside the language model. Such tensors are whole.
const OTHER_TOWERS: [&str; 6] = ["vision", "visual", "audio", "image", "speech", "projector"];
/// Whole parts of the names of such tensors.
const OTHER_PARTS: [&str; 7] = ["vit", "clip", "talker", "token2wav", "code2wav", "encoder", "embeddings"];
/// The only language models whose layers are below the name `encoder` begin with this.
const ENCODER: &str = "chatglm";

/// Names of matrices of all experts, whose first dimension they are, without the word `experts`.
const STACKED: [&str; 2] = ["block_sparse_moe.input_linear", "block_sparse_moe.output_linear"];

/// The place of a tensor with so many dimensions in a model of a type. `None` for one that is whole in each rank.
pub(super) fn find<'a>(name: &'a str, dimensions: usize, model_type: &str) -> Option<Place<'a>> {
    let words: Vec<&str> = name.split('.').collect();
    let is_other = |word: &&str| {
        let is_part = OTHER_PARTS.contains(word) && !(*word == "encoder" && model_type.starts_with(ENCODER));
        is_part || OTHER_TOWERS.iter().any(|tower| word.contains(tower))
    };
    if words.iter().any(is_other) {
        return None;
    }
    if let Some(at) = words.iter().position(|word| *word == "experts") {
        let word = words.get(at + 1)?;
        let Some(index) = number(word) else { return Some(Place::Experts) };
        let begin = words.iter().take(at + 1).map(|word| word.len() + 1).sum::<usize>();
        let (before, rest) = name.split_at_checked(begin)?;
        return Some(Place::Expert(Expert { before, index, after: rest.get(word.len()..)? }));
    }
    if dimensions == 3 && STACKED.iter().any(|stacked| name.contains(stacked)) {
        return Some(Place::Experts);
    }
    // The end of the name of each matrix that the tensor may belong to, the longest first.
    let mut end = name.len();
    for (at, word) in words.iter().enumerate().rev() {
        let (stem, part) = (name.get(..end)?, name.get(end + 1..).unwrap_or_default());
        // The layers of some architectures have several matrices of a name.
        let parent = words.iter().take(at).rev().find(|word| number(word).is_none());
        let parent = parent.copied().unwrap_or_default();
        let is_in_layer = words.iter().take(at).any(|word| number(word).is_some());
        if let Some(rule) = rule(word, parent, is_in_layer, model_type) {
            return Some(Place::Matrix { rule, stem, part });
        }
        end = end.saturating_sub(word.len() + 1);
    }
    None
}

fn rule(name: &str, parent: &str, is_in_layer: bool, model_type: &str) -> Option<Rule> {
    let is_one = |known: &&str| match known.split_once('.') {
        Some((above, known)) => above == parent && known == name,
        None => *known == name,
    };
    let is_at_top = parent.is_empty() && VOCABULARY_AT_TOP.contains(&name);
    if is_at_top || VOCABULARY.iter().any(is_one) {
        return Some(Rule::Column(Unit::Any));
    }
    let matches = |row: &&Row| {
        row.names.contains(&name)
            && row.parents.contains(&parent)
            && (row.of.is_empty() || row.of.contains(&model_type))
    };
    let known = LAYERS.iter().filter(|_| is_in_layer).find(matches).map(|row| row.rule);
    let is_unknown =
        is_in_layer && UNKNOWN.contains(&name) && (ATTENTION.contains(&parent) || MLP.contains(&parent));
    known.or_else(|| is_unknown.then_some(Rule::Unknown))
}

/// Whether a tensor belongs to an adapter of a matrix.
pub(super) fn is_of_adapter(name: &str) -> bool {
    name.split('.').any(|word| word.starts_with("lora_"))
}

fn number(word: &str) -> Option<u64> {
    let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { word.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::{Expert, Place, Rule, Unit, find};

    /// Endings of names that transformers splits although each rank of vLLM has the whole, or that no other
    /// architecture has.
    const WHOLE_HERE: [&str; 15] = [
        "linear_attn.",
        ".down_embed",
        ".up_embed",
        ".router_gate",
        "_expert_proj",
        "input_mix_weight_down",
        "ple.ple_embedding",
        ".index_qk_proj",
        ".dt_proj",
        ".gate_bias",
        "output_projection.",
        "attn.proj",
        "wte",
        "embeddings",
        "multi_modal_projector.",
    ];

    #[test]
    fn the_table_agrees_with_the_plans_of_transformers() {
        let plans = include_str!("../../../../tests/golden/tensor_parallel_plans.txt");
        let mut seen = 0;
        for line in plans.lines().filter(|line| !line.starts_with('#')) {
            let [model_type, pattern, plan] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            // The ranks share the words of every architecture.
            let is_vocabulary = plan == "replicate";
            if model_type == "codegen"
                || is_vocabulary
                || WHOLE_HERE.iter().any(|other| pattern.contains(other))
            {
                continue;
            }
            let name = format!("model.{}.weight", pattern.replace('*', "0"));
            let rule = match find(&name, 2, model_type) {
                Some(Place::Experts) => {
                    assert!(pattern.contains(".experts"), "{line}");
                    continue;
                }
                Some(Place::Matrix { rule, part: "weight", .. }) => Some(rule),
                None => None,
                other => panic!("{line}: {other:?}"),
            };
            let is_right = match plan.split_once('_').map_or(plan, |(first, _)| first) {
                "colwise" | "embedding" => matches!(rule, Some(Rule::Column(_) | Rule::Joined(_))),
                "rowwise" => matches!(rule, Some(Rule::Row(_))),
                _ => rule.is_none(),
            };
            assert!(is_right, "{line}: {rule:?}");
            seen += 1;
        }
        assert!(seen > 900, "{seen}");
    }

    #[test]
    fn names_of_other_checkpoints_have_their_places() {
        let column = |unit| Some(Rule::Column(unit));
        let qkv = Some(Rule::Joined(&[Unit::Heads, Unit::KvHeads, Unit::KvHeads]));
        let cases = [
            ("llama", "layers.0.attention.wq.weight", column(Unit::Heads)),
            ("llama", "layers.0.attention.wv.weight", column(Unit::KvHeads)),
            ("llama", "layers.0.feed_forward.w2.weight", Some(Rule::Row(Unit::Any))),
            ("llama", "tok_embeddings.weight", column(Unit::Any)),
            ("llama", "output.weight", column(Unit::Any)),
            ("llama", "model.output.weight", None),
            ("llama", "lm_head.weight", column(Unit::Any)),
            ("llama", "model.norm.weight", None),
            ("llama", "model.layers.0.input_layernorm.weight", None),
            ("qwen3", "model.layers.0.self_attn.q_norm.weight", None),
            ("deepseek_v3", "model.layers.0.self_attn.q_a_proj.weight", None),
            ("deepseek_v3", "model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv", None),
            ("deepseek_v3", "model.layers.3.mlp.gate.e_score_correction_bias", None),
            ("deepseek_v3", "model.layers.3.mlp.shared_experts.down_proj.weight", Some(Rule::Row(Unit::Any))),
            ("deepseek_v3", "model.layers.61.shared_head.head.weight", column(Unit::Any)),
            ("deepseek_v3", "model.layers.61.embed_tokens.weight", column(Unit::Any)),
            ("gpt_oss", "model.layers.0.self_attn.sinks", column(Unit::Heads)),
            ("gpt_oss", "model.layers.0.mlp.router.weight", None),
            ("gemma3", "language_model.model.layers.0.self_attn.k_proj.weight", column(Unit::KvHeads)),
            ("gemma3", "vision_tower.vision_model.encoder.layers.0.self_attn.k_proj.weight", None),
            ("qwen2_vl", "visual.blocks.0.mlp.fc1.weight", None),
            ("phi3", "model.layers.0.self_attn.qkv_proj.weight", qkv),
            ("other", "model.layers.0.self_attn.qkv_proj.weight", Some(Rule::Unknown)),
            ("gpt2", "h.0.attn.c_attn.weight", Some(Rule::Unknown)),
            ("falcon_groups", "transformer.h.0.self_attention.query_key_value.weight", column(Unit::Groups)),
            ("falcon_one", "transformer.h.0.self_attention.query_key_value.weight", qkv),
            ("bloom", "h.0.self_attention.query_key_value.bias", column(Unit::Heads)),
            ("chatglm", "transformer.encoder.layers.0.self_attention.query_key_value.weight", qkv),
            (
                "chatglm_heads",
                "transformer.encoder.layers.0.self_attention.query_key_value.bias",
                column(Unit::Heads),
            ),
            ("chatglm_first", "transformer.layers.0.attention.query_key_value.weight", column(Unit::Heads)),
            ("chatglm_first", "transformer.layers.0.mlp.dense_h_to_4h.weight", column(Unit::Any)),
            ("chatglm_other", "transformer.layers.0.attention.query_key_value.weight", Some(Rule::Unknown)),
            ("chatglm_other", "transformer.layers.0.mlp.dense_h_to_4h.weight", Some(Rule::Unknown)),
            ("gpt_bigcode", "transformer.h.0.attn.c_attn.weight", qkv),
            ("gpt_bigcode_heads", "transformer.h.0.attn.c_attn.weight", column(Unit::Heads)),
            ("gpt_bigcode_heads", "transformer.h.0.attn.c_proj.weight", Some(Rule::Row(Unit::Heads))),
            ("gpt_bigcode_heads", "transformer.h.0.mlp.c_fc.weight", column(Unit::Any)),
            ("gpt_bigcode_heads", "transformer.h.0.mlp.c_proj.weight", Some(Rule::Row(Unit::Any))),
            ("internlm2", "model.layers.0.attention.wqkv.weight", column(Unit::Groups)),
            ("opt", "model.decoder.layers.0.fc2.weight", Some(Rule::Row(Unit::Any))),
            ("bert", "bert.encoder.layer.0.attention.self.query.weight", None),
            ("bert", "bert.embeddings.word_embeddings.weight", None),
        ];
        for (model_type, name, wanted) in cases {
            let found = match find(name, 2, model_type) {
                Some(Place::Matrix { rule, .. }) => Some(rule),
                None => None,
                other => panic!("{name}: {other:?}"),
            };
            assert_eq!(found, wanted, "{name}");
        }
        let experts = [
            (
                "a.block_sparse_moe.experts.7.w1.weight",
                Place::Expert(Expert {
                    before: "a.block_sparse_moe.experts.",
                    index: 7,
                    after: ".w1.weight",
                }),
            ),
            ("experts.12", Place::Expert(Expert { before: "experts.", index: 12, after: "" })),
            ("model.layers.0.mlp.experts.gate_up_proj_blocks", Place::Experts),
            ("transformer.blocks.0.ffn.experts.mlp.w1", Place::Experts),
            ("model.layers.0.block_sparse_moe.input_linear.weight", Place::Experts),
        ];
        for (name, wanted) in experts {
            assert_eq!(find(name, 3, "any"), Some(wanted), "{name}");
        }
        for name in
            ["", ".", "..", "experts", "a.experts", "0.0.0", "model..self_attn.q_proj", "\u{e9}.q_proj"]
        {
            assert!(!matches!(find(name, 2, ""), Some(Place::Matrix { .. })), "{name}");
        }
    }
}
