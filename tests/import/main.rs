//! Imports through the library, on a disk in memory and on one of files: imported files read as their sources, encoded
//! blocks as the codec decodes them, and every failure leaves whole files only.

// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod bytes;
mod damage;
mod encoded;
mod failing_disk;
mod faults;
mod fixture;
mod names;
mod packed;
mod renamed;
mod slot_runs;
