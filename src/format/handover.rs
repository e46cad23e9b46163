//! The state of a mount that a daemon hands over to the next one, and the record of an open file that outlives a daemon.
//!
//! Neither is on disk: both lie in memory that one process gives to another. The other process may be another version,
//! so both have versions and checksums. Integers are little-endian; a text or a list is its length, u32, and its bytes or
//! items.
//!
//! # The state
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | `tierfsHO` |
//! | 8 | 4 | [`VERSION`] |
//! | 12 | 4 | CRC32C of the rest |
//! | 16 | | arguments of the mount: list of texts |
//! | | | working directory: text |
//! | | | about the remote that is mounted: text, as in [`NumbersHead`]; empty of a store |
//! | | | inodes of which the kernel may have old pages: list of u64 |
//! | | | control files: list of (handle u64, text that was shown) |
//! | | | files that are written: list of (inode u64, begin of the writes that have not arrived u64, u8: 1 if all bytes are new, 2 if no close has ended the writes) |
//! | | | files without a name: list of (inode u64, mode u32, user u32, group u32, times of access, modification and change 3 i64 (ns), created_at u64 (s)) |
//! | | | u8: 1 if requests that the kernel gives again may be done already |
//!
//! # The record of an open file
//!
//! [`RECORD_BYTES`] at `RECORDS_BEGIN` plus the number of its place times that. Before them, [`Head`]: `tierfsOF`, version
//! u32, agreed u32, connection u32, CRC32C u32.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | handle: the place, and above it how often the place was used before; zeros after it: the file is closed |
//! | 8 | 8 | inode |
//! | 16 | 4 | flags of open(2) |
//! | 20 | 4 | user |
//! | 24 | 4 | kind: 0 daemon reads it, 1 kernel reads it, 2 growing text |
//! | 28 | 4 | number of the physical file that the kernel reads |
//! | 32 | 8 | device of that file |
//! | 40 | 8 | inode of that file |
//! | 48 | 4 | sum of 1: its writes go past the page cache; 2: writes to it may be lost |
//! | 52 | 8 | 0 |
//! | 60 | 4 | CRC32C of the bytes before |
//!
//! # The numbers of the collections of a remote
//!
//! [`NumbersHead`]: `tierfsNU`, version u32, a text about the remote, CRC32C u32 of all of these. Then records, oldest
//! first, each a text ([`Numbered`]) and the CRC32C of its length and bytes. The file ends where a record is not whole.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | number of the collection; 0 with the kind 3 |
//! | 1 | kind: 0 its directory is shown, 1 it shows a snapshot from now on, 2 a version, 3 it is not shown any more |
//! | | tenant: text; name: text |
//! | 12 | kind 0: user, group and permission bits that the directory is shown with, 3 u32 |
//! | 48 | kinds 1 and 2: number of the snapshot u64, its digest, a number that its source knows u64 |

use crate::format::checksum;
use crate::format::cursor::{Reader, Writer};
use crate::format::snapshot::manifest::{OwnerAndMode, SnapshotName};
use crate::model::{Error, OwnedCollectionName, Result};

/// The version of everything here. A daemon takes over only from one with the same.
pub const VERSION: u32 = 2;
/// Bytes of the record of an open file.
pub const RECORD_BYTES: usize = 64;
/// The place of the first record.
pub const RECORDS_BEGIN: u64 = 4096;
/// Bytes of the head before the records.
pub const HEAD_BYTES: usize = 24;

const MAGIC: &[u8; 8] = b"tierfsHO";
const HEAD_MAGIC: &[u8; 8] = b"tierfsOF";
const NUMBERS_MAGIC: &[u8; 8] = b"tierfsNU";
/// Bytes of a number of collections before its text, and after it.
const NUMBERED_EXTRA_BYTES: usize = 8;

/// The state of a mount, beside the descriptors and the records of open files.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HandOver {
    /// The arguments that the mount was made with.
    pub arguments: Vec<Vec<u8>>,
    /// The directory that relative paths among them begin at.
    pub directory: Vec<u8>,
    /// A text about the remote that is mounted; empty of a store.
    pub said: Vec<u8>,
    /// Inodes of which the kernel may have old pages.
    pub stale: Vec<u64>,
    /// The texts of open control files.
    pub texts: Vec<ShownText>,
    /// The files that programs write.
    pub written: Vec<WrittenFile>,
    /// The files without a name that programs have open. Their bytes lie in a file each, in the same order.
    pub unnamed: Vec<UnnamedFile>,
    /// Whether requests that the kernel gives again may be done already, because a daemon died lately.
    pub may_have_done: bool,
}

/// The text of an open control file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShownText {
    /// Its handle.
    pub handle: u64,
    /// The text as it was when the file was opened.
    pub text: Vec<u8>,
}

/// A file that programs write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrittenFile {
    /// Its inode.
    pub inode: u64,
    /// Begin of the writes that the settings for what arrives were not applied to yet.
    pub from: u64,
    /// Whether all of its bytes were written since it was opened.
    pub is_new: bool,
    /// Whether no close has ended the writes yet.
    pub is_unclosed: bool,
}

/// The attributes of a file without a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnnamedFile {
    /// Its inode.
    pub inode: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Times of access, modification and change, in nanoseconds since 1970.
    pub times: [i64; 3],
    /// Creation time in Unix seconds.
    pub created_at: u64,
}

impl HandOver {
    /// The bytes of the state.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        put_list(&mut out, &self.arguments, |out, text| put_text(out, text));
        put_text(&mut out, &self.directory);
        put_text(&mut out, &self.said);
        put_list(&mut out, &self.stale, |out, inode| {
            out.u64(*inode);
        });
        put_list(&mut out, &self.texts, |out, shown| {
            out.u64(shown.handle);
            put_text(out, &shown.text);
        });
        put_list(&mut out, &self.written, |out, file| {
            let flags = u8::from(file.is_new) | u8::from(file.is_unclosed) << 1;
            out.u64(file.inode).u64(file.from).u8(flags);
        });
        put_list(&mut out, &self.unnamed, |out, file| {
            out.u64(file.inode).u32(file.mode).u32(file.user).u32(file.group);
            file.times.iter().for_each(|time| {
                out.u64(time.cast_unsigned());
            });
            out.u64(file.created_at);
        });
        out.u8(u8::from(self.may_have_done));
        let body = out.into_bytes();
        let mut whole = Writer::with_capacity(body.len() + 16);
        whole.bytes(MAGIC).u32(VERSION).u32(checksum::of(&body)).bytes(&body);
        whole.into_bytes()
    }

    /// Reads the state from its bytes.
    /// # Errors
    /// `Unsupported` if another version wrote them, `Corrupt` if they are not the bytes of a state.
    pub fn decode(bytes: &[u8]) -> Result<HandOver> {
        let mut from = Reader::new(bytes);
        if from.array()? != *MAGIC {
            return Err(Error::corrupt("not the state of a mount"));
        }
        check_version(from.u32()?)?;
        let sum = from.u32()?;
        let body = from.bytes(from.remaining())?;
        if checksum::of(body) != sum {
            return Err(Error::corrupt("the checksum of the state of a mount is wrong"));
        }
        let mut from = Reader::new(body);
        let state = HandOver {
            arguments: list(&mut from, text)?,
            directory: text(&mut from)?,
            said: text(&mut from)?,
            stale: list(&mut from, |from| from.u64())?,
            texts: list(&mut from, |from| Ok(ShownText { handle: from.u64()?, text: text(from)? }))?,
            written: list(&mut from, |from| {
                let (inode, begin, flags) = (from.u64()?, from.u64()?, from.u8()?);
                let (is_new, is_unclosed) = (flags & 1 != 0, flags & 2 != 0);
                Ok(WrittenFile { inode, from: begin, is_new, is_unclosed })
            })?,
            unnamed: list(&mut from, |from| {
                Ok(UnnamedFile {
                    inode: from.u64()?,
                    mode: from.u32()?,
                    user: from.u32()?,
                    group: from.u32()?,
                    times: [time(from)?, time(from)?, time(from)?],
                    created_at: from.u64()?,
                })
            })?,
            may_have_done: from.u8()? != 0,
        };
        match from.remaining() {
            0 => Ok(state),
            more => Err(Error::corrupt(format!("the state of a mount has {more} bytes too many"))),
        }
    }
}

/// Fails with `Unsupported` unless a daemon of this version can take over from one of `version`.
pub fn check_version(version: u32) -> Result<()> {
    if version == VERSION {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "one program hands mounts over in version {version}, the other one in version {VERSION}"
    )))
}

fn put_text(out: &mut Writer, text: &[u8]) {
    out.u32(text.len() as u32).bytes(text);
}

fn put_list<T>(out: &mut Writer, items: &[T], put: impl Fn(&mut Writer, &T)) {
    out.u32(items.len() as u32);
    items.iter().for_each(|item| put(out, item));
}

fn text(from: &mut Reader) -> Result<Vec<u8>> {
    let len = from.u32()?;
    Ok(from.bytes(len as usize)?.to_vec())
}

/// Takes items from bytes that are there, so a wrong count allocates nothing.
fn list<T>(from: &mut Reader, mut item: impl FnMut(&mut Reader) -> Result<T>) -> Result<Vec<T>> {
    let count = from.u32()?;
    (0..count).map(|_| item(from)).collect()
}

fn time(from: &mut Reader) -> Result<i64> {
    Ok(from.u64()?.cast_signed())
}

/// The head before the records of open files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The answers of the kernel in the handshake, as bits.
    pub agreed: u32,
    /// The number of the connection with the kernel.
    pub connection: u32,
}

impl Head {
    /// The bytes of the head.
    pub fn encode(self) -> Vec<u8> {
        let mut out = Writer::new();
        out.bytes(HEAD_MAGIC).u32(VERSION).u32(self.agreed).u32(self.connection);
        let sum = checksum::of(out.as_slice());
        out.u32(sum);
        out.into_bytes()
    }

    /// Reads the head from its bytes.
    /// # Errors
    /// `Unsupported` if another version wrote them, `Corrupt` if they are not the bytes of a head.
    pub fn decode(bytes: &[u8]) -> Result<Head> {
        let mut from = Reader::new(bytes);
        let is_one = from.array()? == *HEAD_MAGIC;
        let (version, agreed, connection) = (from.u32()?, from.u32()?, from.u32()?);
        let sum = checksum::of(bytes.get(..from.position()).unwrap_or_default());
        if !is_one || sum != from.u32()? {
            return Err(Error::corrupt("not the records of the open files of a mount"));
        }
        check_version(version)?;
        Ok(Head { agreed, connection })
    }
}

/// The reader of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadBy {
    /// The daemon.
    Daemon,
    /// The kernel, from a physical file that it knows by a number.
    Kernel(PhysicalFile),
    /// The daemon, a text that grows.
    Growing,
}

/// A physical file that the kernel reads itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PhysicalFile {
    /// The number by which the kernel knows it.
    pub number: u32,
    /// The device that it lies on.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
}

/// An open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenRecord {
    /// The number by which the kernel names the open file. Never 0.
    pub handle: u64,
    /// Its inode, as the kernel knows it.
    pub inode: u64,
    /// The flags of open(2).
    pub flags: u32,
    /// The user who opened it.
    pub user: u32,
    /// Its reader.
    pub read_by: ReadBy,
    /// Whether its writes go past the page cache.
    pub is_uncached: bool,
    /// Whether writes to it may be lost, since a daemon died.
    pub is_lost: bool,
}

impl OpenRecord {
    /// The bytes of the record.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let (kind, physical) = match self.read_by {
            ReadBy::Daemon => (0, PhysicalFile { number: 0, device: 0, inode: 0 }),
            ReadBy::Kernel(physical) => (1, physical),
            ReadBy::Growing => (2, PhysicalFile { number: 0, device: 0, inode: 0 }),
        };
        let mut out = Writer::with_capacity(RECORD_BYTES);
        out.u64(self.handle).u64(self.inode).u32(self.flags).u32(self.user).u32(kind);
        out.u32(physical.number).u64(physical.device).u64(physical.inode);
        out.u32(u32::from(self.is_uncached) | u32::from(self.is_lost) << 1).u64(0);
        let sum = checksum::of(out.as_slice());
        out.u32(sum);
        let mut bytes = [0; RECORD_BYTES];
        bytes.iter_mut().zip(out.as_slice()).for_each(|(to, from)| *to = *from);
        bytes
    }

    /// Reads the record of an open file from its bytes. `None` if the place is free, or if the checksum is wrong.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<OpenRecord> {
        let mut from = Reader::new(bytes);
        let (handle, inode) = (from.u64().ok()?, from.u64().ok()?);
        let (flags, user, kind) = (from.u32().ok()?, from.u32().ok()?, from.u32().ok()?);
        let physical =
            PhysicalFile { number: from.u32().ok()?, device: from.u64().ok()?, inode: from.u64().ok()? };
        let state = from.u32().ok()?;
        let (is_uncached, is_lost) = (state & 1 != 0, state & 2 != 0);
        from.skip(8).ok()?;
        let sum = checksum::of(bytes.get(..from.position())?);
        let read_by = match kind {
            0 => ReadBy::Daemon,
            1 => ReadBy::Kernel(physical),
            2 => ReadBy::Growing,
            _ => return None,
        };
        let is_one = from.u32().ok()? == sum && handle != 0;
        is_one.then_some(OpenRecord { handle, inode, flags, user, read_by, is_uncached, is_lost })
    }
}

/// The head before the numbers of the collections of a remote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NumbersHead {
    /// A text about the remote, with which it can be shown before it answers.
    pub said: String,
}

impl NumbersHead {
    /// The bytes of the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.bytes(NUMBERS_MAGIC).u32(VERSION);
        put_text(&mut out, self.said.as_bytes());
        let sum = checksum::of(out.as_slice());
        out.u32(sum);
        out.into_bytes()
    }

    /// Reads the head from the first bytes of a file.
    /// # Errors
    /// `Unsupported` if another version wrote them, `Corrupt` if they are not the bytes of a head.
    pub fn decode(from: &mut Reader, bytes: &[u8]) -> Result<NumbersHead> {
        let wrong = || Error::corrupt("not the numbers of the collections of a mount");
        if from.array()? != *NUMBERS_MAGIC {
            return Err(wrong());
        }
        check_version(from.u32()?)?;
        let said = String::from_utf8(text(from)?).map_err(|_| wrong())?;
        let sum = checksum::of(bytes.get(..from.position()).unwrap_or_default());
        if from.u32()? == sum { Ok(NumbersHead { said }) } else { Err(wrong()) }
    }
}

/// A number that a collection of a remote was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Numbered {
    /// The number; 0 for none.
    pub number: u32,
    /// The collection.
    pub place: OwnedCollectionName,
    /// The meaning of the number.
    pub of: NumberOf,
}

/// The meaning of the number of a collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NumberOf {
    /// Its directory is shown, with this owner and mode, and nobody has opened it.
    Directory(OwnerAndMode),
    /// It shows this snapshot, until another number is given.
    Shown(SnapshotName),
    /// A snapshot beside the one that it shows.
    Version(SnapshotName),
    /// It is not shown any more.
    Gone,
}

impl Numbered {
    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        let kind = match self.of {
            NumberOf::Directory(_) => 0,
            NumberOf::Shown(_) => 1,
            NumberOf::Version(_) => 2,
            NumberOf::Gone => 3,
        };
        out.u32(self.number).u8(kind);
        put_text(&mut out, self.place.tenant.as_bytes());
        put_text(&mut out, self.place.name.as_bytes());
        match self.of {
            NumberOf::Directory(OwnerAndMode { uid, gid, mode }) => out.u32(uid).u32(gid).u32(mode),
            NumberOf::Shown(name) | NumberOf::Version(name) => {
                out.u64(name.number).bytes(&name.digest).u64(name.more)
            }
            NumberOf::Gone => &mut out,
        };
        let text = out.into_bytes();
        let mut out = Writer::with_capacity(text.len() + NUMBERED_EXTRA_BYTES);
        put_text(&mut out, &text);
        let sum = checksum::of(out.as_slice());
        out.u32(sum);
        out.into_bytes()
    }

    /// Reads the next record. `None` at the end of the whole ones.
    pub fn decode(from: &mut Reader, bytes: &[u8]) -> Option<Numbered> {
        let begin = from.position();
        let record = text(from).ok()?;
        let sum = checksum::of(bytes.get(begin..from.position())?);
        if from.u32().ok()? != sum {
            return None;
        }
        let mut from = Reader::new(&record);
        let (number, kind) = (from.u32().ok()?, from.u8().ok()?);
        let label = |from: &mut Reader| String::from_utf8(text(from).ok()?).ok();
        let (tenant, name) = (label(&mut from)?, label(&mut from)?);
        let snapshot = |from: &mut Reader| {
            let (number, digest, more) = (from.u64().ok()?, from.array().ok()?, from.u64().ok()?);
            Some(SnapshotName { number, digest, more })
        };
        let of = match kind {
            0 => {
                let (uid, gid, mode) = (from.u32().ok()?, from.u32().ok()?, from.u32().ok()?);
                NumberOf::Directory(OwnerAndMode { uid, gid, mode })
            }
            1 => NumberOf::Shown(snapshot(&mut from)?),
            2 => NumberOf::Version(snapshot(&mut from)?),
            3 => NumberOf::Gone,
            _ => return None,
        };
        let place = OwnedCollectionName::new(tenant, name);
        (from.remaining() == 0).then_some(Numbered { number, place, of })
    }
}

/// The record of a place whose last handle was this.
pub fn free(handle: u64) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes.iter_mut().zip(handle.to_le_bytes()).for_each(|(to, from)| *to = from);
    bytes
}

/// The last handle of a place.
pub fn last_handle(record: &[u8; RECORD_BYTES]) -> u64 {
    Reader::new(record).u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        HEAD_BYTES, HandOver, Head, NumberOf, Numbered, NumbersHead, OpenRecord, PhysicalFile, RECORD_BYTES,
        ReadBy, ShownText, UnnamedFile, VERSION, WrittenFile, free, last_handle,
    };
    use crate::format::checksum;
    use crate::format::cursor::Reader;
    use crate::format::snapshot::manifest::{OwnerAndMode, SnapshotName};
    use crate::model::{ErrorKind, OwnedCollectionName};

    fn state() -> HandOver {
        HandOver {
            arguments: vec![b"--list".to_vec(), b"both".to_vec(), b"/srv/st\xff".to_vec()],
            directory: b"/root".to_vec(),
            said: b"format = 1\n".to_vec(),
            stale: vec![1, u64::MAX],
            texts: vec![ShownText { handle: 7, text: b"jobs: 0\n".to_vec() }],
            written: vec![WrittenFile { inode: 9, from: 100, is_new: false, is_unclosed: true }],
            unnamed: vec![UnnamedFile {
                inode: 11,
                mode: 0o640,
                user: 1,
                group: 2,
                times: [-1, 2, i64::MAX],
                created_at: 3,
            }],
            may_have_done: true,
        }
    }

    #[test]
    fn a_state_is_read_as_it_was_written_and_each_changed_byte_is_noticed() {
        let bytes = state().encode();
        assert_eq!(HandOver::decode(&bytes).unwrap(), state());
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let kind = HandOver::decode(&changed).unwrap_err().kind();
            let is_version = (8..12).contains(&at);
            assert_eq!(kind == ErrorKind::Unsupported, is_version, "byte {at}: {kind:?}");
            assert!(HandOver::decode(&bytes[..at]).is_err());
        }
    }

    #[test]
    fn lists_that_end_early_or_late_are_an_error_also_with_a_right_checksum() {
        let summed = |body: &[u8]| {
            let head = [b"tierfsHO".as_slice(), &VERSION.to_le_bytes(), &checksum::of(body).to_le_bytes()];
            HandOver::decode(&[head.concat().as_slice(), body].concat())
        };
        let body = state().encode()[16..].to_vec();
        assert_eq!(summed(&body).unwrap(), state());
        assert!(summed(&[body.as_slice(), &[0]].concat()).is_err());
        for at in 0..body.len() {
            assert!(summed(&body[..at]).is_err(), "{at} bytes");
        }
        assert!(summed(&[255; 64]).is_err());
    }

    #[test]
    fn an_open_file_is_read_as_it_was_written() {
        let physical = PhysicalFile { number: 5, device: 6, inode: 7 };
        for read_by in [ReadBy::Daemon, ReadBy::Kernel(physical), ReadBy::Growing] {
            let (handle, is_uncached) = (1 << 32, read_by == ReadBy::Growing);
            let record =
                OpenRecord { handle, inode: 3, flags: 2, user: 9, read_by, is_uncached, is_lost: true };
            let bytes = record.encode();
            assert_eq!(OpenRecord::decode(&bytes), Some(record));
            for at in 0..RECORD_BYTES {
                let mut changed = bytes;
                changed[at] ^= 0x80;
                assert_eq!(OpenRecord::decode(&changed), None, "byte {at}");
            }
        }
        assert_eq!(OpenRecord::decode(&[0; RECORD_BYTES]), None);
        assert_eq!((OpenRecord::decode(&free(7)), last_handle(&free(7))), (None, 7));
        let head = Head { agreed: 5, connection: 6 };
        assert_eq!(Head::decode(&head.encode()).unwrap(), head);
        assert!((0..HEAD_BYTES).all(|len| Head::decode(&head.encode()[..len]).is_err()));
    }

    #[test]
    fn numbers_are_read_as_they_were_written_up_to_the_first_record_that_is_not_whole() {
        let name = SnapshotName { number: 7, digest: [9; 32], more: u64::MAX };
        let all = [
            NumberOf::Directory(OwnerAndMode { uid: 1, gid: 2, mode: 0o755 }),
            NumberOf::Shown(name),
            NumberOf::Version(name),
            NumberOf::Gone,
        ];
        let place = OwnedCollectionName::new("acme", "m");
        let all = (1..).zip(all).map(|(number, of)| Numbered { number, place: place.clone(), of });
        let all: Vec<Numbered> = all.collect();
        let head = NumbersHead { said: "uuid = 1\n".to_owned() };
        let mut bytes = head.encode();
        let ends: Vec<usize> = all
            .iter()
            .map(|one| {
                bytes.extend(one.encode());
                bytes.len()
            })
            .collect();
        let read = |bytes: &[u8]| {
            let mut from = Reader::new(bytes);
            let head = NumbersHead::decode(&mut from, bytes)?;
            let found: Vec<_> = std::iter::from_fn(|| Numbered::decode(&mut from, bytes)).collect();
            Ok::<_, crate::model::Error>((head, found))
        };
        assert_eq!(read(&bytes).unwrap(), (head.clone(), all.clone()));
        for at in 0..bytes.len() {
            let whole = ends.iter().filter(|end| **end <= at).count();
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            for cut in [&bytes[..at], &changed] {
                match read(cut) {
                    Ok(found) => assert_eq!(found, (head.clone(), all[..whole].to_vec()), "byte {at}"),
                    Err(_) => assert!(at < ends[0], "byte {at}"),
                }
            }
        }
    }

    proptest! {
        #[test]
        fn bytes_of_a_stranger_are_an_error_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(HandOver::decode(&bytes).is_err());
            prop_assert!(Numbered::decode(&mut Reader::new(&bytes), &bytes).is_none());
            prop_assert!(NumbersHead::decode(&mut Reader::new(&bytes), &bytes).is_err());
            prop_assert!(Head::decode(&bytes).is_err());
        }
    }
}
