//! What was written to open files goes to the log.

use std::sync::Arc;

use crate::model::Result;
use crate::open::{self, Changes, OpenFile};
use crate::store::Collection;
use crate::vfs::Invalidation;
use crate::vfs::tree::{FileView, Vfs};

impl Vfs {
    /// What was written to an open file goes to the log.
    pub fn flush(&self, open_file: &OpenFile) -> Result<Invalidation> {
        self.flushed(open_file, OpenFile::flush)
    }

    /// What was written to a file that a program has closed goes to the log.
    pub fn flush_closed(&self, open_file: &OpenFile) -> Result<Invalidation> {
        self.flushed(open_file, OpenFile::flush_closed)
    }

    fn flushed(&self, open_file: &OpenFile, flush: fn(&OpenFile) -> Result<Changes>) -> Result<Invalidation> {
        let written = open_file.is_changed().then(|| open_file.node());
        let mut changes = self.with_room(|| flush(open_file))?;
        changes.nodes.extend(written.filter(|_| open_file.may_be_stale()));
        Ok(self.forget(open_file.collection(), changes, written))
    }

    /// Whether something was written to a file that the log does not say yet.
    pub fn is_written_to(&self, view: &FileView) -> bool {
        let number = view.collection.state().number();
        self.open_files.get(number, view.node.entry.id).is_some_and(|open_file| open_file.is_changed())
    }

    /// What was written to the open files of a collection goes to the log.
    /// What the kernel must forget is owed.
    pub fn flush_all(&self, collection: &Arc<Collection>) -> Result<()> {
        let mut all = self.open_files.all();
        all.retain(|open_file| Arc::ptr_eq(open_file.collection(), collection));
        all.iter().try_for_each(|open_file| self.flush_and_queue(open_file))
    }

    /// What files are whose first name is another now, and nobody has looked at them since.
    /// What the kernel must forget is owed.
    pub fn finish_renames(&self, collection: &Arc<Collection>) {
        let changes = open::finish_renames(collection, &self.open_files, self.verify);
        self.queue_invalidation(self.forget(collection, changes, None));
    }

    /// What was written to an open file goes to the log. What the kernel must forget is owed
    /// before anybody else can find the file flushed: who closes it pays what is owed.
    pub fn flush_and_queue(&self, open_file: &OpenFile) -> Result<()> {
        let _telling = open_file.telling();
        self.flush(open_file).map(|forget| self.queue_invalidation(forget))
    }
}
