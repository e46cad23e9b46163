//! Tenants of real mounts: names, permissions and quotas.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod forms;
mod imports;
mod names;
mod owners;
mod private;
mod quotas;
