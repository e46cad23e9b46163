//! Writes through real mounts: the guarantees that a POSIX program relies on, and crashes.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod attributes;
#[cfg(feature = "remote")]
mod clones;
mod crash;
mod descriptors;
mod entry_cache;
mod files;
mod full_disk;
mod long_run;
mod many_readers;
mod model;
mod names;
mod page_cache;
mod permissions;
mod stress;
