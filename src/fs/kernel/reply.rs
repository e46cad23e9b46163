//! Replies to the kernel: values to bytes. A [`Reply`] answers one request, on any thread.
//!
//! The layouts are those of `include/uapi/linux/fuse.h`, and numbers have the byte order of the machine. A reply is a
//! header, `struct fuse_out_header`, and the structure of the kind of request:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 4 | length of the reply |
//! | 4 | 4 | 0, or an error number, negated; only the header is sent then |
//! | 8 | 8 | number of the request |

use std::ops::{BitOr, Sub};
use std::time::Duration;

use crate::fs::kernel::errno::{self, Errno};
use crate::vfs::Ino;

use super::sender::{REPLY_HEADER_BYTES, ReplyHeader, Route, Sender};

/// Bytes of `struct fuse_attr`, `struct fuse_entry_out` and `struct fuse_open_out`.
const ATTRIBUTES_BYTES: usize = 88;
const ENTRY_BYTES: usize = 40 + ATTRIBUTES_BYTES;
const OPENED_BYTES: usize = 16;
/// Bytes of `struct fuse_dirent` before the name. Entries begin at multiples of 8.
const LISTED_BYTES: usize = 24;
const LISTED_ALIGNMENT: usize = 8;
/// Where the type begins in a mode.
const TYPE_SHIFT: u32 = 12;

/// The attributes of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// The inode, and the number that programs see.
    pub node: Ino,
    pub bytes: u64,
    /// Stored size, in units of 512 bytes.
    pub blocks: u64,
    /// Access time, in nanoseconds since 1970.
    pub accessed: i64,
    /// Modification time, in nanoseconds since 1970.
    pub modified: i64,
    /// Time of the last change of the inode, in nanoseconds since 1970.
    pub changed: i64,
    /// The type and the permission bits.
    pub mode: u32,
    pub links: u32,
    pub user: u32,
    pub group: u32,
    /// Preferred bytes of a read or a write.
    pub block_bytes: u32,
}

/// An entry of a directory, and how long the kernel may cache it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The attributes of its inode.
    pub attributes: Attributes,
    /// Timeout of the name.
    pub name_for: Duration,
    /// Timeout of the attributes.
    pub attributes_for: Duration,
}

/// How the kernel treats an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenedFlags(u32);

impl OpenedFlags {
    /// The page cache is dropped at the open.
    pub const NONE: OpenedFlags = OpenedFlags(0);
    /// Reads and writes do not use the page cache.
    pub const DIRECT: OpenedFlags = OpenedFlags(1);
    /// The page cache stays as it is.
    pub const KEEPS_CACHE: OpenedFlags = OpenedFlags(1 << 1);
    /// The listing of the directory may be cached.
    pub const CACHES_LISTING: OpenedFlags = OpenedFlags(1 << 3);
    /// A close sends no flush.
    pub const NO_FLUSH: OpenedFlags = OpenedFlags(1 << 5);
    const PASSTHROUGH: OpenedFlags = OpenedFlags(1 << 7);
}

impl BitOr for OpenedFlags {
    type Output = OpenedFlags;

    fn bitor(self, other: OpenedFlags) -> OpenedFlags {
        OpenedFlags(self.0 | other.0)
    }
}

impl Sub for OpenedFlags {
    type Output = OpenedFlags;

    fn sub(self, other: OpenedFlags) -> OpenedFlags {
        OpenedFlags(self.0 & !other.0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The number by which requests name it.
    pub handle: u64,
    /// How the kernel treats it.
    pub flags: OpenedFlags,
    /// The number of the physical file that the kernel reads itself.
    pub backing: Option<u32>,
}

impl Opened {
    /// A file that the daemon reads and writes.
    pub fn served(handle: u64, flags: OpenedFlags) -> Opened {
        Opened { handle, flags, backing: None }
    }
}

/// The numbers of statfs(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    pub blocks: u64,
    pub blocks_free: u64,
    /// Free blocks that users may take.
    pub blocks_available: u64,
    pub files: u64,
    pub files_free: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Longest name in bytes.
    pub name_bytes_max: u32,
}

/// Writes a structure of `BYTES` bytes, field by field.
struct Structure<const BYTES: usize> {
    bytes: [u8; BYTES],
    len: usize,
}

impl<const BYTES: usize> Structure<BYTES> {
    fn new() -> Structure<BYTES> {
        Structure { bytes: [0; BYTES], len: 0 }
    }

    #[inline]
    fn put(mut self, field: &[u8]) -> Structure<BYTES> {
        let end = self.len + field.len();
        debug_assert!(end <= BYTES, "{end} bytes in a structure of {BYTES}");
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(field);
        }
        self.len = end;
        self
    }

    #[inline]
    fn u32(self, number: u32) -> Structure<BYTES> {
        self.put(&number.to_ne_bytes())
    }

    #[inline]
    fn u64(self, number: u64) -> Structure<BYTES> {
        self.put(&number.to_ne_bytes())
    }

    fn done(self) -> [u8; BYTES] {
        debug_assert!(self.len == BYTES, "{} bytes in a structure of {BYTES}", self.len);
        self.bytes
    }
}

/// Seconds since 1970, and the nanoseconds after them.
fn parts_of(time: i64) -> (u64, u32) {
    const SECOND: i64 = 1_000_000_000;
    (time.div_euclid(SECOND).cast_unsigned(), time.rem_euclid(SECOND) as u32)
}

impl Attributes {
    fn layout(&self) -> [u8; ATTRIBUTES_BYTES] {
        let [accessed, modified, changed] = [self.accessed, self.modified, self.changed].map(parts_of);
        Structure::new()
            .u64(self.node.0)
            .u64(self.bytes)
            .u64(self.blocks)
            .u64(accessed.0)
            .u64(modified.0)
            .u64(changed.0)
            .u32(accessed.1)
            .u32(modified.1)
            .u32(changed.1)
            .u32(self.mode)
            .u32(self.links)
            .u32(self.user)
            .u32(self.group)
            // The number of a device.
            .u32(0)
            .u32(self.block_bytes)
            // Flags of submounts and DAX.
            .u32(0)
            .done()
    }
}

impl Entry {
    fn layout(&self) -> [u8; ENTRY_BYTES] {
        Structure::new()
            .u64(self.attributes.node.0)
            // The generation: an inode number means the same for as long as the kernel knows it.
            .u64(0)
            .u64(self.name_for.as_secs())
            .u64(self.attributes_for.as_secs())
            .u32(self.name_for.subsec_nanos())
            .u32(self.attributes_for.subsec_nanos())
            .put(&self.attributes.layout())
            .done()
    }
}

impl Opened {
    fn layout(&self) -> [u8; OPENED_BYTES] {
        let mode = if self.backing.is_some() { OpenedFlags::PASSTHROUGH } else { OpenedFlags::NONE };
        Structure::new().u64(self.handle).u32((self.flags | mode).0).u32(self.backing.unwrap_or(0)).done()
    }
}

/// The entries of a listing, in the place of a reply.
pub struct Listing<'a> {
    place: &'a mut [u8],
    len: usize,
}

impl<'a> Listing<'a> {
    /// A listing without entries, in the place that the kernel asked for.
    pub fn new(place: &'a mut [u8]) -> Listing<'a> {
        Listing { place, len: 0 }
    }

    /// Bytes of the entries.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// Adds the name of an inode, if it has room. The listing continues at `next`.
    pub fn add(&mut self, shown: Ino, mode: u32, next: u64, name: &[u8]) -> bool {
        self.add_after(&[], shown, mode, next, name)
    }

    /// Adds the name of an inode with its entry, if it has room. Programs see the number `shown`; that of the entry's
    /// attributes is the kernel's.
    pub fn add_entry(&mut self, entry: &Entry, shown: Ino, next: u64, name: &[u8]) -> bool {
        self.add_after(&entry.layout(), shown, entry.attributes.mode, next, name)
    }

    /// Adds a `struct fuse_dirent` after these bytes.
    fn add_after(&mut self, before: &[u8], shown: Ino, mode: u32, next: u64, name: &[u8]) -> bool {
        let Ok(name_len) = u32::try_from(name.len()) else { return false };
        let head = before.len() + LISTED_BYTES;
        let len = (head + name.len()).next_multiple_of(LISTED_ALIGNMENT);
        let Some(place) = self.place.get_mut(self.len..self.len + len) else { return false };
        let listed: [u8; LISTED_BYTES] =
            Structure::new().u64(shown.0).u64(next).u32(name_len).u32(mode >> TYPE_SHIFT & 15).done();
        let (to_before, rest) = place.split_at_mut(before.len());
        let (to_listed, rest) = rest.split_at_mut(LISTED_BYTES);
        let (to_name, padding) = rest.split_at_mut(name.len());
        to_before.copy_from_slice(before);
        to_listed.copy_from_slice(&listed);
        to_name.copy_from_slice(name);
        padding.fill(0);
        self.len += len;
        true
    }
}

/// The answer to one request. One that is dropped unsent answers EIO, since the program would wait for ever.
pub struct Reply {
    unique: u64,
    /// `None` once it was used.
    route: Option<Route>,
}

impl Reply {
    /// The answer to the request with this number.
    pub fn new(unique: u64, route: Route) -> Reply {
        Reply { unique, route: Some(route) }
    }

    fn header(&self, error: Option<Errno>, len: usize) -> ReplyHeader {
        // The kernel compares the length with that of the bytes, so one that is cut off is refused there.
        Structure::new()
            .u32((REPLY_HEADER_BYTES + len) as u32)
            .u32(error.map_or(0, |error| -error.number()).cast_unsigned())
            .u64(self.unique)
            .done()
    }

    fn send(mut self, body: &[u8]) {
        let header = self.header(None, body.len());
        self.finish(|route| route.send(&header, body));
    }

    fn finish(&mut self, send: impl FnOnce(&mut Route) -> std::io::Result<()>) {
        let Some(mut route) = self.route.take() else { return };
        match send(&mut route) {
            Ok(()) => {}
            // The request has ended meanwhile, because its program was killed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                log::debug!("the kernel no longer waits for this reply: {error}");
            }
            Err(error) => log::error!("a reply to the kernel: {error}"),
        }
    }

    /// Says that the request failed.
    pub fn error(mut self, error: Errno) {
        let header = self.header(Some(error), 0);
        self.finish(|route| route.send(&header, &[]));
    }

    /// Says that it is done.
    pub fn ok(self) {
        self.send(&[]);
    }

    /// Ends a request that has no reply.
    pub fn withhold(mut self) {
        drop(self.route.take());
    }

    /// Replies with bytes of a file, a link or an attribute.
    pub fn data(self, bytes: &[u8]) {
        self.send(bytes);
    }

    /// The place from which `len` bytes can be sent. `None` if the kernel does not take as many.
    pub fn place(&mut self, len: u32) -> Option<&mut [u8]> {
        self.route.as_mut()?.place(len as usize)
    }

    /// Replies with the first `count` bytes of the [`place`](Self::place).
    pub fn placed(mut self, count: usize) {
        let header = self.header(None, count);
        self.finish(|route| route.send_placed(&header, count));
    }

    /// Replies with the inode of a name.
    pub fn entry(self, entry: &Entry) {
        self.send(&entry.layout());
    }

    /// Replies with attributes, which the kernel may cache for a while.
    pub fn attributes(self, valid_for: Duration, attributes: &Attributes) {
        let body: [u8; 16 + ATTRIBUTES_BYTES] = Structure::new()
            .u64(valid_for.as_secs())
            .u32(valid_for.subsec_nanos())
            .u32(0)
            .put(&attributes.layout())
            .done();
        self.send(&body);
    }

    /// Replies with an open file.
    pub fn opened(self, opened: &Opened) {
        self.send(&opened.layout());
    }

    /// Replies with a file that was created and opened.
    pub fn created(self, entry: &Entry, opened: &Opened) {
        let body: [u8; ENTRY_BYTES + OPENED_BYTES] =
            Structure::new().put(&entry.layout()).put(&opened.layout()).done();
        self.send(&body);
    }

    /// Replies with the number of bytes that were written.
    pub fn written(self, bytes: u32) {
        self.number(bytes);
    }

    /// Replies with the length of an attribute, or of a list of names.
    pub fn length(self, bytes: u32) {
        self.number(bytes);
    }

    /// Replies with the events that a file is ready for.
    pub fn polled(self, events: u32) {
        self.number(events);
    }

    /// Replies with the number of bytes that were copied, as the request has it.
    pub fn copied(self, bytes: u64, is_wide: bool) {
        match u32::try_from(bytes) {
            Ok(bytes) if !is_wide => self.number(bytes),
            _ => self.send(&bytes.to_ne_bytes()),
        }
    }

    /// Replies with an offset in a file.
    pub fn offset(self, offset: u64) {
        self.send(&offset.to_ne_bytes());
    }

    /// A number, and four bytes that are not used.
    fn number(self, number: u32) {
        let body: [u8; 8] = Structure::new().u32(number).u32(0).done();
        self.send(&body);
    }

    /// Replies with the numbers of statfs(2).
    pub fn space(self, space: &Space) {
        let body: [u8; 80] = Structure::new()
            .u64(space.blocks)
            .u64(space.blocks_free)
            .u64(space.blocks_available)
            .u64(space.files)
            .u64(space.files_free)
            .u32(space.block_bytes)
            .u32(space.name_bytes_max)
            // The unit in which blocks are counted.
            .u32(space.block_bytes)
            .put(&[0; 28])
            .done();
        self.send(&body);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let header = self.header(Some(errno::NOT_ANSWERED), 0);
        self.finish(|route| route.send(&header, &[]));
    }
}
