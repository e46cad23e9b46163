//! Progress of long work, and its cancellation.

/// Observes the progress of long work, and may cancel it.
pub trait Progress: Sync {
    /// Another `bytes` bytes were processed.
    fn advance(&self, bytes: u64);
    /// Whether to cancel: the work then fails with `Interrupted`.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Ignores the progress.
pub struct Silent;

impl Progress for Silent {
    fn advance(&self, _bytes: u64) {}
}
