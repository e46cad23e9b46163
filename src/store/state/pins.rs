//! The pins of a collection, recorded in the log as settings of files. `pinned_copies` handles the
//! copies.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::format::log::catalog::{Entry, NodeType};
use crate::format::log::record::Record;
use crate::model::{EntryId, ObjectId, Result};
use crate::store::batch::Batch;
use crate::store::object::{Object, is_relocation};
use crate::store::state::State;
use crate::store::state::freed_space::Freed;
use crate::store::state::node::Node;
use crate::store::state::pinned_copy::{PIN, PinnedCopy, WITHOUT_COPY};

/// A pinned file, or a pinned form of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Pin {
    /// The file.
    pub node: EntryId,
    /// Number of the form; 0 for the file itself.
    pub form: u8,
}

/// The pins, with their copies.
pub(in crate::store) type Pins = BTreeMap<Pin, Option<Arc<PinnedCopy>>>;

impl Pin {
    /// The pin of a file itself.
    pub fn file(node: EntryId) -> Pin {
        Pin { node, form: 0 }
    }

    /// The pin that a setting stands for, if it stands for one.
    fn of_setting(node: EntryId, key: &str) -> Option<Pin> {
        let form = match key.strip_prefix(PIN)? {
            "" => 0,
            number => number.strip_prefix('.')?.parse().ok().filter(|form| *form > 0)?,
        };
        Some(Pin { node, form })
    }

    fn key(self) -> String {
        if self.form == 0 { PIN.to_owned() } else { format!("{PIN}.{}", self.form) }
    }
}

impl State {
    /// Whether the file itself is pinned.
    pub fn is_pinned(&self, node: EntryId) -> bool {
        self.pins.contains_key(&Pin::file(node))
    }

    /// Whether a file is pinned, by itself or as a tensor of a pinned container.
    pub fn is_pinned_with_container(&self, node: EntryId) -> bool {
        self.with_container(node).any(|node| self.is_pinned(node))
    }

    /// Whether a file must not change: it, its container, or a form of one of them is pinned.
    pub fn has_any_pin(&self, node: EntryId) -> bool {
        self.with_container(node).any(|node| self.pins_of(node).next().is_some())
    }

    /// The file whose pin keeps a file as it is: its container, or itself.
    pub fn pinned_with(&self, node: EntryId) -> Option<EntryId> {
        self.with_container(node).filter(|node| self.pins_of(*node).next().is_some()).last()
    }

    fn with_container(&self, node: EntryId) -> impl Iterator<Item = EntryId> {
        let file = self.node(node).and_then(|node| node.file());
        [Some(node), file.and_then(|file| file.container)].into_iter().flatten()
    }

    /// Whether no physical file can ever be read directly for a file, even if all blocks are verified:
    /// it is not pinned, and it begins inside a data file, as most do, or lies in none.
    pub fn is_never_backed(&self, node: &Node) -> bool {
        let objects = node.file().into_iter().flat_map(|file| &file.objects);
        let first = objects.filter_map(|id| self.object(*id)).find(|object| object.bytes() > 0);
        let begins = first.and_then(|first| first.extent()).is_some_and(|extent| extent.offset == 0);
        !begins && self.pins_of(node.entry.id).next().is_none()
    }

    /// The pins of a file: of itself and of its forms.
    pub fn pins_of(&self, node: EntryId) -> impl Iterator<Item = Pin> {
        let all = Pin { node, form: 0 }..=Pin { node, form: u8::MAX };
        self.pins.range(all).map(|(pin, _)| *pin)
    }

    /// The copy that belongs to a pin, if there is one.
    pub fn copy_of(&self, pin: Pin) -> Option<&Arc<PinnedCopy>> {
        self.pins.get(&pin)?.as_ref()
    }

    /// Whether a pin has bytes but no copy of them.
    pub fn lacks_copy(&self, pin: Pin) -> bool {
        let has_bytes = self.node(pin.node).is_some_and(|node| node.bytes > 0);
        has_bytes && self.pins.get(&pin).is_some_and(Option::is_none)
    }

    /// All pins, with their copies.
    pub fn pins(&self) -> impl Iterator<Item = (Pin, Option<&Arc<PinnedCopy>>)> {
        self.pins.iter().map(|(pin, copy)| (*pin, copy.as_ref()))
    }

    /// Applies a setting of a file, if it is a pin.
    pub(in crate::store) fn note_setting(&mut self, node: EntryId, key: &str, value: Option<&str>) {
        if let Some(pin) = Pin::of_setting(node, key) {
            self.set_pin(pin, value);
        }
    }

    /// Sets a pin; without a value, removes it.
    fn set_pin(&mut self, pin: Pin, value: Option<&str>) {
        let copy = value.map(|value| PinnedCopy::parse(value).map(Arc::new));
        let before = match copy {
            Some(copy) => self.pins.insert(pin, copy),
            None => self.pins.remove(&pin),
        };
        let bytes = |copy: Option<&Arc<PinnedCopy>>| copy.map_or(0, |copy| copy.bytes);
        let stored = self.counted.used.stored.saturating_add(bytes(self.copy_of(pin)));
        self.counted.used.stored = stored.saturating_sub(bytes(before.as_ref().and_then(Option::as_ref)));
        self.freed.extend(before.flatten().map(Freed::Copy));
    }

    /// Removes all pins of a deleted file.
    pub(in crate::store) fn unpin_all(&mut self, node: EntryId) {
        let pins: Vec<Pin> = self.pins_of(node).collect();
        pins.into_iter().for_each(|pin| self.set_pin(pin, None));
    }

    /// Drops all copies: the log can no longer tell whether they match their files.
    pub(in crate::store) fn forget_all_copies(&mut self) -> Result<()> {
        let pins: Vec<Pin> = self.pins.keys().copied().collect();
        pins.into_iter().try_for_each(|pin| self.apply_entry(pin_entry(pin, Some(None))))
    }

    /// The copies that contain an object's bytes, each with the offset of the object in it.
    pub(in crate::store) fn copies_with(&self, object: ObjectId) -> Vec<(Pin, Arc<PinnedCopy>, u64)> {
        let mut found = Vec::new();
        for (pin, copy) in self.pins().filter(|(pin, _)| pin.form == 0) {
            let (Some(copy), Some(file)) = (copy, self.node(pin.node).and_then(|node| node.file())) else {
                continue;
            };
            if file.records.is_some() {
                // Its parts are not contiguous in it; they have copies of their own.
                continue;
            }
            let Some(place) = file.objects.iter().position(|id| *id == object) else { continue };
            let before = file.objects.iter().take(place).filter_map(|id| self.object(*id));
            let offset = before.map(|object| object.logged_layout().bytes).sum();
            found.push((pin, copy.clone(), offset));
        }
        found
    }

    /// The objects whose bytes readers see change with a batch. The copies of files that contain them
    /// are removed from the log by the same batch.
    pub(in crate::store) fn forget_copies(&self, batch: &mut Batch) -> Vec<Arc<Object>> {
        if batch.keeps_bytes() {
            return Vec::new();
        }
        let mut changed: HashSet<ObjectId> = HashSet::new();
        let (mut gone, mut removed) = (HashSet::<Pin>::new(), HashSet::new());
        for added in batch.records() {
            match (&added.record, &added.entry) {
                (_, Some(Entry::Object(object))) => {
                    changed.insert(object.id);
                }
                (_, Some(Entry::Node(node))) => {
                    let before = self.node(node.id).and_then(|node| node.file());
                    if let (Some(before), NodeType::File(file)) = (before, &node.node_type) {
                        let is_other = before.objects != file.objects;
                        // A change of type changes the headers of forms.
                        let is_retyped = before.tensor != file.tensor;
                        let pins = self.pins_of(node.id);
                        gone.extend(pins.filter(|pin| is_other || (is_retyped && pin.form > 0)));
                    }
                }
                (_, Some(Entry::NodeRemoved(node))) => {
                    removed.insert(*node);
                }
                (Record::Migrate { object, block, stored, .. }, _) => {
                    let known = self.object(*object);
                    let before =
                        known.and_then(|object| object.blocks.read().get(*block, object.logged_layout()));
                    if !before.is_some_and(|before| is_relocation(&before.stored, stored)) {
                        changed.insert(*object);
                    }
                }
                (
                    Record::Create { object, .. }
                    | Record::CreateRun { object, .. }
                    | Record::SlotRun { object, .. }
                    | Record::EmptyRun { object, .. }
                    | Record::Delta { object, .. }
                    | Record::Factor { object, .. }
                    | Record::Delete { object },
                    _,
                ) => {
                    changed.insert(*object);
                }
                _ => {}
            }
        }
        if !changed.is_empty() {
            let has_changed = |pin: &&Pin| {
                let file = self.node(pin.node).and_then(|node| node.file());
                file.is_some_and(|file| match &file.view {
                    // A view has the objects of others.
                    Some(_) => self.parts_of(file).map_or(true, |(objects, _)| {
                        objects.iter().any(|object| changed.contains(&object.entry.id))
                    }),
                    None => file.objects.iter().any(|object| changed.contains(object)),
                })
            };
            gone.extend(self.pins.keys().filter(has_changed));
        }
        let has_copy = |pin: &Pin| !removed.contains(&pin.node) && self.copy_of(*pin).is_some();
        gone.into_iter().filter(has_copy).for_each(|pin| batch.entry(pin_entry(pin, Some(None))));
        changed.iter().filter_map(|object| self.object(*object).cloned()).collect()
    }
}

/// The entry that sets a pin, with or without a copy, or removes it.
pub fn pin_entry(pin: Pin, copy: Option<Option<&PinnedCopy>>) -> Entry {
    let value = copy.map(|copy| copy.map_or_else(|| WITHOUT_COPY.to_owned(), PinnedCopy::value));
    Entry::Setting { node: pin.node, key: pin.key(), value }
}
