//! A renamed container: its tensors keep their objects and tiers, and get names next to it.

use std::sync::Arc;

use crate::format::log::catalog::{Entry, FileEntry, NodeEntry, NodeType};
use crate::ingest::Origin;
use crate::ingest::names::Names;
use crate::ingest::publish::hidden_names;
use crate::ingest::recognize::Recognized;
use crate::ingest::room;
use crate::model::{EntryId, Error, ErrorKind, EscapedPath, Result};
use crate::store::Collection;
use crate::store::{Node, State};
use crate::store::{Touched, now_nanoseconds};

/// Names the tensors of the container `node` as they are recognized under its current name. Returns
/// `false`, and does nothing, where its objects are not the recognized parts. Fails with `Gone` where
/// it has no name any more, and with `Quota` where the names would need too many directories.
pub fn name_parts_again(
    collection: &Arc<Collection>,
    node: EntryId,
    recognized: &Recognized,
) -> Result<bool> {
    let (paths, _held) = room::reserve_again(collection, node, recognized)?;
    let paths: Vec<&EscapedPath> = paths.iter().filter(|path| !path.is_empty()).collect();
    collection.record(Touched::default(), |batch, state| {
        let gone = || Error::new(ErrorKind::Gone, "the file is gone");
        let container = state.node(node).ok_or_else(gone)?;
        let (Some(file), Some((parent, _))) = (container.file(), state.links(node).first()) else {
            return Err(gone());
        };
        let Some(parts) = parts_of(state, file, recognized) else { return Ok(false) };
        let entry = &container.entry;
        let owner = (entry.uid, entry.gid);
        let (atime, mtime) = (entry.atime, entry.mtime);
        let origin = Origin { mode: entry.mode, owner, atime, mtime, sha256: None };
        let ctime = now_nanoseconds();
        let mut renamed = Vec::new();
        let mut names = Names::new(batch, state, &origin);
        for (_, part) in &parts {
            names.remove_names(part.entry.id);
        }
        let mut hidden = Vec::new();
        for ((name, part), path) in parts.iter().zip(paths) {
            if !names.part(*parent, path, part.entry.id)? {
                hidden.push(*name);
            }
            let mut entry = NodeEntry { ctime, ..part.entry.clone() };
            if let NodeType::File(file) = &mut entry.node_type
                && let Some(tensor) = &mut file.tensor
            {
                tensor.name = (*name).into();
            }
            renamed.push(entry);
        }
        let why = if hidden.is_empty() { String::new() } else { hidden_names(&hidden) };
        let node_type = NodeType::File(Box::new(FileEntry { why: why.into(), ..file.clone() }));
        renamed.push(NodeEntry { ctime, node_type, ..entry.clone() });
        names.entries(renamed.into_iter().map(|entry| Entry::Node(Box::new(entry))));
        names.finish();
        Ok(true)
    })
}

/// The tensors of a container with their newly recognized names, or `None` where the file does not
/// consist of the same parts.
fn parts_of<'a>(
    state: &'a State,
    file: &FileEntry,
    recognized: &'a Recognized,
) -> Option<Vec<(&'a str, &'a Arc<Node>)>> {
    let is_alike = (file.content, &file.records) == (recognized.content, &recognized.records);
    if !is_alike || file.objects.len() != recognized.parts.len() {
        return None;
    }
    let mut parts = Vec::new();
    for (id, part) in file.objects.iter().zip(&recognized.parts) {
        if state.object(*id)?.bytes() != part.end - part.begin {
            return None;
        }
        let Some(tensor) = &part.tensor else { continue };
        let node = state.node(state.part_of(*id)?)?;
        let known = node.file()?.tensor.as_ref()?;
        if (known.dtype, &known.shape) != (tensor.dtype, &tensor.shape) {
            return None;
        }
        parts.push((tensor.name.as_str(), node));
    }
    Some(parts)
}
