//! Payloads of corrupt blocks from other tensors and files of the store, which other collections may have. To open
//! these takes locks that no reader may wait for inside of a read, so reads look here between two tries.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::format::log::catalog::Digests;
use crate::model::{CollectionName, EntryId, Instant, ObjectId, Result};
use crate::store::{Block, Collection, Node, Object, OpenObject, Store, Verify};
use crate::stream::sums;

/// Most bytes of payloads that wait for readers.
const GATHERED_BYTES_MAX: usize = 16 << 20;
/// Equal files, and a block that nobody had, are looked for again after this time.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Most such blocks that are remembered.
const MISSED_MAX: usize = 1 << 16;

/// Payloads of corrupt blocks that other tensors and files have.
#[derive(Default)]
pub(in crate::engine) struct Copies {
    /// Payloads for reads that shall be repeated.
    gathered: Mutex<Gathered>,
    /// The files that equal that of the object which was asked for last.
    equal: Mutex<Option<(Instant, Equal)>>,
}

#[derive(Default)]
struct Gathered {
    payloads: VecDeque<(Key, Arc<[u8]>)>,
    bytes: usize,
    /// Blocks that nobody had, and when they were looked for.
    missed: HashMap<Key, Instant>,
}

/// A block with its checksum and its epoch.
type Key = (ObjectId, u32, u32, u64);

fn key(open: &OpenObject, index: u32, block: &Block) -> Key {
    (open.object().entry.id, index, block.stored.checksum, block.epoch)
}

impl Copies {
    /// The payload of a corrupt block, if another tensor or file has it: the parent first. An error of a place is
    /// logged.
    pub fn payload(&self, store: &Store, open: &OpenObject, index: u32, block: &Block) -> Option<Vec<u8>> {
        let found = |found: Result<Option<Vec<u8>>>| {
            found.unwrap_or_else(|error| {
                log::debug!("{}: block {index} of a copy: {error}", open.collection().path());
                None
            })
        };
        let equal = || found(self.of_equal_file(store, open, index, block));
        found(of_parent(store, open, index, block)).or_else(equal)
    }

    /// The payload of a block, if it was gathered.
    pub fn gathered(&self, open: &OpenObject, index: u32, block: &Block) -> Option<Arc<[u8]>> {
        let wanted = key(open, index, block);
        let gathered = self.gathered.lock();
        gathered.payloads.iter().find(|(key, _)| *key == wanted).map(|(_, payload)| payload.clone())
    }

    /// Gathers the payload of a corrupt block, unless it was looked for in vain lately. Returns whether it is here.
    pub fn gather(&self, store: &Store, open: &OpenObject, index: u32, block: &Block) -> bool {
        let wanted = key(open, index, block);
        if self.gathered(open, index, block).is_some() {
            return true;
        }
        if self.gathered.lock().missed.get(&wanted).is_some_and(|missed| missed.elapsed() < AGAIN_AFTER) {
            return false;
        }
        if block.stored.len == 0 || open.has_sound_payload(index, block) {
            return false;
        }
        let found = self.payload(store, open, index, block);
        self.gathered.lock().keep(wanted, found)
    }

    /// The same bytes of a file of the tenant with the same BLAKE3, where that is exact.
    fn of_equal_file(
        &self,
        store: &Store,
        open: &OpenObject,
        index: u32,
        block: &Block,
    ) -> Result<Option<Vec<u8>>> {
        let equal = self.equal_files(store, open)?;
        for (name, node) in &equal.files {
            let collection = store.collection(open.collection().tenant(), name)?;
            let found = match equal.elements(&collection, *node, open.object(), index) {
                Ok(Some(elements)) => open.payload_of(block, &elements)?,
                Ok(None) => None,
                Err(error) => {
                    log::debug!("{}: not a copy: {error}", collection.path());
                    None
                }
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The files that equal that of an object.
    fn equal_files(&self, store: &Store, open: &OpenObject) -> Result<Equal> {
        let id = open.object().entry.id;
        if let Some((at, equal)) = &*self.equal.lock()
            && (equal.object == id && at.elapsed() < AGAIN_AFTER)
        {
            return Ok(equal.clone());
        }
        let equal = Equal::find(store, open)?;
        *self.equal.lock() = Some((Instant::now(), equal.clone()));
        Ok(equal)
    }
}

impl Gathered {
    /// Notes the result of a search for a payload. Returns whether the search found one.
    fn keep(&mut self, key: Key, found: Option<Vec<u8>>) -> bool {
        let Some(found) = found else {
            if self.missed.len() >= MISSED_MAX {
                self.missed.clear();
            }
            self.missed.insert(key, Instant::now());
            return false;
        };
        self.bytes += found.len();
        self.payloads.push_back((key, found.into()));
        while self.bytes > GATHERED_BYTES_MAX
            && let Some((_, oldest)) = self.payloads.pop_front()
        {
            self.bytes = self.bytes.saturating_sub(oldest.len());
        }
        true
    }
}

/// The same block of the lineage parent, if that is stored alike, or has exact elements that give this payload.
fn of_parent(store: &Store, open: &OpenObject, index: u32, block: &Block) -> Result<Option<Vec<u8>>> {
    let object = open.object();
    let Some(parent) = &object.entry.parent else { return Ok(None) };
    let CollectionName { tenant, name } = parent.place(open.collection().place());
    let collection = store.collection(tenant, name)?;
    let Some(found) = collection.state().object(parent.object).cloned() else { return Ok(None) };
    let len = |object: &Object| {
        let layout = object.layout();
        (object.dtype(), (index < layout.blocks()).then(|| layout.len(index)))
    };
    if len(object) != len(&found) {
        return Ok(None);
    }
    let parent = OpenObject::open(&collection, &found, Verify::Always)?;
    if let Some(payload) = parent.equal_payload(index, block)? {
        return Ok(Some(payload));
    }
    let layout = found.layout();
    if !found.block(index, layout).is_some_and(|block| block.stored.tier.is_exact()) {
        return Ok(None);
    }
    let mut elements = vec![0; layout.len(index)];
    parent.read(layout.start(index), &mut elements)?;
    open.payload_of(block, &elements)
}

/// Files with the same bytes as that of an object.
#[derive(Clone)]
struct Equal {
    object: ObjectId,
    blake3: [u8; 32],
    /// Where the object begins in its file.
    offset: u64,
    /// The names of their collections, and their nodes. One without a digest may be another.
    files: Vec<(String, EntryId)>,
}

impl Equal {
    /// Looks for such files in all collections of the tenant.
    fn find(store: &Store, open: &OpenObject) -> Result<Equal> {
        let id = open.object().entry.id;
        let of_object = {
            let state = open.collection().state();
            let mut found = state.nodes().filter_map(|node| {
                let file = node.file().filter(|file| file.records.is_none() && file.objects.contains(&id))?;
                let before = file.objects.iter().take_while(|other| **other != id);
                let offset = before.filter_map(|before| state.object(*before)).map(|before| before.bytes());
                Some((file.digests.blake3()?, node.bytes, offset.sum()))
            });
            found.next()
        };
        let Some((blake3, bytes, offset)) = of_object else {
            return Ok(Equal { object: id, blake3: [0; 32], offset: 0, files: Vec::new() });
        };
        let may_be = |node: &&Arc<Node>| {
            node.bytes == bytes
                && node.file().is_some_and(|file| {
                    let is_equal = match file.digests.blake3() {
                        Some(found) => found == blake3,
                        None => file.digests == Digests::NotTaken,
                    };
                    is_equal && file.records.is_none() && !file.objects.contains(&id)
                })
        };
        let (tenant, mut files) = (open.collection().tenant(), Vec::new());
        for name in store.collections(tenant)? {
            // One that is damaged or gone has no copies.
            let Ok(collection) = store.collection(tenant, &name) else { continue };
            let state = collection.state();
            // To compare a file at a URL would be to fetch it.
            let is_read = |id: &ObjectId| {
                let origin = state.object(*id).and_then(|object| object.origin.as_ref());
                origin.is_none_or(|origin| !origin.file.is_unread())
            };
            let is_here =
                |node: &&Arc<Node>| node.file().is_some_and(|file| file.objects.iter().all(is_read));
            files.extend(
                state.nodes().filter(may_be).filter(is_here).map(|node| (name.clone(), node.entry.id)),
            );
        }
        Ok(Equal { object: id, blake3, offset, files })
    }

    /// The bytes of a file at the place of a block. `None` if they are not exact, or the file is not equal.
    fn elements(
        &self,
        collection: &Arc<Collection>,
        node: EntryId,
        of: &Object,
        index: u32,
    ) -> Result<Option<Vec<u8>>> {
        let objects = collection.objects_of(node)?;
        let has_digest =
            collection.state().node(node).and_then(|node| node.file()?.digests.blake3()).is_some();
        if !has_digest && sums(collection, node, &objects, None, Verify::First)?.blake3 != self.blake3 {
            return Ok(None);
        }
        let (start, mut elements) = (self.offset + of.layout().start(index), vec![0; of.layout().len(index)]);
        let (mut at, end) = (0, start + elements.len() as u64);
        for object in objects {
            let (from, until) = (start.max(at), end.min(at + object.bytes()));
            if from < until {
                let layout = object.layout();
                let blocks = layout.index(from - at)..layout.index(until - at - 1) + 1;
                let is_exact = |block: Option<Block>| block.is_some_and(|block| block.stored.tier.is_exact());
                if !object.pieces(blocks, layout).all(|(_, block)| is_exact(block)) {
                    return Ok(None);
                }
                let here = (from - start) as usize..(until - start) as usize;
                let Some(part) = elements.get_mut(here) else { return Ok(None) };
                OpenObject::open(collection, &object, Verify::Always)?.read(from - at, part)?;
            }
            at += object.bytes();
        }
        Ok((at >= end).then_some(elements))
    }
}
