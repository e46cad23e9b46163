//! The control file `compact`: starts and stops compactions and shows their results.

use std::sync::Arc;

use crate::control::files::Context;
use crate::control::jobs::Job;
use crate::engine::Compacted;
use crate::model::{Error, ErrorKind, Result};
use crate::store::Collection;
use crate::vfs::Invalidation;

/// The name of a compaction job.
const COMPACT: &str = "compact";
/// The path of a job that compacts all collections.
const ALL: &str = "/";

/// The result of a collection's last compaction.
pub(super) fn shown(context: &Context) -> Result<String> {
    Ok(line(context, context.collection()?))
}

/// The result of each collection's last compaction.
pub(super) fn of_mount(context: &Context) -> Result<String> {
    Ok(collections(context)?.iter().map(|collection| line(context, collection)).collect())
}

/// Starts or stops the compaction of a collection.
pub(super) fn act(context: &Context, text: &str) -> Result<Invalidation> {
    let collection = context.collection()?.clone();
    let path = collection.path();
    start_or_stop(context, text, path, vec![collection])
}

/// Starts or stops the compaction of all collections. The job tries all of them and then reports the
/// first failure.
pub(super) fn act_on_all(context: &Context, text: &str) -> Result<Invalidation> {
    start_or_stop(context, text, ALL.to_owned(), collections(context)?)
}

fn start_or_stop(
    context: &Context,
    text: &str,
    path: String,
    collections: Vec<Arc<Collection>>,
) -> Result<Invalidation> {
    let jobs = &context.mounted.jobs;
    match text {
        "start" => {
            let vfs = context.mounted.vfs.clone();
            let bytes = collections.iter().map(|collection| vfs.engine().compact_bytes(collection));
            jobs.push(Job::new(COMPACT.to_owned(), path, bytes.sum()), move |progress| {
                let (mut sum, mut first) = (Compacted::default(), Ok(()));
                for collection in &collections {
                    match vfs.engine().compact(collection, progress) {
                        Ok(done) => sum.add(done),
                        Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
                        Err(error) => first = first.and(Err(error)),
                    }
                }
                first.map(|()| sum.to_string())
            });
            Ok(Invalidation::default())
        }
        "stop" => match jobs.cancel_all(COMPACT, &path) {
            0 => Err(Error::invalid("no compaction that was started here is running or waiting")),
            _ => Ok(Invalidation::default()),
        },
        _ => Err(Error::invalid(format!("unknown command {text:?}; write start or stop"))),
    }
}

fn line(context: &Context, collection: &Arc<Collection>) -> String {
    let path = collection.path();
    let Some(log) = collection.last_compaction() else {
        return format!("{path}: not since it was opened\n");
    };
    let (at, before, after) = (log.at, log.before, log.after);
    let payloads = context.mounted.vfs.engine().last_compact(collection);
    let payloads = payloads.map_or(String::new(), |done| format!("; {done}"));
    format!("{path}: log at {at} from {before} to {after} bytes{payloads}\n")
}

/// All collections of the store that can be opened, in the order of their names. Logs the others.
pub(super) fn collections(context: &Context) -> Result<Vec<Arc<Collection>>> {
    let store = context.mounted.store();
    let mut found = Vec::new();
    for tenant in store.tenants()? {
        for name in store.collections(&tenant)? {
            match store.collection(&tenant, &name) {
                Ok(collection) => found.push(collection),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => log::warn!("{tenant}/{name}: {error}"),
            }
        }
    }
    Ok(found)
}
