//! Encodes the layout of an embedding batch's records in its Node entry.

use std::sync::Arc;

use crate::format::cursor::{Reader, Writer};
use crate::format::files::cgeb::{Layout, RUNS_MAX, Run, Runs, Sizes};
use crate::format::log::catalog::{Content, NodeEntry, NodeType};
use crate::format::values::read_list;
use crate::model::{Error, Result};

/// Bytes of a run.
const RUN_BYTES: usize = 25;

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
    for placed in records.placed() {
        let Run { count, layout, is_hashed, aux_offset, aux_length } = placed.run;
        let layout = match layout {
            Layout::One => 0,
            Layout::TwoBig => 1,
            Layout::TwoLittle => 2,
        };
        out.u64(count).u8(layout | u8::from(is_hashed) << 2).u64(aux_offset).u64(aux_length);
    }
}

pub(super) fn read_records(bytes: &mut Reader<'_>) -> Result<Runs> {
    let sizes = Sizes { dimension: bytes.u32()?, experts: bytes.u8()?, top_k: bytes.u8()? };
    let runs = read_list(bytes, RUNS_MAX, RUN_BYTES, |bytes| {
        let (count, kind) = (bytes.u64()?, bytes.u8()?);
        let layout = match kind & 3 {
            0 => Layout::One,
            1 => Layout::TwoBig,
            2 => Layout::TwoLittle,
            _ => return Err(Error::unsupported(format!("records of kind {kind}"))),
        };
        if kind >> 3 != 0 {
            return Err(Error::unsupported(format!("records of kind {kind}")));
        }
        let (aux_offset, aux_length) = (bytes.u64()?, bytes.u64()?);
        Ok(Run { count, layout, is_hashed: kind & 4 != 0, aux_offset, aux_length })
    })?;
    let said = runs.len();
    Runs::new(sizes, runs)
        .filter(|runs| runs.placed().len() == said)
        .ok_or_else(|| Error::corrupt("invalid or duplicate records of an embedding batch"))
}
