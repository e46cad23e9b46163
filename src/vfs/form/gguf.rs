//! Shows GGUF files with their floats cast to another type.

use std::collections::HashMap;
use std::sync::Arc;

use crate::format::budget::Budget;
use crate::format::files::gguf;
use crate::model::{Dtype, Error, Result};
use crate::store::Collection;
use crate::stream::is_castable;
use crate::vfs::form::pieces::Piece;
use crate::vfs::form::recipe::{Part, Shown, Source};

/// Bytes to read first for the header. The read grows by a factor of four while the header continues.
const PREFIX_BYTES: u64 = 64 << 10;

/// The values of `general.file_type` for files that are mostly of a type. Source: `llama_ftype` of llama.cpp.
const FILE_TYPES: [(Dtype, u32); 3] = [(Dtype::F32, 0), (Dtype::F16, 1), (Dtype::Bf16, 32)];

/// The names of tensors that llama.cpp needs in F32, whatever the type of the file, without `.weight` and the numbers of
/// layers. Source: `convert_hf_to_gguf.py` of llama.cpp, which keeps tensors of one dimension so too, those whose names end
/// in `_norm.weight`, and those whose names do not end in `.weight` or as the factors of an adapter do.
const F32_NAMES: [&str; 26] = [
    "ffn_gate_inp",
    "ffn_gate_inp_shexp",
    "position_embd",
    "token_types",
    "ssm_conv1d",
    "ssm_conv1d_q",
    "ssm_conv1d_k",
    "ssm_conv1d_v",
    "ple_conv1d",
    "shortconv.conv",
    "time_mix_first",
    "time_mix_w1",
    "time_mix_w2",
    "time_mix_decay_w1",
    "time_mix_decay_w2",
    "time_mix_lerp_fused",
    "posnet.norm1",
    "posnet.norm2",
    "indexer.proj",
    "hc_attn_fn",
    "hc_ffn_fn",
    "output_hc_fn",
    "a.rvq.codebook",
    "mm.a.code_embd",
    "altup_correct_coef",
    "altup_predict_coef",
];

/// The same of tensors that llama.cpp takes in F16 too, but not in BF16: kernels of convolutions.
const F16_NAMES: [&str; 2] = ["patch_embd", "patch_merger"];

/// The type of a tensor in a cast: F32 for one that llama.cpp needs so.
fn cast_type(entry: &gguf::Entry, to: Dtype) -> Dtype {
    if !is_castable(entry.dtype) {
        return entry.dtype;
    }
    let stem = entry.name.strip_suffix(".weight");
    let is_factor = entry.name.ends_with(".lora_a") || entry.name.ends_with(".lora_b");
    let name: Vec<&str> = stem.unwrap_or(&entry.name).split('.').filter(|part| !is_number(part)).collect();
    let name = name.join(".");
    let is_named = |known: &str| {
        let before = name.strip_suffix(known);
        before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    let is_needed_in_f32 = entry.shape.dimensions().len() < 2
        || name.ends_with("_norm")
        || stem.is_none() && !is_factor
        || F32_NAMES.into_iter().any(is_named)
        || to == Dtype::Bf16 && F16_NAMES.into_iter().any(is_named);
    if is_needed_in_f32 { Dtype::F32 } else { to }
}

fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

/// The parts of a file with its floats cast and a new header. The rest is unchanged except for the gaps between tensors.
/// The tensors are in the order of the header, which this function reads.
pub(super) fn cast(collection: &Arc<Collection>, pieces: &[Piece], to: Dtype) -> Result<Vec<Part>> {
    let (prefix, header) = header(collection, pieces)?;
    let file_type = FILE_TYPES.into_iter().find(|(dtype, _)| *dtype == to).map(|(_, value)| value);
    let written = gguf::with_types(&prefix, &header, file_type, |entry| cast_type(entry, to))?;
    // The start of each object. Empty objects contribute nothing.
    let mut at = 0;
    let mut starts = HashMap::with_capacity(pieces.len());
    for piece in pieces.iter().filter(|piece| piece.bytes() > 0) {
        starts.insert(at, piece);
        at += piece.bytes();
    }
    let head_padding = written.data_start - written.bytes.len() as u64;
    let mut parts = vec![Part::Literal(written.bytes), Part::Zeros(head_padding)];
    for (entry, place) in header.tensors.iter().zip(&written.tensors) {
        let dtype = entry.dtype;
        let shown = match cast_type(entry, to) {
            same if same == dtype => Shown::Plain,
            to => Shown::Cast(to),
        };
        if entry.bytes > 0 {
            let piece = starts.get(&(header.data_start + entry.offset));
            let piece = piece.filter(|piece| piece.bytes() == entry.bytes).ok_or_else(|| {
                Error::corrupt(format!(
                    "tensor {:?} of a gguf file has no object in the store; run tierfs fsck",
                    entry.name
                ))
            })?;
            if let Part::Source(source) = piece.plain() {
                parts.push(Part::Source(Source { dtype, shown, ..source }));
            }
        }
        parts.push(Part::Zeros(place.padding));
    }
    Ok(parts)
}

/// The first bytes of a file, and the header that they contain.
fn header(collection: &Arc<Collection>, pieces: &[Piece]) -> Result<(Vec<u8>, gguf::Header)> {
    let bytes = pieces.iter().map(Piece::bytes).sum();
    // Only the objects before the tensors: the tensors may be absent.
    let before = pieces.iter().take_while(|piece| piece.tensor.is_none());
    let stream = Piece::stream_of(collection, before)?;
    let mut wanted = PREFIX_BYTES;
    loop {
        let len = wanted.min(stream.bytes()).min(gguf::HEADER_BYTES_MAX);
        let mut prefix = vec![0; len as usize];
        stream.read_exact(0, &mut prefix)?;
        match gguf::parse(&prefix, bytes, &mut Budget::default())? {
            Some(header) => return Ok((prefix, header)),
            None if len < wanted => {
                return Err(Error::corrupt("a gguf file without its header; run tierfs fsck"));
            }
            None => wanted *= 4,
        }
    }
}
