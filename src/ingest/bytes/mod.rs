//! Stores the bytes of a file as objects, which no name leads to yet.

pub(in crate::ingest) mod batch;
pub(in crate::ingest) mod cut;
pub(in crate::ingest) mod joined_file;
pub(in crate::ingest) mod options;
pub(in crate::ingest) mod parents;
pub(in crate::ingest) mod pending_parts;
pub(in crate::ingest) mod room;
pub(in crate::ingest) mod store_parts;
pub(in crate::ingest) mod unread;
