//! Embedding batches, files `.cgeb`: records that are borrowed from the file's bytes.
//!
//! docs/FORMAT.md, section "CGEB and CGEI", has the fields of a record. Records begin at multiples of 4,096 bytes. The last
//! one may end without its padding.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use zerocopy::FromBytes;

use crate::attributes::{self, Place};
use crate::error::{Error, ErrorKind, Result, Wrong};
use crate::memory_map::{Mmap, map, zeros};
use crate::shape::Shape;
use crate::tensor::read_exact_at;

const HEADER_BYTES: usize = 64;
/// Alignment of records.
const ALIGNMENT: u64 = 4096;

const LITTLE_ENDIAN: u16 = 1;
const HASHED: u16 = 1 << 1;
const AUX_SHIFT: u16 = 2;

/// The encoding of the auxiliary data of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AuxEncoding {
    /// None.
    Raw,
    /// The decoded length as u32 little-endian, then an LZ4 block.
    Lz4,
    /// A Zstandard frame.
    Zstandard,
}

/// The hash of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContentHash {
    /// The producer's own number.
    Own(u64),
    /// The first 8 bytes, big-endian, of the BLAKE3 of vector, weights, selected experts and aux, all as stored.
    OfPayload(u64),
}

/// A record of a batch, which borrows its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The embedding.
    pub vector: Floats<'a>,
    /// One weight an expert.
    pub weights: Floats<'a>,
    /// The numbers of the selected experts.
    pub selected: &'a [u8],
    /// The producer's auxiliary data, as stored.
    pub aux: &'a [u8],
    /// How `aux` is encoded.
    pub aux_encoding: AuxEncoding,
    /// The hash. This crate does not verify it: a mount gives a valid one.
    pub content_hash: ContentHash,
    /// Latency in microseconds as measured by the producer.
    pub pipeline_latency_us: u64,
}

/// Floats of a record.
#[derive(Clone, Copy, Debug)]
pub struct Floats<'a> {
    bytes: &'a [u8],
    is_little_endian: bool,
}

impl<'a> Floats<'a> {
    /// The number of values.
    pub fn len(&self) -> usize {
        self.bytes.len() / size_of::<f32>()
    }

    /// Whether the number of values is 0.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The values in the bytes of the file. `None` if they are big-endian there, or unaligned in memory.
    pub fn as_slice(&self) -> Option<&'a [f32]> {
        if self.bytes.is_empty() {
            return Some(&[]);
        }
        <[f32]>::ref_from_bytes(self.bytes).ok().filter(|_| self.is_little_endian)
    }

    /// The value at `place`.
    pub fn get(&self, place: usize) -> Option<f32> {
        let bytes = self.bytes.as_chunks().0.get(place)?;
        Some(self.value(*bytes))
    }

    /// All values in order, whatever their byte order in the file is.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = f32> + 'a {
        let floats = *self;
        floats.bytes.as_chunks().0.iter().map(move |bytes| floats.value(*bytes))
    }

    fn value(&self, bytes: [u8; 4]) -> f32 {
        if self.is_little_endian { f32::from_le_bytes(bytes) } else { f32::from_be_bytes(bytes) }
    }
}

/// An embedding batch.
pub struct Embeddings {
    path: PathBuf,
    bytes: Bytes,
    places: Places,
}

enum Bytes {
    Map(Mmap),
    Memory(Vec<u8>),
}

/// Where the records begin.
#[derive(Debug)]
enum Places {
    /// All are equally long.
    Every { stride: u64, count: usize },
    /// Found by their headers, one after another.
    Found(Mutex<Found>),
}

#[derive(Debug, Default)]
struct Found {
    starts: Vec<u64>,
    /// Start of the record after them, or the end.
    next: u64,
}

impl fmt::Debug for Embeddings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, bytes) = (&self.path, self.bytes().len());
        out.debug_struct("Embeddings")
            .field("path", path)
            .field("bytes", &bytes)
            .field("places", &self.places)
            .finish()
    }
}

impl Embeddings {
    /// Maps a batch, on a mount or elsewhere. [`Embeddings::read`] needs no `unsafe`.
    ///
    /// # Safety
    /// As of [`Tensor::map`](crate::Tensor::map): while the batch exists, nobody may write to the file, nor cut it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Invalid`] and [`ErrorKind::Unsupported`] for a file whose first record this
    /// crate does not read; errors of the system.
    ///
    /// ```no_run
    /// use tierfs_client::Embeddings;
    ///
    /// // SAFETY: no program writes to batches of this collection.
    /// let batch = unsafe { Embeddings::open("/mnt/acme/index/today.cgeb")? };
    /// for record in batch.iter() {
    ///     let record = record?;
    ///     let length: f32 = record.vector.iter().map(|value| value * value).sum();
    ///     println!("{length} {:?}", record.selected);
    /// }
    /// # Ok::<(), tierfs_client::Error>(())
    /// ```
    pub unsafe fn open(path: impl AsRef<Path>) -> Result<Embeddings> {
        let path = path.as_ref();
        let file = open(path)?;
        let len = length(path, &file)?;
        // SAFETY: the caller's contract is that of the function.
        let bytes = Bytes::Map(unsafe { map(path, &file, 0, len) }?);
        Embeddings::new(path, bytes)
    }

    /// Reads a batch into memory.
    ///
    /// # Errors
    /// Those of [`Embeddings::open`]; [`ErrorKind::Absent`] and [`ErrorKind::Corrupt`] with the reason that the mount
    /// gives; [`ErrorKind::OutOfMemory`].
    pub fn read(path: impl AsRef<Path>) -> Result<Embeddings> {
        let path = path.as_ref();
        let file = open(path)?;
        let mut bytes = zeros(path, length(path, &file)?)?;
        read_exact_at(Place { path, file: Some(&file) }, &file, &mut bytes, 0)?;
        Embeddings::new(path, Bytes::Memory(bytes))
    }

    fn new(path: &Path, bytes: Bytes) -> Result<Embeddings> {
        let places = Places::Found(Mutex::default());
        let mut batch = Embeddings { path: path.to_owned(), bytes, places };
        let (_, size) = batch.record_at(0)?;
        if let Some(count) = batch.count_of_equal(&size) {
            batch.places = Places::Every { stride: size.stride, count };
        }
        Ok(batch)
    }

    /// The number of records, if all are as long as a record of the dimensions of the first one without aux. A mount
    /// shows batches of one dimension, number of experts and top k as tensors, and says how many vectors there are. If
    /// as many shortest records fill the file, none is longer.
    fn count_of_equal(&self, first: &Size) -> Option<usize> {
        let (directory, name) = (self.path.parent()?, self.path.file_name()?);
        let stem = Path::new(name).file_stem()?;
        let vectors = directory.join(".tensors").join(name).join(stem);
        let shape = Shape::parse(&Place::of(&vectors).text("shape").ok()??)?;
        let [count, dimension] = shape.dimensions() else { return None };
        let padded = (self.bytes().len() as u64).checked_next_multiple_of(ALIGNMENT)?;
        let shortest = first.shortest.checked_next_multiple_of(ALIGNMENT)?;
        let is_full = (*count as u64).checked_mul(shortest) == Some(padded);
        (is_full && first.dimension == *dimension && first.stride == shortest).then_some(*count)
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The values of the first vector. Records of other lengths may follow.
    pub fn dimension(&self) -> usize {
        self.get(0).ok().flatten().map_or(0, |record| record.vector.len())
    }

    /// The number of records. Unless a mount says that all are equally long, the first call reads the header of each.
    ///
    /// # Errors
    /// Those of [`Embeddings::get`].
    pub fn count(&self) -> Result<usize> {
        match &self.places {
            Places::Every { count, .. } => Ok(*count),
            Places::Found(found) => {
                while self.find_next(found)? {}
                Ok(locked(found).starts.len())
            }
        }
    }

    /// The record at `place`, counted from 0. `None` behind the last one. Unless a mount says that all are equally long,
    /// reads the header of each record before it once.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] and [`ErrorKind::Unsupported`] for bytes that are not a record.
    pub fn get(&self, place: usize) -> Result<Option<Record<'_>>> {
        let start = match &self.places {
            Places::Every { stride, count } => {
                let start = (place as u64).checked_mul(*stride);
                start.filter(|_| place < *count)
            }
            Places::Found(found) => {
                while locked(found).starts.len() <= place && self.find_next(found)? {}
                locked(found).starts.get(place).copied()
            }
        };
        Ok(start.map(|start| self.record_at(start)).transpose()?.map(|(record, _)| record))
    }

    /// All records in order. The iterator ends after an error.
    pub fn iter(&self) -> impl Iterator<Item = Result<Record<'_>>> {
        let mut next = Some(0);
        std::iter::from_fn(move || {
            let start = next.take().filter(|start| *start < self.bytes().len() as u64)?;
            Some(self.record_at(start).map(|(record, size)| {
                next = start.checked_add(size.stride);
                record
            }))
        })
    }

    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Map(map) => map,
            Bytes::Memory(bytes) => bytes,
        }
    }

    /// Finds one more record. `false` at the end of the file. Reads its header without the lock: a page of a mapping may
    /// have to come from a disk.
    fn find_next(&self, found: &Mutex<Found>) -> Result<bool> {
        let start = locked(found).next;
        if start >= self.bytes().len() as u64 {
            return Ok(false);
        }
        let (_, size) = self.record_at(start)?;
        let mut found = locked(found);
        // Another thread may have found it meanwhile.
        if found.next == start {
            found.starts.push(start);
            found.next = start.saturating_add(size.stride);
        }
        Ok(true)
    }

    fn record_at(&self, start: u64) -> Result<(Record<'_>, Size)> {
        let bytes =
            usize::try_from(start).ok().and_then(|start| self.bytes().get(start..)).unwrap_or_default();
        let found = parse(bytes);
        found.map_err(|wrong| {
            Wrong { text: format!("the record at byte {start} {}", wrong.text), ..wrong }.at(&self.path)
        })
    }
}

fn locked(found: &Mutex<Found>) -> MutexGuard<'_, Found> {
    found.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(path: &Path) -> Result<File> {
    attributes::open(path)?.ok_or_else(|| Error::new(ErrorKind::Invalid, path, "not a regular file"))
}

fn length(path: &Path, file: &File) -> Result<usize> {
    let place = Place { path, file: Some(file) };
    let len = usize::try_from(place.bytes()?).ok().filter(|len| isize::try_from(*len).is_ok());
    match len {
        Some(len) if len >= HEADER_BYTES => Ok(len),
        Some(len) => Err(Error::new(ErrorKind::Invalid, path, format!("{len} bytes are no embedding batch"))),
        None => Err(Error::new(ErrorKind::OutOfMemory, path, "it is longer than memory can be")),
    }
}

/// The bytes of a record.
struct Size {
    dimension: usize,
    /// To the start of the next record.
    stride: u64,
    /// Without aux.
    shortest: u64,
}

/// The record at the start of bytes.
fn parse(bytes: &[u8]) -> std::result::Result<(Record<'_>, Size), Wrong> {
    let invalid = |text: &str| Wrong::new(ErrorKind::Invalid, text);
    let unknown = |text: String| Wrong::new(ErrorKind::Unsupported, text);
    let header = bytes.first_chunk::<HEADER_BYTES>().ok_or_else(|| invalid("is cut off"))?;
    if !header.starts_with(b"CGEB") {
        return Err(invalid("does not begin with CGEB"));
    }
    let field = Fields(header);
    let (version, flags) = (field.number(4..6) as u16, field.number(6..8) as u16);
    if !matches!(version, 1 | 2) {
        return Err(unknown(format!("has the version {version}; 1 and 2 are known")));
    }
    let aux_encoding = match flags >> AUX_SHIFT {
        _ if version == 1 && flags != 0 => None,
        0 => Some(AuxEncoding::Raw),
        1 => Some(AuxEncoding::Lz4),
        2 => Some(AuxEncoding::Zstandard),
        _ => None,
    };
    let aux_encoding = aux_encoding.ok_or_else(|| unknown(format!("has unknown flags {flags:#06x}")))?;
    if field.number(14..16) != 0 || field.number(48..56) != 0 || field.number(56..64) != 0 {
        return Err(unknown("has reserved bytes that are not zero".to_owned()));
    }
    let (dimension, experts, top_k) = (field.number(8..12), field.number(12..13), field.number(13..14));
    let vector_end = HEADER_BYTES as u64 + 4 * dimension;
    let weights_end = vector_end + 4 * experts;
    let shortest = weights_end + top_k;
    let (aux_offset, aux_length) = (field.number(32..40), field.number(40..48));
    let aux = match (aux_offset, aux_length) {
        (0, 0) => shortest..shortest,
        (offset, _) if offset < shortest => return Err(invalid("has an aux that overlaps its other fields")),
        (offset, length) => {
            offset..offset.checked_add(length).ok_or_else(|| invalid("has an aux without an end"))?
        }
    };
    let stride = aux.end.checked_next_multiple_of(ALIGNMENT).ok_or_else(|| invalid("is too long"))?;
    let part = |range: Range<u64>| {
        let start = usize::try_from(range.start).ok()?;
        bytes.get(start..usize::try_from(range.end).ok()?)
    };
    let part = |range: Range<u64>| part(range).ok_or_else(|| invalid("goes past the end of the file"));
    let is_little_endian = flags & LITTLE_ENDIAN != 0;
    let floats = |range| part(range).map(|bytes| Floats { bytes, is_little_endian });
    let hash = field.number(16..24);
    let record = Record {
        vector: floats(HEADER_BYTES as u64..vector_end)?,
        weights: floats(vector_end..weights_end)?,
        selected: part(weights_end..shortest)?,
        aux: part(aux)?,
        aux_encoding,
        content_hash: if flags & HASHED != 0 { ContentHash::OfPayload(hash) } else { ContentHash::Own(hash) },
        pipeline_latency_us: field.number(24..32),
    };
    let dimension = record.vector.len();
    Ok((record, Size { dimension, stride, shortest }))
}

/// The fields of a header.
struct Fields<'a>(&'a [u8; HEADER_BYTES]);

impl Fields<'_> {
    /// A big-endian number of at most 8 bytes.
    fn number(&self, range: Range<usize>) -> u64 {
        self.0.get(range).into_iter().flatten().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}
