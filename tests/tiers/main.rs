//! Changes of precision by setfattr, on files, containers and directories, while programs read, and automatic ones over
//! simulated time (`policy`, without a mount). Moved tensors are compared with imports into the tier, and with NumPy. They
//! need /dev/fuse and the files that `make setup` fetches.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod again;
mod attributes;
mod automatic;
mod cache_directories;
mod command;
mod digests;
mod eviction;
mod factors;
mod healing;
mod interactions;
mod lineage;
mod lossy_consent;
mod mending;
mod moves;
mod origin;
mod other_parents;
mod packing;
mod parent_factors;
mod patches;
mod pins;
mod policy;
mod rows;
mod scaled_deltas;
mod sources;
mod stretches;
mod tails;
// Other test binaries use the rest of it.
#[path = "../library/mod.rs"]
#[allow(unused)]
mod library;

use library::fixture;
