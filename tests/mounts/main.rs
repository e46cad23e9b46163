//! The program as its users run it: imports, real mounts, standard calls, crashes. They need /dev/fuse and the files
//! that `make setup` fetches.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod bench;
mod compaction;
mod crash;
mod dead;
mod doctor;
mod export;
mod forced;
mod hostile;
mod hub;
mod idle;
mod imports;
mod installed;
mod large;
mod lifecycle;
mod messages;
mod mount;
mod options;
mod patches;
mod ranges;
mod real_model;
mod refusals;
mod sharing;
mod sparse;
mod transport;
