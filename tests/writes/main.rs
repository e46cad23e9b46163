//! Writes through real mounts: the guarantees that a POSIX program relies on, and crashes.

#![cfg(feature = "mount")]
// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod attributes;
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
