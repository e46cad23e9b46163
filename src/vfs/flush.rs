//! Flushes open files to the log.

use std::sync::Arc;

use crate::model::Result;
use crate::open::{self, Changes, OpenFile};
use crate::store::Collection;
use crate::vfs::Invalidation;
use crate::vfs::tree::{FileView, Vfs};

impl Vfs {
    /// Flushes an open file.
    pub fn flush(&self, open_file: &OpenFile) -> Result<Invalidation> {
        self.flushed(open_file, OpenFile::flush)
    }

    /// Flushes a file that a program has closed.
    pub fn flush_closed(&self, open_file: &OpenFile) -> Result<Invalidation> {
        self.flushed(open_file, OpenFile::flush_closed)
    }

    fn flushed(&self, open_file: &OpenFile, flush: fn(&OpenFile) -> Result<Changes>) -> Result<Invalidation> {
        let written = open_file.is_changed().then(|| open_file.node());
        let mut changes = self.with_room(|| flush(open_file))?;
        changes.nodes.extend(written.filter(|_| open_file.may_be_stale()));
        Ok(self.forget(open_file.collection(), changes, written))
    }

    /// Whether a file has writes that are not in the log yet.
    pub fn is_written_to(&self, view: &FileView) -> bool {
        let number = view.collection.state().number();
        self.open_files.get(number, view.node.entry.id).is_some_and(|open_file| open_file.is_changed())
    }

    /// Flushes the open files of a collection and queues the invalidations.
    pub fn flush_all(&self, collection: &Arc<Collection>) -> Result<()> {
        let mut all = self.open_files.all();
        all.retain(|open_file| Arc::ptr_eq(open_file.collection(), collection));
        all.iter().try_for_each(|open_file| self.flush_and_queue(open_file))
    }

    /// Recognizes files again whose first name changed since they were last recognized, and queues
    /// the invalidations.
    pub fn finish_renames(&self, collection: &Arc<Collection>) {
        let changes = open::finish_renames(collection, &self.open_files, self.verify);
        self.queue_invalidation(self.forget(collection, changes, None));
    }

    /// Flushes an open file. It queues the invalidations before anybody else can find the file
    /// flushed; the thread that closes the file then sends them.
    pub fn flush_and_queue(&self, open_file: &OpenFile) -> Result<()> {
        let _invalidation_order = open_file.invalidation_order();
        self.flush(open_file).map(|forget| self.queue_invalidation(forget))
    }
}
