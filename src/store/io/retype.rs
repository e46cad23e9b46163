//! Changes of an object's element type, when a user declares a file to be a tensor.

use std::sync::atomic::Ordering;

use crate::format::log::catalog::ObjectEntry;
use crate::model::{Dtype, Error, Result, Tier};
use crate::store::object::Object;
use crate::store::object::blocks::Block;

impl Object {
    /// The present element type.
    pub fn dtype(&self) -> Dtype {
        Dtype::from_code(self.dtype.load(Ordering::Acquire)).unwrap_or(self.entry.dtype)
    }

    /// The present catalog entry.
    pub fn entry_now(&self) -> ObjectEntry {
        let bytes = self.logged.load(Ordering::Acquire);
        ObjectEntry { bytes, dtype: self.dtype(), ..self.entry.clone() }
    }

    /// Blocks writes to the object and moves of its blocks.
    pub fn hold(&self) -> impl Drop + '_ {
        self.write_state().writing.lock()
    }

    /// Whether the element type can change to `dtype`: every block is exact, and the sizes are
    /// multiples of the element.
    pub fn can_be_of(&self, dtype: Dtype) -> bool {
        let is_plain = |(_, block): (std::ops::Range<u32>, Block)| block.stored.tier == Tier::Exact;
        self.dtype() == dtype
            || (self.logged_layout().bytes.is_multiple_of(dtype.bytes())
                && u64::from(self.entry.block_bytes).is_multiple_of(dtype.bytes())
                && self.blocks.read().pieces(self.logged_layout()).all(is_plain))
    }

    /// Applies an element type from the log. `Corrupt` if the object cannot have it.
    pub(in crate::store) fn retyped(&self, dtype: Dtype) -> Result<()> {
        if !self.can_be_of(dtype) {
            let (id, before) = (self.entry.id, self.dtype());
            return Err(Error::corrupt(format!("object {id} of {before} becomes one of {dtype}")));
        }
        self.dtype.store(dtype.code(), Ordering::Release);
        Ok(())
    }
}
