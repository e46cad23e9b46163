//! The content of a file at one time: where its bytes come from, and whether they are still the same.
//! A file that is decoded as a whole is kept under this version.

use std::ops::Range;
use std::sync::{Arc, Weak};

use crate::engine;
use crate::format::log::catalog::TensorEntry;
use crate::model::{EntryId, Result};
use crate::store::{Assembly, Collection, Object, OpenObject, Pin, Settings, State, Verify};
use crate::stream::{Stream, may_show_other_hash};
use crate::vfs::form::{self, Form, Item, OpenAdapter, Shows};
use crate::vfs::tree::ino::{Ino, Place};
use crate::vfs::tree::location::Located;
use crate::vfs::tree::vfs::Vfs;

/// How the bytes of a file are cached: the setting `cache`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CacheMode {
    /// Decoded into memory after a program has read it whole, otherwise in the kernel's page cache.
    #[default]
    Auto,
    /// In the kernel's page cache.
    Kernel,
    /// Decoded into memory when it is opened.
    Decoded,
    None,
}

impl CacheMode {
    /// The setting of a file. Nothing is cached where reads count by block: each has to reach the daemon.
    pub fn of(state: &State, node: EntryId) -> CacheMode {
        if engine::is_moved_by_block(state, node) {
            return CacheMode::None;
        }
        match engine::CACHE.of(state, node) {
            "kernel" => CacheMode::Kernel,
            "decoded" => CacheMode::Decoded,
            "none" => CacheMode::None,
            _ => CacheMode::Auto,
        }
    }

    /// Whether a decoded copy may be made and shown.
    pub fn may_be_decoded(self) -> bool {
        matches!(self, CacheMode::Auto | CacheMode::Decoded)
    }
}

/// The content of a file, and the objects that it is made of.
pub struct Content {
    collection: Arc<Collection>,
    /// The file, and the form in which it is shown, if it has a number.
    pin: Pin,
    form: Option<(Form, Item)>,
    /// The adapter that is added, if the form has one.
    adapter: Option<OpenAdapter>,
    /// Of the GGUF file of a model, which has the name of its directory, the path in the collection.
    path: Option<Vec<u8>>,
    /// Its objects with their change counts.
    objects: Vec<(Arc<Object>, u32)>,
    tensor: Option<TensorEntry>,
    assembly: Option<Assembly>,
}

/// Identifies the content of a file. It keeps no object alive, so the space of the objects can be
/// reclaimed.
pub struct ContentVersion {
    pin: Pin,
    path: Option<Vec<u8>>,
    form: Option<Form>,
    objects: Vec<(Weak<Object>, u32)>,
    tensor: Option<TensorEntry>,
    assembly: Option<Assembly>,
}

impl ContentVersion {
    /// Whether a content is of this version.
    pub fn is_of(&self, content: &Content) -> bool {
        self.pin == content.pin
            && self.path == content.path
            && self.form == content.form.as_ref().map(|(form, _)| *form)
            && self.tensor == content.tensor
            && self.assembly == content.assembly
            && self.objects.len() == content.objects.len()
            && self.objects.iter().zip(&content.objects).all(|((known, changes), (object, now))| {
                std::ptr::eq(known.as_ptr(), Arc::as_ptr(object)) && changes == now
            })
    }
}

impl Content {
    /// The version of the content.
    pub fn version(&self) -> ContentVersion {
        let objects = self.objects.iter().map(|(object, changes)| (Arc::downgrade(object), *changes));
        ContentVersion {
            pin: self.pin,
            path: self.path.clone(),
            form: self.form.as_ref().map(|(form, _)| *form),
            objects: objects.collect(),
            tensor: self.tensor.clone(),
            assembly: self.assembly.clone(),
        }
    }

    /// Whether reading it takes more than a copy of stored bytes: it is a form, or some of its bytes are
    /// stored in another number of bytes.
    pub fn is_computed(&self) -> bool {
        let is_other = |(object, _): &(Arc<Object>, u32)| object.stored() != object.bytes();
        self.form.is_some() || self.is_view() || self.objects.iter().any(is_other)
    }

    fn is_view(&self) -> bool {
        matches!(self.assembly, Some(Assembly::View(_)))
    }

    /// How it is cached.
    pub fn cache_mode(&self) -> CacheMode {
        CacheMode::of(&self.collection.state(), self.pin.node)
    }

    /// Its bytes as a stream that verifies all of them.
    pub fn stream(&self, settings: &Settings) -> Result<Stream> {
        if let (Some((_, item)), Some(adapter)) = (&self.form, &self.adapter) {
            let recipe = form::plan_merged(&self.collection, Ok(adapter.clone()), item)?;
            return recipe.stream(Verify::Always);
        }
        match &self.form {
            // No form that shows a move comes here.
            Some((form, item)) => {
                form::plan(&self.collection, None, settings, *form, item)?.stream(Verify::Always)
            }
            None => {
                let objects = self.objects.iter();
                let open = |(object, _): &(Arc<Object>, u32)| {
                    OpenObject::open(&self.collection, object, Verify::Always)
                };
                Stream::of_file(objects.map(open).collect::<Result<_>>()?, self.assembly.as_ref())
            }
        }
    }

    /// The ranges of about `step` bytes to read one after the other, of `bytes` bytes. They end where blocks
    /// end, so that each block is decoded once.
    pub fn ranges(&self, bytes: u64, step: u64) -> Vec<Range<u64>> {
        let is_plain = self.form.is_none() && self.assembly.is_none();
        let objects = self.objects.iter().map(|(object, _)| (object.bytes(), object.entry.block_bytes));
        let objects: Vec<(u64, u32)> = if is_plain { objects.collect() } else { vec![(bytes, 1)] };
        ranges(&objects, step)
    }
}

/// Cuts consecutive objects, each of so many bytes in blocks of so many bytes, into ranges of at least
/// `step` bytes, except the last one.
fn ranges(objects: &[(u64, u32)], step: u64) -> Vec<Range<u64>> {
    let (mut ranges, mut begin, mut start) = (Vec::new(), 0_u64, 0_u64);
    for (bytes, block_bytes) in objects {
        let (end, block) = (start + bytes, u64::from(*block_bytes).max(1));
        loop {
            let inside = (begin + step).saturating_sub(start).div_ceil(block) * block;
            let next = start + inside;
            if next >= end {
                break;
            }
            ranges.push(begin..next);
            begin = next;
        }
        start = end;
    }
    if start > begin {
        ranges.push(begin..start);
    }
    ranges
}

impl Vfs {
    /// The present content of a file of at least `bytes_min` bytes, or of a file of a form whose bytes follow
    /// from one file. `None` while it is written to, for an index that shows the hash of another file, and
    /// where stored bytes are verified at every read.
    pub fn content(&self, ino: Ino, bytes_min: u64) -> Option<Content> {
        if self.verify != Verify::First {
            return None;
        }
        let (collection, pin, form, adapter) = match self.locate(ino).ok()? {
            Located::Node(view) => {
                // Checked first, because most opened files are short.
                let state = view.collection.state();
                let node = state.node(view.node.entry.id).filter(|node| node.bytes >= bytes_min)?;
                let pin = Pin::file(node.entry.id);
                drop(state);
                (view.collection, pin, None, None)
            }
            Located::Form(view) if matches!(view.of, Some((Form::Merged(_), _))) => {
                let adapter = self.adapter_of_view(&view)?.ok()?;
                let node = view.of.as_ref()?.1.node()?.entry.id;
                (view.collection, Pin::file(node), view.of, Some(adapter))
            }
            Located::Form(view) => {
                let (form, item) = view.of?;
                // The result of a move depends on more than the file.
                if matches!(form.shows(), Shows::Moved(_) | Shows::Values) || !matches!(item, Item::Node(_)) {
                    return None;
                }
                let pin = match form.number() {
                    Some(_) => form::pin_of(&view.collection, form, &item).ok()?,
                    None => Pin::file(item.node().filter(|node| node.file().is_some())?.entry.id),
                };
                (view.collection, pin, Some((form, item)), None)
            }
            _ => return None,
        };
        let number = collection.state().number();
        let open_file = self.open_file(Ino::of(Place::Node { collection: number, node: pin.node })?);
        if collection.damage().is_some()
            || open_file.is_some_and(|open_file| open_file.is_changed())
            || may_show_other_hash(&collection, pin.node)
        {
            return None;
        }
        // A cast tensor of a safetensors file may have its scales in other tensors and files.
        let node = collection.state().node(pin.node).cloned();
        let mut path = None;
        let beside = match form.as_ref().map(|(form, _)| (*form, form.shows())) {
            Some((_, Shows::Cast(_))) => node.map(|node| form::objects_beside(&collection, &node)),
            Some((_, Shows::Split(_))) => node.map(|node| form::config_objects(&collection, &node)),
            Some((form, Shows::Model(_))) => {
                path = Some(collection.state().path(pin.node));
                Some(form::inputs(&collection, form, pin.node).1)
            }
            _ => None,
        };
        let mut beside = beside.unwrap_or_default();
        if let Some(adapter) = &adapter {
            beside.extend(adapter.objects().ok()?);
        }
        let (objects, tensor, assembly) = {
            let state = collection.state();
            let file = state.node(pin.node)?.file()?;
            // The count comes first: a change after it is noticed.
            let object = |object: Arc<Object>| {
                let changes = object.changes();
                (!object.is_dirty()).then_some((object, changes))
            };
            let (mut objects, assembly) = state.parts_of(file).ok()?;
            objects.extend(beside);
            let objects: Option<Vec<_>> = objects.into_iter().map(object).collect();
            (objects?, file.tensor.clone(), assembly)
        };
        Some(Content { collection, pin, form, adapter, path, objects, tensor, assembly })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::ranges;

    #[test]
    fn ranges_end_where_blocks_end() {
        assert_eq!(ranges(&[(5, 4), (20, 8), (3, 1)], 10), [0..13, 13..25, 25..28]);
        assert_eq!(ranges(&[(100, 7)], 10), [0..14, 14..28, 28..42, 42..56, 56..70, 70..84, 84..98, 98..100]);
        assert!(ranges(&[], 10).is_empty() && ranges(&[(0, 4)], 10).is_empty());
    }

    proptest! {
        #[test]
        fn ranges_cover_all_bytes_once_and_cut_no_block(
            objects in prop::collection::vec((0_u64..300, 1_u32..40), 0..12),
            step in 1_u64..100,
        ) {
            let total: u64 = objects.iter().map(|(bytes, _)| bytes).sum();
            let ranges = ranges(&objects, step);
            let mut end = 0;
            for (place, range) in ranges.iter().enumerate() {
                prop_assert_eq!(range.start, end);
                prop_assert!(range.end - range.start >= step || place + 1 == ranges.len());
                end = range.end;
                let mut start = 0;
                for (bytes, block) in &objects {
                    let is_inside = start < end && end < start + bytes;
                    prop_assert!(!is_inside || (end - start) % u64::from(*block) == 0);
                    start += bytes;
                }
            }
            prop_assert_eq!(end, total);
        }
    }
}
