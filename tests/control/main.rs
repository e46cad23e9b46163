//! Control files of real mounts: their contents, their actions, and the permissions on them.

#![cfg(feature = "mount")]
// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod blocks;
mod events;
mod files;
mod metrics;
mod settings;
