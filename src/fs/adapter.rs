//! Requests of the kernel: unpack, call, reply.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};

use crate::control::{self, Cost};
use crate::fs::errno::{self, errno};
use crate::fs::reply::{GENERATION, TTL, file_attr, file_type};
use crate::fs::serve::{Adapter, READ, guarded, send_attribute};
use crate::namespace::{Ino, Located};

/// Requests that the kernel may have waiting without anybody waiting for them.
const BACKGROUND_MAX: u16 = 96;
const STAT_BLOCK_BYTES: u32 = 4096;
const NAME_BYTES_MAX: u32 = 255;

impl Filesystem for Adapter {
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
        // What the kernel does not know is done without.
        let known = config.capabilities();
        for flag in wanted.into_iter().filter(|flag| known.contains(*flag)) {
            config.add_capabilities(flag).map_err(|unknown| io::Error::other(format!("{unknown:?}")))?;
        }
        config
            .set_max_background(BACKGROUND_MAX)
            .map_err(|most| io::Error::other(format!("at most {most}")))?;
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        guarded("lookup", || match self.entry(parent, name) {
            Ok(attr) => reply.entry(&TTL, &file_attr(&attr), GENERATION),
            Err(error) => reply.error(self.failed("lookup", &error)),
        });
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        guarded("getattr", || match self.located(ino) {
            Ok((ino, located)) => reply.attr(&TTL, &file_attr(&self.namespace.attr(ino, &located))),
            Err(error) => reply.error(self.failed("getattr", &error)),
        });
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        guarded("readlink", || match self.namespace.read_link(Ino(ino.0)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(self.failed("readlink", &error)),
        });
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        guarded("open", || {
            if flags.acc_mode() != OpenAccMode::O_RDONLY || flags.0 & libc::O_TRUNC != 0 {
                return reply.error(errno::READ_ONLY);
            }
            match self.open_handle(ino) {
                Ok((handle, flags)) => reply.opened(FileHandle(self.handles.insert(handle)), flags),
                Err(error) => reply.error(self.failed("open", &error)),
            }
        });
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        guarded("read", || {
            let Some(open) = self.handles.get(handle.0) else { return reply.error(errno::BAD_HANDLE) };
            READ.with_borrow_mut(|buffer| {
                if buffer.len() < size as usize {
                    buffer.resize(size as usize, 0);
                }
                let out = buffer.get_mut(..size as usize).unwrap_or_default();
                match self.read_into(&open, offset, out) {
                    Ok(count) => reply.data(out.get(..count).unwrap_or_default()),
                    Err(error) => reply.error(self.failed("read", &error)),
                }
            });
        });
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        guarded("release", || {
            self.handles.remove(handle.0);
            reply.ok();
        });
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        guarded("opendir", || match self.located(ino) {
            Ok((_, Located::Control { place, .. })) if place > 0 => reply.error(errno::NOT_DIRECTORY),
            Ok((_, Located::Node(view))) if view.node.file().is_some() => reply.error(errno::NOT_DIRECTORY),
            Ok(_) => reply.opened(FileHandle(0), FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE),
            Err(error) => reply.error(self.failed("opendir", &error)),
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        guarded("readdir", || {
            let listed = self.namespace.list(Ino(ino.0), offset, &mut |listed| {
                let (ino, kind) = (INodeNo(listed.attr.ino.0), file_type(listed.attr.kind));
                !reply.add(ino, listed.offset, kind, OsStr::from_bytes(&listed.name))
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(self.failed("readdir", &error)),
            }
        });
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        guarded("readdirplus", || {
            let listed = self.namespace.list(Ino(ino.0), offset, &mut |listed| {
                let (attr, name) = (file_attr(&listed.attr), OsStr::from_bytes(&listed.name));
                !reply.add(attr.ino, listed.offset, name, &TTL, &attr, GENERATION)
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(self.failed("readdir", &error)),
            }
        });
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        guarded("statfs", || match self.namespace.store().space() {
            Ok(space) => {
                let blocks = |bytes: u64| bytes / u64::from(STAT_BLOCK_BYTES);
                reply.statfs(
                    blocks(space.total),
                    blocks(space.free),
                    blocks(space.available),
                    space.files,
                    space.files_free,
                    STAT_BLOCK_BYTES,
                    NAME_BYTES_MAX,
                    STAT_BLOCK_BYTES,
                );
            }
            Err(error) => reply.error(self.failed("statfs", &error)),
        });
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        guarded("getxattr", || {
            let found = control::attribute(name.as_bytes()).and_then(|found| Ok((found, self.view(ino)?)));
            let (attribute, view) = match found {
                Ok(found) => found,
                Err(error) => return reply.error(self.failed("getxattr", &error)),
            };
            let namespace = self.namespace.clone();
            let answer = move || match attribute.get(&namespace, &view) {
                Ok(value) => send_attribute(reply, size, value.as_bytes()),
                Err(error) => {
                    log::debug!("getxattr: {error}");
                    reply.error(errno(&error));
                }
            };
            match attribute.cost {
                Cost::Small => answer(),
                // Others must be answered meanwhile.
                Cost::WholeFile => {
                    std::thread::spawn(move || guarded("getxattr", answer));
                }
            }
        });
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        guarded("listxattr", || {
            let names = match self.located(ino) {
                Ok((_, Located::Node(view))) => control::listed(&self.namespace, &view),
                Ok(_) => Ok(Vec::new()),
                Err(error) => Err(error),
            };
            match names {
                Ok(names) => {
                    let list: Vec<u8> = names.iter().flat_map(|name| name.bytes().chain([0])).collect();
                    send_attribute(reply, size, &list);
                }
                Err(error) => reply.error(self.failed("listxattr", &error)),
            }
        });
    }

    fn access(&self, _request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        guarded("access", || match self.located(ino) {
            Ok(_) if mask.contains(AccessFlags::W_OK) => reply.error(errno::READ_ONLY),
            Ok(_) => reply.ok(),
            Err(error) => reply.error(self.failed("access", &error)),
        });
    }

    // The mount takes no writes: each way to ask for one is refused in so many words.

    fn setattr(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.error(errno::READ_ONLY);
    }

    fn mknod(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        let regular = mode & libc::S_IFMT == libc::S_IFREG;
        reply.error(if regular { errno::READ_ONLY } else { errno::NO_DEVICES });
    }

    fn mkdir(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        reply.error(errno::READ_ONLY);
    }

    fn unlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(errno::READ_ONLY);
    }

    fn rmdir(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(errno::READ_ONLY);
    }

    fn symlink(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _target: &Path,
        reply: ReplyEntry,
    ) {
        reply.error(errno::READ_ONLY);
    }

    fn rename(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _new_parent: INodeNo,
        _new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(errno::READ_ONLY);
    }

    fn link(&self, _request: &Request, _ino: INodeNo, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        reply.error(errno::READ_ONLY);
    }

    fn create(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(errno::READ_ONLY);
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        _data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.error(errno::READ_ONLY);
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(errno::READ_ONLY);
    }

    fn setxattr(
        &self,
        _request: &Request,
        _ino: INodeNo,
        name: &OsStr,
        _value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        guarded("setxattr", || match control::may_set(name.as_bytes()) {
            Ok(()) => reply.error(errno::READ_ONLY),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn removexattr(&self, _request: &Request, _ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        guarded("removexattr", || match control::may_set(name.as_bytes()) {
            Ok(()) => reply.error(errno::READ_ONLY),
            Err(error) => reply.error(errno(&error)),
        });
    }
}
