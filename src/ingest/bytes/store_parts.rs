//! Stores the parts of a file as blocks, before any name leads to them.

use std::sync::Arc;

use rayon::ThreadPoolBuilder;
use rayon::prelude::*;

use crate::format::checksum;
use crate::format::log::catalog::{Digests, Extent, Measured, OutsideFile};
use crate::format::log::record::Stored;
use crate::ingest::bytes::batch;
use crate::ingest::bytes::options::Options;
use crate::ingest::bytes::pending_parts::Uncommitted;
use crate::ingest::recognize::parts::{Part, PartTensor, Recognized};
use crate::model::{Dtype, Encoder, Error, ErrorKind, Progress, Result, Tier};
use crate::store::Collection;
use crate::store::GATHERED_BYTES_MAX;
use crate::store::Touched;
use crate::store::disk::{Advice, File, without_zeros};
use crate::stream::Digester;

/// Bytes of the source that are stored at a time, while as many are read.
const CHUNK_BYTES: usize = 4 << 20;
/// Bytes that one core reads or checks at a time, which balances the work.
const SHARE_BYTES: usize = 1 << 20;
/// Sources from this length on have threads of their own. The calling thread would otherwise sleep
/// and wake up for every chunk.
const OWN_THREADS_FROM: u64 = 64 << 20;

/// The stored bytes of a file, without names.
pub(in crate::ingest) struct StoredParts {
    /// Bytes of the source.
    pub bytes: u64,
    /// One for each part, in order.
    pub objects: Vec<StoredObject>,
    /// Digests of the source.
    pub digests: Digests,
    /// Files that must be durable before a name leads to the objects.
    pub touched: Touched,
    /// The files outside the store that keep its bytes, for an import in place.
    pub outside: Vec<OutsideFile>,
    /// Whether its data file is another name of an older one.
    pub is_shared: bool,
}

impl StoredParts {
    /// Objects whose bytes nobody has read. They lie in a file of their own, and no digest of them is known.
    pub fn unread(bytes: u64, objects: Vec<StoredObject>) -> StoredParts {
        let (digests, touched, outside) = (Digests::NotTaken, Touched::default(), Vec::new());
        StoredParts { bytes, objects, digests, touched, outside, is_shared: false }
    }
}

/// The blocks of an object.
pub(in crate::ingest) struct StoredObject {
    pub dtype: Dtype,
    pub bytes: u64,
    pub block_bytes: u32,
    pub extent: Option<Extent>,
    pub blocks: StoredBlocks,
    /// Error of the encoded blocks against the source, if there are any.
    pub error: Option<Measured>,
}

/// Where the blocks are stored.
pub(in crate::ingest) enum StoredBlocks {
    /// In the data file: one checksum per block.
    Run(Vec<u32>),
    /// In the data file, with holes and blocks in slots between them, in order.
    Parts(Vec<TakenPart>),
    /// One place per block.
    Each(Vec<Stored>),
}

impl StoredObject {
    /// The lowest tier of its encoded blocks, if there are any.
    pub fn lowest_tier(&self) -> Option<Tier> {
        let StoredBlocks::Each(blocks) = &self.blocks else { return None };
        let tiers = blocks.iter().map(|block| block.tier).filter(|tier| !tier.is_exact());
        tiers.reduce(|lowest, tier| if lowest.finer_than(tier) { tier } else { lowest })
    }
}

/// Consecutive blocks that are stored alike.
pub(in crate::ingest) enum TakenPart {
    /// In the data file: one checksum per block.
    Run(Vec<u32>),
    /// Number of blocks in a hole.
    Hole(u32),
    /// Number of blocks of zeros that lie nowhere.
    Zeros(u32),
    /// One place per block, in slots.
    Slots(Vec<Stored>),
}

impl TakenPart {
    /// Number of its blocks.
    pub fn blocks(&self) -> u32 {
        match self {
            TakenPart::Run(checksums) => checksums.len() as u32,
            TakenPart::Hole(count) | TakenPart::Zeros(count) => *count,
            TakenPart::Slots(blocks) => blocks.len() as u32,
        }
    }
}

impl StoredParts {
    /// Bytes of the payloads.
    pub fn stored(&self) -> u64 {
        self.objects.iter().map(StoredObject::stored).sum()
    }

    /// The data file of the store that has the bytes of the whole file, if there is one.
    pub fn data_file(&self) -> Option<u64> {
        let first = self.objects.first()?.extent?.file;
        let is_there = |object: &StoredObject| {
            object.extent.is_some_and(|extent| extent.file == first)
                && matches!(object.blocks, StoredBlocks::Run(_))
        };
        (self.outside.is_empty() && self.objects.iter().all(is_there)).then_some(first)
    }
}

impl StoredObject {
    fn stored(&self) -> u64 {
        match &self.blocks {
            StoredBlocks::Run(_) | StoredBlocks::Parts(_) => self.bytes,
            StoredBlocks::Each(blocks) => blocks.iter().map(|stored| u64::from(stored.len)).sum(),
        }
    }
}

/// A range of the source that stays in a file outside the store, which has it from its first byte to its last.
#[derive(Clone, Copy)]
pub(in crate::ingest) struct InPlace {
    /// The number of that file as a data file.
    pub file: u64,
    pub begin: u64,
    pub end: u64,
}

/// How a source is stored.
pub(in crate::ingest) struct How<'a> {
    pub options: &'a Options,
    /// For an import in place, the files that the source consists of, in order. A part that lies in several of them is
    /// copied.
    pub outside: &'a [InPlace],
    pub digester: Digester,
}

impl How<'_> {
    /// A copy to the store, with a BLAKE3 digest.
    pub fn plain(options: &Options) -> How<'_> {
        How { options, outside: &[], digester: Digester::blake3() }
    }
}

/// Reads a source once and stores its parts.
pub(in crate::ingest) fn store_parts(
    uncommitted: &mut Uncommitted<'_>,
    collection: &Arc<Collection>,
    source: &Arc<dyn File>,
    recognized: &Recognized,
    tier_of: &dyn Fn(&PartTensor) -> Option<Tier>,
    how: How<'_>,
    progress: &dyn Progress,
) -> Result<StoredParts> {
    let tiers: Vec<Option<Tier>> =
        recognized.parts.iter().map(|part| part.tensor.as_ref().and_then(tier_of)).collect();
    if recognized.records.is_some() {
        if !how.outside.is_empty() {
            return Err(Error::unsupported(
                "an embedding batch is stored as separate tensors, so its bytes cannot stay in place; import it without --in-place",
            ));
        }
        return batch::take(uncommitted, collection, source, recognized, &tiers, how, progress);
    }
    let How { options, outside, digester } = how;
    let mut intake = Intake {
        collection,
        source,
        progress,
        reported: 0,
        encoder: options.encoder,
        data: Data::None,
        touched: Touched::default(),
        digester: digester.clone(),
        chunk: Vec::new(),
        next: Vec::new(),
    };
    let exact = tiers.iter().any(Option::is_none);
    let may_share = tiers.iter().all(Option::is_none) && outside.is_empty() && !options.no_share;
    if may_share && recognized.bytes > GATHERED_BYTES_MAX {
        for name in collection.alike(&**source, recognized.bytes, None, progress)? {
            let linked = uncommitted.link_data_file(&name, recognized.bytes)?;
            let Some((number, file)) = linked else { continue };
            intake.touched.file(&file);
            intake.data = Data::Shared(number, file);
            intake.digester = digester.clone();
            if let Some(objects) = intake.take_file(recognized, &tiers, options)? {
                return Ok(intake.finish(recognized.bytes, objects));
            }
            intake.touched = Touched::default();
            uncommitted.remove_data_file(number);
        }
    }
    intake.digester = digester;
    intake.data = if !outside.is_empty() {
        Data::Outside(outside)
    } else if exact && recognized.bytes > GATHERED_BYTES_MAX {
        // Parts that go to another tier stay holes in the file.
        let (id, file) = uncommitted.create_data_file(recognized.bytes)?;
        intake.touched.file(&file);
        Data::Own(id, file)
    } else {
        Data::None
    };
    let objects = intake.take_file(recognized, &tiers, options)?.unwrap_or_default();
    Ok(intake.finish(recognized.bytes, objects))
}

/// The destination of exact blocks.
enum Data<'a> {
    None,
    /// The same offset in a data file.
    Own(u64, Arc<dyn File>),
    /// None: the shared data file may have the same bytes, which are compared.
    Shared(u64, Arc<dyn File>),
    /// None: the source is the data file, or several that follow each other.
    Outside(&'a [InPlace]),
}

impl Data<'_> {
    /// The place of a part that stays exact.
    fn extent(&self, part: &Part) -> Option<Extent> {
        match self {
            Data::None => None,
            Data::Own(file, _) | Data::Shared(file, _) => Some(Extent { file: *file, offset: part.begin }),
            Data::Outside(files) => {
                let place = files.partition_point(|file| file.end < part.end);
                let found = files.get(place).filter(|file| file.begin <= part.begin)?;
                Some(Extent { file: found.file, offset: part.begin - found.begin })
            }
        }
    }
}

struct Intake<'a> {
    collection: &'a Arc<Collection>,
    source: &'a Arc<dyn File>,
    progress: &'a dyn Progress,
    /// Bytes reported as progress: those of a repeated attempt count once.
    reported: u64,
    encoder: Encoder,
    data: Data<'a>,
    touched: Touched,
    digester: Digester,
    /// The chunk that is being stored.
    chunk: Vec<u8>,
    /// The chunk that is being read.
    next: Vec<u8>,
}

/// Bytes of a part that are stored at a time: whole blocks, or the rest at its end.
struct Chunk {
    /// The index of the part.
    part: usize,
    /// Their offset in the source.
    at: u64,
    len: usize,
}

/// Splits a source into chunks.
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
    let shares = into.par_chunks_mut(SHARE_BYTES).enumerate();
    let read = shares
        .try_for_each(|(place, share)| source.read_exact_at(share, chunk.at + (place * SHARE_BYTES) as u64));
    read.map_err(|error| Error::io("reading it", error))
}

impl Intake<'_> {
    /// Stores the parts of a file. `None` if the shared data file has other bytes.
    fn take_file(
        &mut self,
        recognized: &Recognized,
        tiers: &[Option<Tier>],
        options: &Options,
    ) -> Result<Option<Vec<StoredObject>>> {
        let is_large = recognized.bytes >= OWN_THREADS_FROM;
        let own_threads = is_large.then(|| ThreadPoolBuilder::new().build().ok()).flatten();
        match own_threads {
            Some(threads) => threads.install(|| self.take_all(&recognized.parts, tiers, options)),
            None => self.take_all(&recognized.parts, tiers, options),
        }
    }

    fn finish(self, bytes: u64, objects: Vec<StoredObject>) -> StoredParts {
        let is_shared = matches!(self.data, Data::Shared(..));
        let digests = self.digester.finish();
        StoredParts { bytes, objects, digests, touched: self.touched, outside: Vec::new(), is_shared }
    }

    /// As [`take_file`](Self::take_file), on the threads of the caller.
    fn take_all(
        &mut self,
        parts: &[Part],
        tiers: &[Option<Tier>],
        options: &Options,
    ) -> Result<Option<Vec<StoredObject>>> {
        let parts_to = parts.iter().zip(tiers);
        let mut objects: Vec<_> = parts_to.map(|(part, tier)| self.begin(part, *tier, options)).collect();
        let mut chunks = chunks(parts, options).peekable();
        if let Some(first) = chunks.peek() {
            read(self.source, first, &mut self.chunk)?;
        }
        while let Some(chunk) = chunks.next() {
            let Some((object, tier)) = objects.get_mut(chunk.part).zip(tiers.get(chunk.part)) else { break };
            if !self.take(&chunk, chunks.peek(), *tier, object)? {
                return Ok(None);
            }
        }
        Ok(Some(objects))
    }

    /// Creates an object without blocks for a part.
    fn begin(&self, part: &Part, tier: Option<Tier>, options: &Options) -> StoredObject {
        let (dtype, bytes) = (dtype(part), part.end - part.begin);
        let extent = self.data.extent(part);
        let blocks = match (tier, extent) {
            (None, Some(_)) => StoredBlocks::Run(Vec::new()),
            _ => StoredBlocks::Each(Vec::new()),
        };
        let block_bytes = block_bytes(part, options);
        StoredObject { dtype, bytes, block_bytes, extent, blocks, error: None }
    }

    /// Stores the current chunk while it reads the next one. Two cores share the four jobs, the
    /// longest first. Returns `false` if the shared data file has other bytes.
    fn take(
        &mut self,
        current: &Chunk,
        next: Option<&Chunk>,
        tier: Option<Tier>,
        object: &mut StoredObject,
    ) -> Result<bool> {
        let Intake { digester, chunk, next: ahead, collection, data, touched, encoder, source, .. } = self;
        let chunk = &*chunk;
        let stays = matches!(object.blocks, StoredBlocks::Run(_));
        let block_bytes = object.block_bytes;
        let store = || match (stays, &data) {
            (true, Data::Own(_, file)) => write(file, current.at, chunk).map(|()| true),
            (true, Data::Shared(_, file)) => Ok(has_bytes(file, current.at, chunk)),
            (true, _) => Ok(true),
            (false, _) => {
                let tier = tier.unwrap_or(Tier::Exact);
                store(collection, tier, *encoder, chunk, object, touched).map(|()| true)
            }
        };
        let check = || if stays { checksums(chunk, block_bytes) } else { Vec::new() };
        let read_ahead = || next.map_or(Ok(()), |next| read(source, next, ahead));
        let (stored, ((), (checked, was_read))) =
            rayon::join(store, || rayon::join(|| digester.update(chunk), || rayon::join(check, read_ahead)));
        if !stored? {
            return Ok(false);
        }
        was_read?;
        if let StoredBlocks::Run(all) = &mut object.blocks {
            all.extend(checked);
        }
        std::mem::swap(&mut self.chunk, &mut self.next);
        let done = current.at + current.len as u64;
        self.progress.advance(done.saturating_sub(self.reported));
        self.reported = done.max(self.reported);
        if self.progress.is_cancelled() {
            return Err(Error::new(ErrorKind::Interrupted, "cancelled by request"));
        }
        Ok(true)
    }
}

/// Whether a file has these bytes at `at`; unreadable bytes count as different.
fn has_bytes(file: &Arc<dyn File>, at: u64, chunk: &[u8]) -> bool {
    let shares = chunk.par_chunks(SHARE_BYTES).enumerate();
    shares
        .map_init(Vec::new, |found, (place, share)| {
            found.resize(share.len(), 0);
            file.read_exact_at(found, at + (place * SHARE_BYTES) as u64).is_ok() && found == share
        })
        .all(|is_same| is_same)
}

/// The CRC32C of each exact block.
pub(in crate::ingest) fn checksums(chunk: &[u8], block_bytes: u32) -> Vec<u32> {
    let block_bytes = block_bytes as usize;
    let blocks = chunk.par_chunks(block_bytes).with_min_len((SHARE_BYTES / block_bytes).max(1));
    blocks.map(checksum::of).collect()
}

/// Writes exact blocks into a data file, which has its length and no other bytes there. Long zeros stay holes. It starts
/// writeback at once, while the next blocks are read, so that little is left for the sync at the end.
pub(in crate::ingest) fn write(file: &Arc<dyn File>, at: u64, chunk: &[u8]) -> Result<()> {
    let mut stretches = without_zeros(chunk);
    let written = stretches.try_for_each(|(from, stretch)| file.write_at(stretch, at + from));
    let written = written.and_then(|()| file.advise(Advice::WillSync, at, chunk.len() as u64));
    written.map_err(|error| Error::io("writing its data file", error))
}

/// Stores blocks in tier files: encoded, or exact and packed with others.
pub(in crate::ingest) fn store(
    collection: &Collection,
    tier: Tier,
    encoder: Encoder,
    chunk: &[u8],
    object: &mut StoredObject,
    touched: &mut Touched,
) -> Result<()> {
    let StoredBlocks::Each(blocks) = &mut object.blocks else { return Ok(()) };
    let block_bytes = object.block_bytes as usize;
    let (stored, measured) =
        collection.store_blocks(tier, encoder, object.dtype, chunk, block_bytes, touched)?;
    blocks.extend(stored);
    if measured.elements > 0 {
        object.error.get_or_insert_default().add(measured);
    }
    Ok(())
}
