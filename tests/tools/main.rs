//! Everyday tools and programs that load models, on model directories in a mount: copies, moves, archives, removals and
//! loads give the same as on the source. They need /dev/fuse and the files that `make setup` fetches.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod collections;
mod copies;
mod loaders;
mod removed_names;
