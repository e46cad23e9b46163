//! Builds the records that describe blocks.

use crate::format::log::catalog::ObjectEntry;
use crate::format::log::record::{ObjectDescription, Record, Stored};
use crate::model::Shape;
use crate::store::clock::now_seconds;
use crate::store::log::append::Batch;

/// The fields that a record of a block repeats about its object.
pub(in crate::store) fn described(entry: &ObjectEntry) -> ObjectDescription {
    let shape = Shape::new(&[entry.bytes / entry.dtype.bytes()]).unwrap_or_default();
    let parent = entry.parent.as_ref().map(|parent| parent.object);
    ObjectDescription { dtype: entry.dtype, shape, parent, reconstruct: 0 }
}

/// Adds an object's blocks to a batch. Consecutive blocks of a data file become one run.
pub fn add_blocks(batch: &mut Batch, entry: &ObjectEntry, blocks: &[(u32, Stored)]) {
    let created_at = now_seconds();
    let described = described(entry);
    let object = entry.id;
    let joins = |before: &(u32, Stored), next: &(u32, Stored)| {
        before.1.in_data
            && next.1.in_data
            && next.0 == before.0 + 1
            && next.1.offset == before.1.offset + u64::from(before.1.len)
    };
    for run in blocks.chunk_by(joins) {
        let Some((first, stored)) = run.first() else { continue };
        let described = described.clone();
        if !stored.in_data {
            batch.record(Record::Create { object, block: *first, described, stored: *stored, created_at });
            continue;
        }
        let checksums: Vec<u32> = run.iter().map(|(_, stored)| stored.checksum).collect();
        batch.run(&checksums, |len, checksum| Record::CreateRun {
            object,
            block: *first,
            described,
            stored: Stored { checksum, len, ..*stored },
            created_at,
        });
    }
}
