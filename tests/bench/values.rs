//! Tensors for measurements, and their expected values by a plain loop.

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use half::bf16;
use tierfs::model::{Dtype, Tier};

use crate::Result;

/// Bytes of one step.
const CHUNK: usize = 4 << 20;
/// Elements of a group, as docs/FORMAT.md says.
const GROUP: usize = 64;
/// About the standard deviation of trained weights.
const SCALE: f32 = 0.02;

/// SplitMix64.
pub struct Random(u64);

impl Random {
    /// The same numbers for the same seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for eight in out.chunks_mut(8) {
            eight.copy_from_slice(&self.next().to_le_bytes()[..eight.len()]);
        }
    }

    /// About normal: the sum of four uniform numbers.
    pub fn weight(&mut self) -> f32 {
        let bits = self.next();
        let parts = [0, 16, 32, 48].map(|shift| (bits >> shift) as u16);
        let sum: i32 = parts.into_iter().map(i32::from).sum();
        // The standard deviation of one part is 65536 / sqrt(12); of four, twice that.
        (sum - 131_070) as f32 * (SCALE / 37_837.0)
    }

    /// Elements, little-endian.
    pub fn elements(&mut self, dtype: Dtype, count: usize) -> Vec<u8> {
        let mut raw = Vec::with_capacity(count * dtype.bytes() as usize);
        for _ in 0..count {
            match dtype {
                Dtype::Bf16 => raw.extend_from_slice(&bf16::from_f32(self.weight()).to_le_bytes()),
                _ => raw.extend_from_slice(&self.weight().to_le_bytes()),
            }
        }
        raw
    }
}

/// The largest code of `absmax`.
fn largest_code(tier: Tier) -> f32 {
    match tier {
        Tier::Q8 => 127.0,
        Tier::Q7 => 63.0,
        Tier::Q5 => 15.0,
        _ => 3.0,
    }
}

/// The values of f32 elements in `absmax`, group by group, as docs/FORMAT.md says.
pub fn rounded_values(tier: Tier, values: &mut [f32]) {
    let most = largest_code(tier);
    for group in values.chunks_mut(GROUP) {
        let scale = group.iter().fold(0.0_f32, |most, value| most.max(value.abs())) / most;
        for value in group {
            let code = if scale == 0.0 { 0.0 } else { (*value / scale).clamp(-most, most).round_ties_even() };
            // Codes are whole numbers, which have no zero below zero.
            *value = (code + 0.0) * scale;
        }
    }
}

/// The same for little-endian elements; exact ones stay unchanged.
pub fn rounded(tier: Tier, dtype: Dtype, raw: &[u8]) -> Vec<u8> {
    if tier.is_exact() {
        return raw.to_vec();
    }
    let mut values: Vec<f32> = match dtype {
        Dtype::Bf16 => raw.as_chunks().0.iter().map(|raw| bf16::from_le_bytes(*raw).to_f32()).collect(),
        _ => raw.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect(),
    };
    rounded_values(tier, &mut values);
    let mut out = vec![0; raw.len()];
    match dtype {
        Dtype::Bf16 => {
            let places = out.as_chunks_mut().0.iter_mut();
            places.zip(values).for_each(|(to, value)| *to = bf16::from_f32(value).to_le_bytes());
        }
        _ => out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, value)| *to = value.to_le_bytes()),
    }
    out
}

/// A safetensors file of equal tensors, named `n0`, `n1` and so on.
pub struct Source {
    /// Path of the file.
    pub path: PathBuf,
    /// Bytes before the first tensor.
    pub header_bytes: u64,
    /// Element type.
    pub dtype: Dtype,
    /// Tensors.
    pub tensors: u32,
    /// Bytes of each.
    pub tensor_bytes: u64,
    /// Expected digests by tier, computed on first use.
    known: RefCell<Vec<(Tier, blake3::Hash)>>,
}

impl Source {
    /// Makes one.
    pub fn make(path: &Path, dtype: Dtype, tensors: u32, tensor_bytes: u64) -> Result<Source> {
        let name = if dtype == Dtype::Bf16 { "BF16" } else { "F32" };
        let elements = tensor_bytes / dtype.bytes();
        let mut header = serde_json::Map::new();
        for number in 0..u64::from(tensors) {
            let begin = number * tensor_bytes;
            // Two dimensions, as quantizers of models expect.
            let shape = [elements / GROUP as u64, GROUP as u64];
            let entry = serde_json::json!({ "dtype": name, "shape": shape, "data_offsets": [begin, begin + tensor_bytes] });
            header.insert(format!("n{number}"), entry);
        }
        let mut header = serde_json::Value::Object(header).to_string();
        // This makes tensors begin at pages.
        let header_bytes = (header.len() + 8).next_multiple_of(4096);
        header.extend(std::iter::repeat_n(' ', header_bytes - 8 - header.len()));
        let mut file = BufWriter::with_capacity(CHUNK, File::create(path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        let mut random = Random::new(11);
        let total = u64::from(tensors) * tensor_bytes;
        let mut done = 0;
        while done < total {
            let bytes = (total - done).min(CHUNK as u64);
            file.write_all(&random.elements(dtype, (bytes / dtype.bytes()) as usize))?;
            done += bytes;
        }
        file.into_inner().map_err(|error| error.to_string())?.sync_all()?;
        let path = path.to_owned();
        Ok(Source {
            path,
            header_bytes: header_bytes as u64,
            dtype,
            tensors,
            tensor_bytes,
            known: RefCell::default(),
        })
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        u64::from(self.tensors) * self.tensor_bytes
    }

    /// The digest of the tensors' expected bytes in a tier, one after the other.
    pub fn expected(&self, tier: Tier) -> Result<blake3::Hash> {
        let known = self.known.borrow().iter().find(|(of, _)| *of == tier).map(|(_, hash)| *hash);
        if let Some(hash) = known {
            return Ok(hash);
        }
        let hash = self.worked_out(tier)?;
        self.known.borrow_mut().push((tier, hash));
        Ok(hash)
    }

    fn worked_out(&self, tier: Tier) -> Result<blake3::Hash> {
        let mut file = File::open(&self.path)?;
        std::io::copy(&mut Read::by_ref(&mut file).take(self.header_bytes), &mut std::io::sink())?;
        let mut hasher = blake3::Hasher::new();
        let mut chunk = Vec::with_capacity(CHUNK);
        loop {
            chunk.clear();
            Read::by_ref(&mut file).take(CHUNK as u64).read_to_end(&mut chunk)?;
            if chunk.is_empty() {
                return Ok(hasher.finalize());
            }
            hasher.update(&rounded(tier, self.dtype, &chunk));
        }
    }
}
