//! Extended attributes of files and of files of forms.

use crate::control::{self, Acts, Asked, Asker, Cost, Reader};
use crate::fs::answer::caller::Caller;
use crate::fs::answer::dispatcher::Dispatcher;
use crate::fs::answer::numbers::other_number;
use crate::fs::answer::program_attributes::names_of;
use crate::fs::kernel::Reply;
use crate::fs::kernel::errno;
use crate::fs::state::failure::{guarded, refused};
use crate::fs::state::in_progress;
use crate::model::{Error, ErrorKind, Result};
use crate::store::is_program_attribute;
use crate::vfs::{Ino, Invalidation, Located};

/// The names of attributes of users begin so.
const USER: &[u8] = b"user.";

/// Replies with the value of an attribute, or with its size where the request asks for that.
pub(in crate::fs) fn send_attribute(reply: Reply, size: u32, value: &[u8]) {
    if size == 0 {
        reply.length(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(errno::TOO_SHORT);
    } else {
        reply.data(value);
    }
}

impl Dispatcher {
    /// Replies with the value of an extended attribute.
    pub fn attribute(&self, by: Caller, ino: Ino, name: &[u8], size: u32, reply: Reply) {
        if is_program_attribute(name) {
            return self.program_attribute(by.thread, ino, name, size, reply);
        }
        // Listings ask for access lists and labels of each entry, and open nothing for that.
        if !name.starts_with(USER)
            && let Err(error) = control::attribute(name)
        {
            return reply.error(self.failed("getxattr", &error));
        }
        let asker = Asker { ino: ino.own(), user: by.user };
        let view = match self.located_again(by.thread, ino) {
            Ok((_, Located::Node(view))) => view,
            Ok((_, Located::Form(view))) => return self.form_attribute(&view, asker, name, size, reply),
            Ok(_) => {
                return match control::refusal_attribute(&self.mounted.refusals, asker, name) {
                    Ok(value) => send_attribute(reply, size, value.as_bytes()),
                    Err(error) => reply.error(self.failed("getxattr", &error)),
                };
            }
            Err(error) => return reply.error(self.failed("getxattr", &error)),
        };
        let attribute = match control::attribute(name) {
            Ok(attribute) => attribute,
            Err(error) => return reply.error(self.failed("getxattr", &error)),
        };
        let (mounted, vfs) = (self.mounted.clone(), self.vfs.clone());
        let refusals = self.mounted.clone();
        let answer = move || match attribute
            .get(&Reader { vfs: &vfs, refusals: Some((&refusals.refusals, asker)) }, &view)
        {
            Ok(value) => send_attribute(reply, size, value.as_bytes()),
            Err(error) => reply.error(refused("getxattr", &error)),
        };
        match attribute.cost {
            Cost::Small => answer(),
            // On a thread of its own, so that other requests are answered meanwhile.
            Cost::WholeFile => {
                in_progress::on_own_thread(move || guarded(&mounted, "getxattr", answer));
            }
        }
    }

    /// The target of an inode number. If it is gone, and was found by the second look of the thread, the one that has
    /// its name now: attributes follow from what the log has.
    pub(super) fn located_again(&self, thread: u32, ino: Ino) -> Result<(Ino, Located)> {
        self.located(ino).or_else(|error| {
            let (parent, name) = self.found_again(thread, ino.own(), error)?.name;
            self.vfs.lookup(parent, &name)
        })
    }

    /// Sets an extended attribute.
    pub fn set_attribute(&self, user: u32, ino: Ino, name: &[u8], value: &[u8], reply: Reply) {
        if let Ok((_, Located::Form(view))) = self.located(ino) {
            return self.set_form_attribute(view, Asker { ino: ino.own(), user }, name, value, reply);
        }
        let found = control::attribute(name).and_then(|found| Ok((found, self.view(ino)?)));
        let (attribute, view) = match found {
            Ok(found) => found,
            Err(error) => return reply.error(self.failed("setxattr", &error)),
        };
        let vfs = self.vfs.clone();
        let asker = self.mounted.clone();
        let asked = Asked { mounted: self.mounted.clone(), view, ino: ino.own(), user };
        let (invalidator, name, value) = (self.invalidator.clone(), name.to_vec(), value.to_vec());
        let act = move || {
            // The attribute applies to the unflushed writes too.
            let written =
                vfs.open_file(ino.own()).map(|open_file| vfs.flush_and_queue(&open_file)).transpose();
            let set = written.and_then(|_| control::set(&asked, &name, &value));
            let set = set.map_err(|error| refused("setxattr", &error));
            let also = Invalidation::default().and(other_number(ino));
            invalidator.invalidate_pending(&vfs, also, move || match set {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            });
        };
        match &attribute.set {
            // On a thread of its own, so that other requests are answered meanwhile.
            Some(set) if set.acts == Acts::Slowly => {
                in_progress::on_own_thread(move || guarded(&asker, "setxattr", act));
            }
            _ => act(),
        }
    }

    /// Rejects the removal of an attribute: tierfs provides them all.
    pub fn remove_attribute(&self, asker: Asker, name: &[u8], reply: Reply) {
        let error = match control::attribute(name) {
            Ok(attribute) => Error::new(ErrorKind::Denied, format!("{} cannot be removed", attribute.name)),
            Err(error) => error,
        };
        control::note_refused(&self.mounted, asker, "remove an attribute", &error);
        reply.error(self.failed("removexattr", &error));
    }

    /// Replies with the names of the extended attributes that listings show.
    pub fn attribute_names(&self, thread: u32, ino: Ino, size: u32, reply: Reply) {
        // They are in the log of the collection, which nobody has opened.
        if self.vfs.stat_unopened(ino).is_some() {
            return send_attribute(reply, size, &[]);
        }
        let names = match self.located_again(thread, ino) {
            Ok((_, Located::Node(view))) => {
                control::listed(&self.vfs, &view).map(|own| (own, names_of(&view)))
            }
            Ok(_) => Ok((Vec::new(), Vec::new())),
            Err(error) => Err(error),
        };
        match names {
            Ok((own, others)) => {
                let names = own.into_iter().map(String::into_bytes).chain(others);
                let list: Vec<u8> = names.flat_map(|name| name.into_iter().chain([0])).collect();
                send_attribute(reply, size, &list);
            }
            Err(error) => reply.error(self.failed("listxattr", &error)),
        }
    }
}
