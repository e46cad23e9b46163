//! The data files of ONNX models. A model says which files below its directory have its initializers, and where; these
//! are tensors of such a file. A model and its data files come in any order:
//!
//! - A model has a setting with the paths of its data files. The same batch marks data files that are
//!   there to be recognized again.
//! - A file that is recognized as nothing else has the tensors that models give it by its path.
//!
//! The collection keeps what a model says of its data files until the model is recognized again, so that it is read once
//! for all of them.

use std::cmp::Ordering;
use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::format::budget::Budget;
use crate::format::files::{TensorRange, onnx};
use crate::format::log::catalog::{Content, Entry};
use crate::ingest::recognize::archives::{Found, note, part};
use crate::model::{EntryId, Result, quoted_name};
use crate::store::{Batch, Collection, DATA_FILES, OpenObject, State, Verify};
use crate::stream::Stream;

/// Most data files of a model that are looked at.
const DATA_FILES_MAX: usize = 1 << 14;
/// Most models that give tensors to one data file: the first, in the order of their paths.
const MODELS_MAX: usize = 16;

/// Whether a model says that the file with this path has tensors.
pub fn is_data_file(state: &State, path: &[u8]) -> bool {
    models(state, path).next().is_some()
}

/// Whether a file is a model with data files.
pub fn has_data_files(state: &State, node: EntryId) -> bool {
    state.setting(node, DATA_FILES).is_some()
}

/// Whether a collection has models with data files.
pub fn has_models(state: &State) -> bool {
    state.set_nodes(DATA_FILES).next().is_some()
}

/// The models that have tensors in the file with this path, each with the path below its directory.
fn models<'a>(state: &'a State, path: &'a [u8]) -> impl Iterator<Item = (EntryId, &'a [u8])> {
    state.set_nodes(DATA_FILES).filter_map(move |(node, lines)| {
        let (directory, _) = state.links(node).first()?;
        let below = match &*state.path(*directory) {
            b"" => path,
            directory => path.strip_prefix(directory)?.strip_prefix(b"/")?,
        };
        has_line(lines.as_bytes(), below).then_some((node, below))
    })
}

/// Whether sorted lines have this one.
fn has_line(lines: &[u8], wanted: &[u8]) -> bool {
    let (mut first, mut end) = (0, lines.len());
    while first < end {
        // The line around the middle.
        let (before, after) = lines.split_at(first + (end - first) / 2);
        let begin = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |place| place + 1);
        let len = after.iter().position(|byte| *byte == b'\n').unwrap_or(after.len());
        let close = before.len() + len;
        match lines.get(begin..close).unwrap_or_default().cmp(wanted) {
            Ordering::Equal => return true,
            Ordering::Less => first = close + 1,
            Ordering::Greater => end = begin.saturating_sub(1),
        }
    }
    false
}

/// Records the data files of a model in `directory`, and marks those that are there.
pub(in crate::ingest) fn put_data_files(
    batch: &mut Batch,
    state: &State,
    directory: EntryId,
    node: EntryId,
    data_files: &[String],
) {
    let lines = data_files.get(..data_files.len().min(DATA_FILES_MAX)).unwrap_or_default().join("\n");
    mark(batch, state, directory, &lines);
    if !lines.is_empty() || state.setting(node, DATA_FILES).is_some() {
        let value = Some(lines).filter(|lines| !lines.is_empty());
        batch.entry(Entry::Setting { node, key: DATA_FILES.to_owned(), value });
    }
}

/// Marks the data files of a model that is renamed to `directory`.
pub fn mark_data_files(batch: &mut Batch, state: &State, node: EntryId, directory: EntryId) {
    if let Some(lines) = state.setting(node, DATA_FILES) {
        mark(batch, state, directory, lines);
    }
}

fn mark(batch: &mut Batch, state: &State, directory: EntryId, lines: &str) {
    for line in lines.split('\n') {
        let mut names = line.split('/');
        let found = names.try_fold(directory, |at, name| state.directory(at)?.get(name.as_bytes()));
        let file = found.and_then(|id| state.node(id)?.file());
        if let (Some(id), Some(file)) = (found, file)
            && matches!(file.content, Content::Plain | Content::OnnxData)
        {
            batch.recognize_again(id);
        }
    }
}

/// The tensors that models have in the file of `bytes` bytes with this path. `None` if no model names it.
pub(in crate::ingest) fn tensors_in(collection: &Arc<Collection>, path: &[u8], bytes: u64) -> Option<Found> {
    let mut models: Vec<(Vec<u8>, EntryId, Vec<u8>)> = {
        let state = collection.state();
        models(&state, path).map(|(node, below)| (state.path(node), node, below.to_vec())).collect()
    };
    if models.is_empty() {
        return None;
    }
    models.sort();
    models.truncate(MODELS_MAX);
    let mut found = Found {
        content: Content::OnnxData,
        tensors: Vec::new(),
        note: String::new(),
        data_files: Vec::new(),
    };
    let (mut names, mut others) = (HashSet::new(), Vec::new());
    let mut wanted = Vec::new();
    for (path, node, below) in &models {
        match collection.model_data(*node, || initializers(collection, *node)) {
            Ok(files) => {
                let entries = std::str::from_utf8(below).ok().and_then(|below| files.get(below));
                let entries = entries.map(Vec::as_slice).unwrap_or_default();
                wanted.extend(entries.iter().filter_map(|entry| match &entry.place {
                    onnx::Place::Beside { range, .. } => {
                        let (name, dtype, shape) = (entry.name.clone(), entry.dtype, entry.shape.clone());
                        Some(TensorRange { name, dtype, shape, begin: range.start, end: range.end })
                    }
                    onnx::Place::Here(_) => None,
                }));
            }
            Err(error) => {
                let path = String::from_utf8_lossy(path);
                log::warn!("{}: the data files of {path} are not shown: {error}", collection.path());
            }
        }
    }
    // Models can share a data file, and tensors a range of it. The first is shown, in the order of the models' paths.
    let mut ranges: HashMap<(u64, u64), String> = HashMap::new();
    wanted.retain(|entry| match ranges.entry((entry.begin, entry.end)) {
        Slot::Occupied(first) if entry.begin < entry.end => {
            if *first.get() != entry.name {
                others.push((
                    entry.name.clone(),
                    format!("it shares the bytes of {}", quoted_name(first.get())),
                ));
            }
            false
        }
        Slot::Occupied(_) => true,
        Slot::Vacant(slot) => {
            slot.insert(entry.name.clone());
            true
        }
    });
    wanted.sort_by_key(|entry| (entry.begin, entry.end));
    let mut at = 0;
    for mut entry in wanted {
        if entry.begin == entry.end {
            (entry.begin, entry.end) = (at, at);
        }
        let why = if entry.end > bytes {
            "it goes past the end of the file"
        } else if entry.begin < at {
            "it overlaps another"
        } else if !names.insert(entry.name.clone()) {
            "a tensor of another model has the same name"
        } else {
            at = entry.end;
            found.tensors.push(part(entry));
            continue;
        };
        others.push((entry.name, why.to_owned()));
    }
    found.note = note(&others);
    Some(found)
}

/// The initializers of a model of the collection that lie in other files.
fn initializers(collection: &Arc<Collection>, node: EntryId) -> Result<onnx::DataFiles> {
    let (objects, records) = collection.parts_of(node)?;
    let objects = objects.iter().map(|object| OpenObject::open(collection, object, Verify::First));
    let stream = Stream::of_file(objects.collect::<Result<_>>()?, records.as_ref())?;
    let mut read = |out: &mut [u8], at: u64| stream.read_exact(at, out);
    Ok(onnx::parse(&mut read, stream.bytes(), &mut Budget::default())?.into_data_files())
}

#[cfg(test)]
mod tests {
    use super::has_line;

    #[test]
    fn a_line_is_found_among_sorted_lines_of_any_length() {
        for lines in [&[][..], &["a"], &["a", "b/c", "d"], &["a", "aa", "aaa/aaaaaaaaaaaaaaaaaaaaa", "b"]] {
            let joined = lines.join("\n");
            for wanted in ["", "a", "aa", "aaa", "b", "b/c", "c", "d", "z", "aaa/aaaaaaaaaaaaaaaaaaaaa"] {
                let found = has_line(joined.as_bytes(), wanted.as_bytes());
                assert_eq!(found, lines.contains(&wanted), "{wanted:?} of {lines:?}");
            }
        }
    }
}
