//! Faults below a real process: `tierfs` is killed at a chosen system call, or the call fails. The test keeps a journal
//! of acknowledged changes and compares. `strace` does both; the tests need it, /dev/fuse, and the right to trace.
//!
//! `make test` tries some calls, spread over all. `TIERFS_FAULTS=all cargo nextest run --test faults` tries every one
//! of them, in a few minutes.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod daemon_survival;
mod errors;
mod histories;
mod journal;
mod kill;
mod repair;
mod stores;
mod trace;
