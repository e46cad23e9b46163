//! The memory of a mount between requests.

pub(in crate::fs) mod decoded_copies;
pub(in crate::fs) mod earlier;
pub(in crate::fs) mod failure;
pub(in crate::fs) mod files_by_inode;
pub(in crate::fs) mod form_file;
pub(in crate::fs) mod handles;
pub(in crate::fs) mod in_progress;
pub(in crate::fs) mod invalidate;
pub(in crate::fs) mod names;
pub(in crate::fs) mod number_records;
pub(in crate::fs) mod open_records;
pub(in crate::fs) mod passthrough;
pub(in crate::fs) mod read_pattern;
pub(in crate::fs) mod recognition;
pub(in crate::fs) mod second_look;
pub(in crate::fs) mod times;
pub(in crate::fs) mod verify_on_open;
