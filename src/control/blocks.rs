//! The control files `blocks`, `extents` and `verify`: the location of each block of a file and the
//! verification of its checksum.

use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::control::context::Context;
use crate::control::pinned_copy::{CopyPart, part_of_copy};
use crate::control::text::Make;
use crate::format::log::record::Stored;
use crate::model::{Encoding, Error, ErrorKind, Result, Tier};
use crate::store::Block;
use crate::store::Collection;
use crate::store::Object;
use crate::store::{OpenObject, Verify};
use crate::vfs::FileView;

/// Pieces to visit before the locks are released.
const PIECES: usize = 256;
/// Stored bytes to check between two results.
const CHECKED_BYTES: u64 = 16 << 20;

/// Visits the blocks of a file piece by piece. A piece is one block, or several equal blocks without a
/// payload.
struct Walk {
    collection: Arc<Collection>,
    objects: Vec<Arc<Object>>,
    /// The index of the current object, and its next block.
    place: usize,
    next: u32,
    /// Blocks and bytes of the objects before the current one.
    blocks: u64,
    bytes: u64,
}

impl Walk {
    fn of(view: &FileView) -> Result<Walk> {
        let (collection, objects) =
            (view.collection.clone(), view.collection.objects_of(view.node.entry.id)?);
        Ok(Walk { collection, objects, place: 0, next: 0, blocks: 0, bytes: 0 })
    }

    /// The current object, if none of its blocks was visited yet.
    fn begun(&self) -> Option<&Arc<Object>> {
        self.objects.get(self.place).filter(|_| self.next == 0)
    }

    /// Visits the next blocks that records describe. Returns `false` when all were visited. Passes `visit`
    /// the object, the piece, its first block, and the blocks and bytes before the object.
    fn more(&mut self, mut visit: impl FnMut(&Collection, &Object, &Range<u32>, &Block, (u64, u64))) -> bool {
        let Some(object) = self.objects.get(self.place) else { return false };
        let layout = object.logged_layout();
        {
            let blocks = object.blocks.read();
            for (piece, block) in blocks.pieces_in(self.next..layout.blocks(), layout).take(PIECES) {
                self.next = piece.end;
                if let Some(block) = block {
                    visit(&self.collection, object, &piece, &block, (self.blocks, self.bytes));
                }
            }
        }
        if self.next >= layout.blocks() {
            self.blocks += u64::from(layout.blocks());
            self.bytes += layout.bytes;
            (self.place, self.next) = (self.place + 1, 0);
        }
        true
    }
}

/// One line per block, as recorded in the log: the index, counted over the whole file; the tier; the
/// encoding and location of the payload; its CRC32C; the number of its record; and the number of its
/// deltas. Blocks without a payload that one record describes share a line with the first and the last
/// index.
pub(super) fn table(context: &Context) -> Result<Make> {
    let view = context.file()?;
    Ok(Box::new(move || {
        let mut walk = Walk::of(&view)?;
        Ok(Box::new(move |out| {
            Ok(walk.more(|collection, object, piece, block, (before, _)| {
                let Stored { tier, len, offset, checksum, .. } = block.stored;
                let path = collection.path_of_payload(object, &block.stored);
                let below = path.strip_prefix(&collection.path());
                let file = below.map_or("outside", |path| path.trim_start_matches('/'));
                let is_nowhere = tier == Tier::Absent || (block.stored.is_zeros() && !block.stored.in_data);
                let file = if is_nowhere { "-" } else { file };
                let (links, _) = object.deltas_size(piece.start, block.epoch);
                let encoding = if block.stored.is_zeros() { "zeros" } else { encoding(tier) };
                let (name, epoch) = (tier.name(), block.epoch);
                let (first, last) = (before + u64::from(piece.start), before + u64::from(piece.end) - 1);
                let index = if first == last { first.to_string() } else { format!("{first}-{last}") };
                out.extend_from_slice(
                    format!(
                        "{index} tier={name} encoding={encoding} bytes={len} offset={offset} file={file} \
                         crc32c={checksum:08x} epoch={epoch} chain={links}\n",
                    )
                    .as_bytes(),
                );
            }))
        }))
    }))
}

/// The layout of a tier's payloads.
fn encoding(tier: Tier) -> &'static str {
    match (tier.encoding(), tier) {
        (_, Tier::Absent) => "none",
        (Encoding::Verbatim, _) => "verbatim",
        (Encoding::Grouped, _) => "grouped",
        (Encoding::TwoLevel, _) => "two-level",
        (Encoding::Ladder, _) => "ladder",
    }
}

/// A contiguous run of stored bytes.
struct Extent {
    file: String,
    offset: u64,
    len: u64,
    logical: u64,
    logical_len: u64,
    tier: Tier,
    is_verified: bool,
}

impl Extent {
    /// Appends `next` if both form one contiguous run of exact bytes. Returns whether it did.
    fn joins(&mut self, next: &Extent) -> bool {
        let joins = self.tier == Tier::Exact
            && next.tier == Tier::Exact
            && self.is_verified == next.is_verified
            && self.offset + self.len == next.offset
            && self.logical + self.logical_len == next.logical
            && self.file == next.file;
        if joins {
            self.len += next.len;
            self.logical_len += next.logical_len;
        }
        joins
    }

    fn json(&self) -> Value {
        json!({
            "file": self.file,
            "file_offset": self.offset,
            "logical_offset": self.logical,
            "length": self.len,
            "logical_length": self.logical_len,
            "tier": self.tier.name(),
            "verified": self.is_verified,
        })
    }
}

/// The location of a file's bytes on disk, as recorded in the log: exact bytes, including holes of data
/// files, as maximal runs; encoded bytes block by block.
///
/// The bytes of a pinned file, of a tensor in a pinned container, and of a pinned form lie in one run of the copy.
pub(super) fn extents(context: &Context) -> Result<Make> {
    let place = std::path::PathBuf::from(context.mounted.store().place());
    if let Some(part) = part_of_copy(context)? {
        let extent = Extent {
            file: place.join(part.path()).display().to_string(),
            offset: part.offset,
            len: part.bytes,
            logical: 0,
            logical_len: part.bytes,
            tier: Tier::Exact,
            is_verified: part.copy.is_sound() == Some(true),
        };
        return Ok(fixed(format!("{:#}\n", Value::Array(vec![extent.json()]))));
    }
    if context.view.form.is_some() {
        return Ok(fixed("[]\n".to_owned()));
    }
    let view = context.file()?;
    if view.node.file().is_some_and(|file| file.view.is_some()) {
        let text =
            "the bytes of a view lie in other tensors of its container; read the extents of the container";
        return Err(Error::invalid(format!("{}: {text}", view.path())));
    }
    if view.node.file().is_some_and(|file| file.records.is_some()) {
        let text =
            "the bytes of an embedding batch are assembled from its tensors; read the extents of the tensors";
        return Err(Error::invalid(format!("{}: {text}", view.path())));
    }
    Ok(Box::new(move || {
        let mut walk = Walk::of(&view)?;
        let place = place.clone();
        let (mut last, mut is_first, mut is_over) = (None::<Extent>, true, false);
        let mut is_untouched = false;
        Ok(Box::new(move |out| {
            if is_over {
                return Ok(false);
            }
            if let Some(object) = walk.begun() {
                is_untouched =
                    OpenObject::open(&walk.collection, object, Verify::First)?.is_extent_untouched();
            }
            let mut put = |extent: Option<Extent>| {
                let Some(extent) = extent else { return };
                out.extend_from_slice(if std::mem::take(&mut is_first) { b"[\n" } else { b",\n" });
                let lines: Vec<String> =
                    format!("{:#}", extent.json()).lines().map(|line| format!("  {line}")).collect();
                out.extend_from_slice(lines.join("\n").as_bytes());
            };
            let has_more = walk.more(|collection, object, piece, block, (_, before)| {
                let Stored { tier, offset, in_data, .. } = block.stored;
                let layout = object.logged_layout();
                let logical_len = layout.bytes_of(piece);
                let is_hole = block.stored.is_zeros();
                if block.stored.len == 0 && !(is_hole && in_data) {
                    return;
                }
                let extent = Extent {
                    // `join` keeps an absolute path as it is.
                    file: place.join(collection.path_of_payload(object, &block.stored)).display().to_string(),
                    offset,
                    len: if is_hole { logical_len } else { u64::from(block.stored.len) },
                    logical: before + layout.start(piece.start),
                    logical_len,
                    tier,
                    is_verified: object.checked.get(piece.start) && (is_untouched || !in_data),
                };
                if !last.as_mut().is_some_and(|last| last.joins(&extent)) {
                    put(last.replace(extent));
                }
            });
            if !has_more {
                put(last.take());
                is_over = true;
                out.extend_from_slice(if is_first { b"[]\n" } else { b"\n]\n" });
            }
            Ok(true)
        }))
    }))
}

/// A text that is known already.
fn fixed(text: String) -> Make {
    Box::new(move || {
        let mut text = Some(text.clone());
        Ok(Box::new(move |out| {
            Ok(text.take().is_some_and(|text| {
                out.extend_from_slice(text.as_bytes());
                true
            }))
        }))
    })
}

/// Reads every payload of a file that the log describes and verifies its checksum. Writes a line for
/// each corrupt block, with the bytes of the file that it holds, then the sum. A wrong pinned copy counts as a block;
/// of a form nothing else is stored.
pub(super) fn verify(context: &Context) -> Result<Make> {
    let copy = part_of_copy(context)?.map(Arc::new);
    if context.view.form.is_some() {
        return Ok(Box::new(move || {
            let mut copy = Some(copy.clone());
            Ok(Box::new(move |out| {
                let Some(copy) = copy.take() else { return Ok(false) };
                let wrong = copy.and_then(|copy| wrong_copy(&copy));
                let text = wrong.map_or("ok\n".to_owned(), |line| format!("{line}corrupt 1 of 1\n"));
                out.extend_from_slice(text.as_bytes());
                Ok(true)
            }))
        }));
    }
    let view = context.file()?;
    Ok(Box::new(move || {
        let copy = copy.clone();
        let collection = view.collection.clone();
        let mut objects = collection.objects_of(view.node.entry.id)?.into_iter();
        let (mut open, mut index, mut is_over) = (None::<OpenObject>, 0, false);
        let (mut count, mut wrong) = (0_u64, 0_u64);
        // The bytes of the objects before the current one.
        let mut before_object = 0_u64;
        Ok(Box::new(move |out| {
            if is_over {
                return Ok(false);
            }
            if open.is_none() {
                let next = objects.next();
                let opened = next.map(|object| OpenObject::open(&collection, &object, Verify::Always));
                (open, index) = (opened.transpose()?, 0);
            }
            let Some(opened) = &open else {
                is_over = true;
                if let Some(line) = copy.as_ref().and_then(|copy| wrong_copy(copy)) {
                    (count, wrong) = (count + 1, wrong + 1);
                    out.extend_from_slice(line.as_bytes());
                }
                let sum = match wrong {
                    0 => "ok\n".to_owned(),
                    wrong => format!("corrupt {wrong} of {count}\n"),
                };
                out.extend_from_slice(sum.as_bytes());
                return Ok(true);
            };
            let object = opened.object();
            let mut checked_bytes = 0;
            while checked_bytes < CHECKED_BYTES {
                // The file may be written and truncated meanwhile. A failure of a block that has changed
                // or is gone is not corruption.
                let blocks = object.described().min(object.logged_layout().blocks());
                if index >= blocks {
                    before_object += object.logged_layout().bytes;
                    open = None;
                    break;
                }
                let before = described(object, index);
                let piece = index..before.1.min(blocks);
                match opened.check(index).and_then(|_| opened.check_hole(&piece)) {
                    Err(_) if described(object, index) != before => continue,
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
                        wrong += piece.len() as u64;
                        let layout = object.logged_layout();
                        let first = before_object + layout.start(piece.start);
                        let last = (first + layout.bytes_of(&piece)).saturating_sub(1);
                        out.extend_from_slice(format!("bytes {first} to {last}: {error}\n").as_bytes());
                    }
                    checked => checked?,
                }
                count += piece.len() as u64;
                let stored = before.0.map_or(0, |block| u64::from(block.stored.len));
                checked_bytes += stored.max(1);
                index = piece.end;
            }
            Ok(true)
        }))
    }))
}

/// The line of a pinned copy that does not have its BLAKE3.
fn wrong_copy(part: &CopyPart) -> Option<String> {
    part.is_corrupt().then(|| format!("the pinned copy {} differs from its BLAKE3 in the log\n", part.path()))
}

/// The block as recorded in the log, and the end of the run of blocks equal to it.
fn described(object: &Object, index: u32) -> (Option<Block>, u32) {
    object.blocks.read().uniform_from(index, object.logged_layout())
}
