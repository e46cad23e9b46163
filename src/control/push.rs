//! The control file `push`: a line of JSON publishes a collection of the mounted store as a job.

use crate::control::context::Context;
use crate::control::jobs::{Job, Report};
use crate::engine::variant;
use crate::model::{Error, ErrorKind, OwnedCollectionName, Result};
use crate::remote::push::request::PushRequest;
use crate::vfs::Invalidation;

/// The name of a push job; a colon and the label of the request may follow.
pub const PUSH: &str = "push";

/// Checks an request and queues its job. The job's result is JSON as `tierfs push --json` prints it.
pub(super) fn start(context: &Context, text: &str) -> Result<Invalidation> {
    if !context.mounted.is_run_by(context.user) {
        let text = "only root and the owner of the mount may push, because the daemon's credentials are used";
        return Err(Error::new(ErrorKind::Denied, text));
    }
    let request = PushRequest::parse(text)?;
    let vfs = context.mounted.vfs.clone();
    let OwnedCollectionName { tenant, name } = &request.collection;
    vfs.store().collection(tenant, name)?;
    let path = format!("{tenant}/{name}");
    let what = match &request.label {
        Some(label) => format!("{PUSH}:{label}"),
        None => PUSH.to_owned(),
    };
    let job = Job::new(what, path, context.user, 0);
    context.mounted.jobs.push(job, move |progress, report| {
        // Written bytes that no close or fsync has recorded belong to the snapshot too.
        vfs.sync(&mut |forget| vfs.queue_invalidation(forget))?;
        let pushed = request.run(vfs.store(), vfs.owner(), variant, progress)?;
        *report = Report {
            text: pushed.text(request.named.borrowed()),
            result: pushed.to_json(request.named.borrowed()),
        };
        Ok(())
    });
    Ok(Invalidation::default())
}
