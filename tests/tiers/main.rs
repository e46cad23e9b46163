//! Changes of the precision of tensors by setfattr, on files, containers and directories, under readers. They need
//! /dev/fuse, and what `make setup` fetches.

#![cfg(feature = "mount")]
// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod attributes;
mod automatic;
mod command;
mod digests;
mod eviction;
mod factors;
mod healing;
mod interactions;
mod lineage;
mod lossy_consent;
mod moves;
mod origin;
mod packing;
mod pins;
mod scaled_deltas;
mod session;
mod sources;
