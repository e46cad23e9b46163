//! Snapshots without a network: what is read of pieces in memory equals the store that they were made of.

// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod frozen;
mod histories;
mod hostile;
mod remote;
mod sources;
// Other test programs use the rest of it.
#[path = "../import/fixture.rs"]
#[allow(unused)]
mod fixture;
