//! Joins files of a collection.

use std::sync::Arc;
use std::time::Duration;

use crate::ingest::{Join, Joined};
use crate::model::{Instant, Result};
use crate::store::Collection;
use crate::vfs::open::{OpenFile, OpenFiles};
use crate::vfs::tree::invalidation::Invalidation;
use crate::vfs::tree::vfs::Vfs;

/// The kernel tells of the last close after close(2) has returned, so a file that was just closed is given some time.
const CLOSE_WAIT_MAX: Duration = Duration::from_millis(300);
const CLOSE_WAIT: Duration = Duration::from_millis(5);

impl Vfs {
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
