//! Encodes blocks in parallel and writes them to tier files.

use rayon::prelude::*;

use crate::codec::{self, NotEncodable};
use crate::format::checksum;
use crate::format::log::catalog::Measured;
use crate::format::log::record::Stored;
use crate::model::{Dtype, Encoder, Error, Result, Tier};
use crate::store::collection::Collection;
use crate::store::space::files::Touched;

impl Collection {
    /// Stores the consecutive blocks in `elements`, of `block_bytes` each; the last may be shorter.
    /// Blocks that cannot be encoded are stored exact. Returns the location of each, and the error of
    /// the encoded blocks compared with `elements`.
    pub fn store_blocks(
        &self,
        tier: Tier,
        encoder: Encoder,
        dtype: Dtype,
        elements: &[u8],
        block_bytes: usize,
        touched: &mut Touched,
    ) -> Result<(Vec<Stored>, Measured)> {
        let blocks = || elements.chunks(block_bytes.max(1));
        let mut measured = Measured::default();
        if tier == Tier::Packed {
            let packed = self.store_packed(dtype, elements, block_bytes, touched)?;
            let stored = blocks().zip(packed).map(|(block, packed)| match packed {
                Some(packed) => Ok(packed),
                None => self.store_exact(block, touched),
            });
            return Ok((stored.collect::<Result<_>>()?, measured));
        }
        if tier.code_bits().is_none() {
            let payloads: Vec<&[u8]> = blocks().collect();
            let offsets = self.write_payloads(Tier::Exact, &payloads, touched)?;
            let stored = blocks().zip(offsets).map(|(block, offset)| exact(block, offset));
            return Ok((stored.collect(), measured));
        }
        let encoded: Vec<_> = elements
            .par_chunks(block_bytes.max(1))
            .map(|block| {
                let mut payload = Vec::with_capacity(codec::payload_len(tier, block.len()).unwrap_or(0));
                let encoded = codec::encode(tier, encoder, dtype, block, &mut payload)?;
                Ok((block, payload, encoded))
            })
            .collect::<Result<_>>()?;
        let encodable = encoded.iter().filter(|(_, _, result)| result.is_ok());
        let payloads: Vec<&[u8]> = encodable.map(|(_, payload, _)| payload.as_slice()).collect();
        let mut offsets = self.write_payloads(tier, &payloads, touched)?.into_iter();
        let mut stored = Vec::with_capacity(encoded.len());
        for (block, payload, result) in &encoded {
            match result {
                Ok(encoded) => {
                    let offset =
                        offsets.next().ok_or_else(|| Error::invalid("fewer offsets than payloads"))?;
                    let checksum = checksum::of(payload);
                    let (scale, len) = (encoded.scale, payload.len() as u32);
                    stored.push(Stored { scale, checksum, len, ..Stored::in_slot(tier, offset) });
                    measured.add(Measured {
                        maximum: encoded.error_max,
                        squares: encoded.error_square_sum,
                        elements: block.len() as u64 / dtype.bytes(),
                    });
                }
                Err(NotEncodable::NotFinite | NotEncodable::SubnormalScale) => {
                    stored.push(self.store_exact(block, touched)?);
                }
            }
        }
        Ok((stored, measured))
    }

    /// Stores one block exactly.
    pub(in crate::store) fn store_exact(&self, block: &[u8], touched: &mut Touched) -> Result<Stored> {
        let offsets = self.write_payloads(Tier::Exact, &[block], touched)?;
        let offset = offsets.first().ok_or_else(|| Error::invalid("no offset for a payload"))?;
        Ok(exact(block, *offset))
    }
}

fn exact(block: &[u8], offset: u64) -> Stored {
    let (checksum, len) = (checksum::of(block), block.len() as u32);
    Stored { checksum, len, ..Stored::in_slot(Tier::Exact, offset) }
}
