//! A disk that shows the versions of collections as collections that are only read (`store/versions/mod.rs`).
//!
//! A payload file of a version is there whole, or as its difference from files of the next version: the same name with
//! [`DIFFERENCE`] behind it (`format/version.rs`). These may be differences in turn. Where both are there, the whole
//! file counts: the other was not finished, or the whole was not removed yet. The log is there as it is, or as one
//! Zstandard frame, with [`PACKED`] behind its name.
//!
//! A version has no directory of data files: they lie beside the log, under the same names. A file takes 4 KiB on most
//! disks, and so does a directory.
//!
//! Invariant:
//! 1. The bases of a file belong to a later version, so a chain of differences ends.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::codec::ladder::Scratch;
use crate::format::cursor::Reader;
use crate::format::version::{CHUNK_BYTES, FIXED_BYTES, Stretch, VersionDifference};
use crate::format::zstandard;
use crate::model::{Error, Result};
use crate::store::disk::forward::ForwardDisk;
use crate::store::disk::memory::MemoryDisk;
use crate::store::disk::{Disk, File, FileAttributes, Open, ReadAt, read_only, write_new};
use crate::store::link_candidates::data_number;
use crate::store::pieces::difference::apply_chunk;

/// Begins the name of the directory of a version that is being made or removed.
pub(in crate::store) const UNFINISHED: &str = "unfinished-";
/// The log of a collection; the room `log` is above this one.
pub(in crate::store) const LOG_NAME: &str = "meta.log";
/// The directory of the versions in that of a collection.
pub(in crate::store) const VERSIONS: &str = "versions";
/// Follows the name of a file that is stored as a difference.
pub(in crate::store) const DIFFERENCE: &str = ".difference";
/// Ends the name of a file that is being written, in the directory of a version.
pub(in crate::store) const DRAFT: &str = ".new";
/// Follows the name of a log that is compressed.
pub(in crate::store) const PACKED: &str = ".zst";
/// The most bytes of a log that is compressed.
pub(in crate::store) const PACKED_LOG_MAX: u64 = 1 << 30;
/// The longest chain of differences that is followed. Those that a store makes are shorter.
const CHAIN_MAX: usize = 128;
/// Bytes that are made at a time.
const STEP_BYTES: u64 = 4 << 20;

/// The name of a version within its tenant.
pub fn version_name(collection: &str, number: u64) -> String {
    format!("{collection}/{VERSIONS}/{number}")
}

/// The collection and the number of a version with this name within its tenant; `None` for a collection itself.
pub fn version_in(name: &str) -> Option<(&str, u64)> {
    let (collection, below) = name.split_once('/')?;
    let number = below.strip_prefix(VERSIONS)?.strip_prefix('/')?;
    number_of(number).map(|number| (collection, number))
}

/// The highest number of a version.
const NUMBER_MAX: u64 = 1 << 32;

/// The number of the version whose directory has this name.
pub fn number_of(name: &str) -> Option<u64> {
    let number = name.parse::<u64>().ok()?;
    ((1..=NUMBER_MAX).contains(&number) && number.to_string() == name).then_some(number)
}

/// Files of versions, by path.
type Opened = HashMap<String, Arc<dyn File>>;

/// The disk of a store, with the versions of its collections.
pub(in crate::store) struct VersionDisk {
    disk: Arc<dyn Disk>,
}

impl VersionDisk {
    /// The versions on this disk.
    pub fn new(disk: &Arc<dyn Disk>) -> VersionDisk {
        VersionDisk { disk: disk.clone() }
    }

    /// Opens a file of a version. `opened` has those that were opened for the same one: many may have one base.
    fn opened(&self, path: &str, depth: usize, opened: &mut Opened) -> io::Result<Arc<dyn File>> {
        if let Some(file) = opened.get(path) {
            return Ok(file.clone());
        }
        let file = self.opened_once(path, depth, opened)?;
        opened.insert(path.to_owned(), file.clone());
        Ok(file)
    }

    fn opened_once(&self, path: &str, depth: usize, opened: &mut Opened) -> io::Result<Arc<dyn File>> {
        let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        let whole = match self.disk.open(path, Open::Read) {
            Err(error) if is_missing(&error) => error,
            whole => return whole,
        };
        let is_log = path.ends_with(LOG_NAME);
        let suffix = if is_log { PACKED } else { DIFFERENCE };
        let stored = match self.disk.open(&format!("{path}{suffix}"), Open::Read) {
            // The whole file may have taken its place meanwhile. Other errors name it as a reader knows it.
            Err(error) if is_missing(&error) => return self.disk.open(path, Open::Read).map_err(|_| whole),
            stored => stored?,
        };
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"));
        let file = if is_log { unpacked(&*stored) } else { self.difference(path, stored, depth, opened) };
        file.map_err(named)
    }

    fn difference(
        &self,
        path: &str,
        file: Arc<dyn File>,
        depth: usize,
        opened: &mut Opened,
    ) -> io::Result<Arc<dyn File>> {
        let head = read_head(&*file).map_err(damaged)?;
        let (directory, number) = directory_of(path).ok_or(io::ErrorKind::NotFound)?;
        if head.next <= number || depth >= CHAIN_MAX {
            return Err(damaged(Error::corrupt(
                "it is a difference from an earlier version, or of too many",
            )));
        }
        let bases: io::Result<Vec<Arc<dyn File>>> = head
            .bases
            .iter()
            .map(|name| match is_payload_name(name) {
                true => self.opened(&format!("{directory}/{}/{name}", head.next), depth + 1, opened),
                false => Err(damaged(Error::corrupt("it names a file that no version has"))),
            })
            .collect();
        Ok(Arc::new(DifferenceFile::new(file, &head, bases?)))
    }
}

/// A log of its compressed bytes.
fn unpacked(stored: &dyn File) -> io::Result<Arc<dyn File>> {
    let len = stored.len()?;
    if len > PACKED_LOG_MAX {
        return Err(damaged(Error::corrupt("it is too long")));
    }
    let mut bytes = vec![0; len as usize];
    stored.read_exact_at(&mut bytes, 0)?;
    let log = zstandard::decode(&bytes, PACKED_LOG_MAX as usize);
    let log = log.map_err(|_| damaged(Error::corrupt("it is no Zstandard frame")))?;
    write_new(&MemoryDisk::new(), LOG_NAME, &log)
}

/// The directory of the versions in the path of a file of a version, and the number of the version.
fn directory_of(path: &str) -> Option<(&str, u64)> {
    let mut ends = path.match_indices('/').map(|(at, _)| at).skip(2);
    let (begin, end) = (ends.next()?, ends.next()?);
    Some((path.get(..begin)?, number_of(path.get(begin + 1..end)?)?))
}

/// Whether this is the name of a payload file of a version.
pub(in crate::store) fn is_payload_name(name: &str) -> bool {
    data_number(name).is_some() || (name.ends_with(".dat") && !name.contains('/'))
}

impl ForwardDisk for VersionDisk {
    fn inner(&self) -> &dyn Disk {
        &*self.disk
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        if how != Open::Read {
            return Err(read_only());
        }
        // `VERSION/data/NAME` is `VERSION/NAME`.
        match path.rsplit_once("/data/").filter(|(_, name)| !name.contains('/')) {
            Some((version, name)) => self.opened(&format!("{version}/{name}"), 0, &mut Opened::new()),
            None => self.opened(path, 0, &mut Opened::new()),
        }
    }

    fn remove_file(&self, _path: &str) -> io::Result<()> {
        Err(read_only())
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Err(read_only())
    }
}

/// Reads the head of a difference. `Corrupt` if it has none.
pub(in crate::store) fn read_head(file: &dyn File) -> Result<VersionDifference> {
    let failed = |error| Error::io("reading the difference of a version", error);
    let short = || Error::corrupt("the difference of a version ends in its head");
    let len = file.len().map_err(failed)?;
    if len < FIXED_BYTES as u64 {
        return Err(short());
    }
    let mut fixed = [0; FIXED_BYTES];
    file.read_exact_at(&mut fixed, 0).map_err(failed)?;
    let bytes = VersionDifference::head_bytes(&fixed)?;
    if bytes > len {
        return Err(short());
    }
    let mut head = vec![0; bytes as usize];
    file.read_exact_at(&mut head, 0).map_err(failed)?;
    VersionDifference::parse(&head)
}

/// A file that is made of its difference from others.
struct DifferenceFile {
    file: Arc<dyn File>,
    bytes: u64,
    bases: Vec<Arc<dyn File>>,
    stretches: Vec<Placed>,
    /// The offset of the payload of each chunk, and the end of the last.
    payloads: Vec<u64>,
    /// The chunk that was made last, with its offset: small reads follow each other.
    last: Mutex<(u64, Vec<u8>)>,
}

/// A stretch, with its offset and the number of its first chunk.
#[derive(Clone, Copy)]
struct Placed {
    begin: u64,
    first: u64,
    stretch: Stretch,
}

impl DifferenceFile {
    fn new(file: Arc<dyn File>, head: &VersionDifference, bases: Vec<Arc<dyn File>>) -> DifferenceFile {
        let (mut begin, mut first) = (0, 0);
        let mut placed = |stretch: &Stretch| {
            let placed = Placed { begin, first, stretch: *stretch };
            begin += stretch.len;
            first += stretch.chunks();
            placed
        };
        let stretches = head.stretches.iter().map(&mut placed).collect();
        let mut at = head.to_bytes().len() as u64;
        let mut payloads = Vec::with_capacity(head.chunks.len() + 1);
        for bytes in &head.chunks {
            payloads.push(at);
            at += u64::from(*bytes);
        }
        payloads.push(at);
        let last = Mutex::new((0, Vec::new()));
        DifferenceFile { file, bytes: head.bytes, bases, stretches, payloads, last }
    }

    /// Fills `out` from an offset in a stretch on. Both ends are ends of chunks.
    fn make(&self, placed: &Placed, begin: u64, out: &mut [u8]) -> io::Result<()> {
        match placed.stretch.base {
            Some((base, offset)) => {
                let base = self.bases.get(base as usize).ok_or(io::ErrorKind::InvalidData)?;
                let at = offset.checked_add(begin).ok_or(io::ErrorKind::InvalidData)?;
                base.read_exact_at(out, at)?;
            }
            None => out.fill(0),
        }
        let first = placed.first + begin / CHUNK_BYTES;
        let count = (out.len() as u64).div_ceil(CHUNK_BYTES);
        let end_of = |chunk: u64| {
            let end = usize::try_from(chunk).ok().and_then(|chunk| self.payloads.get(chunk).copied());
            end.ok_or(io::ErrorKind::InvalidData)
        };
        let (from, until) = (end_of(first)?, end_of(first + count)?);
        let mut payloads = vec![0; (until - from) as usize];
        self.file.read_exact_at(&mut payloads, from)?;
        let mut scratch = Scratch::default();
        for (chunk, out) in (first..).zip(out.chunks_mut(CHUNK_BYTES as usize)) {
            let range = (end_of(chunk)? - from) as usize..(end_of(chunk + 1)? - from) as usize;
            let mut payload = Reader::new(payloads.get(range).unwrap_or_default());
            apply_chunk(placed.stretch.dtype, &mut payload, out, &mut scratch).map_err(damaged)?;
            if payload.remaining() > 0 {
                return Err(damaged(Error::corrupt("a chunk is followed by other bytes")));
            }
        }
        Ok(())
    }

    /// Reads from one stretch.
    fn read_stretch(&self, placed: &Placed, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0_usize;
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset - placed.begin + done as u64;
            let begin = at / CHUNK_BYTES * CHUNK_BYTES;
            let (wanted, left) = (rest.len() as u64, placed.stretch.len - at);
            let whole = if wanted >= left { left } else { wanted / CHUNK_BYTES * CHUNK_BYTES };
            let whole = whole.min(STEP_BYTES) as usize;
            if let Some(rest) = rest.get_mut(..whole).filter(|rest| begin == at && !rest.is_empty()) {
                self.make(placed, begin, rest)?;
                done += whole;
                continue;
            }
            let end = (begin + CHUNK_BYTES).min(placed.stretch.len);
            let count = (end - at).min(wanted) as usize;
            self.with_chunk(placed, begin, end, |chunk| {
                let part = chunk.get((at - begin) as usize..).unwrap_or_default();
                rest.iter_mut().zip(part).take(count).for_each(|(to, from)| *to = *from);
            })?;
            done += count;
        }
        Ok(())
    }

    /// Calls `take` with one chunk.
    fn with_chunk(&self, placed: &Placed, begin: u64, end: u64, take: impl FnOnce(&[u8])) -> io::Result<()> {
        let key = placed.begin + begin;
        {
            let last = self.last.lock();
            if last.0 == key && last.1.len() as u64 == end - begin {
                take(&last.1);
                return Ok(());
            }
        }
        let mut chunk = vec![0; (end - begin) as usize];
        self.make(placed, begin, &mut chunk)?;
        take(&chunk);
        *self.last.lock() = (key, chunk);
        Ok(())
    }
}

impl ReadAt for DifferenceFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = self.bytes.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let mut done = 0;
        let mut place = self.stretches.partition_point(|placed| placed.begin + placed.stretch.len <= offset);
        while done < count {
            let at = offset + done as u64;
            let placed = self.stretches.get(place).ok_or(io::ErrorKind::InvalidData)?;
            let end = placed.begin + placed.stretch.len;
            let len = (end - at).min((count - done) as u64) as usize;
            self.read_stretch(placed, at, buffer.get_mut(done..done + len).unwrap_or_default())?;
            done += len;
            place += 1;
        }
        Ok(count)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }
}

impl File for DifferenceFile {
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn attributes(&self) -> io::Result<FileAttributes> {
        let identity = self.file.attributes()?.identity;
        Ok(FileAttributes { identity, ..FileAttributes::default() })
    }
}

fn damaged(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::VersionDisk;
    use crate::store::disk::memory::MemoryDisk;
    use crate::store::disk::{Disk, Open, write_new};

    #[test]
    fn the_golden_version_reads_whole_and_in_parts_and_its_damaged_head_is_an_error() {
        let memory: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        for directory in ["t", "t/c", "t/c/versions", "t/c/versions/2", "t/c/versions/4"] {
            memory.create_directory(directory).unwrap();
        }
        let difference = include_bytes!("../../tests/golden/version.difference");
        let write = |path: &str, bytes: &[u8]| write_new(&*memory, path, bytes).unwrap();
        let written = write("t/c/versions/2/0000000000000007.difference", difference);
        write("t/c/versions/4/0000000000000009", include_bytes!("../../tests/golden/version.base"));
        write("t/c/versions/4/tier0.dat", include_bytes!("../../tests/golden/version.tier"));
        let wanted = include_bytes!("../../tests/golden/version.raw");
        let versions = VersionDisk::new(&memory);
        let file = versions.open("t/c/versions/2/data/0000000000000007", Open::Read).unwrap();
        let mut found = vec![0; wanted.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == wanted);
        for at in (0..wanted.len() - 700).step_by(613) {
            let mut part = [0; 700];
            file.read_exact_at(&mut part, at as u64).unwrap();
            assert!(part == wanted[at..at + 700], "at {at}");
        }
        // From an earlier version, and of a file that no version has.
        for (at, byte) in [(8, 1), (49, b'/')] {
            written.write_at(&[byte], at).unwrap();
            assert!(versions.open("t/c/versions/2/0000000000000007", Open::Read).is_err(), "byte {at}");
            written.write_at(&difference[at as usize..][..1], at).unwrap();
        }
        versions.open("t/c/versions/2/0000000000000007", Open::Read).unwrap();
    }
}
