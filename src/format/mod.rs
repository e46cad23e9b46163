//! Parses bytes to validated structures, and writes them. Nothing here reads a file or asks for the time.
//!
//! Each structure on disk has one file with the table of its layout: slots and records of the log, entries of the
//! catalog and the side file `access` (`log/`), deltas and factors (`payload/`), headers of tensor containers
//! (`files/`), manifests and pieces of snapshots (`snapshot/`), differences of versions (`version.rs`). `docs/FORMAT.md` defines the same bytes for readers of
//! other programs.
//!
//! Byte order is handled in `cursor.rs` alone, CRC32C in `checksum.rs` alone. A parser never trusts a count: it takes
//! lists from bytes that are there, and takes its steps from a `Budget` (`budget.rs`) where structure can multiply.
//! Hostile bytes are an error, never a panic. Every parser has a fuzz target in `tests/fuzz/targets/`, seeds from
//! `tests/fuzz/make_corpus.py`, and a golden file that another implementation made (`tests/golden/`).

pub mod budget;
pub mod checksum;
pub mod cursor;
pub mod files;
pub mod handover;
pub mod log;
#[cfg(feature = "mount")]
pub mod mountinfo;
pub mod payload;
pub mod snapshot;
mod values;
pub mod version;
pub mod version_description;
pub mod zstandard;
