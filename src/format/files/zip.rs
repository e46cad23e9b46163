//! The directory of a zip archive, for archives whose entries are read in place.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | .. | entries: local header (30 bytes, name, extra fields), data, perhaps a data descriptor |
//! | .. | .. | central directory: for each entry 46 bytes, name, extra fields, comment |
//! | .. | 56 + 20 | zip64 end record and its locator, in archives that need them |
//! | .. | 22 | end record, then a comment to the file's end |
//!
//! Source: APPNOTE.TXT 6.3.10 of PKWARE. Readers could interpret some archives in different ways. This one refuses
//! them: entries that overlap each other or the directory, bytes between the directory and its end record, local
//! headers with another name, method or size than the directory, duplicate names, parts on other disks.

use std::collections::HashSet;
use std::ops::Range;

use crate::format::budget::Budget;
use crate::format::cursor::Reader;
use crate::format::files::{ReadAt, cut_off};
use crate::model::{Error, Result, quoted_name};

/// Largest number of entries.
pub const ENTRIES_MAX: u64 = 1 << 17;

/// Largest central directory in bytes.
pub const DIRECTORY_BYTES_MAX: u64 = 64 << 20;

/// The first bytes of an archive with entries.
pub const MAGIC: [u8; 4] = *b"PK\x03\x04";

const DIRECTORY_MAGIC: [u8; 4] = *b"PK\x01\x02";
const END_MAGIC: [u8; 4] = *b"PK\x05\x06";
const LARGE_END_MAGIC: [u8; 4] = *b"PK\x06\x06";
const LOCATOR_MAGIC: [u8; 4] = *b"PK\x06\x07";
const LOCAL_BYTES: u64 = 30;
const DIRECTORY_BYTES_MIN: u64 = 46;
const END_BYTES: u64 = 22;
const LARGE_END_BYTES: u64 = 56;
const LOCATOR_BYTES: u64 = 20;
const COMMENT_BYTES_MAX: u64 = 65_535;
/// The extra field with sizes of 64 bits.
const LARGE_FIELD: u16 = 1;
const ENCRYPTED: u16 = 1;
/// Sizes follow the data, and the local header has none.
const DESCRIBED_LATER: u16 = 8;

/// An entry of an archive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The bytes of the archive that hold it.
    pub data: Range<u64>,
    /// Whether the entry is stored: neither compressed nor encrypted.
    pub is_stored: bool,
}

/// An entry of the central directory.
struct Listed {
    name: String,
    flags: u16,
    method: u16,
    checksum: u32,
    stored: u64,
    bytes: u64,
    header: u64,
}

/// Reads the directory of an archive of `file_len` bytes, and the header of each entry. The entries are in the order of
/// their bytes. Needs memory in proportion to the directory.
///
/// # Errors
/// `Invalid` for a damaged archive; `Unsupported` for one that readers could interpret in different ways, for more than
/// [`ENTRIES_MAX`] entries, a directory of more than [`DIRECTORY_BYTES_MAX`] bytes, names that are not UTF-8, and
/// archives of several files.
pub fn entries(read: &mut ReadAt<'_>, file_len: u64, budget: &mut Budget) -> Result<Vec<Entry>> {
    let mut counted = |out: &mut [u8], at: u64| {
        budget.add_read(out.len() as u64);
        budget.take(1)?;
        read(out, at)
    };
    let entries = list(&mut counted, file_len).map_err(|error| error.at("zip archive"))?;
    budget.take(entries.iter().map(|entry| 1 + 2 * entry.name.len() as u64).sum())?;
    Ok(entries)
}

fn list(read: &mut ReadAt<'_>, file_len: u64) -> Result<Vec<Entry>> {
    let (count, directory) = end(read, file_len)?;
    let bytes = fetch(read, directory.clone())?;
    let mut input = Reader::new(&bytes);
    let mut listed = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..count {
        let entry = listed_entry(&mut input).map_err(damaged)?;
        if !names.insert(entry.name.clone()) {
            return Err(Error::unsupported(format!("{:?} appears twice", quoted_name(&entry.name))));
        }
        listed.push(entry);
    }
    if input.remaining() > 0 {
        return Err(Error::unsupported("bytes follow the last entry of the directory"));
    }
    listed.sort_by_key(|entry| entry.header);
    let mut entries = Vec::with_capacity(listed.len());
    let mut at = 0;
    for entry in listed {
        let place = |error: Error| error.at(format_args!("{:?}", quoted_name(&entry.name)));
        if entry.header < at {
            return Err(place(Error::unsupported("begins inside the entry before it")));
        }
        let data = data(read, &entry, directory.start).map_err(place)?;
        at = data.end;
        let is_stored = entry.method == 0 && entry.flags & ENCRYPTED == 0;
        if is_stored && entry.stored != entry.bytes {
            return Err(place(Error::invalid(
                "its stored size differs from its size, though it is not compressed",
            )));
        }
        entries.push(Entry { name: entry.name, data, is_stored });
    }
    Ok(entries)
}

/// The number of entries, and the range of the directory.
fn end(read: &mut ReadAt<'_>, file_len: u64) -> Result<(u64, Range<u64>)> {
    let tail_len = file_len.min(END_BYTES + COMMENT_BYTES_MAX);
    let tail_start = file_len - tail_len;
    let tail = fetch(read, tail_start..file_len)?;
    // The bytes behind the record and its comment.
    let behind = |at: usize| {
        let found = tail.get(at..).filter(|found| found.starts_with(&END_MAGIC))?;
        let comment = found.get(20..)?.first_chunk().copied().map(u16::from_le_bytes)?;
        found.len().checked_sub(usize::from(comment) + 22)
    };
    let mut places = (0..tail.len()).rev();
    // As zipfile does, which reads an archive with other bytes behind it too.
    let at =
        places.clone().find(|at| behind(*at) == Some(0)).or_else(|| places.find(|at| behind(*at).is_some()));
    let at = at.ok_or_else(|| cut_off("the end record is missing"))?;
    let mut input = Reader::new(tail.get(at + 4..).unwrap_or_default());
    let (disk, first_disk) = (input.u16()?, input.u16()?);
    let (here, count) = (u64::from(input.u16()?), u64::from(input.u16()?));
    let (bytes, start) = (u64::from(input.u32()?), u64::from(input.u32()?));
    let end = tail_start + at as u64;
    let is_large = count == 0xffff || bytes == 0xffff_ffff || start == 0xffff_ffff;
    let (count, range, end) = match large_end(read, end)? {
        Some(found) => found,
        None if is_large => return Err(Error::invalid("the end record of zip64 is missing")),
        None if disk != 0 || first_disk != 0 || here != count => {
            return Err(Error::unsupported("the archive is split into several files"));
        }
        None => (count, (start, bytes), end),
    };
    let (start, bytes) = range;
    if start.checked_add(bytes) != Some(end) {
        return Err(Error::unsupported("the directory does not end where its end record begins"));
    }
    if count > ENTRIES_MAX || bytes > DIRECTORY_BYTES_MAX {
        return Err(Error::unsupported(format!(
            "{count} entries in a directory of {bytes} bytes; at most {ENTRIES_MAX} and {DIRECTORY_BYTES_MAX} are read"
        )));
    }
    if count * DIRECTORY_BYTES_MIN > bytes {
        return Err(Error::invalid(format!("{count} entries in a directory of {bytes} bytes")));
    }
    Ok((count, start..end))
}

/// The number of entries, start and bytes of the directory from a zip64 end record, and the offset of that
/// record.
type LargeEnd = (u64, (u64, u64), u64);

/// The zip64 end record, if its locator lies before `end`.
fn large_end(read: &mut ReadAt<'_>, end: u64) -> Result<Option<LargeEnd>> {
    let Some(at) = end.checked_sub(LOCATOR_BYTES) else { return Ok(None) };
    let bytes = fetch(read, at..end)?;
    let mut locator = Reader::new(&bytes);
    if locator.array()? != LOCATOR_MAGIC {
        return Ok(None);
    }
    let (disk, record, disks) = (locator.u32()?, locator.u64()?, locator.u32()?);
    if record.checked_add(LARGE_END_BYTES) != Some(at) {
        return Err(Error::unsupported("the zip64 end record is not where its locator says"));
    }
    let bytes = fetch(read, record..at)?;
    let mut input = Reader::new(&bytes);
    let is_record = input.array()? == LARGE_END_MAGIC && input.u64()? == LARGE_END_BYTES - 12;
    input.skip(4)?;
    let (own, first_disk, here, count) = (input.u32()?, input.u32()?, input.u64()?, input.u64()?);
    if !is_record || here != count {
        return Err(Error::unsupported("the zip64 end record has an unknown form"));
    }
    if disk != 0 || disks > 1 || own != 0 || first_disk != 0 {
        return Err(Error::unsupported("the archive is split into several files"));
    }
    let (bytes, start) = (input.u64()?, input.u64()?);
    Ok(Some((count, (start, bytes), record)))
}

fn listed_entry(input: &mut Reader<'_>) -> Result<Listed> {
    if input.array()? != DIRECTORY_MAGIC {
        return Err(Error::invalid("an entry of the directory does not begin with its signature"));
    }
    input.skip(4)?;
    let (flags, method) = (input.u16()?, input.u16()?);
    input.skip(4)?;
    let checksum = input.u32()?;
    let (stored, bytes) = (u64::from(input.u32()?), u64::from(input.u32()?));
    let (name, extra, comment) = (input.u16()?, input.u16()?, input.u16()?);
    let disk = input.u16()?;
    input.skip(6)?;
    let header = u64::from(input.u32()?);
    let name = std::str::from_utf8(input.bytes(usize::from(name))?);
    let name = name.map_err(|_| Error::unsupported("the name of an entry is not UTF-8"))?.to_owned();
    let extra = input.bytes(usize::from(extra))?;
    input.skip(usize::from(comment))?;
    let [bytes, stored, header] = large(extra, [bytes, stored, header])?;
    if disk != 0 && disk != 0xffff {
        return Err(Error::unsupported("the archive is split into several files"));
    }
    Ok(Listed { name, flags, method, checksum, stored, bytes, header })
}

/// Replaces the sizes that are 2^32 - 1 by those of the zip64 field.
fn large<const N: usize>(extra: &[u8], mut sizes: [u64; N]) -> Result<[u64; N]> {
    let mut fields = Reader::new(extra);
    let mut found = None;
    // Programs that align data end with a few bytes that are not a field.
    while fields.remaining() >= 4 {
        let (id, len) = (fields.u16()?, fields.u16()?);
        let Ok(field) = fields.bytes(usize::from(len)) else { break };
        if id == LARGE_FIELD && found.replace(field).is_some() {
            return Err(Error::unsupported("an entry has the sizes of zip64 twice"));
        }
    }
    let mut field = Reader::new(found.unwrap_or_default());
    for size in sizes.iter_mut().filter(|size| **size == 0xffff_ffff) {
        *size = field.u64().map_err(|_| Error::invalid("a size of zip64 is missing"))?;
    }
    Ok(sizes)
}

/// The range of an entry's data, by its local header, which must agree with the directory.
fn data(read: &mut ReadAt<'_>, entry: &Listed, directory: u64) -> Result<Range<u64>> {
    let fits = |end: Option<u64>| {
        end.filter(|end| *end <= directory)
            .ok_or_else(|| Error::invalid("goes past the beginning of the directory"))
    };
    let end = fits(entry.header.checked_add(LOCAL_BYTES))?;
    let bytes = fetch(read, entry.header..end)?;
    let mut input = Reader::new(&bytes);
    if input.array()? != MAGIC {
        return Err(Error::invalid("its local header is not where the directory says"));
    }
    input.skip(2)?;
    let (flags, method) = (input.u16()?, input.u16()?);
    input.skip(4)?;
    let checksum = input.u32()?;
    let (stored, whole) = (u64::from(input.u32()?), u64::from(input.u32()?));
    let (name_len, extra_len) = (u64::from(input.u16()?), u64::from(input.u16()?));
    let start = fits(Some(end + name_len + extra_len))?;
    let rest = fetch(read, end..start)?;
    let (name, extra) = rest.split_at_checked(name_len as usize).unwrap_or_default();
    let is_later = flags & DESCRIBED_LATER != 0;
    let sizes = match large(extra, [whole, stored]) {
        Ok(sizes) => sizes,
        Err(_) if is_later => [0, 0],
        Err(error) => return Err(error),
    };
    let agrees = sizes == [entry.bytes, entry.stored] && checksum == entry.checksum;
    if (flags, method) != (entry.flags, entry.method)
        || name != entry.name.as_bytes()
        || !(agrees || is_later && sizes == [0, 0])
    {
        return Err(Error::unsupported("its local header differs from the directory"));
    }
    Ok(start..fits(start.checked_add(entry.stored))?)
}

fn fetch(read: &mut ReadAt<'_>, range: Range<u64>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    read(&mut bytes, range.start)?;
    Ok(bytes)
}

/// A structure that ends early is malformed.
fn damaged(error: Error) -> Error {
    match error.kind() {
        crate::model::ErrorKind::Corrupt => Error::invalid(error.to_string()),
        _ => error,
    }
}
