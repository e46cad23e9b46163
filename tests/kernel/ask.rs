//! Requests as bytes, and their replies: the kernel's side of the protocol, as the test sees it.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tierfs::fs::{Offline, Options};
use tierfs::store::Store;

use crate::Taker;

/// By then a request is answered, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub const LOOKUP: u32 = 1;
pub const GETATTR: u32 = 3;
pub const SETATTR: u32 = 4;
pub const READLINK: u32 = 5;
pub const SYMLINK: u32 = 6;
pub const MKNOD: u32 = 8;
pub const MKDIR: u32 = 9;
pub const UNLINK: u32 = 10;
pub const RMDIR: u32 = 11;
pub const RENAME: u32 = 12;
pub const LINK: u32 = 13;
pub const OPEN: u32 = 14;
pub const READ: u32 = 15;
pub const WRITE: u32 = 16;
pub const STATFS: u32 = 17;
pub const RELEASE: u32 = 18;
pub const FSYNC: u32 = 20;
pub const SETXATTR: u32 = 21;
pub const GETXATTR: u32 = 22;
pub const LISTXATTR: u32 = 23;
pub const REMOVEXATTR: u32 = 24;
pub const FLUSH: u32 = 25;
pub const OPENDIR: u32 = 27;
pub const READDIR: u32 = 28;
pub const RELEASEDIR: u32 = 29;
pub const FSYNCDIR: u32 = 30;
pub const CREATE: u32 = 35;
pub const POLL: u32 = 40;
pub const READDIRPLUS: u32 = 44;
pub const RENAME2: u32 = 45;
pub const LSEEK: u32 = 46;
pub const COPY_FILE_RANGE: u32 = 47;
pub const COPY_FILE_RANGE_64: u32 = 53;

/// The inode that is mounted.
pub const ROOT: u64 = 1;

/// A file system without a kernel, which the test sends requests to.
pub struct Kernel {
    offline: Offline,
    unique: Cell<u64>,
}

/// Numbers as the protocol has them.
pub fn numbers(of: &[u32]) -> Vec<u8> {
    of.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

pub fn long(number: u64) -> Vec<u8> {
    number.to_ne_bytes().to_vec()
}

/// A name with its end.
pub fn name(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0"].concat()
}

/// `struct fuse_read_in`.
pub fn range(handle: u64, offset: u64, size: u32) -> Vec<u8> {
    [long(handle), long(offset), numbers(&[size, 0]), long(0), numbers(&[0, 0])].concat()
}

/// `struct fuse_write_in` and the data.
pub fn data(handle: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    [range(handle, offset, data.len() as u32), data.to_vec()].concat()
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The parts of `struct fuse_entry_out` that tests compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    pub node: u64,
    pub bytes: u64,
    pub mode: u32,
}

impl Found {
    /// Of an entry, whose attributes begin after 40 bytes.
    fn of(entry: &[u8]) -> Found {
        Found { node: u64_at(entry, 0), bytes: u64_at(entry, 48), mode: u32_at(entry, 100) }
    }

    pub fn is_directory(self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }
}

impl Kernel {
    pub fn new(store: Arc<Store>) -> Kernel {
        let offline = Offline::new(store, &Options::default()).unwrap();
        Kernel { offline, unique: Cell::new(1) }
    }

    /// Sends bytes as they are. Returns the replies that come until the file system has dropped the sender.
    pub fn send(&self, request: &[u8]) -> Vec<Vec<u8>> {
        let (taker, taken) = Taker::new();
        self.offline.receive(request, taker);
        let mut replies = Vec::new();
        loop {
            match taken.recv_timeout(PATIENCE) {
                Ok(reply) => replies.push(reply),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return replies,
                Err(error) => panic!("no answer to {request:?}: {error}"),
            }
        }
    }

    /// Sends a request. Returns the replies.
    pub fn replies(&self, opcode: u32, node: u64, body: &[u8]) -> Vec<Vec<u8>> {
        let unique = self.unique.replace(self.unique.get() + 2);
        let len = (40 + body.len()) as u32;
        let caller = numbers(&[0, 0, 777, 0]);
        let head = [numbers(&[len, opcode]), long(unique), long(node), caller].concat();
        let replies = self.send(&[&head, body].concat());
        replies.iter().for_each(|reply| assert_eq!(u64_at(reply, 8), unique));
        replies
    }

    /// Sends a request that has one reply. Returns what follows its header, or the error number.
    pub fn ask(&self, opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
        let replies = self.replies(opcode, node, body);
        let [reply] = &replies[..] else { panic!("{} replies to {opcode}", replies.len()) };
        match u32_at(reply, 4).cast_signed() {
            0 => Ok(reply[16..].to_vec()),
            error => {
                assert_eq!(reply.len(), 16);
                Err(-error)
            }
        }
    }

    pub fn entry(&self, opcode: u32, node: u64, body: &[u8]) -> Result<Found, i32> {
        let entry = self.ask(opcode, node, body)?;
        assert!(matches!(entry.len(), 128 | 144), "{} bytes", entry.len());
        Ok(Found::of(&entry))
    }

    /// The inode at a path.
    pub fn find(&self, path: &str) -> Result<Found, i32> {
        let root = Found { node: ROOT, bytes: 0, mode: libc::S_IFDIR };
        path.split('/').try_fold(root, |at, part| self.entry(LOOKUP, at.node, &name(part)))
    }

    /// Opens a file. Returns the handle.
    pub fn open(&self, node: u64, flags: i32) -> Result<u64, i32> {
        self.ask(OPEN, node, &numbers(&[flags.cast_unsigned(), 0])).map(|opened| u64_at(&opened, 0))
    }

    pub fn release(&self, node: u64, handle: u64) {
        let body = [long(handle), numbers(&[0, 0]), long(0)].concat();
        assert_eq!(self.ask(RELEASE, node, &body), Ok(Vec::new()));
    }

    /// Reads a file at once, in requests of `size` bytes.
    pub fn read(&self, node: u64, size: u32) -> Vec<u8> {
        let (handle, mut bytes) = (self.open(node, libc::O_RDONLY).unwrap(), Vec::new());
        loop {
            let part = self.ask(READ, node, &range(handle, bytes.len() as u64, size)).unwrap();
            assert!(part.len() <= size as usize);
            if part.is_empty() {
                break;
            }
            bytes.extend(part);
        }
        self.release(node, handle);
        bytes
    }

    /// The names of a directory, of listings of `size` bytes, with the number and the type of each.
    pub fn list(&self, node: u64, size: u32) -> Vec<(String, u64, u32)> {
        let (mut names, mut next) = (Vec::new(), 0);
        loop {
            let listed = self.ask(READDIR, node, &range(0, next, size)).unwrap();
            assert!(listed.len() <= size as usize);
            let mut rest = &listed[..];
            if rest.is_empty() {
                return names;
            }
            while !rest.is_empty() {
                let len = u32_at(rest, 16) as usize;
                next = u64_at(rest, 8);
                let text = String::from_utf8(rest[24..24 + len].to_vec()).unwrap();
                names.push((text, u64_at(rest, 0), u32_at(rest, 20)));
                rest = &rest[(24 + len).next_multiple_of(8)..];
            }
        }
    }

    /// The names of a directory with their entries, of one listing.
    pub fn entries(&self, node: u64) -> Vec<(String, Found)> {
        let listed = self.ask(READDIRPLUS, node, &range(0, 0, 1 << 16)).unwrap();
        let (mut entries, mut rest) = (Vec::new(), &listed[..]);
        while !rest.is_empty() {
            let (entry, dirent) = rest.split_at(128);
            let len = u32_at(dirent, 16) as usize;
            let text = String::from_utf8(dirent[24..24 + len].to_vec()).unwrap();
            entries.push((text, Found::of(entry)));
            rest = &dirent[(24 + len).next_multiple_of(8)..];
        }
        entries
    }
}
