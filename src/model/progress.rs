//! Progress of long work, and its cancellation.

use crate::model::{Error, ErrorKind, Result};

/// Observes the progress of long work, and may cancel it.
pub trait Progress: Sync {
    /// The work has `bytes` bytes to process, which is known once it was planned.
    fn expect(&self, _bytes: u64) {}
    /// Another `bytes` bytes were processed.
    fn advance(&self, bytes: u64);
    /// Whether to cancel: the work then fails with `Interrupted`.
    fn is_cancelled(&self) -> bool {
        false
    }
    /// Fails with `Interrupted` once the work is cancelled.
    fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            return Err(Error::new(ErrorKind::Interrupted, "the job was cancelled"));
        }
        Ok(())
    }
}

pub struct Silent;

impl Progress for Silent {
    fn advance(&self, _bytes: u64) {}
}
