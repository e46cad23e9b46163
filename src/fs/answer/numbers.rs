//! The inode numbers of a file: its own, the one for passthrough, and that of the plain name of a tensor.

use std::sync::Arc;
use std::time::Duration;

use crate::control::Asker;
use crate::fs::answer::dispatcher::{Dispatcher, EntryTimes, LOOKS_MAX, LookupBegun};
use crate::fs::kernel::Reply;
use crate::fs::kernel::errno::Errno;
use crate::fs::state::failure::guarded;
use crate::fs::state::form_file::FormFile;
use crate::fs::state::in_progress;
use crate::fs::state::second_look::Found;
use crate::model::{Error, ErrorKind, Result};
use crate::vfs::{Attr, ChildName, FileView, FormView, Ino, Invalidation, Kind, Located};

/// The own number of a file, if `ino` is another.
pub(in crate::fs) fn other_number(ino: Ino) -> Option<Ino> {
    Some(ino.own()).filter(|own| *own != ino)
}

fn only_read(view: &FileView) -> Error {
    let path =
        String::from_utf8_lossy(&view.collection.state().path_to_write(view.node.entry.id)).into_owned();
    let text = format!("a tensor is only read by its plain name; write to {}/{path}", view.collection.path());
    Error::new(ErrorKind::Forbidden, text)
}

impl Dispatcher {
    /// Replies to a lookup, by a thread that looks again, of a file of a form. Opens and keeps it, on a thread of its own.
    pub fn form_found_again(
        &self,
        asked: LookupBegun,
        ChildName { parent, name }: ChildName<'_>,
        ino: Ino,
        view: FormView,
        reply: Reply,
    ) {
        let (dispatcher, name) = (self.clone(), name.to_vec());
        in_progress::on_own_thread(move || {
            guarded(&dispatcher.mounted, "lookup", || {
                let mut found = Ok((ino, Located::Form(view)));
                for _ in 0..LOOKS_MAX {
                    let Ok((ino, Located::Form(view))) = &found else { break };
                    let (ino, located) = (*ino, Located::Form(view.clone()));
                    let attr = dispatcher.vfs.attr(ino, &located);
                    let opened = match attr.kind {
                        Kind::File => FormFile::open(&dispatcher.vfs, view.clone()),
                        _ => break,
                    };
                    match opened {
                        Ok(form) => {
                            let attr = Attr { is_unlogged: false, ..attr.of_bytes(form.bytes()) };
                            let (name, form) = ((parent, name), Some(Arc::new(form)));
                            let kept = Found { ino, located: located.clone(), name, file: None, form };
                            dispatcher.second_looks.keep(asked.thread, kept);
                            let times = dispatcher
                                .entry_times(&attr, || dispatcher.names.may_be_cached(asked.changes));
                            return dispatcher.reply_entry("lookup", reply, attr, &located, times);
                        }
                        Err(error) if error.kind() == ErrorKind::Gone => {
                            found = dispatcher.vfs.lookup(parent, &name);
                        }
                        // An open says why.
                        Err(_) => break,
                    }
                }
                dispatcher.named(reply, asked, found);
            });
        });
    }

    /// Replies to a lookup. Where
    /// passthrough is possible, the name leads to the passthrough number. Programs still see the own
    /// number, because the kernel requests the attributes each time.
    pub fn named(&self, reply: Reply, asked: LookupBegun, found: Result<(Ino, Located)>) {
        let LookupBegun { thread, changes } = asked;
        let backed = match &found {
            Ok((ino, Located::Node(_) | Located::Form(_))) => {
                let own = ino.own();
                let is_backed = || self.physical(own).is_some();
                // A thread must not be sent to look again twice, so it gets that number only for the file that it was
                // redirected to.
                let may_lead_there = || {
                    let is_sent = self.passthrough.is_sent(thread) || self.second_looks.is_sent(thread);
                    !is_sent || self.passthrough.is_promised(own, thread)
                };
                own.backed().filter(|_| is_backed() && may_lead_there())
            }
            _ => None,
        };
        match (backed, found) {
            (Some(backed), Ok((_, located))) => {
                let attr = self.vfs.attr(backed, &located);
                let times = EntryTimes {
                    attributes_for: Duration::ZERO,
                    ..self.entry_times(&attr, || self.names.may_be_cached(changes))
                };
                self.reply_entry("lookup", reply, attr, &located, times);
            }
            (_, found) => self.entry("lookup", reply, found, || self.names.may_be_cached(changes)),
        }
    }

    /// Refuses a change by the plain name of a tensor. Keeps the reason for the user. Returns the error number.
    pub fn only_read(&self, asker: Asker, doing: &str, request: &str) -> Errno {
        let asker = Asker { ino: asker.ino.own(), ..asker };
        let error = match self.vfs.locate(asker.ino) {
            Ok(Located::Node(view)) => {
                let error = only_read(&view);
                self.mounted.refusals.note(asker, &view.path(), request, &error);
                error
            }
            Ok(_) => Error::invalid("not a file"),
            Err(error) => error,
        };
        self.failed(doing, &error)
    }

    /// Replies to a change of attributes under the passthrough number. The kernel has no dirty pages
    /// under it; its pages under the own number are invalidated first.
    pub fn attr_set_backed(&self, ino: Ino, forget: Invalidation, attr: Attr, reply: Reply) {
        let attr = self.times.attributes(&attr);
        let answer = move || reply.attributes(Duration::ZERO, &attr);
        self.invalidator.invalidate_pending(&self.vfs, forget.and(other_number(ino)), answer);
    }

    /// Replies to a request that removes a name. A file may be open under one number while its name
    /// leads to the other, so both are invalidated.
    pub fn name_gone(
        &self,
        doing: &str,
        reply: Reply,
        child: ChildName<'_>,
        change: impl FnOnce() -> Result<Invalidation>,
    ) {
        let also = self.also_open(child.parent, child.name);
        self.forgotten(doing, reply, change().map(|forget| forget.and(also)));
    }

    fn also_open(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        if !self.passthrough.is_on() {
            return None;
        }
        let ino = self.vfs.lookup(parent, name).ok()?.0.own();
        self.vfs.open_file(ino)?;
        (self.passthrough.backed(ino).is_some() || self.physical(ino).is_some()).then_some(ino)
    }
}
