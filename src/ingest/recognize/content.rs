//! Recognizes the content of a file, by the suffix of its name and then by its bytes.

use std::sync::Arc;

use crate::format::budget::Budget;
use crate::format::files::cgeb;
use crate::format::files::{gguf, npy, safetensors, shard_index};
use crate::format::log::catalog::Content;
use crate::ingest::recognize::archives;
use crate::ingest::recognize::batch::scan;
use crate::ingest::recognize::data_files;
use crate::ingest::recognize::diagnose::{diagnose, pointer_note};
use crate::ingest::recognize::parts::{Part, PartTensor, Recognized, read};
use crate::model::{Dtype, Error, ErrorKind, Result, Shape, TensorNames};
use crate::store::Collection;
use crate::store::disk::File;

/// Bytes of a GGUF file in the first read.
const GGUF_PREFIX_BYTES: u64 = 1 << 16;

/// Recognizes a file by its name and its content. Fails where the content violates the format that
/// the name promises; the error says what the file is instead, if its first bytes tell.
pub fn recognize(source: &Arc<dyn File>, name: &[u8]) -> Result<Recognized> {
    recognize_within(source, name, &mut Budget::default())
}

/// As [`recognize`], with the steps taken from a budget.
pub fn recognize_within(source: &Arc<dyn File>, name: &[u8], budget: &mut Budget) -> Result<Recognized> {
    let bytes = source.len().map_err(|error| Error::io("asking for its size", error))?;
    by_name(source, bytes, name, budget).map_err(|error| diagnose(source, name, error))
}

/// Recognizes a file of a collection, by its name and as `ingest/recognize/data_files.rs` does. `path` is
/// where it is or will be.
pub fn recognize_at(
    collection: &Arc<Collection>,
    path: &[u8],
    source: &Arc<dyn File>,
    name: &[u8],
) -> Result<Recognized> {
    let recognized = recognize(source, name)?;
    match data_files::tensors_in(collection, path, recognized.bytes) {
        Some(found) if recognized.content == Content::Plain && !found.tensors.is_empty() => {
            let whole = of_tensors(found.content, recognized.bytes, found.tensors)?;
            Ok(Recognized { note: found.note, ..whole })
        }
        _ => Ok(recognized),
    }
}

/// Recognizes a file for an import. Without `strict`, a file that this program cannot take apart is kept as a plain
/// file, unless it is cut off or another file than its name promises. Returns also the note about such a file, or an
/// empty one.
pub(in crate::ingest) fn recognize_import(
    collection: &Arc<Collection>,
    path: &[u8],
    source: &Arc<dyn File>,
    name: &[u8],
    strict: bool,
) -> Result<(Recognized, String)> {
    match recognize_at(collection, path, source, name) {
        Ok(recognized) if recognized.content == Content::Plain => {
            match pointer_note(source, recognized.bytes)? {
                Some(note) if strict => Err(Error::invalid(note)),
                note => {
                    let note = note.unwrap_or_else(|| recognized.note.clone());
                    Ok((recognized, note))
                }
            }
        }
        Ok(recognized) => {
            let note = recognized.note.clone();
            Ok((recognized, note))
        }
        Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Invalid) && !strict => {
            Ok((plain(source)?, format!("kept as a plain file: {error}")))
        }
        Err(error) => Err(error),
    }
}

/// The parts of a plain file.
pub(in crate::ingest) fn plain(source: &Arc<dyn File>) -> Result<Recognized> {
    let bytes = source.len().map_err(|error| Error::io("asking for its size", error))?;
    Ok(Recognized {
        content: Content::Plain,
        bytes,
        parts: cover(bytes, Vec::new())?,
        records: None,
        note: String::new(),
        data_files: Vec::new(),
        shards: None,
    })
}

fn by_name(source: &Arc<dyn File>, bytes: u64, name: &[u8], budget: &mut Budget) -> Result<Recognized> {
    let text = String::from_utf8_lossy(name);
    let stem = text.strip_suffix(".cgeb").filter(|stem| !stem.is_empty());
    if let Some(stem) = stem {
        return batch(source, bytes, stem, budget);
    }
    let (mut note, mut data_files, mut shards) = (String::new(), Vec::new(), None);
    let (content, tensors) = if let Some(found) = archives::recognize(source, bytes, name, budget)? {
        (note, data_files) = (found.note, found.data_files);
        (found.content, found.tensors)
    } else if text.ends_with(".safetensors") {
        let header = safetensors_header(source, bytes, budget)?;
        note = archives::note(&header.others.iter().map(not_shown).collect::<Vec<_>>());
        (Content::Safetensors, safetensors_parts(header))
    } else if text.ends_with(".gguf") {
        (Content::Gguf, gguf_tensors(source, bytes, budget)?)
    } else if let Some(stem) = text.strip_suffix(".npy").filter(|stem| !stem.is_empty()) {
        (Content::Npy, vec![npy_tensor(source, bytes, stem, budget)?])
    } else {
        if shard_index::is_name(name) && bytes > 0 {
            match read_shards(source, bytes, budget) {
                Ok(found) => shards = Some(found),
                Err(error) if error.kind() == ErrorKind::Io => return Err(error),
                Err(error) => note = format!("the names of tensors do not follow it: {error}"),
            }
        }
        (Content::Plain, Vec::new())
    };
    Ok(Recognized { note, data_files, shards, ..of_tensors(content, bytes, tensors)? })
}

/// A container with these tensors.
pub(in crate::ingest) fn of_tensors(content: Content, bytes: u64, tensors: Vec<Part>) -> Result<Recognized> {
    // Rejects impossible names before anything is stored.
    TensorNames::new(tensors.iter().filter_map(|part| Some(part.tensor.as_ref()?.name.as_str())))?;
    let parts = cover(bytes, tensors)?;
    let (note, data_files) = (String::new(), Vec::new());
    Ok(Recognized { content, bytes, parts, records: None, note, data_files, shards: None })
}

/// Recognizes an embedding batch, which is read and checked whole.
fn batch(source: &Arc<dyn File>, bytes: u64, stem: &str, budget: &mut Budget) -> Result<Recognized> {
    let runs = scan(source, bytes, budget)?;
    let sizes = runs.sizes();
    let rows = |each: u64| Shape::new(&[runs.records(), each]);
    let mut parts = Vec::new();
    let mut begin = 0;
    for part in runs.parts() {
        let (name, dtype, shape) = match part {
            cgeb::Part::Vectors => ("", Dtype::F32, rows(u64::from(sizes.dimension))),
            cgeb::Part::Weights => (".weights", Dtype::F32, rows(u64::from(sizes.experts))),
            cgeb::Part::Selected => (".selected", Dtype::U8, rows(u64::from(sizes.top_k))),
            cgeb::Part::Rest => ("", Dtype::U8, None),
        };
        let tensor = shape.map(|shape| PartTensor {
            name: format!("{stem}{name}"),
            own_name: name.to_owned(),
            dtype,
            shape,
            view: None,
        });
        if tensor.is_none() && part != cgeb::Part::Rest {
            return Err(Error::unsupported("more elements than a tensor can have"));
        }
        let end = begin + runs.part_bytes(part);
        parts.push(Part { begin, end, tensor });
        begin = end;
    }
    let records = Some(Arc::new(runs));
    let (note, data_files) = (String::new(), Vec::new());
    Ok(Recognized { content: Content::Cgeb, bytes, parts, records, note, data_files, shards: None })
}

/// The text of the index of a sharded model.
fn read_shards(source: &Arc<dyn File>, bytes: u64, budget: &mut Budget) -> Result<String> {
    if bytes > shard_index::BYTES_MAX {
        let most = shard_index::BYTES_MAX;
        return Err(Error::unsupported(format!("it has {bytes} bytes; at most {most} are read")));
    }
    let mut json = vec![0; bytes as usize];
    read(source, &mut json, 0)?;
    Ok(shard_index::to_lines(&shard_index::parse(&json, budget)?))
}

fn safetensors_header(
    source: &Arc<dyn File>,
    bytes: u64,
    budget: &mut Budget,
) -> Result<safetensors::Header> {
    let mut first = [0; 8];
    if bytes < 8 {
        let text = format!("it has {bytes} bytes, too few for a safetensors file");
        return Err(Error::new(ErrorKind::Unreadable, text));
    }
    read(source, &mut first, 0)?;
    let len = safetensors::header_len(first, bytes)?;
    let mut json = vec![0; len as usize];
    read(source, &mut json, 8)?;
    safetensors::parse(&json, bytes, budget)
}

fn not_shown(other: &safetensors::Other) -> (String, String) {
    (other.name.clone(), other.why.clone())
}

/// A tensor that is not shown is a part too, so that forms find its bytes.
fn safetensors_parts(header: safetensors::Header) -> Vec<Part> {
    let others = header.others.into_iter().filter(|other| other.begin < other.end);
    let others = others.map(|other| Part { begin: other.begin, end: other.end, tensor: None });
    let tensors = header.tensors.into_iter().map(|entry| {
        let tensor = PartTensor {
            own_name: entry.name.clone(),
            name: entry.name,
            dtype: entry.dtype,
            shape: entry.shape,
            view: None,
        };
        Part { begin: entry.begin, end: entry.end, tensor: Some(tensor) }
    });
    tensors.chain(others).collect()
}

/// A GGUF header does not state its length, so more of the file is read until the header ends.
fn gguf_tensors(source: &Arc<dyn File>, bytes: u64, budget: &mut Budget) -> Result<Vec<Part>> {
    let mut prefix = Vec::new();
    let mut wanted = GGUF_PREFIX_BYTES;
    let header = loop {
        let (read_before, len) = (prefix.len(), wanted.min(bytes).min(gguf::HEADER_BYTES_MAX));
        // Exact, because the longest headers take a hundred megabytes.
        prefix.reserve_exact(len as usize - read_before);
        prefix.resize(len as usize, 0);
        read(source, prefix.get_mut(read_before..).unwrap_or_default(), read_before as u64)?;
        match gguf::parse(&prefix, bytes, budget)? {
            Some(header) => break header,
            None => wanted *= 4,
        }
    };
    let parts = header.tensors.into_iter().map(|entry| {
        let begin = header.data_start + entry.offset;
        let gguf::Entry { name, dtype, shape, .. } = entry;
        let tensor = PartTensor { own_name: name.clone(), name, dtype, shape, view: None };
        Part { begin, end: begin + entry.bytes, tensor: Some(tensor) }
    });
    Ok(parts.collect())
}

fn npy_tensor(source: &Arc<dyn File>, bytes: u64, stem: &str, budget: &mut Budget) -> Result<Part> {
    let mut prefix = vec![0; bytes.min(npy::PREFIX_BYTES_MAX) as usize];
    read(source, &mut prefix, 0)?;
    let header = npy::parse(&prefix, bytes, budget)?;
    if !header.is_plain() {
        return Err(Error::unsupported(
            "its array is in Fortran order or big-endian, which tierfs does not read as a tensor; save it with numpy.save(path, numpy.ascontiguousarray(array).astype(array.dtype.newbyteorder('<')))",
        ));
    }
    let tensor = PartTensor {
        name: stem.to_owned(),
        own_name: String::new(),
        dtype: header.dtype,
        shape: header.shape,
        view: None,
    };
    Ok(Part { begin: header.data_start, end: bytes, tensor: Some(tensor) })
}

/// The parts of the tensors, and between them the parts of other bytes.
fn cover(bytes: u64, mut tensors: Vec<Part>) -> Result<Vec<Part>> {
    tensors.sort_by_key(|part| (part.begin, part.end));
    let mut parts = Vec::with_capacity(tensors.len() + 1);
    let mut at = 0;
    for part in tensors {
        if part.begin < at || part.end < part.begin {
            return Err(Error::invalid("tensors that overlap"));
        }
        if part.begin > at {
            parts.push(Part { begin: at, end: part.begin, tensor: None });
        }
        at = part.end;
        parts.push(part);
    }
    if at < bytes {
        parts.push(Part { begin: at, end: bytes, tensor: None });
    }
    Ok(parts)
}
