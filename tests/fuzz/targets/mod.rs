//! Fuzz targets: properties that must hold for any bytes. `cargo fuzz` runs them without end, and a test runs the
//! corpus.
//!
//! A target panics if a property fails. Each target checks more than the absence of a panic: it writes the parsed
//! value again and compares, or compares with another parser, and no size exceeds the input.

mod adapter_config;
pub mod archives;
mod bounded;
mod catalog;
mod cgeb;
mod cgei;
mod delta;
mod factor;
mod gguf;
mod ladder;
mod log;
mod manifest;
mod model_config;
mod names;
mod npy;
mod piece_map;
mod record;
mod requests;
mod safetensors;
mod shard_index;
mod tensor_parallel;
mod values;
mod version;

/// A target: its name, which is that of its corpus folder, and its check.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 24] = [
    ("adapter_config", adapter_config::check),
    ("catalog", catalog::check),
    ("cgeb", cgeb::check),
    ("cgei", cgei::check),
    ("delta", delta::check),
    ("factor", factor::check),
    ("gguf", gguf::check),
    ("ladder", ladder::check),
    ("log", log::check),
    ("manifest", manifest::check),
    ("model_config", model_config::check),
    ("names", names::check),
    ("npy", npy::check),
    ("npz", archives::check_npz),
    ("onnx", archives::check_onnx),
    ("piece_map", piece_map::check),
    ("record", record::check),
    ("requests", requests::check),
    ("safetensors", safetensors::check),
    ("shard_index", shard_index::check),
    ("tensor_parallel", tensor_parallel::check),
    ("torch", archives::check_torch),
    ("values", values::check),
    ("version", version::check),
];

/// Runs the target of this name.
pub fn run(name: &str, bytes: &[u8]) {
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    let (_, check) = found.unwrap_or_else(|| panic!("no target {name}"));
    check(bytes);
}
