//! Counts the space in use.

use std::collections::HashSet;
use std::sync::Arc;

use crate::format::log::catalog::FileEntry;
use crate::model::{Error, Result};
use crate::store::object::Object;
use crate::store::quota::{Counted, Use};
use crate::store::state::node::Node;
use crate::store::state::{ROOT, State};

impl State {
    /// The use recorded in the log.
    pub fn used(&self) -> Use {
        self.counted.used
    }

    /// The stored bytes that were added since the log was opened, whatever was removed. Whoever notes it knows later how
    /// much a part of the collection can have grown.
    pub fn grown(&self) -> u64 {
        self.counted.grown
    }

    /// Updates the use after an object changed.
    pub(in crate::store) fn count(counted: &mut Counted, object: &Object) {
        let now = Use { logical: object.logged_layout().bytes, stored: object.stored(), files: 0 };
        let before = object.counted_as(now);
        let more = now.without(before);
        counted.used = counted.used.and(more).without(before.without(now));
        counted.grown = counted.grown.saturating_add(more.stored);
    }

    /// Updates the use after an object was removed.
    pub(in crate::store) fn uncount(counted: &mut Counted, object: &Object) {
        counted.used = counted.used.without(object.counted_as(Use::default()));
    }

    /// Updates the use after a node was added, changed or removed.
    pub(in crate::store) fn count_node(
        counted: &mut Counted,
        before: Option<&Arc<Node>>,
        now: Option<&Arc<Node>>,
    ) {
        let one = |node: Option<&Arc<Node>>| u64::from(node.is_some_and(|node| node.entry.id != ROOT));
        let files = &mut counted.used.files;
        *files = (*files + one(now)).saturating_sub(one(before));
    }

    /// Updates the use after a node's number of names changed.
    pub(in crate::store) fn count_names(counted: &mut Counted, before: usize, now: usize) {
        let further = |names: usize| names.saturating_sub(1) as u64;
        let files = &mut counted.used.files;
        *files = (*files + further(now)).saturating_sub(further(before));
    }

    /// Logical bytes of a file. Its objects come before it in the log.
    pub(in crate::store) fn bytes_of(&self, file: &FileEntry) -> Result<u64> {
        if let Some(records) = &file.records {
            let logged = file.objects.iter().map(|id| Ok(self.known(*id)?.logged_layout().bytes));
            let parts = records.parts().map(|part| records.part_bytes(part));
            if !logged.collect::<Result<Vec<_>>>()?.into_iter().eq(parts) {
                return Err(Error::corrupt("an embedding batch whose parts have other sizes"));
            }
            return Ok(records.bytes());
        }
        let mut bytes: u64 = 0;
        // One object cannot repeat.
        let mut seen = (file.objects.len() > 1).then(|| HashSet::with_capacity(file.objects.len()));
        for id in &file.objects {
            if seen.as_mut().is_some_and(|seen| !seen.insert(id)) {
                // Locking a file's objects would deadlock on a repeated one.
                return Err(Error::corrupt(format!("a file has object {id} twice")));
            }
            let object = self.known(*id)?;
            // The length in the log, because an open file may have grown since.
            let logged = object.logged_layout().bytes;
            let sum = bytes.checked_add(logged).filter(|sum| *sum <= i64::MAX as u64);
            bytes = sum.ok_or_else(|| Error::corrupt("a file has more than 2^63 - 1 bytes"))?;
        }
        if let Some(tensor) = file.tensor.as_ref().filter(|_| file.view.is_some()) {
            let own = tensor.dtype.bytes_of(tensor.shape.elements()).filter(|own| *own <= i64::MAX as u64);
            let own = own.filter(|_| bytes == 0);
            return own.ok_or_else(|| {
                Error::corrupt("a view of more than 2^63 - 1 bytes, or with bytes of its own")
            });
        }
        if let Some(tensor) = &file.tensor
            && tensor.dtype.bytes_of(tensor.shape.elements()) != Some(bytes)
        {
            return Err(Error::corrupt(format!(
                "{} elements of {} in {bytes} bytes",
                tensor.shape.elements(),
                tensor.dtype
            )));
        }
        Ok(bytes)
    }
}
