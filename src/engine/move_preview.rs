//! Previews of moves: the bytes of a tensor after a move, without the move.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use crate::codec;
use crate::engine::moves::plain_elements;
use crate::engine::select::target_of;
use crate::engine::settings::encoder;
use crate::model::{Aim, Encoder, EntryId, Error, MoveTo, Result, Tier};
use crate::store::Object;
use crate::store::OpenObject;
use crate::store::Settings;
use crate::store::{Collection, IndexedBlock};
use crate::stream::Computed;

/// An object as it would read after a move.
pub struct MovePreview {
    open: OpenObject,
    to: Tier,
    encoder: Encoder,
}

/// How scales would be chosen if a tensor moved with those of its collection that a move to `to`
/// selects. `None` where it would stay as it is.
pub fn would_move(
    collection: &Arc<Collection>,
    node: EntryId,
    to: MoveTo,
    settings: &Settings,
) -> Option<Encoder> {
    // A pinned form does not affect what the form shows.
    if collection.state().is_pinned_with_container(node) {
        return None;
    }
    would_move_unpinned(collection, node, to, settings)
}

/// [`would_move`], whatever is pinned.
pub(super) fn would_move_unpinned(
    collection: &Arc<Collection>,
    node: EntryId,
    to: MoveTo,
    settings: &Settings,
) -> Option<Encoder> {
    let target = target_of(&collection.state(), node)?;
    let takes = target.kept_by(to, settings).is_none();
    let is_needed = |id| collection.check_not_needed(id, Some(node)).is_err();
    let is_other = |object: &Arc<Object>| object.dtype() != target.dtype;
    let stays = target.objects.iter().any(|object| is_other(object) || is_needed(object.entry.id));
    (takes && !stays).then(|| encoder(&collection.state(), node))
}

impl MovePreview {
    /// An object of a tensor, with the tier of the previewed move.
    pub fn new(open: OpenObject, to: Tier, encoder: Encoder) -> MovePreview {
        MovePreview { open, to, encoder }
    }

    fn block(&self, index: u32, out: &mut [u8]) -> Result<()> {
        let object = self.open.object();
        let layout = object.layout();
        let block =
            object.block(index, layout).filter(|block| self.open.is_due(index, block, Aim::Tier(self.to)));
        let Some(block) = block else { return self.open.read(layout.start(index), out) };
        if !plain_elements(&self.open, IndexedBlock { index, block: &block }, self.to, out)? {
            return Ok(());
        }
        let dtype = object.dtype();
        let mut payload = Vec::with_capacity(codec::payload_len(self.to, out.len()).unwrap_or(0));
        match codec::encode(self.to, self.encoder, dtype, out, &mut payload)? {
            Ok(_) => {
                let elements = out.len() / dtype.bytes() as usize;
                codec::decode(self.to, dtype, &payload, elements, out)
            }
            // The block would stay exact.
            Err(_) => Ok(()),
        }
    }
}

impl Computed for MovePreview {
    fn bytes(&self) -> u64 {
        self.open.bytes()
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let layout = self.open.object().layout();
        if range.end > layout.bytes {
            return Err(Error::invalid("a range past the end of an object"));
        }
        let blocks = layout.index(range.start)..layout.index(range.end - 1) + 1;
        let mut rest = out;
        let mut parts = Vec::with_capacity(blocks.len());
        for index in blocks {
            let from = range.start.max(layout.start(index)) - layout.start(index);
            let until = (range.end - layout.start(index)).min(layout.len(index) as u64);
            let (here, after) = std::mem::take(&mut rest).split_at_mut((until - from) as usize);
            parts.push((index, from as usize, here));
            rest = after;
        }
        let each = |(index, from, here): (u32, usize, &mut [u8])| {
            if here.len() == layout.len(index) {
                return self.block(index, here);
            }
            let mut whole = vec![0; layout.len(index)];
            self.block(index, &mut whole)?;
            here.copy_from_slice(whole.get(from..from + here.len()).unwrap_or_default());
            Ok(())
        };
        match parts.len() {
            1 => parts.into_iter().try_for_each(each),
            _ => parts.into_par_iter().try_for_each(each),
        }
    }
}
