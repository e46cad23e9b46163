//! Bytes into blocks: what a file's parts become in the store, before anything names
//! them.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::format::catalog::{Digests, Home, Measured, OutsideFile};
use crate::format::record::Stored;
use crate::ingest::batch;
use crate::ingest::recognize::{Part, PartTensor, Recognized};
use crate::ingest::unnamed::Unnamed;
use crate::ingest::{Options, Progress};
use crate::model::{Dtype, Encoder, Error, ErrorKind, Result, Tier};
use crate::store::Collection;
use crate::store::collection::Touched;
use crate::store::disk::File;
use crate::store::zeros::PACKED_BYTES_MAX;

/// Bytes of the source that are held at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// A file's bytes, stored, and not named by anything yet.
pub(super) struct Taken {
    /// Bytes of the source.
    pub bytes: u64,
    /// One for each part, in order.
    pub objects: Vec<TakenObject>,
    /// Digests of the source, where they were made.
    pub digests: Option<Digests>,
    /// Files that must be durable before something names the objects.
    pub touched: Touched,
    /// The file outside the store that its bytes stay in.
    pub outside: Option<OutsideFile>,
}

/// An object's blocks.
pub(super) struct TakenObject {
    pub dtype: Dtype,
    pub bytes: u64,
    pub block_bytes: u32,
    pub home: Option<Home>,
    pub blocks: TakenBlocks,
    /// How far the encoded blocks are from the source, if there are any.
    pub error: Option<Measured>,
}

/// Where the blocks lie.
pub(super) enum TakenBlocks {
    /// In the data file: a checksum each.
    Run(Vec<u32>),
    /// A place each.
    Each(Vec<Stored>),
}

impl Taken {
    /// Bytes of the payloads.
    pub fn stored(&self) -> u64 {
        self.objects.iter().map(TakenObject::stored).sum()
    }
}

impl TakenObject {
    fn stored(&self) -> u64 {
        match &self.blocks {
            TakenBlocks::Run(_) => self.bytes,
            TakenBlocks::Each(blocks) => blocks.iter().map(|stored| u64::from(stored.len)).sum(),
        }
    }
}

/// Reads a source once and stores its parts. `outside` is the number of the data file that it
/// is itself, where it stays in place.
pub(super) fn take(
    unnamed: &mut Unnamed<'_>,
    collection: &Arc<Collection>,
    source: &Arc<dyn File>,
    recognized: &Recognized,
    tier_of: &dyn Fn(&PartTensor) -> Option<Tier>,
    (options, outside): (&Options, Option<u64>),
    progress: &dyn Progress,
) -> Result<Taken> {
    let tiers: Vec<Option<Tier>> =
        recognized.parts.iter().map(|part| part.tensor.as_ref().and_then(tier_of)).collect();
    if let Some(runs) = &recognized.records {
        if outside.is_some() {
            return Err(Error::unsupported(
                "an embedding batch is taken apart, so its bytes cannot stay in place; import it without --in-place",
            ));
        }
        return batch::take(unnamed, collection, source, (recognized, runs), &tiers, options, progress);
    }
    let mut touched = Touched::default();
    let exact = tiers.iter().any(Option::is_none);
    let data = if let Some(number) = outside {
        Data::Outside(number)
    } else if exact && recognized.bytes > PACKED_BYTES_MAX {
        let (id, file) = unnamed.create_data_file()?;
        touched.file(&file);
        // What goes to another tier stays a hole in it.
        file.set_len(recognized.bytes).map_err(|error| Error::io("making room for it", error))?;
        Data::Own(id, file)
    } else {
        Data::None
    };
    let mut intake = Intake {
        collection,
        source,
        progress,
        encoder: options.encoder,
        data,
        touched,
        sha256: Sha256::new(),
        blake3: blake3::Hasher::new(),
        chunk: Vec::new(),
    };
    let mut objects = Vec::with_capacity(recognized.parts.len());
    for (part, tier) in recognized.parts.iter().zip(tiers) {
        objects.push(intake.part(part, tier, options)?);
    }
    let digests =
        Digests { sha256: intake.sha256.finalize().into(), blake3: *intake.blake3.finalize().as_bytes() };
    Ok(Taken {
        bytes: recognized.bytes,
        objects,
        digests: Some(digests),
        touched: intake.touched,
        outside: None,
    })
}

/// Where exact blocks go.
enum Data {
    /// Into `tier0.dat`, packed.
    None,
    /// To the same place in a data file.
    Own(u64, Arc<dyn File>),
    /// Nowhere: the source is the data file.
    Outside(u64),
}

impl Data {
    fn number(&self) -> Option<u64> {
        match self {
            Data::None => None,
            Data::Own(number, _) | Data::Outside(number) => Some(*number),
        }
    }
}

struct Intake<'a> {
    collection: &'a Arc<Collection>,
    source: &'a Arc<dyn File>,
    progress: &'a dyn Progress,
    encoder: Encoder,
    data: Data,
    touched: Touched,
    sha256: Sha256,
    blake3: blake3::Hasher,
    chunk: Vec<u8>,
}

impl Intake<'_> {
    fn part(&mut self, part: &Part, tier: Option<Tier>, options: &Options) -> Result<TakenObject> {
        let dtype = part.tensor.as_ref().map_or(Dtype::U8, |tensor| tensor.dtype);
        let bytes = part.end - part.begin;
        let block_bytes = options.blocking.block_bytes(dtype, bytes);
        let home = self.data.number().map(|file| Home { file, offset: part.begin });
        let mut taken = TakenObject {
            dtype,
            bytes,
            block_bytes,
            home,
            blocks: match (tier, home) {
                (None, Some(_)) => TakenBlocks::Run(Vec::new()),
                _ => TakenBlocks::Each(Vec::new()),
            },
            error: None,
        };
        let step = CHUNK_BYTES / block_bytes as usize * block_bytes as usize;
        let mut at = part.begin;
        while at < part.end {
            let len = (part.end - at).min(step as u64) as usize;
            self.chunk.resize(len, 0);
            self.source.read_exact_at(&mut self.chunk, at).map_err(|error| Error::io("reading it", error))?;
            let Intake { sha256, blake3, chunk, collection, data, touched, encoder, .. } = self;
            let (_, stored) = rayon::join(
                || {
                    sha256.update(&*chunk);
                    blake3.update(chunk);
                },
                || match (tier, &data) {
                    (None, Data::Own(_, file)) => copy(Some(file), at, chunk, &mut taken),
                    (None, Data::Outside(_)) => copy(None, at, chunk, &mut taken),
                    _ => {
                        let to = (tier.unwrap_or(Tier::Exact), *encoder);
                        store(collection, to, chunk, &mut taken, touched)
                    }
                },
            );
            stored?;
            at += len as u64;
            self.progress.advance(len as u64);
            if self.progress.is_cancelled() {
                return Err(Error::new(ErrorKind::Interrupted, "it was told to stop"));
            }
        }
        Ok(taken)
    }
}

/// Exact blocks, to the same place in the data file, where they are not there already.
pub(super) fn copy(
    file: Option<&Arc<dyn File>>,
    at: u64,
    chunk: &[u8],
    taken: &mut TakenObject,
) -> Result<()> {
    let TakenBlocks::Run(checksums) = &mut taken.blocks else { return Ok(()) };
    checksums.extend(chunk.chunks(taken.block_bytes as usize).map(crc32c::crc32c));
    let Some(file) = file else { return Ok(()) };
    file.write_at(chunk, at).map_err(|error| Error::io("writing its data file", error))
}

/// Blocks in tier files: encoded, or exact and packed among others.
pub(super) fn store(
    collection: &Collection,
    to: (Tier, Encoder),
    chunk: &[u8],
    taken: &mut TakenObject,
    touched: &mut Touched,
) -> Result<()> {
    let TakenBlocks::Each(blocks) = &mut taken.blocks else { return Ok(()) };
    let block_bytes = taken.block_bytes as usize;
    let (stored, measured) = collection.store_blocks(to, taken.dtype, chunk, block_bytes, touched)?;
    blocks.extend(stored);
    if measured.elements > 0 {
        taken.error.get_or_insert_default().add(measured);
    }
    Ok(())
}
