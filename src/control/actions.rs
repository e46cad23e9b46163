//! Control files that act on the whole mount.

use crate::control::files::Context;
use crate::model::Result;
use crate::namespace::Forget;

/// Makes everything durable that was written.
pub(super) fn sync(context: &Context, _: &str) -> Result<Forget> {
    let mut all = Forget::default();
    context.mounted.namespace.sync(&mut |forget| all.nodes.extend(forget.nodes))?;
    Ok(all)
}
