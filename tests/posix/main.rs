//! The calls of POSIX programs through real mounts: names, attributes, reads, writes, mappings, threads, many files, and
//! their guarantees. Compared with the sources and with a naive file system in memory. They need /dev/fuse and the files
//! that `make setup` fetches.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod allocate;
mod attributes;
#[cfg(feature = "remote")]
mod clones;
mod concurrent_changes;
mod copy_crossings;
mod copy_range;
mod descriptors;
mod entry_cache;
mod files;
mod long_run;
mod many_readers;
mod model;
mod nameless;
mod names;
mod new_files;
mod opens_by_kernel;
mod page_cache;
mod permissions;
mod program_attributes;
mod ranges;
mod read_only;
mod reading;
mod sparse;
mod stress;
mod versions;
// Other test binaries use the rest of it.
#[path = "../library/mod.rs"]
#[allow(unused)]
mod library;

use library::{history, power_cut_disk, recorder};
