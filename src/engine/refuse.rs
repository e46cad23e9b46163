//! Refusals of requests for tensors.

use crate::engine::select::Target;
use crate::model::{Cause, Error, ErrorKind, Refusal, Result};
use crate::store::Collection;

/// The path of a tensor in the mount.
pub(super) fn path_of(collection: &Collection, target: &Target) -> String {
    format!("{}/{}", collection.path(), target.path)
}

/// A request that was refused for a tensor.
pub(super) fn refused(collection: &Collection, target: &Target, cause: Cause) -> Error {
    Error::refused(vec![Refusal { path: path_of(collection, target), cause }])
}

/// As [`refused`], for a cause without a name.
pub(super) fn refused_for(
    collection: &Collection,
    target: &Target,
    kind: ErrorKind,
    text: impl Into<String>,
) -> Error {
    refused(collection, target, Cause::Other(kind, text.into()))
}

/// Fails with `Busy` where a tensor or its container is pinned.
pub(super) fn refuse_pinned(collection: &Collection, target: &Target) -> Result<()> {
    let state = collection.state();
    let Some(pinned) = state.pinned_with(target.node) else { return Ok(()) };
    let path = if pinned == target.node {
        path_of(collection, target)
    } else {
        format!("{}/{}", collection.path(), String::from_utf8_lossy(&state.path(pinned)))
    };
    Err(Error::refused(vec![Refusal { path, cause: Cause::Pinned }]))
}

/// Fails with `Busy` where other tensors are stored as differences to a tensor, or other files have its bytes too.
pub(super) fn refuse_needed(collection: &Collection, target: &Target) -> Result<()> {
    for object in &target.objects {
        if let Err(error) = collection.check_not_needed(object.entry.id, Some(target.node)) {
            let cause = error.refusals().first().map_or(Cause::Needed, |first| first.cause.clone());
            return Err(refused(collection, target, cause));
        }
    }
    Ok(())
}

/// Collects refusals of several tensors, so that all of them can be reported.
#[derive(Default)]
pub(super) struct Refused {
    refusals: Vec<Refusal>,
}

impl Refused {
    /// Takes the refusals of a result. Returns other errors and values.
    pub fn take<T>(&mut self, done: Result<T>) -> Result<Option<T>> {
        match done {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.refusals().is_empty() => Err(error),
            Err(error) => {
                self.refusals.extend_from_slice(error.refusals());
                Ok(None)
            }
        }
    }

    pub fn into_vec(self) -> Vec<Refusal> {
        self.refusals
    }

    /// Fails if there are any refusals.
    pub fn check(self) -> Result<()> {
        if self.refusals.is_empty() { Ok(()) } else { Err(Error::refused(self.refusals)) }
    }
}
