//! The formats against golden files, other implementations, and damaged bytes.

// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod adapters;
mod archives;
mod cgeb;
mod gguf;
mod log_records;
mod log_round_trips;
mod manifests;
mod npy;
mod payload_records;
mod pickles;
mod quantized_weights;
mod safetensors;
mod versions;

use std::path::Path;

/// A golden file's bytes.
fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The golden cases of one kind. There is at least one.
fn cases(kind: &str) -> Vec<serde_json::Value> {
    let all: Vec<serde_json::Value> = serde_json::from_slice(&golden("cases.json")).unwrap();
    let found: Vec<_> = all.into_iter().filter(|case| case["kind"] == kind).collect();
    assert!(!found.is_empty(), "no golden case of kind {kind}");
    found
}

/// The golden file that a case names under `key`.
fn file(case: &serde_json::Value, key: &str) -> Vec<u8> {
    golden(case[key].as_str().unwrap())
}

/// Little-endian floats.
fn floats(bytes: &[u8]) -> Vec<f32> {
    let (values, rest) = bytes.as_chunks();
    assert!(rest.is_empty());
    values.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

/// `bytes` truncated at every place, and with each bit of the first `flipped` bytes flipped.
fn damaged(bytes: &[u8], flipped: usize) -> impl Iterator<Item = Vec<u8>> {
    let cut = (0..bytes.len()).map(|length| bytes[..length].to_vec());
    let flips = (0..flipped.min(bytes.len()) * 8).map(|bit| {
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        damaged
    });
    cut.chain(flips)
}
