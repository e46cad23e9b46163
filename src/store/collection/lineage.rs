//! Lineage: the objects that are stored as differences to others, across all collections of a store.
//!
//! A child's block refers to its parent's block by object and epoch. So the parent's blocks must not change while a
//! child needs them or a reader may use them: attempts to write, move or delete them fail with `Busy`.
//! `store/log/validate.rs` refuses such batches, `store/io/write.rs` and `vfs/open/file.rs` such writes.
//!
//! `Collection::hold_parent` marks the parent held, notes the child's collection in that of the parent, durably, and
//! waits for batches and writes that began before. `engine/evict/delta.rs` then computes the differences and records
//! them with the eviction. A child needs its parent until its deltas are reclaimed; a batch that frees the last ones is
//! synced at once, because the parent may be written from then on.
//!
//! Children in the parent's own collection are known whenever that is open. For children in other
//! collections, the directory of the parent's collection has a setting for each such collection. The setting is durable before the first child
//! needs it, and opening the collection opens those with children too. It stays when the last child there is gone, and
//! goes when the mount renames or removes the collection of the children, whose own setting says where its parents are.
//!
//! If a collection cannot be opened, is not there, or its log is damaged, its children are unknown. Objects that such
//! settings name then stay unchanged until the collection opens, or a repair forgets it.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use crate::format::log::catalog::{Entry, Parent};
use crate::model::{
    Cause, CollectionName, EntryId, Error, ErrorKind, ObjectId, OwnedCollectionName, Refusal, Result,
};
use crate::store::collection::Collection;
use crate::store::object::Object;
use crate::store::space::files::Touched;
use crate::store::state::by_id::ByObject;
use crate::store::state::{ROOT, State};

/// Prefix of the settings, followed by the parent and the collection with children.
pub(in crate::store) const CHILDREN_OF: &str = "children of ";
/// Prefix of the settings of a collection with children, followed by the collection of the parents.
pub(in crate::store) const PARENTS_IN: &str = "parents in ";
/// Separator between the two.
const IN: &str = " in ";

/// The relations of an object of a collection.
fn found<'a>(
    relations: &'a ByObject<Vec<Relations>>,
    place: CollectionName<'_>,
    object: ObjectId,
) -> Option<&'a Relations> {
    relations.get(&object)?.iter().find(|found| found.place.borrowed() == place)
}

/// As [`found`]. Adds relations where the object has none yet.
fn found_or_made<'a>(
    relations: &'a mut ByObject<Vec<Relations>>,
    place: CollectionName<'_>,
    object: ObjectId,
) -> &'a mut Relations {
    let all = relations.entry(object).or_default();
    let at = all.iter().position(|found| found.place.borrowed() == place);
    let at = at.unwrap_or_else(|| {
        all.push(Relations { place: place.owned(), ..Relations::default() });
        all.len() - 1
    });
    &mut all[at]
}

/// Parents and children in the open collections.
#[derive(Debug, Default)]
pub(in crate::store) struct Lineage {
    /// By parent: one for each collection that has an object of this identity, as clones have. The last lock in the order.
    relations: RwLock<ByObject<Vec<Relations>>>,
}

/// The children of an object.
#[derive(Debug, Default)]
struct Relations {
    /// Collection of the parent.
    place: OwnedCollectionName,
    /// That collection, while it is open.
    parent_collection: Weak<Collection>,
    /// Each with its collection.
    children: Vec<(Weak<Collection>, Weak<Object>)>,
    /// Collections that may have children but whose children are unknown.
    unknown: BTreeSet<OwnedCollectionName>,
    /// Number of holds that keep the parent unchanged.
    holds: u32,
}

impl Relations {
    fn is_needed(&self) -> bool {
        self.holds > 0 || !self.unknown.is_empty() || self.needing().next().is_some()
    }

    /// The children that need the parent.
    fn needing(&self) -> impl Iterator<Item = (&Weak<Collection>, Arc<Object>)> {
        let children = self.children.iter().filter_map(|(place, child)| Some((place, child.upgrade()?)));
        children.filter(|(_, child)| child.needs_parent())
    }
}

impl Lineage {
    /// Whether others depend on an object of a collection.
    pub fn is_needed(&self, place: CollectionName<'_>, object: ObjectId) -> bool {
        let relations = self.relations.read();
        !relations.is_empty() && found(&relations, place, object).is_some_and(Relations::is_needed)
    }

    /// Adds a child, and the collection of its parent.
    fn note(
        &self,
        parent: &Parent,
        parent_collection: &Arc<Collection>,
        collection: &Arc<Collection>,
        child: &Arc<Object>,
    ) {
        let mut relations = self.relations.write();
        let found = found_or_made(&mut relations, parent_collection.place(), parent.object);
        found.parent_collection = Arc::downgrade(parent_collection);
        let is_same = |known: &Weak<Object>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(child));
        found.children.retain(|(_, known)| known.strong_count() > 0 && !is_same(known));
        found.children.push((Arc::downgrade(collection), Arc::downgrade(child)));
    }

    /// An object that is stored as differences to another, and its collection.
    fn child_of(
        &self,
        place: CollectionName<'_>,
        parent: ObjectId,
    ) -> Option<(Arc<Collection>, Arc<Object>)> {
        let relations = self.relations.read();
        let mut needing = found(&relations, place, parent)?.needing();
        needing.find_map(|(collection, child)| Some((collection.upgrade()?, child)))
    }

    /// `Busy` if others depend on an object of a collection.
    pub fn check_not_needed(&self, place: CollectionName<'_>, object: ObjectId) -> Result<()> {
        let relations = self.relations.read();
        let found = found(&relations, place, object).filter(|found| found.is_needed());
        let Some(found) = found else { return Ok(()) };
        let cause = match found.unknown.first() {
            Some(collection) => Cause::Other(
                ErrorKind::Busy,
                format!(
                    "tensors of {collection}, which is missing, does not open or is damaged, may be stored as \
                     differences to it; put it back, or run tierfs fsck --repair, and mount again"
                ),
            ),
            None => Cause::Needed,
        };
        Err(Error::refused(vec![Refusal { path: String::new(), cause }]))
    }

    /// Records that the collection `of` may need any of these objects.
    fn note_unknown(
        &self,
        place: CollectionName<'_>,
        parents: impl Iterator<Item = ObjectId>,
        of: &OwnedCollectionName,
    ) {
        let mut relations = self.relations.write();
        for parent in parents {
            found_or_made(&mut relations, place, parent).unknown.insert(of.clone());
        }
    }

    /// Records that the children of a collection are known: it needs no other objects.
    fn forget_unknown(&self, place: &OwnedCollectionName) {
        self.relations.write().values_mut().flatten().for_each(|known| {
            known.unknown.remove(place);
        });
    }

    /// The collection at a place that has a parent, if it is open.
    pub fn parent_collection(&self, place: CollectionName<'_>, parent: ObjectId) -> Option<Arc<Collection>> {
        found(&self.relations.read(), place, parent)?.parent_collection.upgrade()
    }

    fn hold(&self, place: CollectionName<'_>, object: ObjectId, change: impl Fn(u32) -> u32) {
        let mut relations = self.relations.write();
        let holds = &mut found_or_made(&mut relations, place, object).holds;
        *holds = change(*holds);
    }
}

/// Keeps an object unchanged while this lives.
pub struct ParentHold {
    lineage: Arc<Lineage>,
    place: OwnedCollectionName,
    object: ObjectId,
}

impl Drop for ParentHold {
    fn drop(&mut self) {
        self.lineage.hold(self.place.borrowed(), self.object, |holds| holds.saturating_sub(1));
    }
}

/// Key of the setting that says that a collection has children of an object.
fn setting_of(parent: ObjectId, path: &str) -> String {
    format!("{CHILDREN_OF}{parent}{IN}{path}")
}

/// The parents in a collection, each with a collection that has had children of it.
fn parents(state: &State) -> impl Iterator<Item = (ObjectId, OwnedCollectionName)> {
    state.settings_of(ROOT).filter_map(|(key, _)| {
        let (parent, path) = key.strip_prefix(CHILDREN_OF)?.split_once(IN)?;
        let (tenant, name) = path.split_once('/')?;
        Some((ObjectId::parse(parent)?, OwnedCollectionName::new(tenant, name)))
    })
}

/// The related collections: those with children of its objects, and those with parents of its objects.
pub(in crate::store) fn relatives(state: &State) -> BTreeSet<OwnedCollectionName> {
    parents(state).map(|(_, place)| place).chain(parents_needed(state).cloned()).collect()
}

/// The other collections with parents that objects of a collection need, each once or more often.
pub(in crate::store) fn parents_needed(state: &State) -> impl Iterator<Item = &OwnedCollectionName> {
    let needed = state.objects().filter(|object| object.needs_parent());
    needed.filter_map(|object| object.entry.parent.as_ref()?.collection.as_ref())
}

/// The collections that have had parents of objects of a collection, apart from itself.
pub(in crate::store) fn parents_in(state: &State) -> BTreeSet<OwnedCollectionName> {
    let places = state.settings_of(ROOT).filter_map(|(key, _)| key.strip_prefix(PARENTS_IN)?.split_once('/'));
    places.map(|(tenant, name)| OwnedCollectionName::new(tenant, name)).collect()
}

/// The collections that have had children of objects of a collection.
pub(in crate::store) fn children_in(state: &State) -> BTreeSet<OwnedCollectionName> {
    parents(state).map(|(_, place)| place).collect()
}

impl Collection {
    /// Whether an object of this collection needs its parent, which is in the collection `place`.
    pub(in crate::store) fn needs(&self, object: &Object, place: &OwnedCollectionName) -> bool {
        let parent = object.entry.parent.as_ref().filter(|_| object.needs_parent());
        parent.is_some_and(|parent| parent.place(self.place()) == place.borrowed())
    }

    /// The open collection at a place that has the parent of an object of `state`, a state of this collection.
    pub(in crate::store) fn parent_collection(
        &self,
        state: &State,
        place: CollectionName<'_>,
    ) -> Option<Arc<Collection>> {
        let mut needing = state.objects().filter(|object| object.needs_parent());
        needing.find_map(|object| {
            let parent = object.entry.parent.as_ref()?;
            let is_there = parent.place(self.place()) == place;
            is_there.then(|| self.services.lineage().parent_collection(place, parent.object))?
        })
    }

    /// Adds the children in this collection whose parents are in `parent_collection`, which may be this
    /// one.
    pub(in crate::store) fn note_children(self: &Arc<Collection>, parent_collection: &Arc<Collection>) {
        for object in self.state().objects().filter(|object| object.needs_parent()) {
            if let Some(parent) = &object.entry.parent
                && parent.place(self.place()) == parent_collection.place()
            {
                self.services.lineage().note(parent, parent_collection, self, object);
            }
        }
    }

    /// Adds the children that this collection and another open one have of each other's objects.
    pub(in crate::store) fn relate(self: &Arc<Collection>, other: &Arc<Collection>) {
        for (parent_collection, found) in [(self, other), (other, self)] {
            found.note_children(parent_collection);
            if found.damage().is_some() {
                parent_collection.keep_parents_of(&found.place().owned());
            }
        }
    }

    /// Keeps the objects unchanged that a collection with unknown children may need.
    pub(in crate::store) fn keep_parents_of(&self, place: &OwnedCollectionName) {
        let state = self.state();
        let named = parents(&state).filter(|(_, of)| of == place).map(|(parent, _)| parent);
        self.services.lineage().note_unknown(self.place(), named, place);
    }

    /// Records that this collection is open and its children are known.
    pub(in crate::store) fn children_are_known(&self) {
        if self.damage().is_none() {
            self.services.lineage().forget_unknown(&self.place().owned());
        }
    }

    /// Forgets collections that have had children of objects of this one, durably: none of them needs it.
    pub(in crate::store) fn forget_children_in(
        &self,
        is_gone: impl Fn(&OwnedCollectionName) -> bool,
    ) -> Result<()> {
        let gone: Vec<(ObjectId, OwnedCollectionName)> = {
            let state = self.state();
            parents(&state).filter(|(_, place)| is_gone(place)).collect()
        };
        if gone.is_empty() {
            return Ok(());
        }
        self.commit(Touched::default(), |batch, state| {
            for (parent, place) in &gone {
                let key = setting_of(*parent, &place.to_string());
                if state.setting(ROOT, &key).is_some() {
                    batch.entry(Entry::Setting { node: ROOT, key, value: None });
                }
            }
            Ok(())
        })?;
        gone.iter().for_each(|(_, place)| self.services.lineage().forget_unknown(place));
        Ok(())
    }

    /// Whether there are any parents in the open collections, or objects with several files in this one.
    pub fn has_relatives(&self) -> bool {
        !self.services.lineage().relations.read().is_empty() || self.state().has_shared_objects()
    }

    /// Whether others are stored as differences to an object of this collection.
    pub fn is_needed(&self, object: ObjectId) -> bool {
        self.services.lineage().is_needed(self.place(), object)
    }

    /// `Busy` if others depend on an object of this collection, or another file than `own` has it too. The caller does not
    /// read the state.
    pub fn check_not_needed(&self, object: ObjectId, own: Option<EntryId>) -> Result<()> {
        self.check_no_parent(object)?;
        self.state().check_unshared(object, own).map_err(|error| self.with_path(error))
    }

    /// The error of a shared object, with the path of the other file in the mount.
    fn with_path(&self, error: Error) -> Error {
        let causes = error.refusals().iter().map(|refusal| match &refusal.cause {
            Cause::Shared(path) => {
                let cause = Cause::Shared(format!("{}/{path}", self.path()));
                Refusal { path: refusal.path.clone(), cause }
            }
            _ => refusal.clone(),
        });
        Error::refused(causes.collect())
    }

    /// `Busy` if others are stored as differences to an object of this collection.
    pub fn check_no_parent(&self, object: ObjectId) -> Result<()> {
        let checked = self.services.lineage().check_not_needed(self.place(), object);
        checked.map_err(|error| error.at(self.path()))
    }

    /// Gives the collection's directory a setting, durably.
    fn set_once(&self, key: String) -> Result<()> {
        self.commit(Touched::default(), |batch, state| {
            if state.setting(ROOT, &key).is_none() {
                batch.entry(Entry::Setting { node: ROOT, key: key.clone(), value: Some("1".to_owned()) });
            }
            Ok(())
        })
    }

    /// [`check_not_needed`](Self::check_not_needed), with the path of a child in the error. The caller holds no lock of
    /// any collection.
    pub fn check_childless(&self, object: ObjectId, own: EntryId) -> Result<()> {
        self.check_not_needed(object, Some(own)).map_err(|error| {
            if error.refusals().iter().any(|refusal| matches!(refusal.cause, Cause::Shared(_))) {
                return error;
            }
            let child = self.services.lineage().child_of(self.place(), object);
            let Some((collection, child)) = child else { return error };
            Error::refused(vec![Refusal {
                path: String::new(),
                cause: Cause::NeededBy(collection.path_of(&child)),
            }])
        })
    }

    /// Keeps the parent of an object unchanged: it cannot be written or deleted while the returned
    /// value lives, nor afterwards while the object needs it. All writes to it are durable. Returns the
    /// parent, for reading.
    ///
    /// `Busy` if the parent has writes that are not in the log yet; `Corrupt` if it does not exist.
    pub fn hold_parent(
        self: &Arc<Collection>,
        child: &Arc<Object>,
        parent_collection: &Arc<Collection>,
    ) -> Result<(ParentHold, Arc<Object>)> {
        let parent =
            child.entry.parent.as_ref().ok_or_else(|| Error::invalid("an object without a parent"))?;
        let place = parent_collection.place();
        self.services.lineage().hold(place, parent.object, |holds| holds.saturating_add(1));
        let hold = ParentHold {
            lineage: self.services.lineage().clone(),
            place: place.owned(),
            object: parent.object,
        };
        self.services.lineage().note(parent, parent_collection, self, child);
        // Each commit waits for batches in progress, which did not see the hold.
        if Arc::ptr_eq(self, parent_collection) {
            self.commit(Touched::default(), |_, _| Ok(()))?;
        } else {
            // First, so that each setting of a parent can be found when this collection goes.
            self.set_once(format!("{PARENTS_IN}{}", parent_collection.path()))?;
            parent_collection.set_once(setting_of(parent.object, &self.path()))?;
        }
        let found = parent_collection.state().object(parent.object).cloned();
        let found = found.ok_or_else(|| broken(parent_collection, "the parent is gone"))?;
        // This waits for a write in progress.
        drop(found.hold());
        if found.is_dirty() {
            let text = format!(
                "{}: the lineage parent is being written to; close it first",
                parent_collection.path()
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        Ok((hold, found))
    }
}

/// The error for a chain of differences without a base.
pub fn broken(collection: &Collection, why: &str) -> Error {
    Error::corrupt(format!(
        "{}: a block is kept as a difference, and the chain is broken: {why}; restore it, or import the tensor again",
        collection.path()
    ))
}
