//! The empty daemon: the cost of a FUSE daemon that has every answer ready.
//!
//! The same flags and threads as tierfs (`src/fs/mount/mod.rs`, `kernel.rs`). Every read is
//! answered from one buffer that is never cold: byte i of every file is byte i of [`hot`].

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    Request, Session,
};

use crate::Result;

/// The content of a file repeats after this many bytes.
pub const PERIOD: usize = 1 << 20;
/// The largest request of the kernel.
const REQUEST_MAX: usize = 1 << 20;
const TTL: Duration = Duration::from_secs(3600);
const BIG: u64 = 2;
const FIRST_SMALL: u64 = 16;

/// The first bytes of every file.
pub fn hot() -> Vec<u8> {
    let mut bytes = vec![0; PERIOD + REQUEST_MAX];
    let (period, rest) = bytes.split_at_mut(PERIOD);
    crate::values::Random::new(7).fill(period);
    rest.copy_from_slice(&period[..REQUEST_MAX]);
    bytes
}

struct Empty {
    hot: Vec<u8>,
    bytes: u64,
    files: u64,
    small_bytes: u64,
    since: SystemTime,
}

impl Empty {
    fn attr(&self, ino: u64) -> FileAttr {
        let is_root = ino == INodeNo::ROOT.0;
        let size = match ino {
            _ if is_root => 0,
            BIG => self.bytes,
            _ => self.small_bytes,
        };
        FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size.div_ceil(512),
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind: if is_root { FileType::Directory } else { FileType::RegularFile },
            perm: if is_root { 0o755 } else { 0o644 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Empty {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_MAX_PAGES,
            InitFlags::FUSE_CACHE_SYMLINKS,
        ];
        let known = config.capabilities();
        for flag in wanted.into_iter().filter(|flag| known.contains(*flag)) {
            config.add_capabilities(flag).map_err(|unknown| io::Error::other(format!("{unknown:?}")))?;
        }
        config.set_max_background(96).map_err(|most| io::Error::other(format!("at most {most}")))?;
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let ino = match name.to_str() {
            Some("big") => Some(BIG),
            Some(name) => {
                let number = name.strip_prefix('n').and_then(|number| number.parse::<u64>().ok());
                number.filter(|number| *number < self.files).map(|number| FIRST_SMALL + number)
            }
            None => None,
        };
        match ino {
            Some(ino) => reply.entry(&TTL, &self.attr(ino), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino.0));
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH);
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let begin = (offset % PERIOD as u64) as usize;
        let left = self.attr(ino.0).size.saturating_sub(offset);
        let len = u64::from(size).min(left).min(REQUEST_MAX as u64) as usize;
        reply.data(self.hot.get(begin..begin + len).unwrap_or_default());
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }
}

/// `empty MOUNTPOINT BYTES FILES BYTES-OF-EACH`: stays until it is unmounted.
pub fn main(arguments: &[String]) -> Result<()> {
    let [mountpoint, bytes, files, small_bytes] = arguments else { return Err(crate::USAGE.into()) };
    let empty = Empty {
        hot: hot(),
        bytes: bytes.parse()?,
        files: files.parse()?,
        small_bytes: small_bytes.parse()?,
        since: SystemTime::now(),
    };
    let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get());
    let mut config = Config::default();
    config.n_threads = Some(cores.max(2));
    config.clone_fd = true;
    config.mount_options = vec![
        MountOption::FSName("empty".to_owned()),
        MountOption::CUSTOM("subtype=empty".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
    ];
    let session = Session::new(empty, Path::new(mountpoint), &config)?;
    session.spawn()?.join()?;
    Ok(())
}
