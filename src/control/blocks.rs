//! The blocks of a file: where they lie, and whether what is stored is what was written.

use serde_json::{Value, json};

use crate::control::files::Context;
use crate::format::record::Stored;
use crate::model::{Encoding, Error, ErrorKind, Result, Tier};
use crate::store::blocks::Block;
use crate::store::object::Object;
use crate::store::read::{OpenObject, Verify};

/// A line a block, as the log says them: the index, counted over the whole file; the tier,
/// how and where the payload lies, its CRC32C, the number of its record, and how many deltas
/// lie on it.
pub(super) fn table(context: &Context) -> Result<String> {
    let view = context.file()?;
    let collection = &view.collection;
    let mut text = String::new();
    let mut first = 0_u64;
    for object in collection.objects_of(view.node.entry.id)? {
        let cut = object.logged_cut();
        let blocks = object.blocks.read();
        for (index, block) in blocks.described(cut) {
            let Stored { tier, len, offset, checksum, .. } = block.stored;
            let path = collection.path_of_payload(&object, &block.stored);
            let file =
                path.strip_prefix(&collection.path()).map_or("outside", |path| path.trim_start_matches('/'));
            let file = if tier == Tier::Absent { "-" } else { file };
            let (links, _) = object.chain_size(index, block.epoch);
            let (name, encoding, epoch) = (tier.name(), encoding(tier), block.epoch);
            text.push_str(&format!(
                "{} tier={name} encoding={encoding} bytes={len} offset={offset} file={file} \
                 crc32c={checksum:08x} epoch={epoch} chain={links}\n",
                first + u64::from(index),
            ));
        }
        first += u64::from(cut.blocks());
    }
    Ok(text)
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

/// Where the bytes of a file lie on the disk, as the log says it: exact bytes as long runs,
/// codes block by block.
pub(super) fn extents(context: &Context) -> Result<String> {
    let view = context.file()?;
    if view.node.file().is_some_and(|file| file.records.is_some()) {
        let text =
            "the bytes of an embedding batch are stitched of its tensors: ask for the extents of these";
        return Err(Error::invalid(format!("{}: {text}", view.path())));
    }
    let place = std::path::PathBuf::from(context.mounted.store().place());
    let mut extents: Vec<Extent> = Vec::new();
    let mut start = 0;
    for object in view.collection.objects_of(view.node.entry.id)? {
        let cut = object.logged_cut();
        let is_untouched = OpenObject::open(&view.collection, &object, Verify::First)?.is_home_untouched();
        let blocks = object.blocks.read();
        for (index, block) in blocks.described(cut).filter(|(_, block)| block.stored.len > 0) {
            let extent = Extent {
                // Joined to another, an absolute path stands for itself.
                file: place
                    .join(view.collection.path_of_payload(&object, &block.stored))
                    .display()
                    .to_string(),
                offset: block.stored.offset,
                len: u64::from(block.stored.len),
                logical: start + cut.start(index),
                logical_len: cut.len(index) as u64,
                tier: block.stored.tier,
                is_verified: object.checked.get(index) && (is_untouched || !block.stored.in_data),
            };
            if !extents.last_mut().is_some_and(|last| last.joins(&extent)) {
                extents.push(extent);
            }
        }
        start += cut.bytes;
    }
    let extents: Vec<Value> = extents.iter().map(Extent::json).collect();
    Ok(format!("{:#}\n", Value::from(extents)))
}

/// Reads every payload of a file that the log describes and compares its checksum with the
/// log's. A line for each block that is wrong, then the sum.
pub(super) fn verify(context: &Context) -> Result<String> {
    let view = context.file()?;
    let (mut count, mut wrong) = (0_u64, 0_u64);
    let mut text = String::new();
    for object in view.collection.objects_of(view.node.entry.id)? {
        let open = OpenObject::open(&view.collection, &object, Verify::Always)?;
        let mut index = 0;
        // The file may be written and cut meanwhile: what was wrong of a block that is another
        // now, or is gone, is no corruption.
        while index < object.described().min(object.logged_cut().blocks()) {
            let before = described(&object, index);
            match open.check(index) {
                Err(_) if described(&object, index) != before => continue,
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    wrong += 1;
                    text.push_str(&format!("{error}\n"));
                }
                checked => drop(checked?),
            }
            count += 1;
            index += 1;
        }
    }
    text.push_str(&if wrong == 0 { "ok\n".to_owned() } else { format!("corrupt {wrong} of {count}\n") });
    Ok(text)
}

fn described(object: &Object, index: u32) -> Option<Block> {
    object.blocks.read().get(index, object.logged_cut())
}
