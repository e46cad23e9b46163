//! The two numbers of a file: its own, and that under which the kernel reads it itself.

use std::time::Duration;

use fuser::{INodeNo, ReplyAttr};

use crate::fs::reply::{file_attr, own};
use crate::fs::serve::Adapter;
use crate::namespace::{Attr, Forget, Ino};

/// A file's own number, where the kernel asks by the second.
pub(super) fn other_number(ino: INodeNo) -> Option<Ino> {
    Some(own(ino)).filter(|own| own.0 != ino.0)
}

impl Adapter {
    /// Answers a change of attributes under the second number. The kernel has no pages to
    /// write under it; what it has under the other it forgets first.
    pub fn attr_set_backed(&self, ino: INodeNo, forget: Forget, attr: Attr, reply: ReplyAttr) {
        let answer = move || reply.attr(&Duration::ZERO, &file_attr(&attr));
        self.forgetter.forget(forget.and(other_number(ino)), answer);
    }
}
