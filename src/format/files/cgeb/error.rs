//! What can be wrong with a `.cgeb` record or a `.cgei` index.

use crate::model::{Error, ErrorKind};

/// What can be wrong with a record or an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CgebError {
    /// It begins with other bytes.
    #[error("begins with {found:02x?}, which is no magic of its format")]
    WrongMagic {
        /// What it begins with.
        found: [u8; 4],
    },
    /// A version that this program does not know.
    #[error("version {version} is not known; 1 and 2 of records and 1 of indexes are")]
    UnsupportedVersion {
        /// The version.
        version: u16,
    },
    /// Flags that the version does not have.
    #[error("flags {flags:#06x} are not known in version {version}")]
    UnsupportedFlags {
        /// The version.
        version: u16,
        /// All flags.
        flags: u16,
    },
    /// Bytes that must be zero are not: a feature that this program does not know.
    #[error("byte {at}, reserved, is not zero")]
    ReservedNotZero {
        /// The first such byte.
        at: u64,
    },
    /// It ends before what it says it holds.
    #[error("ends at byte {present} of {needed}")]
    Truncated {
        /// Bytes that it needs, as far as they are known.
        needed: u64,
        /// Bytes that are there.
        present: u64,
    },
    /// It goes on after what it says it holds.
    #[error("goes on to byte {present} after its end at byte {end}")]
    TrailingBytes {
        /// Where it should end.
        end: u64,
        /// Where it ends.
        present: u64,
    },
    /// Aux lies over the header, the vector, the weights or the selected experts, or has
    /// a length without an offset.
    #[error("aux at byte {offset} lies over the first {fixed} bytes of the record")]
    AuxOverlaps {
        /// Where aux begins.
        offset: u64,
        /// Bytes before aux.
        fixed: u64,
    },
    /// Aux goes on past the bytes that are there.
    #[error("aux of {length} bytes at byte {offset} of {present} bytes")]
    AuxOutside {
        /// Where aux begins.
        offset: u64,
        /// Its length.
        length: u64,
        /// Bytes that are there.
        present: u64,
    },
    /// The hash of the content is another.
    #[error("hash {computed:016x} instead of {stored:016x}")]
    HashMismatch {
        /// The hash that is stored.
        stored: u64,
        /// The hash of what is there.
        computed: u64,
    },
    /// An offset of an index that no record can have, or out of order.
    #[error("record {number} at byte {offset}: not a multiple of 4096, or not ascending")]
    WrongOffset {
        /// Which record, counted from 0.
        number: u64,
        /// Its offset in the file.
        offset: u64,
    },
    /// A buffer that a record is written to ends before it.
    #[error("a buffer of {present} bytes for a record of {needed}")]
    NoRoom {
        /// Bytes of the record.
        needed: u64,
        /// Bytes of the buffer.
        present: u64,
    },
    /// An aux that is not what its encoding says.
    #[error("an aux that is no sound {encoding}")]
    AuxDamaged {
        /// What it should be.
        encoding: &'static str,
    },
    /// An aux that is, or says that it is, longer than its reader allows.
    #[error("an aux of more than {most} bytes, the most that its reader allows")]
    AuxTooLong {
        /// The most that there can be.
        most: u64,
    },
    /// More values than a record can hold, when one is written.
    #[error("{count} values where at most {most} can be")]
    TooMany {
        /// How many there are.
        count: usize,
        /// How many can be.
        most: u32,
    },
}

impl From<CgebError> for Error {
    fn from(error: CgebError) -> Error {
        let kind = match error {
            CgebError::UnsupportedVersion { .. }
            | CgebError::UnsupportedFlags { .. }
            | CgebError::ReservedNotZero { .. } => ErrorKind::Unsupported,
            CgebError::Truncated { .. }
            | CgebError::TrailingBytes { .. }
            | CgebError::AuxDamaged { .. }
            | CgebError::HashMismatch { .. } => ErrorKind::Corrupt,
            CgebError::AuxTooLong { .. } => ErrorKind::TooLarge,
            CgebError::WrongMagic { .. }
            | CgebError::AuxOverlaps { .. }
            | CgebError::AuxOutside { .. }
            | CgebError::WrongOffset { .. }
            | CgebError::NoRoom { .. }
            | CgebError::TooMany { .. } => ErrorKind::Invalid,
        };
        Error::new(kind, error.to_string())
    }
}
