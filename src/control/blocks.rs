//! The blocks of a file: where they lie, and whether what is stored is what was written.

use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::control::files::Context;
use crate::control::text::Make;
use crate::format::log::record::Stored;
use crate::model::{Encoding, Error, ErrorKind, Result, Tier};
use crate::store::Block;
use crate::store::Collection;
use crate::store::Object;
use crate::store::{OpenObject, Verify};
use crate::vfs::FileView;

/// Pieces that are looked at before the locks are let go of.
const PIECES: usize = 256;
/// Bytes of blocks that are checked before somebody is told.
const CHECKED_BYTES: u64 = 16 << 20;

/// The blocks of a file, piece by piece: those without a payload that are alike come together.
struct Walk {
    collection: Arc<Collection>,
    objects: Vec<Arc<Object>>,
    /// Which object, and which block of it, is next.
    place: usize,
    next: u32,
    /// Blocks and bytes of the objects before.
    blocks: u64,
    bytes: u64,
}

impl Walk {
    fn of(view: &FileView) -> Result<Walk> {
        let (collection, objects) =
            (view.collection.clone(), view.collection.objects_of(view.node.entry.id)?);
        Ok(Walk { collection, objects, place: 0, next: 0, blocks: 0, bytes: 0 })
    }

    /// The object of which the first blocks are told next.
    fn begun(&self) -> Option<&Arc<Object>> {
        self.objects.get(self.place).filter(|_| self.next == 0)
    }

    /// Tells some more blocks that records describe; `false` when all were told. With `tell` go the
    /// object, the piece, what is known of its first block, and blocks and bytes before the object.
    fn more(&mut self, mut tell: impl FnMut(&Collection, &Object, &Range<u32>, &Block, (u64, u64))) -> bool {
        let Some(object) = self.objects.get(self.place) else { return false };
        let layout = object.logged_layout();
        {
            let blocks = object.blocks.read();
            for (piece, block) in blocks.pieces_in(self.next..layout.blocks(), layout).take(PIECES) {
                self.next = piece.end;
                if let Some(block) = block {
                    tell(&self.collection, object, &piece, &block, (self.blocks, self.bytes));
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

/// A line a block, as the log says them: the index, counted over the whole file; the tier,
/// how and where the payload lies, its CRC32C, the number of its record, and how many deltas
/// lie on it. Blocks without a payload that one record describes have one line: the first
/// index, and the last.
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
                let (links, _) = object.chain_size(piece.start, block.epoch);
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

/// How a tier's payloads are laid out.
fn encoding(tier: Tier) -> &'static str {
    match (tier.encoding(), tier) {
        (_, Tier::Absent) => "none",
        (Encoding::Verbatim, _) => "verbatim",
        (Encoding::Grouped, _) => "grouped",
        (Encoding::TwoLevel, _) => "two-level",
    }
}

/// A run of stored bytes.
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
    /// Takes over the next one if both are one run.
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

/// Where the bytes of a file lie on the disk, as the log says it: exact bytes as long runs, holes of
/// data files among them, codes block by block.
pub(super) fn extents(context: &Context) -> Result<Make> {
    let view = context.file()?;
    if view.node.file().is_some_and(|file| file.records.is_some()) {
        let text =
            "the bytes of an embedding batch are stitched of its tensors: ask for the extents of these";
        return Err(Error::invalid(format!("{}: {text}", view.path())));
    }
    let place = std::path::PathBuf::from(context.mounted.store().place());
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
                    // Joined to another, an absolute path stands for itself.
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

/// Reads every payload of a file that the log describes and compares its checksum with the
/// log's. A line for each block that is wrong, then the sum.
pub(super) fn verify(context: &Context) -> Result<Make> {
    let view = context.file()?;
    Ok(Box::new(move || {
        let collection = view.collection.clone();
        let mut objects = collection.objects_of(view.node.entry.id)?.into_iter();
        let (mut open, mut index, mut is_over) = (None::<OpenObject>, 0, false);
        let (mut count, mut wrong) = (0_u64, 0_u64);
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
                // The file may be written and cut meanwhile: what was wrong of a block that is another
                // now, or is gone, is no corruption.
                let blocks = object.described().min(object.logged_layout().blocks());
                if index >= blocks {
                    open = None;
                    break;
                }
                let before = described(object, index);
                let piece = index..before.1.min(blocks);
                match opened.check(index).and_then(|_| opened.check_hole(&piece)) {
                    Err(_) if described(object, index) != before => continue,
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
                        wrong += piece.len() as u64;
                        out.extend_from_slice(format!("{error}\n").as_bytes());
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

/// What the log says of a block, and where something else may begin.
fn described(object: &Object, index: u32) -> (Option<Block>, u32) {
    object.blocks.read().alike(index, object.logged_layout())
}
