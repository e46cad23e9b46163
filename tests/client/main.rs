//! The crate tierfs-client, on mounts: tensors by all their names, batches, requests, errors. Its tables against those of
//! the daemon.

// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod batches;
mod errors;
mod mappings;
mod npy;
mod requests;
mod tensors;
