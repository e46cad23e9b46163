//! Joins files that programs may have open.

use std::sync::Arc;

use crate::ingest::{Join, Joined, join};
use crate::model::{Error, ErrorKind, Result};
use crate::store::Collection;
use crate::store::disk::File;
use crate::stream::Stream;
use crate::vfs::open::file::OpenFile;
use crate::vfs::open::source::StreamFile;

/// Makes a file of the objects of others, in their order. Nobody writes to them meanwhile, and later writes are refused.
/// Fails with `Busy` if one has writes that are not in the log, or is open for writing.
pub fn join_files(
    collection: &Arc<Collection>,
    files: &[Arc<OpenFile>],
    request: &Join<'_>,
) -> Result<Joined> {
    let mut in_order: Vec<&Arc<OpenFile>> = files.iter().collect();
    // Two requests for the same files must not wait for each other.
    in_order.sort_by_key(|file| file.node);
    in_order.dedup_by_key(|file| file.node);
    let mut held = Vec::with_capacity(in_order.len());
    for file in in_order {
        let layout = file.layout.write();
        layout.check()?;
        if file.may_be_written() || file.is_changed() || layout.drafts > 0 {
            let path = String::from_utf8_lossy(&file.path()).into_owned();
            let text =
                format!("{path} is open for writing, or has writes that are not recorded; close it first");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        held.push((file.node, layout));
    }
    let mut objects = Vec::new();
    for file in files {
        let layout = held.binary_search_by_key(&file.node, |(node, _)| *node).ok();
        let layout = layout.and_then(|place| held.get(place)).map(|(_, layout)| layout);
        objects.extend(layout.into_iter().flat_map(|layout| layout.objects.iter().cloned()));
    }
    let stream = Arc::new(Stream::of_file(objects, None)?);
    let bytes = stream.bytes();
    let source: Arc<dyn File> = Arc::new(StreamFile { stream, bytes });
    join(collection, request, &source)
}
