//! Files that nobody has open and that the log does not say as they are: the disk was full, or
//! failed, when they were closed, cut or looked at. They stay as they read until it is tried again.

use std::sync::Arc;

use crate::model::{ErrorKind, Result};
use crate::open::{Changes, OpenFile};
use crate::store::Access;
use crate::vfs::Invalidation;
use crate::vfs::tree::Vfs;

impl Vfs {
    /// Keeps a file until the log says what it is, if it does not. What the disk had no room for
    /// at a close is what readers saw, and would be bytes of two versions without it.
    pub fn keep_unflushed(&self, open_file: &Arc<OpenFile>) {
        let mut kept = self.unflushed.lock();
        if waits(open_file) && !kept.iter().any(|known| Arc::ptr_eq(known, open_file)) {
            kept.push(open_file.clone());
        }
    }

    /// Whether a file is kept whose collection takes no more writes, as was said when it was closed.
    pub(super) fn is_given_up(&self, open_file: &Arc<OpenFile>) -> bool {
        let is_kept = || self.unflushed.lock().iter().any(|kept| Arc::ptr_eq(kept, open_file));
        open_file.collection().check_writable().is_err() && is_kept()
    }

    /// Puts what is kept into the log, where that is possible now, and looks again at what was
    /// renamed.
    pub(super) fn flush_kept(&self, forget: &mut dyn FnMut(Invalidation)) -> Result<()> {
        let mut first = Ok(());
        let kept = self.unflushed.lock().clone();
        for open_file in kept.iter().filter(|open_file| open_file.collection().check_writable().is_ok()) {
            let _telling = open_file.telling();
            let flushed = self.flush_closed(open_file).and_then(|flushed| {
                forget(flushed);
                let is_renamed = must_be_looked_at(open_file);
                let changes = if is_renamed { open_file.look_again()? } else { Changes::default() };
                Ok(self.forget(open_file.collection(), changes, None))
            });
            first = first.and(flushed.map(&mut *forget));
        }
        drop(kept);
        self.release_flushed();
        first
    }

    /// Whether there were files that wait no more.
    fn release_flushed(&self) -> bool {
        let gone: Vec<_> = self.unflushed.lock().extract_if(.., |open_file| !waits(open_file)).collect();
        // Closing files may take a while: the lock was let go of.
        !gone.is_empty()
    }

    /// Looks at a file under its other name, which is there already: what cannot be looked at now
    /// is in some seconds, or by the next mount. A full disk or quota is no failure of what is
    /// done; a disk that fails is told.
    pub(super) fn look_at_renamed(&self, open_file: &Arc<OpenFile>) -> Result<Changes> {
        open_file.look_again().or_else(|error| {
            let collection = open_file.collection();
            log::warn!("{}: looking at a file under its other name: {error}", collection.path());
            collection.names_are_old();
            self.keep_unflushed(open_file);
            match error.kind() {
                ErrorKind::Full | ErrorKind::Quota => Ok(Changes::default()),
                _ => Err(error),
            }
        })
    }

    /// Tries once more what found the disk full, where something can be given back: what has no
    /// name and nobody has open, and what was given up in any collection and is not durable.
    pub(super) fn with_room<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        work().or_else(|error| match error.kind() {
            ErrorKind::Full if self.make_room() => work(),
            _ => Err(error),
        })
    }

    fn make_room(&self) -> bool {
        let flushed = self.release_flushed();
        let unnamed = self.release_unnamed();
        let open = self.store().open_collections();
        let writable = open.iter().filter(|open| open.access() == Access::Write);
        let freed = writable.filter(|open| open.make_room()).count();
        flushed || unnamed || freed > 0
    }
}

/// Whether the log does not say a file as it is.
fn waits(open_file: &OpenFile) -> bool {
    let collection = open_file.collection();
    let is_there = collection.state().node(open_file.node()).is_some();
    is_there && (open_file.is_unclosed() || must_be_looked_at(open_file))
}

fn must_be_looked_at(open_file: &OpenFile) -> bool {
    open_file.collection().state().must_be_looked_at(open_file.node())
}
