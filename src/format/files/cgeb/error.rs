//! Errors of `.cgeb` records and `.cgei` indexes.

use crate::format::files::CUT_OFF;
use crate::model::{Error, ErrorKind};

/// An error of a record or an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CgebError {
    /// The magic is wrong.
    #[error("begins with {found:02x?}, not with the magic of its format")]
    WrongMagic {
        /// The first bytes.
        found: [u8; 4],
    },
    /// Unknown version.
    #[error("version {version} is not known; tierfs reads versions 1 and 2 of records and 1 of indexes")]
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
    /// The bytes end before the length that the header implies.
    #[error("ends at byte {present} of {needed}: {}", CUT_OFF)]
    Truncated {
        /// Needed bytes, as far as they are known.
        needed: u64,
        /// Present bytes.
        present: u64,
    },
    /// The bytes continue after the length that the header implies.
    #[error("goes on to byte {present} after its end at byte {end}")]
    TrailingBytes {
        /// The expected end.
        end: u64,
        /// The actual end.
        present: u64,
    },
    /// Aux overlaps the header, the vector, the weights or the selected experts, or has a length without
    /// an offset.
    #[error("the aux at byte {offset} overlaps the first {fixed} bytes of the record")]
    AuxOverlaps {
        /// The offset of aux.
        offset: u64,
        /// Bytes before aux.
        fixed: u64,
    },
    /// Aux extends past the present bytes.
    #[error("the aux, {length} bytes at byte {offset}, goes past the {present} bytes of the record")]
    AuxOutside {
        /// The offset of aux.
        offset: u64,
        /// Its length.
        length: u64,
        /// Present bytes.
        present: u64,
    },
    /// The hash does not match the content.
    #[error("the hash of the bytes is {computed:016x}, but the record says {stored:016x}")]
    HashMismatch {
        /// The stored hash.
        stored: u64,
        /// The hash of the content.
        computed: u64,
    },
    /// An offset of an index is misaligned or out of order.
    #[error(
        "record {number} begins at byte {offset}, which is not a multiple of 4096 after the record before it"
    )]
    WrongOffset {
        /// The number of the record, from 0.
        number: u64,
        /// Its offset in the file.
        offset: u64,
    },
    /// The buffer is too small for the record to write.
    #[error("a record of {needed} bytes does not fit a buffer of {present}")]
    NoRoom {
        /// Bytes of the record.
        needed: u64,
        /// Bytes of the buffer.
        present: u64,
    },
    /// Aux is not valid in its encoding.
    #[error("the aux bytes cannot be decoded as {encoding}; the record is damaged")]
    AuxDamaged {
        /// The encoding.
        encoding: &'static str,
    },
    /// Aux is, or claims to be, longer than the reader allows.
    #[error("the aux has more than {most} bytes, the limit of this program")]
    AuxTooLong {
        /// The maximum.
        most: u64,
    },
    /// A record to write has more values than the format can hold.
    #[error("{count} values; a record has at most {most}")]
    TooMany {
        /// The number of values.
        count: usize,
        /// The maximum number.
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
