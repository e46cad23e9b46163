//! Creates names for bytes that the collection has already, and symbolic links.

use std::sync::Arc;

use crate::format::log::catalog::{Entry, NodeEntry, NodeType};
use crate::ingest::bytes::options::Origin;
use crate::ingest::find::provenance::{Provenance, place_of};
use crate::ingest::find::walk::{Found, FoundLink};
use crate::ingest::publish::compare::node_at;
use crate::ingest::publish::names::Names;
use crate::model::{EntryId, Result};
use crate::store::Collection;
use crate::store::Touched;
use crate::store::Use;
use crate::store::now_nanoseconds;

/// Suffixes that alone determine how files are taken apart.
const SHARED_SUFFIXES: &[&[u8]] = &[b".safetensors", b".gguf"];
/// Suffixes of files that give their own name to their tensors.
const OWN_SUFFIXES: &[&[u8]] = &[b".npy", b".cgeb"];

/// Whether one file can have both names: its content is recognized alike under each.
pub(in crate::ingest) fn may_share(one: &[u8], other: &[u8]) -> bool {
    let suffix = |name: &[u8]| SHARED_SUFFIXES.iter().position(|suffix| name.ends_with(suffix));
    let has_own = |name: &[u8]| OWN_SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
    one == other || (suffix(one) == suffix(other) && !has_own(one) && !has_own(other))
}

/// Gives another name to a file and replaces the entry of that name. `false` if the file is gone.
pub(in crate::ingest) fn link(
    collection: &Arc<Collection>,
    node: EntryId,
    found: &Found,
    origin: &Origin,
) -> Result<bool> {
    let _reserved = collection.meter().reserve(Use::FILE)?;
    let name = found.target.name.clone();
    collection.commit(Touched::default(), |batch, state| {
        let Some(there) = state.node(node) else { return Ok(false) };
        if node_at(state, &found.target) == Some(node) {
            return Ok(true);
        }
        let ctime = now_nanoseconds();
        let entry = Entry::Node(Box::new(NodeEntry { ctime, ..there.entry.clone() }));
        let provenance = Provenance::of(state, node).map(|mut provenance| {
            provenance.places.push(place_of(&found.root, &found.target));
            provenance.entry(node)
        });
        let mut names = Names::new(batch, state, origin);
        let parent = names.directories(&found.target.directories)?;
        names.replace(parent, &name)?;
        names.entries([entry].into_iter().chain(provenance));
        names.name(parent, &name, node);
        names.finish();
        Ok(true)
    })
}

/// Creates a symbolic link and replaces the entry of that name. `false` if it exists already.
pub(in crate::ingest) fn symlink(
    collection: &Arc<Collection>,
    link: &FoundLink,
    origin: &Origin,
) -> Result<bool> {
    if is_there(collection, link) {
        return Ok(false);
    }
    let _reserved = collection.meter().reserve(Use::FILE)?;
    let name = link.target.name.clone();
    collection.commit(Touched::default(), |batch, state| {
        let mut names = Names::new(batch, state, origin);
        let parent = names.directories(&link.target.directories)?;
        names.replace(parent, &name)?;
        let node = names.number();
        names.node(node, 0o777, NodeType::Symlink(link.text.clone()));
        let provenance = Provenance::new(origin.mtime, None, vec![place_of(&link.root, &link.target)]);
        names.entries([provenance.entry(node)].into_iter());
        names.name(parent, &name, node);
        names.finish();
        Ok(true)
    })
}

/// Whether the collection has this link.
pub(in crate::ingest) fn is_there(collection: &Collection, link: &FoundLink) -> bool {
    let state = collection.state();
    let node = node_at(&state, &link.target).and_then(|node| state.node(node));
    node.is_some_and(|node| matches!(&node.entry.node_type, NodeType::Symlink(text) if *text == link.text))
}

/// Records that a file equals its source, which has another modification time by now.
pub(in crate::ingest) fn set_time(collection: &Collection, node: EntryId, found: &Found) -> Result<()> {
    collection.record(Touched::default(), |batch, state| {
        let Some(there) = state.node(node) else { return Ok(()) };
        let ctime = now_nanoseconds();
        batch.node(NodeEntry { mtime: found.mtime, ctime, ..there.entry.clone() });
        if let Some(provenance) = Provenance::of(state, node) {
            batch.entry(Provenance { mtime: found.mtime, ..provenance }.entry(node));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::may_share;

    #[test]
    fn names_share_a_file_where_its_tensors_are_alike() {
        for (one, other, may) in [
            ("x.npy", "x.npy", true),
            ("x.npy", "y.npy", false),
            ("x.npy", "x", false),
            ("a.safetensors", "b.safetensors", true),
            ("a.safetensors", "a.bin", false),
            ("a.safetensors", "a.gguf", false),
            ("a.json", "b.txt", true),
        ] {
            assert_eq!(may_share(one.as_bytes(), other.as_bytes()), may, "{one} {other}");
        }
    }
}
