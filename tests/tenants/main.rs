//! Tenants of real mounts: permissions and quotas.

#![cfg(feature = "mount")]
// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod forms;
mod imports;
mod owners;
mod private;
mod quotas;
