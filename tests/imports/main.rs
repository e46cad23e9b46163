//! Imports: imported files read as their sources, encoded blocks as the codec decodes them, and every failure leaves whole
//! files only. Through the library, on a disk in memory and on one of files, and by `tierfs import`, with and without a
//! mount. The latter need /dev/fuse and the files that `make setup` fetches.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod bytes;
mod damage;
mod directories;
mod encoded;
mod equal_files;
mod failing_disk;
mod faults;
mod holes;
mod hostile_files;
mod hub_caches;
mod hub_copies;
mod joined;
mod names;
mod packed;
mod real_model;
mod renamed;
mod shards;
mod slot_runs;
mod version_space;
mod versions;
// Other test binaries use the rest of it.
#[path = "../library/mod.rs"]
#[allow(unused)]
mod library;

use library::fixture;
