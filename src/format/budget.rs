//! Bounds the work and the memory of a reader by the bytes that it has read.
//!
//! Structure multiplies: a list that is recalled a thousand times, a long text that is the key of each entry, tables
//! whose entries all lead to the same place. So a reader takes each step, and each byte that it copies, from a budget,
//! which grows by [`STEPS_PER_BYTE`] with each byte that it reads of the file. Files of the formats' own libraries take
//! less than 4 steps a byte. A reader whose budget is spent stops, and the file stays plain.
//!
//! The pickles of checkpoints, archives and models can exceed it. Readers that pass over their bytes once, and copy each
//! at most once, cannot: their budget counts, so that tests and fuzzers see if a change ends this.

use crate::model::{Error, Result};

/// Steps for each byte that was read.
pub const STEPS_PER_BYTE: u64 = 16;

/// Steps that the shortest file has.
pub const STEPS_MIN: u64 = 1 << 16;

/// The bytes that a reader has read, and the steps that it has made. A step is a value, a name or an entry that is looked at, or a
/// byte that is copied.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Budget {
    read: u64,
    spent: u64,
}

impl Budget {
    /// Adds bytes that were read.
    pub fn add_read(&mut self, bytes: u64) {
        self.read = self.read.saturating_add(bytes);
    }

    /// Takes steps from the budget.
    ///
    /// # Errors
    /// `Unsupported` if fewer are left.
    pub fn take(&mut self, steps: u64) -> Result<()> {
        self.spent = self.spent.saturating_add(steps);
        if self.spent <= self.most() {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "it repeats parts so often that reading it takes more than {} steps for its {} bytes of description",
            self.most(),
            self.read
        )))
    }

    /// Takes the step of an entry, and one for each byte of its texts, which are copied.
    ///
    /// # Errors
    /// As those of [`take`](Self::take).
    pub fn take_entry(&mut self, text_bytes: usize) -> Result<()> {
        self.take((text_bytes as u64).saturating_add(1))
    }

    /// Bytes that were read.
    pub fn read(&self) -> u64 {
        self.read
    }

    /// Steps that were made.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    fn most(&self) -> u64 {
        self.read.saturating_mul(STEPS_PER_BYTE).saturating_add(STEPS_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, STEPS_MIN, STEPS_PER_BYTE};
    use crate::model::ErrorKind;

    #[test]
    fn a_budget_grows_with_the_bytes_read_and_ends_with_a_reason() {
        let mut budget = Budget::default();
        budget.take(STEPS_MIN).unwrap();
        let error = budget.clone().take(1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("repeats parts"), "{error}");
        budget.add_read(2);
        budget.take(2 * STEPS_PER_BYTE).unwrap();
        assert!(budget.take(u64::MAX).is_err());
        budget.add_read(u64::MAX);
        assert!(budget.take(1).is_ok(), "sums do not overflow");
    }
}
