//! Exact blocks that are encoded without loss.

use std::cell::RefCell;
use std::ops::Range;

use rayon::prelude::*;

use crate::codec::difference;
use crate::codec::ladder::{self, Block, Scratch};
use crate::format::checksum;
use crate::format::log::record::Stored;
use crate::format::payload::delta::{Changes, Delta};
use crate::model::{Aim, Dtype, Encoder, Error, Result, Storing, Tier};
use crate::store::collection::Collection;
use crate::store::collection::open_object::OpenObject;
use crate::store::io::buffer::PageBuffer;
use crate::store::io::migrate::Elements;
use crate::store::space::files::Touched;

/// The most stretches of a payload that a part of a block needs: two of each plane.
const RANGES_MAX: usize = 16;
/// Stretches of a payload with fewer bytes between them are fetched with one call.
const GAP_BYTES: usize = 8 << 10;

thread_local! {
    /// Memory of the codec. Reused, so that reads allocate nothing.
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::new()) };
}

/// Decodes the elements `part` of a block of `elements` elements.
pub(in crate::store) fn decode_packed(
    dtype: Dtype,
    elements: usize,
    payload: &[u8],
    part: Range<usize>,
    out: &mut [u8],
) -> Result<()> {
    let width = dtype.bytes() as usize;
    SCRATCH.with_borrow_mut(|scratch| ladder::decode_part(width, elements, payload, part, out, scratch))
}

/// The payload of a block; `None` if packing does not pay.
pub(in crate::store) fn encode_packed(dtype: Dtype, block: &[u8]) -> Result<Option<Vec<u8>>> {
    // A tensor that was cut ends inside an element.
    if block.is_empty() || !(block.len() as u64).is_multiple_of(dtype.bytes()) {
        return Ok(None);
    }
    let mut payload = Vec::with_capacity(block.len());
    let is_packed = SCRATCH.with_borrow_mut(|scratch| ladder::encode(dtype, block, &mut payload, scratch))?;
    Ok(is_packed.then_some(payload))
}

/// The exact difference of a block from an equally long `base`, for a record; `None` for other types.
pub fn exact_difference(dtype: Dtype, base: &[u8], block: &[u8]) -> Result<Option<Changes>> {
    let mut payload = Vec::with_capacity(block.len());
    let is_encoded = SCRATCH.with_borrow_mut(|scratch| {
        difference::encode_difference(dtype, base, block, &mut payload, scratch)
    })?;
    Ok(is_encoded.then_some(Changes::Exact(payload)))
}

/// Applies changes to the elements of the block that they were made for.
pub(in crate::store) fn apply_changes(delta: &Delta, dtype: Dtype, elements: &mut [u8]) -> Result<()> {
    match &delta.changes {
        Changes::Exact(payload) => {
            SCRATCH.with_borrow_mut(|scratch| difference::add_difference(dtype, payload, elements, scratch))
        }
        _ => delta.apply(dtype, elements),
    }
}

impl OpenObject {
    /// Packed size of a block; `None` if packing does not pay.
    pub fn packed_len(&self, index: u32) -> Result<Option<usize>> {
        let layout = self.object.layout();
        let mut block = vec![0; layout.len(index)];
        self.read(layout.start(index), &mut block)?;
        Ok(encode_packed(self.object.dtype(), &block)?.map(|payload| payload.len()))
    }

    /// Packs the exact blocks of `range` in an object that has packed blocks. Returns their number; not
    /// durable before a sync.
    pub fn pack_again(&self, range: Range<u32>) -> Result<u64> {
        self.store_as(range, Storing { aim: Aim::Pack, packs: true, encoder: Encoder::default() })
    }

    /// Copies the verbatim blocks of `range` that lie in an outside file into the store. Returns their
    /// number; not durable before a sync.
    pub fn take_in(&self, range: Range<u32>) -> Result<u64> {
        self.store_as(range, Storing { aim: Aim::Pack, packs: false, encoder: Encoder::default() })
    }

    fn store_as(&self, range: Range<u32>, storing: Storing) -> Result<u64> {
        let mut migration = self.migrate(range, storing, &|open, index, _, out| {
            open.read(open.object.layout().start(index), out).map(|()| Elements::Other)
        })?;
        if migration.is_empty() {
            return Ok(0);
        }
        let touched = std::mem::take(&mut migration.touched);
        self.collection.record(touched, |batch, _| {
            migration.add(batch);
            batch.keep_bytes();
            Ok(migration.blocks() as u64)
        })
    }

    /// Reads the bytes `inside` of one verified packed block.
    pub(in crate::store) fn read_packed_part(
        &self,
        index: u32,
        stored: &Stored,
        inside: Range<usize>,
        payload: &mut PageBuffer,
        part: &mut PageBuffer,
        out: &mut [u8],
    ) -> Result<()> {
        let dtype = self.object.dtype();
        let width = dtype.bytes() as usize;
        let elements = self.object.layout().len(index) / width;
        let wanted = inside.start / width..inside.end.div_ceil(width);
        let failed = |error: Error| error.at(self.place(index, stored));
        let payload = payload.sized(stored.len as usize);
        self.fetch_part(index, stored, elements, wanted.clone(), payload)?;
        if wanted.start * width == inside.start && wanted.end * width == inside.end {
            return decode_packed(dtype, elements, payload, wanted, out).map_err(failed);
        }
        let part = part.sized((wanted.end - wanted.start) * width);
        let begin = wanted.start * width;
        decode_packed(dtype, elements, payload, wanted, part).map_err(failed)?;
        out.copy_from_slice(&part[inside.start - begin..inside.end - begin]);
        Ok(())
    }
}

impl OpenObject {
    /// Fetches the bytes of a payload that decoding a part of a verified block reads.
    fn fetch_part(
        &self,
        index: u32,
        stored: &Stored,
        elements: usize,
        part: Range<usize>,
        payload: &mut [u8],
    ) -> Result<()> {
        let width = self.object.dtype().bytes() as usize;
        let mut until = payload.len().min(ladder::HEAD_MAX);
        if (part.end - part.start) * 2 > elements {
            until = payload.len();
        }
        self.fetch(index, stored, 0, &mut payload[..until])?;
        let block =
            Block::parse(width, elements, payload).map_err(|error| error.at(self.place(index, stored)))?;
        let mut ranges = [(0, 0); RANGES_MAX];
        let mut count = 0;
        for range in block.bytes_of(part).filter(|range| range.end > until) {
            let begin = range.start.max(until);
            match ranges[..count].last_mut() {
                // One call for both takes less time than two.
                Some(last) if begin < last.1 + GAP_BYTES => last.1 = range.end,
                _ => {
                    ranges[count] = (begin, range.end);
                    count += 1;
                }
            }
        }
        for (begin, end) in &ranges[..count] {
            self.fetch(index, stored, *begin as u64, &mut payload[*begin..*end])?;
        }
        Ok(())
    }
}

impl Collection {
    /// Stores the consecutive blocks in `elements`, of `block_bytes` each, packed. Returns the location of
    /// each; `None` for a block that packing does not make smaller, which is not stored.
    pub fn store_packed(
        &self,
        dtype: Dtype,
        elements: &[u8],
        block_bytes: usize,
        touched: &mut Touched,
    ) -> Result<Vec<Option<Stored>>> {
        let packed: Vec<Option<(Vec<u8>, u32)>> = elements
            .par_chunks(block_bytes.max(1))
            .map(|block| {
                let payload = encode_packed(dtype, block)?;
                Ok(payload.map(|payload| {
                    let checksum = checksum::of(&payload);
                    (payload, checksum)
                }))
            })
            .collect::<Result<_>>()?;
        let payloads: Vec<&[u8]> = packed.iter().flatten().map(|(payload, _)| payload.as_slice()).collect();
        let mut offsets = self.write_payloads(Tier::Packed, &payloads, touched)?.into_iter();
        let stored = packed.iter().map(|packed| {
            let Some((payload, checksum)) = packed else { return Ok(None) };
            let offset = offsets.next().ok_or_else(|| Error::invalid("fewer offsets than payloads"))?;
            let len = payload.len() as u32;
            Ok(Some(Stored { checksum: *checksum, len, ..Stored::in_slot(Tier::Packed, offset) }))
        });
        stored.collect()
    }
}
