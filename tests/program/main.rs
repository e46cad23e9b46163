//! The program as its users run it: the start and the end of mounts, options, messages and mistakes, installed files, and
//! the commands `bench`, `doctor`, `export`, `top` and others. `tests/program/mistakes.txt` has the exact answers to
//! mistakes. They need /dev/fuse.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod bench;
mod compaction;
mod control_characters;
#[cfg(feature = "csi")]
mod csi;
mod doctor;
mod export;
mod forced;
mod idle;
mod installed;
mod interrupt;
mod large;
mod lease;
mod lifecycle;
mod messages;
mod mistakes;
mod options;
mod places;
mod sessions;
mod takeover;
mod top;
mod transport;
#[cfg(feature = "csi")]
mod volumes;
