//! Tenants of real mounts: permissions and quotas.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod forms;
mod imports;
mod owners;
mod private;
mod quotas;
