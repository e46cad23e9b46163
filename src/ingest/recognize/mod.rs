//! Recognizes the content of a file, by the suffix of its name and then by its bytes: its parts, their types and
//! their blocks.

pub(in crate::ingest) mod archives;
pub(in crate::ingest) mod batch;
pub(in crate::ingest) mod block_size;
pub(in crate::ingest) mod content;
pub(in crate::ingest) mod data_files;
pub(in crate::ingest) mod diagnose;
pub(in crate::ingest) mod parts;
