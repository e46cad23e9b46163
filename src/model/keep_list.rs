//! Tells by its name whether a tensor is on the list of those that stay exact.
//!
//! An entry of the list is one word or several in a row. The words of a name are its parts between `.`, `_`, `-`, `/` (or
//! another character that is not a letter or digit) and changes of case, without the digits at their ends: `LayerNorm1` has
//! `layer` and `norm`. A word of an entry matches itself and its plural, ignoring case.
//!
//! The entry `gate` means routers. The gate projection of an MLP is one of its large matrices, so that word does not
//! match there: [`is_projection`].

/// The list of a new store: tensors that model quantizers usually leave alone. The entries after `ssm_a` are small matrices
/// of single architectures. Source: `tensor_allows_quantization` in `llama-quant.cpp` of llama.cpp.
pub const KEEP: [&str; 39] = [
    "norm",
    "layernorm",
    "ln",
    "scale",
    "bias",
    "router",
    "gate",
    "embed",
    "embedding",
    "embedder",
    "embd",
    "emb.weight",
    "wte",
    "wpe",
    "shared.weight",
    "lm_head",
    "A_log",
    "ssm_a",
    "token_types",
    "conv1d",
    "shortconv.conv",
    "conv.conv",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "per_layer_model_projection",
    "indexer.k_proj",
    "indexer.q_proj",
    "time_mix_first",
    "time_mix_w",
    "time_mix_v",
    "time_mix_a",
    "time_mix_g",
    "time_mix_decay_w",
    "time_mix_lerp_fused",
    "attn_rel_b",
    "rel_pos",
    "patch_merger",
    "codebook",
];

/// A word that a router's name has after `gate`.
const OF_ROUTERS: &str = "inp";
/// Words after `gate` in the name of a projection.
const OF_PROJECTIONS: [&str; 10] =
    ["proj", "projection", "up", "down", "exp", "shexp", "chexp", "linear", "fc", "einsum"];
/// Words before `gate` in the same part of the name of a projection.
const BEFORE_PROJECTIONS: [&str; 9] = ["ffn", "mlp", "ff", "forward", "up", "w", "wi", "fc", "mix"];
/// The same, also in the part before.
const ATTENTIONS: [&str; 4] = ["att", "attn", "attention", "ssm"];

/// Whether an entry of `list` matches the name.
pub fn keeps(list: &[String], name: &str) -> bool {
    let words: Vec<Word> = parts(name).enumerate().flat_map(|(part, text)| words_of(part, text)).collect();
    list.iter().any(|entry| {
        let entry: Vec<Word> = words_of(0, entry).collect();
        let is_match = |at: usize| words.get(at..).is_some_and(|words| begins(words, &entry));
        match entry.as_slice() {
            [] => false,
            [gate] if gate.is("gate") => {
                (0..words.len()).any(|at| is_match(at) && !is_projection(&words, at))
            }
            _ => (0..words.len()).any(is_match),
        }
    })
}

/// A word in lower case, with the number of its part of the name.
struct Word {
    part: usize,
    text: String,
}

impl Word {
    /// Whether it is this word, or its plural.
    fn is(&self, word: &str) -> bool {
        self.text.strip_prefix(word).is_some_and(|rest| matches!(rest, "" | "s" | "es"))
    }

    fn is_one_of(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.is(word))
    }
}

/// The parts of a name between dots, slashes and colons.
fn parts(name: &str) -> impl Iterator<Item = &str> {
    name.split(['.', '/', ':'])
}

/// The words of a part.
fn words_of(part: usize, text: &str) -> impl Iterator<Item = Word> {
    let mut words: Vec<String> = Vec::new();
    for piece in text.split(|letter: char| !letter.is_alphanumeric()) {
        let letters: Vec<char> = piece.chars().collect();
        let mut word = String::new();
        for (at, letter) in letters.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|at| letters.get(at));
            let is_first = letter.is_uppercase()
                && before.is_some_and(|before| {
                    !before.is_uppercase() || letters.get(at + 1).is_some_and(|next| next.is_lowercase())
                });
            if is_first {
                words.push(std::mem::take(&mut word));
            }
            word.extend(letter.to_lowercase());
        }
        words.push(word);
    }
    words
        .into_iter()
        .filter(|word| !word.is_empty())
        .map(move |word| Word { part, text: without_number(word) })
}

/// A word without the digits at its end, unless it has nothing else.
fn without_number(mut word: String) -> String {
    let end = word.trim_end_matches(|digit: char| digit.is_ascii_digit()).len();
    if end > 0 {
        word.truncate(end);
    }
    word
}

fn begins(words: &[Word], entry: &[Word]) -> bool {
    words.len() >= entry.len() && words.iter().zip(entry).all(|(word, entry)| word.is(&entry.text))
}

/// Whether the word `gate` at this place is that of a projection of an MLP or of an attention: `gate_proj`, `ffn_gate`,
/// `experts.0.gate`, rather than `mlp.gate`, `shared_expert_gate`, `ffn_gate_inp`.
fn is_projection(words: &[Word], at: usize) -> bool {
    let (before, after) = words.split_at_checked(at).unwrap_or_default();
    let Some((gate, after)) = after.split_first() else { return false };
    if after.first().is_some_and(|next| next.is(OF_ROUTERS)) {
        return false;
    }
    let neighbour = before.last().filter(|word| word.part == gate.part);
    let is_of_expert = before.iter().enumerate().any(|(at, word)| {
        let is_last = before.get(at + 1).is_none_or(|next| next.part != word.part);
        word.part < gate.part && word.is("expert") && is_last
    });
    is_of_expert
        || after.iter().any(|word| word.is_one_of(&OF_PROJECTIONS))
        || neighbour.is_some_and(|word| word.is_one_of(&BEFORE_PROJECTIONS))
        || before.last().is_some_and(|word| word.is_one_of(&ATTENTIONS))
}

#[cfg(test)]
mod tests {
    use super::{KEEP, keeps};

    fn is_kept(name: &str) -> bool {
        keeps(&KEEP.map(str::to_owned), name)
    }

    #[test]
    fn norms_routers_and_embeddings_of_common_models_are_kept() {
        for name in [
            // Llama, Qwen, Mistral, Gemma, Phi-3.
            "model.embed_tokens.weight",
            "model.layers.0.input_layernorm.weight",
            "model.layers.0.post_attention_layernorm.weight",
            "model.layers.0.self_attn.q_norm.weight",
            "model.layers.0.self_attn.q_proj.bias",
            "model.norm.weight",
            "lm_head.weight",
            "tok_embeddings.weight",
            // Qwen2, Qwen3, DeepSeek, Mixtral, gpt-oss, Switch, DBRX, Jamba, Hunyuan, Llama 4.
            "model.layers.0.mlp.gate.weight",
            "model.layers.0.mlp.gate.e_score_correction_bias",
            "model.layers.0.mlp.shared_expert_gate.weight",
            "model.layers.0.block_sparse_moe.gate.weight",
            "model.layers.0.mlp.router.weight",
            "model.layers.0.mlp.experts.gate_up_proj_bias",
            "encoder.block.1.layer.1.mlp.router.classifier.weight",
            "transformer.blocks.0.ffn.router.layer.weight",
            "model.layers.0.feed_forward.router.weight",
            "model.layers.0.mlp.gate.wg.weight",
            "moe_gate.weight",
            "router.gate",
            // BERT, T5, Whisper, CLIP, ViT, GPT-2, Mamba, RWKV.
            "bert.embeddings.LayerNorm.weight",
            "bert.embeddings.word_embeddings.weight",
            "shared.weight",
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            "model.decoder.embed_positions.weight",
            "text_model.embeddings.token_embedding.weight",
            "positional_embedding",
            "vision_model.embeddings.patch_embedding.weight",
            "pos_embed",
            "wte.weight",
            "transformer.wpe.weight",
            "backbone.embeddings.weight",
            "backbone.layers.0.mixer.norm.weight",
            "backbone.layers.0.mixer.A_log",
            "blk.0.ssm_a",
            "emb.weight",
            "blocks.0.ln1.weight",
            // U-Nets and transformers of images.
            "down_blocks.0.attentions.0.transformer_blocks.0.norm1.weight",
            "time_embedding.linear_1.weight",
            "x_embedder.weight",
            "transformer_blocks.0.norm1.linear.weight",
            // GGUF.
            "token_embd.weight",
            "position_embd.weight",
            "output_norm.weight",
            "blk.0.attn_norm.weight",
            "blk.0.attn_q_norm.weight",
            "blk.0.ffn_gate_inp.weight",
            "blk.0.ffn_gate_inp_shexp.weight",
            "blk.0.attn_q.bias",
            "blk.0.exp_probs_b.bias",
            "blk.0.ssm_conv1d.weight",
            "blk.0.ssm_conv1d_q.weight",
            "blk.0.shortconv.conv.weight",
            "blk.0.altup_proj.weight",
            "blk.0.laurel_l.weight",
            "per_layer_model_proj.weight",
            "blk.0.indexer.k_proj.weight",
            "blk.0.time_mix_w1.weight",
            "blk.0.time_mix_decay_w2.weight",
            "blk.0.time_mix_lerp_fused.weight",
            "enc.blk.0.attn_rel_b.weight",
            "v.patch_embd.weight",
            "v.patch_merger.weight",
            "token_types.weight",
            "a.rvq.codebook.weight",
            "backbone.layers.0.mixer.conv1d.weight",
            "model.layers.0.linear_attn.conv1d.weight",
            "model.layers.0.conv.conv.weight",
            // Scales.
            "l.weight_scale_inv",
            "l.scales",
            "l.scales_and_zeros",
            "l.weight_scale",
        ] {
            assert!(is_kept(name), "{name}");
        }
    }

    #[test]
    fn projections_and_words_that_contain_others_are_not_kept() {
        for name in [
            "model.layers.0.mlp.gate_proj.weight",
            "model.layers.0.mlp.gate_up_proj.weight",
            "model.layers.0.mlp.up_gate_proj.weight",
            "model.layers.0.mlp.gate_and_up_proj.weight",
            "model.layers.0.mlp.experts.0.gate_proj.weight",
            "model.layers.0.mlp.experts.gate_up_proj",
            "model.layers.0.mlp.experts.0.gate.weight",
            "model.layers.0.mlp.shared_experts.gate_proj.weight",
            "model.layers.0.mlp.shared_expert.gate_proj.weight",
            "model.layers.0.mlp.shared_mlp.gate_and_up_proj.weight",
            "model.layers.0.block_sparse_moe.experts.0.w1.weight",
            "model.layers.0.mlp.gate_projs.0.weight",
            "model.layers.0.self_attn.gate_proj.weight",
            "layers.0.mlp.gateProj.weight",
            "layers.0.mlp.w_gate.weight",
            "layers.0.mlp_gate.weight",
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.self_attn.kv_a_proj_with_mqa.weight",
            "encoder.layer.0.output.dense.weight",
            "encoder.block.0.layer.1.DenseReluDense.wi_0.weight",
            "encoder.layers.0.fc1.weight",
            "transformer.h.0.attn.c_attn.weight",
            "backbone.layers.0.mixer.in_proj.weight",
            "blocks.0.att.gate.weight",
            "down_blocks.0.resnets.0.conv1.weight",
            "down_blocks.0.resnets.0.time_emb_proj.weight",
            "upscale.conv.weight",
            "model.aggregate.weight",
            "model.investigate.unbiased.weight",
            "model.denormalize.weight",
            "blk.0.ffn_gate.weight",
            "blk.0.ffn_gate_exps.weight",
            "blk.0.ffn_gate_shexp.weight",
            "blk.0.ffn_gate_up_exps.weight",
            "blk.0.ffn_up.weight",
            "blk.0.attn_gate.weight",
            "blk.0.time_mix_key.weight",
            "blk.0.time_mix_value.weight",
            "blk.0.time_mix_gate.weight",
            "blk.0.indexer.attn_k.weight",
            "blk.0.ssm_in.weight",
            "model.layers.0.self_attn.indexer.wq_b.weight",
            "encoder.conv1.weight",
            "output.weight",
        ] {
            assert!(!is_kept(name), "{name}");
        }
    }

    #[test]
    fn entries_of_several_words_match_them_in_a_row() {
        let keeps = |entry: &str, name: &str| keeps(&[entry.to_owned()], name);
        assert!(keeps("lm_head", "model.lm_head.weight") && keeps("lmHead", "lm.head"));
        assert!(!keeps("lm_head", "lm.q.head") && !keeps("lm_head", "film_head"));
        assert!(keeps("gate_proj", "mlp.gate_proj.weight") && keeps("ffn_gate", "blk.0.ffn_gate.weight"));
        assert!(keeps("mlp", "layers.0.mlp.gate_proj.weight") && keeps("RMSNorm", "rms_norm.weight"));
        assert!(keeps("expert", "experts.0.w1") && !keeps("experts", "expert.0.w1"));
        assert!(keeps("layers.0", "model.layers.0.w") && !keeps("layers.0", "model.layers.10.w"));
        assert!(!keeps("", "a") && !keeps("._", "a.b") && !keeps("a", ""));
    }
}
