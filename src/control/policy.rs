//! The control file `policy`: whether the engine moves the tiers of a collection by itself.

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

/// Sets the policy of the collection. Files and directories with a setting of their own keep it.
pub(super) fn set(context: &Context, text: &str) -> Result<Invalidation> {
    engine::set_setting(context.collection()?, ROOT, &engine::POLICY, text)?;
    Ok(Invalidation::default())
}
