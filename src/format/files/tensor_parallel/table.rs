//! The matrices of known architectures by their names, and how ranks share them.
//!
//! Sources: `base_model_tp_plan` of the models of transformers 4.57 and 5, and the layers of the same models in vLLM
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
}

/// The place of a tensor in a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place<'a> {
    /// A tensor of one expert.
    Expert(u64),
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
const MLP: &[&str] = &["mlp", "feed_forward", "ffn", "shared_expert", "shared_experts", "shared_mlp"];
const QKV: Rule = Rule::Joined(&[Unit::Heads, Unit::KvHeads, Unit::KvHeads]);
const GATE_UP: Rule = Rule::Joined(&[Unit::Any, Unit::Any]);

/// A row for all architectures.
const fn row(parents: &'static [&'static str], names: &'static [&'static str], rule: Rule) -> Row {
    Row { parents, names, rule, of: &[] }
}

/// Matrices of layers. The first row that matches counts.
const LAYERS: [Row; 20] = [
    // Llama, mistral, mixtral, qwen2, qwen3, gemma, phi, olmo, cohere, granite, starcoder2, glm4, gpt-oss; deepseek's MLA.
    row(ATTENTION, &["q_proj", "wq", "q_b_proj", "kv_b_proj", "sinks"], Rule::Column(Unit::Heads)),
    row(ATTENTION, &["k_proj", "v_proj", "wk", "wv"], Rule::Column(Unit::KvHeads)),
    row(ATTENTION, &["o_proj", "wo", "out_proj", "dense"], Rule::Row(Unit::Heads)),
    // Phi-3; Baichuan, all of which have as many heads of keys.
    row(ATTENTION, &["qkv_proj", "W_pack"], QKV),
    // The heads of a group lie together.
    Row {
        parents: ATTENTION,
        names: &["query_key_value"],
        rule: Rule::Column(Unit::Heads),
        of: &["gpt_neox", "bloom", "falcon"],
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
        of: &["qwen", "gpt_bigcode"],
    },
    // Qwen 1 names both inputs by numbers.
    Row { parents: &["mlp"], names: &["w1", "w2"], rule: Rule::Column(Unit::Any), of: &["qwen"] },
    row(MLP, &["gate_proj", "up_proj", "w1", "w3", "fc1"], Rule::Column(Unit::Any)),
    row(MLP, &["down_proj", "w2", "fc2", "dense_4h_to_h"], Rule::Row(Unit::Any)),
    row(MLP, &["gate_up_proj"], GATE_UP),
    row(&["shared_mlp"], &["input_linear"], GATE_UP),
    row(&["shared_mlp"], &["output_linear"], Rule::Row(Unit::Any)),
    Row { parents: MLP, names: &["dense_h_to_4h"], rule: GATE_UP, of: &["chatglm"] },
    Row {
        parents: MLP,
        names: &["dense_h_to_4h", "c_fc"],
        rule: Rule::Column(Unit::Any),
        of: &["gpt_neox", "bloom", "falcon", "falcon_groups", "falcon_one", "starcoder2", "gpt_bigcode"],
    },
    Row {
        parents: MLP,
        names: &["c_proj"],
        rule: Rule::Row(Unit::Any),
        of: &["qwen", "starcoder2", "gpt_bigcode"],
    },
];

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

/// Words in the names of parts that are no language model. They are whole.
const OTHER_TOWERS: [&str; 6] = ["vision", "visual", "audio", "image", "speech", "projector"];
/// The same, as whole names.
const OTHER_PARTS: [&str; 7] = ["vit", "clip", "talker", "token2wav", "code2wav", "encoder", "embeddings"];
/// The only language model whose layers are below the name `encoder`.
const ENCODER: &str = "chatglm";

/// Names of matrices of all experts, whose first dimension they are, without the word `experts`.
const STACKED: [&str; 2] = ["block_sparse_moe.input_linear", "block_sparse_moe.output_linear"];

/// The place of a tensor with so many dimensions in a model of a type. `None` for one that is whole in each rank.
pub(super) fn find<'a>(name: &'a str, dimensions: usize, model_type: &str) -> Option<Place<'a>> {
    let words: Vec<&str> = name.split('.').collect();
    let is_other = |word: &&str| {
        let is_part = OTHER_PARTS.contains(word) && !(*word == "encoder" && model_type == ENCODER);
        is_part || OTHER_TOWERS.iter().any(|tower| word.contains(tower))
    };
    if words.iter().any(is_other) {
        return None;
    }
    if let Some(at) = words.iter().position(|word| *word == "experts") {
        return match words.get(at + 1).map(|word| number(word)) {
            Some(Some(index)) => Some(Place::Expert(index)),
            Some(None) => Some(Place::Experts),
            None => None,
        };
    }
    if dimensions == 3 && STACKED.iter().any(|stacked| name.contains(stacked)) {
        return Some(Place::Experts);
    }
    // The end of the name of each matrix that the tensor may belong to, the longest first.
    let mut end = name.len();
    for (at, word) in words.iter().enumerate().rev() {
        let (stem, part) = (name.get(..end)?, name.get(end + 1..).unwrap_or_default());
        let parent = at.checked_sub(1).and_then(|at| words.get(at)).copied().unwrap_or_default();
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
    if is_at_top || VOCABULARY.iter().any(|known| is_one(known)) {
        return Some(Rule::Column(Unit::Any));
    }
    // Some architectures have the matrices of the MLP in the layer itself.
    let is_of_layer = number(parent).is_some() && matches!(name, "fc1" | "fc2");
    let matches = |row: &&Row| {
        row.names.contains(&name)
            && (row.parents.contains(&parent) || is_of_layer)
            && (row.of.is_empty() || row.of.contains(&model_type))
    };
    LAYERS.iter().filter(|_| is_in_layer).find(matches).map(|row| row.rule)
}

/// Whether a tensor belongs to an adapter of a matrix.
pub(super) fn is_of_adapter(name: &str) -> bool {
    name.split('.').any(|word| word.starts_with("lora_"))
}

fn number(word: &str) -> Option<u64> {
    let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { word.parse().ok() } else { None }
}
