//! Variants of published collections: each stores otherwise the blocks that a move to its tier would take.

use std::sync::Arc;

use crate::engine::move_preview::would_move_unpinned;
use crate::engine::reconstruct::{WAYS, expects_exact_source, precision, read_exact};
use crate::model::{Encoder, EntryId, Error, ErrorKind, MoveTo, Result, Tier};
use crate::store::{Block, Collection, Object, OpenObject, Recode, Settings};

/// A variant with the tensors of a move.
struct Variant {
    to: MoveTo,
    settings: Settings,
}

/// The variant that shows a collection as after a move. `settings` are those of its store.
pub fn variant(to: MoveTo, settings: &Settings) -> Arc<dyn Recode> {
    Arc::new(Variant { to, settings: settings.clone() })
}

impl Variant {
    /// Whether each block has a source of enough precision, by the log: a tensor moves as a whole.
    fn has_sources(&self, collection: &Arc<Collection>, object: &Arc<Object>) -> bool {
        let (layout, aim) = (object.layout(), self.to.aim);
        let unread = OpenObject::unread(collection, object);
        let mut due = object
            .stored_blocks(0..layout.blocks(), layout)
            .filter(|(index, block)| unread.is_due(*index, block, aim));
        due.all(|(index, block)| {
            expects_exact_source(&unread, index, &block) || {
                let source = precision(&unread, index, &block);
                source != Tier::Absent && !aim.tier().finer_than(source)
            }
        })
    }
}

impl Recode for Variant {
    fn name(&self) -> String {
        self.to.variant_name()
    }

    fn tier(&self) -> Tier {
        self.to.aim.tier()
    }

    fn takes(&self, collection: &Arc<Collection>, tensor: EntryId) -> Option<Encoder> {
        // Pins are of one machine.
        let encoder = would_move_unpinned(collection, tensor, self.to, &self.settings)?;
        let objects = collection.objects_of(tensor).ok()?;
        objects.iter().all(|object| self.has_sources(collection, object)).then_some(encoder)
    }

    fn source(&self, open: &OpenObject, index: u32, block: &Block, out: &mut [u8]) -> Result<bool> {
        if let Ok(Some(_)) = read_exact(open, index, block, out) {
            return Ok(true);
        }
        self.seen(open, index, block, out)?;
        Ok(!self.tier().finer_than(precision(open, index, block)))
    }

    fn seen(&self, open: &OpenObject, index: u32, block: &Block, out: &mut [u8]) -> Result<()> {
        if block.stored.tier != Tier::Absent {
            return open.read(open.object().layout().start(index), out);
        }
        for way in WAYS {
            if (way.read)(open, index, block, out)? {
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Absent, format!("block {index} is absent and has no source")))
    }
}
