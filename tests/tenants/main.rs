//! Tenants of real mounts: who may do what in them, how much they may use.

#![cfg(feature = "mount")]
// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod forms;
mod imports;
mod owners;
mod private;
mod quotas;
