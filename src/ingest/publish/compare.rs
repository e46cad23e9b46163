//! Compares a file of an import with the file that the collection has in its place.

use std::sync::Arc;

use crate::format::log::catalog::{Content, Digests, FileEntry, NodeType, OutsideFile, OutsidePlace};
use crate::ingest::bytes::options::Options;
use crate::ingest::find::provenance::Provenance;
use crate::ingest::find::target::Target;
use crate::ingest::find::walk::Found;
use crate::model::{EntryId, Error, ErrorKind, Result, TensorId, Tier};
use crate::store::{Collection, Object, ROOT, Settings, State, Verify};
use crate::stream::{Digester, sums};

/// Bytes of a source that are compared at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// The action of an import for a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::ingest) enum Comparison {
    /// The collection has no file in its place.
    New,
    /// The collection has it as this import would store it.
    Unchanged {
        node: EntryId,
        /// Whether its bytes are the same and its modification time is not.
        is_retimed: bool,
    },
    /// The collection has it as this import would store it, as far as its damaged blocks show.
    Unreadable {
        node: EntryId,
        /// Whether it was changed after the source, and not by an import or a move.
        is_newer: bool,
    },
    /// The collection has another file in its place.
    Changed {
        /// Whether that was changed after the source, and not by an import or a move.
        is_newer: bool,
    },
}

/// How an import compares files.
pub(in crate::ingest) struct Compare<'a> {
    pub settings: &'a Settings,
    pub options: &'a Options,
    /// Compare digests of the bytes, rather than modification times.
    pub checksum: bool,
    /// Compare how they are stored: tensors are absent in the collection.
    pub evicts: bool,
    pub in_place: bool,
    pub is_cancelled: &'a dyn Fn() -> bool,
}

/// The node at a target, if there is one.
pub(in crate::ingest) fn node_at(state: &State, target: &Target) -> Option<EntryId> {
    let mut at = ROOT;
    for name in &target.directories {
        at = state.directory(at)?.get(name)?;
    }
    state.directory(at)?.get(&target.name)
}

/// Whether a file is one or a part of one that lies elsewhere, which nobody has read or written to, and `is_wanted`.
pub(super) fn is_unread(state: &State, file: &FileEntry, is_wanted: impl Fn(&OutsideFile) -> bool) -> bool {
    let is_there = |object: &Arc<Object>| {
        let origin = object.origin.as_ref();
        origin.is_some_and(|origin| origin.file.is_unread() && is_wanted(&origin.file)) || object.bytes() == 0
    };
    let is_unwritten = |object: &Arc<Object>| {
        let layout = object.logged_layout();
        let mut blocks = object.stored_blocks(0..layout.blocks(), layout);
        blocks.all(|(index, _)| object.origin_place(index).is_some())
    };
    let mut objects = file.objects.iter().filter_map(|id| state.object(*id));
    file.digests == Digests::NotTaken && objects.all(|object| is_there(object) && is_unwritten(object))
}

impl Compare<'_> {
    /// Compares a source. `sha256` is the digest that it must have.
    pub fn compare(
        &self,
        collection: &Arc<Collection>,
        found: &Found,
        sha256: Option<[u8; 32]>,
    ) -> Result<Comparison> {
        let known = node_at(&collection.state(), &found.target);
        let checksum = self.checksum || known.is_some_and(|node| collection.is_suspect(node));
        let (node, digest, is_retimed, is_newer) = {
            let state = collection.state();
            let Some(id) = node_at(&state, &found.target) else { return Ok(Comparison::New) };
            let Some(node) = state.node(id) else { return Ok(Comparison::New) };
            let other = Comparison::Changed { is_newer: false };
            let NodeType::File(file) = &node.entry.node_type else { return Ok(other) };
            if matches!(file.content, Content::Part | Content::Tensor) {
                return Ok(other);
            }
            if !self.checksum && node.bytes == found.bytes && self.is_unread_at(&state, file, found) {
                return Ok(Comparison::Unchanged { node: id, is_retimed: false });
            }
            let imported = Provenance::of(&state, id).filter(|imported| imported.is_of(file));
            let is_newer = imported.is_none() && node.entry.mtime > found.mtime;
            let is_same_time = match (&imported, found.bytes_name()) {
                // Two blobs of one download may have the same size and time, and sources may have no time.
                (Some(imported), Some(name)) => imported.places.contains(name),
                (None, Some(_)) if found.elsewhere.is_some() => false,
                (Some(imported), None) if imported.mtime == found.mtime => true,
                _ => node.entry.mtime == found.mtime,
            };
            let is_said = found.elsewhere.is_some() && sha256.is_some();
            if node.bytes != found.bytes
                || !(checksum || is_same_time || is_said)
                || sha256.is_some_and(|wanted| file.digests.sha256() != Some(wanted))
                || !self.is_stored_so(collection, &state, file, found)
            {
                return Ok(Comparison::Changed { is_newer });
            }
            // A source may not know the time.
            let has_time = found.elsewhere.is_none() || ![0, node.entry.mtime].contains(&found.mtime);
            (id, file.digests.blake3(), !is_same_time && has_time, is_newer)
        };
        if checksum {
            let there = match digest {
                Some(digest) => Some(digest),
                None => match self.digest_of(collection, node) {
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
                        return Ok(Comparison::Unreadable { node, is_newer });
                    }
                    digest => digest?,
                },
            };
            if there != self.digest_of_source(found)? {
                return Ok(Comparison::Changed { is_newer });
            }
        }
        Ok(Comparison::Unchanged { node, is_retimed })
    }

    /// Whether a file lies at the URL where it was found, and nobody has read or written it.
    fn is_unread_at(&self, state: &State, file: &FileEntry, found: &Found) -> bool {
        let Some(given) = found.elsewhere.as_ref().filter(|_| self.in_place) else { return false };
        is_unread(state, file, |origin| origin.object() == Some(&given.place))
            && self.is_cut_so(file, state)
            && (!self.evicts || state.parts(file).next().is_none())
    }

    /// Whether the blocks of a file have the lengths that the options say.
    fn is_cut_so(&self, file: &FileEntry, state: &State) -> bool {
        let blocking = self.options.blocking;
        let is_cut_so = |object: &Arc<Object>| {
            let layout = object.logged_layout();
            layout.block_bytes == blocking.block_bytes(object.dtype(), layout.bytes)
        };
        blocking == Default::default()
            || file.objects.iter().filter_map(|id| state.object(*id)).all(is_cut_so)
    }

    /// Whether a file is stored as the options of the import say.
    fn is_stored_so(&self, collection: &Collection, state: &State, file: &FileEntry, found: &Found) -> bool {
        let objects: Vec<&Arc<Object>> = file.objects.iter().filter_map(|id| state.object(*id)).collect();
        if !self.is_cut_so(file, state) {
            return false;
        }
        let real = std::os::unix::ffi::OsStrExt::as_bytes(found.real.as_os_str());
        let is_in_place = |object: &&Arc<Object>| {
            let outside = object.extent().and_then(|extent| state.outside(extent.file));
            if self.in_place {
                object.bytes() == 0
                    || outside.is_some_and(|outside| match (&outside.place, &found.elsewhere) {
                        (OutsidePlace::Path(path), None) => path == real,
                        (OutsidePlace::Object { object, is_read }, Some(given)) => {
                            **object == given.place && (*is_read || !self.checksum)
                        }
                        _ => false,
                    })
            } else {
                outside.is_none()
            }
        };
        if !objects.iter().all(is_in_place) {
            return false;
        }
        let mut has_absent = false;
        for part in state.parts(file) {
            let names = part.file().zip(state.tensor_name(part)).zip(state.own_path(part));
            let Some(((entry, own_name), name)) = names else { continue };
            let Some(tensor) = entry.tensor.as_ref().filter(|_| entry.view.is_none()) else { continue };
            let has_codes = entry.container.is_some_and(|container| state.has_codes(container));
            let objects: Vec<&Arc<Object>> =
                entry.objects.iter().filter_map(|id| state.object(*id)).collect();
            has_absent |= objects.iter().any(|object| object.has_absent());
            if let Some(to) = self.options.tier
                && !file.content.has_checksums()
                && to.takes(tensor.dtype, &tensor.shape, || self.settings.keeps(&own_name, has_codes))
                && !objects.iter().all(|object| is_in_tier(object, to.aim.tier()))
            {
                return false;
            }
            if let Some(parents) = &self.options.parents {
                let shards: Vec<u64> = objects.iter().map(|object| object.logged_layout().bytes).collect();
                let parent = parents.of(collection, &name, tensor.dtype, &tensor.shape, &shards);
                if !parent.is_ok_and(|parent| parent.map_or(TensorId(0), |parent| parent.id) == tensor.parent)
                {
                    return false;
                }
            }
        }
        !self.evicts || has_absent || state.parts(file).next().is_none()
    }

    /// The digest of the present content of a file of the collection. `None` while it is written.
    fn digest_of(&self, collection: &Arc<Collection>, node: EntryId) -> Result<Option<[u8; 32]>> {
        let (parts, assembly) = collection.parts_of(node)?;
        match sums(collection, node, &parts, assembly.as_ref(), Verify::First) {
            Ok(sums) => Ok(Some(sums.blake3)),
            Err(error) if error.kind() == ErrorKind::Busy => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn digest_of_source(&self, found: &Found) -> Result<Option<[u8; 32]>> {
        let failed = |error| Error::io("reading it", error);
        let source = found.open().map_err(failed)?;
        let mut digester = Digester::blake3();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        loop {
            let count = source.read_at(&mut chunk, at).map_err(failed)?;
            let Some(bytes) = chunk.get(..count).filter(|bytes| !bytes.is_empty()) else { break };
            digester.update(bytes);
            at += count as u64;
            if (self.is_cancelled)() {
                return Err(Error::new(ErrorKind::Interrupted, "the job was cancelled"));
            }
        }
        Ok(digester.finish().blake3())
    }
}

/// Whether all blocks of a tensor lie in a tier, except those that this tier cannot hold and that stay
/// exact. Packed blocks are exact.
fn is_in_tier(object: &Object, tier: Tier) -> bool {
    let layout = object.logged_layout();
    let (mut has_blocks, mut is_in) = (false, false);
    for (_, block) in object.stored_blocks(0..layout.blocks(), layout) {
        has_blocks = true;
        let is_exact = block.stored.tier.is_exact();
        let is_there = block.stored.tier == tier || (is_exact && tier == Tier::Exact);
        is_in |= is_there;
        if !is_there && !is_exact {
            return false;
        }
    }
    is_in || !has_blocks
}
