//! Control files that act on the whole mount.

use crate::control::files::Context;
use crate::model::{Error, Result};
use crate::namespace::Forget;

/// Makes everything durable that was written.
pub(super) fn sync(context: &Context, _: &str) -> Result<Forget> {
    let mut all = Forget::default();
    context.mounted.namespace.sync(&mut |forget| all.nodes.extend(forget.nodes))?;
    Ok(all)
}

/// `cancel N` stops a job.
pub(super) fn jobs(context: &Context, text: &str) -> Result<Forget> {
    let number = text.strip_prefix("cancel ").and_then(|number| number.trim().parse().ok());
    let number =
        number.ok_or_else(|| Error::invalid(format!("{text:?}: write cancel and a job's number")))?;
    match context.mounted.jobs.cancel(number) {
        true => Ok(Forget::default()),
        false => Err(Error::invalid(format!("there is no job {number} that could be cancelled"))),
    }
}
