//! A model directory of the Hugging Face hub as a GGUF file for llama.cpp: the header, and for each tensor the bytes that it is
//! made of. Nothing here reads files or numbers of tensors.
//!
//! 1. `config.rs` reads `config.json` with the values that transformers assumes where a key is missing.
//! 2. `architecture/` has one table for each architecture: names of tensors, their shapes, hyperparameters.
//! 3. `tokenizer/` reads `tokenizer.json`, `tokenizer.model` and the files beside them.
//! 4. `metadata.rs` makes `general.*`, of the configuration, the model card and the name of the directory.
//! 5. `layout.rs` puts these together; `entries.rs` writes the bytes.
//!
//! The file equals, byte for byte, that of `convert_hf_to_gguf.py` of llama.cpp as the source package llama-cpp-python
//! [`CONVERTER`] has it, with transformers 5.24. To add an architecture: a file in `architecture/`, a line in
//! `architecture/mod.rs`, a model in `tests/golden/gguf_models/make.py`.

mod architecture;
mod config;
mod entries;
mod hyperparameters;
mod layout;
mod metadata;
mod model_card;
mod model_name;
mod rotary;
mod tokenizer;

pub use layout::{ElementType, Layout, Source, SourceTensor, TensorLayout, lay_out};

/// The version of the source package llama-cpp-python whose converter the tables follow.
pub const CONVERTER: &str = "0.3.36";

/// The name of a model's configuration. A directory without one is no model.
pub const CONFIG_NAME: &str = "config.json";

/// Files of a directory that the header follows from, each with the most bytes that are read of it. The largest tokenizers of
/// models have 35 MB.
pub const FILES: [(&str, u64); 11] = [
    (CONFIG_NAME, 1 << 20),
    ("generation_config.json", 1 << 20),
    (MODULES_NAME, 1 << 20),
    ("README.md", 4 << 20),
    ("tokenizer.json", 64 << 20),
    ("tokenizer.model", 64 << 20),
    ("tokenizer_config.json", 16 << 20),
    ("added_tokens.json", 4 << 20),
    ("chat_template.jinja", 4 << 20),
    ("chat_template.json", 4 << 20),
    ("merges.txt", 16 << 20),
];

/// Lists the modules of a model of sentence-transformers. The configuration of its pooling lies in a directory below.
pub const MODULES_NAME: &str = "modules.json";

/// The most bytes that are read of the configuration of a pooling.
pub const POOLING_BYTES_MAX: u64 = 1 << 20;

/// The files of a model, by name. A file that is missing, or longer than [`FILES`] allows, is not in it.
#[derive(Default)]
pub struct Files {
    /// Those of [`FILES`].
    pub named: std::collections::BTreeMap<&'static str, Vec<u8>>,
    /// `config.json` in the directory that [`pooling_directory`] names.
    pub pooling: Option<Vec<u8>>,
}

impl Files {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.named.get(name).map(Vec::as_slice)
    }

    /// A file that has JSON, as an object. `None` where it is missing.
    ///
    /// # Errors
    /// `Invalid` for other bytes.
    fn object(&self, name: &str) -> crate::model::Result<Option<serde_json::Map<String, serde_json::Value>>> {
        let Some(bytes) = self.get(name) else { return Ok(None) };
        let parsed = serde_json::from_slice(bytes);
        parsed.map(Some).map_err(|error| crate::model::Error::invalid(format!("{name}: {error}")))
    }
}

/// The directory, below that of a model, that has the configuration of its pooling. `None` for a model without one.
pub fn pooling_directory(modules: &[u8]) -> Option<String> {
    let modules: Vec<serde_json::Value> = serde_json::from_slice(modules).ok()?;
    let is_pooling = |module: &&serde_json::Value| {
        module.get("type").and_then(serde_json::Value::as_str).is_some_and(|name| name.ends_with("Pooling"))
    };
    let path = modules.iter().find(is_pooling)?.get("path")?.as_str()?;
    Some(path.trim_end_matches('/').to_owned()).filter(|path| !path.is_empty() && !path.contains('/'))
}
