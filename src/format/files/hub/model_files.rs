//! The files of a model that the header of its GGUF file follows from.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::model::{Error, Result};

/// The name of a model's configuration. A directory that lacks the file holds no model.
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
    pub named: BTreeMap<&'static str, Vec<u8>>,
    /// `config.json` in the directory that [`pooling_directory`] names.
    pub pooling: Option<Vec<u8>>,
}

impl Files {
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        self.named.get(name).map(Vec::as_slice)
    }

    /// A file that has JSON, as an object. `None` where it is missing.
    ///
    /// # Errors
    /// `Invalid` for other bytes.
    pub(super) fn object(&self, name: &str) -> Result<Option<Map<String, Value>>> {
        let Some(bytes) = self.get(name) else { return Ok(None) };
        let parsed = serde_json::from_slice(bytes);
        parsed.map(Some).map_err(|error| Error::invalid(format!("{name}: {error}")))
    }
}

/// The directory, below that of a model, that has the configuration of its pooling. `None` for a model without one.
pub fn pooling_directory(modules: &[u8]) -> Option<String> {
    let modules: Vec<Value> = serde_json::from_slice(modules).ok()?;
    let is_pooling = |module: &&Value| {
        module.get("type").and_then(Value::as_str).is_some_and(|name| name.ends_with("Pooling"))
    };
    let path = modules.iter().find(is_pooling)?.get("path")?.as_str()?;
    Some(path.trim_end_matches('/').to_owned()).filter(|path| !path.is_empty() && !path.contains('/'))
}
