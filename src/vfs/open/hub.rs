//! Blobs of a hub cache that was copied into a mount, as `ingest/find/hub.rs` describes it. A blob is named after its
//! digest, so the names of the links to it tell its format.

use crate::format::log::catalog::{Content, NodeType};
use crate::ingest::may_be_recognized;
use crate::model::{EntryId, NameIn};
use crate::store::{Batch, ROOT, State, Walk};
use crate::vfs::open::names::has_other_suffix;

const BLOBS: &[u8] = b"blobs";
const SNAPSHOTS: &[u8] = b"snapshots";
/// Names below `snapshots` that are looked at for one blob.
const NAMES_MAX: usize = 1 << 16;

/// Of a file with more names, further ones do not tell its format.
const OWN_NAMES_MAX: usize = 256;

/// The names by which a file may be recognized, in the order in which they are tried: for a blob that of a link below
/// `snapshots`, the first in the order of bytes that has the suffix of a container; for any other file one of its names
/// for each such suffix, or its first name.
pub(super) fn names_to_recognize(state: &State, node: EntryId) -> Vec<Vec<u8>> {
    let links = state.links(node);
    let Some((directory, first)) = links.first() else { return Vec::new() };
    if let Some(found) = name_of_link(state, NameIn { directory: *directory, name: first }, node) {
        return vec![found];
    }
    let mut names: Vec<Vec<u8>> = Vec::new();
    for (_, name) in links.iter().take(OWN_NAMES_MAX) {
        if may_be_recognized(name) && names.iter().all(|known| has_other_suffix(known, name)) {
            names.push(name.to_vec());
        }
    }
    if names.is_empty() { vec![first.to_vec()] } else { names }
}

fn name_of_link(state: &State, NameIn { directory, name }: NameIn<'_>, blob: EntryId) -> Option<Vec<u8>> {
    let (repository, _) = state.links(directory).first().filter(|(_, name)| **name == *BLOBS)?;
    if may_be_recognized(name) {
        return None;
    }
    let snapshots = state.directory(*repository)?.get(SNAPSHOTS)?;
    let (mut found, mut names): (Option<&[u8]>, usize) = (None, 0);
    state.walk(snapshots, &mut |visited| {
        names += 1;
        if let NodeType::Symlink(target) = &visited.node.entry.node_type
            && target.ends_with(name)
            && may_be_recognized(visited.name)
            && found.is_none_or(|found| **visited.name < *found)
            && target_of(state, visited.directory, target) == Some(blob)
        {
            found = Some(visited.name);
        }
        if names < NAMES_MAX { Walk::Enter } else { Walk::End }
    });
    found.map(<[u8]>::to_vec)
}

/// The blob that a link leads to, if the link is one of a snapshot.
pub fn blob_of_link(state: &State, link: EntryId) -> Option<EntryId> {
    let NodeType::Symlink(target) = &state.node(link)?.entry.node_type else { return None };
    state.links(link).iter().find_map(|(directory, _)| target_of(state, *directory, target))
}

/// Marks the plain blob that a link in `directory` leads to, since the link's name may tell its format.
pub(super) fn mark_blob(
    batch: &mut Batch,
    state: &State,
    NameIn { directory, name }: NameIn<'_>,
    target: &[u8],
) {
    let is_plain = |blob: &EntryId| {
        state.node(*blob).and_then(|node| node.file()).is_some_and(|file| file.content == Content::Plain)
    };
    if may_be_recognized(name)
        && let Some(blob) = target_of(state, directory, target).filter(is_plain)
    {
        batch.recognize_again(blob);
    }
}

/// The blob that `target` leads to from a directory of a snapshot: `blobs` stands beside `snapshots`.
fn target_of(state: &State, directory: EntryId, target: &[u8]) -> Option<EntryId> {
    let mut at = directory;
    let mut is_snapshot = false;
    let mut parts = target.split(|byte| *byte == b'/');
    let blobs = loop {
        match parts.next()? {
            b".." if at == ROOT => return None,
            b".." => {
                let (above, name) = state.links(at).first()?;
                is_snapshot = **name == *SNAPSHOTS;
                at = *above;
            }
            name if is_snapshot && name == BLOBS => break state.directory(at)?.get(name)?,
            _ => return None,
        }
    };
    let name = parts.next()?;
    let blob = state.directory(blobs)?.get(name)?;
    (parts.next().is_none() && state.node(blob)?.file().is_some()).then_some(blob)
}
