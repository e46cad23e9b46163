//! Digests of all files of a collection, in the format of `sha256sum`.

use std::sync::Arc;

use crate::format::log::catalog::FileEntry;
use crate::model::{EntryId, Error, Result, Tier, hex};
use crate::store::Collection;
use crate::store::Object;
use crate::store::Verify;
use crate::store::{Assembly, Block};
use crate::store::{ROOT, State, Walk};
use crate::stream::{batch_beside, sums};

/// Number of hexadecimal digits of a digest.
const DIGEST_DIGITS: u64 = 64;

/// A file to digest.
pub(super) struct Summed {
    /// The path below the collection, escaped as by `sha256sum`.
    name: Vec<u8>,
    /// Whether the path contains escapes, which a backslash at the start of the line marks.
    is_escaped: bool,
    objects: Vec<Arc<Object>>,
    /// How it is assembled from the objects, if it is not their concatenation.
    assembly: Option<Assembly>,
    node: EntryId,
    /// The recorded digest of the original bytes, if any.
    recorded: Option<[u8; 32]>,
}

/// All files of a collection, once for each name, sorted by path.
pub(super) fn files(state: &State) -> Result<Vec<Summed>> {
    let mut found = Vec::new();
    state.walk(ROOT, &mut |visited| {
        if let Some(file) = visited.node.file() {
            let path = state.path_of_name(visited.directory, visited.name);
            found.push((path, file, visited.node.entry.id));
        }
        Walk::Enter
    });
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found.into_iter().map(|(path, file, node)| summed(state, &path, file, node)).collect()
}

fn summed(state: &State, path: &[u8], file: &FileEntry, node: EntryId) -> Result<Summed> {
    let objects: Option<Vec<_>> = file.objects.iter().map(|id| state.object(*id).cloned()).collect();
    let objects = objects.ok_or_else(|| Error::corrupt("an object is missing; run tierfs fsck"))?;
    let mut name = Vec::with_capacity(path.len());
    for byte in path {
        match byte {
            b'\\' => name.extend(b"\\\\"),
            b'\n' => name.extend(b"\\n"),
            b'\r' => name.extend(b"\\r"),
            byte => name.push(*byte),
        }
    }
    // An index may show a different hash than the one that was imported, so its recorded digest does not apply.
    let recorded = file.digests.sha256().filter(|_| batch_beside(state, node).is_none());
    let assembly = Assembly::of_batch(file.records.as_ref());
    Ok(Summed { is_escaped: name.len() != path.len(), name, objects, assembly, node, recorded })
}

/// Length of the text for these files.
pub(super) fn bytes(files: &[Summed]) -> u64 {
    let line = |file: &Summed| u64::from(file.is_escaped) + DIGEST_DIGITS + 2 + file.name.len() as u64 + 1;
    files.iter().map(line).sum()
}

/// The text for these files. Reads each file, except those with a recorded digest and those whose digest was computed
/// since their last change.
pub(super) fn text(collection: &Arc<Collection>, files: &[Summed], verify: Verify) -> Result<Vec<u8>> {
    let mut text = Vec::with_capacity(bytes(files) as usize);
    for file in files {
        let digest = match file.recorded.filter(|_| file.objects.iter().all(|object| is_as_it_came(object))) {
            Some(recorded) => recorded,
            None => sums(collection, file.node, &file.objects, file.assembly.as_ref(), verify)?.sha256,
        };
        if file.is_escaped {
            text.push(b'\\');
        }
        text.extend(hex(&digest).into_bytes());
        text.extend(b"  ");
        text.extend(&file.name);
        text.push(b'\n');
    }
    Ok(text)
}

/// Whether all blocks are exact and in the store. A file that was written has no recorded digest.
fn is_as_it_came(object: &Object) -> bool {
    let layout = object.layout();
    let is_exact =
        |(_, block): (_, Option<Block>)| block.is_some_and(|block| block.stored.tier == Tier::Exact);
    object.origin.is_none() && !object.is_dirty() && object.pieces(0..layout.blocks(), layout).all(is_exact)
}
