//! Control files of real mounts: what they show, what they do, and to whom.

#![cfg(feature = "mount")]
// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod blocks;
mod events;
mod files;
mod metrics;
mod settings;
