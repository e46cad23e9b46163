//! Disks and logs without room: failed calls change nothing, stored files stay readable, removals make room, and space is
//! neither lost nor used twice. Compared with the sources and with a model of the contents that may be read. They need
//! /dev/fuse; small tmpfs mounts are the disks.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod copies;
mod full_store;
mod nearly_full;
mod random_calls;
mod refused_calls;
mod space_reuse;
// Other test binaries use the rest of it.
#[path = "../library/mod.rs"]
#[allow(unused)]
mod library;

use library::{history, power_cut_disk};
