//! Lineage: which objects are kept as differences to others, across all collections of a
//! store.
//!
//! A child's block names its parent's by object and epoch. So the parent's blocks stay as
//! they are while a child needs them, or a reader may still be using them: whoever would
//! write, move or delete them is told that they are `Busy`.
//!
//! That an object is a parent is told by a setting of its collection's directory, one for each
//! collection with children: it is durable before the first child needs it, and whoever
//! opens the collection opens those with it. It stays when no child is left there.
//!
//! Which children a collection has that does not open, or whose log is damaged, nobody knows:
//! the objects that such settings name stay as they are until it opens.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use crate::format::log::catalog::{Entry, Parent};
use crate::model::{Error, ErrorKind, ObjectId, Result};
use crate::store::Collection;
use crate::store::collection::Touched;
use crate::store::io::read::OpenObject;
use crate::store::object::{Freed, Object};
use crate::store::state::by_id::ByObject;
use crate::store::state::{ROOT, State};

/// What the names of the settings begin with that name parents and collections with children.
const CHILDREN_OF: &str = "children of ";
/// What stands between the two.
const IN: &str = " in ";

/// A collection's tenant and name.
pub(in crate::store) type Place = (String, String);

/// Parents and children, as far as their collections are open.
#[derive(Debug, Default)]
pub(in crate::store) struct Lineage {
    /// By parent. The last lock that is taken.
    relations: RwLock<ByObject<Relations>>,
}

#[derive(Debug, Default)]
struct Relations {
    /// Where the parent is.
    parent_collection: Weak<Collection>,
    children: Vec<Weak<Object>>,
    /// Collections that may have children, and do not say which.
    unknown: BTreeSet<Place>,
    /// How many have asked that it stays as it is.
    held: u32,
}

impl Relations {
    fn is_needed(&self) -> bool {
        let needs = |child: &Weak<Object>| child.upgrade().is_some_and(|child| child.needs_parent());
        self.held > 0 || !self.unknown.is_empty() || self.children.iter().any(needs)
    }
}

impl Lineage {
    /// Whether others depend on an object.
    pub fn is_needed(&self, object: ObjectId) -> bool {
        let relations = self.relations.read();
        !relations.is_empty() && relations.get(&object).is_some_and(Relations::is_needed)
    }

    /// Notes a child, and where its parent is.
    fn note(&self, parent: &Parent, parent_collection: &Arc<Collection>, child: &Arc<Object>) {
        let mut relations = self.relations.write();
        let found = relations.entry(parent.object).or_default();
        found.parent_collection = Arc::downgrade(parent_collection);
        found.children.retain(|known| known.strong_count() > 0);
        if !found.children.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(child))) {
            found.children.push(Arc::downgrade(child));
        }
    }

    /// `Busy` where others depend on an object.
    pub fn check_not_needed(&self, object: ObjectId) -> Result<()> {
        let relations = self.relations.read();
        let Some(found) = relations.get(&object).filter(|found| found.is_needed()) else { return Ok(()) };
        let text = match found.unknown.first() {
            Some((tenant, name)) => format!(
                "tensors of {tenant}/{name} may be kept as differences to object {object}, and that collection \
                 does not open or is damaged; run tierfs fsck, and mount again when it is repaired"
            ),
            None => format!(
                "tensors are kept as differences to object {object}; move these to a tier first, or remove them"
            ),
        };
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Notes that nobody knows which of these objects a collection needs.
    fn note_unknown(&self, parents: impl Iterator<Item = ObjectId>, place: &Place) {
        let mut relations = self.relations.write();
        for parent in parents {
            relations.entry(parent).or_default().unknown.insert(place.clone());
        }
    }

    /// The children of a collection are noted: it needs nothing else.
    fn forget_unknown(&self, place: &Place) {
        self.relations.write().values_mut().for_each(|known| {
            known.unknown.remove(place);
        });
    }

    fn parent_collection(&self, parent: ObjectId) -> Option<Arc<Collection>> {
        self.relations.read().get(&parent)?.parent_collection.upgrade()
    }

    fn hold(&self, object: ObjectId, change: impl Fn(u32) -> u32) {
        let mut relations = self.relations.write();
        let held = &mut relations.entry(object).or_default().held;
        *held = change(*held);
    }
}

/// An object that stays as it is while this lives.
pub struct Held {
    lineage: Arc<Lineage>,
    object: ObjectId,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.lineage.hold(self.object, |held| held.saturating_sub(1));
    }
}

/// A directory's own setting that says that children of an object are in a collection.
fn setting_of(parent: ObjectId, path: &str) -> String {
    format!("{CHILDREN_OF}{parent}{IN}{path}")
}

/// The parents of a collection, each with a collection that has had children of it.
fn parents(state: &State) -> impl Iterator<Item = (ObjectId, Place)> {
    state.settings_of(ROOT).filter_map(|(key, _)| {
        let (parent, path) = key.strip_prefix(CHILDREN_OF)?.split_once(IN)?;
        let (tenant, name) = path.split_once('/')?;
        Some((ObjectId::parse(parent)?, (tenant.to_owned(), name.to_owned())))
    })
}

/// The collections that a collection has to do with: those with children of its objects, and
/// those with parents that its objects need.
pub(in crate::store) fn relatives(state: &State) -> BTreeSet<Place> {
    let needed = state.objects().filter(|object| object.needs_parent());
    let above = needed.filter_map(|object| object.entry.parent.as_ref());
    let above = above.map(|parent| (parent.tenant.clone(), parent.collection.clone()));
    parents(state).map(|(_, place)| place).chain(above).collect()
}

impl Collection {
    /// Notes the children in this collection whose parents are in another, or in this one.
    pub(in crate::store) fn note_children(&self, parent_collection: &Arc<Collection>) {
        for object in self.state().objects().filter(|object| object.needs_parent()) {
            if let Some(parent) = &object.entry.parent
                && (parent.tenant.as_str(), parent.collection.as_str())
                    == (parent_collection.tenant(), parent_collection.name())
            {
                self.lineage.note(parent, parent_collection, object);
            }
        }
    }

    /// Notes what this collection's objects are to another that was opened, and the other's to
    /// this one's.
    pub(in crate::store) fn relate(self: &Arc<Collection>, other: &Arc<Collection>) {
        for (parent_collection, found) in [(self, other), (other, self)] {
            found.note_children(parent_collection);
            if found.damage().is_some() {
                parent_collection.keep_parents_of(&(found.tenant().to_owned(), found.name().to_owned()));
            }
        }
    }

    /// Keeps the objects as they are that a collection may need whose children nobody knows.
    pub(in crate::store) fn keep_parents_of(&self, place: &Place) {
        let state = self.state();
        let named = parents(&state).filter(|(_, of)| of == place).map(|(parent, _)| parent);
        self.lineage.note_unknown(named, place);
    }

    /// This collection was opened, and says which children it has.
    pub(in crate::store) fn children_are_known(&self) {
        if self.damage().is_none() {
            self.lineage.forget_unknown(&(self.tenant().to_owned(), self.name().to_owned()));
        }
    }

    /// Whether there are any parents, as far as collections are open.
    pub fn has_relatives(&self) -> bool {
        !self.lineage.relations.read().is_empty()
    }

    /// Whether blocks elsewhere are kept as differences to an object of this collection.
    pub fn is_needed(&self, object: ObjectId) -> bool {
        self.lineage.is_needed(object)
    }

    /// `Busy` where others depend on an object of this collection.
    pub fn check_not_needed(&self, object: ObjectId) -> Result<()> {
        self.lineage.check_not_needed(object).map_err(|error| error.at(self.path()))
    }

    /// Keeps the parent of an object as it is: nobody writes to it or takes it away while what
    /// is returned lives, nor afterwards while the object needs it. All that was written to it
    /// is durable. The parent, to be read.
    ///
    /// `Busy` where something was written to it that the log does not say yet; `Corrupt` where
    /// it is gone.
    pub fn hold_parent(
        self: &Arc<Collection>,
        child: &Arc<Object>,
        parent_collection: &Arc<Collection>,
    ) -> Result<(Held, Arc<Object>)> {
        let parent =
            child.entry.parent.as_ref().ok_or_else(|| Error::invalid("an object without a parent"))?;
        self.lineage.hold(parent.object, |held| held.saturating_add(1));
        let held = Held { lineage: self.lineage.clone(), object: parent.object };
        self.lineage.note(parent, parent_collection, child);
        let key = setting_of(parent.object, &self.path());
        // The batch waits for those that are under way and did not see that it is held.
        parent_collection.commit(Touched::default(), |batch, state| {
            if state.setting(ROOT, &key).is_none() {
                batch.entry(Entry::Setting { node: ROOT, key: key.clone(), value: Some("1".to_owned()) });
            }
            Ok(())
        })?;
        let found = parent_collection.state().object(parent.object).cloned();
        let found = found.ok_or_else(|| broken(parent_collection, "the parent is gone"))?;
        // So does this for a write.
        drop(found.hold());
        if found.is_dirty() {
            let text = format!(
                "{}: the lineage parent is being written to; close it first",
                parent_collection.path()
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        Ok((held, found))
    }
}

impl OpenObject {
    /// The lineage parent as it is now. `Corrupt` where it is not there.
    pub fn parent(&self) -> Result<(Arc<Collection>, Arc<Object>)> {
        let parent = self.object.entry.parent.as_ref();
        let parent = parent.ok_or_else(|| Error::invalid("an object without a parent"))?;
        let parent_collection = self.collection.lineage.parent_collection(parent.object);
        let gone = || {
            let text = format!("the collection {}/{} is not there", parent.tenant, parent.collection);
            broken(&self.collection, &text)
        };
        let parent_collection = parent_collection.ok_or_else(gone)?;
        let object = parent_collection.state().object(parent.object).cloned();
        let object = object.ok_or_else(|| broken(&parent_collection, "the parent is gone"))?;
        Ok((parent_collection, object))
    }

    /// `Busy` where others depend on what is to be written.
    pub fn check_writable(&self) -> Result<()> {
        self.collection.check_not_needed(self.object.entry.id)
    }
}

/// A chain of differences that ends before bytes are reached.
pub fn broken(collection: &Collection, why: &str) -> Error {
    Error::corrupt(format!(
        "{}: a block is kept as a difference, and the chain is broken: {why}; restore it, or import the tensor again",
        collection.path()
    ))
}

impl Freed {
    /// Whether a lineage parent may be needed no more when this is given back.
    pub(in crate::store) fn frees_parent(&self) -> bool {
        match self {
            Freed::Chain { links, .. } => links.iter().any(|link| link.is_on_parent),
            Freed::Object(object) => object.needs_parent(),
            _ => false,
        }
    }
}
