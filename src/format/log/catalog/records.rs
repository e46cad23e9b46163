//! Encodes the layout of an embedding batch's records in its Node entry.

use std::cell::Cell;
use std::sync::Arc;

use crate::format::cursor::{Reader, Writer};
use crate::format::files::cgeb::{Layout, RUNS_MAX, Run, Runs, Sizes};
use crate::format::log::catalog::{Content, NodeEntry, NodeType};
use crate::format::values::read_list;
use crate::model::{Error, Result};

/// Bytes of a run.
const RUN_BYTES: usize = 25;
/// The bit of the last run's kind: the file ends without the padding of its last record.
const ENDS_SHORT: u8 = 8;

pub(super) fn records_of(node: &NodeEntry) -> Option<&Arc<Runs>> {
    match &node.node_type {
        NodeType::File(file) => file.records.as_ref(),
        _ => None,
    }
}

/// Sets the records of a node. Fails unless exactly the embedding batches have records.
pub(super) fn put_records(node: &mut NodeEntry, records: Option<Runs>) -> Result<()> {
    let file = match &mut node.node_type {
        NodeType::File(file) => Some(file),
        _ => None,
    };
    let is_batch = file.as_ref().is_some_and(|file| file.content == Content::Cgeb);
    if is_batch != records.is_some() {
        return Err(Error::corrupt("an embedding batch has no list of records, or another file has one"));
    }
    if let Some(file) = file {
        file.records = records.map(Arc::new);
    }
    Ok(())
}

pub(super) fn write_records(out: &mut Writer, records: &Runs) {
    let sizes = records.sizes();
    out.u32(sizes.dimension).u8(sizes.experts).u8(sizes.top_k);
    out.u32(records.placed().len() as u32);
    let last = if records.is_padded() { 0 } else { records.placed().len() };
    for (number, placed) in (1..).zip(records.placed()) {
        let Run { count, layout, is_hashed, aux_offset, aux_length } = placed.run;
        let layout = match layout {
            Layout::One => 0,
            Layout::TwoBig => 1,
            Layout::TwoLittle => 2,
        };
        let short = if number == last { ENDS_SHORT } else { 0 };
        out.u64(count).u8(layout | u8::from(is_hashed) << 2 | short).u64(aux_offset).u64(aux_length);
    }
}

pub(super) fn read_records(bytes: &mut Reader<'_>) -> Result<Runs> {
    let sizes = Sizes { dimension: bytes.u32()?, experts: bytes.u8()?, top_k: bytes.u8()? };
    let is_short = Cell::new(false);
    let runs = read_list(bytes, RUNS_MAX, RUN_BYTES, |bytes| {
        let (count, kind) = (bytes.u64()?, bytes.u8()?);
        let layout = match kind & 3 {
            0 => Layout::One,
            1 => Layout::TwoBig,
            2 => Layout::TwoLittle,
            _ => return Err(Error::unsupported(format!("records of kind {kind}"))),
        };
        if is_short.replace(kind & ENDS_SHORT != 0) {
            return Err(Error::corrupt("an embedding batch with records after the one that ends it"));
        }
        if kind >> 4 != 0 {
            return Err(Error::unsupported(format!("records of kind {kind}")));
        }
        let (aux_offset, aux_length) = (bytes.u64()?, bytes.u64()?);
        Ok(Run { count, layout, is_hashed: kind & 4 != 0, aux_offset, aux_length })
    })?;
    let said = runs.len();
    Runs::new(sizes, runs)
        .filter(|runs| runs.placed().len() == said)
        .and_then(|runs| if is_short.get() { runs.without_last_padding() } else { Some(runs) })
        .ok_or_else(|| Error::corrupt("invalid or duplicate records of an embedding batch"))
}
