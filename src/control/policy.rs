//! The setting `policy` of a collection: whether tiers change by themselves.

use crate::control::files::Context;
use crate::engine;
use crate::model::Result;
use crate::store::ROOT;
use crate::vfs::Invalidation;

/// The policy in effect.
pub(super) fn shown(context: &Context) -> Result<String> {
    let state = context.collection()?.state();
    Ok(format!("{}\n", engine::POLICY.of(&state, ROOT)))
}

/// Sets it for all that has none of its own.
pub(super) fn set(context: &Context, text: &str) -> Result<Invalidation> {
    engine::set_setting(context.collection()?, ROOT, &engine::POLICY, text)?;
    Ok(Invalidation::default())
}
