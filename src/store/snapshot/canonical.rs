//! A frozen collection as canonical files: equal states give equal bytes, whatever their history, and
//! collections with the same import have the same payload files.
//!
//! Tier files, `delta.dat` and `factor.dat` have their payloads without gaps: files in the order of their
//! nodes, objects in the order of their file, blocks in order. Data files keep their layout. A file outside
//! the store becomes a data file, and an absent block that only such a file has becomes exact. The log is a
//! checkpoint and keeps the epochs. It leaves out objects without a file, and settings of one machine.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::format::checksum;
use crate::format::log::catalog::Entry;
use crate::format::log::record::{Record, Stored};
use crate::format::snapshot::manifest::{FileKind, OwnerAndMode};
use crate::format::snapshot::tenant_list::ListedDirectory;
use crate::model::{Error, ErrorKind, ObjectId, OwnedCollectionName, Progress, Result, Silent, StoreId};
use crate::store::batch::BatchRecord;
use crate::store::collection::lineage::{CHILDREN_OF, PARENTS_IN};
use crate::store::collection::open_object::{OpenObject, Verify};
use crate::store::collection::{Collection, LIMITS_SETTING};
use crate::store::disk::memory::MemoryDisk;
use crate::store::disk::{Disk, Open};
use crate::store::log::LOG_NAME;
use crate::store::log::checkpoint::write_log;
use crate::store::object::Object;
use crate::store::object::blocks::Block;
use crate::store::object::links::DeltaLink;
use crate::store::snapshot::freeze::{Frozen, copied, next_sequence};
use crate::store::snapshot::payloads::{CanonicalFile, Payload, PayloadReader, Source};
use crate::store::state::directory::Directory;
use crate::store::state::node::Node;
use crate::store::state::pinned_copy::PIN;
use crate::store::state::{ROOT, State};

/// The generation of a canonical log.
const GENERATION: u64 = 1;
/// The number of the collection in a canonical log. A disk of snapshots replaces it by a number of its own.
const NUMBER: u32 = 1;
/// The setting with the path of an imported file's source on this machine.
const IMPORTED: &str = "imported";
const RECONSTRUCT: &str = "reconstruct";
/// Its values for bytes that this machine has elsewhere: in files outside the store, which become data files, and in
/// the remote of a clone.
const ELSEWHERE: [&str; 2] = ["origin", "remote"];

/// A collection as canonical files.
pub struct Canonical {
    /// Its hold keeps the bytes that the sources name.
    frozen: Frozen,
    objects: Vec<Arc<Object>>,
    owner: OwnerAndMode,
    directory: ListedDirectory,
    created_at: u64,
    log: Vec<u8>,
    needs: Vec<OwnedCollectionName>,
    files: Vec<CanonicalFile>,
    state: State,
}

impl Frozen {
    /// The canonical files, with a log for the store `remote`. `Corrupt` if a block or an object is lost,
    /// `Absent` if an absent block has no source.
    pub fn canonical(&self, remote: StoreId) -> Result<Canonical> {
        self.canonical_with(remote, &Silent)
    }

    /// [`canonical`](Self::canonical) with progress. Fails with `Interrupted` if it is cancelled while bytes at URLs are read.
    pub fn canonical_with(&self, remote: StoreId, progress: &dyn Progress) -> Result<Canonical> {
        let still = self.still();
        let path = still.path();
        let mut far = read_far(still, progress)?;
        let source = still.state();
        let node = source.node(ROOT).ok_or_else(|| Error::corrupt(format!("{path} has no directory")))?;
        let owner = OwnerAndMode { uid: node.entry.uid, gid: node.entry.gid, mode: node.entry.mode };
        let directory = ListedDirectory {
            // Its name, its `.`, and the `..` of each directory in it.
            links: source.directory(ROOT).map_or(0, Directory::directories).saturating_add(2),
            accessed: node.entry.atime,
            modified: node.entry.mtime,
            changed: node.entry.ctime,
        };
        let objects = objects_in_order(&source, &path)?;
        let listed: HashSet<ObjectId> = objects.iter().map(|object| object.entry.id).collect();
        let state = copied(&source, |added| is_kept(added, &listed))?;
        let state = with_number(state)?;
        let mut files = Files::default();
        for (place, from) in (0..).zip(&objects) {
            let object = state.object(from.entry.id).ok_or_else(|| lacks(&path, from))?;
            let checksums = far.remove(&from.entry.id).unwrap_or_default();
            let placed = files.place(Placing { place, from, object, checksums });
            placed.map_err(|error| error.at(still.path_in(&source, from)))?;
        }
        let mut files = files.finish(&path)?;
        set_times(&mut files, &source, &objects);
        let needing = objects.iter().filter_map(|from| state.object(from.entry.id));
        let needing = needing.filter(|object| object.needs_parent());
        let needs: BTreeSet<OwnedCollectionName> =
            needing.filter_map(|object| object.entry.parent.as_ref()?.collection.clone()).collect();
        let log = log_of(&state, remote)?;
        let created_at = source.created_at();
        drop(source);
        Ok(Canonical {
            frozen: self.clone(),
            objects,
            owner,
            directory,
            created_at,
            log,
            needs: needs.into_iter().collect(),
            files,
            state,
        })
    }
}

impl Canonical {
    /// The collection as it was frozen.
    pub(super) fn still(&self) -> &Arc<Collection> {
        self.frozen.still()
    }

    /// The collection that goes on.
    pub(super) fn live(&self) -> &Arc<Collection> {
        self.frozen.live()
    }

    /// An object, by its place in the list.
    pub(super) fn object(&self, place: u32) -> Option<&Arc<Object>> {
        self.objects.get(place as usize)
    }

    /// The owner of the collection.
    pub fn owner(&self) -> OwnerAndMode {
        self.owner
    }

    /// The attributes of its directory.
    pub fn directory(&self) -> ListedDirectory {
        self.directory
    }

    /// When the collection was created, in seconds since 1970.
    pub fn created_at(&self) -> u64 {
        self.created_at
    }

    /// The log.
    pub fn log(&self) -> &[u8] {
        &self.log
    }

    /// The tenants and names of other collections that blocks are differences from, sorted.
    pub fn needs(&self) -> &[OwnedCollectionName] {
        &self.needs
    }

    /// The files beside the log, in the order of their kinds and numbers.
    pub fn files(&self) -> &[CanonicalFile] {
        &self.files
    }

    pub(super) fn frozen(&self) -> &Frozen {
        &self.frozen
    }

    /// The objects of the frozen collection, in the order in which they have their places.
    pub(super) fn objects(&self) -> &[Arc<Object>] {
        &self.objects
    }

    /// The state that the log describes.
    pub(in crate::store) fn state(&self) -> &State {
        &self.state
    }

    /// Replaces `out` by the bytes of stretches of a file, each payload compared with its checksum.
    /// `Corrupt`, with the path, if one differs.
    pub fn read(&self, file: &CanonicalFile, stretches: &[Range<u64>], out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        let mut reader = PayloadReader::new(self.frozen.still(), &self.objects, &self.state);
        stretches.iter().try_for_each(|stretch| reader.read(file, stretch, out))
    }
}

/// The objects of all files, in the order of the nodes, then of the file. Whole files come before tensors of
/// containers.
fn objects_in_order(state: &State, path: &str) -> Result<Vec<Arc<Object>>> {
    let mut nodes: Vec<&Arc<Node>> = state.nodes().collect();
    nodes.sort_by_key(|node| (node.file().is_some_and(|file| file.container.is_some()), node.entry.id));
    let mut seen = HashSet::new();
    let mut objects = Vec::new();
    for node in nodes {
        for id in node.file().into_iter().flat_map(|file| file.objects.iter()).filter(|id| seen.insert(**id))
        {
            let object = state.object(*id).ok_or_else(|| {
                let below = String::from_utf8_lossy(&state.path(node.entry.id)).into_owned();
                Error::corrupt(format!("{path}/{below}: object {id} is missing; run tierfs fsck"))
            })?;
            objects.push(object.clone());
        }
    }
    Ok(objects)
}

/// Whether a canonical log keeps this record of a state.
fn is_kept(added: &BatchRecord, objects: &HashSet<ObjectId>) -> bool {
    match (&added.entry, &added.record) {
        (Some(Entry::Object(entry)), _) => objects.contains(&entry.id),
        (Some(Entry::Outside(_)), _) => false,
        (Some(Entry::Setting { key, value, .. }), _) => {
            !is_of_one_machine(key)
                && (key != RECONSTRUCT || value.as_deref().is_none_or(|value| !ELSEWHERE.contains(&value)))
        }
        (Some(_), _) => true,
        (
            None,
            Record::Create { object, .. }
            | Record::CreateRun { object, .. }
            | Record::SlotRun { object, .. }
            | Record::EmptyRun { object, .. }
            | Record::Migrate { object, .. }
            | Record::Delta { object, .. }
            | Record::Factor { object, .. },
        ) => objects.contains(object),
        (None, _) => true,
    }
}

/// Whether a setting has a meaning on this machine only: pins, limits, paths of sources, children.
fn is_of_one_machine(key: &str) -> bool {
    let is_pin = key.strip_prefix(PIN).is_some_and(|form| form.is_empty() || form.starts_with('.'));
    let is_lineage = key.starts_with(CHILDREN_OF) || key.starts_with(PARENTS_IN);
    is_pin || key == LIMITS_SETTING || key == IMPORTED || is_lineage
}

/// The state with the number that canonical logs have.
fn with_number(mut state: State) -> Result<State> {
    let (created_at, last_entry) = (state.created_at(), state.last_entry());
    state.apply_entry(Entry::Collection { number: NUMBER, created_at, last_entry })?;
    Ok(state)
}

/// An object that gets its places.
struct Placing<'a> {
    /// Its place in the list of objects.
    place: u32,
    from: &'a Object,
    /// The copy of `from`, for the log.
    object: &'a Object,
    /// Checksums of blocks at a URL that the log does not have.
    checksums: Vec<Option<u32>>,
}

/// The checksums of the blocks of each object that lie at a URL and that nobody has read: a remote gets these bytes, and its
/// log has to say what they are.
fn read_far(still: &Arc<Collection>, progress: &dyn Progress) -> Result<HashMap<ObjectId, Vec<Option<u32>>>> {
    let is_unread =
        |object: &&Arc<Object>| object.origin.as_ref().is_some_and(|origin| origin.file.is_unread());
    let objects: Vec<Arc<Object>> = still.state().objects().filter(is_unread).cloned().collect();
    let (mut all, mut bytes) = (HashMap::new(), Vec::new());
    for object in objects {
        let open = OpenObject::open(still, &object, Verify::First)?;
        let layout = object.logged_layout();
        let mut checksums = vec![None; layout.blocks() as usize];
        for (index, block) in object.stored_blocks(0..layout.blocks(), layout) {
            if !open.is_far(index, &block) {
                continue;
            }
            progress.check()?;
            bytes.resize(layout.len(index), 0);
            let is_read =
                open.read_origin(index, &mut bytes).map_err(|error| error.at(still.path_of(&object)))?;
            if let Some(checksum) = checksums.get_mut(index as usize).filter(|_| is_read) {
                *checksum = Some(checksum::of(&bytes));
            }
        }
        all.insert(object.entry.id, checksums);
    }
    Ok(all)
}

/// The payload files that are being put together.
#[derive(Default)]
pub(super) struct Files(BTreeMap<(FileKind, u64), CanonicalFile>);

impl Files {
    /// The file of a kind and number.
    pub fn file(&mut self, kind: FileKind, number: u64) -> &mut CanonicalFile {
        self.0.entry((kind, number)).or_insert_with(|| CanonicalFile::new(kind, number))
    }

    /// Gives the payloads of an object their places.
    fn place(&mut self, Placing { place, from, object, checksums }: Placing<'_>) -> Result<()> {
        let layout = object.logged_layout();
        let begins: Vec<u64> = (0..4).map(|number| self.file(FileKind::Tier, number).bytes).collect();
        let begin_deltas = self.file(FileKind::Delta, 0).bytes;
        let mut in_data: Vec<Source> = Vec::new();
        let blocks: Vec<(Range<u32>, Block)> = object.blocks.read().pieces(layout).collect();
        let has_factor = |block: &Block| object.factor_of(block).is_some();
        let mut is_factored = false;
        for (piece, mut block) in blocks {
            let index = piece.start;
            if block.stored.is_lost() {
                let text = format!("{} of its blocks are lost; copy it in again", piece.len());
                return Err(Error::corrupt(text));
            }
            if block.stored.is_zeros() {
                continue;
            }
            let links = object.deltas(index, block.epoch);
            if block.stored.is_absent() {
                if let Some(exact) = from.origin_place(index) {
                    // The file outside the store becomes a data file, which has the block.
                    block.stored = exact;
                    object.forget_deltas(index, block.epoch);
                    object.set_block(index, block, layout)?;
                } else if links.is_none() && !has_factor(&block) {
                    let text = format!("block {index} is absent and has no source; run tierfs stat on it");
                    return Err(Error::new(ErrorKind::Absent, text));
                }
                is_factored |= has_factor(&block);
            }
            let len = u64::from(block.stored.len);
            if block.stored.has_slot() {
                let file = self.file(FileKind::Tier, u64::from(block.stored.tier.byte()));
                let offset = file.add_slot(place, len, Payload::Block(index));
                let stored = Stored { offset, ..block.stored };
                object.set_block(index, Block { stored, ..block }, layout)?;
            } else if block.stored.in_data {
                if let Some(checksum) = checksums.get(index as usize).copied().flatten() {
                    block.stored.checksum = checksum;
                    object.set_block(index, block, layout)?;
                }
                in_data.push(Source {
                    offset: block.stored.offset,
                    len,
                    object: place,
                    payload: Payload::Block(index),
                });
            }
            if let Some(links) = object.deltas(index, block.epoch) {
                let placed: Arc<[DeltaLink]> = (0..)
                    .zip(links.iter())
                    .map(|(number, link)| {
                        let payload = Payload::Delta { block: index, place: number };
                        let offset =
                            self.file(FileKind::Delta, 0).add_slot(place, u64::from(link.len), payload);
                        DeltaLink { offset, ..*link }
                    })
                    .collect();
                object.write_state().deltas.write().insert((index, block.epoch), placed);
            }
        }
        for (number, begin) in (0..).zip(begins) {
            self.file(FileKind::Tier, number).end_object(begin);
        }
        self.file(FileKind::Delta, 0).end_object(begin_deltas);
        if is_factored && let Some((link, _)) = object.write_state().factor.write().as_mut() {
            let file = self.file(FileKind::Factor, 0);
            let begin = file.bytes;
            link.offset = file.add_slot(place, link.len, Payload::Factor);
            file.end_object(begin);
        }
        if let Some(extent) = object.extent() {
            let file = self.file(FileKind::Data, extent.file);
            file.bytes = file.bytes.max(extent.offset.saturating_add(layout.bytes));
            file.sources.extend(in_data);
        }
        Ok(())
    }

    /// The files with bytes, in order.
    pub fn finish(mut self, path: &str) -> Result<Vec<CanonicalFile>> {
        self.0.retain(|_, file| file.bytes > 0);
        let mut files: Vec<CanonicalFile> = self.0.into_values().collect();
        for file in &mut files {
            if file.kind == FileKind::Data {
                file.sources.sort_by_key(|source| source.offset);
                file.objects = stretches_of(&file.sources);
                let end = file.sources.last().map_or(0, |last| last.offset.saturating_add(last.len));
                file.bytes = file.bytes.max(end);
            }
            file.check(path)?;
        }
        Ok(files)
    }
}

/// The stretches of each object among payloads in the order of their file.
fn stretches_of(sources: &[Source]) -> Vec<Vec<Range<u64>>> {
    let of_object = sources.chunk_by(|one, next| one.object == next.object);
    let touching = |sources: &[Source]| -> Vec<Range<u64>> {
        let ends = |source: &Source| source.offset.saturating_add(source.len);
        let runs = sources.chunk_by(|one, next| ends(one) == next.offset);
        runs.filter_map(|run| Some(run.first()?.offset..ends(run.last()?))).collect()
    };
    of_object.map(touching).collect()
}

/// Gives each data file the time of the last change of a file that lies in it.
fn set_times(files: &mut [CanonicalFile], state: &State, objects: &[Arc<Object>]) {
    let extents: HashMap<ObjectId, u64> =
        objects.iter().filter_map(|object| Some((object.entry.id, object.extent()?.file))).collect();
    let mut times: HashMap<u64, i64> = HashMap::new();
    for node in state.nodes() {
        for id in node.file().into_iter().flat_map(|file| file.objects.iter()) {
            if let Some(number) = extents.get(id) {
                let latest = times.entry(*number).or_insert(node.entry.mtime);
                *latest = (*latest).max(node.entry.mtime);
            }
        }
    }
    for file in files.iter_mut().filter(|file| file.kind == FileKind::Data) {
        file.mtime = times.get(&file.number).copied().unwrap_or(0);
    }
}

/// The log of a state, as its bytes.
pub(in crate::store) fn log_of(state: &State, store: StoreId) -> Result<Vec<u8>> {
    let failed = |error| Error::io("writing a log in memory", error);
    let file = MemoryDisk::new().open(LOG_NAME, Open::Create).map_err(failed)?;
    let log = write_log(file.clone(), store, state, GENERATION, next_sequence(state))?;
    let mut bytes = vec![0; log.bytes() as usize];
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    Ok(bytes)
}

pub(super) fn lacks(path: &str, object: &Object) -> Error {
    Error::corrupt(format!("{path}: object {} is not in its copy", object.entry.id))
}
