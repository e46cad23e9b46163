//! Imports through the library, on a disk in memory and on one of files: what came in is
//! what is read, encoded blocks are what the codec makes of them, and whatever fails
//! leaves whole files only.

// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod bytes;
mod damage;
mod encoded;
mod failing_disk;
mod faults;
mod fixture;
mod names;
mod packed;
