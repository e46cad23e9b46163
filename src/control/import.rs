//! The control file `import`: a line of JSON starts an import into the mounted store as a job.
//!
//! The job itself lists a URL, with the credentials of the daemon: a server may take long to answer.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::control::context::Context;
use crate::control::jobs::{Job, Report};
use crate::engine::Finish;
use crate::ingest::{Plan, Request, Sum, Watch};
use crate::model::{Error, ErrorKind, OwnedCollectionName, Progress, Result};
use crate::store::{Collection, Store};
use crate::vfs::{Invalidation, Vfs};

/// The name of an import job; a colon and the tag of the request may follow.
pub const IMPORT: &str = "import";

/// A job that lists a URL looks this often whether it is cancelled.
const LOOKED_EVERY: Duration = Duration::from_millis(100);

/// The files of a request.
enum Files {
    Found(Box<Plan>),
    /// Those at a URL, which the job lists.
    Unlisted(Box<Request>),
}

/// Reports the progress of an import to its job only.
struct Watched<'a>(&'a dyn Progress, &'a Vfs);

/// Checks a request and queues its job. The job's result is JSON as `tierfs import --json` prints it.
pub(super) fn start(context: &Context, text: &str) -> Result<Invalidation> {
    if !context.mounted.is_run_by(context.user) {
        let text =
            "only root and the owner of the mount may import, because the daemon reads the source files";
        return Err(Error::new(ErrorKind::Denied, text));
    }
    let vfs = context.mounted.vfs.clone();
    let request = Request::parse(text)?;
    if request.leaves_files_far() && context.mounted.has_rings() {
        let text = "requests arrive by io_uring, where reads that wait for a server would hold up others; \
                    unmount the store before the import, or mount it with --transport classic";
        return Err(Error::new(ErrorKind::Busy, text));
    }
    let finish = Finish::new(request.packs_later(), request.reconstruct.as_deref())?;
    let planned = {
        let vfs = vfs.clone();
        move |request: Request| {
            let plan = Plan::of(request, &PathBuf::from(vfs.store().place()))?;
            plan.check_quota(vfs.store()).map(|()| plan)
        }
    };
    let what = match &request.tag {
        Some(tag) => format!("{IMPORT}:{tag}"),
        None => IMPORT.to_owned(),
    };
    let path = request.collection.to_string();
    let (files, bytes) = match request.url() {
        Some(_) => (Files::Unlisted(Box::new(request)), 0),
        None => {
            let plan = planned(request)?;
            let bytes = plan.bytes();
            (Files::Found(Box::new(plan)), bytes)
        }
    };
    let job = Job::new(what, path, context.user, bytes);
    context.mounted.jobs.push(job, move |progress, report| {
        let plan = match files {
            Files::Found(plan) => plan,
            Files::Unlisted(request) => unless_cancelled(progress, move || planned(*request).map(Box::new))?,
        };
        progress.expect(plan.bytes());
        let store = vfs.store();
        let finish = |collection: &_, node| finish.finish(vfs.engine(), collection, node);
        let mut sum = Sum::default();
        let done = plan.run(store, vfs.owner(), &Watched(progress, &vfs), Some(&finish), &mut sum);
        // Also after a cancelled import: the files that were complete by then have appeared.
        let OwnedCollectionName { tenant, name } = &plan.request().collection;
        if let Ok(collection) = store.collection(tenant, name) {
            vfs.finish_renames(&collection);
            vfs.queue_invalidation(vfs.invalidate_nodes(&collection, sum.changed.iter().copied()));
        }
        sum.is_cancelled = done.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted);
        *report = Report { text: sum.text(plan.request()), result: sum.to_json(&plan.path()) };
        done
    });
    Ok(Invalidation::default())
}

/// The result of `work`, which runs on a thread of its own; that of a cancelled job is dropped.
fn unless_cancelled<T: Send + 'static>(
    progress: &dyn Progress,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (done, result) = channel();
    let listing = thread::Builder::new().name("listing".to_owned());
    let started = listing.spawn(move || drop(done.send(work())));
    started.map_err(|error| Error::io("starting a thread", error))?;
    loop {
        match result.recv_timeout(LOOKED_EVERY) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) => progress.check()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Io, "a bug in tierfs ended it; see the log of the daemon"));
            }
        }
    }
}

impl Progress for Watched<'_> {
    fn advance(&self, bytes: u64) {
        self.0.advance(bytes);
    }

    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

impl Watch for Watched<'_> {
    fn flush(&self, collection: &Arc<Collection>) -> Result<()> {
        self.1.flush_all(collection)
    }

    fn make_room(&self, _store: &Store) -> bool {
        self.1.make_room()
    }
}
