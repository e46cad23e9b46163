//! The setting `policy` of a collection: whether tiers change by themselves.

use crate::control::files::Context;
use crate::edit;
use crate::model::{Error, Result};
use crate::namespace::Forget;
use crate::store::state::ROOT;

const KEY: &str = "policy";
const VALUES: [&str; 3] = ["manual", "auto", "cache"];

/// The policy in effect.
pub(super) fn shown(context: &Context) -> Result<String> {
    let state = context.collection()?.state();
    Ok(format!("{}\n", state.setting(ROOT, KEY).unwrap_or("manual")))
}

/// Sets it for all that has none of its own.
pub(super) fn set(context: &Context, text: &str) -> Result<Forget> {
    let Some(value) = VALUES.iter().find(|value| **value == text) else {
        return Err(Error::invalid(format!("{text:?} is no policy; there are {}", VALUES.join(", "))));
    };
    edit::set_setting(context.collection()?, ROOT, KEY, Some(value))?;
    Ok(Forget::default())
}
