//! Recognizes files with tensors in several places: PyTorch checkpoints, NumPy archives, ONNX models.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::format::budget::Budget;
use crate::format::files::{TensorRange, npz, onnx, torch, zip};
use crate::format::log::catalog::Content;
use crate::ingest::recognize::parts::{Part, PartTensor, read};
use crate::model::{Error, Result, quoted_name};
use crate::store::disk::File;

/// Names that a note quotes.
const NAMES_QUOTED_MAX: usize = 3;

/// A file whose content was recognized.
pub(in crate::ingest) struct Found {
    pub content: Content,
    pub tensors: Vec<Part>,
    /// Its arrays that are not tensors, or empty.
    pub note: String,
    /// The files that have further tensors of it.
    pub data_files: Vec<String>,
}

/// The suffixes of PyTorch checkpoints. Many programs write files with the last one.
const CHECKPOINTS: [&str; 4] = [".pt", ".pth", ".ckpt", ".bin"];

/// The suffixes of HDF5 files, which Keras writes.
const HDF5: [&str; 2] = [".h5", ".hdf5"];

/// The first bytes of an HDF5 file.
const HDF5_MAGIC: [u8; 8] = *b"\x89HDF\r\n\x1a\n";

/// Whether files of this name can be recognized here.
pub(in crate::ingest) fn has_suffix(name: &[u8]) -> bool {
    let suffixes = CHECKPOINTS.iter().chain(&HDF5).chain(&[".npz", ".onnx"]);
    suffixes.into_iter().any(|suffix| name.ends_with(suffix.as_bytes()) && name.len() > suffix.len())
}

/// Whether files of this name may begin with these bytes, which do not belong to a container.
pub(in crate::ingest) fn begins_with(name: &[u8], magic: &[u8]) -> bool {
    let is_of = |suffix: &&str| name.ends_with(suffix.as_bytes());
    match magic {
        magic if magic == zip::MAGIC => CHECKPOINTS.iter().chain(&[".npz"]).any(&is_of),
        magic if magic == HDF5_MAGIC => HDF5.iter().any(is_of),
        _ => false,
    }
}

/// Recognizes a file by its suffix. `None` if it has another one, or is an ordinary file with a suffix
/// that many programs use.
pub(in crate::ingest) fn recognize(
    source: &Arc<dyn File>,
    bytes: u64,
    name: &[u8],
    budget: &mut Budget,
) -> Result<Option<Found>> {
    if !has_suffix(name) {
        return Ok(None);
    }
    let mut read_at = |out: &mut [u8], at: u64| read(source, out, at);
    if name.ends_with(b".onnx") {
        return Ok(Some(of_model(onnx::parse(&mut read_at, bytes, budget)?)));
    }
    if name.ends_with(b".npz") {
        return Ok(Some(of_arrays(npz::parse(&mut read_at, bytes, budget)?)));
    }
    let mut magic = [0; 8];
    read_at(magic.get_mut(..bytes.min(8) as usize).unwrap_or_default(), 0)?;
    if HDF5.iter().any(|suffix| name.ends_with(suffix.as_bytes())) {
        let refused =
            || Error::unsupported("an HDF5 file; save its tensors as safetensors to have them as files");
        return if magic == HDF5_MAGIC { Err(refused()) } else { Ok(None) };
    }
    if magic.starts_with(&zip::MAGIC) {
        return Ok(Some(of_checkpoint(torch::parse(&mut read_at, bytes, budget)?)));
    }
    if name.ends_with(b".bin") {
        return Ok(None);
    }
    Err(Error::unsupported(
        "not a zip archive, which torch.save writes since PyTorch 1.6; load it and save it again",
    ))
}

pub(in crate::ingest) fn part(TensorRange { name, dtype, shape, begin, end }: TensorRange) -> Part {
    let tensor = PartTensor { own_name: name.clone(), name, dtype, shape };
    Part { begin, end, tensor: Some(tensor) }
}

fn of_checkpoint(checkpoint: torch::Checkpoint) -> Found {
    let torch::Checkpoint { tensors, shared, others } = checkpoint;
    let has_bytes_of = |(name, tensor): &(String, usize)| {
        let of = tensors.get(*tensor).map(|tensor| quoted_name(&tensor.name)).unwrap_or_default();
        (quoted_name(name).to_owned(), format!("it shares the bytes of {of}"))
    };
    let count = others.len() + shared.len();
    let note = note_of(count, others.iter().cloned().chain(shared.iter().map(has_bytes_of)));
    let tensors = tensors.into_iter().map(part).collect();
    Found { content: Content::Torch, tensors, note, data_files: Vec::new() }
}

fn of_arrays(archive: npz::Archive) -> Found {
    let note = note(&archive.others);
    let tensors = archive.arrays.into_iter().map(part).collect();
    Found { content: Content::Npz, tensors, note, data_files: Vec::new() }
}

fn of_model(model: onnx::Model) -> Found {
    let mut tensors = Vec::new();
    let mut data_files = BTreeSet::new();
    for onnx::Entry { name, dtype, shape, place } in model.tensors {
        match place {
            onnx::Place::Here(range) => {
                tensors.push(part(TensorRange { name, dtype, shape, begin: range.start, end: range.end }))
            }
            onnx::Place::Beside { location, .. } => {
                data_files.insert(location);
            }
        }
    }
    let data_files = data_files.into_iter().collect();
    Found { content: Content::Onnx, tensors, note: note(&model.others), data_files }
}

/// A note on the arrays of a file that are not tensors: their names, each with the reason.
pub(in crate::ingest) fn note(others: &[(String, String)]) -> String {
    note_of(others.len(), others.iter().cloned())
}

/// The same for so many arrays, of which only the first are asked for.
fn note_of(count: usize, others: impl Iterator<Item = (String, String)>) -> String {
    let shown = others.take(NAMES_QUOTED_MAX);
    let shown: Vec<String> = shown.map(|(name, why)| format!("{}: {why}", quoted_name(&name))).collect();
    match count {
        0 => String::new(),
        count if count > shown.len() => {
            format!("not shown: {}; and {} more", shown.join("; "), count - shown.len())
        }
        _ => format!("not shown: {}", shown.join("; ")),
    }
}
