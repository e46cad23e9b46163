//! Makes collections of snapshots whose files are fetched when they are read: clones. Replaces the snapshot of a
//! clone by another.
//!
//! The directory is put together under a name that no collection has, and which the next opening of the store
//! removes. It takes its place in one step.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::format::log::catalog::Entry;
use crate::format::snapshot::manifest::{FileKind, Manifest, ManifestFile, Piece, PieceEncoding};
use crate::format::snapshot::piece_map::{PieceMap, PieceState};
use crate::model::{CollectionName, Error, ErrorKind, OwnedCollectionName, Owner, Result, hex};
use crate::store::clones::{CloneSource, Clones, write_source};
use crate::store::collection::LIMITS_SETTING;
use crate::store::disk::memory::MemoryDisk;
use crate::store::disk::{Disk, File, Open};
use crate::store::log::LOG_NAME;
use crate::store::log::checkpoint::write_log;
use crate::store::log::replay::replay;
use crate::store::object::factors::FACTOR_FILE;
use crate::store::object::links::DELTA_FILE;
use crate::store::pieces::layout::Layout;
use crate::store::pieces::map_of;
use crate::store::relocation::{Change, REMOVED};
use crate::store::snapshot::freeze::{Frozen, next_sequence};
use crate::store::snapshot::parents::{has_same_parents, state_of_log};
use crate::store::space::external_file::FAR_NAME;
use crate::store::space::files::payload_name;
use crate::store::state::{ROOT, State};
use crate::store::store::Store;

const RECONSTRUCT: &str = "reconstruct";
/// Its value for a clone: evicted bytes come from the remote.
const REMOTE: &str = "remote";
/// The first generation of a log.
const GENERATION: u64 = 1;
/// Bytes of the digest of a name in that of a directory which is put together.
const DRAFT_BYTES: usize = 16;
/// Permission bits of a tenant that a clone makes.
const TENANT_MODE: u32 = 0o755;

/// A snapshot to make a collection of.
pub struct Cloned<'a> {
    /// The remote and the snapshot in it.
    pub source: CloneSource,
    /// The manifest of the snapshot.
    pub manifest: &'a Manifest,
    /// The log of the snapshot.
    pub log: &'a [u8],
    /// The logs of the snapshots that it needs, as far as the remote has them.
    pub needs: &'a [(OwnedCollectionName, Vec<u8>)],
}

/// The pieces that files on this machine have, by digest: a file and the places of the bytes, in order.
type PiecesHere = HashMap<[u8; 32], (Arc<dyn File>, Vec<Range<u64>>)>;

impl Store {
    /// Makes a durable collection that is a clone of a snapshot, and its tenant if that is missing, which gets
    /// the user and the group `owner`. `Exists` if the name is taken, `NotFound` if a collection that its
    /// blocks need is not in this store, or has other blocks.
    pub fn clone_snapshot(&self, place: CollectionName<'_>, cloned: &Cloned, owner: Owner) -> Result<()> {
        let CollectionName { tenant, name } = place;
        if !self.tenants()?.iter().any(|there| there == tenant) {
            self.create_tenant(tenant, owner, TENANT_MODE)?;
        }
        self.check_new_collection(place)?;
        self.check_needs(cloned)?;
        let number = self.free_number()?;
        let draft = self.draft(place, number, cloned, None, &PiecesHere::new(), &[])?;
        let path = place.to_string();
        let placed = self.disk.rename(&draft, &path).and_then(|()| self.disk.sync_directory(tenant));
        placed.map_err(|error| Error::io(format!("making {path}"), error))?;
        // Its limits count from its first use on.
        self.collection(tenant, name).map(|_| ())
    }

    /// Makes a clone one of another snapshot, durably. Pieces of that snapshot that it has stay; all changes are lost.
    /// `Busy` if it is in use, or others need it.
    pub fn replace_clone(&self, place: CollectionName<'_>, cloned: &Cloned) -> Result<()> {
        let CollectionName { tenant, name } = place;
        self.check_needs(cloned)?;
        let clones = self.clones()?;
        let path = place.to_string();
        let limits = {
            let collection = self.collection(tenant, name)?;
            let state = collection.state();
            state.setting(ROOT, LIMITS_SETTING).map(str::to_owned)
        };
        let number = self.free_number()?;
        let mut draft = String::new();
        self.with_closed(&[place.owned()], Change::Remove, || {
            let failed = |error| Error::io(format!("replacing {path}"), error);
            let before = files_of(clones, &path).map_err(failed)?;
            draft = self.draft(place, number, cloned, limits, &pieces_here(&before), &before)?;
            drop(before);
            self.disk.exchange(&draft, &path).map_err(failed)?;
            self.disk.sync_directory(tenant).map_err(failed)
        })?;
        // It has no name any more. The next opening of the store removes the remains of a failure.
        if let Err(error) = self.remove_tree(&draft) {
            log::warn!("{path} was replaced, but some of its old files remain: {error}");
        }
        self.collection(tenant, name).map(|_| ())
    }

    /// Whether a collection is a clone, or has files at a URL, so that reads may wait for a network.
    pub fn waits_for_network(&self) -> bool {
        let mut waits = false;
        for tenant in self.tenants().unwrap_or_default() {
            for name in self.collections(&tenant).unwrap_or_default() {
                let is_far = self.disk.open(&format!("{tenant}/{name}/{FAR_NAME}"), Open::Read).is_ok();
                if let Some(clones) = self.upstream.clones().filter(|_| is_far) {
                    clones.note_far();
                }
                waits |= is_far || matches!(self.clone_source(&tenant, &name), Ok(Some(_)));
            }
        }
        waits
    }

    /// Whether reads may wait for a network since a file of a collection lies at a URL.
    pub fn has_far_files(&self) -> bool {
        self.upstream.clones().is_some_and(Clones::has_far)
    }

    /// The snapshot that a collection is a clone of; `None` if it is not a clone.
    pub fn clone_source(&self, tenant: &str, name: &str) -> Result<Option<CloneSource>> {
        let Some(clones) = self.upstream.clones() else { return Ok(None) };
        let path = format!("{tenant}/{name}");
        clones.source_of(&path).map_err(|error| Error::io(path, error))
    }

    /// Whether a clone was changed since it was made, pulled or pushed.
    pub fn is_clone_changed(&self, tenant: &str, name: &str) -> Result<bool> {
        let path = format!("{tenant}/{name}");
        let no_clone = || Error::invalid(format!("{path} is not a clone; tierfs clone makes one"));
        let collection = self.collection(tenant, name)?;
        let source = self.clone_source(tenant, name)?.ok_or_else(no_clone)?;
        if collection.state().outside_files().any(|outside| outside.object().is_some()) {
            // A snapshot has none. Its canonical log would need their bytes.
            return Ok(true);
        }
        let canonical = Frozen::of(&collection)?.canonical(source.remote)?;
        Ok(*blake3::hash(canonical.log()).as_bytes() != source.log)
    }

    fn clones(&self) -> Result<&Clones> {
        self.upstream.clones().ok_or_else(|| Error::invalid("a remote has no clones"))
    }

    /// The collections that blocks of a snapshot are differences from must be here, under the same names, with the same
    /// blocks.
    fn check_needs(&self, cloned: &Cloned) -> Result<()> {
        for need in &cloned.manifest.needs {
            self.collection(&need.tenant, &need.collection).map_err(|error| {
                let text = format!(
                    "it has blocks that are differences from {}/{}, which must be cloned first: {error}",
                    need.tenant, need.collection
                );
                Error::new(error.kind(), text)
            })?;
        }
        if cloned.needs.is_empty() {
            return Ok(());
        }
        let remote = cloned.manifest.remote;
        let child = state_of_log(cloned.log, remote)?;
        for (place, theirs) in cloned.needs {
            let here = self.collection(&place.tenant, &place.name)?;
            let theirs = state_of_log(theirs, remote).map_err(|error| error.at(place))?;
            if !has_same_parents(&child, place.borrowed(), &theirs, &here.state()) {
                let text = format!(
                    "it has blocks that are differences from {place}, and the {place} of this store has other blocks \
                     than that of the remote; if it is a clone that was changed, tierfs pull --theirs undoes that, else \
                     clone both into another store"
                );
                return Err(Error::new(ErrorKind::NotFound, text));
            }
        }
        Ok(())
    }

    /// Puts the directory of a clone together, durably. Returns its path, which is that of no collection.
    fn draft(
        &self,
        CollectionName { tenant, name }: CollectionName<'_>,
        number: u32,
        cloned: &Cloned,
        limits: Option<String>,
        here: &PiecesHere,
        before: &[Before],
    ) -> Result<String> {
        // The name itself may be as long as one can be.
        let named = hex(&blake3::hash(name.as_bytes()).as_bytes()[..DRAFT_BYTES]);
        let draft = format!("{tenant}/{REMOVED}{named}-{number}");
        let state = state_of(cloned, number, limits).map_err(|error| error.at(format!("{tenant}/{name}")))?;
        let clones = self.clones()?;
        let disk = clones.below();
        let failed = |error| Error::io(format!("making {draft}"), error);
        disk.create_directory(&draft).map_err(failed)?;
        disk.create_directory(&format!("{draft}/data")).map_err(failed)?;
        for (_, file) in cloned.manifest.files_of(None).unwrap_or_default() {
            let Some(below) = name_of(file) else { continue };
            let path = format!("{draft}/{below}");
            let map = Layout::of(cloned.manifest, file).to_empty_map();
            let same = before.iter().find(|before| before.below == below && before.is_same(file, &map));
            if let Some(before) = same
                && disk.link(&before.path, &path).is_ok()
            {
                write_map(&**disk, &path, &before.map).map_err(failed)?;
                continue;
            }
            write_file(&**disk, &path, file, map, here).map_err(failed)?;
        }
        let log = disk.open(&format!("{draft}/{LOG_NAME}"), Open::Create).map_err(failed)?;
        write_log(log, self.id(), &state, GENERATION, next_sequence(&state))?;
        let source =
            CloneSource { log: *blake3::hash(cloned.log).as_bytes(), push: None, ..cloned.source.clone() };
        write_source(&**disk, &draft, &source).map_err(failed)?;
        disk.sync_directory(&format!("{draft}/data")).map_err(failed)?;
        disk.sync_directory(&draft).map_err(failed)?;
        Ok(draft)
    }
}

/// The state that the log of a snapshot describes, as that of a clone.
fn state_of(cloned: &Cloned, number: u32, limits: Option<String>) -> Result<State> {
    let failed = |error| Error::io("reading the log of a snapshot", error);
    let file = MemoryDisk::new().open(LOG_NAME, Open::Create).map_err(failed)?;
    file.write_at(cloned.log, 0).map_err(failed)?;
    let replayed = replay(&file, cloned.manifest.remote)?;
    if let Some(damage) = &replayed.damage {
        return Err(Error::corrupt(format!("the log of the snapshot is damaged: {}", damage.reason)));
    }
    let mut state = replayed.state;
    state.forget_freed();
    if state.node(ROOT).is_none() {
        return Err(Error::corrupt("the log of the snapshot has no directory"));
    }
    if let Some(outside) = state.outside_files().next() {
        // No push makes that. It would have this machine read what the writer of the remote names.
        let text = format!("the log of the snapshot leads to {}, outside of the remote", outside.name());
        return Err(Error::corrupt(text));
    }
    let (created_at, last_entry) = (state.created_at(), state.last_entry());
    state.apply_entry(Entry::Collection { number, created_at, last_entry })?;
    let how = state.setting(ROOT, RECONSTRUCT).is_none().then(|| REMOTE.to_owned());
    for (key, value) in [(LIMITS_SETTING, limits), (RECONSTRUCT, how)] {
        if value.is_some() {
            state.apply_entry(Entry::Setting { node: ROOT, key: key.to_owned(), value })?;
        }
    }
    state.batch_ended();
    Ok(state)
}

/// The name of a file of a snapshot in the directory of its collection; `None` for the log.
fn name_of(file: &ManifestFile) -> Option<String> {
    match file.kind {
        FileKind::Log => None,
        FileKind::Data => Some(format!("data/{:016x}", file.number)),
        FileKind::Tier => Some(payload_name(u8::try_from(file.number).ok()?)),
        FileKind::Delta => Some(payload_name(DELTA_FILE)),
        FileKind::Factor => Some(payload_name(FACTOR_FILE)),
    }
}

/// Makes a file of a clone with those of its pieces that this machine has, and its map.
fn write_file(
    disk: &dyn Disk,
    path: &str,
    described: &ManifestFile,
    mut map: PieceMap,
    here: &PiecesHere,
) -> io::Result<()> {
    let file = disk.open(path, Open::Create)?;
    file.set_len(described.bytes)?;
    if !here.is_empty() {
        let mut buffer = Vec::new();
        for (place, (piece, state)) in (0..).zip(map.pieces.iter().zip(&mut map.states)) {
            if !read_here(here, piece, &mut buffer)? {
                continue;
            }
            for extent in map.extents.iter().filter(|extent| extent.piece == place) {
                let from = extent.piece_offset as usize;
                let part = buffer.get(from..from.saturating_add(extent.len as usize));
                file.write_at(part.ok_or(io::ErrorKind::InvalidData)?, extent.offset)?;
            }
            *state = PieceState::Here;
        }
    }
    file.sync_data()?;
    write_map(disk, path, &map)
}

fn write_map(disk: &dyn Disk, path: &str, map: &PieceMap) -> io::Result<()> {
    let file = disk.open(&map_of(path), Open::Create)?;
    file.write_at(&map.to_bytes(), 0)?;
    file.sync_data()
}

/// Reads a piece from the files of this machine, and compares it with its name. Returns whether they have it.
fn read_here(here: &PiecesHere, piece: &Piece, out: &mut Vec<u8>) -> io::Result<bool> {
    let Some((file, ranges)) = here.get(&piece.name.digest).filter(|_| piece.encoding == PieceEncoding::Raw)
    else {
        return Ok(false);
    };
    out.clear();
    for range in ranges {
        let begin = out.len();
        out.resize(begin + (range.end - range.start) as usize, 0);
        file.read_exact_at(out.get_mut(begin..).unwrap_or_default(), range.start)?;
    }
    Ok(out.len() == piece.raw as usize && *blake3::hash(out).as_bytes() == piece.name.digest)
}

/// A file that the clone had before.
struct Before {
    /// Its path in the collection.
    below: String,
    /// Its path in the store.
    path: String,
    file: Arc<dyn File>,
    bytes: u64,
    map: PieceMap,
}

impl Before {
    /// Whether the file of a snapshot has the same pieces at the same places, and this one nothing else.
    fn is_same(&self, file: &ManifestFile, map: &PieceMap) -> bool {
        self.bytes == file.bytes
            && self.map.pieces == map.pieces
            && self.map.extents == map.extents
            && !self.map.states.contains(&PieceState::Own)
    }
}

/// The files of a clone with pieces.
fn files_of(clones: &Clones, path: &str) -> io::Result<Vec<Before>> {
    let mut found = Vec::new();
    for directory in [String::new(), "data/".to_owned()] {
        for listed in clones.list(format!("{path}/{directory}").trim_end_matches('/'))? {
            let Some(name) = listed.name.strip_suffix(".map").filter(|_| !listed.is_directory) else {
                continue;
            };
            let below = format!("{directory}{name}");
            let path = format!("{path}/{below}");
            // A file that was removed while the program ended may leave its map.
            let Ok(file) = clones.open(&path, Open::Read) else { continue };
            let Some(clone) = clones.file(&path)? else { continue };
            clone.save()?;
            let (map, bytes) = (clone.map(), file.len()?);
            found.push(Before { below, path, file, bytes, map });
        }
    }
    Ok(found)
}

/// The pieces that these files have.
fn pieces_here(files: &[Before]) -> PiecesHere {
    let mut here = PiecesHere::new();
    for before in files {
        let mut ranges: Vec<Vec<(u32, Range<u64>)>> = vec![Vec::new(); before.map.pieces.len()];
        for extent in &before.map.extents {
            if let Some(ranges) = ranges.get_mut(extent.piece as usize) {
                ranges.push((extent.piece_offset, extent.offset..extent.end()));
            }
        }
        for ((piece, state), mut ranges) in before.map.pieces.iter().zip(&before.map.states).zip(ranges) {
            if *state == PieceState::Here {
                ranges.sort_by_key(|(at, _)| *at);
                // The same bytes may stand in several places.
                ranges.dedup_by_key(|(at, _)| *at);
                let ranges = ranges.into_iter().map(|(_, range)| range).collect();
                here.insert(piece.name.digest, (before.file.clone(), ranges));
            }
        }
    }
    here
}
