//! Logs that are written anew when somebody asks for it.

use std::sync::Arc;

use crate::control::files::Context;
use crate::model::{Error, ErrorKind, Result};
use crate::namespace::Forget;
use crate::store::Collection;

const START: &str = "start";

/// How the log of a collection was last written anew.
pub(super) fn shown(context: &Context) -> Result<String> {
    Ok(line(context.collection()?))
}

/// Writes it anew now.
pub(super) fn start(context: &Context, text: &str) -> Result<Forget> {
    check(text)?;
    context.collection()?.compact_now()?;
    Ok(Forget::default())
}

/// How the log of each collection was last written anew.
pub(super) fn of_mount(context: &Context) -> Result<String> {
    Ok(collections(context)?.iter().map(line).collect())
}

/// Writes all logs anew now. The first failure is told when all were tried.
pub(super) fn start_all(context: &Context, text: &str) -> Result<Forget> {
    check(text)?;
    let mut first = Ok(());
    for collection in collections(context)? {
        first = first.and(collection.compact_now().map(drop));
    }
    first.map(|()| Forget::default())
}

fn check(text: &str) -> Result<()> {
    match text {
        START => Ok(()),
        _ => Err(Error::invalid(format!("{text:?} is nothing that compact does; there is {START}"))),
    }
}

fn line(collection: &Arc<Collection>) -> String {
    let path = collection.path();
    match collection.last_compaction() {
        Some(last) => {
            format!("{path}: at {} from {} to {} bytes\n", last.at, last.before, last.after)
        }
        None => format!("{path}: not since it was opened\n"),
    }
}

/// All collections of the store that can be opened, in order.
pub(super) fn collections(context: &Context) -> Result<Vec<Arc<Collection>>> {
    let store = context.mounted.store();
    let mut found = Vec::new();
    for tenant in store.tenants()? {
        for name in store.collections(&tenant)? {
            match store.collection(&tenant, &name) {
                Ok(collection) => found.push(collection),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => log::warn!("{tenant}/{name}: {error}"),
            }
        }
    }
    Ok(found)
}
