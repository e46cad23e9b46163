//! The files that describe a model of the hub: `config.json`, then after a zero byte `tokenizer.json`.

use tierfs::format::files::hub::{
    CONFIG_NAME, ElementType, Files, Source, SourceTensor, lay_out, pooling_directory,
};
use tierfs::format::files::quantization_config::{self, is_quantized};
use tierfs::model::{Dtype, Shape};

/// The tensors of the models, those of several architectures.
const TENSORS: [(&str, &[u64]); 12] = [
    ("embeddings.LayerNorm.bias", &[4]),
    ("embeddings.LayerNorm.weight", &[4]),
    ("embeddings.position_embeddings.weight", &[8, 4]),
    ("embeddings.token_type_embeddings.weight", &[2, 4]),
    ("embeddings.word_embeddings.weight", &[3, 4]),
    ("model.embed_tokens.weight", &[3, 4]),
    ("model.layers.0.input_layernorm.weight", &[4]),
    ("model.layers.0.mlp.up_proj.weight", &[8, 4]),
    ("model.layers.0.self_attn.k_proj.weight", &[2, 4]),
    ("model.layers.0.self_attn.q_proj.weight", &[4, 4]),
    ("model.norm.weight", &[4]),
    ("lm_head.weight", &[3, 4]),
];

pub fn check(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let (config, tokenizer) = (parts.next().unwrap_or_default(), parts.next());
    if let Some(name) = pooling_directory(config) {
        assert!(!name.is_empty() && !name.contains('/'), "{name:?}");
    }
    quantization(config);
    let mut files = Files::default();
    files.named.insert(CONFIG_NAME, config.to_vec());
    if let Some(tokenizer) = tokenizer {
        files.named.insert("tokenizer.json", tokenizer.to_vec());
    }
    let tensors = TENSORS.map(|(name, sizes)| SourceTensor {
        name: name.to_owned(),
        dtype: Dtype::F32,
        shape: Shape::new(sizes).unwrap_or_default(),
    });
    for element_type in [ElementType::Automatic, ElementType::Q8_0, ElementType::Q4_0] {
        let Ok(layout) = lay_out(&files, &tensors, "model", element_type) else { continue };
        assert!(layout.header.starts_with(b"GGUF"));
        assert!(layout.header.len() <= 64 * bytes.len() + 65_536, "{} bytes", layout.header.len());
        for tensor in &layout.tensors {
            match &tensor.source {
                Source::Tensor(place) => assert!(*place < tensors.len(), "{place}"),
                Source::Literal(made) => assert_eq!(made.len() as u64, tensor.bytes),
            }
        }
    }
}

/// The configuration that a cast shows has no codes.
fn quantization(config: &[u8]) {
    quantization_config::Config::parse(config);
    if let Ok(Some(without)) = quantization_config::without(config, Dtype::F32) {
        assert!(!is_quantized(&without), "{}", String::from_utf8_lossy(&without));
    }
}
