//! Files to import: containers and arrays of random numbers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::{Place, Random};

/// A safetensors file from any header and any data.
pub fn safetensors_file(header: &str, data: &[u8]) -> Vec<u8> {
    let padded = header.len().next_multiple_of(8);
    let mut bytes = (padded as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(8 + padded, b' ');
    bytes.extend_from_slice(data);
    bytes
}

/// A safetensors header of consecutive f32 vectors.
pub fn header_of(tensors: &[(&str, usize)]) -> String {
    let mut at = 0;
    let mut fields = serde_json::Map::new();
    for (name, elements) in tensors {
        let end = at + elements * 4;
        fields.insert(
            (*name).to_owned(),
            serde_json::json!({ "dtype": "F32", "shape": [elements], "data_offsets": [at, end] }),
        );
        at = end;
    }
    serde_json::Value::Object(fields).to_string()
}

/// A safetensors file of random f32 vectors.
pub fn container_of(random: &mut Random, tensors: &[(&str, usize)]) -> Vec<u8> {
    let elements = tensors.iter().map(|(_, elements)| elements).sum();
    safetensors_file(&header_of(tensors), &random.floats(elements))
}

/// An `.npy` file of an f32 vector, as NumPy writes it.
pub fn npy_file(data: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}", data.len() / 4);
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&118u16.to_le_bytes());
    bytes.extend_from_slice(format!("{text:<117}\n").as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

const TENSORS: [(&str, usize); 4] = [("a", 1000), ("deep/er/b", 5001), ("norm", 8), ("nothing", 0)];

/// A model directory, and a store that has imported it as `demo/model`.
pub fn imported(options: &[&str]) -> (Place, PathBuf) {
    let place = Place::new();
    let mut random = Random(11);
    place.write("model/model.safetensors", container_of(&mut random, &TENSORS));
    place.write("model/x.npy", npy_file(&random.floats(9000)));
    place.write("model/config.json", b"{\"hidden\": 8}\n");
    place.write("model/sub/vocab.txt", random.bytes(100_003));
    place.write("model/empty", b"");
    fs::set_permissions(place.path("model/config.json"), fs::Permissions::from_mode(0o640)).unwrap();
    let source = place.path("model");
    place.import("demo/model", &[&source], options);
    (place, source)
}

/// The tensors of a safetensors file, read by the format's own crate.
pub fn tensors_of(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let parsed = safetensors::SafeTensors::deserialize(bytes).unwrap();
    parsed.tensors().into_iter().map(|(name, view)| (name, view.data().to_vec())).collect()
}
