//! Files to import: random numbers in containers and arrays, the same in every run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::support::Place;

/// The same numbers in every run, for one seed. Steele, Lea, Flood: SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        bytes.truncate(count);
        bytes
    }

    /// As many f32 between -1 and 1, little-endian.
    pub fn floats(&mut self, count: usize) -> Vec<u8> {
        let float = |bits: u64| (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
        (0..count).flat_map(|_| float(self.next()).to_le_bytes()).collect()
    }
}

/// A safetensors file as somebody might have written it: any header before any data.
pub fn safetensors_file(header: &str, data: &[u8]) -> Vec<u8> {
    let padded = header.len().next_multiple_of(8);
    let mut bytes = (padded as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(8 + padded, b' ');
    bytes.extend_from_slice(data);
    bytes
}

/// A header that lays out f32 vectors one after the other.
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

/// A container of random f32 vectors.
pub fn container_of(random: &mut Random, tensors: &[(&str, usize)]) -> Vec<u8> {
    let elements = tensors.iter().map(|(_, elements)| elements).sum();
    safetensors_file(&header_of(tensors), &random.floats(elements))
}

/// A vector of f32 as numpy writes it.
pub fn npy_file(data: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}", data.len() / 4);
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&118u16.to_le_bytes());
    bytes.extend_from_slice(format!("{text:<117}\n").as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

const TENSORS: [(&str, usize); 4] = [("a", 1000), ("deep/er/b", 5001), ("norm", 8), ("nothing", 0)];

/// A folder as a model has one, and the store with it.
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
