//! Joins files of a collection.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::ingest::{Join, Joined};
use crate::model::{Error, ErrorKind, Instant, Result};
use crate::store::Collection;
use crate::vfs::open::{OpenFile, OpenFiles};
use crate::vfs::tree::invalidation::Invalidation;
use crate::vfs::tree::location::FileView;
use crate::vfs::tree::vfs::Vfs;

/// The kernel tells of the last close after close(2) has returned, so a file that was just closed is given some time.
const CLOSE_WAIT_MAX: Duration = Duration::from_millis(300);
const CLOSE_WAIT: Duration = Duration::from_millis(5);

impl Vfs {
    /// Fails with `Busy` if others depend on any bytes of a file, or have them too.
    pub fn check_unneeded(&self, view: &FileView) -> Result<()> {
        let open_file = self.open(view)?;
        open_file.check_unneeded()?;
        self.check_not_open_removed(&open_file)
    }

    /// Fails with `Busy` if a program has a file without a name open that has bytes of a file too: it keeps them as long.
    pub(super) fn check_not_open_removed(&self, open_file: &Arc<OpenFile>) -> Result<()> {
        let collection = open_file.collection();
        if !collection.state().has_shared_objects() {
            return Ok(());
        }
        let (mut own, mut others) = (HashSet::new(), HashSet::new());
        let unlinked: Vec<Arc<OpenFile>> =
            self.unlinked.files.lock().values().map(|file| file.open_file.clone()).collect();
        // The table and this list hold two of them; more are of programs.
        for file in unlinked.iter().filter(|file| Arc::strong_count(file) > 2) {
            if !Arc::ptr_eq(file, open_file) && Arc::ptr_eq(file.collection(), collection) {
                file.add_objects(&mut others);
            }
        }
        open_file.add_objects(&mut own);
        if own.is_disjoint(&others) {
            return Ok(());
        }
        let text = "a program has a removed file open that has its bytes too; close that first";
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Makes a file of the objects of others. Returns what the kernel must invalidate.
    pub fn join(&self, collection: &Arc<Collection>, request: &Join<'_>) -> Result<(Joined, Invalidation)> {
        self.check_access()?;
        collection.check_writable()?;
        let opened = request.sources.iter().map(|node| self.open_files.open(collection, *node, self.verify));
        let files: Vec<Arc<OpenFile>> = opened.collect::<Result<_>>()?;
        let until = Instant::now() + CLOSE_WAIT_MAX;
        for file in &files {
            while file.may_be_written() && Instant::now() < until {
                std::thread::sleep(CLOSE_WAIT);
            }
            if file.is_unclosed() && !file.may_be_written() {
                let _invalidation_order = file.invalidation_order();
                self.queue_invalidation(self.flush_closed(file)?);
            }
        }
        let joined = OpenFiles::join(collection, &files, request)?;
        let invalidation = self.invalidate_nodes(collection, [joined.directory]);
        Ok((joined, invalidation))
    }
}
