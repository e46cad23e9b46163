//! Bytes into blocks: what a file's parts become in the store, before anything names
//! them.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::format::catalog::{Digests, Home, Measured, OutsideFile};
use crate::format::checksum;
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
        next: Vec::new(),
    };
    let mut objects: Vec<_> =
        recognized.parts.iter().zip(&tiers).map(|(part, tier)| intake.begin(part, *tier, options)).collect();
    let mut chunks = chunks(&recognized.parts, options).peekable();
    if let Some(first) = chunks.peek() {
        read(source, first, &mut intake.chunk)?;
    }
    while let Some(chunk) = chunks.next() {
        let Some((object, tier)) = objects.get_mut(chunk.part).zip(tiers.get(chunk.part)) else { break };
        intake.take(&chunk, chunks.peek(), *tier, object)?;
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
    /// The bytes that are taken.
    chunk: Vec<u8>,
    /// Those that come next.
    next: Vec<u8>,
}

/// Bytes of a part that are taken at a time: whole blocks, and what is left at its end.
struct Chunk {
    /// The place of the part.
    part: usize,
    /// Where they begin in the source.
    at: u64,
    len: usize,
}

/// A source, cut to chunks.
fn chunks(parts: &[Part], options: &Options) -> impl Iterator<Item = Chunk> {
    parts.iter().enumerate().flat_map(|(part, of)| {
        let block_bytes = block_bytes(of, options) as usize;
        let step = CHUNK_BYTES / block_bytes * block_bytes;
        let begins = (of.begin..of.end).step_by(step);
        begins.map(move |at| Chunk { part, at, len: (of.end - at).min(step as u64) as usize })
    })
}

fn dtype(part: &Part) -> Dtype {
    part.tensor.as_ref().map_or(Dtype::U8, |tensor| tensor.dtype)
}

fn block_bytes(part: &Part, options: &Options) -> u32 {
    options.blocking.block_bytes(dtype(part), part.end - part.begin)
}

fn read(source: &Arc<dyn File>, chunk: &Chunk, into: &mut Vec<u8>) -> Result<()> {
    into.resize(chunk.len, 0);
    source.read_exact_at(into, chunk.at).map_err(|error| Error::io("reading it", error))
}

impl Intake<'_> {
    /// An object without blocks for a part.
    fn begin(&self, part: &Part, tier: Option<Tier>, options: &Options) -> TakenObject {
        let (dtype, bytes) = (dtype(part), part.end - part.begin);
        let home = self.data.number().map(|file| Home { file, offset: part.begin });
        let blocks = match (tier, home) {
            (None, Some(_)) => TakenBlocks::Run(Vec::new()),
            _ => TakenBlocks::Each(Vec::new()),
        };
        let block_bytes = block_bytes(part, options);
        TakenObject { dtype, bytes, block_bytes, home, blocks, error: None }
    }

    /// Stores the chunk that was read, and reads the next one meanwhile. The longest of the four
    /// jobs is SHA-256, so it has a core to itself where there are two.
    fn take(
        &mut self,
        taken: &Chunk,
        next: Option<&Chunk>,
        tier: Option<Tier>,
        object: &mut TakenObject,
    ) -> Result<()> {
        let Intake { sha256, blake3, chunk, next: ahead, collection, data, touched, encoder, source, .. } =
            self;
        let store = || match (tier, &data) {
            (None, Data::Own(_, file)) => copy(Some(file), taken.at, chunk, object),
            (None, Data::Outside(_)) => copy(None, taken.at, chunk, object),
            _ => store(collection, (tier.unwrap_or(Tier::Exact), *encoder), chunk, object, touched),
        };
        let read_ahead = || next.map_or(Ok(()), |next| read(source, next, ahead));
        let ((), ((), (stored, was_read))) = rayon::join(
            || sha256.update(&*chunk),
            || rayon::join(|| _ = blake3.update(chunk), || rayon::join(store, read_ahead)),
        );
        stored?;
        was_read?;
        std::mem::swap(&mut self.chunk, &mut self.next);
        self.progress.advance(taken.len as u64);
        if self.progress.is_cancelled() {
            return Err(Error::new(ErrorKind::Interrupted, "it was told to stop"));
        }
        Ok(())
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
    checksums.extend(chunk.chunks(taken.block_bytes as usize).map(checksum::of));
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
