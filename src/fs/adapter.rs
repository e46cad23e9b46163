//! Dispatches requests of the kernel: unpack, call, reply.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, FileHandle, Filesystem, FopenFlags, INodeNo, KernelConfig, LockOwner, OpenAccMode,
    OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyPoll, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::control::{self, Operation};
use crate::fs::errno;
use crate::fs::handles::Handle;
use crate::fs::kernel;
use crate::fs::reply::{GENERATION, file_type, nanoseconds, own};
use crate::fs::serve::{Adapter, Durable};
use crate::model::{ErrorKind, NAME_BYTES_MAX};
use crate::open::SetAttr;
use crate::trace;
use crate::vfs::{Ino, Kind, Located, Place};

const STAT_BLOCK_BYTES: u32 = 4096;
impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        if kernel::ask(config, self.stack_depth, &self.offer)? {
            self.passthrough.begin();
        }
        Ok(())
    }

    fn destroy(&mut self) {
        self.waker.end();
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.measured(Operation::Lookup, (parent, name), || {
            let asked = (request.pid(), self.names.changes());
            let found = self.look_up(request.pid(), Ino(parent.0), name.as_bytes());
            match found {
                Ok((ino, Located::Form(view)))
                    if self.second_looks.is_sent(request.pid())
                        && !self.passthrough.is_promised(ino, request.pid()) =>
                {
                    self.form_found_again(asked, (Ino(parent.0), name.as_bytes()), (ino, view), reply);
                }
                found => self.named(reply, asked, found),
            }
        });
    }

    fn forget(&self, _request: &Request, ino: INodeNo, _lookups: u64) {
        self.measured(Operation::Forget, ino, || self.vfs.forget_inode(Ino(ino.0)));
    }

    fn getattr(&self, request: &Request, ino: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        self.measured(Operation::Getattr, ino, || self.stat(request.pid(), reply, ino, handle));
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        self.measured(Operation::Readlink, ino, || {
            let located = self.vfs.locate_known(Ino(ino.0)).or_else(|error| {
                self.found_again(request.pid(), Ino(ino.0), error).map(|found| found.located)
            });
            match located.and_then(|located| located.link_target()) {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(self.failed("readlink", &error)),
            }
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.measured(Operation::Open, ino, || match Ino(ino.0).own().place() {
            Place::Control { .. } => self.open_control(request.uid(), ino, flags, reply),
            _ if Ino(ino.0).is_plain() && flags.acc_mode() != OpenAccMode::O_RDONLY => {
                reply.error(self.only_read((ino, request.uid()), "open", "open to write"));
            }
            _ => self.open_file((request.uid(), request.pid()), Ino(ino.0), flags, reply),
        });
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.measured(Operation::Read, ino, || {
            let Some(open) = self.handles.get(handle.0) else { return reply.error(errno::BAD_HANDLE) };
            match &*open {
                Handle::Control(_, text, _) if !text.is_there() => self.read_made(open, offset, size, reply),
                _ => self.read_file(&open, flags, offset, size, reply),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.measured(Operation::Write, ino, || {
            let Some(open_file) = self.file(handle) else {
                return self.act(request.uid(), handle, data, reply);
            };
            let kills = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
            match self.write_from(&open_file, ino, offset, data, kills) {
                Ok(()) => {
                    trace::note_bytes(data.len() as u64);
                    reply.written(data.len() as u32);
                }
                Err(error) => self.write_refused(&open_file, reply, &error),
            }
        });
    }

    fn flush(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.measured(Operation::Flush, ino, || match self.file(handle) {
            Some(open_file) => self.flush_recognizing(open_file, Durable::No, "flush", reply),
            None => reply.ok(),
        });
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, handle: FileHandle, _data: bool, reply: ReplyEmpty) {
        self.measured(Operation::Fsync, ino, || match self.file(handle) {
            Some(open_file) => self.flush_recognizing(open_file, Durable::Yes, "fsync", reply),
            None => reply.ok(),
        });
    }

    fn poll(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        notifier: PollNotifier,
        events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        self.measured(Operation::Poll, ino, || {
            let always =
                PollEvents::POLLIN | PollEvents::POLLRDNORM | PollEvents::POLLOUT | PollEvents::POLLWRNORM;
            let is_ready = self.is_ready(handle, notifier);
            reply.poll(if is_ready { events & always } else { PollEvents::empty() });
        });
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _data: bool,
        reply: ReplyEmpty,
    ) {
        self.measured(Operation::Fsyncdir, ino, || match self.sync_directory(ino) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.failed("fsync", &error)),
        });
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.measured(Operation::Release, ino, || {
            let open_file = self.file(handle);
            self.mounted.jobs.unwatch(handle.0);
            let last = self.release_handle(Ino(ino.0), handle.0);
            match open_file {
                // Stores to mapped pages arrive after the last flush.
                Some(open_file) if open_file.is_unclosed() => {
                    self.flush_recognizing(open_file, Durable::No, "release", reply);
                }
                _ => reply.ok(),
            }
            self.note_pins(last);
        });
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let located = || {
            let known = self.vfs.locate_known(own(ino));
            let known = known
                .or_else(|error| self.found_again(request.pid(), own(ino), error).map(|found| found.located));
            known.map(|located| (own(ino), located))
        };
        self.measured(Operation::Opendir, ino, || match located() {
            Ok((ino, located @ (Located::Control(_) | Located::Form(_))))
                if self.vfs.attr(ino, &located).kind != Kind::Directory =>
            {
                reply.error(errno::NOT_DIRECTORY);
            }
            Ok((_, Located::Node(view))) if view.node.file().is_some() => reply.error(errno::NOT_DIRECTORY),
            Ok(_) if self.times.listings => {
                reply.opened(FileHandle(0), FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE);
            }
            Ok(_) => reply.opened(FileHandle(0), FopenFlags::empty()),
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
        self.measured(Operation::Readdir, ino, || {
            let listed = self.vfs.list(Ino(ino.0), offset, &mut |listed| {
                let (ino, kind) = (INodeNo(listed.attr.ino.own().0), file_type(listed.attr.kind));
                !reply.add(ino, listed.offset, kind, OsStr::from_bytes(&listed.name))
            });
            match listed {
                Ok(()) => reply.ok(),
                // A directory that was removed while it is open has no names.
                Err(error) if error.kind() == ErrorKind::Gone => reply.ok(),
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
        self.measured(Operation::Readdirplus, ino, || {
            let changes = self.names.changes();
            let listed = self.vfs.list(Ino(ino.0), offset, &mut |listed| {
                let times = self.times.of_listed(&listed.attr, || self.names.may_be_cached(changes));
                let (attr, name) = (self.times.file_attr(&listed.attr), OsStr::from_bytes(&listed.name));
                let shown = INodeNo(listed.attr.ino.own().0);
                !reply.add(shown, listed.offset, name, &times, &attr, GENERATION)
            });
            match listed {
                Ok(()) => reply.ok(),
                // A directory that was removed while it is open has no names.
                Err(error) if error.kind() == ErrorKind::Gone => reply.ok(),
                Err(error) => reply.error(self.failed("readdir", &error)),
            }
        });
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.measured(Operation::Statfs, ino, || match self.vfs.space(Ino(ino.0).own()) {
            Ok(space) => {
                let blocks = |bytes: u64| bytes / u64::from(STAT_BLOCK_BYTES);
                reply.statfs(
                    blocks(space.total),
                    blocks(space.free),
                    blocks(space.available),
                    space.files,
                    space.files_free,
                    STAT_BLOCK_BYTES,
                    NAME_BYTES_MAX as u32,
                    STAT_BLOCK_BYTES,
                );
            }
            Err(error) => reply.error(self.failed("statfs", &error)),
        });
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let asked_by = (request.uid(), request.pid());
        self.measured(Operation::Getxattr, (ino, name), || {
            self.attribute(asked_by, ino, name.as_bytes(), size, reply)
        });
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.measured(Operation::Listxattr, ino, || self.attribute_names(request.pid(), ino, size, reply));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.measured(Operation::Setattr, ino, || {
            if Ino(ino.0).is_plain() {
                return reply.error(self.only_read((ino, request.uid()), "setattr", "change"));
            }
            let (atime, mtime) = (atime.map(nanoseconds), mtime.map(nanoseconds));
            let set = SetAttr { mode, uid, gid, atime, mtime, ..SetAttr::default() };
            let tenant = self.recognized_by_change(ino, size);
            self.recognizing(tenant, "setattr", move |adapter| adapter.set_attr(ino, set, size, reply));
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        self.measured(Operation::Mknod, (parent, name), || {
            if mode & libc::S_IFMT != libc::S_IFREG {
                return reply.error(errno::NO_DEVICES);
            }
            let owner = (request.uid(), request.gid());
            let made = self.vfs.create(Ino(parent.0), name.as_bytes(), mode & !umask, owner);
            self.made("mknod", reply, made);
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.measured(Operation::Mkdir, (parent, name), || {
            let owner = (request.uid(), request.gid());
            let made = self.vfs.make_directory(Ino(parent.0), name.as_bytes(), mode & !umask, owner);
            self.made("mkdir", reply, made);
        });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.measured(Operation::Unlink, (parent, name), || {
            // The next name of a file may tell its content.
            let tenant = self.recognized_by_names(parent, &[name.as_bytes()]);
            let name = name.to_owned();
            self.recognizing(tenant, "unlink", move |adapter| {
                let from = (Ino(parent.0), name.as_bytes());
                adapter.name_gone("unlink", reply, from, || adapter.vfs.unlink(from.0, from.1));
            });
        });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.measured(Operation::Rmdir, (parent, name), || {
            match self.vfs.remove_directory(Ino(parent.0), name.as_bytes()) {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(self.failed("rmdir", &error)),
            }
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.measured(Operation::Symlink, (parent, name), || {
            // The name of a link may tell the content of a blob.
            let tenant = self.recognized_by_names(parent, &[name.as_bytes()]);
            let (owner, target) = ((request.uid(), request.gid()), target.as_os_str().to_owned());
            let name = name.to_owned();
            self.recognizing(tenant, "symlink", move |adapter| {
                let made = adapter.vfs.symlink(Ino(parent.0), name.as_bytes(), target.as_bytes(), owner);
                adapter.made("symlink", reply, made);
            });
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.measured(Operation::Rename, (parent, name), || {
            if flags.intersects(RenameFlags::RENAME_EXCHANGE | RenameFlags::RENAME_WHITEOUT) {
                return reply.error(errno::NO_SUCH_FLAG);
            }
            let keep = flags.contains(RenameFlags::RENAME_NOREPLACE);
            let tenant = self.recognized_by_names(parent, &[name.as_bytes(), new_name.as_bytes()]);
            let (name, new_name, user) = (name.to_owned(), new_name.to_owned(), request.uid());
            self.recognizing(tenant, "rename", move |adapter| {
                let from = (Ino(parent.0), name.as_bytes());
                let to = (Ino(new_parent.0), new_name.as_bytes());
                adapter.name_gone("rename", reply, to, || {
                    let renamed = adapter.vfs.rename(from, to, keep);
                    if let Err(error) = &renamed {
                        control::note_refused_rename(&adapter.mounted, user, from, &new_name, error);
                    }
                    renamed
                });
            });
        });
    }

    fn link(&self, _request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.measured(Operation::Link, (parent, name), || {
            self.made("link", reply, self.vfs.link(own(ino), Ino(parent.0), name.as_bytes()));
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.measured(Operation::Create, (parent, name), || {
            let owner = (request.uid(), request.gid());
            let made = self.vfs.create(Ino(parent.0), name.as_bytes(), mode & !umask, owner);
            self.created(made, OpenFlags(flags), reply);
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.measured(Operation::Setxattr, (ino, name), || {
            trace::note_value(value);
            self.set_attribute(request.uid(), ino, name.as_bytes(), value, reply);
        });
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.measured(Operation::Removexattr, (ino, name), || self.remove_attribute(name.as_bytes(), reply));
    }
}
