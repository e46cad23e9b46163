//! Restores differences whose parents' blocks have other epochs in the log than the differences say.
//!
//! Where the parent's bytes were written again as they were, or a log was rewritten with other epochs, the bytes are still
//! those that the differences were made from, but the log does not say so. The recorded digest of the child's file
//! does: the file as made from the present blocks has it. Such blocks are then stored exactly.

use std::sync::Arc;

use crate::engine::reconstruct::delta;
use crate::model::{ErrorKind, ObjectId, Result};
use crate::store::{Collection, Object, OpenObject, Verify};

/// A file with its recorded BLAKE3.
struct Recorded {
    blake3: [u8; 32],
    objects: Vec<Arc<Object>>,
}

/// Stores the blocks of an object exactly that are differences from blocks with other epochs, if the recorded BLAKE3 of
/// a file with the object proves them. Returns the number of blocks of the file that were stored; they are durable then. 0
/// if nothing proves them.
pub(in crate::engine) fn restore_differences(collection: &Arc<Collection>, object: ObjectId) -> Result<u64> {
    for file in recorded(collection, object) {
        match is_proven(collection, &file) {
            Ok(true) => {}
            Ok(false) => continue,
            // A parent that does not read proves nothing; another repair may bring it back.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Absent) => continue,
            Err(error) => return Err(error),
        }
        let mut restored = 0;
        for object in &file.objects {
            restored += restore(collection, object)?;
        }
        collection.sync()?;
        return Ok(restored);
    }
    Ok(0)
}

/// The files with an object whose digests are recorded.
fn recorded(collection: &Collection, object: ObjectId) -> Vec<Recorded> {
    let state = collection.state();
    let files = state.nodes().filter_map(|node| node.file());
    let with_it = files.filter(|file| file.objects.contains(&object));
    let recorded = with_it.filter_map(|file| {
        let objects = file.objects.iter().map(|id| state.object(*id).cloned());
        Some(Recorded { blake3: file.digests.blake3()?, objects: objects.collect::<Option<_>>()? })
    });
    recorded.collect()
}

/// Whether a file has its recorded digest if all differences are from the present blocks of the parents.
fn is_proven(collection: &Arc<Collection>, file: &Recorded) -> Result<bool> {
    let mut found = blake3::Hasher::new();
    let mut bytes = Vec::new();
    for object in &file.objects {
        let open = OpenObject::open(collection, object, Verify::Always)?;
        let layout = object.layout();
        for index in 0..layout.blocks() {
            bytes.resize(layout.len(index), 0);
            let block = object.block(index, layout);
            let is_difference = match &block {
                Some(block) => delta::read_unproven(&open, index, block, &mut bytes)?,
                None => false,
            };
            if !is_difference {
                open.read(layout.start(index), &mut bytes)?;
            }
            found.update(&bytes);
        }
    }
    Ok(*found.finalize().as_bytes() == file.blake3)
}

/// Stores the differences of an object exactly that are not from the blocks that they say.
fn restore(collection: &Arc<Collection>, object: &Arc<Object>) -> Result<u64> {
    let open = OpenObject::open(collection, object, Verify::Always)?;
    let layout = object.layout();
    let mut restored = 0;
    for (index, block) in object.stored_blocks(0..layout.blocks(), layout) {
        if !delta::is_of_another(&open, index, &block)? {
            continue;
        }
        let seen = object.deltas(index, block.epoch);
        let mut bytes = vec![0; layout.len(index)];
        let is_restored = delta::read_unproven(&open, index, &block, &mut bytes)?
            && open.restore_exact(index, &block, seen, &bytes)?;
        restored += u64::from(is_restored);
    }
    Ok(restored)
}
