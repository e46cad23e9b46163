//! Imports several files as the shards of one tensor.

use std::sync::Arc;

use crate::format::log::catalog::Content;
use crate::ingest::parts::{Part, Recognized};
use crate::ingest::uncommitted::Uncommitted;
use crate::ingest::{Options, Origin, Report, Target, publish, room, store_parts};
use crate::model::{Error, Progress, Result};
use crate::store::Collection;
use crate::store::Use;
use crate::store::disk::File;

/// Imports files as the shards of one tensor of bytes, in the order given. On an error nothing
/// appears.
pub fn import_shards(
    collection: &Arc<Collection>,
    target: &Target,
    sources: &[Arc<dyn File>],
    origin: &Origin,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report> {
    let lengths = sources.iter().map(|source| source.len());
    let bytes = lengths.sum::<std::io::Result<u64>>();
    let bytes = bytes.map_err(|error| Error::io("asking for a shard's size", error))?;
    let whole = Use::exact(bytes).and(Use::FILE);
    let more = room::more_than_there(&collection.state(), target, whole);
    let _held = collection.meter().reserve(more)?;
    let mut uncommitted = Uncommitted::new(collection);
    let mut shards = Vec::with_capacity(sources.len());
    let mut report = Report { tensors: 1, ..Report::default() };
    for (place, source) in sources.iter().enumerate() {
        let bytes = source.len().map_err(|error| Error::io("asking for a shard's size", error))?;
        if bytes == 0 {
            return Err(Error::invalid(format!("shard {} is empty", place + 1)));
        }
        let whole = Part { begin: 0, end: bytes, tensor: None };
        let (content, parts) = (Content::Plain, vec![whole]);
        let recognized =
            Recognized { content, bytes, parts, records: None, note: String::new(), data_files: Vec::new() };
        let how = store_parts::How::plain(options);
        let stored_parts = store_parts::store_parts(
            &mut uncommitted,
            collection,
            source,
            &recognized,
            &|_| None,
            how,
            progress,
        )?;
        report.bytes += bytes;
        report.stored += stored_parts.stored();
        shards.push(stored_parts);
    }
    let parents = options.parents.as_ref();
    let has_parent = publish::publish_shards(uncommitted, collection, target, origin, shards, parents)?;
    report.children = u64::from(has_parent);
    Ok(report)
}
