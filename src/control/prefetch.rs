//! The control file `prefetch`: verifies files and reads them ahead.

use crate::control::context::Context;
use crate::control::jobs::Job;
use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::{ROOT, State};
use crate::vfs::{FileView, Invalidation, Located};

/// The name of a prefetch job.
const PREFETCH: &str = "prefetch";
/// The name of the whole collection.
const ALL: &str = ".";

/// The result of the last prefetch in a collection, and the corrupt ranges that it found.
pub(super) fn shown(context: &Context) -> Result<String> {
    let collection = context.collection()?;
    let path = collection.path();
    Ok(match context.mounted.vfs.engine().last_prefetch(collection) {
        Some(found) => format!("{path}: {}\n", found.report()),
        None => format!("{path}: not since it was opened\n"),
    })
}

/// Queues a job that verifies the named files and reads them ahead. Fails with `Invalid`, and queues
/// nothing, if a name does not exist.
pub(super) fn start(context: &Context, text: &str) -> Result<Invalidation> {
    let collection = context.collection()?.clone();
    let mut nodes = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match node(context, line)? {
            Some(node) => nodes.push(node),
            None => {
                for name in line.split_whitespace() {
                    let node = node(context, name)?;
                    let none = || Error::invalid(format!("no file {name:?} in {}", collection.path()));
                    nodes.push(node.ok_or_else(none)?);
                }
            }
        }
    }
    if nodes.is_empty() {
        return Err(Error::invalid("write names of files or directories; . stands for the whole collection"));
    }
    let vfs = context.mounted.vfs.clone();
    let bytes = vfs.engine().prefetch_bytes(&collection, &nodes)?;
    let job = Job::new(PREFETCH.to_owned(), collection.path(), context.user, bytes);
    context.mounted.jobs.push(job, move |progress, report| {
        report.text = vfs.engine().prefetch(&collection, &nodes, progress)?.to_string();
        Ok(())
    });
    Ok(Invalidation::default())
}

/// The file or directory of this name in the collection.
fn node(context: &Context, name: &str) -> Result<Option<EntryId>> {
    if name == ALL {
        return Ok(Some(ROOT));
    }
    let collection = context.collection()?;
    let path = format!("{}/{name}", collection.path());
    match context.mounted.vfs.walk(path.as_bytes()) {
        Ok((_, Located::Node(FileView { node, .. }))) => {
            Ok(Some(node.entry.id).filter(|node| !State::is_computed(*node)))
        }
        Ok(_) => Ok(None),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) => Ok(None),
        Err(error) => Err(error),
    }
}
