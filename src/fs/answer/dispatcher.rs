//! The common parts of all requests.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::control::{self, Asker, Mounted, Operation};
use crate::fs::kernel::errno::Errno;
use crate::fs::kernel::notify::Notifier;
use crate::fs::kernel::{OpenFlags, Opened, OpenedFlags, Reply};
use crate::fs::state::decoded_copies::DecodedCache;
use crate::fs::state::failure::{failed, guarded};
use crate::fs::state::handles::{Handle, Handles};
use crate::fs::state::in_progress;
use crate::fs::state::invalidate::Invalidator;
use crate::fs::state::names::Names;
use crate::fs::state::passthrough::Passthrough;
use crate::fs::state::recognition::Recognition;
use crate::fs::state::second_look::{Found, SecondLooks};
use crate::fs::state::times::{ShownOwner, Times};
use crate::fs::state::verify_on_open::VerifyOnOpen;
use crate::model::{Error, ErrorKind, Result};
use crate::store::Access;
use crate::trace;
use crate::vfs::open::{OpenFile, SetAttr, has_setid};
use crate::vfs::{Attr, CacheMode, ChildName, FileView, Ino, Invalidation, Kind, Located, Vfs};

/// How often a name is looked up that leads to other files all the time.
pub(in crate::fs) const LOOKS_MAX: u32 = 8;

/// Durability of a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::fs) enum Durable {
    /// Survives the end of this process.
    No,
    /// Survives a power cut too.
    Yes,
}

/// The inode of a request, and the name in it, of an entry or an attribute, if there is one.
pub(in crate::fs) struct About<'a>(Ino, Option<&'a [u8]>);

impl From<Ino> for About<'_> {
    fn from(ino: Ino) -> Self {
        About(ino, None)
    }
}

impl<'a> From<ChildName<'a>> for About<'a> {
    fn from(child: ChildName<'a>) -> Self {
        About(child.parent, Some(child.name))
    }
}

impl<'a> About<'a> {
    /// An attribute of an inode.
    pub fn attribute(ino: Ino, name: &'a [u8]) -> About<'a> {
        About(ino, Some(name))
    }
}

/// A lookup that has begun.
#[derive(Clone, Copy)]
pub(in crate::fs) struct LookupBegun {
    /// The thread that looks.
    pub thread: u32,
    /// Changes of names before.
    pub changes: u64,
}

/// How long the kernel may cache an entry.
#[derive(Clone, Copy)]
pub(in crate::fs) struct EntryTimes {
    pub name_for: Duration,
    pub attributes_for: Duration,
}

/// The file system, as the kernel calls it.
///
/// `fs/kernel` parses a request and calls `answer` (`requests.rs`) on one of its threads. The dispatcher finds the
/// place in the tree, calls the layer below, carries out the invalidation that the call returns, and replies; each
/// request is counted, timed and traced by `measured`, where a panic becomes EIO. Requests that may take long move to
/// threads of their own with the reply: opens that verify or decode, recognition, control files.
///
/// It is a handle: a clone shares all parts. These are the memory of the mount between requests (`fs/state`), each with
/// its own lock, and none of them calls another.
#[derive(Clone)]
pub(in crate::fs) struct Dispatcher {
    pub vfs: Arc<Vfs>,
    pub mounted: Arc<Mounted>,
    pub handles: Arc<Handles>,
    pub invalidator: Invalidator,
    pub names: Arc<Names>,
    pub times: Times,
    pub passthrough: Arc<Passthrough>,
    pub verify_on_open: Arc<VerifyOnOpen>,
    pub recognition: Recognition,
    pub decoded: Arc<DecodedCache>,
    pub second_looks: Arc<SecondLooks>,
    /// Set once the session has begun.
    pub notifier: Arc<OnceLock<Notifier>>,
}

impl Dispatcher {
    pub fn new(
        vfs: Arc<Vfs>,
        mounted: Arc<Mounted>,
        invalidator: Invalidator,
        decoded: Arc<DecodedCache>,
        owner: ShownOwner,
        handles: Handles,
    ) -> Dispatcher {
        let times = Times::of(vfs.store(), owner);
        let (handles, notifier) = (Arc::new(handles), invalidator.notifier().clone());
        let names = Arc::new(Names::new(times.entries));
        let renamed = names.clone();
        let is_remote = vfs.store().shows_snapshots();
        vfs.store().tell_of_names(
            move || {
                if is_remote { renamed.invalidate_all() } else { renamed.invalidate() }
            },
        );
        let passthrough = Passthrough::new(vfs.store().settings().passthrough_files_max as usize);
        let (passthrough, verify_on_open) = (Arc::new(passthrough), Arc::new(VerifyOnOpen::new()));
        Dispatcher {
            vfs,
            mounted,
            handles,
            invalidator,
            names,
            times,
            passthrough,
            verify_on_open,
            recognition: Recognition::new(),
            decoded,
            second_looks: Arc::default(),
            notifier,
        }
    }

    /// Runs one request, and counts, times and traces it.
    pub fn measured<'a>(&self, operation: Operation, about: impl Into<About<'a>>, request: impl FnOnce()) {
        let began = Instant::now();
        let About(ino, name) = about.into();
        let _in_progress = in_progress::request(operation, ino, began);
        let _span = trace::request(operation.name(), ino.own().0, name);
        guarded(&self.mounted, operation.name(), request);
        self.mounted.counters.done(operation, began.elapsed());
    }

    /// Counts and logs an error. Returns the error number for the program.
    pub fn failed(&self, doing: &str, error: &Error) -> Errno {
        failed(&self.mounted, doing, error)
    }

    pub fn located(&self, ino: Ino) -> Result<(Ino, Located)> {
        let ino = ino.own();
        Ok((ino, self.vfs.locate(ino)?))
    }

    /// Replies with a created node.
    pub fn made(&self, doing: &str, reply: Reply, made: Result<(Ino, Located)>) {
        self.entry(doing, reply, made, || false);
    }

    /// Replies with the node of a name. The kernel may cache a tensor's name if it `may_be_cached`.
    pub fn entry(
        &self,
        doing: &str,
        reply: Reply,
        found: Result<(Ino, Located)>,
        may_be_cached: impl FnOnce() -> bool,
    ) {
        match found {
            Ok((ino, located)) => {
                let attr = self.vfs.attr(ino, &located);
                let times = self.entry_times(&attr, may_be_cached);
                self.reply_entry(doing, reply, attr, &located, times);
            }
            Err(error) => reply.error(self.failed(doing, &error)),
        }
    }

    /// How long the kernel may cache the name and the attributes of a node.
    pub fn entry_times(&self, attr: &Attr, may_be_cached: impl FnOnce() -> bool) -> EntryTimes {
        let name_for = self.times.of_name(attr, may_be_cached);
        EntryTimes { name_for, attributes_for: self.times.of_attr(attr) }
    }

    /// Replies with an entry. All replies to lookups go through this, so that each one that names an inode is counted.
    pub fn reply_entry(&self, doing: &str, reply: Reply, attr: Attr, located: &Located, times: EntryTimes) {
        match self.vfs.name_in_reply(attr, located) {
            Ok(attr) => reply.entry(&self.times.entry(&attr, times.name_for, times.attributes_for)),
            Err(error) => reply.error(self.failed(doing, &error)),
        }
    }

    /// Replies with the attributes of a node.
    pub fn stat(&self, thread: u32, reply: Reply, ino: Ino, handle: Option<u64>) {
        let attr = self.vfs.stat(ino.own()).or_else(|error| {
            // An open file of a form keeps its bytes.
            let open = handle.and_then(|handle| self.handles.get(handle));
            if let Some(Handle::Form(form, _)) = open.as_deref() {
                let located = Located::Form(form.view().clone());
                return Ok(self.vfs.attr(ino.own(), &located).of_bytes(form.bytes()));
            }
            let found = self.found_again(thread, ino.own(), error)?;
            let attr = self.vfs.attr(ino.own(), &found.located);
            Ok(found.form.map_or(attr, |form| attr.of_bytes(form.bytes())))
        });
        match attr {
            Ok(attr) => reply.attributes(self.times.of_number(ino, &attr), &self.times.attributes(&attr)),
            Err(error) => reply.error(self.failed("getattr", &error)),
        }
    }

    /// The target that a thread has found by its second look, if `error` says that it is gone by now. A thread that has not
    /// looked again is told to: the caller replies with the error.
    pub fn found_again(&self, thread: u32, ino: Ino, error: Error) -> Result<Found> {
        if error.kind() != ErrorKind::Gone {
            return Err(error);
        }
        self.second_looks.found(thread, ino).ok_or_else(|| {
            self.second_looks.sent(thread);
            error
        })
    }

    /// Looks a name up for a thread. The result of a second lookup is kept for its thread.
    pub fn look_up(&self, thread: u32, parent: Ino, name: &[u8]) -> Result<(Ino, Located)> {
        let mut found = self.look_up_once(thread, parent, name);
        if !self.second_looks.is_sent(thread) {
            return found;
        }
        for _ in 0..LOOKS_MAX {
            let Ok((ino, located)) = &found else { break };
            let file = match located {
                Located::Node(view) if view.node.file().is_some() => self.vfs.open(view).map(Some),
                _ => Ok(None),
            };
            if let Ok(file) = file {
                let (ino, located) = (*ino, located.clone());
                let name = (parent, name.to_vec());
                self.second_looks.keep(thread, Found { ino, located, name, file, form: None });
                break;
            }
            found = self.look_up_once(thread, parent, name);
        }
        found
    }

    fn look_up_once(&self, thread: u32, parent: Ino, name: &[u8]) -> Result<(Ino, Located)> {
        self.vfs.lookup(parent, name).or_else(|error| {
            self.found_again(thread, parent, error)?;
            // It was empty when it was removed.
            Err(Error::new(ErrorKind::NotFound, "the directory was removed"))
        })
    }

    /// Replies with a file that was created and opened.
    pub fn created(&self, made: Result<(Ino, Located)>, flags: OpenFlags, reply: Reply) {
        let made = made.map_err(|error| match error.kind() {
            // A container created the name meanwhile: the kernel looks it up again and opens it.
            ErrorKind::Exists if !flags.is_exclusive() => Error::new(ErrorKind::Gone, error.to_string()),
            _ => error,
        });
        let opened = made.and_then(|(ino, located)| {
            let (handle, open_flags) = self.open_handle(ino, flags)?;
            let may_be_uncached = flags.writes_only() && self.handles.may_be_uncached();
            let is_uncached = may_be_uncached && handle.write_uncached_alone();
            let open_flags = if is_uncached { open_flags | OpenedFlags::DIRECT } else { open_flags };
            Ok((self.vfs.attr(ino, &located), handle, open_flags))
        });
        self.opened_new(opened, flags, reply);
    }

    /// Replies with a file that was created without a name, and opened.
    pub fn created_nameless(&self, made: Result<Ino>, flags: OpenFlags, reply: Reply) {
        let made = made.map_err(|error| match error.kind() {
            // No file has its place here.
            ErrorKind::Denied => Error::new(ErrorKind::NotSupported, error.to_string()),
            _ => error,
        });
        let opened = made.and_then(|ino| {
            let (handle, open_flags) = self.open_handle(ino, flags)?;
            Ok((self.vfs.stat(ino)?, handle, open_flags))
        });
        self.opened_new(opened, flags, reply);
    }

    fn opened_new(&self, opened: Result<(Attr, Handle, OpenedFlags)>, flags: OpenFlags, reply: Reply) {
        match opened {
            Ok((attr, handle, open_flags)) => {
                let handle = self.handles.insert(handle, self.record(attr.ino.own(), flags));
                if !flags.reads_only() {
                    self.passthrough.opened_to_write(handle, attr.ino);
                }
                let entry = self.times.entry(&attr, self.times.entries, self.times.entries);
                reply.created(&entry, &Opened::served(handle, open_flags));
            }
            Err(error) => reply.error(self.failed("create", &error)),
        }
    }

    /// Replies to a request that may hold the lock of a directory, after the invalidation.
    pub fn forgotten(&self, doing: &str, reply: Reply, forget: Result<Invalidation>) {
        match forget {
            Ok(forget) => self.invalidator.forget(forget, move || reply.ok()),
            Err(error) => self.refused(doing, reply, &error),
        }
    }

    pub fn set_attr(&self, user: u32, ino: Ino, set: SetAttr, bytes: Option<u64>, reply: Reply) {
        let changed = self.vfs.set_attr(ino.own(), self.without_privilege(ino, set, bytes), bytes);
        let changed = changed.map(|forget| self.vfs.queue_invalidation(forget));
        let forget = Invalidation::default();
        match changed.and_then(|()| self.vfs.stat(ino.own())) {
            Ok(attr) if ino.is_backed() => self.attr_set_backed(ino, forget, attr, reply),
            Ok(attr) => {
                let times = self.times.of_attr(&attr);
                let attr = self.times.attributes(&attr);
                let answer = move || reply.attributes(times, &attr);
                if bytes.is_none() {
                    return self.invalidator.invalidate_pending(&self.vfs, forget, answer);
                }
                // The kernel writes back no pages of the file before the reply.
                self.invalidator.invalidate_meanwhile(&self.vfs, forget);
                answer();
            }
            Err(error) => {
                let request = if bytes.is_some() { "truncate" } else { "change" };
                control::note_refused(&self.mounted, Asker { ino, user }, request, &error);
                self.invalidator.invalidate_meanwhile(&self.vfs, Invalidation::default());
                reply.error(self.failed("setattr", &error));
            }
        }
    }

    /// Clears the set-user-ID and set-group-ID bits when owner or bytes change.
    fn without_privilege(&self, ino: Ino, set: SetAttr, bytes: Option<u64>) -> SetAttr {
        let changes = set.uid.is_some() || set.gid.is_some() || bytes.is_some();
        SetAttr { clears_setid: changes && set.mode.is_none() && self.has_setid(ino.own()), ..set }
    }

    /// Clears the set-user-ID and set-group-ID bits, if there are any.
    pub fn drop_privilege(&self, ino: Ino) -> Result<()> {
        if self.has_setid(ino) {
            let set = SetAttr { clears_setid: true, ..SetAttr::default() };
            let forget = self.vfs.set_attr(ino, set, None)?;
            self.invalidator.invalidate_meanwhile(&self.vfs, forget);
        }
        Ok(())
    }

    fn has_setid(&self, ino: Ino) -> bool {
        self.vfs.stat(ino).is_ok_and(|attr| attr.kind == Kind::File && has_setid(attr.mode))
    }

    /// Makes the names of a directory durable by syncing its collection.
    pub fn sync_directory(&self, ino: Ino) -> Result<()> {
        match self.located(ino)?.1 {
            Located::Node(view) if view.collection.access() == Access::Write => {
                view.collection.sync_unmarked()
            }
            _ => Ok(()),
        }
    }

    pub fn open_handle(&self, ino: Ino, flags: OpenFlags) -> Result<(Handle, OpenedFlags)> {
        self.handle_of(ino, flags, None)
    }

    /// A handle of the file of an inode number, which is `open` if that is given.
    pub fn handle_of(
        &self,
        ino: Ino,
        flags: OpenFlags,
        open: Option<Arc<OpenFile>>,
    ) -> Result<(Handle, OpenedFlags)> {
        let reads = flags.reads_only();
        let file = |open_file: Arc<OpenFile>| {
            if !reads {
                open_file.collection().check_writable()?;
            } else if open_file.has_lost() {
                // A writer may open it, perhaps to replace it.
                let text = "some of its bytes are not stored, and nothing can reconstruct them";
                return Err(Error::new(ErrorKind::Absent, text));
            }
            if !flags.writes_only() {
                self.vfs.opened_to_read(&open_file);
            }
            let flags = if reads { OpenedFlags::NO_FLUSH } else { OpenedFlags::NONE };
            let mode = CacheMode::of(&open_file.collection().state(), open_file.node());
            let is_uncached = open_file.is_written_uncached();
            let keeps = match mode {
                CacheMode::None if reads => OpenedFlags::DIRECT,
                _ if is_uncached => OpenedFlags::DIRECT,
                // The hash in an index may have changed since the last read.
                _ if open_file.is_index() || self.invalidator.is_stale(ino) => OpenedFlags::NONE,
                _ => OpenedFlags::KEEPS_CACHE,
            };
            let handle = if reads { Handle::file(open_file) } else { Handle::written(open_file) };
            if is_uncached {
                handle.write_uncached();
            }
            Ok((handle, keeps | flags))
        };
        if let Some(open_file) = open {
            return file(open_file);
        }
        let located = match self.vfs.locate(ino) {
            Ok(located) => located,
            // The name was removed after the kernel looked it up.
            Err(error) => return file(self.vfs.unlinked_open_file(ino).ok_or(error)?),
        };
        match located {
            Located::Node(view) => file(self.vfs.open(&view).or_else(|error| match error.kind() {
                ErrorKind::Gone => self.vfs.unlinked_open_file(ino).ok_or(error),
                _ => Err(error),
            })?),
            _ => Err(Error::new(ErrorKind::IsDirectory, "not a file")),
        }
    }

    /// Fails with `Busy` if others depend on a file that a user opens for writing, with `ReadOnly` if it is one of a form. Keeps
    /// the reason for the user.
    pub fn check_open_to_write(&self, user: u32, ino: Ino) -> Result<()> {
        let checked = match self.vfs.locate(ino) {
            Ok(Located::Node(view)) if view.collection.has_relatives() => self.vfs.check_unneeded(&view),
            Ok(Located::Form(_)) => {
                let text = "forms are computed from the stored bytes; write to the file itself";
                Err(Error::new(ErrorKind::ReadOnly, text))
            }
            _ => Ok(()),
        };
        checked.inspect_err(|error| {
            control::note_refused(&self.mounted, Asker { ino, user }, "open to write", error);
        })
    }

    /// The open file of a handle, if it is a file of a collection.
    pub fn file(&self, handle: u64) -> Option<Arc<OpenFile>> {
        match self.handles.get(handle).as_deref() {
            Some(Handle::File(open_file, ..)) => Some(open_file.clone()),
            _ => None,
        }
    }

    /// Flushes a file, and replies after the kernel has invalidated the affected inodes.
    pub fn flush(&self, open_file: &OpenFile, durable: Durable, doing: &'static str, reply: Reply) {
        let _invalidation_order = open_file.invalidation_order();
        let flushed = match durable {
            Durable::Yes => self.vfs.flush(open_file),
            Durable::No => self.vfs.flush_closed(open_file),
        };
        let flushed = flushed.and_then(|forget| {
            // Readers see the recorded changes even if the sync fails.
            self.vfs.queue_invalidation(forget);
            if durable == Durable::Yes && self.vfs.store().access() == Access::Write {
                open_file.collection().sync_unmarked()?;
            }
            Ok(())
        });
        match flushed {
            Ok(()) => {
                let nothing = Invalidation::default();
                self.invalidator.invalidate_pending(&self.vfs, nothing, move || reply.ok());
            }
            Err(error) => self.refused(doing, reply, &error),
        }
    }

    /// Flushes a file whose descriptor was closed. Nobody waits for the reply, but the kernel allows a limited number of
    /// requests without it.
    pub fn flush_released(&self, open_file: &OpenFile, reply: Reply) {
        let _invalidation_order = open_file.invalidation_order();
        let forget = self.vfs.flush_closed(open_file).unwrap_or_else(|error| {
            self.failed("release", &error);
            Invalidation::default()
        });
        self.invalidator.invalidate_meanwhile(&self.vfs, forget);
        reply.ok();
    }

    /// Replies to a refused write. The kernel drops its bytes as soon as it has the reply, which releases their pages.
    pub fn write_refused(&self, open_file: &OpenFile, reply: Reply, error: &Error) {
        let forget = self.vfs.refused_write(open_file);
        self.invalidator.invalidate_meanwhile(&self.vfs, forget);
        reply.error(self.failed("write", error));
    }

    /// Replies with an error after the invalidation for changes that preceded it.
    fn refused(&self, doing: &str, reply: Reply, error: &Error) {
        let errno = self.failed(doing, error);
        let answer = move || reply.error(errno);
        self.invalidator.invalidate_pending(&self.vfs, Invalidation::default(), answer);
    }

    /// Writes to an open file. `kills` also clears its set-user-ID and set-group-ID bits.
    pub fn write_from(
        &self,
        open_file: &OpenFile,
        ino: Ino,
        offset: u64,
        data: &[u8],
        kills: bool,
    ) -> Result<()> {
        self.vfs.write(open_file, offset, data)?;
        self.mounted.counters.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        if kills { self.drop_privilege(ino) } else { Ok(()) }
    }

    pub fn view(&self, ino: Ino) -> Result<FileView> {
        match self.located(ino)?.1 {
            Located::Node(view) => Ok(view),
            _ => Err(Error::new(
                ErrorKind::Absent,
                "only files and directories of a collection have attributes",
            )),
        }
    }
}
