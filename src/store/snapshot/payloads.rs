//! The payloads of a canonical file: their sources, and the bytes of a piece of the file.

use std::ops::Range;
use std::sync::Arc;

use crate::format::checksum;
use crate::format::snapshot::manifest::FileKind;
use crate::format::snapshot::pieces::{Stretches, pieces};
use crate::model::{Error, ErrorKind, Result};
use crate::store::collection::Collection;
use crate::store::collection::open_object::{OpenObject, Verify};
use crate::store::disk::File;
use crate::store::object::Object;
use crate::store::object::factors::FACTOR_FILE;
use crate::store::object::links::DELTA_FILE;
use crate::store::snapshot::choice::Choice;
use crate::store::space::slots::SLOT_ALIGN;
use crate::store::state::State;

/// A file of a canonical collection.
pub struct CanonicalFile {
    /// Its kind.
    pub kind: FileKind,
    /// Its number among the files of its kind.
    pub number: u64,
    /// Logical bytes. Those in no piece are zeros.
    pub bytes: u64,
    /// The latest mtime of the files with bytes in it, in nanoseconds since 1970; 0 if unknown.
    pub mtime: i64,
    /// The stretches of each object with bytes in the file, in the order of the file.
    pub(super) objects: Vec<Stretches>,
    /// Its payloads, in the order of the file.
    pub(super) sources: Vec<Source>,
}

/// The source of a payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// Its offset in the canonical file.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
    /// Place of its object in the list of objects.
    pub object: u32,
    pub payload: Payload,
}

/// A payload of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Payload {
    /// Of this block.
    Block(u32),
    /// Of this block of a variant, which stores the block otherwise.
    Recoded { block: u32, checksum: u32 },
    /// The delta at this place of the chain of a block.
    Delta { block: u32, place: u8 },
    /// The factorization.
    Factor,
}

impl Source {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

impl CanonicalFile {
    /// An empty file.
    pub(super) fn new(kind: FileKind, number: u64) -> CanonicalFile {
        CanonicalFile { kind, number, bytes: 0, mtime: 0, objects: Vec::new(), sources: Vec::new() }
    }

    /// The stretches of each of its pieces.
    pub fn pieces(&self) -> Vec<Stretches> {
        pieces(&self.objects)
    }

    /// Adds a payload behind the others, in a slot. Returns its offset.
    pub(super) fn add_slot(&mut self, object: u32, len: u64, payload: Payload) -> u64 {
        let offset = self.bytes;
        self.sources.push(Source { offset, len, object, payload });
        self.bytes = offset.saturating_add(len).next_multiple_of(SLOT_ALIGN);
        offset
    }

    /// Ends an object whose slots begin at `begin`.
    pub(super) fn end_object(&mut self, begin: u64) {
        if begin < self.bytes {
            let slots = begin..self.bytes;
            self.objects.push(Vec::from([slots]));
        }
    }

    /// `Corrupt` if two payloads claim the same bytes.
    pub(super) fn check(&self, path: &str) -> Result<()> {
        let overlaps = |pair: &[Source]| matches!(pair, [one, next] if next.offset < one.end());
        match self.sources.windows(2).find(|pair| overlaps(pair)) {
            Some(pair) => {
                let at = pair.last().map_or(0, |source| source.offset);
                let (kind, number) = (self.kind, self.number);
                let text =
                    format!("{path}: two payloads of file {kind:?} {number} at byte {at}; run tierfs fsck");
                Err(Error::corrupt(text))
            }
            None => Ok(()),
        }
    }
}

/// Reads payloads of a frozen collection, one object after the other.
pub(super) struct PayloadReader<'a> {
    pub collection: &'a Arc<Collection>,
    pub objects: &'a [Arc<Object>],
    /// For the files of a variant, what it stores otherwise.
    choice: Option<&'a Choice>,
    /// The state that the log describes, with the checksums of blocks at URLs that were read for it.
    published: &'a State,
    open: Option<(u32, OpenObject)>,
}

impl<'a> PayloadReader<'a> {
    pub fn new(
        collection: &'a Arc<Collection>,
        objects: &'a [Arc<Object>],
        published: &'a State,
    ) -> PayloadReader<'a> {
        PayloadReader { collection, objects, choice: None, published, open: None }
    }

    /// Reads payloads of a variant.
    pub fn of_variant(
        collection: &'a Arc<Collection>,
        objects: &'a [Arc<Object>],
        published: &'a State,
        choice: &'a Choice,
    ) -> PayloadReader<'a> {
        PayloadReader { choice: Some(choice), ..PayloadReader::new(collection, objects, published) }
    }

    /// Appends the bytes of a stretch of a file to `out`. Every payload that it touches is read whole and
    /// compared with its checksum.
    pub fn read(&mut self, file: &CanonicalFile, stretch: &Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let mut place = file.sources.partition_point(|source| source.end() <= stretch.start);
        let mut at = stretch.start;
        while at < stretch.end {
            let source = file.sources.get(place).filter(|source| source.offset < stretch.end);
            // Between slots there are zeros.
            let next = source.map_or(stretch.end, |source| source.offset.max(at));
            out.resize(out.len() + (next - at) as usize, 0);
            at = next;
            let Some(source) = source else { continue };
            let until = source.end().min(stretch.end);
            self.payload(source, at - source.offset..until - source.offset, out)?;
            at = until;
            place += 1;
        }
        Ok(())
    }

    /// Appends a part of a payload.
    fn payload(&mut self, source: &Source, part: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let begin = out.len();
        let (from, until) = (part.start as usize, part.end as usize);
        match source.payload {
            Payload::Block(index) => {
                let published = self.published;
                let open = self.opened(source.object)?;
                let stored = match open.object.blocks.read().get(index, open.object.logged_layout()) {
                    Some(block) if !block.stored.is_absent() => Some(block.stored),
                    _ => open.object.origin_place(index),
                };
                let stored = stored.filter(|stored| u64::from(stored.len) == source.len).ok_or_else(gone)?;
                out.resize(begin + stored.len as usize, 0);
                let payload = out.get_mut(begin..).unwrap_or_default();
                open.fetch(index, &stored, 0, payload)?;
                open.verify(index, &stored, payload)?;
                if stored.in_data && open.is_unread_at_url(index) {
                    let (id, layout) = (open.object.entry.id, open.object.logged_layout());
                    let object = published.object(id).ok_or_else(gone)?;
                    let block = object.blocks.read().get(index, layout).ok_or_else(gone)?;
                    if checksum::of(payload) != block.stored.checksum {
                        let path =
                            open.object.origin.as_ref().map(|origin| origin.path()).unwrap_or_default();
                        let text = format!(
                            "{path}: block {index} has other bytes than when the push began; push again"
                        );
                        return Err(Error::new(ErrorKind::Io, text));
                    }
                }
            }
            Payload::Recoded { block, checksum } => {
                let choice = self.choice.ok_or_else(gone)?;
                let open = self.opened(source.object)?;
                let mut payload = Vec::new();
                choice.payload_again(open, source.object, block, checksum, &mut payload)?;
                out.extend(payload);
            }
            Payload::Delta { block, place } => {
                let open = self.opened(source.object)?;
                let known = open.object.blocks.read().get(block, open.object.logged_layout());
                let links = known.and_then(|known| open.object.deltas(block, known.epoch));
                let link = links.as_ref().and_then(|links| links.get(usize::from(place)).copied());
                let link = link.ok_or_else(gone)?;
                out.extend(self.collection.files.read_record(
                    DELTA_FILE,
                    link.offset,
                    link.len.into(),
                    link.checksum,
                )?);
            }
            Payload::Factor => return self.factor_part(source, part, out),
        }
        out.truncate(begin + until);
        out.drain(begin..begin + from);
        Ok(())
    }

    /// Appends a part of a factorization, which may have many pieces: it is compared with its checksum
    /// once, with the first of them.
    fn factor_part(&mut self, source: &Source, part: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let open = self.opened(source.object)?;
        let link = open.object.factor().ok_or_else(gone)?;
        open.check_factor(&link)?;
        let file: Arc<dyn File> = self.collection.files.payload_file(FACTOR_FILE)?;
        let begin = out.len();
        out.resize(begin + (part.end - part.start) as usize, 0);
        let read = file.read_exact_at(out.get_mut(begin..).unwrap_or_default(), link.offset + part.start);
        read.map_err(|error| Error::io(self.collection.files.payload_path(FACTOR_FILE), error))
    }

    fn opened(&mut self, place: u32) -> Result<&OpenObject> {
        if self.open.as_ref().is_none_or(|(opened, _)| *opened != place) {
            let object = self.objects.get(place as usize).ok_or_else(gone)?;
            self.open = Some((place, OpenObject::open(self.collection, object, Verify::Always)?));
        }
        self.open.as_ref().map(|(_, open)| open).ok_or_else(gone)
    }
}

/// The error for a payload that a frozen state names and lacks.
fn gone() -> Error {
    Error::corrupt("a payload of the collection disappeared during the push; run tierfs fsck")
}
