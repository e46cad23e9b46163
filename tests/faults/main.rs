//! Faults below a real process: `tierfs` is killed at a system call of choice, or the call fails, and what was
//! acknowledged before is compared with a journal that the test keeps. `strace` does both; the tests need it, /dev/fuse,
//! and the right to trace.
//!
//! `make test` tries some calls, spread over all. `TIERFS_FAULTS=all cargo nextest run --test faults` tries every one
//! of them, in some minutes.

#![cfg(feature = "mount")]
// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod daemon_survival;
mod errors;
mod journal;
mod kill;
mod repair;
mod stores;
mod trace;
