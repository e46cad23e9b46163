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
const NAMES_QUOTED_MAX: usize = 16;

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

/// The suffix that ordinary files have too.
pub(in crate::ingest) const COMMON_SUFFIX: &[u8] = b".bin";

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

/// Whether a file of this name and with these first bytes is an ordinary one, although containers can have the name too.
pub fn is_ordinary(name: &[u8], head: [u8; 8]) -> bool {
    name.ends_with(COMMON_SUFFIX) && !is_checkpoint(head)
}

fn is_checkpoint(head: [u8; 8]) -> bool {
    head.starts_with(&zip::MAGIC) || head == torch::LEGACY_MAGIC
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
    if is_checkpoint(magic) {
        return Ok(Some(of_checkpoint(torch::parse(&mut read_at, bytes, budget)?, bytes)));
    }
    if name.ends_with(COMMON_SUFFIX) {
        return Ok(None);
    }
    Err(Error::unsupported(
        "no checkpoint of torch.save; load it with the library that wrote it, and save its tensors with torch.save",
    ))
}

pub(in crate::ingest) fn part(TensorRange { name, dtype, shape, begin, end }: TensorRange) -> Part {
    let tensor = PartTensor { own_name: name.clone(), name, dtype, shape, view: None };
    Part { begin, end, tensor: Some(tensor) }
}

/// A view is an empty part at the end of the file, after all others.
fn of_checkpoint(checkpoint: torch::Checkpoint, bytes: u64) -> Found {
    let torch::Checkpoint { tensors, views, others } = checkpoint;
    let view = |torch::TensorView { name, dtype, shape, view }| {
        let tensor = PartTensor { own_name: name.clone(), name, dtype, shape, view: Some(Arc::new(view)) };
        Part { begin: bytes, end: bytes, tensor: Some(tensor) }
    };
    let tensors = tensors.into_iter().map(part).chain(views.into_iter().map(view)).collect();
    Found { content: Content::Torch, tensors, note: note(&others), data_files: Vec::new() }
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

/// A note on the arrays of a file that are not tensors: the names of the first, each with the reason.
pub(in crate::ingest) fn note(others: &[(String, String)]) -> String {
    let shown = others.iter().take(NAMES_QUOTED_MAX);
    let shown: Vec<String> = shown.map(|(name, why)| format!("{}: {why}", quoted_name(name))).collect();
    match others.len() {
        0 => String::new(),
        count if count > shown.len() => {
            format!("not shown: {}; and {} more", shown.join("; "), count - shown.len())
        }
        _ => format!("not shown: {}", shown.join("; ")),
    }
}
