//! Control files of real mounts: their contents, their actions, and the permissions on them.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod blocks;
mod events;
mod files;
mod metrics;
mod report;
mod settings;
