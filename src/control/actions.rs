//! The control files `sync`, `jobs`, `config`, `policy` and `remove`, and the reasons of refused names.

use std::ffi::OsStr;

use crate::control::context::{Context, Mounted, no_file};
use crate::control::jobs::Of;
use crate::control::refusals::Asker;
use crate::engine;
use crate::model::{CollectionName, Error, ErrorKind, Result};
use crate::store::{Access, Look, ROOT, Refreshed, version_in};
use crate::vfs::{ChildName, Invalidation, Located, Scope};

/// Makes everything written durable. Queues the kernel invalidations instead of returning them, so
/// that a close meanwhile does not wait for all of them.
pub(super) fn sync(context: &Context, _: &str) -> Result<Invalidation> {
    let vfs = &context.mounted.vfs;
    vfs.sync(&mut |forget| vfs.queue_invalidation(forget))?;
    Ok(Invalidation::default())
}

/// Shows newer snapshots of a mounted remote from now on. It acts when it is read, since the kernel refuses
/// all writes to such a mount.
pub(super) fn refresh(context: &Context) -> Result<String> {
    let Refreshed { paths, failed } = context.mounted.store().refresh(Look::All)?;
    match failed {
        Some(error) if paths.is_empty() => return Err(error),
        // The next read fails, if these fail again.
        Some(error) => log::warn!("{error}"),
        None if paths.is_empty() => return Ok("nothing new\n".to_owned()),
        None => {}
    }
    Ok(paths.iter().map(|path| format!("{path}\n")).collect())
}

/// The jobs that the caller may see and cancel.
pub(super) fn jobs_of(context: &Context) -> Of {
    if context.mounted.is_run_by(context.user) { Of::All } else { Of::User(context.user) }
}

/// `cancel N` cancels job N.
pub(super) fn jobs(context: &Context, text: &str) -> Result<Invalidation> {
    let number = text.strip_prefix("cancel ").and_then(|number| number.trim().parse().ok());
    let number = number.ok_or_else(|| {
        Error::invalid(format!("unknown command {text:?}; write cancel and the number of a job"))
    })?;
    if !context.mounted.jobs.cancel(number, jobs_of(context)) {
        return Err(Error::invalid(format!("no job {number} of yours is running or waiting")));
    }
    Ok(Invalidation::default())
}

/// The settings in effect: those of the store and those of the mount.
pub(super) fn config(context: &Context) -> Result<String> {
    let mounted = context.mounted;
    let store = mounted.store();
    let mut mount = mounted.options.clone();
    mount.insert("store".to_owned(), store.place().into());
    mount.insert("mountpoint".to_owned(), mounted.mountpoint.clone().into());
    mount.insert("read_only".to_owned(), (store.access() == Access::Read).into());
    mount.insert("process".to_owned(), i64::from(std::process::id()).into());
    let mut table = toml::Table::new();
    table.insert("mount".to_owned(), mount.into());
    Ok(format!("{}\n# The mount.\n{table}", store.settings().to_text()))
}

/// The policy in effect.
pub(super) fn policy(context: &Context) -> Result<String> {
    let state = context.collection()?.state();
    Ok(format!("{}\n", engine::POLICY.of(&state, ROOT)))
}

/// Sets the policy of the collection. Files and directories with a setting of their own keep it.
pub(super) fn set_policy(context: &Context, text: &str) -> Result<Invalidation> {
    engine::set_setting(context.collection()?, ROOT, &engine::POLICY, text)?;
    Ok(Invalidation::default())
}

/// Removes the named collection with everything in it, or a version by its name below the tenant.
pub(super) fn remove(context: &Context, name: &str) -> Result<Invalidation> {
    let Scope::Tenant(tenant) = &context.view.scope else { return Err(no_file()) };
    let vfs = &context.mounted.vfs;
    let removed = match version_in(name) {
        Some((collection, number)) => {
            vfs.remove_version(CollectionName::new(tenant, collection), number)?;
            Invalidation::default()
        }
        None => vfs.remove_collection(tenant, name)?,
    };
    context.mounted.store().events().removed(&format!("{tenant}/{name}"), context.user);
    Ok(removed)
}

/// Keeps the reason why a request was refused, for programs that ask its inode for it. Other errors, such as `NotFound`, are
/// answers.
pub fn note_refused(mounted: &Mounted, asker: Asker, request: &str, error: &Error) {
    let is_refusal = matches!(
        error.kind(),
        ErrorKind::Denied
            | ErrorKind::Forbidden
            | ErrorKind::ReadOnly
            | ErrorKind::OtherDevice
            | ErrorKind::Busy
    );
    if !is_refusal {
        return;
    }
    let asker = Asker { ino: asker.ino.own(), ..asker };
    let path = match mounted.vfs.locate(asker.ino) {
        Ok(Located::Root) => String::new(),
        Ok(Located::Tenant(tenant)) => tenant,
        Ok(Located::Node(view)) => view.path(),
        Ok(Located::Form(view)) => view.path(),
        Ok(Located::Control(view)) => view.path(),
        Ok(Located::Tags(_)) | Err(_) => return,
    };
    mounted.refusals.note(asker, &path, request, error);
}

/// Keeps the reason why a user may not make or remove a name, for programs that ask the directory for it.
pub fn note_refused_name(mounted: &Mounted, user: u32, at: ChildName<'_>, doing: &str, error: &Error) {
    let request = format!("{doing} {}", String::from_utf8_lossy(at.name));
    note_refused(mounted, Asker { ino: at.parent, user }, &request, error);
}

/// Keeps the reason why a name was not changed, for programs that ask its directory for it; of a tenant or a collection,
/// for those that ask itself.
pub fn note_refused_rename(mounted: &Mounted, user: u32, from: ChildName<'_>, to: &OsStr, error: &Error) {
    if !matches!(mounted.vfs.locate(from.parent), Ok(Located::Root | Located::Tenant(_))) {
        // Programs that move a file to another collection then copy it.
        if error.kind() != ErrorKind::OtherDevice {
            note_refused_name(mounted, user, from, "rename", error);
        }
        return;
    }
    let Ok((ino, located)) = mounted.vfs.lookup(from.parent, from.name) else { return };
    let path = match &located {
        Located::Node(view) => view.path(),
        Located::Tenant(tenant) => tenant.clone(),
        _ => return,
    };
    mounted.refusals.note(Asker { ino, user }, &path, &format!("rename to {}", to.display()), error);
}
