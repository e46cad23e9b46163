//! The objects that the bytes of a file lie in, and how the file is assembled from them.
//!
//! Most files are the concatenation of their objects. An embedding batch is assembled from its parts. A view has an
//! object without bytes, so that its container leads to it; its elements lie in other objects of the container.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::format::files::View;
use crate::format::files::cgeb::Runs;
use crate::format::log::catalog::{FileEntry, TensorEntry};
use crate::model::{DIMENSIONS_MAX, Dtype, Error, ErrorKind, ObjectId, Result, Shape};
use crate::store::object::Object;
use crate::store::state::State;
use crate::store::state::node::Node;

/// How a file is assembled from objects.
#[derive(Clone, PartialEq, Debug)]
pub enum Assembly {
    /// An embedding batch from its parts.
    Batch(Arc<Runs>),
    /// A tensor from the bytes of others.
    View(Arc<StridedElements>),
}

/// The place of a tensor's elements in the concatenation of some objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StridedElements {
    /// The first element, in bytes.
    pub begin: u64,
    /// Bytes of an element.
    pub element_bytes: u64,
    /// The number of indices of each dimension, outermost first, and the bytes from one to the next.
    pub dimensions: SmallVec<[(u64, u64); DIMENSIONS_MAX]>,
}

impl Assembly {
    /// The assembly of an embedding batch with these records.
    pub fn of_batch(records: Option<&Arc<Runs>>) -> Option<Assembly> {
        records.map(|runs| Assembly::Batch(runs.clone()))
    }

    /// The records of an embedding batch.
    pub fn records(&self) -> Option<&Arc<Runs>> {
        match self {
            Assembly::Batch(runs) => Some(runs),
            Assembly::View(_) => None,
        }
    }
}

impl StridedElements {
    /// The elements of a view in bytes of which the first is the byte `start` of the container.
    pub fn new(view: &View, dtype: Dtype, shape: &Shape, start: u64) -> StridedElements {
        let element_bytes = dtype.bytes();
        let steps = view.strides.iter().map(|stride| stride.saturating_mul(element_bytes));
        let dimensions = shape.dimensions().iter().copied().zip(steps).collect();
        StridedElements { begin: view.begin.saturating_sub(start), element_bytes, dimensions }
    }

    /// A range of bytes.
    pub fn range(begin: u64, bytes: u64) -> StridedElements {
        StridedElements { begin, element_bytes: 1, dimensions: SmallVec::from_slice(&[(bytes, 1)]) }
    }

    /// A range of bytes of each of several rows, which have `row_bytes` bytes each.
    pub fn columns(begin: u64, bytes: u64, rows: u64, row_bytes: u64) -> StridedElements {
        let dimensions = SmallVec::from_slice(&[(rows, row_bytes), (bytes, 1)]);
        StridedElements { begin, element_bytes: 1, dimensions }
    }

    /// The bytes of all elements.
    pub fn bytes(&self) -> u64 {
        self.dimensions.iter().fold(self.element_bytes, |bytes, (count, _)| bytes.saturating_mul(*count))
    }
}

/// The objects of a container that have bytes, by their places in it: as many as were asked for so far.
pub struct Places<'a> {
    state: &'a State,
    /// Those that were not asked for yet.
    rest: std::slice::Iter<'a, ObjectId>,
    /// The first byte of each object, and the object.
    objects: Vec<(u64, Arc<Object>)>,
    end: u64,
}

impl<'a> Places<'a> {
    /// The objects of a file.
    pub fn of(state: &'a State, file: &'a FileEntry) -> Places<'a> {
        Places { state, rest: file.objects.iter(), objects: Vec::new(), end: 0 }
    }

    /// The objects that a view lies in, and its elements in them. Fails with `Busy` if its container is shorter now.
    pub fn under(
        &mut self,
        view: &View,
        tensor: &TensorEntry,
    ) -> Result<(Vec<Arc<Object>>, Arc<StridedElements>)> {
        let shorter = || {
            Error::new(
                ErrorKind::Busy,
                "its container is being written to, and does not have all of its bytes",
            )
        };
        let range = view.range(tensor.dtype, &tensor.shape).ok_or_else(shorter)?;
        self.extend_to(range.end)?;
        if range.end > self.end {
            return Err(shorter());
        }
        let found = self.objects.get(self.places(&range)).unwrap_or_default();
        let start = found.first().map_or(range.start, |(start, _)| *start);
        let objects = found.iter().map(|(_, object)| object.clone()).collect();
        Ok((objects, Arc::new(StridedElements::new(view, tensor.dtype, &tensor.shape, start))))
    }

    /// Looks up the objects before a byte. A container may have many views, whose objects come last.
    fn extend_to(&mut self, end: u64) -> Result<()> {
        while self.end < end
            && let Some(id) = self.rest.next()
        {
            let object = known(self.state, *id)?;
            let bytes = object.bytes();
            if bytes > 0 {
                self.objects.push((self.end, object.clone()));
                self.end = self.end.saturating_add(bytes);
            }
        }
        Ok(())
    }

    fn places(&self, range: &Range<u64>) -> Range<usize> {
        if range.is_empty() {
            return 0..0;
        }
        let first = self.objects.partition_point(|(start, _)| *start <= range.start).saturating_sub(1);
        first..self.objects.partition_point(|(start, _)| *start < range.end)
    }
}

fn known(state: &State, id: ObjectId) -> Result<&Arc<Object>> {
    state.object(id).ok_or_else(|| Error::corrupt(format!("object {id} is not there; run tierfs fsck")))
}

impl State {
    /// The objects that the bytes of a file lie in, in order, and how it is assembled from them.
    pub fn parts_of(&self, file: &FileEntry) -> Result<(Vec<Arc<Object>>, Option<Assembly>)> {
        if let Some((view, tensor)) = file.view.as_ref().zip(file.tensor.as_ref()) {
            let container = file.container.and_then(|container| self.node(container)?.file());
            let container = container.ok_or_else(|| Error::corrupt("a view without its container"))?;
            let (objects, elements) = Places::of(self, container).under(view, tensor)?;
            return Ok((objects, Some(Assembly::View(elements))));
        }
        let objects = file.objects.iter().map(|id| known(self, *id).cloned());
        Ok((objects.collect::<Result<_>>()?, Assembly::of_batch(file.records.as_ref())))
    }

    /// The views of a container, whose objects come after all others.
    pub fn views(&self, container: &FileEntry) -> impl Iterator<Item = &Arc<Node>> {
        let objects = container.objects.iter().rev().filter_map(|id| self.object(*id));
        let parts = objects.take_while(|object| object.bytes() == 0).filter_map(|object| object.part_of());
        parts
            .filter_map(|part| self.node(part))
            .filter(|part| part.file().is_some_and(|file| file.view.is_some()))
    }
}
