//! The objects that several files have: a file that was joined of others, and these.
//!
//! A joined file lists the objects of its sources, and its setting `JOINED` has the numbers of the nodes that these were
//! then. While two files have an object, no batch changes its bytes or deletes it (`store/log/validate.rs`): writes and
//! moves are refused, and a name that goes leaves the object to the others. `State::own_objects` says which objects a
//! file takes with it.

use std::collections::HashSet;

use crate::format::log::catalog::FileEntry;
use crate::model::{Cause, EntryId, Error, ObjectId, Refusal, Result};
use crate::store::state::State;

impl State {
    /// Whether any object has or had several files.
    pub fn has_shared_objects(&self) -> bool {
        !self.settings.shared.is_empty()
    }

    /// Fails with `Busy` if another file than `own` has an object too. Without `own`, if several files have it.
    pub fn check_unshared(&self, object: ObjectId, own: Option<EntryId>) -> Result<()> {
        let Some(other) = self.settings.shared.other(object, own) else { return Ok(()) };
        let path = String::from_utf8_lossy(&self.path(other)).into_owned();
        Err(Error::refused(vec![Refusal { path: String::new(), cause: Cause::Shared(path) }]))
    }

    /// The objects of a file that no other file has.
    pub fn own_objects<'a>(
        &'a self,
        node: EntryId,
        file: &'a FileEntry,
    ) -> impl Iterator<Item = ObjectId> + 'a {
        let shared = &self.settings.shared;
        file.objects.iter().copied().filter(move |object| shared.other(*object, Some(node)).is_none())
    }

    /// Notes the files of the objects of a joined file.
    pub(super) fn note_joined(&mut self, joined: EntryId, sources: &str) {
        let objects = |id| Some(self.node(id)?.file()?.objects.clone());
        let Some(own) = objects(joined) else { return };
        let of_joined: HashSet<ObjectId> = own.iter().copied().collect();
        let numbers = sources.split(',').filter_map(|number| number.parse().ok()).map(EntryId);
        let sources = numbers.filter(|source| *source != joined);
        let found: Vec<_> = sources.filter_map(|source| Some((source, objects(source)?))).collect();
        for (source, objects) in found {
            for object in objects.into_iter().filter(|object| of_joined.contains(object)) {
                self.settings.shared.add(object, [source, joined]);
            }
        }
    }

    /// Notes the objects that a file no longer has.
    pub(super) fn leave_objects(
        &mut self,
        node: EntryId,
        before: Option<&FileEntry>,
        now: Option<&FileEntry>,
    ) {
        let Some(before) = before.filter(|_| self.has_shared_objects()) else { return };
        if now.is_some_and(|now| now.objects == before.objects) {
            return;
        }
        let kept: HashSet<ObjectId> = now.into_iter().flat_map(|now| now.objects.iter().copied()).collect();
        for object in before.objects.iter().filter(|object| !kept.contains(object)) {
            self.settings.shared.remove(*object, node);
        }
    }
}
