//! The data files of ONNX models. A model says which files below its directory have its initializers, and where; these
//! are tensors of such a file. A model and its data files come in any order:
//!
//! - A model has a setting with the paths of its data files. With the same batch those that are there are marked to be
//!   recognized again.
//! - A file that is recognized as nothing else has the tensors that models give it by its path.

use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::format::files::{TensorRange, onnx};
use crate::format::log::catalog::{Content, Entry};
use crate::ingest::archives::{Found, note, part};
use crate::model::{EntryId, Result, quoted_name};
use crate::store::{Batch, Collection, DATA_FILES, OpenObject, State, Verify};
use crate::stream::Stream;

/// Most data files of a model that are looked at.
const DATA_FILES_MAX: usize = 1 << 14;

/// Whether a model says that the file with this path has tensors.
pub fn is_data_file(state: &State, path: &[u8]) -> bool {
    models(state, path).next().is_some()
}

/// Whether a file is a model with data files.
pub fn has_data_files(state: &State, node: EntryId) -> bool {
    state.setting(node, DATA_FILES).is_some()
}

/// The models that have tensors in the file with this path, each with the path below its directory.
fn models<'a>(state: &'a State, path: &'a [u8]) -> impl Iterator<Item = (EntryId, &'a [u8])> {
    state.set_nodes(DATA_FILES).filter_map(move |(node, lines)| {
        let (directory, _) = state.links(node).first()?;
        let below = match &*state.path(*directory) {
            b"" => path,
            directory => path.strip_prefix(directory)?.strip_prefix(b"/")?,
        };
        lines.split('\n').any(|line| line.as_bytes() == below).then_some((node, below))
    })
}

/// Records the data files of a model in `directory`, and marks those that are there.
pub(super) fn put_data_files(
    batch: &mut Batch,
    state: &State,
    (directory, node): (EntryId, EntryId),
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
pub(super) fn tensors_in(collection: &Arc<Collection>, path: &[u8], bytes: u64) -> Option<Found> {
    let mut models: Vec<(Vec<u8>, EntryId, Vec<u8>)> = {
        let state = collection.state();
        models(&state, path).map(|(node, below)| (state.path(node), node, below.to_vec())).collect()
    };
    if models.is_empty() {
        return None;
    }
    models.sort();
    let mut found = Found {
        content: Content::OnnxData,
        tensors: Vec::new(),
        note: String::new(),
        data_files: Vec::new(),
    };
    let (mut names, mut others) = (HashSet::new(), Vec::new());
    let mut wanted = Vec::new();
    for (path, node, below) in &models {
        match initializers(collection, *node) {
            Ok(tensors) => wanted.extend(tensors.into_iter().filter_map(|entry| match entry.place {
                onnx::Place::Beside { location, range } if location.as_bytes() == below => {
                    let onnx::Entry { name, dtype, shape, .. } = entry;
                    Some(TensorRange { name, dtype, shape, begin: range.start, end: range.end })
                }
                _ => None,
            })),
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
                others
                    .push((entry.name.clone(), format!("it has the bytes of {}", quoted_name(first.get()))));
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
            "another model has the name"
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

/// The initializers of a model of the collection.
fn initializers(collection: &Arc<Collection>, node: EntryId) -> Result<Vec<onnx::Entry>> {
    let (objects, records) = collection.parts_of(node)?;
    let objects = objects.iter().map(|object| OpenObject::open(collection, object, Verify::First));
    let stream = Stream::of_file(objects.collect::<Result<_>>()?, records.as_ref())?;
    let mut read = |out: &mut [u8], at: u64| stream.read_exact(at, out);
    Ok(onnx::parse(&mut read, stream.bytes())?.tensors)
}
