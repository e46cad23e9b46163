//! The control files `compact` and `scrub`: start and stop jobs on one collection or all, and show the
//! results.

use std::fmt;
use std::sync::Arc;

use crate::control::context::Context;
use crate::control::jobs::Job;
use crate::engine::{Compacted, Engine, Scrubbed};
use crate::model::{Error, ErrorKind, Progress, Result};
use crate::store::{Collection, Store};
use crate::vfs::Invalidation;

/// The path of a job on all collections.
const ALL: &str = "/";

/// The collections that a job works on.
enum Collections {
    One(Arc<Collection>),
    /// All of the store. Each is opened when its turn comes, so that the job does not keep them all in memory.
    All,
}

impl Collections {
    /// Calls `visit` with each in the order of their names. Logs those that cannot be opened.
    fn each(&self, store: &Store, mut visit: impl FnMut(&Arc<Collection>) -> Result<()>) -> Result<()> {
        match self {
            Collections::One(collection) => visit(collection),
            Collections::All => {
                for (path, collection) in store.all_collections()? {
                    match collection {
                        Ok(collection) => visit(&collection)?,
                        Err(error) => log::warn!("{path}: {error}"),
                    }
                }
                Ok(())
            }
        }
    }
}

/// A kind of maintenance.
pub(super) struct Maintenance {
    /// The name of its jobs.
    name: &'static str,
    /// Its noun in messages.
    noun: &'static str,
    /// How many bytes a job on a collection processes.
    bytes: fn(&Engine, &Collection) -> u64,
    /// Does the work of a job and returns its result text.
    run: fn(&Engine, &Collections, &dyn Progress) -> Result<String>,
    /// The last result of a collection, if any since it was opened.
    last: fn(&Engine, &Collection) -> Option<String>,
}

pub(super) const COMPACT: Maintenance = Maintenance {
    name: "compact",
    noun: "compaction",
    bytes: Engine::compact_bytes,
    run: |engine, collections, progress| {
        on_each(engine, collections, |collection, sum: &mut Compacted| {
            engine.compact(collection, progress).map(|done| sum.add(done))
        })
    },
    last: |engine, collection| {
        let log = collection.last_checkpoint()?;
        let (at, before, after) = (log.at, log.before, log.after);
        let payloads = engine.last_compact(collection).map_or(String::new(), |done| format!("; {done}"));
        Some(format!("log at {at} from {before} to {after} bytes{payloads}"))
    },
};

pub(super) const SCRUB: Maintenance = Maintenance {
    name: "scrub",
    noun: "scrub",
    bytes: |_, collection| collection.state().objects().map(|object| object.bytes()).sum(),
    run: |engine, collections, progress| {
        on_each(engine, collections, |collection, sum: &mut Scrubbed| {
            engine.scrub(collection, progress).map(|found| sum.add(found))
        })
    },
    last: |engine, collection| engine.last_scrub(collection).map(|found| found.report()),
};

/// Does the work on each collection, then returns the sum of the results, or the first error. Only a
/// cancellation ends it early.
fn on_each<S: Default + fmt::Display>(
    engine: &Engine,
    collections: &Collections,
    mut work: impl FnMut(&Arc<Collection>, &mut S) -> Result<()>,
) -> Result<String> {
    let (mut sum, mut first) = (S::default(), Ok(()));
    collections.each(&engine.store, |collection| {
        match work(collection, &mut sum) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            done if first.is_ok() => first = done,
            _ => {}
        }
        Ok(())
    })?;
    first.map(|()| sum.to_string())
}

/// The last result of a collection.
pub(super) fn shown(context: &Context, maintenance: &Maintenance) -> Result<String> {
    Ok(line(context, maintenance, context.collection()?))
}

/// The last result of each collection.
pub(super) fn of_mount(context: &Context, maintenance: &Maintenance) -> Result<String> {
    let mut text = String::new();
    Collections::All.each(context.mounted.store(), |collection| {
        text.push_str(&line(context, maintenance, collection));
        Ok(())
    })?;
    Ok(text)
}

/// Starts or stops a job on a collection.
pub(super) fn act(context: &Context, maintenance: &'static Maintenance, text: &str) -> Result<Invalidation> {
    let collection = context.collection()?.clone();
    let path = collection.path();
    start_or_stop(context, maintenance, text, path, Collections::One(collection))
}

/// Starts or stops a job on all collections.
pub(super) fn act_on_all(
    context: &Context,
    maintenance: &'static Maintenance,
    text: &str,
) -> Result<Invalidation> {
    start_or_stop(context, maintenance, text, ALL.to_owned(), Collections::All)
}

fn start_or_stop(
    context: &Context,
    maintenance: &'static Maintenance,
    text: &str,
    path: String,
    collections: Collections,
) -> Result<Invalidation> {
    let jobs = &context.mounted.jobs;
    match text {
        "start" => {
            let vfs = context.mounted.vfs.clone();
            let mut bytes = 0;
            collections.each(vfs.store(), |collection| {
                bytes += (maintenance.bytes)(vfs.engine(), collection);
                Ok(())
            })?;
            let job = Job::new(maintenance.name.to_owned(), path, context.user, bytes);
            jobs.push(job, move |progress, report| {
                report.text = (maintenance.run)(vfs.engine(), &collections, progress)?;
                Ok(())
            });
            Ok(Invalidation::default())
        }
        "stop" if jobs.cancel_all(maintenance.name, &path) > 0 => Ok(Invalidation::default()),
        "stop" => {
            let noun = maintenance.noun;
            Err(Error::invalid(format!("no {noun} that was started here is running or waiting")))
        }
        _ => Err(Error::invalid(format!("unknown command {text}; write start or stop"))),
    }
}

fn line(context: &Context, maintenance: &Maintenance, collection: &Arc<Collection>) -> String {
    let last = (maintenance.last)(context.mounted.vfs.engine(), collection);
    let last = last.unwrap_or_else(|| "not since it was opened".to_owned());
    format!("{}: {last}\n", collection.path())
}
