//! Lineage: which objects are kept as differences to others, across all collections of a
//! store.
//!
//! A child's block names its parent's by object and epoch. So the parent's blocks stay as
//! they are while a child needs them, or a reader may still be using them: whoever would
//! write, move or delete them is told that they are `Busy`.
//!
//! That a collection has parents is told by a setting of its own directory, one for each
//! collection with children: it is durable before the first child needs it, and whoever
//! opens the collection opens those with it. It stays when no child is left there.

use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use crate::format::catalog::{Entry, Parent};
use crate::model::{Error, ErrorKind, ObjectId, Result};
use crate::store::Collection;
use crate::store::by_id::ByObject;
use crate::store::collection::Touched;
use crate::store::object::{Freed, Object};
use crate::store::read::OpenObject;
use crate::store::state::{ROOT, State};

/// What the names of the settings begin with that name collections with children.
const CHILDREN_IN: &str = "children in ";

/// Parents and children, as far as their collections are open.
#[derive(Debug, Default)]
pub(super) struct Lineage {
    /// By parent. The last lock that is taken.
    relations: RwLock<ByObject<Relations>>,
}

#[derive(Debug, Default)]
struct Relations {
    /// Where the parent is.
    home: Weak<Collection>,
    children: Vec<Weak<Object>>,
    /// How many have asked that it stays as it is.
    held: u32,
}

impl Relations {
    fn is_needed(&self) -> bool {
        let needs = |child: &Weak<Object>| child.upgrade().is_some_and(|child| child.needs_parent());
        self.held > 0 || self.children.iter().any(needs)
    }
}

impl Lineage {
    /// Whether others depend on an object.
    pub fn is_needed(&self, object: ObjectId) -> bool {
        let relations = self.relations.read();
        !relations.is_empty() && relations.get(&object).is_some_and(Relations::is_needed)
    }

    /// Notes a child, and where its parent is.
    fn note(&self, parent: &Parent, home: &Arc<Collection>, child: &Arc<Object>) {
        let mut relations = self.relations.write();
        let found = relations.entry(parent.object).or_default();
        found.home = Arc::downgrade(home);
        found.children.retain(|known| known.strong_count() > 0);
        if !found.children.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(child))) {
            found.children.push(Arc::downgrade(child));
        }
    }

    fn home(&self, parent: ObjectId) -> Option<Arc<Collection>> {
        self.relations.read().get(&parent)?.home.upgrade()
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

/// A directory's own setting that says that children are in a collection.
fn setting_of(path: &str) -> String {
    format!("{CHILDREN_IN}{path}")
}

/// The collections, tenant and name, that a collection has to do with: those with children of
/// its objects, and those with parents that its objects need.
pub(super) fn relatives(state: &State) -> Vec<(String, String)> {
    let settings = state.settings_of(ROOT);
    let below = settings.filter_map(|(key, _)| key.strip_prefix(CHILDREN_IN)?.split_once('/'));
    let mut found: Vec<(String, String)> =
        below.map(|(tenant, name)| (tenant.to_owned(), name.to_owned())).collect();
    let needed = state.objects().filter(|object| object.needs_parent());
    for parent in needed.filter_map(|object| object.entry.parent.as_ref()) {
        let place = (parent.tenant.clone(), parent.collection.clone());
        if !found.contains(&place) {
            found.push(place);
        }
    }
    found
}

impl Collection {
    /// Notes the children in this collection whose parents are in another, or in this one.
    pub(super) fn note_children(&self, home: &Arc<Collection>) {
        for object in self.state().objects().filter(|object| object.needs_parent()) {
            if let Some(parent) = &object.entry.parent
                && (parent.tenant.as_str(), parent.collection.as_str()) == (home.tenant(), home.name())
            {
                self.lineage.note(parent, home, object);
            }
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
        match self.is_needed(object) {
            true => Err(self.needed(object)),
            false => Ok(()),
        }
    }

    fn needed(&self, object: ObjectId) -> Error {
        let text = format!(
            "{}: tensors are kept as differences to object {object}; move these to a tier first, or remove them",
            self.path()
        );
        Error::new(ErrorKind::Busy, text)
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
        home: &Arc<Collection>,
    ) -> Result<(Held, Arc<Object>)> {
        let parent =
            child.entry.parent.as_ref().ok_or_else(|| Error::invalid("an object without a parent"))?;
        self.lineage.hold(parent.object, |held| held.saturating_add(1));
        let held = Held { lineage: self.lineage.clone(), object: parent.object };
        self.lineage.note(parent, home, child);
        let key = setting_of(&self.path());
        // The batch waits for those that are under way and did not see that it is held.
        home.commit(Touched::default(), |batch, state| {
            if state.setting(ROOT, &key).is_none() {
                batch.entry(Entry::Setting { node: ROOT, key: key.clone(), value: Some("1".to_owned()) });
            }
            Ok(())
        })?;
        let found = home.state().object(parent.object).cloned();
        let found = found.ok_or_else(|| broken(home, "the parent is gone"))?;
        // So does this for a write.
        drop(found.hold());
        if found.is_dirty() {
            let text = format!("{}: the lineage parent is being written to; close it first", home.path());
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
        let home = self.collection.lineage.home(parent.object);
        let gone = || {
            let text = format!("the collection {}/{} is not there", parent.tenant, parent.collection);
            broken(&self.collection, &text)
        };
        let home = home.ok_or_else(gone)?;
        let object = home.state().object(parent.object).cloned();
        let object = object.ok_or_else(|| broken(&home, "the parent is gone"))?;
        Ok((home, object))
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
    pub(super) fn lets_parent_go(&self) -> bool {
        match self {
            Freed::Chain { links, .. } => links.iter().any(|link| link.is_on_parent),
            Freed::Object(object) => object.needs_parent(),
            _ => false,
        }
    }
}
