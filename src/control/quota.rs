//! The control file `quota`: usage and limits of a tenant or collection, and the users who may change the limits.

use crate::control::context::{Context, no_file};
use crate::model::{Error, ErrorKind, Result};
use crate::store::{Limits, Use};
use crate::vfs::{Invalidation, Scope};

/// Usage and limits of a tenant.
pub(super) fn of_tenant(context: &Context) -> Result<String> {
    let tenant = tenant(context)?;
    let store = context.mounted.store();
    Ok(text(store.tenant_use(tenant)?, store.tenant(tenant).entry().limits))
}

/// Usage and limits of a collection.
pub(super) fn of_collection(context: &Context) -> Result<String> {
    let meter = context.collection()?.meter();
    Ok(text(meter.used(), meter.limits()))
}

/// Sets limits of a tenant. Only root and the owner of the mount may raise them.
pub(super) fn set_of_tenant(context: &Context, asked: &str) -> Result<Invalidation> {
    let tenant = tenant(context)?;
    let store = context.mounted.store();
    let before = store.tenant(tenant).entry().limits;
    let limits = before.changed(asked)?;
    refuse_raise(limits.raise(before) && !context.mounted.is_run_by(context.user), tenant)?;
    store.change_tenant(tenant, |entry| entry.limits = limits)?;
    Ok(Invalidation::default())
}

/// Sets limits of a collection. Root, the owner of the mount and the owner of the tenant may raise them.
pub(super) fn set_of_collection(context: &Context, asked: &str) -> Result<Invalidation> {
    let collection = context.collection()?;
    let before = collection.meter().limits();
    let limits = before.changed(asked)?;
    let may_raise = context.mounted.is_run_by(context.user)
        || context.mounted.vfs.tenant_owner(collection.tenant()).uid == context.user;
    refuse_raise(limits.raise(before) && !may_raise, &collection.path())?;
    collection.set_limits(limits)?;
    Ok(Invalidation::default())
}

fn tenant<'a>(context: &'a Context) -> Result<&'a str> {
    match &context.view.scope {
        Scope::Tenant(tenant) => Ok(tenant),
        _ => Err(no_file()),
    }
}

fn refuse_raise(is_refused: bool, path: &str) -> Result<()> {
    let text = || format!("{path}: you may lower its quota but not raise it");
    if is_refused { Err(Error::new(ErrorKind::Denied, text())) } else { Ok(()) }
}

fn text(used: Use, limits: Limits) -> String {
    let Use { logical, stored, files } = used;
    let limits = limits.to_text();
    format!(
        "files          {files}\nlogical bytes  {logical}\nstored bytes   {stored}\nlimits         {limits}\n"
    )
}
