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
mod model_files;
mod model_name;
mod rotary;
mod tokenizer;

pub use layout::{ElementType, Layout, Source, SourceTensor, TensorLayout, check_architecture, lay_out};
pub use model_files::{CONFIG_NAME, FILES, Files, MODULES_NAME, POOLING_BYTES_MAX, pooling_directory};

/// The version of the source package llama-cpp-python whose converter the tables follow.
pub const CONVERTER: &str = "0.3.36";
