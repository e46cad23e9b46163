//! Deaths of the daemon and of the commands, failing system calls, and power cuts at any change: acknowledged changes are
//! there, no change is half done, and a repair keeps readable bytes. Compared with a journal of acknowledged changes, or
//! with a model of the versions that may be read.
//!
//! `strace` kills the program at a chosen system call, or lets the call fail; the tests need it, /dev/fuse, and the right
//! to trace. `make test` tries some calls, spread over all. `TIERFS_FAULTS=all cargo nextest run --test crashes` tries
//! every one of them, in a few minutes. Power cuts happen on a disk in memory (`tests/library/power_cut_disk.rs`).

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod arriving_files;
mod block_checksums;
mod daemon_survival;
mod damaged_views;
mod dead_mounts;
mod durability_marks;
mod failing_calls;
mod histories;
mod journal;
mod killed_calls;
mod killed_mounts;
mod killed_writers;
mod power_cut_points;
mod power_cuts;
mod repair;
mod shared_files;
mod stores;
mod sync_beside_appends;
mod trace;
mod versions;
// Other test binaries use the rest of it.
#[path = "../library/mod.rs"]
#[allow(unused)]
mod library;

use library::{history, power_cut_disk, recorder};
