//! The control file `scrub`: starts and stops scrubs and shows their results.

use std::sync::Arc;

use crate::control::compact::collections;
use crate::control::files::Context;
use crate::control::jobs::Job;
use crate::engine::Scrubbed;
use crate::model::{Error, Result};
use crate::store::Collection;
use crate::vfs::Invalidation;

/// The name of a scrub job.
const SCRUB: &str = "scrub";
/// The path of a job that scrubs all collections.
const ALL: &str = "/";

/// The result of a collection's last scrub.
pub(super) fn shown(context: &Context) -> Result<String> {
    Ok(line(context, context.collection()?))
}

/// The result of each collection's last scrub.
pub(super) fn of_mount(context: &Context) -> Result<String> {
    Ok(collections(context)?.iter().map(|collection| line(context, collection)).collect())
}

/// Starts or stops the scrub of a collection.
pub(super) fn act(context: &Context, text: &str) -> Result<Invalidation> {
    let collection = context.collection()?.clone();
    let path = collection.path();
    start_or_stop(context, text, path, vec![collection])
}

/// Starts or stops the scrub of all collections.
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
            let bytes = |collection: &Arc<Collection>| {
                collection.state().objects().map(|object| object.bytes()).sum::<u64>()
            };
            let bytes = collections.iter().map(bytes).sum();
            let vfs = context.mounted.vfs.clone();
            jobs.push(Job::new(SCRUB.to_owned(), path, bytes), move |progress| {
                let mut sum = Scrubbed::default();
                for collection in &collections {
                    sum.add(vfs.engine().scrub(collection, progress)?);
                }
                Ok(sum.to_string())
            });
            Ok(Invalidation::default())
        }
        "stop" => match jobs.cancel_all(SCRUB, &path) {
            0 => Err(Error::invalid("no scrub that was started here is running or waiting")),
            _ => Ok(Invalidation::default()),
        },
        _ => Err(Error::invalid(format!("unknown command {text:?}; write start or stop"))),
    }
}

fn line(context: &Context, collection: &Arc<Collection>) -> String {
    let path = collection.path();
    match context.mounted.vfs.engine().last_scrub(collection) {
        Some(found) => format!("{path}: {found}\n"),
        None => format!("{path}: not since it was opened\n"),
    }
}
