//! Answers each kind of request: unpack, call, reply.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use crate::control::{self, Asker, Operation as Counted};
use crate::fs::answer::caller::Caller;
use crate::fs::answer::dispatcher::{About, Dispatcher, Durable, EntryTimes, LookupBegun};
use crate::fs::kernel::errno;
use crate::fs::kernel::{
    AllocateFlags, CopyRange, Forgotten, ForgottenInode, Listing, OpenFlags, Opened, OpenedFlags, Operation,
    RenameFlags, Reply, Request, Service, SetAttributes, SetTime, Space,
};
use crate::fs::state::earlier::Before;
use crate::fs::state::failure::guarded;
use crate::fs::state::handles::Handle;
use crate::fs::state::in_progress;
use crate::fs::state::times::type_bits;
use crate::model::{Error, ErrorKind, NAME_BYTES_MAX, Result};
use crate::store::disk::files::past_cache;
use crate::store::is_program_attribute;
use crate::store::now_nanoseconds;
use crate::trace;
use crate::vfs::open::SetAttr;
use crate::vfs::{Allocate, ChildName, Ino, Invalidation, Kind, Listed, Located, Place, Whence};

const STAT_BLOCK_BYTES: u32 = 4096;
/// The events for which files are always ready.
const ALWAYS_READY: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLOUT | libc::POLLWRNORM;

/// A write to an open file.
struct Write<'a> {
    handle: u64,
    offset: u64,
    data: &'a [u8],
    kills_setid: bool,
    flags: OpenFlags,
}

/// Bytes of a page of the kernel's page cache.
const PAGE_BYTES: usize = 4096;

impl Service for Dispatcher {
    fn waits_for_network(&self) -> bool {
        self.vfs.store().has_far_files()
    }

    fn answer(&self, request: Request<'_>, reply: Reply) {
        if let Err(error) = self.prepare(&request) {
            return reply.error(error);
        }
        let Request { node, user, group, thread, operation, .. } = request;
        let by = Caller { user, group, thread };
        let child = |name| ChildName { parent: node, name };
        match operation {
            Operation::Lookup { name } => {
                self.measured(Counted::Lookup, child(name), || self.lookup(by, child(name), reply));
            }
            Operation::Forget { replies } => self.forget([ForgottenInode { node, replies }], reply),
            Operation::BatchForget(inodes) => self.forget(Forgotten::inodes(inodes), reply),
            Operation::GetAttributes { handle } => {
                self.measured(Counted::Getattr, node, || self.stat(thread, reply, node, handle));
            }
            Operation::SetAttributes(set) => {
                self.measured(Counted::Setattr, node, || self.set_attributes(user, node, set, reply));
            }
            Operation::ReadLink => {
                self.measured(Counted::Readlink, node, || self.read_link(thread, node, reply));
            }
            Operation::Symlink { name, target } => {
                self.measured(Counted::Symlink, child(name), || {
                    self.symlink(by, child(name), target, reply);
                });
            }
            Operation::MakeNode { name, mode, umask } => {
                self.measured(Counted::Mknod, child(name), || {
                    self.make_node(by, child(name), mode, umask, reply);
                });
            }
            Operation::MakeDirectory { name, mode, umask } => {
                self.measured(Counted::Mkdir, child(name), || {
                    let made = self.vfs.make_directory(node, name, mode & !umask, by.owner());
                    self.made("mkdir", reply, self.noted(user, child(name), "make", made));
                });
            }
            Operation::Unlink { name } => {
                self.measured(Counted::Unlink, child(name), || self.unlink(user, child(name), reply));
            }
            Operation::RemoveDirectory { name } => {
                self.measured(Counted::Rmdir, child(name), || {
                    let removed = self.vfs.remove_directory(node, name, user);
                    self.done("rmdir", reply, self.noted(user, child(name), "remove", removed));
                });
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                self.measured(Counted::Rename, child(name), || {
                    let to = ChildName { parent: new_parent, name: new_name };
                    self.rename(user, child(name), to, flags, reply);
                });
            }
            Operation::Link { node: target, new_name } => {
                self.measured(Counted::Link, child(new_name), || {
                    self.link(user, target.own(), child(new_name), reply);
                });
            }
            Operation::Open { flags } => {
                self.measured(Counted::Open, node, || self.open(by, node, flags, reply));
            }
            Operation::Create { name, mode, umask, flags } => {
                self.measured(Counted::Create, child(name), || {
                    let made = self.vfs.create(node, name, mode & !umask, by.owner());
                    self.created(self.noted(user, child(name), "make", made), flags, reply);
                });
            }
            Operation::CreateNameless { mode, umask, flags } => {
                self.measured(Counted::Create, node, || {
                    let made = self.vfs.create_nameless(node, mode & !umask, by.owner());
                    self.created_nameless(made, flags, reply);
                });
            }
            Operation::Read { handle, offset, size, flags } => {
                self.measured(Counted::Read, node, || self.read(node, handle, flags, offset, size, reply));
            }
            Operation::Write { handle, offset, data, kills_setid, flags } => {
                self.measured(Counted::Write, node, || {
                    self.write(user, node, Write { handle, offset, data, kills_setid, flags }, reply);
                });
            }
            Operation::Allocate { handle, offset, bytes, flags } => {
                self.measured(Counted::Write, node, || self.allocate(handle, offset, bytes, flags, reply));
            }
            Operation::Seek { handle, offset, whence } => {
                self.measured(Counted::Lseek, node, || self.seek(node, handle, offset, whence, reply));
            }
            Operation::CopyRange(range) => {
                self.measured(Counted::CopyFileRange, node, || self.copy_range(user, range, reply));
            }
            Operation::Flush { handle } => {
                self.measured(Counted::Flush, node, || match self.file(handle) {
                    // The kernel then asks no more.
                    None if self.handles.by_inode().is_on() => reply.error(errno::NOT_SERVED),
                    Some(open_file) => {
                        self.handles.get(handle).iter().for_each(|open| open.closed());
                        self.flush_recognizing(open_file, Durable::No, "flush", reply);
                    }
                    None => reply.ok(),
                });
            }
            Operation::Fsync { handle } => {
                self.measured(Counted::Fsync, node, || match self.file(handle) {
                    Some(open_file) => self.flush_recognizing(open_file, Durable::Yes, "fsync", reply),
                    None => reply.ok(),
                });
            }
            Operation::Release { handle } => {
                self.measured(Counted::Release, node, || self.release(node, handle, reply));
            }
            Operation::OpenDirectory => {
                self.measured(Counted::Opendir, node, || self.open_directory(thread, node, reply));
            }
            Operation::ReadDirectory { offset, size } => {
                self.measured(Counted::Readdir, node, || self.list(user, node, offset, size, reply));
            }
            Operation::ReadDirectoryPlus { offset, size } => {
                self.measured(Counted::Readdirplus, node, || {
                    self.list_entries(user, node, offset, size, reply)
                });
            }
            Operation::ReleaseDirectory | Operation::Destroy => reply.ok(),
            Operation::FsyncDirectory => {
                self.measured(Counted::Fsyncdir, node, || {
                    self.done("fsync", reply, self.sync_directory(node));
                });
            }
            Operation::Statfs => self.measured(Counted::Statfs, node, || self.statfs(node, reply)),
            Operation::GetXattr { name, size } => {
                self.measured(Counted::Getxattr, About::attribute(node, name), || {
                    self.attribute(by, node, name, size, reply);
                });
            }
            Operation::SetXattr { name, value, flags } => {
                self.measured(Counted::Setxattr, About::attribute(node, name), || {
                    trace::note_value(value);
                    if is_program_attribute(name) {
                        self.set_program_attribute(node, name, value, flags, reply);
                    } else {
                        self.set_attribute(user, node, name, value, reply);
                    }
                });
            }
            Operation::ListXattr { size } => {
                self.measured(Counted::Listxattr, node, || self.attribute_names(thread, node, size, reply));
            }
            Operation::RemoveXattr { name } => {
                self.measured(Counted::Removexattr, About::attribute(node, name), || {
                    if is_program_attribute(name) {
                        self.remove_program_attribute(node, name, reply);
                    } else {
                        self.remove_attribute(Asker { ino: node, user }, name, reply);
                    }
                });
            }
            Operation::Poll { handle, kernel_handle, events } => {
                self.measured(Counted::Poll, node, || {
                    let is_ready = self.is_ready(handle, kernel_handle);
                    reply.polled(if is_ready { events & ALWAYS_READY.cast_unsigned() as u32 } else { 0 });
                });
            }
            // The request that it interrupts is answered in any case.
            Operation::Interrupt => reply.withhold(),
            Operation::Other(_) => reply.error(errno::NOT_SERVED),
        }
    }
}

/// Whether any page of a write, or its part in a page, is zeros.
fn has_page_of_zeros(offset: u64, data: &[u8]) -> bool {
    let until = PAGE_BYTES - (offset % PAGE_BYTES as u64) as usize;
    let (first, rest) = data.split_at(until.min(data.len()));
    std::iter::once(first).chain(rest.chunks(PAGE_BYTES)).any(|part| part.iter().all(|byte| *byte == 0))
}

impl Dispatcher {
    fn done(&self, doing: &str, reply: Reply, done: Result<()>) {
        match done {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.failed(doing, &error)),
        }
    }

    fn lookup(&self, by: Caller, child: ChildName<'_>, reply: Reply) {
        let asked = LookupBegun { thread: by.thread, changes: self.names.changes() };
        if let Some(attr) = self.vfs.look_up_unopened(child.parent, child.name) {
            let times = self.entry_times(&attr, || self.names.may_be_cached(asked.changes));
            return reply.entry(&self.times.entry(&attr, times.name_for, times.attributes_for));
        }
        let tagged = self.vfs.look_up_tag(by.user, child.parent, child.name);
        let found = tagged.unwrap_or_else(|| self.look_up(by.thread, child.parent, child.name));
        if let Ok((ino, Located::Form(view))) = &found
            && let Some(directories) = self.vfs.directories_of_adapter(view)
            && !directories.are_open
        {
            if !by.may_enter_all(&directories.nodes) {
                let hidden =
                    Error::new(ErrorKind::NotFound, "an adapter in a directory that the user may not enter");
                return reply.error(self.failed("lookup", &hidden));
            }
            // The kernel asks again for each user.
            let located = Located::Form(view.clone());
            let attr = self.vfs.attr(*ino, &located);
            let times = EntryTimes { name_for: Duration::ZERO, attributes_for: self.times.of_attr(&attr) };
            return self.reply_entry("lookup", reply, attr, &located, times);
        }
        match found {
            Ok((_, Located::Control(_))) if self.handles.by_inode().is_on() => {
                let text =
                    "a mount with opens=kernel has no control files, which are made when they are opened";
                reply.error(self.failed("lookup", &Error::new(ErrorKind::NotFound, text)));
            }
            Ok((ino, Located::Form(view)))
                if self.second_looks.is_sent(by.thread) && !self.passthrough.is_promised(ino, by.thread) =>
            {
                self.form_found_again(asked, child, ino, view, reply);
            }
            found => self.named(reply, asked, found),
        }
    }

    /// Keeps the reason of a refusal, which a user may ask the directory for.
    fn noted<T>(&self, user: u32, at: ChildName<'_>, doing: &str, done: Result<T>) -> Result<T> {
        done.inspect_err(|error| control::note_refused_name(&self.mounted, user, at, doing, error))
    }

    fn forget(&self, inodes: impl IntoIterator<Item = ForgottenInode>, reply: Reply) {
        for ForgottenInode { node, replies } in inodes {
            self.measured(Counted::Forget, node, || {
                self.handles.by_inode().forget(node);
                self.vfs.forget_inode(node, replies);
            });
        }
        reply.withhold();
    }

    fn set_attributes(&self, user: u32, node: Ino, set: SetAttributes, reply: Reply) {
        if node.is_plain() {
            return reply.error(self.only_read(Asker { ino: node, user }, "setattr", "change"));
        }
        let time = |set: SetTime| match set {
            SetTime::Now => now_nanoseconds(),
            SetTime::At(time) => time,
        };
        let SetAttributes { mode, user: uid, group: gid, bytes, accessed, modified } = set;
        let (atime, mtime) = (accessed.map(time), modified.map(time));
        let set = SetAttr { mode, uid, gid, atime, mtime, ..SetAttr::default() };
        let tenant = self.recognized_by_change(node, bytes);
        self.recognizing(tenant, "setattr", move |dispatcher| {
            dispatcher.set_attr(user, node, set, bytes, reply);
        });
    }

    fn read_link(&self, thread: u32, node: Ino, reply: Reply) {
        let located = self
            .vfs
            .locate_known(node)
            .or_else(|error| self.found_again(thread, node, error).map(|found| found.located));
        match located.and_then(|located| located.link_target()) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(self.failed("readlink", &error)),
        }
    }

    fn symlink(&self, by: Caller, ChildName { parent, name }: ChildName<'_>, target: &[u8], reply: Reply) {
        // The name of a link may tell the content of a blob.
        let tenant = self.recognized_by_names(parent, &[name]);
        let (name, target) = (name.to_owned(), target.to_owned());
        self.recognizing(tenant, "symlink", move |dispatcher| {
            let made = dispatcher.vfs.symlink(parent, &name, &target, by.owner());
            let made = dispatcher.noted(by.user, ChildName { parent, name: &name }, "make", made);
            dispatcher.made("symlink", reply, made);
        });
    }

    fn make_node(
        &self,
        by: Caller,
        ChildName { parent, name }: ChildName<'_>,
        mode: u32,
        umask: u32,
        reply: Reply,
    ) {
        let made = if mode & libc::S_IFMT == libc::S_IFREG {
            self.vfs.create(parent, name, mode & !umask, by.owner())
        } else {
            Err(Error::new(ErrorKind::Denied, "a mount has no pipes, sockets and devices"))
        };
        self.made("mknod", reply, self.noted(by.user, ChildName { parent, name }, "make", made));
    }

    fn link(&self, user: u32, target: Ino, ChildName { parent, name }: ChildName<'_>, reply: Reply) {
        // Its first name tells the content of a file that was made without one.
        let is_nameless = self.vfs.unlinked_open_file(target).is_some();
        let tenant = if is_nameless { self.recognized_by_names(parent, &[name]) } else { None };
        let name = name.to_owned();
        self.recognizing(tenant, "link", move |dispatcher| {
            let made = dispatcher.vfs.link(target, parent, &name);
            let made = dispatcher.noted(user, ChildName { parent, name: &name }, "make", made);
            dispatcher.made("link", reply, made);
        });
    }

    fn unlink(&self, user: u32, ChildName { parent, name }: ChildName<'_>, reply: Reply) {
        // The next name of a file may tell its content.
        let tenant = self.recognized_by_names(parent, &[name]);
        let name = name.to_owned();
        self.recognizing(tenant, "unlink", move |dispatcher| {
            let from = ChildName { parent, name: &name };
            dispatcher.name_gone("unlink", reply, from, || {
                dispatcher.noted(user, from, "remove", dispatcher.vfs.unlink(parent, &name))
            });
        });
    }

    fn rename(
        &self,
        user: u32,
        ChildName { parent, name }: ChildName<'_>,
        to: ChildName<'_>,
        flags: RenameFlags,
        reply: Reply,
    ) {
        if flags.has_others() {
            return reply.error(errno::NO_SUCH_FLAG);
        }
        let tenant = self.recognized_by_rename(ChildName { parent, name }, to);
        let (name, new_parent, new_name) = (name.to_owned(), to.parent, to.name.to_owned());
        self.recognizing(tenant, "rename", move |dispatcher| {
            let from = ChildName { parent, name: &name };
            let to = ChildName { parent: new_parent, name: &new_name };
            dispatcher.name_gone("rename", reply, to, || {
                let renamed = if flags.exchanges() {
                    dispatcher.vfs.exchange(from, to)
                } else {
                    dispatcher.vfs.rename(from, to, flags.keeps())
                };
                if let Err(error) = &renamed {
                    let new_name = OsStr::from_bytes(to.name);
                    control::note_refused_rename(&dispatcher.mounted, user, from, new_name, error);
                }
                renamed
            });
        });
    }

    fn open(&self, by: Caller, node: Ino, flags: OpenFlags, reply: Reply) {
        if self.handles.by_inode().is_on() {
            return reply.error(errno::NOT_SERVED);
        }
        match node.own().place() {
            Place::Control { .. } | Place::FormControl { .. } => {
                self.open_control(by.user, node, flags, reply)
            }
            _ if node.is_plain() && !flags.reads_only() => {
                reply.error(self.only_read(Asker { ino: node, user: by.user }, "open", "open to write"));
            }
            _ => self.open_file(by, node, flags, reply),
        }
    }

    fn read(&self, node: Ino, handle: u64, flags: OpenFlags, offset: u64, size: u32, reply: Reply) {
        if self.handles.by_inode().is_on() {
            return self.read_by_inode(node, flags, offset, size, reply);
        }
        let Some(open) = self.handles.get(handle) else { return reply.error(errno::BAD_HANDLE) };
        match &*open {
            Handle::Control(_, text, _) if !text.is_there() => self.read_made(open, offset, size, reply),
            _ => self.read_file(&open, flags, offset, size, reply),
        }
    }

    fn write(
        &self,
        user: u32,
        node: Ino,
        Write { handle, offset, data, kills_setid, flags }: Write<'_>,
        reply: Reply,
    ) {
        let Some(open_file) = self.file(handle) else { return self.act(user, handle, data, reply) };
        self.handles.get(handle).iter().for_each(|open| open.writes());
        if !flags.is_direct() && has_page_of_zeros(offset, data) {
            // The kernel keeps the page, and a program may map it, though zeros may stay a hole here.
            open_file.note_pages();
        }
        let write = || self.write_from(&open_file, node, offset, data, kills_setid);
        match if flags.is_direct() { past_cache(write) } else { write() } {
            Ok(()) => {
                trace::note_bytes(data.len() as u64);
                reply.written(data.len() as u32);
            }
            Err(error) => self.write_refused(&open_file, reply, &error),
        }
    }

    fn allocate(&self, handle: u64, offset: u64, bytes: u64, flags: AllocateFlags, reply: Reply) {
        let Some(open_file) = self.file(handle).filter(|_| !flags.has_others()) else {
            return reply.error(errno::UNSUPPORTED);
        };
        self.handles.get(handle).iter().for_each(|open| open.writes());
        match self.vfs.allocate(&open_file, offset, bytes, Allocate::of(flags.zeroes(), flags.keeps_size())) {
            Ok(()) => reply.ok(),
            Err(error) => self.write_refused(&open_file, reply, &error),
        }
    }

    /// Copies on a thread of its own, since that may take a while.
    fn copy_range(&self, user: u32, range: CopyRange, reply: Reply) {
        let CopyRange { from_handle, from_offset, to_node, to_handle, to_offset, is_wide, flags, .. } = range;
        // A shorter number has no room for more.
        let bytes = if is_wide { range.bytes } else { range.bytes.min(u64::from(u32::MAX)) };
        // The kernel copies from files of forms and of controls itself.
        let (Some(from), Some(to)) = (self.file(from_handle), self.file(to_handle)) else {
            return reply.error(errno::UNSUPPORTED);
        };
        if flags != 0 {
            return reply.error(errno::NO_SUCH_FLAG);
        }
        self.handles.get(to_handle).iter().for_each(|open| open.writes());
        let dispatcher = self.clone();
        in_progress::on_own_thread(move || {
            guarded(&dispatcher.mounted, "copy_file_range", || {
                let copied = dispatcher.vfs.copy_range(&from, from_offset, &to, to_offset, bytes);
                let nothing = Invalidation::default();
                dispatcher.invalidator.invalidate_meanwhile(&dispatcher.vfs, nothing);
                let done = copied.and_then(|bytes| {
                    // The kernel asks for that with writes only.
                    if user == 0 {
                        Ok(bytes)
                    } else {
                        dispatcher.drop_privilege(to_node.own()).map(|()| bytes)
                    }
                });
                match done {
                    Ok(bytes) => {
                        trace::note_bytes(bytes);
                        reply.copied(bytes, is_wide);
                    }
                    Err(error) => dispatcher.write_refused(&to, reply, &error),
                }
            });
        });
    }

    fn seek(&self, node: Ino, handle: u64, offset: u64, whence: u32, reply: Reply) {
        let whence = match whence.cast_signed() {
            libc::SEEK_DATA => Whence::Data,
            libc::SEEK_HOLE => Whence::Hole,
            _ => return reply.error(errno::NO_SUCH_FLAG),
        };
        let open = if self.handles.by_inode().is_on() {
            self.handle_by_inode(node).ok()
        } else {
            self.handles.get(handle)
        };
        let found = match open.as_deref() {
            Some(Handle::File(open_file, ..)) => self.vfs.seek(open_file, offset, whence),
            Some(Handle::Form(form, _)) => Ok(whence.in_bytes(offset, form.bytes())),
            _ => return reply.error(errno::BAD_HANDLE),
        };
        match found {
            Ok(Some(found)) => reply.offset(found),
            Ok(None) => reply.error(errno::BEHIND_END),
            Err(error) => reply.error(self.failed("lseek", &error)),
        }
    }

    fn release(&self, node: Ino, handle: u64, reply: Reply) {
        let open_file = self.file(handle);
        self.mounted.jobs.unwatch(handle);
        let last = self.release_handle(node, handle);
        match open_file {
            // Stores to mapped pages arrive after the last flush.
            Some(open_file) if open_file.is_unclosed() && !open_file.has_writers() => {
                self.flush_recognizing(open_file, Durable::No, "release", reply);
            }
            _ => reply.ok(),
        }
        self.note_pins(last);
    }

    fn open_directory(&self, thread: u32, node: Ino, reply: Reply) {
        let ino = node.own();
        let known = self.vfs.locate_known(ino);
        let located = known.or_else(|error| self.found_again(thread, ino, error).map(|found| found.located));
        let is_directory = located.map(|located| match &located {
            Located::Control(_) | Located::Form(_) => self.vfs.attr(ino, &located).kind == Kind::Directory,
            Located::Node(view) => view.node.file().is_none(),
            Located::Tags(view) => view.is_directory(),
            _ => true,
        });
        let cached = OpenedFlags::CACHES_LISTING | OpenedFlags::KEEPS_CACHE;
        match is_directory {
            Ok(true) => {
                let flags = if self.times.listings { cached } else { OpenedFlags::NONE };
                reply.opened(&Opened::served(0, flags));
            }
            Ok(false) => reply.error(errno::NOT_DIRECTORY),
            Err(error) => reply.error(self.failed("opendir", &error)),
        }
    }

    fn list(&self, user: u32, node: Ino, offset: u64, size: u32, mut reply: Reply) {
        let Some(place) = reply.place(size) else { return reply.error(errno::TOO_LONG) };
        let mut listing = Listing::new(place);
        let listed = self.names_in(user, node, offset, &mut |listed| {
            let (shown, mode) = (listed.attr.ino.own(), type_bits(listed.attr.kind));
            listing.add(shown, mode, listed.offset, &listed.name)
        });
        let bytes = listing.bytes();
        self.listed(node, listed, bytes, reply);
    }

    fn list_entries(&self, user: u32, node: Ino, offset: u64, size: u32, mut reply: Reply) {
        let Some(place) = reply.place(size) else { return reply.error(errno::TOO_LONG) };
        let mut listing = Listing::new(place);
        let changes = self.names.changes();
        let listed = self.names_in(user, node, offset, &mut |listed| {
            let time = self.times.of_listed(&listed.attr, || self.names.may_be_cached(changes));
            let entry = self.times.entry(&listed.attr, time, time);
            let has_room = listing.add_entry(&entry, listed.attr.ino.own(), listed.offset, &listed.name);
            // The kernel looks at no entry of these two names.
            if has_room && !matches!(listed.name.as_slice(), b"." | b"..") {
                self.vfs.note_listed(listed.attr.ino);
            }
            has_room
        });
        let bytes = listing.bytes();
        self.listed(node, listed, bytes, reply);
    }

    fn names_in(
        &self,
        user: u32,
        node: Ino,
        offset: u64,
        take: &mut dyn FnMut(Listed) -> bool,
    ) -> Result<()> {
        let tags = self.vfs.list_tags(user, node, offset, take);
        tags.unwrap_or_else(|| self.vfs.list(node, offset, take))
    }

    /// Replies with the part of a listing that lies in the place of the reply.
    fn listed(&self, node: Ino, listed: Result<()>, bytes: usize, reply: Reply) {
        match listed {
            Ok(()) => reply.placed(bytes),
            // A directory that was removed while it is open has no names; one that only an earlier daemon knew may have some.
            Err(error)
                if error.kind() == ErrorKind::Gone
                    && (node.is_found_again() || self.handles.earlier().before() == Before::None) =>
            {
                reply.placed(bytes)
            }
            Err(error) => reply.error(self.failed("readdir", &error)),
        }
    }

    fn statfs(&self, node: Ino, reply: Reply) {
        let blocks = |bytes: u64| bytes / u64::from(STAT_BLOCK_BYTES);
        match self.vfs.space(node.own()) {
            Ok(space) => reply.space(&Space {
                blocks: blocks(space.total),
                blocks_free: blocks(space.free),
                blocks_available: blocks(space.available),
                files: space.files,
                files_free: space.files_free,
                block_bytes: STAT_BLOCK_BYTES,
                name_bytes_max: NAME_BYTES_MAX as u32,
            }),
            Err(error) => reply.error(self.failed("statfs", &error)),
        }
    }
}
