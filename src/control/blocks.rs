//! The blocks of a file: where they lie, and whether what is stored is what was written.

use std::fmt::Write;

use crate::control::files::Context;
use crate::model::{ErrorKind, Result};
use crate::store::read::{OpenObject, Verify};

/// A line a block, as they are recorded.
pub(super) fn table(context: &Context) -> Result<String> {
    let view = context.file()?;
    let mut text = format!(
        "{:>8} {:<7} {:<9} {:>10} {:>14} {:<20} {:<10} {:>8} {:>5}\n",
        "index", "tier", "encoding", "bytes", "offset", "file", "crc32c", "epoch", "chain"
    );
    let mut place = 0_u64;
    for object in view.collection.objects_of(view.node.entry.id)? {
        let cut = object.cut();
        let blocks = object.blocks.read();
        for index in 0..cut.blocks() {
            let Some(block) = blocks.get(index, cut) else { continue };
            let stored = block.stored;
            let file = match object.home() {
                Some(home) if stored.in_data => format!("data/{}", home.file),
                _ => format!("tier{}.dat", stored.tier.byte()),
            };
            let (links, _) = object.chain_size(index, block.epoch);
            let encoding = stored.tier.name();
            // Writing to a string does not fail.
            let written = writeln!(
                text,
                "{place:>8} {:<7} {encoding:<9} {:>10} {:>14} {file:<20} {:08x}   {:>8} {links:>5}",
                stored.tier.name(),
                stored.len,
                stored.offset,
                stored.checksum,
                block.epoch
            );
            written.unwrap_or_default();
            place += 1;
        }
    }
    Ok(text)
}

/// Reads every payload of a file and compares its checksum with that in the log.
pub(super) fn verify(context: &Context) -> Result<String> {
    let view = context.file()?;
    let (mut count, mut wrong) = (0_u64, 0_u64);
    let mut text = String::new();
    for object in view.collection.objects_of(view.node.entry.id)? {
        let open = OpenObject::open(&view.collection, &object, Verify::Always)?;
        for index in 0..object.cut().blocks() {
            count += 1;
            match open.check(index) {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    wrong += 1;
                    text.push_str(&format!("{error}\n"));
                }
                checked => drop(checked?),
            }
        }
    }
    text.push_str(&if wrong == 0 { "ok\n".to_owned() } else { format!("corrupt {wrong} of {count}\n") });
    Ok(text)
}
