//! Compares closed files with others, so that equal ones share a data file.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{ErrorKind, Instant, Progress, Result};
use crate::vfs::open::ClosedFile;
use crate::vfs::tree::vfs::Vfs;

/// A file that was closed is compared after this time.
const REST: Duration = Duration::from_secs(5);
/// A job begins no further comparison after this time: other jobs wait for it.
const TURN: Duration = Duration::from_secs(3);
/// At the end of a mount files are compared for this time.
const AT_END: Duration = Duration::from_secs(2);

impl Vfs {
    /// Whether a file waits that was closed long enough ago.
    pub fn has_files_to_compare(&self) -> bool {
        self.open_files.closed.since().is_some_and(|since| since.elapsed() >= REST)
    }

    /// Compares the files that were closed long enough ago with others of their length, for a while. Those that programs
    /// have open wait on. Returns how many share a data file now.
    pub fn compare_closed(&self, progress: &dyn Progress) -> Result<u64> {
        let until = Instant::now() + TURN;
        let shared = self.compare(progress, |file| file.since.elapsed() >= REST && Instant::now() < until);
        progress.check().map(|()| shared)
    }

    /// Compares files that were closed shortly before the mount ends.
    pub fn compare_at_end(&self) {
        self.compare(&Until(Instant::now() + AT_END), |_| true);
    }

    /// Compares the files that are due, in the order of their closes. Returns how many share a data file now.
    fn compare(&self, progress: &dyn Progress, is_due: impl Fn(&ClosedFile) -> bool) -> u64 {
        let (closed, mut shared, mut open) = (&self.open_files.closed, 0, Vec::new());
        let Some(comparing) = closed.compare(progress) else { return 0 };
        for _ in 0..closed.count() {
            let Some(next) = closed.take() else { break };
            if comparing.is_cancelled() || !is_due(&next) {
                closed.put_back(next);
                break;
            }
            match self.compare_one(&next, &comparing) {
                Ok(true) => shared += 1,
                Ok(false) => {}
                Err(Waits::Open) => open.push(next),
                Err(Waits::Interrupted) => {
                    closed.put_back(next);
                    break;
                }
            }
        }
        open.into_iter().for_each(|file| closed.add(file.again()));
        shared
    }

    /// Whether the file shares a data file now.
    fn compare_one(
        &self,
        ClosedFile { collection, node, .. }: &ClosedFile,
        progress: &dyn Progress,
    ) -> std::result::Result<bool, Waits> {
        let Some(collection) = collection.upgrade() else { return Ok(false) };
        if collection.state().node(*node).is_none() || collection.check_writable().is_err() {
            return Ok(false);
        }
        let shared = match self.open_files.open(&collection, *node, self.verify) {
            Ok(open_file) if Arc::strong_count(&open_file) > 1 => return Err(Waits::Open),
            Ok(open_file) => open_file.share_later(progress),
            Err(error) => Err(error),
        };
        shared.or_else(|error| match error.kind() {
            ErrorKind::Interrupted => Err(Waits::Interrupted),
            // Others depend on it by now, or it was removed.
            ErrorKind::Busy | ErrorKind::Gone => Ok(false),
            _ => {
                log::warn!("{}: a file shares no data file: {error}", collection.path());
                Ok(false)
            }
        })
    }
}

/// Why a file is not compared yet.
enum Waits {
    /// A program has it open.
    Open,
    /// The comparison ends early.
    Interrupted,
}

/// Work that is cancelled at a time.
struct Until(Instant);

impl Progress for Until {
    fn advance(&self, _bytes: u64) {}

    fn is_cancelled(&self) -> bool {
        Instant::now() >= self.0
    }
}
