//! Stores the parts of a `.cgeb` file that was recognized, by a second read of it.

use std::sync::Arc;

use crate::format::budget::Budget;
use crate::format::files::cgeb::Part;
use crate::format::log::catalog::Extent;
use crate::ingest::bytes::pending_parts::Uncommitted;
use crate::ingest::bytes::store_parts::{
    How, StoredBlocks, StoredObject, StoredParts, checksums, store, write,
};
use crate::ingest::recognize::batch::{Found, read};
use crate::ingest::recognize::parts::Recognized;
use crate::model::{Dtype, Encoder, Error, ErrorKind, Progress, Result, Tier};
use crate::store::Collection;
use crate::store::GATHERED_BYTES_MAX;
use crate::store::Touched;
use crate::store::disk::File;

/// Bytes of a part that are collected before they are stored.
const GATHERED_BYTES: usize = 2 << 20;

/// A part that is being stored.
struct Sink {
    part: Part,
    tier: Option<Tier>,
    /// Its own data file; small parts are packed with others.
    file: Option<Arc<dyn File>>,
    gathered: Vec<u8>,
    /// Bytes that are stored at a time: whole blocks.
    step: usize,
    stored: u64,
    object: StoredObject,
}

impl Sink {
    fn push(&mut self, mut bytes: &[u8], into: &mut Into<'_>) -> Result<()> {
        while !bytes.is_empty() {
            let (here, after) = bytes.split_at(bytes.len().min(self.step - self.gathered.len()));
            self.gathered.extend_from_slice(here);
            bytes = after;
            if self.gathered.len() == self.step {
                self.flush(into)?;
            }
        }
        Ok(())
    }

    fn flush(&mut self, into: &mut Into<'_>) -> Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        match (self.tier, &self.file) {
            (None, Some(file)) => {
                write(file, self.stored, &self.gathered)?;
                if let StoredBlocks::Run(all) = &mut self.object.blocks {
                    all.extend(checksums(&self.gathered, self.object.block_bytes));
                }
            }
            _ => {
                let tier = self.tier.unwrap_or(Tier::Exact);
                store(
                    into.collection,
                    tier,
                    into.encoder,
                    &self.gathered,
                    &mut self.object,
                    &mut into.touched,
                )?;
            }
        }
        self.stored += self.gathered.len() as u64;
        self.gathered.clear();
        Ok(())
    }
}

/// The destination of the parts.
struct Into<'a> {
    collection: &'a Arc<Collection>,
    encoder: Encoder,
    touched: Touched,
}

/// Reads a recognized batch again and stores its parts. `tiers` are those of the parts, in order.
pub(in crate::ingest) fn take(
    uncommitted: &mut Uncommitted<'_>,
    collection: &Arc<Collection>,
    source: &Arc<dyn File>,
    recognized: &Recognized,
    tiers: &[Option<Tier>],
    how: How<'_>,
    progress: &dyn Progress,
) -> Result<StoredParts> {
    let How { options, mut digester, .. } = how;
    let Some(runs) = &recognized.records else { return Err(Error::invalid("not an embedding batch")) };
    let mut into = Into { collection, encoder: options.encoder, touched: Touched::default() };
    let mut sinks = Vec::with_capacity(recognized.parts.len());
    for ((part, of_file), tier) in runs.parts().zip(&recognized.parts).zip(tiers) {
        let dtype = of_file.tensor.as_ref().map_or(Dtype::U8, |tensor| tensor.dtype);
        let bytes = of_file.end - of_file.begin;
        let block_bytes = options.blocking.block_bytes(dtype, bytes);
        let mut extent = None;
        let mut own = None;
        if tier.is_none() && bytes > GATHERED_BYTES_MAX {
            let (number, file) = uncommitted.create_data_file(bytes)?;
            into.touched.file(&file);
            extent = Some(Extent { file: number, offset: 0 });
            own = Some(file);
        }
        let blocks = match extent {
            Some(_) => StoredBlocks::Run(Vec::new()),
            None => StoredBlocks::Each(Vec::new()),
        };
        let step = (GATHERED_BYTES / block_bytes as usize).max(1) * block_bytes as usize;
        let object = StoredObject { dtype, bytes, block_bytes, extent, blocks, error: None };
        sinks.push(Sink { part, tier: *tier, file: own, gathered: Vec::new(), step, stored: 0, object });
    }
    let again = read(source, recognized.bytes, &mut Budget::default(), &mut |found| match found {
        Found::Source(bytes) => {
            digester.update(bytes);
            progress.advance(bytes.len() as u64);
            if progress.is_cancelled() {
                Err(Error::new(ErrorKind::Interrupted, "cancelled by request"))
            } else {
                Ok(())
            }
        }
        Found::Part(part, bytes) => match sinks.iter_mut().find(|sink| sink.part == part) {
            Some(sink) => sink.push(bytes, &mut into),
            None => Ok(()),
        },
    })?;
    sinks.iter_mut().try_for_each(|sink| sink.flush(&mut into))?;
    if again != **runs {
        return Err(Error::new(ErrorKind::Busy, "it changed while it was read"));
    }
    Ok(StoredParts {
        bytes: recognized.bytes,
        objects: sinks.into_iter().map(|sink| sink.object).collect(),
        digests: digester.finish(),
        touched: into.touched,
        outside: Vec::new(),
        is_shared: false,
    })
}
