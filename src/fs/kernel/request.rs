//! Requests of the kernel: bytes to a checked [`Request`].
//!
//! The layouts are those of `include/uapi/linux/fuse.h`, protocol 7.31 and later, and numbers have the byte order of the
//! machine. A request is a header, the arguments of its kind, then names that end with a zero byte, or data. The header:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 4 | length of the request |
//! | 4 | 4 | kind (`opcode.rs`) |
//! | 8 | 8 | number of the request, which the reply repeats |
//! | 16 | 8 | inode |
//! | 24 | 4 | user |
//! | 28 | 4 | group |
//! | 32 | 4 | thread of the program; 0 is unknown |
//! | 36 | 4 | not used |

use crate::vfs::Ino;

use super::opcode;

/// Bytes of the header.
pub const REQUEST_HEADER_BYTES: usize = 40;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The number that the reply repeats.
    pub unique: u64,
    /// The inode that it is about; of one about a name, that of the directory.
    pub node: Ino,
    /// The user who makes it.
    pub user: u32,
    /// The group of the user.
    pub group: u32,
    /// The thread of the program; 0 is unknown.
    pub thread: u32,
    /// The action that it asks for.
    pub operation: Operation<'a>,
}

/// The action that a request asks for, with its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields have the names of the arguments of the system calls")]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        /// How many replies that named the inode are forgotten.
        replies: u64,
    },
    BatchForget(Forgotten<'a>),
    GetAttributes {
        handle: Option<u64>,
    },
    SetAttributes(SetAttributes),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: Ino,
        new_name: &'a [u8],
        flags: RenameFlags,
    },
    Link {
        node: Ino,
        new_name: &'a [u8],
    },
    Open {
        flags: OpenFlags,
    },
    Create {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        flags: OpenFlags,
    },
    CreateNameless {
        mode: u32,
        umask: u32,
        flags: OpenFlags,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
        flags: OpenFlags,
    },
    Write {
        handle: u64,
        offset: u64,
        data: &'a [u8],
        kills_setid: bool,
        flags: OpenFlags,
    },
    Allocate {
        handle: u64,
        offset: u64,
        bytes: u64,
        flags: AllocateFlags,
    },
    Seek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
    CopyRange(CopyRange),
    Flush {
        handle: u64,
    },
    Fsync {
        handle: u64,
    },
    Release {
        handle: u64,
    },
    OpenDirectory,
    ReadDirectory {
        offset: u64,
        size: u32,
    },
    ReadDirectoryPlus {
        offset: u64,
        size: u32,
    },
    ReleaseDirectory,
    FsyncDirectory,
    Statfs,
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: AttributeFlags,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Poll {
        handle: u64,
        kernel_handle: u64,
        events: u32,
    },
    Interrupt,
    Destroy,
    /// A kind that is not served, by its number.
    Other(u32),
}

/// Inodes that the kernel forgets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forgotten<'a> {
    /// `struct fuse_forget_one` of each: the inode, and a number of replies that named it.
    entries: &'a [u8],
}

/// An inode that the kernel forgets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForgottenInode {
    pub node: Ino,
    /// How many replies that named it are forgotten.
    pub replies: u64,
}

impl<'a> Forgotten<'a> {
    const ENTRY_BYTES: usize = 16;

    pub fn inodes(self) -> impl Iterator<Item = ForgottenInode> + use<'a> {
        let inode = |entry: &[u8]| {
            let node = Ino(u64::from_ne_bytes(*entry.first_chunk()?));
            Some(ForgottenInode { node, replies: u64::from_ne_bytes(*entry.last_chunk()?) })
        };
        self.entries.chunks_exact(Forgotten::ENTRY_BYTES).filter_map(inode)
    }
}

/// A time that a program sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// That of the request.
    Now,
    At(i64),
}

/// The attributes that a request sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttributes {
    pub mode: Option<u32>,
    pub user: Option<u32>,
    pub group: Option<u32>,
    pub bytes: Option<u64>,
    pub accessed: Option<SetTime>,
    pub modified: Option<SetTime>,
}

/// A copy from one open file to another. The node of the request is the one that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyRange {
    pub from_handle: u64,
    pub from_offset: u64,
    pub to_node: Ino,
    pub to_handle: u64,
    pub to_offset: u64,
    pub bytes: u64,
    /// Flags of copy_file_range(2), which defines none: a call with a flag is refused.
    pub flags: u64,
    /// Whether the reply has a number of 64 bits.
    pub is_wide: bool,
}

/// The flags of open(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// Whether the file is opened to be read only. So is one of mode 3, which may be neither read nor written.
    pub fn reads_only(self) -> bool {
        matches!(self.mode(), libc::O_RDONLY | libc::O_ACCMODE)
    }

    /// Whether the file is opened to be written only.
    pub fn writes_only(self) -> bool {
        self.mode() == libc::O_WRONLY
    }

    /// Whether reads and writes go past the page cache (`O_DIRECT`).
    pub fn is_direct(self) -> bool {
        self.0 & libc::O_DIRECT.cast_unsigned() != 0
    }

    /// Whether the file must not exist yet (`O_EXCL`).
    pub fn is_exclusive(self) -> bool {
        self.0 & libc::O_EXCL.cast_unsigned() != 0
    }

    fn mode(self) -> i32 {
        self.0.cast_signed() & libc::O_ACCMODE
    }
}

/// The flags of renameat2(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RenameFlags(pub u32);

impl RenameFlags {
    const NO_REPLACE: u32 = 1;
    const EXCHANGE: u32 = 2;

    /// Whether the new name must not exist (`RENAME_NOREPLACE`).
    pub fn keeps(self) -> bool {
        self.0 & RenameFlags::NO_REPLACE != 0
    }

    /// Whether both names exist and change places (`RENAME_EXCHANGE`).
    pub fn exchanges(self) -> bool {
        self.0 == RenameFlags::EXCHANGE
    }

    /// Whether it asks for more than one of these: a whiteout, for example.
    pub fn has_others(self) -> bool {
        !matches!(self.0, 0 | RenameFlags::NO_REPLACE | RenameFlags::EXCHANGE)
    }
}

/// The flags of fallocate(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AllocateFlags(pub u32);

impl AllocateFlags {
    const KEEP_SIZE: u32 = 1;
    const PUNCH_HOLE: u32 = 2;
    const ZERO_RANGE: u32 = 16;

    /// Whether the size of the file stays (`FALLOC_FL_KEEP_SIZE`).
    pub fn keeps_size(self) -> bool {
        self.0 & AllocateFlags::KEEP_SIZE != 0
    }

    /// Whether the range becomes zeros (`FALLOC_FL_PUNCH_HOLE`, `FALLOC_FL_ZERO_RANGE`).
    pub fn zeroes(self) -> bool {
        self.0 & (AllocateFlags::PUNCH_HOLE | AllocateFlags::ZERO_RANGE) != 0
    }

    /// Whether it asks for more than that: a range that is cut out, for example.
    pub fn has_others(self) -> bool {
        let known = AllocateFlags::KEEP_SIZE | AllocateFlags::PUNCH_HOLE | AllocateFlags::ZERO_RANGE;
        self.0 & !known != 0
    }
}

/// The flags of setxattr(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AttributeFlags(pub u32);

impl AttributeFlags {
    /// Whether the attribute must not exist (`XATTR_CREATE`).
    pub fn creates(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether it must exist (`XATTR_REPLACE`).
    pub fn replaces(self) -> bool {
        self.0 & 2 != 0
    }
}

/// The bytes are not a request: too short, a length that is not theirs, a name without an end, or an impossible offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// The number of the request, if the kernel waits for the reply to one with this header.
    pub unique: Option<u64>,
}

/// The arguments do not have the form of their kind.
#[derive(Debug)]
struct Wrong;

struct Header {
    len: u32,
    kind: u32,
    unique: u64,
    node: Ino,
    user: u32,
    group: u32,
    thread: u32,
}

/// Takes arguments from the front.
struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Wrong> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Wrong)?;
        self.0 = rest;
        Ok(taken)
    }

    fn skip(&mut self, count: usize) -> Result<(), Wrong> {
        self.bytes(count).map(drop)
    }

    fn array<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], Wrong> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Wrong)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, Wrong> {
        Ok(u32::from_ne_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Wrong> {
        Ok(u64::from_ne_bytes(self.array()?))
    }

    fn node(&mut self) -> Result<Ino, Wrong> {
        Ok(Ino(self.u64()?))
    }

    fn flags(&mut self) -> Result<OpenFlags, Wrong> {
        Ok(OpenFlags(self.u32()?))
    }

    fn header(&mut self) -> Result<Header, Wrong> {
        let (len, kind, unique, node) = (self.u32()?, self.u32()?, self.u64()?, self.node()?);
        let header =
            Header { len, kind, unique, node, user: self.u32()?, group: self.u32()?, thread: self.u32()? };
        self.skip(4)?;
        Ok(header)
    }

    /// A text with a zero byte at its end.
    fn text(&mut self) -> Result<&'a [u8], Wrong> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Wrong)?;
        let text = self.bytes(end)?;
        self.skip(1)?;
        Ok(text)
    }

    /// The name of an entry of a directory.
    fn name(&mut self) -> Result<&'a [u8], Wrong> {
        let name = self.text()?;
        if name.is_empty() || name.contains(&b'/') { Err(Wrong) } else { Ok(name) }
    }

    /// The name of an attribute.
    fn attribute(&mut self) -> Result<&'a [u8], Wrong> {
        let name = self.text()?;
        if name.is_empty() { Err(Wrong) } else { Ok(name) }
    }

    /// The rest, which has this length.
    fn rest(&mut self, len: u32) -> Result<&'a [u8], Wrong> {
        let rest = std::mem::take(&mut self.0);
        if u32::try_from(rest.len()) == Ok(len) { Ok(rest) } else { Err(Wrong) }
    }

    fn handle_of_attributes(&mut self) -> Result<Option<u64>, Wrong> {
        const HAS_HANDLE: u32 = 1;
        let flags = self.u32()?;
        self.skip(4)?;
        let handle = self.u64()?;
        Ok((flags & HAS_HANDLE != 0).then_some(handle))
    }

    fn attributes(&mut self) -> Result<SetAttributes, Wrong> {
        let valid = self.u32()?;
        // Padding and the handle.
        self.skip(4 + 8)?;
        let bytes = self.u64()?;
        // The owner of locks.
        self.skip(8)?;
        let (accessed, modified) = (self.u64()?, self.u64()?);
        // The time of the change is the daemon's own.
        self.skip(8)?;
        let accessed = time(accessed, self.u32()?);
        let modified = time(modified, self.u32()?);
        self.skip(4)?;
        let mode = self.u32()?;
        self.skip(4)?;
        let (user, group) = (self.u32()?, self.u32()?);
        self.skip(4)?;
        let has = |bit: u32| valid & (1 << bit) != 0;
        let set_time = |at: i64, is_set: u32, is_now: u32| {
            has(is_set).then_some(if has(is_now) { SetTime::Now } else { SetTime::At(at) })
        };
        Ok(SetAttributes {
            mode: has(0).then_some(mode),
            user: has(1).then_some(user),
            group: has(2).then_some(group),
            bytes: has(3).then_some(bytes),
            accessed: set_time(accessed, 4, 7),
            modified: set_time(modified, 5, 8),
        })
    }

    fn read(&mut self) -> Result<(u64, u64, u32, OpenFlags), Wrong> {
        let (handle, offset, size) = (self.u64()?, self.u64()?, self.u32()?);
        // Flags of the read, and the owner of locks.
        self.skip(4 + 8)?;
        let flags = self.flags()?;
        self.skip(4)?;
        Ok((handle, offset, size, flags))
    }

    /// `struct fuse_write_in`, and the data.
    fn write(&mut self) -> Result<Operation<'a>, Wrong> {
        const KILLS_SETID: u32 = 1 << 2;
        let (handle, offset, size, flags) = (self.u64()?, in_a_file(self.u64()?)?, self.u32()?, self.u32()?);
        let kills_setid = flags & KILLS_SETID != 0;
        // The owner of locks.
        self.skip(8)?;
        let flags = self.flags()?;
        self.skip(4)?;
        Ok(Operation::Write { handle, offset, data: self.rest(size)?, kills_setid, flags })
    }

    /// `struct fuse_copy_file_range_in`.
    fn copy_range(&mut self, is_wide: bool) -> Result<CopyRange, Wrong> {
        let (from_handle, from_offset) = (self.u64()?, in_a_file(self.u64()?)?);
        let (to_node, to_handle, to_offset) = (self.node()?, self.u64()?, in_a_file(self.u64()?)?);
        let (bytes, flags) = (self.u64()?, self.u64()?);
        Ok(CopyRange { from_handle, from_offset, to_node, to_handle, to_offset, bytes, flags, is_wide })
    }

    /// `struct fuse_batch_forget_in`, and the inodes.
    fn forgotten(&mut self) -> Result<Forgotten<'a>, Wrong> {
        let count = self.u32()? as usize;
        self.skip(4)?;
        let bytes = count.checked_mul(Forgotten::ENTRY_BYTES).ok_or(Wrong)?;
        Ok(Forgotten { entries: self.bytes(bytes)? })
    }
}

/// The begin of a range of a file. Files end before 2^63.
fn in_a_file(offset: u64) -> Result<u64, Wrong> {
    if offset <= i64::MAX.cast_unsigned() { Ok(offset) } else { Err(Wrong) }
}

/// A time in nanoseconds since 1970, or the nearest that has a number. Before 1970 the kernel counts the seconds backwards
/// and the nanoseconds forwards.
fn time(seconds: u64, nanoseconds: u32) -> i64 {
    let seconds = seconds.cast_signed();
    let time = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    i64::try_from(time).unwrap_or(if seconds < 0 { i64::MIN } else { i64::MAX })
}

impl<'a> Request<'a> {
    /// Parses a request as the device gives it.
    /// # Errors
    /// Returns an error if the bytes do not have the form of a request.
    pub fn parse(bytes: &'a [u8]) -> Result<Request<'a>, Malformed> {
        let mut rest = Arguments(bytes);
        let Header { len, kind, unique, node, user, group, thread } =
            rest.header().map_err(|_| Malformed { unique: None })?;
        let malformed = Malformed { unique: opcode::has_reply(kind).then_some(unique) };
        if u32::try_from(bytes.len()) != Ok(len) {
            return Err(malformed);
        }
        let operation = Operation::parse(kind, &mut rest).map_err(|_| malformed)?;
        Ok(Request { unique, node, user, group, thread, operation })
    }
}

impl<'a> Operation<'a> {
    fn parse(kind: u32, from: &mut Arguments<'a>) -> Result<Operation<'a>, Wrong> {
        Ok(match kind {
            opcode::LOOKUP => Operation::Lookup { name: from.name()? },
            opcode::FORGET => Operation::Forget { replies: from.u64()? },
            opcode::GETATTR => Operation::GetAttributes { handle: from.handle_of_attributes()? },
            opcode::SETATTR => Operation::SetAttributes(from.attributes()?),
            opcode::READLINK => Operation::ReadLink,
            opcode::SYMLINK => Operation::Symlink { name: from.name()?, target: from.text()? },
            opcode::MKNOD => {
                let mode = from.u32()?;
                // The number of the device.
                from.skip(4)?;
                let umask = from.u32()?;
                from.skip(4)?;
                Operation::MakeNode { name: from.name()?, mode, umask }
            }
            opcode::MKDIR => {
                let (mode, umask) = (from.u32()?, from.u32()?);
                Operation::MakeDirectory { name: from.name()?, mode, umask }
            }
            opcode::UNLINK => Operation::Unlink { name: from.name()? },
            opcode::RMDIR => Operation::RemoveDirectory { name: from.name()? },
            opcode::RENAME => {
                let (new_parent, flags) = (from.node()?, RenameFlags::default());
                Operation::Rename { name: from.name()?, new_parent, new_name: from.name()?, flags }
            }
            opcode::RENAME2 => {
                let (new_parent, flags) = (from.node()?, RenameFlags(from.u32()?));
                from.skip(4)?;
                Operation::Rename { name: from.name()?, new_parent, new_name: from.name()?, flags }
            }
            opcode::LINK => Operation::Link { node: from.node()?, new_name: from.name()? },
            opcode::OPEN => {
                let flags = from.flags()?;
                from.skip(4)?;
                Operation::Open { flags }
            }
            opcode::CREATE => {
                let (flags, mode, umask) = (from.flags()?, from.u32()?, from.u32()?);
                from.skip(4)?;
                Operation::Create { name: from.name()?, mode, umask, flags }
            }
            opcode::TMPFILE => {
                let (flags, mode, umask) = (from.flags()?, from.u32()?, from.u32()?);
                from.skip(4)?;
                // The name of the kernel's own entry, which is that of no file.
                from.text()?;
                Operation::CreateNameless { mode, umask, flags }
            }
            opcode::READ => {
                let (handle, offset, size, flags) = from.read()?;
                Operation::Read { handle, offset: in_a_file(offset)?, size, flags }
            }
            opcode::WRITE => from.write()?,
            opcode::FALLOCATE => {
                let (handle, offset, bytes) = (from.u64()?, from.u64()?, from.u64()?);
                let flags = AllocateFlags(from.u32()?);
                // Padding.
                from.skip(4)?;
                Operation::Allocate { handle, offset: in_a_file(offset)?, bytes, flags }
            }
            opcode::LSEEK => {
                let (handle, offset, whence) = (from.u64()?, in_a_file(from.u64()?)?, from.u32()?);
                // Padding.
                from.skip(4)?;
                Operation::Seek { handle, offset, whence }
            }
            opcode::COPY_FILE_RANGE => Operation::CopyRange(from.copy_range(false)?),
            opcode::COPY_FILE_RANGE_64 => Operation::CopyRange(from.copy_range(true)?),
            opcode::FLUSH => {
                let handle = from.u64()?;
                // Padding and the owner of locks.
                from.skip(8 + 8)?;
                Operation::Flush { handle }
            }
            opcode::FSYNC => {
                let handle = from.u64()?;
                // Flags and padding.
                from.skip(8)?;
                Operation::Fsync { handle }
            }
            opcode::RELEASE => {
                let handle = from.u64()?;
                // Flags of the file and of the release, the owner of locks.
                from.skip(8 + 8)?;
                Operation::Release { handle }
            }
            opcode::OPENDIR => {
                from.skip(8)?;
                Operation::OpenDirectory
            }
            opcode::READDIR => {
                let (_, offset, size, _) = from.read()?;
                Operation::ReadDirectory { offset, size }
            }
            opcode::READDIRPLUS => {
                let (_, offset, size, _) = from.read()?;
                Operation::ReadDirectoryPlus { offset, size }
            }
            opcode::RELEASEDIR => {
                from.skip(8 + 8 + 8)?;
                Operation::ReleaseDirectory
            }
            opcode::FSYNCDIR => {
                from.skip(8 + 8)?;
                Operation::FsyncDirectory
            }
            opcode::STATFS => Operation::Statfs,
            opcode::GETXATTR => {
                let size = from.u32()?;
                from.skip(4)?;
                Operation::GetXattr { name: from.attribute()?, size }
            }
            opcode::SETXATTR => {
                let (size, flags) = (from.u32()?, AttributeFlags(from.u32()?));
                Operation::SetXattr { name: from.attribute()?, value: from.rest(size)?, flags }
            }
            opcode::LISTXATTR => {
                let size = from.u32()?;
                from.skip(4)?;
                Operation::ListXattr { size }
            }
            opcode::REMOVEXATTR => Operation::RemoveXattr { name: from.attribute()? },
            opcode::POLL => {
                let (handle, kernel_handle) = (from.u64()?, from.u64()?);
                // Whether the kernel wants to be told.
                from.skip(4)?;
                Operation::Poll { handle, kernel_handle, events: from.u32()? }
            }
            opcode::INTERRUPT => {
                // The number of the request that is interrupted.
                from.skip(8)?;
                Operation::Interrupt
            }
            opcode::BATCH_FORGET => Operation::BatchForget(from.forgotten()?),
            opcode::DESTROY => Operation::Destroy,
            other => Operation::Other(other),
        })
    }
}
