//! Where a snapshot has the exact bytes of tensors and files, by names: two snapshots of a collection may have a tensor
//! in different files, since an import that replaces a file makes a new one.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::format::snapshot::manifest::FileKind;
use crate::model::{Dtype, ObjectId, Result, StoreId, Tier};
use crate::store::object::Object;
use crate::store::snapshot::canonical::Canonical;
use crate::store::snapshot::parents::state_of_log;
use crate::store::snapshot::payloads::{CanonicalFile, Payload};
use crate::store::state::State;
use crate::store::state::node::Node;

/// The name of an object: the path of its file and its own name, or its place among the nameless ones.
type Key = (Vec<u8>, String, u32);

/// The places of payloads in the files of a snapshot.
pub struct StoredObjects {
    /// Exact bytes, by the names of objects.
    exact: HashMap<Key, Vec<StoredRun>>,
    /// Encoded payloads, by their checksums and lengths. Two may agree in both, so a user compares the bytes.
    encoded: HashMap<(u32, u64), StoredPlace>,
}

/// Consecutive bytes of an object in a file of a snapshot.
#[derive(Clone, Copy)]
struct StoredRun {
    /// Its offset in the object.
    at: u64,
    len: u64,
    place: StoredPlace,
}

/// Bytes of a canonical file.
pub struct Content {
    /// How many.
    pub len: u64,
    /// The type of their elements.
    pub dtype: Dtype,
    /// The object whose exact bytes they are, and the offset in it.
    object: Option<(Key, u64)>,
    /// The checksum of the encoded payload that they are.
    checksum: Option<u32>,
}

impl Content {
    /// Whether they are exact bytes of an object, which another snapshot may have too.
    pub fn is_named(&self) -> bool {
        self.object.is_some()
    }
}

/// Bytes of a file of a snapshot.
pub struct StoredRange {
    /// How many.
    pub len: u64,
    /// Where they begin; `None` if the snapshot has no such bytes.
    pub place: Option<StoredPlace>,
}

/// A place in a file of a snapshot.
#[derive(Clone, Copy)]
pub struct StoredPlace {
    /// The kind of the file.
    pub kind: FileKind,
    /// Its number.
    pub number: u64,
    /// The offset in it.
    pub offset: u64,
}

impl StoredObjects {
    /// The objects of the snapshot with this canonical log, which names the store `remote`.
    pub fn of_log(log: &[u8], remote: StoreId) -> Result<StoredObjects> {
        let (state, mut exact, mut encoded) = (state_of_log(log, remote)?, HashMap::new(), HashMap::new());
        for (id, key) in keys(&state) {
            if let Some(object) = state.object(id) {
                exact.insert(key, runs(object));
                encoded.extend(encoded_payloads(object));
            }
        }
        Ok(StoredObjects { exact, encoded })
    }

    /// The places of the bytes that an earlier state had where `content` is now, in order.
    pub fn places(&self, content: &Content) -> Vec<StoredRange> {
        let Some((key, begin)) = &content.object else {
            let place = content.checksum.and_then(|checksum| self.encoded.get(&(checksum, content.len)));
            return vec![StoredRange { len: content.len, place: place.copied() }];
        };
        let runs = self.exact.get(key).map(Vec::as_slice).unwrap_or_default();
        let (mut at, end, mut found) = (*begin, begin.saturating_add(content.len), Vec::new());
        let first = runs.partition_point(|run| run.at.saturating_add(run.len) <= at);
        for run in runs.iter().skip(first).take_while(|run| run.at < end) {
            if run.at > at {
                found.push(StoredRange { len: run.at - at, place: None });
                at = run.at;
            }
            // A log of a remote may say anything.
            let (skip, len) = (at - run.at, run.at.saturating_add(run.len).min(end) - at);
            let place = StoredPlace { offset: run.place.offset.saturating_add(skip), ..run.place };
            found.push(StoredRange { len, place: Some(place) });
            at += len;
        }
        if at < end {
            found.push(StoredRange { len: end - at, place: None });
        }
        found
    }
}

impl Canonical {
    /// The contents of stretches of a file, in order.
    pub fn contents(
        &self,
        file: &CanonicalFile,
        stretches: &[Range<u64>],
        names: &ObjectNames,
    ) -> Vec<Content> {
        let mut found = Vec::new();
        let opaque = |len| Content { len, dtype: Dtype::U8, object: None, checksum: None };
        for stretch in stretches {
            let mut at = stretch.start;
            let first = file.sources.partition_point(|source| source.offset.saturating_add(source.len) <= at);
            for source in file.sources.iter().skip(first).take_while(|source| source.offset < stretch.end) {
                if source.offset > at {
                    // Zeros between slots.
                    found.push(opaque(source.offset - at));
                    at = source.offset;
                }
                let len = source.offset.saturating_add(source.len).min(stretch.end) - at;
                let skip = at - source.offset;
                at += len;
                let mut checksum = None;
                let exact = match (source.payload, self.object(source.object)) {
                    (Payload::Block(index), Some(object)) => {
                        let layout = object.logged_layout();
                        let block = object.blocks.read().get(index, layout);
                        let tier = block.map(|block| block.stored.tier);
                        let is_exact = tier == Some(Tier::Exact)
                            || (tier == Some(Tier::Absent) && file.kind == FileKind::Data);
                        let is_whole = !is_exact && len == source.len;
                        checksum = block.filter(|_| is_whole).map(|block| block.stored.checksum);
                        is_exact.then(|| (object, layout.start(index).saturating_add(skip)))
                    }
                    _ => None,
                };
                let named = exact.and_then(|(object, at)| Some((object, names.0.get(&object.entry.id)?, at)));
                let Some((object, key, begin)) = named else {
                    found.push(Content { checksum, ..opaque(len) });
                    continue;
                };
                match found.last_mut() {
                    Some(Content { len: before, object: Some((last, from)), .. })
                        if last == key && *from + *before == begin =>
                    {
                        *before += len;
                    }
                    _ => {
                        let (dtype, object) = (object.dtype(), Some((key.clone(), begin)));
                        found.push(Content { dtype, object, ..opaque(len) });
                    }
                }
            }
            if at < stretch.end {
                found.push(opaque(stretch.end - at));
            }
        }
        found
    }

    /// The names of its objects.
    pub fn object_names(&self) -> ObjectNames {
        ObjectNames(keys(self.state()))
    }
}

/// The names of the objects of a canonical collection.
pub struct ObjectNames(HashMap<ObjectId, Key>);

/// The names of all objects that files list.
fn keys(state: &State) -> HashMap<ObjectId, Key> {
    let mut found = HashMap::new();
    let is_whole = |node: &&Arc<Node>| node.file().is_some_and(|file| file.container.is_none());
    let mut files: Vec<(Vec<u8>, &Arc<Node>)> =
        state.nodes().filter(is_whole).map(|node| (state.path(node.entry.id), node)).collect();
    files.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    for (path, node) in files {
        let mut nameless = 0;
        for id in node.file().into_iter().flat_map(|file| file.objects.iter()) {
            let part = state.part_of(*id).and_then(|part| state.node(part));
            let name = part.and_then(|part| Some(part.file()?.tensor.as_ref()?.name.to_string()));
            let place = if name.is_some() { 0 } else { nameless };
            nameless += u32::from(name.is_none());
            found.entry(*id).or_insert_with(|| (path.clone(), name.unwrap_or_default(), place));
        }
    }
    found
}

/// The encoded payloads of an object of a canonical state.
fn encoded_payloads(object: &Object) -> Vec<((u32, u64), StoredPlace)> {
    let mut found = Vec::new();
    for (_, block) in object.blocks.read().pieces(object.logged_layout()) {
        let stored = block.stored;
        if stored.tier != Tier::Exact && stored.has_slot() {
            let (kind, number) = (FileKind::Tier, u64::from(stored.tier.byte()));
            let place = StoredPlace { kind, number, offset: stored.offset };
            found.push(((stored.checksum, u64::from(stored.len)), place));
        }
    }
    found
}

/// The exact bytes of an object of a canonical state.
fn runs(object: &Object) -> Vec<StoredRun> {
    let layout = object.logged_layout();
    let data = object.extent().map(|extent| extent.file);
    let mut found: Vec<StoredRun> = Vec::new();
    for (piece, block) in object.blocks.read().pieces(layout) {
        let stored = block.stored;
        if stored.tier != Tier::Exact || stored.is_zeros() {
            continue;
        }
        let place = match data.filter(|_| stored.in_data) {
            Some(number) => Some((FileKind::Data, number)),
            None => stored.has_slot().then(|| (FileKind::Tier, u64::from(stored.tier.byte()))),
        };
        let Some((kind, number)) = place else { continue };
        let (at, len) = (layout.start(piece.start), u64::from(stored.len));
        let place = StoredPlace { kind, number, offset: stored.offset };
        match found.last_mut() {
            Some(last)
                if (last.place.kind, last.place.number) == (kind, number)
                    && last.at.saturating_add(last.len) == at
                    && last.place.offset.saturating_add(last.len) == place.offset =>
            {
                last.len += len;
            }
            _ => found.push(StoredRun { at, len, place }),
        }
    }
    found
}
