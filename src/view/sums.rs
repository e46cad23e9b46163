//! Digests of all files of a collection, as `sha256sum` writes them.

use std::collections::HashSet;
use std::sync::Arc;

use crate::format::files::cgeb::Runs;
use crate::format::log::catalog::FileEntry;
use crate::model::{EntryId, Error, Result, Tier};
use crate::store::Block;
use crate::store::Collection;
use crate::store::Object;
use crate::store::Verify;
use crate::store::{ROOT, State};
use crate::stream::sums;

/// Hexadecimal digits of a digest.
const DIGEST_DIGITS: u64 = 64;

/// A file with a digest.
pub(super) struct Summed {
    /// Its path below the collection, as `sha256sum` writes it.
    name: Vec<u8>,
    /// Whether something in it is escaped, which a backslash before the line says.
    is_escaped: bool,
    objects: Vec<Arc<Object>>,
    /// Where the records of an embedding batch lie.
    records: Option<Arc<Runs>>,
    node: EntryId,
    /// The digest of the bytes that came in, where it was taken.
    kept: Option<[u8; 32]>,
}

/// All files of a collection in the order of their paths, by every name.
pub(super) fn files(state: &State) -> Result<Vec<Summed>> {
    let mut found = Vec::new();
    let mut waiting = vec![(ROOT, Vec::new())];
    // A damaged catalog could have a circle of directories.
    let mut seen = HashSet::from([ROOT]);
    while let Some((directory, path)) = waiting.pop() {
        let Some(names) = state.directory(directory) else { continue };
        for (_, name, node) in names.after(EntryId(0)) {
            let below = if path.is_empty() { name.to_vec() } else { [&path, &b"/"[..], name].concat() };
            let Some(entry) = state.node(node) else { continue };
            match entry.file() {
                Some(file) => found.push((below, file, node)),
                None if state.directory(node).is_some() && seen.insert(node) => waiting.push((node, below)),
                None => {}
            }
        }
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found.into_iter().map(|(path, file, node)| summed(state, &path, file, node)).collect()
}

fn summed(state: &State, path: &[u8], file: &FileEntry, node: EntryId) -> Result<Summed> {
    let objects: Option<Vec<_>> = file.objects.iter().map(|id| state.object(*id).cloned()).collect();
    let objects = objects.ok_or_else(|| Error::corrupt("an object is not there; run tierfs fsck"))?;
    let mut name = Vec::with_capacity(path.len());
    for byte in path {
        match byte {
            b'\\' => name.extend(b"\\\\"),
            b'\n' => name.extend(b"\\n"),
            b'\r' => name.extend(b"\\r"),
            byte => name.push(*byte),
        }
    }
    // An index may show another hash than it came with.
    let kept = file.digests.sha256().filter(|_| state.batch_beside(node).is_none());
    let records = file.records.clone();
    Ok(Summed { is_escaped: name.len() != path.len(), name, objects, records, node, kept })
}

/// Bytes of the text about these files.
pub(super) fn bytes(files: &[Summed]) -> u64 {
    let line = |file: &Summed| u64::from(file.is_escaped) + DIGEST_DIGITS + 2 + file.name.len() as u64 + 1;
    files.iter().map(line).sum()
}

/// The text about these files: reads them, but for those of which a digest was taken when they came
/// in and those that were read since and did not change.
pub(super) fn text(collection: &Arc<Collection>, files: &[Summed], verify: Verify) -> Result<Vec<u8>> {
    let mut text = Vec::with_capacity(bytes(files) as usize);
    for file in files {
        let digest = match file.kept.filter(|_| file.objects.iter().all(|object| is_as_it_came(object))) {
            Some(kept) => kept,
            None => {
                let parts = (file.objects.as_slice(), file.records.as_ref());
                sums(collection, file.node, parts, verify)?.sha256
            }
        };
        if file.is_escaped {
            text.push(b'\\');
        }
        text.extend(digest.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()));
        text.extend(b"  ");
        text.extend(&file.name);
        text.push(b'\n');
    }
    Ok(text)
}

/// Whether all blocks are exact, in the store. A file that was written to has no kept digest.
fn is_as_it_came(object: &Object) -> bool {
    let layout = object.layout();
    let is_exact =
        |(_, block): (_, Option<Block>)| block.is_some_and(|block| block.stored.tier == Tier::Exact);
    object.origin.is_none() && !object.is_dirty() && object.pieces(0..layout.blocks(), layout).all(is_exact)
}
