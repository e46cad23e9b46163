//! Compares closed files with others, so that equal ones share a data file.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{ErrorKind, Instant, Progress, Result};
use crate::vfs::open::ClosedFile;
use crate::vfs::tree::vfs::Vfs;

/// A file that was closed is compared after this time.
const REST: Duration = Duration::from_secs(5);
/// At the end of a mount files are compared for this time.
const AT_END: Duration = Duration::from_secs(2);

impl Vfs {
    /// Whether a file waits that was closed long enough ago.
    pub fn has_files_to_compare(&self) -> bool {
        self.open_files.closed.since().is_some_and(|since| since.elapsed() >= REST)
    }

    /// Compares the files that were closed long enough ago with others of their length. Those that programs have open
    /// wait on. Returns how many share a data file now.
    pub fn compare_closed(&self, progress: &dyn Progress) -> Result<u64> {
        self.compare(|file| {
            progress.check()?;
            Ok(file.since.elapsed() >= REST)
        })
    }

    /// Compares files that were closed shortly before the mount ends.
    pub fn compare_at_end(&self) {
        let began = Instant::now();
        let compared = self.compare(|_| Ok(began.elapsed() < AT_END));
        compared.map(drop).unwrap_or_else(|error| log::debug!("comparing closed files: {error}"));
    }

    fn compare(&self, mut is_due: impl FnMut(&ClosedFile) -> Result<bool>) -> Result<u64> {
        let (closed, mut shared, mut open) = (&self.open_files.closed, 0, Vec::new());
        for _ in 0..closed.count() {
            let Some(next) = closed.take() else { break };
            let due = is_due(&next);
            if !matches!(due, Ok(true)) {
                closed.put_back(next);
                due?;
                break;
            }
            match self.compare_one(&next) {
                Some(true) => shared += 1,
                Some(false) => {}
                None => open.push(next),
            }
        }
        open.into_iter().for_each(|file| closed.add(file.again()));
        Ok(shared)
    }

    /// Whether the file shares a data file now. `None` while a program has it open.
    fn compare_one(&self, ClosedFile { collection, node, .. }: &ClosedFile) -> Option<bool> {
        let Some(collection) = collection.upgrade() else { return Some(false) };
        if collection.state().node(*node).is_none() || collection.check_writable().is_err() {
            return Some(false);
        }
        let shared = self.open_files.open(&collection, *node, self.verify).and_then(|open_file| {
            if Arc::strong_count(&open_file) > 1 { Ok(None) } else { open_file.share_later().map(Some) }
        });
        shared.unwrap_or_else(|error| {
            // Others depend on it by now, or it was removed.
            if !matches!(error.kind(), ErrorKind::Busy | ErrorKind::Gone) {
                log::warn!("{}: a file shares no data file: {error}", collection.path());
            }
            Some(false)
        })
    }
}
