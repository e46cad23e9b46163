//! Renames and removals of whole collections and tenants.

use std::ffi::OsStr;

use crate::control::context::{Context, Mounted, no_file};
use crate::model::{Error, Result};
use crate::vfs::{Ino, Invalidation, Located, Scope};

/// Removes the named collection with everything in it.
pub(super) fn remove(context: &Context, name: &str) -> Result<Invalidation> {
    let Scope::Tenant(tenant) = &context.view.scope else { return Err(no_file()) };
    context.mounted.vfs.remove_collection(tenant, name)
}

/// Keeps the reason why a tenant or a collection was not renamed, for programs that ask for it.
pub fn note_refused_rename(
    mounted: &Mounted,
    user: u32,
    (parent, name): (Ino, &[u8]),
    to: &OsStr,
    error: &Error,
) {
    if !matches!(mounted.vfs.locate(parent), Ok(Located::Root | Located::Tenant(_))) {
        return;
    }
    let Ok((ino, located)) = mounted.vfs.lookup(parent, name) else { return };
    let path = match &located {
        Located::Node(view) => view.path(),
        Located::Tenant(tenant) => tenant.clone(),
        _ => return,
    };
    mounted.refusals.note((ino, user), &path, &format!("rename to {}", to.display()), error);
}
